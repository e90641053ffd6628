"""Protocols at work: on lanes for the game, and live. Importing this does not import torch.

Live, `Study` tunes: its user trains, it draws and chooses, and what it releases keeps the budget.
"""

from audit.tuning.cost_of import TuningCost, cost_of
from audit.tuning.outcome import Best, Inadmissible, Outcome, Private, Trial, Void
from audit.tuning.random_search import best_of_runs
from audit.tuning.space import Choice, Dimension, LogUniform, Space, Uniform, Whole
from audit.tuning.study import Study
from audit.tuning.winners import Winners

__all__ = [
    "Best",
    "Choice",
    "Dimension",
    "Inadmissible",
    "LogUniform",
    "Outcome",
    "Private",
    "Space",
    "Study",
    "Trial",
    "TuningCost",
    "Uniform",
    "Void",
    "Whole",
    "Winners",
    "best_of_runs",
    "cost_of",
]
