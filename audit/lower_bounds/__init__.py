"""Lower bounds on epsilon from a finished game.

`lower_bound` is the one to use; `all_bounds` shows it beside the others, each with what it assumes.
"""

from audit.lower_bounds.estimators import all_bounds, lower_bound
from audit.lower_bounds.result import LowerBound

__all__ = ["LowerBound", "all_bounds", "lower_bound"]
