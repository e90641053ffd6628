"""The level bound: the cost of a grid for any base, by the order in which candidates pass a level.

Let e_i be the probability of the outputs of candidate i that are preferred and lie in the event.
While the ranking is read from the best output on, every candidate passes e_i = x at most once. The
n-th one that passes sees at least n - 1 others at e_j >= x. Those are lowered to x and the others
to 0, which only increases the contribution (proposition 24 of docs/theory.md). So delta is at most
the sum over n of the integral over x of G_n(x), the largest gain with n others at x.

All numerical errors increase the bound. The curve of events is replaced by a polygon above it, and
the gain by lines below the curve of products, log X' >= sigma log X - k(sigma), as in
`grid_of_kinds`. Every finite set of slopes sigma is safe.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from audit.accounting import DominatingPair, Mechanism, solve_epsilon
from audit.accounting.combinations import kinds_of_candidates
from audit.accounting.conversion import LARGEST_EPSILON
from audit.errors import NotApplicable
from audit.numerics import (
    PROFILE_ACCURACY,
    SUM_ROUNDING,
    BoolArray,
    FloatArray,
    IntArray,
    dot,
    double_until,
    equidistribute,
    log_subtract,
    safe_log,
    safe_root,
)
from audit.protocols import Grid
from audit.upper_bounds.grid import log_h, sides
from audit.upper_bounds.region import corner_events, dense_events
from audit.upper_bounds.registry import BoundValue, bound

# Slopes of the lines below the curve of products. A long straight piece of the curve needs its own
# slope to 1 %. Every _STRIDE-th slope is tried first, then those near the best one.
_SLOPES = 1.0 + np.concatenate(
    [
        np.geomspace(1e-4, 1e-2, 40)[:-1],
        np.geomspace(1e-2, 10.0, 360)[:-1],
        np.geomspace(10.0, 1e8, 80),
    ]
)
_STRIDE = 6
_LOG_SLOPES = np.log(_SLOPES)
# Events on the curve, and events near the last one, for which logarithms need a grid of their own.
_EVENTS, _LAST_EVENTS, _TABLE = 300, 128, 1 << 13
# Levels x of the first pass, which finds the best share and where levels matter, and of the bound.
_FIRST_LEVELS, _LEVELS = 64, 200
_RAREST = 30.0  # -log x of the rarest of these levels
# Shares of delta for events in which another candidate is left out almost surely.
_SHARES = (0.1, 0.3)
_SMALL_SHARE = (1e-4,)  # if a candidate is left out by chance, which hides such events
# Numbers n of candidates at the level that are computed one by one, and further bins of n.
_SINGLE, _BINS = 12, 10
# Slopes tried on either side of the best one at a nearby epsilon.
_NEAR = 4
# Relative accuracy of the first epsilon, from few levels.
_FIRST_GUESS = 0.01
# Errors of a probability relative to the larger one from which it was subtracted, and of slopes.
_ROUNDING, _SLOPE_ROUNDING = 1e-14, 1e-9
# Relative distance of events below which the rounding of a chord would be visible.
_APART = 1e-4
# A smaller gain over the other bounds is not worth the time.
_WORTHWHILE = 0.01
# Many kinds of candidates take long, and gain little over proposition 3.
_MAX_TABLES = 16


@dataclass(frozen=True)
class _Others:
    """Lines below the curve of products for one candidate, at every level."""

    constants: FloatArray  # k(sigma), rounded up [levels, slopes]
    cuts: FloatArray  # [levels]; events whose product is smaller count as a full leak


@dataclass(frozen=True)
class _KindOfCandidate:
    """The curve of events of one kind of candidate, and levels of its preferred outputs."""

    pair: DominatingPair
    count: int
    inclusion: float
    cut: float  # product of the others below which an event counts as a full leak
    total: int  # number of candidates of all kinds

    @cached_property
    def _floor(self) -> float:
        return max(math.log(self.cut), -60.0)

    @cached_property
    def events(self) -> FloatArray:
        """Events t [n] that are dense where the product of the others changes."""

        def heights(
            log_left: FloatArray, log_left_with: FloatArray
        ) -> tuple[FloatArray, FloatArray]:
            logs = log_h(self.inclusion, np.stack([log_left, log_left_with]))
            logs = np.maximum(logs, 2.0 * self._floor)
            products = np.exp(0.125 * max(self.total - 1, 1) * logs)
            return products, np.maximum(logs, [[self._floor], [2.0 * self._floor]])

        return dense_events(self.pair, heights, _EVENTS)

    @cached_property
    def first_levels(self) -> FloatArray:
        """Levels, as events t that leave the preferred outputs: half of them even in log x."""

        def heights(
            log_left: FloatArray, log_left_with: FloatArray
        ) -> tuple[FloatArray, FloatArray]:
            logs = np.stack([log_left, log_left_with])
            return np.exp(np.maximum(logs, -30.0)), np.maximum(logs, -60.0)

        losses, t = self._table
        rare = np.interp(np.linspace(_RAREST, 0.0, _FIRST_LEVELS // 2), losses, t)
        levels = np.union1d(dense_events(self.pair, heights, _FIRST_LEVELS // 2), rare)
        return self.distinct(levels[::-1])

    def distinct(self, levels: FloatArray) -> FloatArray:
        """The levels, decreasing in t, without those whose x is 0, 1 or nearly that of another.

        The slopes of L on a cell lie between those of its neighbours, which must have a width.
        """
        x = self.pair.events(levels)[0]
        levels, x = levels[(x > -600.0) & (x < 0.0)], x[(x > -600.0) & (x < 0.0)]
        step = np.append(True, -np.expm1(-np.diff(x)) > 1e-9 * -np.expm1(x[:-1]))
        return levels[step & (x < -1e-15)]

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray]:
        """-log(1-f), increasing, and events t, to find the event with a given f."""

        def heights(
            log_left: FloatArray, log_left_with: FloatArray
        ) -> tuple[FloatArray, FloatArray]:
            logs = np.maximum(np.stack([log_left, log_left_with]), 2.0 * self._floor)
            return np.exp(logs), logs

        t = dense_events(self.pair, heights, _TABLE)
        return -self.pair.events(t)[0], t

    def others(self, levels: FloatArray) -> _Others:
        """Lines for another candidate at each level [n]."""
        constants, cuts = zip(*(self._lines(float(t)) for t in levels), strict=True)
        return _Others(np.array(constants), np.array(cuts))

    @cached_property
    def at_zero(self) -> _Others:
        """Lines for another candidate at level 0."""
        return self.others(np.array([math.inf]))

    def _curve(self, level: float, corners: bool) -> tuple[FloatArray, FloatArray]:
        """Points log X and log X' [n] of another candidate, with corners above the curve.

        The outputs beyond the event `level` are preferred and lie in the event E: x under P and
        L(x) under P'. Level infinity is x = 0.
        """
        x, x_with = (
            (-math.inf, -math.inf)
            if math.isinf(level)
            else (float(side[0]) for side in self.pair.events(np.array([level])))
        )
        # 1-x-f must be resolved on a logarithmic scale at every level, not only near f = 1.
        remaining = np.geomspace(0.5 * self.cut, 1.0, _LAST_EVENTS) * -math.expm1(x)
        losses, table = self._table
        near = np.interp(-np.log(math.exp(x) + remaining), losses, table)
        t = np.unique(np.concatenate([self.events, near, [] if math.isinf(level) else [level]]))
        t = t[_apart(-np.expm1(self.pair.events(t)[0]), t == level, -math.expm1(x))]
        points, before = np.stack(self.pair.events(t)), t <= level
        log_left = points[:, before]
        if corners:
            log_left = np.hstack([log_left, corner_events(*points)[:, before[1:]]])
        log_x, log_x_with = _rounded_rest(log_left, x, x_with)
        return (
            log_h(self.inclusion, log_x) * (1.0 - SUM_ROUNDING),
            log_h(self.inclusion, log_x_with) * (1.0 + SUM_ROUNDING),
        )

    def _lines(self, level: float) -> tuple[FloatArray, float]:
        """k(sigma) [slopes], and the cut, at one level.

        On a piece of the polygon X' = k X - c. With c >= 0, sigma log X - log X' is convex in
        log X; with c < 0 (only if candidates are left out) it increases. So it is largest at a
        vertex in both cases.
        """
        a, b = _cut_off(*self._curve(level, corners=True), math.log(self.cut))
        finite = b > -np.inf
        # Beyond the last vertex that P' can give, every event counts as a full leak.
        cut = self.cut if finite.all() else max(self.cut, math.exp(float(a[finite].min())))
        a, b = a[finite], b[finite]
        heights = np.multiply.outer(_SLOPES, a) - b
        best = heights.argmax(axis=1)
        margin = SUM_ROUNDING * (_SLOPES * np.abs(a[best]) + np.abs(b[best]))
        return heights[np.arange(len(best)), best] + margin, cut

    def touching(self, levels: FloatArray) -> FloatArray:
        """Points log X and log X' [2, n, slopes] of the curve that are nearest to the lines."""
        points = []
        for level in levels:
            a, b = self._curve(float(level), corners=False)
            a, b = a[np.isfinite(b)], b[np.isfinite(b)]
            best = (np.multiply.outer(_SLOPES, a) - b).argmax(axis=1)
            points.append(np.stack([a[best], b[best]]))
        return np.stack(points, axis=1)


def _apart(f: FloatArray, is_level: BoolArray, last: float) -> BoolArray:
    """Which events with increasing f [n] are far enough from the one before for exact chords.

    Distances count relative to f and to the distance from the last f, whichever is smaller.
    """
    scale = np.minimum(f, np.abs(last - f))
    far = np.append(True, np.diff(f) > _APART * np.maximum(scale[1:], 1e-300))
    far[1:] &= ~(is_level[:-1] & (np.diff(f) < _APART * f[1:]))
    far[[0, -1]] = True
    return np.asarray(far | is_level)


def _cut_off(a: FloatArray, b: FloatArray, smallest: float) -> tuple[FloatArray, FloatArray]:
    """Vertices (log X, log X') of a polygon with log X >= smallest, and its point there."""
    inside = a >= smallest
    if inside.all():
        return a, b
    last = int(np.argmin(np.where(inside, a, np.inf)))
    beyond = int(np.argmax(np.where(inside, -np.inf, a)))
    # X' is linear in X between both.
    fall = -math.expm1(a[beyond] - a[last])
    share = min(-math.expm1(smallest - a[last]) / fall, 1.0) if fall > 0.0 else 1.0
    with np.errstate(divide="ignore"):
        at_cut = np.logaddexp(np.log1p(-share) + b[last], np.log(share) + b[beyond])
    # A smaller X' only raises k(sigma).
    at_cut -= _SLOPE_ROUNDING
    return np.append(a[inside], smallest), np.append(b[inside], at_cut)


def _rounded_rest(log_left: FloatArray, x: float, x_with: float) -> tuple[FloatArray, FloatArray]:
    """log(1-x-f), rounded up, and log(1-L(x)-U(f)), rounded down, [n] each.

    Args:
        log_left: log(1-f) and log(1-U(f)) [2, n].
        x: log of x.
        x_with: log of L(x).
    """
    sides = []
    for side, log_level in zip(log_left, (x, x_with), strict=True):
        near = log_level > -math.inf
        difference = log_subtract(side, np.full(len(side), log_level)) if near else side
        # The logarithms are exact to a multiple of their size.
        with np.errstate(invalid="ignore"):
            error = side + math.log(_ROUNDING) + (np.log1p(-side) if near else 0.0)
        sides.append((difference, np.where(side > -np.inf, error, -np.inf)))
    return np.minimum(np.logaddexp(*sides[0]), 0.0), log_subtract(*sides[1])


@dataclass(frozen=True)
class _Winners:
    """Contribution of the candidates of one kind, on a grid of levels."""

    kind: _KindOfCandidate
    elsewhere: tuple[_KindOfCandidate, ...]  # the other kinds, which stay at level 0
    levels: FloatArray  # events t [n], decreasing: x grows

    @cached_property
    def _cells(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """x and log of the widths and of the mean slopes of L [n+1] of cells from 0 to 1."""
        p, q = self.kind.pair.events(self.levels)
        p, q = (np.concatenate([[-np.inf], side, [0.0]]) for side in (p, q))
        widths, widths_with = (log_subtract(side[1:], side[:-1]) for side in (p, q))
        return np.exp(p[:-1]), widths, widths_with - widths

    @cached_property
    def _others(self) -> _Others:
        zero, later = self.kind.at_zero, self.kind.others(self.levels)
        return _Others(
            np.concatenate([zero.constants, later.constants]),
            np.concatenate([zero.cuts, later.cuts]),
        )

    @cached_property
    def bins(self) -> list[tuple[int, int]]:
        """Numbers n of candidates at the level, with the number of values that each represents.

        G_n falls with n, so the smallest n of a bin bounds all of them.
        """
        count = self.kind.count
        first = np.arange(min(count, _SINGLE))
        later = np.geomspace(_SINGLE, max(count, _SINGLE), _BINS + 1)[:-1].round().astype(np.int64)
        starts = np.unique(np.append(first, later[later < count]))
        widths = np.diff(np.append(starts, count))
        return list(zip(starts.tolist(), widths.tolist(), strict=True))

    @cached_property
    def cuts(self) -> FloatArray:
        """The largest gain [n+1] of events that are left out, in each cell."""
        cut_elsewhere = max((float(kind.at_zero.cuts[0]) for kind in self.elsewhere), default=0.0)
        cuts_of_kind = self._others.cuts if self.kind.count > 1 else np.zeros(len(self.levels) + 1)
        zero = float(self.kind.at_zero.cuts[0]) if self.kind.count > 1 else 0.0
        return np.maximum(cuts_of_kind, max(zero, cut_elsewhere))

    def _sums(self, n: int, at_level: FloatArray, at_zero: Sequence[FloatArray]) -> FloatArray:
        """n times a value at the level, and the value at zero for every other candidate."""
        behind = self.kind.count - 1 - n
        total = np.zeros_like(at_level)
        if n:
            total = total + n * at_level
        if behind:
            total = total + behind * at_zero[0]
        for kind, value in zip(self.elsewhere, at_zero[1:], strict=True):
            total = total + kind.count * value
        return total

    @cached_property
    def _constants(self) -> list[FloatArray]:
        """k(sigma) of all others [n+1, slopes] for every bin."""
        zero = [kind.at_zero.constants for kind in (self.kind, *self.elsewhere)]
        return [self._sums(n, self._others.constants, zero) for n, _ in self.bins]

    @cached_property
    def _caps(self) -> list[FloatArray]:
        """The largest log X of all others [n+1] for every bin: n candidates at the level."""
        # By the lemma of proposition 24, the others may stay at the start of the cell.
        log_cap = np.log1p(-self.kind.inclusion * self._cells[0])
        return [n * log_cap if n else np.zeros(len(log_cap)) for n, _ in self.bins]

    def heights(self, epsilon: float, near: "_Best | None" = None) -> tuple[FloatArray, "_Best"]:
        """The largest gain [n+1] in each cell, summed over n, and the slopes that were best."""
        _, _, slopes = self._cells
        mean = np.exp(np.minimum(slopes, 700.0))
        low = np.minimum(np.append(0.0, mean[:-1]), mean) * (1.0 - _SLOPE_ROUNDING)
        high = np.maximum(np.append(mean[1:], np.inf), mean) * (1.0 + _SLOPE_ROUNDING)
        # G is convex in the slope of L and decreases. Slopes in the cell lie between those of the
        # neighbouring cells and have a known mean, so a chord bounds the mean of G.
        with np.errstate(invalid="ignore"):
            share = np.where(np.isfinite(high) & (high > low), (mean - low) / (high - low), 0.0)
        total, columns = np.zeros(len(mean)), []
        for place, (_, copies) in enumerate(self.bins):
            sides = []
            for side, slope in enumerate((low, np.where(np.isfinite(high), high, low))):
                window = None if near is None else near[place][side]
                gains, best = self._gains(place, epsilon + safe_log(slope), window)
                # An event beyond the cut gains at most its product, which is at most the cut.
                sides.append(np.maximum(gains, self.cuts))
                columns.append(best)
            total += copies * ((1.0 - share) * sides[0] + share * sides[1])
        return total, list(zip(columns[::2], columns[1::2], strict=True))

    def _gains(
        self, place: int, log_price: FloatArray, window: IntArray | None
    ) -> tuple[FloatArray, IntArray]:
        """Bounds [n+1] on the gain for one bin, and the best slopes, by their index."""
        if window is None:
            few = np.arange(0, len(_SLOPES), _STRIDE)
            columns = np.broadcast_to(few, (len(log_price), len(few)))
            _, window = self._best_gains(place, log_price, columns)
            reach = _STRIDE
        else:
            reach = _NEAR
        columns = window[:, None] + np.arange(-reach, reach + 1)
        return self._best_gains(place, log_price, np.clip(columns, 0, len(_SLOPES) - 1))

    def _best_gains(
        self, place: int, log_price: FloatArray, columns: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """The smallest bound [n+1] on the gain over some slopes [n+1, m], and its slope."""
        cap, rows = self._caps[place][:, None], np.arange(len(columns))
        constants = np.take_along_axis(self._constants[place], columns, axis=1)
        steep, log_slope = _SLOPES[columns] - 1.0, _LOG_SLOPES[columns]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            # As log X' >= sigma log X - k, the gain is at most X - e^price X^sigma. That grows with
            # X up to X^(sigma - 1) = e^-price / sigma, so its largest value is there or at the cap.
            price = log_price[:, None] - constants
            log_x = np.minimum(cap, -(price + log_slope) / steep)
            loss = price + steep * log_x
            loss -= SUM_ROUNDING * (np.abs(price) + np.abs(steep * log_x))
            gains = np.exp(log_x) * np.maximum(-np.expm1(np.minimum(loss, 0.0)), 0.0)
        # Without a price, the gain is the largest product; without a product there is no gain.
        gains = np.where(np.isnan(gains), np.exp(cap), gains)
        # Each slope bounds the gain, so the smallest bound counts.
        best = gains.argmin(axis=1)
        return gains[rows, best], columns[rows, best]

    def delta(self, epsilon: float, near: "_Best | None" = None) -> float:
        """The contribution at epsilon >= 0, rounded up, for an inclusion probability of 1."""
        heights, _ = self.heights(epsilon, near)
        return float(dot(np.exp(self._cells[1]), heights))

    def attained_delta(self, epsilon: float) -> float:
        """A lower bound on the same, from events with equal f for equal candidates."""
        _, widths, slopes = self._cells
        levels = np.append(math.inf, self.levels)
        zero = [kind.touching(levels[:1]) for kind in (self.kind, *self.elsewhere)]
        at_level = self.kind.touching(levels) if self.kind.count > 1 else zero[0]
        total = np.zeros(len(slopes))
        for n, copies in self.bins:
            a, b = self._sums(n, at_level, zero)
            with np.errstate(over="ignore"):
                gains = np.exp(a) - np.exp(np.minimum(epsilon + slopes[:, None] + b, 700.0))
            total += (copies if n < _SINGLE else 1) * np.maximum(gains.max(axis=1), 0.0)
        # G falls with x, so its value at the end of a cell bounds it from below.
        return float(dot(np.exp(widths[:-1]), total[1:]))

    def refined(self, epsilon: float, points: int) -> "_Winners":
        """The same on levels that are dense where the contribution at epsilon changes."""
        heights, _ = self.heights(epsilon)
        widths = np.exp(self._cells[1])
        # The error of a cell is its width times the step of the height to the next cell.
        errors = np.sqrt(np.maximum(widths[1:-1] * -np.diff(heights)[1:], 0.0))
        errors += 1e-3 * errors.sum() / len(errors) + 1e-300
        levels = np.unique(equidistribute(self.levels, errors, points))[::-1]
        return _Winners(self.kind, self.elsewhere, self.kind.distinct(levels))


_Best = list[tuple[IntArray, IntArray]]
"""The indices of the best slopes [cells], for every bin and both ends of a cell."""


@dataclass(frozen=True)
class LevelCurve:
    """The level bound as a function of epsilon, for one direction.

    Attributes:
        pairs: a dominating pair for every kind of candidate.
        counts: number of candidates of every kind.
        inclusion: probability that a candidate is trained.
        negligible: a delta; rarer events count as a full leak.
        winners: the contributions of all kinds; None for few levels.

    Example:
        >>> from audit.accounting import DpSgd
        >>> curve = LevelCurve(DpSgd(0.8, 1000, 0.001).pairs[:1], (30,), 1.0, 1e-6)
        >>> 0.0 < curve.attained_delta(0.9) < curve.delta(0.9) < 1e-4
        True
    """

    pairs: tuple[DominatingPair, ...]
    counts: tuple[int, ...]
    inclusion: float
    negligible: float
    winners: tuple[_Winners, ...] | None = None

    @cached_property
    def _winners(self) -> tuple[_Winners, ...]:
        if self.winners is not None:
            return self.winners
        total = sum(self.counts)
        cut = max(self.negligible / (total * self.inclusion), 1e-280)
        kinds = [
            _KindOfCandidate(pair, count, self.inclusion, cut, total)
            for pair, count in zip(self.pairs, self.counts, strict=True)
        ]
        return tuple(
            _Winners(
                kind,
                tuple(other_kind for other_kind in kinds if other_kind is not kind),
                kind.first_levels,
            )
            for kind in kinds
        )

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up."""
        total = self.inclusion * sum(winners.delta(epsilon) for winners in self._winners)
        return min(total * (1.0 + PROFILE_ACCURACY), 1.0)

    def attained_delta(self, epsilon: float) -> float:
        """A lower bound on the exact value of the bound at epsilon."""
        total = self.inclusion * sum(winners.attained_delta(epsilon) for winners in self._winners)
        return min(total * (1.0 - PROFILE_ACCURACY), 1.0)

    def refined(self, epsilon: float, points: int = _LEVELS) -> "LevelCurve":
        """The curve with levels that are dense where they matter at epsilon."""
        winners = tuple(
            winners_of_kind.refined(epsilon, points) for winners_of_kind in self._winners
        )
        return LevelCurve(self.pairs, self.counts, self.inclusion, self.negligible, winners)

    def epsilon(self, delta: float, guess: float) -> float:
        """The smallest epsilon of the bound at delta, rounded up, by slopes that suit a guess."""
        best = [winners.heights(guess)[1] for winners in self._winners]

        def near(epsilon: float) -> float:
            with_columns = zip(self._winners, best, strict=True)
            total = self.inclusion * sum(
                winners.delta(epsilon, columns) for winners, columns in with_columns
            )
            return min(total * (1.0 + PROFILE_ACCURACY), 1.0)

        return solve_epsilon(near, delta, guess)


def _curves(base: Mechanism, protocol: Grid, negligible: float) -> list[LevelCurve]:
    """The curves of all arrangements of directions.

    Raises:
        NotApplicable: another bound is never larger, or there are too many kinds of candidates.
    """
    candidate_kinds = kinds_of_candidates(base, protocol.candidates, protocol.spec)
    if protocol.candidates <= 2:
        raise NotApplicable("for at most two candidates, other bounds are never larger")
    if protocol.inclusion == 1.0 and all(
        candidate.gaussian_mu is not None for candidate, _ in candidate_kinds
    ):
        raise NotApplicable("the base is Gaussian: grid-tight is simpler")
    arranged = sides(base, protocol)
    if sum(len(counts) for _, counts in arranged) > _MAX_TABLES:
        raise NotApplicable(f"there must be at most {_MAX_TABLES} kinds of candidates")
    return [LevelCurve(*side, protocol.inclusion, negligible) for side in arranged]


def _exceeds(base: Mechanism, protocol: Grid, delta: float, epsilon: float) -> bool:
    """Whether events with equal f show, on few levels, that the level bound gains at most 1 %."""
    curves = _curves(base, protocol, _SHARES[0] * delta)
    return any(curve.attained_delta((1.0 - _WORTHWHILE) * epsilon) > delta for curve in curves)


@bound(
    "grid-levels",
    103,
    "level bound: candidates by the order in which they pass a level",
    about=("any base, possibly different for each candidate",),
    protocol=Grid,
    is_special=True,
    deferred=True,
    title=r"$\varepsilon_U$ grid, levels (any score)",
    exceeds=_exceeds,
)
def grid_levels(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the level bound at delta, over both directions.

    The base is one run of any candidate, or `Candidates` with one mechanism for each.

    Example:
        >>> from audit.accounting import DpSgd
        >>> grid_levels(DpSgd(0.8, 1000, 0.001), Grid(30), 1e-5).epsilon < 0.91
        True
    """
    shares = _SHARES if protocol.inclusion == 1.0 else _SMALL_SHARE
    # Events with a factor below the cut cost at most this share of delta (after proposition 24).
    curves = {share: _curves(base, protocol, share * delta) for share in shares}

    def reached(share: float, epsilon: float) -> float:
        return max(curve.delta(epsilon) for curve in curves[share])

    guess = _first_guess(partial(reached, shares[-1]), delta)
    # Each share gives a bound for every score, so it does not matter how one is chosen.
    share = min(shares, key=lambda share: reached(share, guess))
    epsilon = 0.0
    # Few levels only increase the bound, so a direction that is below the largest is left out.
    for curve in sorted(curves[share], key=lambda curve: -curve.delta(guess)):
        if curve.delta(epsilon) > delta * (1.0 - PROFILE_ACCURACY):
            refined_epsilon = guess
            for points in (_FIRST_LEVELS, _LEVELS):
                curve = curve.refined(refined_epsilon, points)
                refined_epsilon = curve.epsilon(delta, refined_epsilon)
            epsilon = max(epsilon, refined_epsilon)
    return BoundValue(epsilon)


def _first_guess(reached: Callable[[float], float], delta: float) -> float:
    """An epsilon near the one at which a decreasing profile reaches delta."""
    low, high = double_until(lambda epsilon: reached(epsilon) <= delta, 1.0, LARGEST_EPSILON)
    if math.isinf(high):
        raise NotApplicable("the base reveals the data set with a larger probability")
    return safe_root(lambda epsilon: reached(epsilon) > delta, high, low, 0.0, _FIRST_GUESS)
