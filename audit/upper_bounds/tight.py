"""The tight bound: valid for every score and distribution of K, and attained by folded orders.

It is an integral over the probability e of the event, maximised over the probability f of the other
preferred outputs (proposition 2 of docs/theory.md):

    int_0^1 max_{0 <= f <= 1-e} [phi'(1-e-f) - e^eps L'(e) phi'(1-L(e)-U(f))]_+ de,

where U(f) is the largest P'-probability of an event with P-probability f, L(e) = 1 - U(1-e), and
phi' is 0 below 0.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from audit.accounting import (
    DeltaUnreachable,
    DominatingPair,
    LossPair,
    Mechanism,
    compose,
    solve_epsilon,
)
from audit.accounting.composition import COARSE_CELLS
from audit.accounting.conversion import expected_epsilon, largest_epsilon
from audit.claims import Kind
from audit.errors import NotApplicable
from audit.numerics import (
    PROFILE_ACCURACY,
    SUM_ROUNDING,
    FloatArray,
    IntArray,
    equidistribute,
    log_subtract,
    memoize,
    safe_log,
)
from audit.repetitions import Repetitions
from audit.upper_bounds.cells import bounded_masses, scale
from audit.upper_bounds.region import RegionCurve, corners, region_curve
from audit.upper_bounds.registry import BoundValue, bound

Masses = tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

_SOURCE = "tight bound: no order of the outputs costs more than the best folded order"
# Number of first events, and the number that ends the refinement. Time grows with its square. With
# 700 events, the bound is mostly within 1e-4 of the epsilon that an order attains.
_FIRST_EVENTS, _MAX_EVENTS = 96, 700
# Both at deltas other than that of a certificate.
_FEW_EVENTS, _QUICK_RATIO = 400, 1.02
# Refinement also ends when delta is within 0.1 % of an attained one: about 1e-4 of epsilon.
_SUFFICIENT_RATIO = 1.001
# An expected epsilon is proved if the bound there is at most delta. Other events are chosen than
# in a search, so a few more may be needed. An epsilon is searched if the expected one exceeds an
# attained one by more than a share and a small amount.
_PROVED, _MAX_EVENTS_OF_PROOF = 1.0 - 3.0 * PROFILE_ACCURACY, 600
_MAX_EXCESS, _MAX_SMALL_EXCESS = 1e-2, 0.02
_LEAST_EXCESS, _SPENT, _MAX_PARTS = 2e-3, 2.0, 6
_MIN_GAIN = 0.02  # share of new events below which more of them do not help
# log of the smallest probability, 1e-20, that the first events resolve. Rarer events matter only if
# E[K] is above 1e20, and are found by refinement.
_MIN_LOG_PROBABILITY = -45.0
# Cells before f = 1 - e that are bounded by the limit there, because rounding errors dominate.
_LIMIT_CELLS = 8
# Rows per block, so that a block fits into the processor cache.
_BLOCK_ROWS = 32
# Smallest share of the events that each part of a curve gets.
_MIN_SHARE = 1e-9
# Rounding of a logarithm near 0. A cell is split only where the ratio of its two widths loses less
# than `_MAX_RELATIVE_ERROR` by rounding.
_LOG_ROUNDING = 1e-15
_MAX_RELATIVE_ERROR = 1e-8


@dataclass(frozen=True)
class FoldedGame:
    """The tuned output under a folded order of the likelihood ratio, distinguished by cells.

    The extreme events (f, U(f)) divide the outputs into cells, ordered from those likelier under P'
    to those likelier under P. The order prefers cells alternately from the front (f) and from the
    back (e).

    Attributes:
        left: log(1-f) and log(1-U(f)) [n] of the events, decreasing from 0 to -inf.
        repetitions: the distribution of K.
        before: for every cell [n-1], the number of front cells that are preferred to it if it comes
            from the back; at most its own index, not increasing.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import worst_order
        >>> round(worst_order(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.191
    """

    left: tuple[FloatArray, FloatArray]
    repetitions: Repetitions
    before: NDArray[np.int64]

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """The cells that come from the back [m], the most preferred first."""
        cells = np.arange(len(self.before))[::-1]
        return cells[self.before[cells] <= cells]

    @cached_property
    def masses(self) -> Masses:
        """Bounds (lower, upper) [2m+1] on masses under P and under P', the best outputs first.

        Between consecutive back cells are the front cells that are preferred to the second; the
        remaining front cells come last.
        """
        cells, front = self.cells, self.before[self.cells]
        reached = np.concatenate([[0], np.repeat(front, 2), cells[-1:]])
        remaining = np.stack([cells + 1, cells], axis=1).ravel()
        remaining = np.concatenate([[len(self.before)], remaining, cells[-1:]])
        sides = []
        for log_left in self.left:
            # Worse outputs lie between the events `reached` and `remaining`.
            front_left, back_left = log_left[reached], log_left[remaining]
            log_worse = log_subtract(front_left, back_left)
            one_run = np.exp(log_subtract(front_left[:-1], front_left[1:]))
            one_run += np.exp(log_subtract(back_left[1:], back_left[:-1]))
            sides.append(bounded_masses(log_worse, one_run, self.repetitions))
        return sides[0], sides[1]

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence of P and P' over the cells, rounded down."""
        # Cells are a post-processing of the output, and P is rounded down and P' up: at most the
        # leakage.
        (mass, _), (_, mass_with) = self.masses
        # If the other mass underflows, the ratio is unknown.
        gains = np.where(mass_with > 0.0, mass - scale(mass_with, epsilon), 0.0)
        return float(np.maximum(gains, 0.0).sum())

    def epsilon(self, delta: float, guess: float | None = None) -> float:
        """Epsilon that this order attains at delta, rounded down; `guess` saves time."""
        return solve_epsilon(self.delta, delta, guess) * (1.0 - PROFILE_ACCURACY)


class _Envelope:
    """The contribution of cells (rows) to delta at their best f (columns), for several epsilons.

    It is the largest value of gains - e^epsilon weights slopes in every row, which is convex in
    e^epsilon. So a column that is best at two epsilons is best between them, and few rows must be
    searched again. Gains [n, m] are under P, the slope times the weight of e; weights [n] are those
    of L(e), and slopes [n, m] are under P'.
    """

    def __init__(self, gains: FloatArray, weights: FloatArray, slopes: FloatArray) -> None:
        self._gains, self._slopes = gains, slopes
        self._log_weights, self._rows = safe_log(weights), np.arange(len(weights))
        self._known: list[float] = []  # epsilons, increasing
        self._columns: dict[float, NDArray[np.intp]] = {}

    def table(self, epsilon: float) -> FloatArray:
        """The contribution of the cells at every f, [n, m]."""
        return self._gains - _exp_scaled(self._log_weights, epsilon)[:, None] * self._slopes

    def best(self, epsilon: float) -> tuple[NDArray[np.intp], FloatArray]:
        """The first column [n] where a row is largest, and its value there [n]."""
        weights, solved = _exp_scaled(self._log_weights, epsilon), self._known
        above = bisect.bisect_left(solved, epsilon)
        if solved and solved[0] <= epsilon <= solved[-1]:
            columns = self._columns[solved[max(above - 1, 0)]].copy()
            rows = np.flatnonzero(columns != self._columns[solved[above]])
            if len(rows):
                gains = self._gains[rows] - weights[rows, None] * self._slopes[rows]
                columns[rows] = gains.argmax(axis=1)
        else:
            columns = (self._gains - weights[:, None] * self._slopes).argmax(axis=1)
        if epsilon not in self._columns:
            solved.insert(above, epsilon)
        self._columns[epsilon] = columns
        at = self._rows, columns
        return columns, self._gains[at] - weights * self._slopes[at]

    def most(self, epsilon: float) -> float:
        """The sum over cells of the largest contribution, where it is positive."""
        return float(np.maximum(self.best(epsilon)[1], 0.0).sum())


@dataclass(frozen=True)
class TightCurve:
    """The tight bound as a function of epsilon, for one direction of the base.

    Attributes:
        pair: the base's dominating pair.
        repetitions: the distribution of K.
        t: parameters [n] of extreme events of the pair, increasing. The bound is valid for any
            events, and sharper if they are denser.
        guess: an approximate epsilon that an order of these events attains; None if unknown.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import parse_repetitions
        >>> (pair,) = GaussianMechanism(0.25).pairs
        >>> curve = TightCurve(pair, parse_repetitions("tnb:0,0.1"), np.linspace(-9.0, 9.0, 400))
        >>> 0.0 < curve.delta(1.2) < 1e-3
        True
    """

    pair: DominatingPair
    repetitions: Repetitions
    t: FloatArray
    guess: float | None = None

    @staticmethod
    @memoize(2)  # the attained epsilon and the bound use the same curve
    def at(
        pair: DominatingPair,
        repetitions: Repetitions,
        delta: float,
        points: int = _MAX_EVENTS,
        ratio: float = _SUFFICIENT_RATIO,
    ) -> "TightCurve":
        """The curve with about `points` events, dense where they matter for one delta.

        Fewer events are enough if the bound is below `ratio` times an attained delta.
        """
        curve = TightCurve(pair, repetitions, _first_events(pair, repetitions))
        while len(curve.t) < points:
            game = curve.worst_order(delta)
            epsilon = game.epsilon(delta, curve.guess)
            t = curve._refined(game, epsilon, delta, ratio)
            if len(t) == len(curve.t):
                break
            curve = TightCurve(pair, repetitions, t, epsilon)
        return curve

    @staticmethod
    def quick(pair: DominatingPair, repetitions: Repetitions, delta: float) -> "TightCurve":
        """The same with fewer events; its epsilon is mostly larger by less than 0.3 %."""
        return TightCurve.at(pair, repetitions, delta, _FEW_EVENTS, _QUICK_RATIO)

    @staticmethod
    def near(
        pair: DominatingPair, repetitions: Repetitions, delta: float, epsilon: float
    ) -> "TightCurve":
        """A curve of few events that prove epsilon at delta, if there are such.

        It takes a part of the time of `at`, because nothing is solved for an epsilon.
        """
        curve = TightCurve(pair, repetitions, _first_events(pair, repetitions), epsilon)
        by_region = curve._region.delta(epsilon) <= delta * (1.0 - PROFILE_ACCURACY)
        while len(curve.t) < _MAX_EVENTS_OF_PROOF:
            if by_region and _is_near(curve._attains(delta, epsilon), epsilon):
                break
            t = curve._refined_at(epsilon, delta)
            gained = len(t) - len(curve.t)
            if gained:
                curve = TightCurve(pair, repetitions, t, epsilon)
            if gained < _MIN_GAIN * len(t):
                break
        return curve

    def _attains(self, delta: float, epsilon: float) -> float:
        """Epsilon that the order attains at delta that leaks most at another epsilon."""
        return self.best_order(epsilon).epsilon(delta, epsilon)

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up.

        It is never above the region bound, which has a finer discretisation.
        """
        return min(self._region.delta(epsilon), self._by_lines(epsilon))

    def epsilon(self, delta: float, guess: float | None = None) -> float:
        """The smallest epsilon at which the bound is at most delta, rounded up.

        `guess`, an approximate epsilon, saves time.

        Raises:
            DeltaUnreachable: no epsilon reaches delta.
        """
        enough = solve_epsilon(self._region.delta, delta)  # the same value as `region`
        if self._by_lines(enough) > delta * (1.0 - PROFILE_ACCURACY):
            return enough
        return min(solve_epsilon(self._by_lines, delta, guess), enough)

    def _by_lines(self, epsilon: float) -> float:
        total = sum(0.5 * lines.most(epsilon) for lines in self._lines)
        return total * (1.0 + PROFILE_ACCURACY)

    @cached_property
    def _region(self) -> RegionCurve:
        return region_curve(self.pair, self.repetitions)

    def estimate(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0 by the trapezoid rule, not rounded."""
        return sum(halves.most(epsilon) for halves in self._halves)

    def worst_order(self, delta: float) -> FoldedGame:
        """The folded order that leaks most at delta.

        Raises:
            DeltaUnreachable: no epsilon reaches delta.
        """
        try:
            epsilon = solve_epsilon(self.estimate, delta, self.guess)
        except DeltaUnreachable:
            # The trapezoid rule has too few events for a very large mu.
            epsilon = solve_epsilon(self._region.delta, delta)
        return self.best_order(epsilon)

    def best_order(self, epsilon: float) -> FoldedGame:
        """The folded order that leaks most at epsilon."""
        best_of_halves = [halves.best(epsilon) for halves in self._halves]
        columns, gains = map(np.concatenate, zip(*best_of_halves, strict=True))
        before = np.where(gains > 0.0, columns, 0)
        # Front cells that are preferred to a back cell are preferred to all later back cells.
        before = np.maximum.accumulate(before[::-1])[::-1]
        return FoldedGame(self.left, self.repetitions, before)

    @cached_property
    def left(self) -> tuple[FloatArray, FloatArray]:
        """log(1-f) and log(1-U(f)) [n] as f grows from 0 to 1, or log e, log L(e) as e falls."""
        return _left(self.pair, self.t)

    @cached_property
    def _slopes(self) -> tuple[FloatArray, FloatArray]:
        """phi'(1-e-f) and phi'(1-L(e)-U(f)) for every e (rows) and f (columns), [n, n].

        They are phi'(0) if f is too large for e, which keeps them convex in each variable.
        """
        sides = []
        for log_left in self.left:
            slopes = np.full((len(log_left),) * 2, self._slope(np.array(-np.inf)))
            for rows in _blocks(len(log_left)):
                f = slice(0, rows.stop)
                log_x = log_subtract(log_left[None, f], log_left[rows, None])
                slopes[rows, f] = self._slope(log_x)
            sides.append(slopes)
        return sides[0], sides[1]

    def _slope(self, log_x: FloatArray) -> FloatArray:
        return np.exp(self.repetitions.log_phi_prime_at(log_x))

    @cached_property
    def _widths(self) -> tuple[FloatArray, FloatArray]:
        """P- and P'-probabilities [n-1] between consecutive events."""
        p, q = (np.exp(log_subtract(v[:-1], v[1:])) for v in self.left)
        return p, q

    @cached_property
    def _relative_error(self) -> FloatArray:
        """Relative error [n-1] that rounding can leave in the ratio of both widths."""
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = [_LOG_ROUNDING * (1.0 - v[:-1]) / -np.expm1(np.diff(v)) for v in self.left]
        return np.nan_to_num(sum(errors, np.zeros(1)), nan=np.inf)

    @cached_property
    def _halves(self) -> list[_Envelope]:
        """Terms of the trapezoid rule: the full part of P, and the mean slope of P'."""
        (a, b), (widths, widths_with) = self._slopes, self._widths
        envelopes = []
        for rows in _blocks(len(widths)):
            next_rows, f = slice(rows.start + 1, rows.stop + 1), slice(0, rows.stop)
            gains, loss = (0.5 * (v[next_rows, f] + v[rows, f]) for v in (a, b))
            k = rows.start
            envelopes.append(
                _Envelope(
                    np.tril(widths[rows, None] * gains, k), widths_with[rows], np.tril(loss, k)
                )
            )
        return envelopes

    @cached_property
    def _lines(self) -> list[_Envelope]:
        """Four lines for every cell, stacked in blocks of cells, whose sum is twice the bound.

        In every cell, phi'(1-e-f) is a convex function of e, below its chord. L is above the
        extended chords of both neighbours, which meet in a corner. phi'(1-L-U) is a convex function
        of L, above the extended chord of the next larger L. The resulting integrand is linear in e
        on both sides of the corner, so its maximum over f is convex there, and its mean is at most
        half the sum over both ends. Both slopes are also convex functions of f: the first is below
        a chord, the second above a corner.

        The columns are the events f, then the intervals between them, then all f from
        `_LIMIT_CELLS` cells before f = 1 - e on.
        """
        widths, widths_with = self._widths
        near, near_with, chord_before, growth = self._chords
        last_cell, largest_slope, smallest_slope = self._limits(chord_before)
        to, to_with = near * widths, near_with * widths_with
        on, on_with = (1.0 - near) * widths, (1.0 - near_with) * widths_with
        cells = np.arange(len(widths))
        envelopes = []
        for rows in _blocks(len(cells)):
            ends = last_cell[rows, None]
            inner = (cells[: rows.stop] <= ends) & (ends > 0)
            inner_cells = max(rows.stop - _LIMIT_CELLS, 1)  # no further column is inner in any row
            a_start, a_end, b_start, b_end = (
                np.hstack(
                    [
                        np.where(inner, at, 0.0)[:, :inner_cells],
                        np.where(inner[:, 1:], between, 0.0)[:, : inner_cells - 1],
                        beyond[rows, None],
                    ]
                )
                for (at, between), beyond in zip(
                    self._cell_slopes(rows, growth),
                    (largest_slope, largest_slope, smallest_slope, smallest_slope),
                    strict=True,
                )
            )
            a_corner = a_start + (a_end - a_start) * near[rows, None]
            b_corner = b_start + (b_end - b_start) * near_with[rows, None]
            before, behind = to[rows, None], on[rows, None]
            envelopes.append(
                _Envelope(
                    np.vstack(
                        [before * a_start, before * a_corner, behind * a_corner, behind * a_end]
                    ),
                    np.concatenate([to_with[rows], to_with[rows], on_with[rows], on_with[rows]]),
                    np.vstack([b_start, b_corner, b_corner, b_end]),
                )
            )
        return envelopes

    @cached_property
    def _chords(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The chords of L, each [n-1]; cell i is between the events i + 1, of smaller e, and i.

        Returns the shares of the cell, in e and in L, before the corner; the slope of the next
        chord; and the length by which b is extended, relative to its change over the previous cell.
        """
        widths, widths_with = self._widths
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            chord = widths_with / widths
            chord_before = np.append(chord[1:] * (1.0 - self._relative_error[1:]), 0.0)
            # A slope of 0 is safe if no slope exists, as before a step of L alone.
            usable = (chord_before > 0.0) & (chord_before < np.inf)
            chord_before = np.where(usable, chord_before, 0.0)
            chord_after = np.append(np.inf, chord[:-1] * (1.0 + self._relative_error[:-1]))
            rise = chord_after - chord * (1.0 - self._relative_error)
            near = rise / (chord_after - chord_before)
            near = np.where((near >= 0.0) & (near < 1.0), near, 1.0)
            near_with = np.nan_to_num(np.clip(near * chord_before / chord, 0.0, 1.0), nan=0.0)
            growth = widths_with / np.append(np.inf, widths_with[:-1])
            growth *= 1.0 - self._relative_error - np.append(0.0, self._relative_error[:-1])
        # Steps from a small cell to a large one would magnify rounding.
        growth = np.where((growth > 0.0) & (growth < 8.0), growth, 0.0)
        return near, near_with, chord_before, growth

    def _limits(self, chord_before: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """Per cell, the last f of its own columns, and both slopes from there to f = 1 - e.

        Since 1-L(e)-U(f) >= L'(e) (1-e-f), and log phi' is convex in log x, a positive gain
        decreases with f.
        """
        p, _ = self.left
        cells = np.arange(len(chord_before))
        last_cell = np.maximum(cells - _LIMIT_CELLS, 0)
        between_cells = log_subtract(p[last_cell], p[cells + 1])
        largest_slope = self._slope(between_cells) * (1.0 + SUM_ROUNDING)
        smallest_slope = self._slope(between_cells + safe_log(chord_before)) * (1.0 - SUM_ROUNDING)
        return last_cell, largest_slope, smallest_slope

    def _cell_slopes(self, rows: slice, growth: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Slopes at the events f and between them: of P at both ends of a cell, then of P'."""
        (a, b), (widths, _) = self._slopes, self._widths
        smooth = widths < 1e3 * np.minimum(
            np.append(widths[1:], np.inf), np.append(0.0, widths[:-1])
        )
        cells, f = np.arange(len(widths))[rows], slice(0, rows.stop)
        a_far, a_here = (a[cells + i, f] * (1.0 + SUM_ROUNDING) for i in (1, 0))
        b_here = b[rows, f] * (1.0 - SUM_ROUNDING)
        after = b[np.maximum(cells - 1, 0), f] * (1.0 + SUM_ROUNDING)
        grown = growth[rows, None]
        b_points = b_here + grown * (b_here - after)
        share, b_end = corners(widths[: rows.stop - 1], b_here)
        b_start = b_end + grown * (b_end - after[:, :-1] - np.diff(after) * share)
        box = (share == 0.0) | ~smooth[: rows.stop - 1] | (b_start < b_points[:, 1:])
        share = np.where(box, 0.0, share)
        b_start = np.where(box, b_points[:, 1:], b_start)
        b_end = np.where(box, b_here[:, 1:], b_end)
        a_start, a_end = (v[:, :-1] + np.diff(v) * share for v in (a_far, a_here))
        return [(a_far, a_start), (a_here, a_end), (b_points, b_start), (b_here, b_end)]

    def _refined(self, game: FoldedGame, epsilon: float, delta: float, ratio: float) -> FloatArray:
        """The events, with new ones in the cells where the bound most exceeds the game's delta.

        No event is added if the bound exceeds delta by little.
        """
        excess, total = self._excess(game, epsilon)
        if total <= ratio * delta or not excess.any():
            return self.t
        worst = np.argsort(-excess)
        enough = int(np.searchsorted(np.cumsum(excess[worst]), 0.9 * excess.sum())) + 1
        split = worst[: max(enough, len(excess) // 10)]
        split = self._splittable(split)
        middle = 0.5 * (self.t[split - 1] + self.t[split])
        return np.union1d(self.t, middle)

    def _refined_at(self, epsilon: float, delta: float) -> FloatArray:
        """The events, with as many new ones as the bound at epsilon needs to be at most delta.

        A cell of n equal parts has about 1/n^2 of its excess. So the total number of parts is
        smallest for a given excess if it is proportional to the cube root of that of each cell.
        """
        excess, total = self._excess(self.best_order(epsilon), epsilon)
        if total <= _PROVED * delta:
            return self.t
        allowed = _PROVED * delta - (total - float(excess.sum()))
        roots = np.cbrt(excess / max(allowed, _LEAST_EXCESS * delta))
        wanted = np.ceil(roots * math.sqrt(_SPENT * float(roots.sum())))
        split = self._splittable(np.flatnonzero(wanted > 1.0))
        parts = np.minimum(wanted[split], _MAX_PARTS)
        before, after = self.t[split - 1], self.t[split]
        steps = np.arange(1, _MAX_PARTS)
        new = before[:, None] + steps / parts[:, None] * (after - before)[:, None]
        return np.union1d(self.t, new[steps < parts[:, None]])

    def _splittable(self, cells: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those cells between two events that are wide enough to be split."""
        cells = cells[(cells >= 1) & (cells < len(self.t))]
        return cells[self._relative_error[cells] < _MAX_RELATIVE_ERROR]

    def _excess(self, game: FoldedGame, epsilon: float) -> tuple[FloatArray, float]:
        """The excess of the bound over the game's delta in every cell [n-1], and the bound."""
        cells = np.arange(len(self.t) + 1)
        excess = np.zeros(len(cells))
        at_points, total = np.zeros(len(cells)), 0.0
        for rows, lines in zip(_blocks(len(cells)), self._lines, strict=True):
            gains = lines.table(epsilon)
            width = gains.shape[1] // 2
            points, between = gains[:, :width], gains[:, width:]
            at_cell = np.tile(cells[rows], 4)
            best = between.argmax(axis=1)
            point = np.maximum(points.max(axis=1), 0.0)
            more = np.maximum(between[np.arange(len(at_cell)), best] - point, 0.0)
            # An excess between two f is due to their distance, the rest to the distance of the e.
            where = np.where(best < width - 1, best, np.maximum(at_cell - 1, 0))
            excess += 0.5 * np.bincount(where, more, len(cells))
            at_points += 0.5 * np.bincount(at_cell, point, len(cells))
            total += 0.5 * float((point + more).sum())
        (mass, _), (_, mass_with) = game.masses
        gains = mass[1::2] - _exp_scaled(safe_log(mass_with[1::2]), epsilon)
        at_points[game.cells] -= np.maximum(gains, 0.0)
        return excess + np.maximum(at_points, 0.0), total


def _left(pair: DominatingPair, t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """log(1-f) and log(1-U(f)) [n+2] of all outputs, of the events of a pair, and of none."""
    p, q = (np.concatenate([[0.0], v, [-np.inf]]) for v in pair.events(t))
    return p, q


def _blocks(rows: int) -> list[slice]:
    """Blocks of consecutive rows of a lower triangle."""
    return [slice(start, min(start + _BLOCK_ROWS, rows)) for start in range(0, rows, _BLOCK_ROWS)]


def _exp_scaled(log_weights: FloatArray, epsilon: float) -> FloatArray:
    """e^epsilon times weights, without overflow."""
    return np.exp(np.minimum(epsilon + log_weights, 600.0))


def _first_events(pair: DominatingPair, repetitions: Repetitions) -> FloatArray:
    """Parameters of a few events, dense where e or phi' change."""
    low, high = pair.event_range
    t = np.linspace(low, high, 8 * _FIRST_EVENTS)
    for _ in range(8):
        log_left, log_left_with = pair.events(t)
        slopes = np.asarray(repetitions.log_phi_prime_at(np.stack([log_left, log_left_with])))
        slopes = np.maximum(slopes - np.log(repetitions.mean), -700.0)
        large = log_left > _MIN_LOG_PROBABILITY
        moves = np.zeros(len(t) - 1)
        for share, height in (
            (0.4, np.exp(0.125 * slopes)),
            (0.1, slopes),
            (0.3, np.maximum(log_left, log_left[large].min())[None]),
            (0.2, np.maximum(log_left_with, max(log_left_with[large].min(), -700.0))[None]),
        ):
            move = np.abs(np.diff(height)).sum(axis=0) + _MIN_SHARE
            moves += share * move / move.sum()
        t = np.unique(equidistribute(t, moves, _FIRST_EVENTS))
    if high - low < 0.25 * _FIRST_EVENTS:  # a few straight pieces: three parts of each
        t = np.union1d(t, np.arange(3.0 * low, 3.0 * high + 1.0) / 3.0)
    log_left, _ = pair.events(t)
    # Of events of equal probability, only the one next to events of other probabilities is kept.
    new = log_left[1:] != log_left[:-1]
    return t[np.where(log_left == 0.0, np.append(new, True), np.append(True, new))]


def _is_near(attained: float, epsilon: float) -> bool:
    """Whether a search would hardly find a smaller bound than epsilon."""
    return attained >= (1.0 - _MAX_EXCESS) * epsilon - _MAX_SMALL_EXCESS


def proved_if_expected(
    pairs: Sequence[DominatingPair], repetitions: Repetitions, delta: float
) -> tuple[float, float] | None:
    """The epsilon of `expecting` and an attained one, if it is a bound and little more than that.

    Any events give a valid bound, so those chosen for this epsilon do. The attained epsilon is that
    of the pairs, which need not be attained by data sets.
    """
    epsilon = expected_epsilon()
    if epsilon is None:
        return None
    regions = [region_curve(pair, repetitions).delta for pair in pairs]
    if largest_epsilon(regions, delta) == epsilon:
        # It is proved, and was issued where no few events gave less.
        first = (TightCurve(p, repetitions, _first_events(p, repetitions), epsilon) for p in pairs)
        return epsilon, min(max(curve._attains(delta, epsilon) for curve in first), epsilon)
    curves = [TightCurve.near(pair, repetitions, delta, epsilon) for pair in pairs]
    if any(curve.delta(epsilon) > delta * (1.0 - PROFILE_ACCURACY) for curve in curves):
        return None
    attained = max(curve._attains(delta, epsilon) for curve in curves)
    if attained > epsilon or not _is_near(attained, epsilon):
        return None
    return epsilon, attained


def tight_at_other_delta(
    base: Mechanism, repetitions: Repetitions, delta: float, _: float
) -> BoundValue:
    """The tight bound with few events."""
    expected = proved_if_expected(base.pairs, repetitions, delta)
    if expected is not None:
        epsilon, attained = expected
        attains = attained if base.attained else 0.0
        return BoundValue(epsilon, error=epsilon - attained, attains=attains)
    epsilon = attained = 0.0
    for pair in base.pairs:
        curve = TightCurve.quick(pair, repetitions, delta)
        leaked = curve.worst_order(delta).epsilon(delta, curve.guess)
        epsilon = max(epsilon, curve.epsilon(delta, leaked))
        attained = max(attained, leaked)
    return BoundValue(epsilon, attains=attained if base.attained else 0.0)


def _attained_at_other_delta(
    base: Mechanism, repetitions: Repetitions, delta: float, _: float
) -> BoundValue:
    """Epsilon that an order of few events attains."""
    if not base.attained:
        raise NotApplicable("the base must have known output distributions")
    curves = (TightCurve.quick(pair, repetitions, delta) for pair in base.pairs)
    return BoundValue(max(curve.worst_order(delta).epsilon(delta) for curve in curves))


@bound(
    "tight",
    110,
    _SOURCE,
    title=r"$\varepsilon_U$ tight (any score)",
    at_other_delta=tight_at_other_delta,
)
def tight(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Smallest epsilon that the tight bound gives at delta, over both directions.

    The error is the distance to the epsilon of the best folded order found.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(tight(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 4)
        1.4488
    """
    curves = [TightCurve.at(pair, repetitions, delta) for pair in base.pairs]
    epsilon = 0.0
    for curve in curves:
        guess = curve.worst_order(delta).epsilon(delta, curve.guess)
        epsilon = max(epsilon, curve.epsilon(delta, guess))
    attained = max(curve.best_order(epsilon).epsilon(delta) for curve in curves)
    if attained > epsilon:
        raise NotApplicable(
            f"its computation failed numerically: the value is {epsilon:.6g}, but an order attains "
            f"{attained:.6g}"
        )
    return BoundValue(epsilon, error=epsilon - attained, attains=attained if base.attained else 0.0)


@bound(
    "worst-order",
    90,
    "exact leakage of the best folded order found",
    kind=Kind.ATTAINED,
    about=("the adversary chooses the score: attained by an attack, not a bound",),
    title="worst order (attained)",
    at_other_delta=_attained_at_other_delta,
)
def worst_order(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Epsilon that the best folded order found attains: no bound for all scores can be smaller.

    The pair of the base must be attained by neighbouring data sets. The losses of many sampled
    steps are composed on a grid; its error is estimated by the change of the same order's epsilon
    on a grid twice as coarse.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(worst_order(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 3)
        1.449
    """
    if not base.attained:
        raise NotApplicable("the base must have known output distributions")
    curves = [TightCurve.at(pair, repetitions, delta) for pair in base.pairs]
    games = [curve.worst_order(delta) for curve in curves]
    attained, error = max(game.epsilon(delta) for game in games), 0.0
    (loss, count), *other_terms = base.loss_terms
    if base.gaussian_mu is None and not (
        isinstance(loss, DominatingPair) and count == 1 and not other_terms
    ):
        coarse = compose(base.loss_terms, COARSE_CELLS)
        coarse_pairs = (coarse, coarse.mirrored)[: len(curves)]
        on_coarse_grid = [
            replace(game, left=_left(pair, _at_same_losses(curve, pair)))
            for curve, game, pair in zip(curves, games, coarse_pairs, strict=True)
        ]
        error = abs(attained - max(game.epsilon(delta, attained) for game in on_coarse_grid))
    return BoundValue(max(attained - error, 0.0), error=2.0 * error)


def _at_same_losses(curve: TightCurve, pair: LossPair) -> FloatArray:
    """Parameters of the events of another pair at the losses of a curve's events.

    An atom's outputs count as spread evenly around its loss. Other events are at other losses, and
    then the two epsilons differ by more.
    """
    if not isinstance(curve.pair, LossPair):
        return np.interp(curve.t, curve.pair.event_range, pair.event_range)
    atoms, other_atoms = (len(p.pmf.loss) for p in (curve.pair, pair))
    places, other_places = 1.5 + np.arange(atoms), 1.5 + np.arange(other_atoms)
    losses = np.interp(curve.t, places, curve.pair.pmf.loss)
    t = np.interp(losses, pair.pmf.loss, other_places)
    t = np.where(curve.t < places[0], np.minimum(curve.t, t), t)
    return np.where(curve.t > places[-1], np.maximum(curve.t - atoms + other_atoms, t), t)
