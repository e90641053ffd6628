"""What does the choosing cost? Every bound is a function of (base, repetitions, delta).

Each number says what it needs to be true: any score, a monotone score, a Gaussian base.
"""

from collections.abc import Callable

from audit import checks
from audit.accounting import Mechanism, Unreachable
from audit.repetitions import Repetitions
from audit.upper_bounds.profile import profile
from audit.upper_bounds.pure import liu_talwar
from audit.upper_bounds.reduced import ReducedGame, reduced_exact, reduced_renyi
from audit.upper_bounds.region import RegionCurve, region
from audit.upper_bounds.renyi import renyi
from audit.upper_bounds.result import UpperBound, not_applicable
from audit.upper_bounds.worst_order import (
    SplitOrder,
    TunedOrder,
    attack_order,
    best_split_order,
    worst_order,
)

Bound = Callable[[Mechanism, Repetitions, float], UpperBound]

BOUNDS: dict[str, Bound] = {
    "liu-talwar": liu_talwar,
    "renyi": renyi,
    "profile": profile,
    "reduced-renyi": reduced_renyi,
    "reduced-exact": reduced_exact,
    "worst-order": worst_order,
    "region": region,
}
"""Every bound by name, the loosest kind first."""

VALID_FOR_ANY_SCORE = ("liu-talwar", "renyi", "profile", "region")
"""The names of the upper bounds that hold whatever the score."""


def all_bounds(base: Mechanism, repetitions: Repetitions, delta: float) -> list[UpperBound]:
    """Every bound at one setting, in the order of `BOUNDS`.

    Args:
        base: the base mechanism.
        repetitions: the law of K.
        delta: in (0, 1).

    Raises:
        ValueError: delta is not in (0, 1).
    """
    checks.interval("delta", delta, 0.0, 1.0)
    rows = []
    for name, bound in BOUNDS.items():
        try:
            rows.append(bound(base, repetitions, delta))
        except Unreachable as error:
            rows.append(not_applicable(name, str(error), ""))
    return rows


__all__ = [
    "BOUNDS",
    "VALID_FOR_ANY_SCORE",
    "Bound",
    "ReducedGame",
    "RegionCurve",
    "SplitOrder",
    "TunedOrder",
    "UpperBound",
    "all_bounds",
    "attack_order",
    "best_split_order",
    "liu_talwar",
    "profile",
    "reduced_exact",
    "reduced_renyi",
    "region",
    "renyi",
    "worst_order",
]
