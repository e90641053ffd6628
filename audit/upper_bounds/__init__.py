"""What does the choosing cost? Every bound is a function of (base, protocol, delta).

Each number says what it needs to be true: which protocol, any score or a monotone one, which base.
"""

from audit import _deprecated
from audit.orders import FoldedOrder, SplitOrder
from audit.upper_bounds.adaptive import (
    AdaptiveCurve,
    hypo,
    hypo_curve,
    hypo_pure,
    project_density,
)
from audit.upper_bounds.adaptive_attack import AdaptiveAttack, adaptive_attack
from audit.upper_bounds.best_runs import BestRunsCurve, best_runs
from audit.upper_bounds.candidates import (
    corollary_6_2,
    largest_steps,
    many_candidates,
    propose_test_release,
)
from audit.upper_bounds.comparison import ComparedProtocol, compare_protocols
from audit.upper_bounds.composed import AllRuns, TunedMechanism
from audit.upper_bounds.conditional import (
    AcceptedTails,
    TwoEvents,
    attack_tails,
    conditional_curve,
    conditional_sampling,
    corollary_16,
    repeated_response,
    repeated_response_divergence,
)
from audit.upper_bounds.grid import GridCurve
from audit.upper_bounds.grid_by_domination import dominating_mu, grid_gaussian
from audit.upper_bounds.grid_of_gaussians import grid_tight
from audit.upper_bounds.histories import ComposedRuns, HistoryCurve
from audit.upper_bounds.inverse import (
    AffordableRepetitions,
    best_repetitions,
    calibrate_mu_for_tuning,
    calibrate_noise,
    calibrate_runs,
    with_mean,
)
from audit.upper_bounds.noisy_max import noisy_max, noisy_max_closed_form, noisy_max_renyi
from audit.upper_bounds.one_run import BaseReport, report_mechanism
from audit.upper_bounds.profile import profile
from audit.upper_bounds.pure import (
    approximate,
    approximate_to_delta,
    corollary_21,
    liu_talwar,
    without_failures,
)
from audit.upper_bounds.reduced import (
    LikelihoodOrder,
    ReducedGame,
    reduced_exact,
    reduced_gdp_limit,
    reduced_mean_inclusion,
    reduced_renyi,
)
from audit.upper_bounds.region import RegionCurve, region
from audit.upper_bounds.registry import (
    Bound,
    all_upper_bounds,
    entries,
    smallest,
    tightest,
    tuning_cost,
)
from audit.upper_bounds.renyi import (
    corollary_4,
    corollary_4_curve,
    lemma_7,
    lemma_7_curve,
    lemma_22,
    lemma_22_curve,
    renyi,
    renyi_curve,
)
from audit.upper_bounds.result import NotApplicable, UpperBound
from audit.upper_bounds.subset import (
    SubsetCurve,
    cost_ratio,
    scaled_learning_rate,
    subset_divergences,
    subset_tuning,
)
from audit.upper_bounds.subset_attack import SubsetAttack, subset_attack
from audit.upper_bounds.tight import FoldedGame, TightCurve, tight
from audit.upper_bounds.worst_order import (
    TunedOrder,
    attack_order,
    worst_case_order,
    worst_case_split_order,
    worst_order,
)

BOUNDS: dict[str, Bound] = {e.name: e.function for e in entries() if not e.is_special}
"""Every bound of a random search by name, the loosest kind first."""

SPECIAL: dict[str, Bound] = {e.name: e.function for e in entries() if e.is_special}
"""For truncated laws, sampled batches and other known bases: no row where they do not apply."""

VALID_FOR_ANY_SCORE = tuple(e.name for e in entries() if e.claim.any_score)
"""The names of the upper bounds of a random search that hold whatever the score."""

__all__ = [
    "BOUNDS",
    "SPECIAL",
    "VALID_FOR_ANY_SCORE",
    "AcceptedTails",
    "AdaptiveAttack",
    "AdaptiveCurve",
    "AffordableRepetitions",
    "AllRuns",
    "BaseReport",
    "BestRunsCurve",
    "Bound",
    "ComparedProtocol",
    "ComposedRuns",
    "FoldedGame",
    "FoldedOrder",
    "GridCurve",
    "HistoryCurve",
    "LikelihoodOrder",
    "NotApplicable",
    "ReducedGame",
    "RegionCurve",
    "SplitOrder",
    "SubsetAttack",
    "SubsetCurve",
    "TightCurve",
    "TunedMechanism",
    "TunedOrder",
    "TwoEvents",
    "UpperBound",
    "adaptive_attack",
    "all_upper_bounds",
    "approximate",
    "approximate_to_delta",
    "attack_order",
    "attack_tails",
    "best_repetitions",
    "best_runs",
    "calibrate_mu_for_tuning",
    "calibrate_noise",
    "calibrate_runs",
    "compare_protocols",
    "conditional_curve",
    "conditional_sampling",
    "corollary_4",
    "corollary_4_curve",
    "corollary_6_2",
    "corollary_16",
    "corollary_21",
    "cost_ratio",
    "dominating_mu",
    "entries",
    "grid_gaussian",
    "grid_tight",
    "hypo",
    "hypo_curve",
    "hypo_pure",
    "largest_steps",
    "lemma_7",
    "lemma_7_curve",
    "lemma_22",
    "lemma_22_curve",
    "liu_talwar",
    "many_candidates",
    "noisy_max",
    "noisy_max_closed_form",
    "noisy_max_renyi",
    "profile",
    "project_density",
    "propose_test_release",
    "reduced_exact",
    "reduced_gdp_limit",
    "reduced_mean_inclusion",
    "reduced_renyi",
    "region",
    "renyi",
    "renyi_curve",
    "repeated_response",
    "repeated_response_divergence",
    "report_mechanism",
    "scaled_learning_rate",
    "smallest",
    "subset_attack",
    "subset_divergences",
    "subset_tuning",
    "tight",
    "tightest",
    "tuning_cost",
    "with_mean",
    "without_failures",
    "worst_case_order",
    "worst_case_split_order",
    "worst_order",
]

__getattr__ = _deprecated.renamed(__name__)
