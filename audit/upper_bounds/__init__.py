"""What does the choosing cost? Every bound is a function of (base, repetitions, delta).

Each number says what it needs to be true: any score, a monotone score, a Gaussian base.
"""

from collections.abc import Callable

from audit import checks
from audit.accounting import Mechanism, Unreachable
from audit.repetitions import Repetitions
from audit.upper_bounds.candidates import (
    corollary_6_2,
    largest_steps,
    many_candidates,
    propose_test_release,
)
from audit.upper_bounds.composed import TunedMechanism
from audit.upper_bounds.conditional import (
    conditional_curve,
    conditional_sampling,
    corollary_16,
    repeated_response,
    repeated_response_divergence,
)
from audit.upper_bounds.hypo import hypo, hypo_curve, hypo_pure, project_density
from audit.upper_bounds.inverse import (
    Affordable,
    best_law,
    solve_mu,
    solve_noise_multiplier,
    solve_runs,
    with_mean,
)
from audit.upper_bounds.noisy_max import noisy_max, noisy_max_closed_form, noisy_max_renyi
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
from audit.upper_bounds.result import UpperBound, not_applicable
from audit.upper_bounds.subset import (
    cost_ratio,
    scaled_learning_rate,
    subset_divergences,
    subset_tuning,
)
from audit.upper_bounds.tight import FoldedGame, TightCurve, tight
from audit.upper_bounds.worst_order import (
    FoldedOrder,
    SplitOrder,
    TunedOrder,
    attack_order,
    best_order,
    best_split_order,
    worst_order,
)

Bound = Callable[[Mechanism, Repetitions, float], UpperBound]

BOUNDS: dict[str, Bound] = {
    "liu-talwar": liu_talwar,
    "approximate": approximate,
    "corollary-4": corollary_4,
    "renyi": renyi,
    "lemma-7": lemma_7,
    "profile": profile,
    "reduced-renyi": reduced_renyi,
    "reduced-exact": reduced_exact,
    "worst-order": worst_order,
    "region": region,
    "tight": tight,
}
"""Every bound by name, the loosest kind first."""

SPECIAL: dict[str, Bound] = {
    "lemma-22": lemma_22,
    "reduced-O": reduced_mean_inclusion,
    "reduced-G": reduced_gdp_limit,
}
"""For truncated laws, sampled batches and other known bases: no row where they do not apply."""

VALID_FOR_ANY_SCORE = (
    "liu-talwar",
    "approximate",
    "corollary-4",
    "renyi",
    "lemma-22",
    "lemma-7",
    "profile",
    "region",
    "tight",
)
"""The names of the upper bounds that hold whatever the score."""


def all_bounds(base: Mechanism, repetitions: Repetitions, delta: float) -> list[UpperBound]:
    """Every bound at one setting, in the order of `BOUNDS`, and those of `SPECIAL` that apply.

    Args:
        base: the base mechanism.
        repetitions: the law of K.
        delta: in (0, 1).

    Raises:
        ValueError: delta is not in (0, 1).
    """
    checks.interval("delta", delta, 0.0, 1.0)
    rows = [_row(name, base, repetitions, delta) for name in BOUNDS]
    special = (_row(name, base, repetitions, delta) for name in SPECIAL)
    return rows + [row for row in special if row.epsilon is not None]


def _row(name: str, base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """One bound, with a reason in place of a value where no epsilon reaches delta."""
    try:
        return (BOUNDS | SPECIAL)[name](base, repetitions, delta)
    except Unreachable as error:
        return not_applicable(name, str(error), "")


def tightest(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """The smallest bound that holds whatever the score.

    It is the tight bound, but where the discretisation of that one tells.

    Args:
        base: the base mechanism.
        repetitions: the law of K.
        delta: in (0, 1).

    Raises:
        Unreachable: no bound reaches delta.
    """
    checks.interval("delta", delta, 0.0, 1.0)
    rows = [_row(name, base, repetitions, delta) for name in VALID_FOR_ANY_SCORE]
    known = [(row.epsilon, row) for row in rows if row.epsilon is not None]
    if not known:
        raise Unreachable(f"delta must be above what no epsilon removes, got {delta!r}")
    return min(known, key=lambda one: one[0])[1]


__all__ = [
    "BOUNDS",
    "SPECIAL",
    "VALID_FOR_ANY_SCORE",
    "Affordable",
    "Bound",
    "FoldedGame",
    "FoldedOrder",
    "LikelihoodOrder",
    "ReducedGame",
    "RegionCurve",
    "SplitOrder",
    "TightCurve",
    "TunedMechanism",
    "TunedOrder",
    "UpperBound",
    "all_bounds",
    "approximate",
    "approximate_to_delta",
    "attack_order",
    "best_law",
    "best_order",
    "best_split_order",
    "conditional_curve",
    "conditional_sampling",
    "corollary_4",
    "corollary_4_curve",
    "corollary_6_2",
    "corollary_16",
    "corollary_21",
    "cost_ratio",
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
    "scaled_learning_rate",
    "solve_mu",
    "solve_noise_multiplier",
    "solve_runs",
    "subset_divergences",
    "subset_tuning",
    "tight",
    "tightest",
    "with_mean",
    "without_failures",
    "worst_order",
]
