"""Upper bounds on the privacy cost of a tuning, as functions of (base, protocol, delta).

`tuning_cost` returns the smallest bound that holds for every score, `all_upper_bounds` all bounds.
Every result states its assumptions about the protocol, the score and the base. The theorems of the
papers are in `audit.upper_bounds.published`.
"""

from audit.errors import NotApplicable
from audit.upper_bounds import published as published
from audit.upper_bounds.adaptive import AdaptiveCurve
from audit.upper_bounds.best_folds import FoldCurve, best_folds
from audit.upper_bounds.best_runs import BestRunsCurve, best_runs, pareto_front
from audit.upper_bounds.composed import AllRuns
from audit.upper_bounds.costs import (
    BaseReport,
    ComparedProtocol,
    TuningCosts,
    all_upper_bounds,
    compare_protocols,
    costs_of,
    report_mechanism,
    smallest,
    tuning_cost,
)
from audit.upper_bounds.grid import GridCurve, grid_mixture
from audit.upper_bounds.grid_by_levels import LevelCurve, grid_levels
from audit.upper_bounds.grid_tight import grid_log_concave, grid_tight, log_concave_pair
from audit.upper_bounds.histories import HistoryCurve
from audit.upper_bounds.inverse import (
    AffordableRepetitions,
    best_repetitions,
    calibrate_mu_for_tuning,
    calibrate_noise,
    calibrate_runs,
    least_noise,
)
from audit.upper_bounds.reduced import LikelihoodOrder, ReducedGame, reduced_exact
from audit.upper_bounds.region import RegionCurve, region
from audit.upper_bounds.registry import Bound, ProtocolLike, UpperBound, entries, find
from audit.upper_bounds.subset import SubsetCurve, TunedMechanism
from audit.upper_bounds.tight import FoldedGame, TightCurve, tight, worst_order
from audit.upper_bounds.until_accepted import TwoEvents, first_accepted, schedule_ex_post

__all__ = [
    "AdaptiveCurve",
    "AffordableRepetitions",
    "AllRuns",
    "BaseReport",
    "BestRunsCurve",
    "Bound",
    "ComparedProtocol",
    "FoldCurve",
    "FoldedGame",
    "GridCurve",
    "HistoryCurve",
    "LevelCurve",
    "LikelihoodOrder",
    "NotApplicable",
    "ProtocolLike",
    "ReducedGame",
    "RegionCurve",
    "SubsetCurve",
    "TightCurve",
    "TunedMechanism",
    "TuningCosts",
    "TwoEvents",
    "UpperBound",
    "all_upper_bounds",
    "best_folds",
    "best_repetitions",
    "best_runs",
    "calibrate_mu_for_tuning",
    "calibrate_noise",
    "calibrate_runs",
    "compare_protocols",
    "costs_of",
    "entries",
    "find",
    "first_accepted",
    "grid_levels",
    "grid_log_concave",
    "grid_mixture",
    "grid_tight",
    "least_noise",
    "log_concave_pair",
    "pareto_front",
    "reduced_exact",
    "region",
    "report_mechanism",
    "schedule_ex_post",
    "smallest",
    "tight",
    "tuning_cost",
    "worst_order",
]
