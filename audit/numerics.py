"""Array types, the table of tolerances, and numerical methods with a safe side.

The methods are products by one thread, root finding, sums in log space and convex hulls.
Nothing here depends on privacy. Rounding never invalidates a bound: the caller chooses the side of
a root, and the returned point was evaluated and satisfies the caller's condition.
"""

import decimal
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
ComplexArray = NDArray[np.complex128]

P = ParamSpec("P")
T = TypeVar("T")

FLOAT_ROUNDING = 1e-14
"""Relative error of about fifty operations in double precision, 1.1e-16 each."""

SUM_ROUNDING = 1e-13
"""Relative error of the pairwise sum of a thousand values that each have `FLOAT_ROUNDING`."""

PROFILE_ACCURACY = 1e-9
"""Relative accuracy of every evaluation of a privacy profile; the tests of profiles check it."""

QUANTILE_ACCURACY = 1e-12
"""Relative accuracy of scipy's beta and normal quantiles: 1e-14, with a safety factor."""

ROOT_TOLERANCE = 1e-12
"""Distance to a root if evaluations are cheap; far below `PROFILE_ACCURACY`."""

SUMS_TO_ONE = 1e-9
"""Allowed distance from 1 of the sum of a user's probabilities, given with nine digits or more."""

TINY = 1e-320
"""Replaces 0 before a logarithm is taken; smaller than every normal number."""

_HULL_ROUNDS, _FEW_BENT = 64, 24
"""Passes over all points of a hull, and points to drop in a pass, below which single points are
dropped: a pass over thousands of points then takes longer."""

_ALPHA_SPACING = 1e-4
"""Relative spacing at which the search for an order ends; any order gives a valid bound."""
_ALPHA_POINTS = 97
"""Orders of one grid; 97 points over sixteen decades find the basin of every profile tested."""

# OpenBLAS starts threads for matrix products of more multiplications than this.
_OF_ONE_THREAD = 1 << 18

_SHARED_DELTAS = (1e-2, 1e-5, 1e-9, 1e-15)


def memoize(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Caches the most recent results of a function. Unhashable arguments bypass the cache."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        cached = lru_cache(size)(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                hash((args, *kwargs.values()))
            except TypeError:
                return function(*args, **kwargs)
            return cached(*args, **kwargs)  # type: ignore[arg-type]

        return call

    return decorate


def shared_delta(delta: float) -> float:
    """The largest of a few deltas that is at most another, for computations that deltas share.

    Example:
        >>> shared_delta(0.3), shared_delta(1e-5), shared_delta(1e-20)
        (0.01, 1e-05, 1e-20)
    """
    return max((shared for shared in _SHARED_DELTAS if shared <= delta), default=delta)


def dot(first: FloatArray, second: FloatArray) -> FloatArray:
    """The sums [...] of products over the last axis of [..., n] and of [n], by one thread.

    From 10,000 numbers on, the product of numpy starts threads. On a busy machine, each of them
    waits for the others and spends processor time: more than ten times what the product takes.
    """
    return np.asarray(np.einsum("...i,i->...", first, second))


def matrix_product(first: FloatArray, second: FloatArray) -> FloatArray:
    """The product of matrices [n, k] and [k, m] by one thread, in blocks of rows; see `dot`."""
    rows = max(_OF_ONE_THREAD // second.size, 1)
    if rows >= len(first):
        return np.asarray(first @ second)
    return np.concatenate([first[at : at + rows] @ second for at in range(0, len(first), rows)])


def safe_root(
    excess: Callable[[float], float | bool],
    start: float,
    end: float,
    tolerance: float,
    relative: float = 0.0,
) -> float:
    """A point near the root of `excess` between `start` and `end`, on the side of `start`.

    The result is `start` or a point at which `excess` was evaluated and is at most 0. `excess` is
    above 0 (or True) beyond the root and may have jumps and infinite values; the caller guarantees
    that it is at most 0 (or False) at `start`. `start` may be larger or smaller than `end`, which
    is returned if it lies before the root. The method is the Illinois variant of the secant method.
    It bisects if a value is infinite or a bool, and if the secant converges slowly. `tolerance` is
    the largest distance of the result from a point beyond the root, `relative` the same as a
    fraction of the result; the larger of the two applies.
    """

    def value_at(x: float) -> float:
        value = excess(x)
        return (math.inf if value else -math.inf) if isinstance(value, bool | np.bool_) else value

    value_end = value_at(end)
    if value_end <= 0.0:
        return end
    value_start = value_at(start)
    side, slow = 0, 0
    while (width := abs(end - start)) > (near := max(tolerance, relative * abs(start))):
        share = 0.5
        if math.isfinite(value_start) and math.isfinite(value_end) and value_start <= 0.0:
            share = value_start / (value_start - value_end) if slow < 3 else 0.5
        # Half a tolerance inside the interval: the next point then encloses a good guess.
        margin = min(0.5 * near / width, 0.5)
        middle = start + min(max(share, margin), 1.0 - margin) * (end - start)
        if middle in (start, end):
            break
        value = value_at(middle)
        # Regula falsi is slow if the same end stays twice in a row, so that value is halved.
        if value <= 0.0:
            start, value_start = middle, value
            value_end *= 0.5 if side > 0 else 1.0
            side = 1
        else:
            end, value_end = middle, value
            value_start *= 0.5 if side < 0 else 1.0
            side = -1
        slow = slow + 1 if abs(end - start) > 0.5 * width else 0
    return start


def double_until(
    exceeds: Callable[[float], bool], first: float, last: float, start: float = 0.0
) -> tuple[float, float]:
    """Encloses a root of `exceeds`, True beyond it, by doubling from `first` > 0 up to `last`.

    Returns the last point before the root (`start` if there is none, which is not evaluated), and
    the first point beyond it (infinity if there is none up to `last`).
    """
    before, beyond = start, first
    while beyond <= last:
        if exceeds(beyond):
            return before, beyond
        before, beyond = beyond, 2.0 * beyond
    return before, math.inf


def bracket_root(
    excess: Callable[[float], float], guess: float, step: float, start: float, end: float
) -> tuple[float, float]:
    """A short interval near a guess that encloses the root of `excess`, as for `safe_root`.

    Each step from the guess is four times as long as the one before: towards `end` if the guess
    lies before the root, else towards `start`. Returns a point before the root and a point beyond
    it; `start` twice if the root lies before it, and `end` twice if the root lies beyond it.
    """
    forward = excess(guess) <= 0.0
    limit = end if forward else start
    near, length = guess, step
    while near != limit:
        way = limit - near
        far = limit if length >= abs(way) else near + math.copysign(length, way)
        if (excess(far) <= 0.0) is not forward:
            return (near, far) if forward else (far, near)
        near, length = far, 4.0 * length
    return near, near


def last_integer(
    holds: Callable[[IntArray], ArrayLike], low: ArrayLike, high: ArrayLike
) -> IntArray:
    """The largest integers at which a condition holds, elementwise, by bisection.

    The condition is true up to some integer below `high`. `low` is a point where it holds, or one
    below the smallest candidate. Neither end is evaluated.
    """
    lower, upper = np.broadcast_arrays(np.asarray(low), np.asarray(high))
    lower, upper = lower.astype(np.int64), upper.astype(np.int64)
    while np.any(upper - lower > 1):
        middle = (lower + upper) // 2
        is_true = np.asarray(holds(middle), dtype=np.bool_)
        lower, upper = np.where(is_true, middle, lower), np.where(is_true, upper, middle)
    return np.asarray(lower)


def bisect_intervals(
    holds: Callable[[FloatArray], ArrayLike], low: ArrayLike, high: ArrayLike, halvings: int
) -> tuple[FloatArray, FloatArray]:
    """Bisects intervals elementwise; returns points where a condition holds, and where it fails.

    The condition is true up to some point. The caller guarantees that it holds at `low` and fails
    at `high`, which are not evaluated. 64 halvings reach the last bit.
    """
    lower, upper = np.broadcast_arrays(
        np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    )
    for _ in range(halvings):
        middle = 0.5 * (lower + upper)
        is_true = np.asarray(holds(middle), dtype=np.bool_)
        lower, upper = np.where(is_true, middle, lower), np.where(is_true, upper, middle)
    return np.asarray(lower), np.asarray(upper)


COARSE_ORDERS = 25
"""Points of a refined grid of orders if each evaluation is expensive."""


def best_alpha(
    objective: Callable[[FloatArray], FloatArray],
    low: float = 1e-7,
    high: float = 1e9,
    refined: int = _ALPHA_POINTS,
) -> tuple[float, float]:
    """Minimises a function of the Renyi order alpha over the interval 1 + [low, high].

    A grid of alpha - 1, uniform on the logarithmic scale, is refined around its best point until
    its spacing is below 1e-4. Any order gives a valid bound, so the result is safe for a function
    of any shape.

    Args:
        objective: maps orders [n] to values [n]; infinite for unusable orders.
        low: smallest alpha - 1.
        high: largest alpha - 1.
        refined: points of every grid but the first; use `COARSE_ORDERS` for an expensive function.

    Returns:
        The best order and the value there.

    Example:
        >>> order, value = best_alpha(lambda alpha: alpha + 4.0 / alpha)
        >>> round(order, 3), round(value, 6)
        (2.0, 4.0)
    """
    left, right = math.log(low), math.log(high)
    spacing, points = math.inf, _ALPHA_POINTS
    while spacing > _ALPHA_SPACING:
        grid, spacing = np.linspace(left, right, points, retstep=True)
        values = objective(1.0 + np.exp(grid))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        points = refined
    return 1.0 + math.exp(grid[best]), float(values[best])


def equidistribute(t: FloatArray, weights: FloatArray, points: int) -> FloatArray:
    """Points over the range of a grid [n], with equal weight between neighbours.

    The weights [n-1] >= 0 are those of the intervals of the grid.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    return np.interp(np.linspace(0.0, cumulative[-1], points), cumulative, t)


def safe_log(x: ArrayLike) -> FloatArray:
    """log(x), minus infinity at 0, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, dtype=np.float64))


def log_subtract(log_x: FloatArray, log_y: FloatArray) -> FloatArray:
    """log(x - y) for y <= x, elementwise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.minimum(log_y - log_x, 0.0)
        share = np.where(ratio > -0.7, np.log(-np.expm1(ratio)), np.log1p(-np.exp(ratio)))
        return np.where(ratio < 0.0, log_x + share, -np.inf)


def log_complement(share: FloatArray, rest: FloatArray) -> FloatArray:
    """log of the probability `rest` = 1 - `share`, computed from the more accurate of the two."""
    with np.errstate(divide="ignore"):
        return np.where(share < 0.5, np.log1p(-np.minimum(share, 0.5)), np.log(rest))


def product_of_powers(factors: Sequence[tuple[ComplexArray, int]]) -> ComplexArray:
    """The product of values^exponent, elementwise. Shared squarings make it ten times as fast."""
    result = np.ones_like(factors[0][0])
    for bit in reversed(range(max(exponent for _, exponent in factors).bit_length())):
        result *= result
        for values, exponent in factors:
            if exponent >> bit & 1:
                result *= values
    return result


def lower_hull(a: FloatArray, log_b: FloatArray) -> NDArray[np.intp]:
    """Indices of the vertices of the lower convex hull of the origin and points (a, b) [n] >= 0.

    The origin is left out; a and the slopes increase. b is given by its logarithm, because its
    range can exceed that of double precision.
    """
    order = np.lexsort((-log_b, a))
    # Among points with equal a, only the last, which has the smallest b, can be a vertex.
    hull = order[np.append(np.diff(a[order]) > 0, True) & (a[order] > 0)]
    hull = hull[int(np.argmin(log_b[hull] - np.log(a[hull]))) :]

    # The origin comes last in these arrays, so that its index is -1.
    x, y = np.append(a, 0.0), np.append(log_b, -np.inf)

    def log_slopes(before: NDArray[np.intp], after: NDArray[np.intp]) -> FloatArray:
        return np.asarray(log_subtract(y[after], y[before]) - np.log(x[after] - x[before]))

    def log_slope(x_j: float, y_j: float, x_k: float, y_k: float) -> float:
        if y_k <= y_j:
            return -math.inf
        return y_k + math.log(-math.expm1(y_j - y_k)) - math.log(x_k - x_j)

    return _without_bent(np.append(-1, hull), x, y, log_slopes, log_slope)[1:]


def convex_chain(x: FloatArray, y: FloatArray) -> NDArray[np.intp]:
    """Indices of the vertices of the largest convex function below points [n], x increasing.

    It compares slopes, because products of differences overflow above 1e154.
    """

    def slopes(before: NDArray[np.intp], after: NDArray[np.intp]) -> FloatArray:
        return np.asarray((y[after] - y[before]) / (x[after] - x[before]))

    return _without_bent(
        np.arange(len(x)), x, y, slopes, lambda x_j, y_j, x_k, y_k: (y_k - y_j) / (x_k - x_j)
    )


def _without_bent(
    hull: NDArray[np.intp],
    x: FloatArray,
    y: FloatArray,
    slopes_between: Callable[[NDArray[np.intp], NDArray[np.intp]], FloatArray],
    slope_between: Callable[[float, float, float, float], float],
) -> NDArray[np.intp]:
    """Drops points of a hull until each is below the line through its neighbours.

    Args:
        hull: indices of the points, from left to right; the first and the last stay.
        x: coordinates of all points.
        y: the other coordinates, or their logarithms.
        slopes_between: slopes, or their logarithms, between points with some indices.
        slope_between: the same between two points with coordinates (x, y).
    """
    slopes = slopes_between(hull[:-1], hull[1:])
    for _ in range(_HULL_ROUNDS):
        bent = 1 + np.flatnonzero(slopes[1:] <= slopes[:-1])
        if len(bent) == 0:
            return hull
        if len(bent) <= _FEW_BENT:
            break
        # The test of a point uses its neighbours, so of consecutive points every second is dropped.
        place = np.arange(len(bent))
        first_bent = np.maximum.accumulate(np.where(np.diff(bent, prepend=-2) > 1, place, 0))
        dropped = bent[(place - first_bent) % 2 == 0]
        # Only slopes next to dropped points are computed again.
        slopes[dropped - 1] = slopes_between(hull[dropped - 1], hull[dropped + 1])
        hull, slopes = np.delete(hull, dropped), np.delete(slopes, dropped)
    return hull[_kept_one_by_one(x[hull].tolist(), y[hull].tolist(), slopes, slope_between)]


def _kept_one_by_one(
    x: list[float],
    y: list[float],
    slopes: FloatArray,
    slope_between: Callable[[float, float, float, float], float],
) -> NDArray[np.bool_]:
    """Which points [n] stay if those above the line through their neighbours are dropped.

    A dropped point can only make its two neighbours bent, so only these are tested again.
    """
    last = len(x) - 1
    before, after = list(range(-1, last)), list(range(1, last + 2))
    to_next, kept = slopes.tolist(), np.ones(len(x), dtype=bool)
    tested = (1 + np.flatnonzero(slopes[1:] <= slopes[:-1])).tolist()
    while tested:
        point = tested.pop()
        if not 0 < point < last or not kept[point]:
            continue
        left, right = before[point], after[point]
        if to_next[point] > to_next[left]:
            continue
        kept[point] = False
        after[left], before[right] = right, left
        to_next[left] = slope_between(x[left], y[left], x[right], y[right])
        tested += [left, right]
    return kept


def format_rounded(value: float, up: bool, digits: int = 5) -> str:
    """A number with the given significant digits, rounded up or down.

    Example:
        >>> format_rounded(1.088712, up=True), format_rounded(1.088712, up=False)
        ('1.0888', '1.0887')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    # Rounding starts from the shortest text of the number, so 2.4 stays 2.4.
    side = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    rounded = decimal.Context(digits, side).plus(decimal.Decimal(repr(float(value))))
    return f"{float(rounded):.{digits}g}"


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with four significant digits, rounded up.

    Example:
        >>> rounded_up(2.40001), rounded_up(2.4), rounded_down(2.39999)
        ('2.401', '2.4', '2.399')
    """
    return format_rounded(value, up=True, digits=digits)


def rounded_down(value: float, digits: int = 4) -> str:
    """A number with four significant digits, rounded down."""
    return format_rounded(value, up=False, digits=digits)


def format_places(value: float, up: bool, places: int = 3) -> str:
    """A number with the given decimal places, rounded up or down.

    A very small or very large number gets the same number of significant digits instead.

    Example:
        >>> [format_places(value, up=True) for value in (2.3456, 1e-5, 0.0)]
        ['2.346', '1e-05', '0.000']
    """
    size = abs(value)
    if not math.isfinite(value) or 0.0 < size < 10.0 ** (1 - places) or size >= 1e6:
        return format_rounded(value, up, places)
    side = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    exact = decimal.Decimal(repr(float(value)))
    return str(exact.quantize(decimal.Decimal(1).scaleb(-places), side))


def format_exact(value: float) -> str:
    """The shortest text that parses to exactly the same number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
