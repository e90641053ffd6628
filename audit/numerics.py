"""Roots rounded to a stated side, convex hulls, sums in log space, and every allowance once.

Nothing here knows of privacy. What is rounded is rounded so that a bound stays one: the caller says
on which side of a root he wants to be, and gets a point where his condition was seen to hold.
"""

import decimal
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

P = ParamSpec("P")
T = TypeVar("T")

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
Integers = NDArray[np.int64]

FLOAT_ROUNDING = 1e-14
"""A value made by some fifty operations in double precision, 1.1e-16 each, as phi and phi' are."""

SUM_ROUNDING = 1e-13
"""The same, times what a sum over a thousand cells adds by pairwise summation."""

PROFILE_ACCURACY = 1e-9
"""Relative accuracy that every evaluation of a privacy profile is known to have; see its tests."""

QUANTILE_ACCURACY = 1e-12
"""Relative accuracy of beta and normal quantiles as scipy computes them, 1e-14, with room."""

ROOT_TOLERANCE = 1e-12
"""How near a root is sought where evaluations cost little: far below `PROFILE_ACCURACY`."""

SUMS_TO_ONE = 1e-9
"""How far from 1 the probabilities that a user gives may sum, written with nine digits or more."""

TINY = 1e-320
"""Stands for 0 where a logarithm is taken: below every normal number, above what rounds to 0."""


def memoize(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keeps the latest results of a function; calls with arguments that have no hash are made.

    Args:
        most: how many results are kept.

    Example:
        >>> @memoize(4)
        ... def total(numbers):
        ...     return sum(numbers)
        >>> total((1, 2)), total([1, 2])
        (3, 3)
    """

    def of(function: Callable[P, T]) -> Callable[P, T]:
        kept = lru_cache(most)(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                hash((args, *kwargs.values()))
            except TypeError:  # an own law, say, that can not be looked up again
                return function(*args, **kwargs)
            return kept(*args, **kwargs)  # type: ignore[arg-type]

        return call

    return of


def safe_root(
    missed: Callable[[float], float | bool],
    start: float,
    end: float,
    tolerance: float,
    relative: float = 0.0,
) -> float:
    """The last x on the way from `start` to `end` at which nothing is missed, near the root.

    The side is that of `start`, which may be above or below `end`: the answer is `start` itself or
    a point at which `missed` was seen to be at most 0, never one between two such points. The
    secant of the Illinois method; halves where a value is infinite or a mere yes or no, and where
    the secant gains too little.

    Args:
        missed: at most 0, or False, up to a root and above 0, or True, from there on; it may have
            steps and may be infinite. It is taken to be kept at `start`.
        start: where it is kept.
        end: where it is asked last; returned if it is kept there.
        tolerance: the largest distance of the answer from a point that is not kept.
        relative: the same as a share of the answer, where that is more.
    """

    def value_at(x: float) -> float:
        value = missed(x)
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
        # Half a tolerance inside, so that a good guess is closed in from its other side next.
        margin = min(0.5 * near / width, 0.5)
        middle = start + min(max(share, margin), 1.0 - margin) * (end - start)
        if middle in (start, end):
            break
        value = value_at(middle)
        # An end kept twice in a row is what makes regula falsi slow: its value is halved.
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
    missed: Callable[[float], bool], first: float, most: float, start: float = 0.0
) -> tuple[float, float]:
    """Doubles from `first` on until something is missed.

    Args:
        missed: False up to some point and True from there on.
        first: the first point asked, > 0.
        most: beyond it nothing is asked.
        start: where nothing is missed.

    Returns:
        The last point asked that is kept (`start` if none), and the first that is missed; infinity
        where none up to `most` is.
    """
    kept, ahead = start, first
    while ahead <= most:
        if missed(ahead):
            return kept, ahead
        kept, ahead = ahead, 2.0 * ahead
    return kept, math.inf


def bracket_near(
    missed: Callable[[float], float], guess: float, step: float, start: float, end: float
) -> tuple[float, float]:
    """A short stretch around a guess, from a point that is kept to one that is missed.

    Steps away from the guess grow fourfold, towards `end` while nothing is missed, else back.

    Args:
        missed: as for `last_kept`.
        guess: between `start` and `end`.
        step: first step, > 0.
        start: on the side that is kept; nothing is asked beyond it.
        end: likewise on the other side.

    Returns:
        The last point kept and the first missed; twice `start` if it is missed, twice `end` if it
        is kept.
    """
    forward = missed(guess) <= 0.0
    limit = end if forward else start
    here, length = guess, step
    while here != limit:
        way = limit - here
        ahead = limit if length >= abs(way) else here + math.copysign(length, way)
        if (missed(ahead) <= 0.0) is not forward:
            return (here, ahead) if forward else (ahead, here)
        here, length = ahead, 4.0 * length
    return here, here


def last_integer(
    holds: Callable[[Integers], ArrayLike], low: ArrayLike, high: ArrayLike
) -> Integers:
    """The last whole numbers at which a condition holds, elementwise, by halving.

    Args:
        holds: maps numbers [...] to truth values; true up to some number, false from there on.
        low: where it holds, or one below the first number asked.
        high: where it does not; not asked.
    """
    kept, ahead = np.broadcast_arrays(np.asarray(low), np.asarray(high))
    kept, ahead = kept.astype(np.int64), ahead.astype(np.int64)
    while np.any(ahead - kept > 1):
        middle = (kept + ahead) // 2
        held = np.asarray(holds(middle), dtype=np.bool_)
        kept, ahead = np.where(held, middle, kept), np.where(held, ahead, middle)
    return np.asarray(kept)


def bisect_intervals(
    holds: Callable[[Array], ArrayLike], low: ArrayLike, high: ArrayLike, halvings: int
) -> tuple[Array, Array]:
    """Halves intervals elementwise: the last points seen to hold, and the first that did not.

    Args:
        holds: maps points [...] to truth values; true up to some point, false from there on.
        low: where it is taken to hold.
        high: where it is taken not to hold.
        halvings: 64 reach the last bit.
    """
    kept, ahead = np.broadcast_arrays(
        np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    )
    for _ in range(halvings):
        middle = 0.5 * (kept + ahead)
        held = np.asarray(holds(middle), dtype=np.bool_)
        kept, ahead = np.where(held, middle, kept), np.where(held, ahead, middle)
    return np.asarray(kept), np.asarray(ahead)


COARSE_ORDERS = 25
"""Points of a finer grid of orders where each costs much."""


def minimize_over_alpha(
    objective: Callable[[Array], Array], low: float = 1e-7, high: float = 1e9, refined: int = 97
) -> tuple[float, float]:
    """Minimises a function of the Renyi order alpha over the continuum 1 + [low, high].

    A grid of alpha - 1, uniform on the logarithmic scale, is refined around its best point until
    its spacing is below 1e-4. Any order gives a valid bound, so the result is safe whatever the
    shape of the function.

    Args:
        objective: maps orders [n] to values [n]; infinite where an order is not usable.
        low: smallest alpha - 1.
        high: largest alpha - 1.
        refined: points of every grid but the first; `COARSE_ORDERS` do for a costly function.

    Returns:
        The best order and the value there.

    Example:
        >>> value, order = minimize_over_alpha(lambda alpha: alpha + 4.0 / alpha)
        >>> round(value, 6), round(order, 3)
        (2.0, 4.0)
    """
    left, right = math.log(low), math.log(high)
    spacing, points = math.inf, 97
    while spacing > 1e-4:
        grid, spacing = np.linspace(left, right, points, retstep=True)
        values = objective(1.0 + np.exp(grid))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        points = refined
    return 1.0 + math.exp(grid[best]), float(values[best])


def equidistribute(t: Array, moves: Array, points: int) -> Array:
    """So many points over the range of a grid, between any two of which the same share moves.

    Args:
        t: the grid [n], increasing.
        moves: what moves between its points [n-1], >= 0.
        points: how many.

    Example:
        >>> equidistribute(np.array([0.0, 1.0, 2.0]), np.array([3.0, 1.0]), 5).round(3).tolist()
        [0.0, 0.333, 0.667, 1.0, 2.0]
    """
    moved = np.concatenate([[0.0], np.cumsum(moves)])
    return np.interp(np.linspace(0.0, moved[-1], points), moved, t)


def safe_log(x: ArrayLike) -> Array:
    """log(x), minus infinity at 0, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, dtype=np.float64))


def log_subtract(log_x: Array, log_y: Array) -> Array:
    """log(x - y) for y <= x, elementwise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.minimum(log_y - log_x, 0.0)
        share = np.where(ratio > -0.7, np.log(-np.expm1(ratio)), np.log1p(-np.exp(ratio)))
        return np.where(ratio < 0.0, log_x + share, -np.inf)


def log_complement(share: Array, rest: Array) -> Array:
    """log of the probability `rest` = 1 - `share`, from whichever of the two keeps its digits."""
    with np.errstate(divide="ignore"):
        return np.where(share < 0.5, np.log1p(-np.minimum(share, 0.5)), np.log(rest))


def product_of_powers(factors: Sequence[tuple[Complex, int]]) -> Complex:
    """The product of values^exponent, elementwise: the factors share their squarings.

    Ten times as fast as powers of complex numbers, and as exact.
    """
    result = np.ones_like(factors[0][0])
    for bit in reversed(range(max(exponent for _, exponent in factors).bit_length())):
        result *= result
        for values, exponent in factors:
            if exponent >> bit & 1:
                result *= values
    return result


def lower_hull(a: Array, b: Array) -> tuple[Array, Array]:
    """Vertices of the lower convex hull of the origin and the points, from the origin on.

    Args:
        a: [n] >= 0.
        b: [n] >= 0.

    Returns:
        The vertices after the origin, a strictly increasing, slopes strictly increasing. Rounding
        can only leave a vertex too many, which changes the envelope by rounding alone.
    """
    order = np.lexsort((-b, a))
    a, b = a[order], b[order]
    # Of points with one and the same a only the one with the smallest b, the last, matters.
    keep = np.append(np.diff(a) > 0, True) & (a > 0)
    a, b = a[keep], b[keep]
    first = int(np.argmin(b / a))
    a, b = a[first:], b[first:]
    for _ in range(6):
        bent = _bent(a, b)
        if len(bent) == 0:
            break
        # A point is judged by its neighbours, so of two neighbours only one may go at a time.
        drop = np.zeros(len(a), dtype=np.bool_)
        drop[bent] = True
        drop[1:] &= ~drop[:-1]
        a, b = a[~drop], b[~drop]
    return _monotone_chain(a, b)


def _bent(a: Array, b: Array) -> NDArray[np.intp]:
    """The points that are not below the line of their neighbours."""
    slopes = np.diff(np.concatenate([[0.0], b])) / np.diff(np.concatenate([[0.0], a]))
    return np.flatnonzero(slopes[1:] <= slopes[:-1])


def _monotone_chain(a: Array, b: Array) -> tuple[Array, Array]:
    """Andrew's monotone chain, for what the vectorised passes leave: a few places, most often."""
    bent = _bent(a, b)
    if len(bent) == 0:
        return a, b
    x, y = [0.0, *a.tolist()], [0.0, *b.tolist()]
    ahead, last = int(bent[0]) + 1, int(bent[-1]) + 1
    hull = list(range(ahead))
    while ahead < len(x):
        before = len(hull)
        while len(hull) > 1:
            i, j = hull[-2], hull[-1]
            # Slopes, not products of differences, which overflow from 1e154 on.
            if (y[j] - y[i]) / (x[j] - x[i]) < (y[ahead] - y[j]) / (x[ahead] - x[j]):
                break
            hull.pop()
        if ahead > last and len(hull) == before:
            hull += range(ahead, len(x))
            break
        hull.append(ahead)
        ahead += 1
    kept = np.array(hull[1:]) - 1
    return a[kept], b[kept]


def format_rounded(value: float, up: bool, digits: int = 5) -> str:
    """A number in so many significant digits, rounded to a stated side.

    Read back, the text is at least the number if `up`, at most it if not.

    Args:
        value: any number.
        up: towards plus infinity; else towards minus infinity.
        digits: significant digits, >= 1.

    Example:
        >>> format_rounded(1.088712, up=True), format_rounded(1.088712, up=False)
        ('1.0888', '1.0887')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    # From the shortest text of the number, so that 2.4 stays 2.4.
    side = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    rounded = decimal.Context(digits, side).plus(decimal.Decimal(repr(float(value))))
    return f"{float(rounded):.{digits}g}"


def format_places(value: float, up: bool, places: int = 3) -> str:
    """A number with so many places after the point, rounded to a stated side.

    Where these would leave it less than two digits, or it is large, as many significant ones.

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
    """A number as short as it can be and read back as the very same."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
