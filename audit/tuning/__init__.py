"""Private tuning within a budget.

In a `Study`, the user's function trains, and the study draws the candidates and releases the best
run within a privacy budget. This package does not need torch.
"""

from audit.accounting.filters import BudgetExceeded
from audit.certificate.conditions import Private
from audit.errors import ProtocolViolation, StudyAborted
from audit.tuning.budget import Budget
from audit.tuning.outcome import Best, Outcome, Trial
from audit.tuning.space import Choice, Dimension, Integer, LogUniform, Space, Uniform
from audit.tuning.stopping import Stopped
from audit.tuning.study import Study

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
    "Stopped",
    "Study",
    "StudyAborted",
    "Trial",
    "Uniform",
]
