"""Conversion of Renyi curves and privacy profiles to an epsilon, rounded up."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.errors import DeltaUnreachable
from audit.numerics import (
    PROFILE_ACCURACY,
    TINY,
    FloatArray,
    best_alpha,
    bracket_root,
    double_until,
    safe_root,
)


class Unresolved(DeltaUnreachable):
    """A composition has losses that are too fine or too many for a grid, so its cost is unknown.

    Example:
        >>> str(Unresolved("too many runs")), issubclass(Unresolved, ValueError)
        ('too many runs', True)
    """


SMALLEST_DELTA = 1e-40
"""A sampled profile ends where delta is below this value."""

LARGEST_EPSILON = 1e12
"""Where the search for an epsilon ends: a larger one means that an event reveals the data set."""

_LEFT_OVER = 1e-30
# A tenth of the relative accuracy of profiles: the accuracy of an epsilon, relative above 1.
_TOLERANCE = 0.1 * PROFILE_ACCURACY
_ROUNDING = 1e-4  # of a difference as small as this accuracy
# A search compares logarithms, so that a profile at its result may be above the target by rounding.
_ROUNDED_UP = 1.0 + 1e-12
_NEARLY = 2e-8  # share of a target by which a profile may be below it at its smallest epsilon
_expected: ContextVar[float | None] = ContextVar("expected epsilon", default=None)


@contextlib.contextmanager
def expecting(epsilon: float) -> Iterator[None]:
    """Within the block, searches for an epsilon evaluate this one first.

    If it is the result, they end there. So it saves time and changes no result by more than the
    accuracy of `solve_epsilon`. It comes from a certificate, whose numbers need not be true.

    Example:
        >>> evaluated = []
        >>> def profile(epsilon):
        ...     evaluated.append(epsilon)
        ...     return math.exp(-2.0 * epsilon)
        >>> stated = solve_epsilon(profile, 1e-4)
        >>> evaluated.clear()
        >>> with expecting(stated):
        ...     solve_epsilon(profile, 1e-4) == stated, len(evaluated) < 10
        (True, True)
    """
    token = _expected.set(epsilon)
    try:
        yield
    finally:
        _expected.reset(token)


def expected_epsilon() -> float | None:
    """The epsilon of the innermost `expecting`; None outside of it."""
    return _expected.get()


def renyi_to_epsilon(
    renyi: Callable[[FloatArray], FloatArray],
    delta: float,
    low: float = 1e-7,
    high: float = 1e9,
    refined: int = 97,
) -> float:
    r"""Smallest epsilon that a Renyi curve gives at delta.

    .. math:: \varepsilon = D_\alpha + \log\frac{\alpha - 1}{\alpha}
        - \frac{\log \delta + \log \alpha}{\alpha - 1},

    minimised over alpha (Balle et al. 2020, theorem 20; Xiang, Wang & Wang 2024, theorem 6).

    Args:
        renyi: maps orders [n] > 1 to upper bounds [n] on the Renyi divergence.
        delta: in (0, 1).
        low: smallest alpha - 1 to try.
        high: largest alpha - 1 to try.
        refined: number of orders in each refinement of the search.

    Raises:
        InvalidInput: delta is not in (0, 1).

    Example:
        >>> round(renyi_to_epsilon(lambda alpha: 0.125 * alpha, 1e-5), 3)
        2.166
    """
    return max(best_conversion(renyi, delta, low, high, refined)[1], 0.0)


def best_conversion(
    renyi: Callable[[FloatArray], FloatArray],
    delta: float,
    low: float = 1e-7,
    high: float = 1e9,
    refined: int = 97,
) -> tuple[float, float]:
    """The best order for `renyi_to_epsilon`, and its epsilon, which may be negative."""
    delta = checks.interval("delta", delta, 0.0, 1.0)
    return best_alpha(
        lambda alpha: epsilon_of_order(renyi(alpha), alpha, delta), low, high, refined
    )


def epsilon_of_order(divergence: ArrayLike, order: ArrayLike, delta: float) -> FloatArray:
    """Epsilons [n] at delta, from the divergences [n] at single orders [n] > 1."""
    order = np.asarray(order, dtype=np.float64)
    of_delta = (math.log(delta) + np.log(order)) / (order - 1.0)
    return np.asarray(divergence + np.log1p(-1.0 / order) - of_delta)


def solve_epsilon(
    profile: Callable[[float], float],
    delta: float,
    guess: float | None = None,
    enough: float = math.inf,
) -> float:
    """Smallest epsilon >= 0 with profile(epsilon) <= delta, rounded up.

    Args:
        profile: decreasing function of epsilon, accurate to a relative 1e-9.
        delta: in (0, 1).
        guess: an approximate result; saves evaluations of expensive profiles.
        enough: an epsilon that is known to satisfy delta, such as one of pure DP. It is returned if
            the profile gives a larger one, or is a composition that no grid resolves.

    Returns:
        An epsilon at which the profile is at most delta, within a relative 1e-9 of the smallest.

    Raises:
        InvalidInput: delta is not in (0, 1).
        DeltaUnreachable: the profile stays above delta for every epsilon.

    Example:
        >>> import math
        >>> round(solve_epsilon(lambda epsilon: math.exp(-2.0 * epsilon), 1e-4), 4)
        4.6052
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    if math.isfinite(enough):
        try:
            return min(solve_epsilon(profile, delta, guess), enough)
        except Unresolved:
            return enough
    target = delta * (1.0 - PROFILE_ACCURACY)
    profile = functools.cache(profile)  # the ends of the search are evaluated first

    def missed(epsilon: float) -> float:
        return math.log(max(profile(epsilon), TINY)) - math.log(target)

    expected = _expected.get()
    if expected and _is_smallest(expected, [profile], _target(delta)):
        return expected
    if guess is not None and guess > 0.0:
        high, low = bracket_root(missed, guess, 1e-3 * guess, LARGEST_EPSILON, 0.0)
        if high == 0.0:
            return 0.0
        unreachable = high == low
    elif profile(0.0) <= target:
        return 0.0
    else:
        low, high = double_until(lambda epsilon: profile(epsilon) <= target, 1.0, LARGEST_EPSILON)
        unreachable = math.isinf(high)
    if unreachable:
        smallest_delta = min(profile(low), 1.0)
        reason = (
            "which no epsilon removes"
            if smallest_delta > _LEFT_OVER
            else "where its computation ends"
        )
        raise DeltaUnreachable(
            f"delta must be above {smallest_delta:.3g}, {reason}, got {checks.one_line(delta)}"
        )
    return safe_root(missed, high, low, _TOLERANCE, _TOLERANCE)


def largest_epsilon(
    profiles: Iterable[Callable[[float], float]],
    delta: float,
    larger: Sequence[Sequence[Callable[[float], float]]] = (),
) -> float:
    """The largest `solve_epsilon` of several profiles; those that cannot exceed it are not solved.

    Args:
        profiles: decreasing functions of epsilon.
        delta: in (0, 1).
        larger: for each, other bounds on the same profile that take less time and are usually
            larger, the fastest first. Where one of them is at most delta, the bounds after it and
            the profile are not evaluated.

    Example:
        >>> import math
        >>> profiles = [lambda epsilon, rate=rate: math.exp(-rate * epsilon) for rate in (2.0, 3.0)]
        >>> round(largest_epsilon(profiles, 1e-4), 4)
        4.6052
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    profiles = list(map(functools.cache, profiles))
    expected = expected_result(profiles, delta, larger)
    if expected is not None:
        return expected
    epsilon, target = 0.0, _target(delta)
    for profile, test in zip(profiles, _tested(profiles, larger, target), strict=True):
        if test(epsilon) > target:
            epsilon = solve_epsilon(profile, delta)
    return epsilon


def expected_result(
    profiles: Sequence[Callable[[float], float]],
    delta: float,
    larger: Sequence[Sequence[Callable[[float], float]]] = (),
) -> float | None:
    """The epsilon of `expecting` if it is the result of `largest_epsilon`, and None otherwise.

    Example:
        >>> profile = lambda epsilon: math.exp(-2.0 * epsilon)
        >>> with expecting(solve_epsilon(profile, 1e-4)):
        ...     expected_result([profile], 1e-4) is None, expected_result([profile], 1e-5) is None
        (False, True)
    """
    expected, target = _expected.get(), _target(delta)
    if expected and _is_smallest(expected, _tested(profiles, larger, target), target):
        return expected
    return None


def _target(delta: float) -> float:
    """The largest value of a profile at the result of a search at delta."""
    return delta * (1.0 - PROFILE_ACCURACY) * _ROUNDED_UP


def _tested(
    profiles: Sequence[Callable[[float], float]],
    larger: Sequence[Sequence[Callable[[float], float]]],
    target: float,
) -> list[Callable[[float], float]]:
    """The profiles, or a larger bound wherever that is at most the target."""

    def test(bounds: Sequence[Callable[[float], float]], epsilon: float) -> float:
        value = math.inf
        for bound in bounds:
            value = bound(epsilon)
            if value <= target:
                break
        return value

    larger_bounds = itertools.chain(larger, itertools.repeat(()))
    return [
        functools.partial(test, (*bounds, profile))
        for profile, bounds in zip(profiles, larger_bounds, strict=False)
    ]


def _is_smallest(epsilon: float, profiles: list[Callable[[float], float]], target: float) -> bool:
    """Whether an epsilon is the smallest at which no profile exceeds its target.

    An epsilon at which a profile nearly equals the target counts as the smallest, because a slow
    profile would take half of the time again for a slightly smaller epsilon.
    """
    values = []
    for profile in profiles:
        values.append(profile(epsilon))
        if values[-1] > target:
            return False
    # The last point beyond the root is at most this far below a result of `solve_epsilon`.
    smaller = epsilon - (1.0 + _ROUNDING) * _TOLERANCE * max(epsilon, 1.0)
    return (
        smaller <= 0.0
        or max(values) >= (1.0 - _NEARLY) * target
        or any(profile(smaller) > target for profile in profiles)
    )


def reach(profile: Callable[[float], float]) -> float:
    """An epsilon, not much too large, at which the profile is below 1e-40 or close to its limit.

    Example:
        >>> import math
        >>> round(reach(lambda epsilon: math.exp(-epsilon)), 1)
        92.3
    """
    enough = max(SMALLEST_DELTA, 1.001 * profile(LARGEST_EPSILON))

    def is_reached(epsilon: float) -> bool:
        value = profile(epsilon)
        # A profile below 1e-30 that no longer falls consists of discretisation residue.
        return value <= enough or (value <= _LEFT_OVER and profile(2.0 * epsilon) > 0.99 * value)

    low, high = double_until(is_reached, 1e-6, LARGEST_EPSILON)
    if math.isinf(high):
        return 2.0 * low
    return safe_root(lambda epsilon: not is_reached(epsilon), high, low, (high - low) / 16.0)
