"""Private tuning, the cost of a finished tuning, and simulated tunings for audits.

In a `Study`, the user's function trains, and the study draws the candidates and releases the best
run within a privacy budget. This package does not need torch.
"""

from audit import _deprecated
from audit.certificate.conditions import Private
from audit.errors import ProtocolViolation, StudyAborted
from audit.tuning.budget import Budget, BudgetExceeded
from audit.tuning.cost_of_trials import TuningCost, cost_of_trials
from audit.tuning.outcome import Best, Outcome, Trial
from audit.tuning.random_search import best_of_runs
from audit.tuning.space import Choice, Dimension, Integer, LogUniform, Space, Uniform
from audit.tuning.study import Study
from audit.tuning.winners import Winners

__all__ = [
    "Best",
    "Budget",
    "BudgetExceeded",
    "Choice",
    "Dimension",
    "Integer",
    "LogUniform",
    "Outcome",
    "Private",
    "ProtocolViolation",
    "Space",
    "Study",
    "StudyAborted",
    "Trial",
    "TuningCost",
    "Uniform",
    "Winners",
    "best_of_runs",
    "cost_of_trials",
]

__getattr__ = _deprecated.renamed(__name__)
