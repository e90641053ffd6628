"""The cost of a finished tuning, from its trials and the way in which candidates were chosen."""

from audit.finished.cost import TuningCost, cost_of_trials

__all__ = ["TuningCost", "cost_of_trials"]
