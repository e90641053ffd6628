"""From a curve (Renyi divergence by order, delta by epsilon) to one epsilon, rounded up."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from audit import checks

Array = NDArray[np.float64]


class Unreachable(ValueError):
    """No epsilon reaches the delta asked for: the mechanism fails with more than that."""


SMALLEST_DELTA = 1e-40
"""Where a sampled profile ends: less than that is as good as its limit."""

_LARGEST_EPSILON = 1e8
# Relative accuracy that every evaluation of a profile is known to have; see tests.
_PROFILE_ACCURACY = 1e-9


def best_order(
    objective: Callable[[Array], Array], low: float = 1e-7, high: float = 1e9
) -> tuple[float, float]:
    """Minimises a function of the order alpha over the continuum 1 + [low, high].

    A grid of alpha - 1, uniform on the logarithmic scale, is refined around its best point until
    its spacing is below 1e-4. Any order gives a valid bound, so the result is safe whatever the
    shape of the function.

    Args:
        objective: maps orders [n] to values [n]; infinite where an order is not usable.
        low: smallest alpha - 1.
        high: largest alpha - 1.

    Returns:
        The best order and the value there.
    """
    left, right = math.log(low), math.log(high)
    spacing = math.inf
    while spacing > 1e-4:
        grid, spacing = np.linspace(left, right, 97, retstep=True)
        values = objective(1.0 + np.exp(grid))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return 1.0 + math.exp(grid[best]), float(values[best])


def renyi_to_epsilon(
    renyi: Callable[[Array], Array], delta: float, low: float = 1e-7, high: float = 1e9
) -> float:
    """Smallest epsilon that a Renyi curve gives at delta.

    Uses epsilon = D_alpha + log((alpha-1)/alpha) - (log delta + log alpha)/(alpha - 1), minimised
    over alpha (Balle et al. 2020, theorem 20; Xiang, Wang & Wang 2024, theorem 6).

    Args:
        renyi: maps orders [n] > 1 to upper bounds [n] on the Renyi divergence.
        delta: in (0, 1).
        low: smallest alpha - 1 to try.
        high: largest alpha - 1 to try.

    Raises:
        ValueError: delta is not in (0, 1).
    """
    checks.interval("delta", delta, 0.0, 1.0)
    log_delta = math.log(delta)

    def epsilon(alpha: Array) -> Array:
        rest = alpha - 1.0
        return renyi(alpha) + np.log1p(-1.0 / alpha) - (log_delta + np.log(alpha)) / rest

    return max(best_order(epsilon, low, high)[1], 0.0)


def solve_epsilon(profile: Callable[[float], float], delta: float) -> float:
    """Smallest epsilon >= 0 with profile(epsilon) <= delta, rounded up.

    Args:
        profile: decreasing function of epsilon, accurate to a relative 1e-9.
        delta: in (0, 1).

    Returns:
        An epsilon at which the profile is at most delta, within a relative 1e-9 of the smallest.

    Raises:
        ValueError: delta is not in (0, 1).
        Unreachable: the profile stays above delta for every epsilon.
    """
    checks.interval("delta", delta, 0.0, 1.0)
    target = delta * (1.0 - _PROFILE_ACCURACY)
    if profile(0.0) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while profile(high) > target:
        low, high = high, 2.0 * high
        if high > _LARGEST_EPSILON:
            raise Unreachable(
                f"delta must be above {profile(high):.3g}, which no epsilon removes, got {delta!r}"
            )

    def excess(epsilon: float) -> float:
        # The floor keeps the logarithm finite where the profile underflows.
        return math.log(max(profile(epsilon), 1e-320)) - math.log(target)

    root = float(optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-12))
    step = 1e-12 * max(1.0, root)
    while profile(root) > target:
        root += step
        step *= 2.0
    return root


def reach(profile: Callable[[float], float]) -> float:
    """An epsilon, not much too large, beyond which the profile is 1e-40 or all but its limit."""
    enough = max(SMALLEST_DELTA, 1.001 * profile(_LARGEST_EPSILON))
    low, high = 0.0, 1e-6
    while profile(high) > enough and high < _LARGEST_EPSILON:
        low, high = high, 2.0 * high
    for _ in range(4):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if profile(middle) > enough else (low, middle)
    return high
