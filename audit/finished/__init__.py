"""The cost of a finished tuning, from its runs and the way in which candidates were chosen.

A source is read by one of the `readers`, whose `material` also shows how candidates were chosen.
Each column gets a role in `columns`, the values of each run become a mechanism in `runs`, and
`cost` finds the smallest valid bound.
"""

from audit.finished.tuning_cost import TuningCost, cost_of_trials

__all__ = ["TuningCost", "cost_of_trials"]
