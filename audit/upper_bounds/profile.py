"""The generic bounds by privacy profile (Koskela, Redberg & Wang 2024)."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from audit.accounting import Mechanism, solve_epsilon
from audit.numerics import PROFILE_ACCURACY
from audit.repetitions import Repetitions
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.result import NotApplicable

Array = NDArray[np.float64]

_SOURCE = "Koskela, Redberg & Wang 2024"


@bound(
    "profile",
    60,
    _SOURCE,
    about=("any base",),
    title=r"$\varepsilon_U$ profile (any score)",
)
def profile(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """delta_A(eps) <= E[K] delta(eps - penalty), the penalty minimised over epsilon_1 >= 0.

    Theorem 5.2 for truncated negative binomial K, 5.7 for binomial, corollary 5.8 for Poisson. The
    penalty does not depend on epsilon, so it is minimised once.

    Args:
        base: the base mechanism, through its privacy profile.
        repetitions: the law of K.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(profile(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.408
    """
    theorem = repetitions.profile_theorem
    if theorem is None:
        raise NotApplicable(
            "K must be truncated negative binomial, binomial with p < 1, or Poisson"
        )
    penalty = _smallest_penalty(base, theorem.penalty)

    def tuned(epsilon: float) -> float:
        return repetitions.mean * float(base.delta(epsilon - penalty))

    return BoundValue(solve_epsilon(tuned, delta), source=theorem.source)


def _smallest_penalty(base: Mechanism, penalty: Callable[[Array, Array], Array]) -> float:
    """Minimises over epsilon_1 on a grid refined three times; any epsilon_1 is valid."""
    left, right = math.log(1e-12), math.log(700.0)
    values = np.empty(0)
    for _ in range(4):
        grid = np.linspace(left, right, 513)
        epsilon_1 = np.exp(grid)
        values = penalty(epsilon_1, base.delta(epsilon_1) * (1.0 + PROFILE_ACCURACY))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(values.min())
