"""The cost of releasing the best m of K runs, using that the other runs are preferred to the m-th.

The product bound (proposition 7 of docs/theory.md) forgets that the m - 1 best runs are preferred
to the m-th, and so lie in its event. Among all events with the same probabilities s and s', the
event that takes outputs from both ends of the likelihood ratio, a fold, leaks most. So the bound is
a maximum over folds (proposition 27).

A maximum over a grid of folds would be too small. The run is moved to a lattice of likelihood
ratios, which makes it less private. A fold then consists of whole lattice points and of parts of
two of them, so the plane of folds is cut into squares. In a square the fold's measure, s and s' are
linear in both parts, and a bound of second order holds for the whole square. Squares that can
exceed the best known fold are cut into four.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from audit import checks, numerics
from audit.accounting import DominatingPair, Mechanism, solve_epsilon
from audit.accounting.conversion import expected_result
from audit.errors import NotApplicable
from audit.numerics import FloatArray, IntArray, matrix_product
from audit.protocols import BestRuns
from audit.repetitions import Repetitions
from audit.upper_bounds.best_runs import (
    BestRunsCurve,
    best_at_other_delta,
    best_runs_curves,
    delta_of_both,
    fewer_runs,
    log_derivative,
    with_fewer_runs,
)
from audit.upper_bounds.ratio_lattice import RatioLattice, chords
from audit.upper_bounds.region import ShiftedProfiles
from audit.upper_bounds.registry import BoundValue, bound

# Lattice points per standard deviation of the loss, and their largest number, on a coarse lattice
# and on a fine one; and the largest number for the product of the other runs' ratios.
_COARSE, _FINE, _MOST_PRODUCTS = (7.0, 72), (12.0, 123), 288
# Work is the number of products of ratios in the measures of folds: the largest work at which
# squares are still cut, and the largest on the coarse lattice after which the fine one is computed.
_MOST_WORK, _LITTLE_WORK = 60_000_000, 6_000_000
# Points t per lattice point of the run, and their largest and smallest numbers.
_FINER, _MOST_POINTS, _LEAST_POINTS = 1, 192, 64
# Relative distance to the best known fold at which a square is not cut further.
_TOLERANCE = 6e-3
# How often a square is cut, and the number of (square, t) after which none is cut further.
_MAX_LEVEL, _MOST_PAIRS = 5, 1_000_000
# Values in memory at once, and the largest number of released runs.
_CHUNK, _MOST_RELEASED = 1 << 21, 12
# A smaller gain over the other bounds is not worth the time.
_WORTHWHILE = 0.002
# Margins for the rounding of s and s', of phi's derivatives, and of the gain of a square.
_ROUNDING, _DERIVATIVES, _GAIN = 1e-13, 1e-11, 1e-12
# Share of delta that rare outputs may cost.
_NEGLIGIBLE = 1e-4
# Cells of s for the value at t = 0.
_CELLS = 4096
# The pairs of different corners of a square.
_CORNERS = ((0, 0), (1, 0), (0, 1), (1, 1))
_SIDES = tuple((i, j) for i in range(4) for j in range(i + 1, 4))


@dataclass(frozen=True)
class _Folds:
    """The measures of some folds: P-masses of the m - 1 best runs, by the product R of their r.

    Attributes:
        below: P-probabilities [n, k + 1] that R is below each lattice point, R = 0 included.
        below_with: the same under P', rounded down.
    """

    below: FloatArray
    below_with: FloatArray


@dataclass(frozen=True)
class _Values:
    """Bounds on h at the points t.

    Attributes:
        lower: lower bounds [n], by the best folds found.
        upper: upper bounds [n].
        work: the number of products of ratios that were computed.
    """

    lower: FloatArray
    upper: FloatArray
    work: int


@dataclass(frozen=True)
class _Smallest:
    """The smallest of several bounds on delta."""

    bounds: tuple["ShiftedProfiles | _Smallest", ...]

    def delta(self, epsilon: float) -> float:
        """The smallest delta at epsilon."""
        return min(bound.delta(epsilon) for bound in self.bounds)


@dataclass(frozen=True)
class _Logged:
    """Numbers at least 0 and their logarithms, which pairs of a square and t use many times."""

    value: FloatArray
    log: FloatArray

    @staticmethod
    def of(value: FloatArray) -> "_Logged":
        """Numbers with their logarithms."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _Logged(value, np.log(value))

    def __getitem__(self, index: Any) -> "_Logged":
        return _Logged(self.value[index], self.log[index])


@dataclass(frozen=True)
class _Gain:
    """Functions [a - b R]_+ of the product R of ratios.

    Attributes:
        a: their values [n] at 0.
        b: their slopes [n].
        place: the number [n] of points of the lattice of R at which they are above 0.
    """

    a: FloatArray
    b: FloatArray
    place: IntArray


class _Ends:
    """Powers of the measures at both ends of the likelihood ratio, from which folds are made.

    Args:
        u: different numbers of points [i] at the bottom.
        v: different numbers of points [j] on top.
        low: the shares [i, n] of all points that they contain.
        high: the same [j, n] on top.
        sides: P- and P'-masses [n] of the points, r = 0 first.
        others: m - 1.
    """

    def __init__(
        self,
        u: FloatArray,
        v: FloatArray,
        low: FloatArray,
        high: FloatArray,
        sides: tuple[FloatArray, FloatArray],
        others: int,
    ) -> None:
        self._u, self._v, self._others = u, v, others
        self._low, self._high, self._p = low, high, sides[0]
        self._powers = [
            (_powers(low[:, 1:] * side[1:], others), _powers(high[:, 1:] * side[1:], others))
            for side in sides
        ]

    def folds(self, u: FloatArray, v: FloatArray) -> _Folds:
        """The measures of folds [n] with points u and v, of which u is sorted."""
        low, high = np.searchsorted(self._u, u), np.searchsorted(self._v, v)
        below, below_with = (
            np.pad(np.cumsum(self._products(low, high, *powers), axis=1), ((0, 0), (1, 0)))
            for powers in self._powers
        )
        # The masses of all tuples with r = 0 somewhere, as a sum of positive terms.
        mass = (self._low[low] + self._high[high]) * self._p
        finite, n = mass[:, 1:].sum(axis=1), self._others
        zero = sum((mass[:, 0] + finite) ** k * finite ** (n - 1 - k) for k in range(n))
        zero = mass[:, 0] * zero
        return _Folds(below + zero[:, None], below_with * (1.0 - _ROUNDING))

    def _products(
        self,
        low: IntArray,
        high: IntArray,
        low_powers: list[FloatArray],
        high_powers: list[FloatArray],
    ) -> FloatArray:
        """Masses [n, k] of the products of m - 1 ratios, by the binomial theorem.

        All terms are positive, so sums keep their relative accuracy.
        """
        n, places = self._others, low_powers[1].shape[1]
        if n == 1:
            return low_powers[1][low] + high_powers[1][high]
        products = low_powers[n][low] + high_powers[n][high]
        # Numbers of finite ratios that have mass at the bottom and on top.
        bottom = np.clip(np.ceil(self._u[low]).astype(np.int64) - 1, 0, places)
        top = np.clip(np.ceil(self._v[high]).astype(np.int64), 0, places)
        starts = np.flatnonzero(np.append(True, np.diff(low) > 0))
        for start, end in zip(starts, [*starts[1:], len(low)], strict=True):
            rows, at_bottom, on_top = high[start:end], bottom[start], top[start:end].max()
            if not at_bottom or not on_top:
                continue
            for k in range(1, n):
                # Beyond these places one of the two powers is 0.
                first = (n - k) * (places - on_top)
                low_power = low_powers[k][low[start], : k * (at_bottom - 1) + 1]
                high_power = high_powers[n - k][rows, first:]
                last = first + high_power.shape[1] + len(low_power) - 1
                product = matrix_product(high_power, _shifted(low_power, high_power.shape[1]))
                products[start:end, first:last] += math.comb(n, k) * product
        return products


def _shifted(values: FloatArray, rows: int) -> FloatArray:
    """A matrix [rows, n + rows - 1] whose row i is `values` [n], moved by i places."""
    padded = np.zeros(len(values) + 2 * (rows - 1))
    padded[rows - 1 : rows - 1 + len(values)] = values
    size, (step,) = len(values) + rows - 1, padded.strides
    return np.ndarray((rows, size), padded.dtype, padded, (rows - 1) * step, (-step, step))


def _powers(masses: FloatArray, max_terms: int) -> list[FloatArray]:
    """Masses [n, j (k - 1) + 1] of the sums of j values, for each j <= `max_terms`, from [n, k]."""
    powers = [np.ones((len(masses), 1))]
    # Later rows have more points, so the rows before the first one with a mass here have none.
    has_mass = masses > 0.0
    firsts = np.where(has_mass.any(axis=0), has_mass.argmax(axis=0), len(masses))
    for _ in range(max_terms):
        power = powers[-1]
        longer = np.zeros((len(masses), power.shape[1] + masses.shape[1] - 1))
        for place in range(masses.shape[1]):
            first = firsts[place]
            moved = slice(place, place + power.shape[1])
            longer[first:, moved] += masses[first:, place : place + 1] * power[first:]
        powers.append(longer)
    return powers


@dataclass(frozen=True)
class FoldCurve:
    """The bound on the part with at least m runs, for one direction.

    Attributes:
        pair: the base's dominating pair.
        repetitions: the distribution of K.
        released: m, at least 2.
        reach: the largest epsilon of interest; the bound also holds for others.
        least: the smallest delta of interest; it also holds for others.
        levels: how often squares are cut at most; fewer are faster and give a larger bound.
        fine: whether the lattice is the fine one. Its bound is usually smaller, but larger if so
            many squares are open that they are not cut.
        simple: the bound by derivatives of phi in the same direction; this one is never larger.
    """

    pair: DominatingPair
    repetitions: Repetitions
    released: int
    reach: float
    least: float
    levels: int = _MAX_LEVEL
    fine: bool = False
    simple: BestRunsCurve | None = None

    def __post_init__(self) -> None:
        checks.validate(self, "fine", checks.flag)

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up."""
        on_lattice = self.delta_on_lattice(epsilon)
        # A curve on either lattice is a bound, so the smaller one is.
        return on_lattice if self.finer is None else min(on_lattice, self.finer.delta(epsilon))

    def delta_on_lattice(self, epsilon: float) -> float:
        """The same without a finer lattice, which takes a part of the time."""
        on_lattice = self.upper.delta(epsilon) * (1.0 + numerics.PROFILE_ACCURACY)
        return min(on_lattice, self.simple_delta(epsilon))

    def simple_delta(self, epsilon: float) -> float:
        """The same without folds."""
        return 1.0 if self.simple is None else self.simple.delta(epsilon)

    @cached_property
    def upper(self) -> ShiftedProfiles:
        """Chords of h over the points t."""
        return chords(self.pair, self._t, self._values.upper, self._most)

    @cached_property
    def lower(self) -> "_Smallest":
        """The same chords over the values of the best folds found, for the size of the error."""
        by_folds = chords(self.pair, self._t, self._values.lower, self._most)
        simple = () if self.simple is None else (self.simple.lower,)
        finer = () if self.finer is None else (self.finer.lower,)
        return _Smallest((by_folds, *simple, *finer))

    @cached_property
    def finer(self) -> "FoldCurve | None":
        """The curve on the fine lattice, if the lattice is finer and the work is little."""
        if self.levels < _MAX_LEVEL:
            return None
        curve = replace(self, fine=True)
        is_finer = curve._lattice[1] < self._lattice[1]
        return curve if is_finer and self._values.work <= _LITTLE_WORK else None

    @cached_property
    def _lattice(self) -> tuple[RatioLattice, float]:
        """The run and the spacing of log r."""
        atoms = self.pair.atoms(math.inf)
        if not len(atoms.loss):
            raise NotApplicable("a run must have outputs that are possible on both data sets")
        # Outputs that P' hardly gives may count as outputs that it never gives.
        negligible = max(_NEGLIGIBLE * self.least / max(self._factor, 1.0), 1e-300)
        below, above = np.cumsum(atoms.mass), np.cumsum(atoms.mass[::-1])[::-1]
        inner = (below > negligible) & (above > negligible)
        # `RatioLattice.of` moves the rest to smaller r, which only makes the run less private.
        loss = atoms.loss[inner] if inner.any() else atoms.loss
        per_deviation, most_places = _FINE if self.fine else _COARSE
        places = min(most_places, _MOST_PRODUCTS // self._others)
        spacing = max(atoms.deviation / per_deviation, float(np.ptp(loss)) / places, 1e-6)
        spacing = _common_step(loss) or spacing
        run = RatioLattice.of(self.pair, spacing, math.ceil(700.0 / spacing), negligible)
        return run, spacing

    @property
    def _others(self) -> int:
        return self.released - 1

    @cached_property
    def _sides(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """P- and P'-masses [2, n] of the outputs by r, r = 0 first, and the mass of P' alone."""
        run, spacing = self._lattice
        log_r = spacing * np.arange(run.first, run.last + 1)
        p = np.append(run.never, run.masses)
        q = np.append(0.0, run.masses * np.exp(log_r))
        alone = max(1.0 - float(q.sum()) + run.added[1], 0.0)
        ends = np.stack([np.append(0.0, np.cumsum(side)) for side in (p, q)])
        tops = np.stack([np.append(0.0, np.cumsum(side[::-1])) for side in (p, q)])
        tops[1] += alone
        return p, q, ends, tops

    @cached_property
    def _t(self) -> FloatArray:
        """Points t, over the ratios of a run around e^reach."""
        run, spacing = self._lattice
        low, high = self.reach * 0.8 + run.first * spacing, self.reach + run.last * spacing
        size = min(math.ceil((high - low) / spacing * _FINER) + 1, _MOST_POINTS)
        return np.exp(np.clip(np.linspace(low, high, max(size, _LEAST_POINTS)), -600.0, 600.0))

    @cached_property
    def _logged_t(self) -> _Logged:
        return _Logged.of(self._t)

    @cached_property
    def _scale(self) -> float:
        """The logarithm of phi^(m)(1)."""
        return float(log_derivative(self.repetitions, self.released, 0.0))

    @cached_property
    def _factor(self) -> float:
        """phi^(m)(1) / (m - 1)!, the unit of all gains."""
        return math.exp(self._scale - math.lgamma(self.released))

    @cached_property
    def _most(self) -> float:
        """An upper bound on h(0), the largest phi^(m)(1-s) s^(m-1) / (m-1)!."""
        s = np.concatenate([[0.0], np.geomspace(1e-12, 1.0, _CELLS), 1.0 - np.geomspace(0.9, 1e-9)])
        s = np.unique(s)
        with np.errstate(divide="ignore"):
            log_a = log_derivative(self.repetitions, self.released, np.log1p(-s)) - self._scale
        # Within a cell phi^(m)(1-s) is largest at its start, and s^(m-1) at its end.
        values = np.exp(log_a[:-1]) * s[1:] ** self._others
        return float(values.max()) * self._factor * (1.0 + _DERIVATIVES)

    def _events(self, u: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """s, rounded down, and s', rounded up, of folds with u points at the bottom, v on top."""
        _, _, ends, tops = self._sides
        added = self._lattice[0].added[0]
        sums = []
        for side in (0, 1):
            points = np.arange(ends.shape[1], dtype=np.float64)
            sums.append(np.interp(u, points, ends[side]) + np.interp(v, points, tops[side]))
        # The gain grows with phi^(m)(1-s) and falls with phi^(m)(1-s'), which both fall with their
        # s.
        s = np.maximum(sums[0] - added, 0.0) * (1.0 - _ROUNDING)
        return s, np.minimum(sums[1] * (1.0 + _ROUNDING), 1.0)

    def _slopes(self, x: FloatArray, order: int = 0) -> FloatArray:
        """phi^(m) at x, or its derivative, in units of phi^(m)(1)."""
        logs = log_derivative(self.repetitions, self.released + order, numerics.safe_log(x))
        return np.asarray(np.exp(np.minimum(logs - self._scale, 600.0)))

    def _ends(self, u: FloatArray, v: FloatArray) -> "_Ends":
        """The measures of all folds of different numbers of points at both ends."""
        p, q, _, _ = self._sides
        places = np.arange(len(p))
        u, v = np.unique(u), np.unique(v)
        low = np.clip(u[:, None] - places, 0.0, 1.0)
        high = np.clip(v[:, None] - places[::-1], 0.0, 1.0)
        return _Ends(u, v, low, high, (p, q), self._others)

    def _gains(
        self, folds: _Folds, index: IntArray, a: "_Logged", b: "_Logged", t: "_Logged"
    ) -> FloatArray:
        """The integral of [a - t b R]_+ over folds [n], rounded up, for numbers [n]."""
        return self._integrals(folds, index, self._lines_of_gain(a, b, t))

    def _lines_of_gain(self, a: "_Logged", b: "_Logged", t: "_Logged") -> "_Gain":
        """The functions [a - t b R]_+ of R, for numbers [n]."""
        run, spacing = self._lattice
        with np.errstate(invalid="ignore"):
            place = a.log - t.log
            place -= b.log
            place /= spacing
            place -= self._others * run.first
            np.floor(place, out=place)
            place += 1.0
        size = self._others * (len(run.masses) - 1) + 1
        # For a = b = 0 the logarithm is not a number, and the function is 0.
        place = np.fmin(np.fmax(place, 0.0, out=place), size, out=place)
        return _Gain(a.value, t.value * b.value, place.astype(np.int64))

    def _integrals(self, folds: _Folds, index: IntArray, gain: "_Gain") -> FloatArray:
        """The integrals over folds [n] of functions [n], rounded up."""
        at = index * folds.below.shape[1]
        at += gain.place
        # If rounding moves the place by one, a - t b R is nearly 0 there, which `_GAIN` covers.
        total = gain.a * folds.below.take(at)
        total *= 1.0 + _GAIN
        total -= gain.b * folds.below_with.take(at)
        return total

    @cached_property
    def _values(self) -> _Values:
        size = len(self._sides[0])
        squares = np.array([(i, j) for i in range(size - 1) for j in range(size - 1 - i)])
        pairs = None
        best = np.zeros(len(self._t))
        decided = np.zeros(len(self._t))
        work, per_square = 0, self._others**2 * size
        for level in range(self.levels + 1):
            open_squares, open_t, values = [], [], []
            work += len(squares) * per_square
            u, v = squares.T
            ends = self._ends(*(np.append(x, x + 1) / 2.0**level for x in (u, v)))
            for block, block_pairs in self._parts(squares, pairs):
                squares_now, t_now, upper = self._squares(block, block_pairs, level, best, ends)
                open_squares.append(squares_now)
                open_t.append(t_now)
                values.append(upper)
            corner, t_index, upper = (
                np.concatenate(open_squares),
                np.concatenate(open_t),
                np.concatenate(values),
            )
            # A square that is dropped is at most `_enough`, which the upper values below include.
            undecided = upper > self._enough(best)[t_index]
            corner, t_index, upper = corner[undecided], t_index[undecided], upper[undecided]
            is_last = level == self.levels or not len(upper) or 4 * len(upper) > _MOST_PAIRS
            if not is_last:
                # Each of these squares is cut into four.
                children = 2 * corner[:, None, :] + np.array(_CORNERS)
                squares, inverse = _unique(children.reshape(-1, 2))
                is_last = work + len(squares) * per_square > _MOST_WORK
            if is_last:
                np.maximum.at(decided, t_index, upper)
                break
            pairs = np.stack([inverse.ravel(), np.repeat(t_index, 4)])
        # h is falling, so a value at a smaller t is also a bound.
        upper = np.minimum.accumulate(np.maximum(self._enough(best), decided))
        return _Values(best * self._factor, upper * self._factor, work)

    def _enough(self, best: FloatArray) -> FloatArray:
        """Upper bounds [n] at which no square is cut further, from the best known folds [n].

        Delta weights h by the P-masses of outputs, so differences that are far below delta after
        this weighting hardly change it.
        """
        return best + _TOLERANCE * np.maximum(best, self._hardly_changes)

    @cached_property
    def _hardly_changes(self) -> FloatArray:
        """Differences of h at the points t that change no delta by more than `least`, in units.

        An output with ratio r has t = e^epsilon r, and its h is on a chord between two points. So
        the value at a point affects at most the outputs whose t, for an epsilon between half of
        `reach` and `reach`, is above the point before it and below the point after it.
        """
        run, spacing = self._lattice
        log_t = np.log(self._t)
        before, after = np.append(-math.inf, log_t[:-1]), np.append(log_t[1:], math.inf)
        log_r = spacing * np.arange(run.first, run.last + 1)
        above = np.append(np.cumsum(run.masses[::-1])[::-1], 0.0)
        below = np.append(0.0, np.cumsum(run.masses))
        from_top = above[np.searchsorted(log_r, before - self.reach)]
        from_bottom = below[np.searchsorted(log_r, after - 0.5 * self.reach, side="right")]
        mass = np.maximum(np.minimum(from_top, from_bottom) * len(log_t), 1e-300)
        return self.least / self._factor * np.maximum(1.0, 1.0 / mass)

    def _parts(
        self, squares: IntArray, pairs: IntArray | None
    ) -> Iterator[tuple[IntArray, IntArray | None]]:
        """Squares [n, 2] in parts, with the (square, t) [2, n] to compute; None means every t."""
        length = self._others * len(self._sides[0])
        rows = max(_CHUNK // (4 * length), 1)
        if pairs is not None:
            pairs = pairs[:, np.argsort(pairs[0], kind="stable")]
        for start in range(0, len(squares), rows):
            block = squares[start : start + rows]
            if pairs is None:
                yield block, None
                continue
            low, high = np.searchsorted(pairs[0], [start, start + len(block)])
            yield block, pairs[:, low:high] - np.array([[start], [0]])

    def _squares(
        self,
        squares: IntArray,
        pairs: IntArray | None,
        level: int,
        best: FloatArray,
        ends: _Ends,
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Squares, indices of t, and upper bounds for the squares that may exceed `best`.

        `best` is updated with the values of two corners.
        """
        corners = (squares[:, None, :] + np.array(_CORNERS)).reshape(-1, 2)
        points, inverse = _unique(corners)
        inverse = inverse.reshape(-1, 4)
        u, v = points.T / 2.0**level
        s, s_with = self._events(u, v)
        folds = ends.folds(u, v)
        a, b = self._slopes(1.0 - s), self._slopes(1.0 - s_with)
        logged_a, logged_b, logged_t = _Logged.of(a), _Logged.of(b), self._logged_t
        if pairs is None:
            index, t_index = (
                axis_index.ravel() for axis_index in np.indices((len(squares), len(self._t)))
            )
        else:
            index, t_index = pairs
        # Values of folds at two corners, which are attained on the lattice.
        for corner in (0, 3):
            fold = inverse[index, corner]
            value = self._gains(folds, fold, logged_a[fold], logged_b[fold], logged_t[t_index])
            np.maximum.at(best, t_index, value)
        # The largest measure with the largest a and the smallest b is a bound of first order.
        best_corner, worst_corner = inverse[index, 0], inverse[index, 3]
        simple = self._gains(
            folds, worst_corner, logged_a[best_corner], logged_b[worst_corner], logged_t[t_index]
        )
        simple *= 1.0 + _DERIVATIVES
        keep = simple > self._enough(best)[t_index]
        index, t_index, simple = index[keep], t_index[keep], simple[keep]
        a_lines, b_lines = self._lines(inverse, s, s_with, a, b)
        sharp = self._second_order(folds, inverse, a_lines, b_lines, index, t_index)
        return squares[index], t_index, np.minimum(simple, sharp)

    def _lines(
        self, inverse: IntArray, s: FloatArray, s_with: FloatArray, a: FloatArray, b: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Linear bounds above a and below b, at the corners [squares, 4]."""
        start_corner, end_corner = inverse[:, 0], inverse[:, 3]
        # a is convex in s, so the chord is above it.
        width = (s[end_corner] - s[start_corner])[:, None]
        share = np.where(
            width > 0.0, (s[inverse] - s[start_corner][:, None]) / np.maximum(width, 1e-300), 0.0
        )
        above = a[start_corner][:, None] * (1.0 - share) + a[end_corner][:, None] * share
        above += _DERIVATIVES * a[start_corner][:, None]
        # b is convex in s', so every tangent is below it. One that becomes negative is useless.
        middle = 0.5 * (s_with[start_corner] + s_with[end_corner])
        touching = np.stack([middle, s_with[end_corner]])
        value, slope = self._slopes(1.0 - touching), self._slopes(1.0 - touching, order=1)
        lines = value[..., None] - slope[..., None] * (s_with[inverse] - touching[..., None])
        lines -= _DERIVATIVES * (lines[..., :1] + value[..., None])
        below = np.where(
            (lines[0] >= 0.0).all(axis=1)[:, None], lines[0], np.maximum(lines[1], 0.0)
        )
        return above, below

    def _second_order(
        self,
        folds: _Folds,
        inverse: IntArray,
        a: FloatArray,
        b: FloatArray,
        index: IntArray,
        t_index: IntArray,
    ) -> FloatArray:
        """Bounds on all folds in squares, for pairs of a square and t.

        The value is at most the sum of lambda_c lambda_d G(c, d) with the bilinear weights lambda,
        where G(c, d) has the measure of corner c and the lines at corner d. That is at most the
        largest G(c, c) plus 3/8 of the largest G(c, d) + G(d, c) - G(c, c) - G(d, d).
        """
        t = self._logged_t[t_index]
        fold = inverse[index].T.copy()
        # One array for each corner, so that its values are next to each other.
        line_a = [_Logged.of(at_corner)[index] for at_corner in a.T]
        line_b = [_Logged.of(at_corner)[index] for at_corner in b.T]

        lines = [self._lines_of_gain(*pair, t) for pair in zip(line_a, line_b, strict=True)]

        def gain(c: int, d: int) -> FloatArray:
            return self._integrals(folds, fold[c], lines[d])

        equal = [gain(c, c) for c in range(4)]
        mixed = np.zeros(len(index))
        for c, d in _SIDES:
            np.maximum(mixed, gain(c, d) + gain(d, c) - equal[c] - equal[d], out=mixed)
        return np.asarray(np.max(equal, axis=0) + 0.375 * mixed)


def _unique(places: IntArray) -> tuple[IntArray, IntArray]:
    """The different rows of `places` [n, 2], sorted, and the index of each row among them."""
    width = int(places.max(initial=0)) + 1
    numbers, inverse = np.unique(places[:, 0] * width + places[:, 1], return_inverse=True)
    return np.stack([numbers // width, numbers % width], axis=1), inverse.ravel()


def _common_step(loss: FloatArray) -> float:
    """The spacing of a lattice that contains few losses [n]; 0 if there is none."""
    sizes = np.abs(loss[np.abs(loss) > 1e-9])
    if not 0 < len(sizes) <= 16:
        return 0.0
    step = float(sizes.min())
    multiples = sizes / step
    exact = np.abs(multiples - np.rint(multiples)).max() < 1e-9 and multiples.max() <= _COARSE[1]
    return step if exact else 0.0


def _curves(
    base: Mechanism, protocol: BestRuns, reach: float, delta: float, levels: int = _MAX_LEVEL
) -> list[FoldCurve]:
    """One curve for each direction of the base; none if K is always below m."""
    repetitions, m = protocol.repetitions, protocol.released
    if not 2 <= m <= _MOST_RELEASED:
        raise NotApplicable(f"from 2 to {_MOST_RELEASED} runs must be released")
    if not math.isfinite(reach):
        raise NotApplicable("the bound by derivatives of phi must reach delta")
    # In each direction the smaller bound counts. Rare outputs with far ratios make the lattice
    # coarse, and then folds can give the larger bound in one of the directions.
    return [
        FoldCurve(curve.pair, repetitions, m, reach, delta, levels, simple=curve)
        for curve in best_runs_curves(base, protocol)
    ]


def _exceeds(base: Mechanism, protocol: BestRuns, delta: float, epsilon: float) -> bool:
    """Whether folds at lattice points already show that the bound gains less than 0.2 %."""
    worthwhile = (1.0 - _WORTHWHILE) * epsilon
    curves = _curves(base, protocol, epsilon, delta, levels=0)
    by_folds = max((curve.lower.delta(worthwhile) for curve in curves), default=0.0)
    return fewer_runs(base, protocol)(worthwhile) + by_folds > delta


@numerics.memoize(4)
def _certified(base: Mechanism, protocol: BestRuns, delta: float) -> list[FoldCurve]:
    """The curves for one delta, which certificates also use at other deltas."""
    reach = best_at_other_delta(base, protocol, delta, delta).epsilon
    return _curves(base, protocol, reach, delta)


def _expected(
    base: Mechanism, protocol: BestRuns, curves: list[FoldCurve], delta: float
) -> float | None:
    """The epsilon that a certificate states, if it is that of the curves.

    A finer lattice is used only for the direction that costs most, if at all.
    """
    fewer = functools.cache(fewer_runs(base, protocol))

    def with_fewer(profile: Callable[[float], float]) -> Callable[[float], float]:
        return lambda epsilon: fewer(epsilon) + profile(epsilon)

    return expected_result(
        [with_fewer(curve.delta) for curve in curves] or [fewer],
        delta,
        [(with_fewer(curve.simple_delta), with_fewer(curve.delta_on_lattice)) for curve in curves],
    )


def _at_other_delta(
    base: Mechanism, protocol: BestRuns, delta: float, certified: float
) -> BoundValue:
    """The value of the curves for another delta, which are valid for every delta."""
    curves = _certified(base, protocol, certified)
    expected = _expected(base, protocol, curves, delta)
    if expected is not None:
        return BoundValue(expected)
    return BoundValue(solve_epsilon(delta_of_both(base, protocol, curves), delta))


@bound(
    "best-folds",
    105,
    "bound by folds: the best m - 1 runs are preferred to the m-th",
    about=("any base",),
    protocol=BestRuns,
    exceeds=_exceeds,
    deferred=True,
    at_other_delta=_at_other_delta,
    title=r"$\varepsilon_U$ best m, folds (any score)",
)
def best_folds(base: Mechanism, protocol: BestRuns, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = BestRuns("tnb:1,0.05", released=3)
        >>> round(best_folds(GaussianMechanism(0.24721), protocol, 1e-5).epsilon, 2)
        3.26
    """
    curves = _certified(base, protocol, delta)
    expected = _expected(base, protocol, curves, delta)
    if expected is not None:
        # A certificate states no error, so the exact value may be anything up to the expected one.
        return BoundValue(expected, error=expected)
    value = with_fewer_runs(base, protocol, curves, delta)
    # Equal bounds have equal values, so that the simpler one is named.
    reach = max((curve.reach for curve in curves), default=value.epsilon)
    gains = value.epsilon < (1.0 - numerics.PROFILE_ACCURACY) * reach
    return value if gains else replace(value, epsilon=max(value.epsilon, reach))
