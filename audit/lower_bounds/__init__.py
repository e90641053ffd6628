"""Lower bounds on epsilon from a finished game.

`lower_bound` is the one to use; `all_bounds` shows it beside the others, each with what it assumes.
`pooled_bounds` takes every run of a tuning instead of the winners, `one_run_bounds` many canaries
in one run, `family_bound` a family of mechanisms given by privacy profiles.
"""

from audit.lower_bounds.estimators import all_bounds, lower_bound, pooled_bounds
from audit.lower_bounds.families import family_bound
from audit.lower_bounds.one_run import one_run_bounds
from audit.lower_bounds.result import LowerBound

__all__ = [
    "LowerBound",
    "all_bounds",
    "family_bound",
    "lower_bound",
    "one_run_bounds",
    "pooled_bounds",
]
