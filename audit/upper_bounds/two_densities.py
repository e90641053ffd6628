"""One more run of adaptive search, when only a part of the candidates can have the density C.

The density of the next candidate has mean 1 under the prior. So it cannot be C for every candidate
that would be worse than the winner, as the operator of proposition 11 allows. Proposition 26 of
docs/theory.md bounds the contribution of the next run by densities C on prior mass (1-c)/(C-c) and
c elsewhere, for any threshold eta.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from audit import numerics
from audit.arrays import FloatArray

# Points of t in a block of a matrix product, and values in the processor cache at once.
_BLOCK, _CHUNK = 64, 1 << 13
# Thresholds are searched anew once the number of runs is smaller by this factor.
_REFRESH = 0.85
# Larger logarithms of t are lowered to this one: lines a - b t only become larger.
_LARGEST_LOG = 600.0
# Probability of the outputs that a threshold may replace, relative to the smallest that is needed.
_MARGIN = 2.0


@dataclass(frozen=True)
class EndLines:
    """Lines above the contribution of winners at both ends of cells.

    The probability that a run is worse is a linear function of s without the record, and at least a
    convex one with the record, which is above a tangent.
    """

    largest: FloatArray  # largest probability [2 m] that a run is worse, without the record
    smallest: (
        FloatArray  # smallest probability [m] that it is worse, with the record, in the middle
    )
    slope: FloatArray  # its slope [m]
    offset: FloatArray  # s at both ends minus s in the middle [2 m]

    @staticmethod
    def of(log_left: FloatArray, log_left_with: FloatArray, low: float, high: float) -> "EndLines":
        """Lines for events at the start, the middle and the end of cells [3, m]."""
        by_high, by_low = high * np.exp(log_left), 1.0 + low * np.expm1(log_left)
        largest = np.where(by_high[1] < by_low[1], by_high, by_low)[[0, 2]]
        # Differences of 1 - s' keep their digits where s' is close to 1.
        rises, rises_with = _falls(log_left), _falls(log_left_with)
        offset = np.stack([-rises[0], rises[1]])
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            before, after = rises_with / rises
        # Where s' jumps, no line is known to be above it, and the line of b is 0.
        finite = np.isfinite(before) & np.isfinite(after)
        before, after = np.where(finite, before, 0.0), np.where(finite, after, 0.0)
        # s' is concave: beyond the middle it is below both chords, extended.
        rise = 0.5 * (before + after)
        above = np.abs(before - after) * rises.max(axis=0)
        left_with = np.exp(log_left_with[1]) - above
        by_low = low * left_with
        by_high = 1.0 - high * (1.0 - left_with) - numerics.FLOAT_ROUNDING * high
        smallest = np.where(finite, np.maximum(by_low, by_high), 0.0)
        slope = np.where(by_high > by_low, high, low) * -rise
        slope = np.where(smallest > 0.0, slope, 0.0)
        return EndLines(
            np.minimum(largest.T.ravel() * (1.0 + numerics.FLOAT_ROUNDING), 1.0),
            np.maximum(smallest, 0.0) * (1.0 - numerics.FLOAT_ROUNDING),
            slope,
            offset.T.ravel(),
        )

    def at_ends(self, b: FloatArray, slope: FloatArray) -> FloatArray:
        """b at both ends [2, 2 m], by the tangents [2, m] in the middle, rounded down."""
        m = b.shape[1]
        change = np.repeat(slope, 2, axis=1) * self.offset[: 2 * m]
        size = np.repeat(b, 2, axis=1)
        return size + change - numerics.SUM_ROUNDING * (size + np.abs(change))


class TwoDensities:
    """The operator of proposition 26 for both ends of several cells of winners, rounded up.

    Both ends of a cell use the same thresholds, so that every value is a convex function of the
    probability that a run is better. No winner in the cell has a larger value than both ends.

    Args:
        places: log r of the outputs [k], in units of the spacing of log t, increasing by 1.
        masses: P-probabilities [k] of the outputs.
        never: P-probability of r = 0.
        t: the lattice [n] of likelihood ratios.
        better: probabilities [2 m], without the record, that a run with a candidate from the prior
            is better than the winner: both ends of each of m cells.
        low: c.
        high: C.
    """

    def __init__(
        self,
        places: FloatArray,
        masses: FloatArray,
        never: float,
        t: FloatArray,
        better: FloatArray,
        low: float,
        high: float,
    ) -> None:
        ratio = t[1] / t[0]
        lowest, highest = int(places[0]), int(places[-1])
        self._low, self._high, self._ends = low, high, (high, low)
        self._share = (1.0 - low) / (high - low) if low < 1.0 < high else 1.0
        self._never, self._t, self._better = never, t, better
        self._lower = t[0] * ratio ** np.arange(lowest, 0)
        # The last block may reach beyond the lattice.
        self._blocks = -(-len(t) // _BLOCK)
        spare = self._blocks * _BLOCK - len(t)
        # Its values are not used; they are finite, because infinite ones would make others invalid.
        beyond = np.log(t[-1]) + np.log(ratio) * np.arange(1, highest + 1 + spare)
        self._upper = np.exp(np.minimum(beyond, _LARGEST_LOG))
        # Thresholds replace only outputs with large r, from the output `start` on.
        needed = _MARGIN * better.max() / min(self._share, 1.0 - self._share or 1.0)
        above = np.cumsum(masses[::-1])[::-1]
        start = max(int(np.count_nonzero(above >= min(needed, above[0]))) - 1, 0)
        self._start, self._taps = start, len(masses)
        self._tail = masses[start:]
        self._kernel = np.zeros((_BLOCK + start, _BLOCK))
        for column in range(_BLOCK):
            self._kernel[column : column + start, column] = masses[:start]
        self._indices = np.zeros((2, len(better) // 2, len(t)), np.int64)
        self._densities = np.zeros((2, len(better) // 2, len(t)))
        self._next = np.inf

    def rounding(self, value: FloatArray, a: FloatArray) -> FloatArray:
        """The error of one step [2, 2 m], over 1 + t."""
        largest = np.maximum(np.abs(value).max(axis=2), a)
        return np.asarray((self._taps + 8) * np.finfo(float).eps * self._high * largest)

    def __call__(self, value: FloatArray, a: FloatArray, b: FloatArray, n: int) -> FloatArray:
        """The new values [2, 2 m, n], over 1 + t, from values over 1 + t and lines [2, 2 m]."""
        padded = self._padded(value, a, b)
        if n <= self._next:
            self._search(padded)
            self._next = _REFRESH * n
        share, low, high = self._share, self._low, self._high
        threshold = self._thresholds(padded)
        # Proposition 26 with eta = -threshold, which holds for every threshold. The factor of
        # `better` rounds -threshold * better up.
        zero = share * np.maximum(high * a[..., None], threshold)
        zero += (1.0 - share) * np.maximum(low * a[..., None], threshold)
        better = self._better[: value.shape[1], None]
        better = better * (1.0 - numerics.FLOAT_ROUNDING * np.sign(threshold))
        sums = self._never * zero - threshold * better
        sums += self._sums(
            padded.reshape(-1, padded.shape[2]), threshold.reshape(-1, value.shape[2])
        ).reshape(value.shape)
        sums /= 1.0 + self._t
        return np.asarray(sums)

    def capped(self, value: FloatArray, lines: FloatArray) -> FloatArray:
        """The values [2, 2 m, n], replaced by lines where these are smaller on average.

        Both ends of a cell are replaced or neither, so that the values stay convex functions of the
        probability that a run is better.
        """
        is_below = _of_both(lines).sum(axis=2) < _of_both(value).sum(axis=2)
        return np.where(np.repeat(is_below, 2, axis=1), lines, value)

    def _padded(self, value: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
        t = self._t
        values = value * (1.0 + t)
        # A convex function is below its chord from t = 0, a decreasing one below its last value.
        below = a[..., None] + (values[..., :1] - a[..., None]) * (self._lower / t[0])
        lines = a[..., None] - b[..., None] * self._upper
        last = np.broadcast_to(values[..., -1:], lines.shape)
        padded = np.concatenate([below, values, self.capped(last, lines)], axis=2)
        # Rounding and lines may leave values that increase; the largest ones beyond bound them.
        return np.ascontiguousarray(np.maximum.accumulate(padded[..., ::-1], axis=2)[..., ::-1])

    def _sums(self, padded: FloatArray, threshold: FloatArray) -> FloatArray:
        """The mean over outputs of the values or thresholds [k, n], of both densities."""
        share, start = self._share, self._start
        k, n = threshold.shape
        # Outputs before `start` are above the threshold for both densities, whose mean is 1, at
        # both ends of a cell. Between them the sum with the threshold is used, convex in s.
        blocks = _windows(padded, _BLOCK + start, self._blocks, _BLOCK)
        sums = (blocks @ self._kernel).reshape(k, -1)[:, :n]
        rows = max(_CHUNK // n, 1)
        for first in range(0, k, rows):
            block = slice(first, min(first + rows, k))
            by_high, by_low = (
                padded[block, start:] * (w * d)
                for w, d in zip((share, 1.0 - share), self._ends, strict=True)
            )
            limit, limit_low = share * threshold[block], (1.0 - share) * threshold[block]
            total, term, term_low = np.zeros_like(limit), np.empty_like(limit), np.empty_like(limit)
            # Small arrays stay in the cache of the processor, one output after another.
            for place, mass in enumerate(self._tail.tolist()):
                window = slice(place, place + n)
                np.maximum(by_high[:, window], limit, out=term)
                np.maximum(by_low[:, window], limit_low, out=term_low)
                term += term_low
                term *= mass
                total += term
            sums[block] += total
        return np.asarray(sums)

    def _thresholds(self, padded: FloatArray) -> FloatArray:
        """Thresholds [2, 2 m, n], the same for both ends of a cell."""
        n, of_ends = len(self._t), _of_both(padded)
        m = of_ends.shape[1]
        places = self._indices[:, :m] + np.arange(self._start, self._start + n)
        picked = np.take_along_axis(of_ends.mean(axis=2), places, axis=2)
        threshold = picked * self._densities[:, :m]
        if self._start > 0:
            before = of_ends[..., self._start - 1 : self._start - 1 + n].min(axis=2)
            np.minimum(threshold, self._low * before, out=threshold)
            np.minimum(threshold, self._high * before, out=threshold)
        return np.repeat(threshold, 2, axis=1)

    def _search(self, padded: FloatArray) -> None:
        """The best thresholds for the middle of every cell, as places where V attains them."""
        m, n = padded.shape[1] // 2, len(self._t)
        tail = self._tail[::-1]
        weights = np.concatenate([self._share * tail, (1.0 - self._share) * tail])
        better = self._better[: 2 * m].reshape(m, 2).mean(axis=1)
        for side, middle in enumerate(_of_both(padded).mean(axis=2)):
            values = _windows(middle[:, self._start :], len(tail), n)[..., ::-1]
            of_densities = np.concatenate([self._high * values, self._low * values], axis=-1)
            # Both parts increase, so a sort that merges sorted parts is fast.
            order = np.argsort(of_densities, axis=-1, kind="stable")
            mass = np.cumsum(weights[order], axis=-1)
            at = np.minimum((mass < better[:, None, None]).sum(axis=-1), mass.shape[-1] - 1)
            place = np.take_along_axis(order, at[..., None], axis=-1)[..., 0]
            self._densities[side, :m] = np.where(place < len(tail), self._high, self._low)
            self._indices[side, :m] = len(tail) - 1 - place % len(tail)

    def largest(
        self, lines: EndLines, chances: FloatArray, runs: NDArray[np.int64]
    ) -> tuple[FloatArray, FloatArray]:
        """The largest w - t w' of winners at both ends [m, 2, n] of cells, rounded up.

        Args:
            lines: lines above the contribution.
            chances: P[K = k] from k = 0 on.
            runs: the number of runs [m] that count for each cell, not increasing.

        Returns:
            The values, and a [m, 2] of the lines a - b t of the contribution of these runs.
        """
        t, low, high = self._t, self._low, self._high
        value = np.zeros((2, 2 * len(runs), len(t)))
        a, error = np.zeros((2, 2, 2 * len(runs)))
        b = np.zeros((2, len(runs)))
        slope = np.zeros((2, len(runs)))
        for n in range(int(runs.max()), -1, -1):  # after n runs
            m = int(np.count_nonzero(runs >= n))
            rows = 2 * m
            counted = value[:, :rows]
            after, rounding = counted[0].copy(), self.rounding(counted, a[:, :rows])
            counted[:] = self(counted, a[:, :rows], lines.at_ends(b[:, :m], slope[:, :m]), n)
            counted[0] += chances[n] * (1.0 - t) / (1.0 + t)
            counted[1] += np.maximum(high * after, low * after)
            first_a, first_b, first_slope = a[0, :rows], b[0, :m], slope[0, :m]
            more = np.stack([np.full(rows, chances[n]), high * first_a])
            a[:, :rows] = lines.largest[:rows] * a[:, :rows] + more
            more = np.stack([np.zeros(m), low * first_slope])
            slope[:, :m] = lines.smallest[:m] * slope[:, :m] + lines.slope[:m] * b[:, :m] + more
            more = np.stack([np.full(m, chances[n]), low * first_b])
            b[:, :m] = lines.smallest[:m] * b[:, :m] + more
            above = a[:, :rows, None] - lines.at_ends(b[:, :m], slope[:, :m])[..., None] * t
            counted[:] = self.capped(counted, above / (1.0 + t))
            # An operator never increases an earlier error: its masses sum to at most 1.
            error[1, :rows] += high * error[0, :rows]
            error[:, :rows] += rounding
        up = 4.0 * np.finfo(float).eps * float(runs.max()) + numerics.SUM_ROUNDING
        psi = (value[1] + (error[1] + up * a[1])[:, None]) * (1.0 + t)
        return psi.reshape(len(runs), 2, -1), a[1].reshape(-1, 2)


def _windows(values: FloatArray, width: int, number: int, step: int = 1) -> FloatArray:
    """Consecutive parts [k, number, width] of rows [k, n], without a copy."""
    rows, column = values.strides
    shape, strides = (len(values), number, width), (rows, step * column, column)
    return as_strided(values, shape, strides, writeable=False)


def _of_both(value: FloatArray) -> FloatArray:
    """Values [2, 2 m, n] as [2, m, 2, n]: both ends of each cell."""
    sides, rows, points = value.shape
    return value.reshape(sides, rows // 2, 2, points)


def _falls(logs: FloatArray) -> FloatArray:
    """Decreases [n-1, m] of decreasing values [n, m] that are given by logarithms."""
    with np.errstate(invalid="ignore"):
        falls = np.exp(logs[:-1]) * -np.expm1(np.diff(logs, axis=0))
    return np.where(np.isfinite(logs[:-1]), falls, 0.0)
