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
from audit.numerics import FloatArray

# Points of t in a block of a matrix product, and values of larger terms at once.
_BLOCK, _CHUNK = 16, 1 << 19
# OpenBLAS starts threads for matrix products of more multiplications than this.
_OF_ONE_THREAD = 1 << 18
_OF_ONE_VECTOR = 1 << 13  # and for products with a vector, of more than this
_FEW_OUTPUTS = 24  # up to which all outputs are tried at once
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

    Values are arrays [n, 2, 2, m]: points of the lattice, ends of a cell, before or after the best
    run, and cells. The points come first, so that one more output of a run is the same array, a few
    rows further on.

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
        # At least one point beyond the lattice, for values that a line bounds.
        lowest, highest = int(places[0]), max(int(places[-1]), 1)
        self._low, self._high, self._ends = low, high, (high, low)
        self._share = (1.0 - low) / (high - low) if low < 1.0 < high else 1.0
        self._never, self._t, self._better = never, t, better.reshape(-1, 2).T[:, None]
        self._weight = _of_points(1.0 / (1.0 + t))
        self._lower = _of_points(ratio ** np.arange(lowest, 0))  # relative to the first point
        # The last block may reach beyond the lattice.
        self._blocks = -(-len(t) // _BLOCK)
        spare = self._blocks * _BLOCK - len(t)
        # Its values are not used; they are finite, because infinite ones would make others invalid.
        beyond = np.log(t[-1]) + np.log(ratio) * np.arange(1, highest + 1 + spare)
        self._upper = _of_points(np.exp(np.minimum(beyond, _LARGEST_LOG)))
        # Thresholds replace only outputs with large r, from the output `start` on.
        needed = _MARGIN * better.max() / min(self._share, 1.0 - self._share or 1.0)
        above = np.cumsum(masses[::-1])[::-1]
        start = max(int(np.count_nonzero(above >= min(needed, above[0]))) - 1, 0)
        self._start, self._taps = start, len(masses)
        self._tail = masses[start:]
        # Masses of the outputs with each density, times the density.
        self._of_densities = np.concatenate(
            [self._share * high * self._tail, (1.0 - self._share) * low * self._tail]
        )
        self._kernel = np.zeros((_BLOCK, _BLOCK + start))
        for row in range(_BLOCK):
            self._kernel[row, row : row + start] = masses[:start]
        cells = len(better) // 2
        self._indices = np.zeros((len(t), 2, cells), np.int64)
        self._densities = np.zeros((len(t), 2, cells))
        self._picked = np.zeros((0, 0, 0), np.int64)
        self._larger = np.zeros(0)  # memory for the terms, used again in every step
        self._next = np.inf

    @property
    def work(self) -> float:
        """Values of one cell and run; an output that a threshold may replace counts a sixth."""
        return 4.0 * len(self._t) * (1.0 + len(self._tail) / 6.0)

    def rounding(self, values: FloatArray, a: FloatArray) -> FloatArray:
        """The error of one step [2, 2, m], over 1 + t."""
        relative = values * self._weight
        largest = np.maximum(np.abs(relative, out=relative).max(axis=0), a)
        return np.asarray((self._taps + 8) * np.finfo(float).eps * self._high * largest)

    def __call__(self, values: FloatArray, a: FloatArray, b: FloatArray, n: int) -> FloatArray:
        """The new values [n, 2, 2, m], from values below lines a - b t [2, 2, m]."""
        m = values.shape[3]
        padded = self._padded(values, a, b)
        if n <= self._next:
            self._search(padded)
            self._next = _REFRESH * n
        of_cells = self._thresholds(padded)
        threshold = of_cells[:, None].repeat(2, axis=1)
        # Proposition 26 with eta = -threshold, which holds for every threshold.
        sums = self._sums(padded, threshold)
        if self._never:
            sums += self._never * self._at_zero(a, of_cells)
        # The last term rounds -threshold * better up.
        of_cells -= numerics.FLOAT_ROUNDING * np.abs(of_cells)
        for end, better in enumerate(self._better[..., :m]):
            sums[:, end] -= of_cells * better
        return sums

    def _at_zero(self, a: FloatArray, threshold: FloatArray) -> FloatArray:
        """The mean over both densities, of outputs with r = 0, for values a [2, 2, m] there."""
        share, low, high = self._share, self._low, self._high
        if np.all(threshold.max(axis=0) <= low * a.min(axis=0)):  # as almost always
            return np.asarray((share * high + (1.0 - share) * low) * a)
        limit = threshold[:, None]
        zero = share * np.maximum(high * a, limit)
        return np.asarray(zero + (1.0 - share) * np.maximum(low * a, limit))

    def _padded(self, values: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
        """The values [k, 2, 2, m] at all points that one more run can reach."""
        below, beyond = len(self._lower), len(self._upper)
        padded = np.empty((below + len(values) + beyond, *a.shape))
        lower, inner, upper = padded[:below], padded[below:-beyond], padded[-beyond:]
        # A convex function is below its chord from t = 0, a decreasing one below its last value.
        np.multiply(values[0] - a, self._lower, out=lower)
        lower += a
        inner[:] = values
        upper[:] = values[-1]
        _cap(upper, a - b * self._upper)
        # Lines may leave values that increase; the largest ones beyond bound them.
        np.maximum(inner, upper[0], out=inner)
        np.maximum(lower, inner[0], out=lower)
        # So may rounding.
        if (padded[1:] > padded[:-1]).any():
            np.maximum.accumulate(padded[::-1], axis=0, out=padded[::-1])
        return padded

    def _sums(self, padded: FloatArray, threshold: FloatArray) -> FloatArray:
        """The mean over outputs of values or thresholds [n, 2, 2, m], for both densities."""
        start, tail = self._start, len(self._tail)
        n, rows = len(threshold), padded[0].size
        limits = threshold.reshape(-1)
        # Outputs before `start` are above the threshold for both densities, whose mean is 1, at
        # both ends of a cell. Between them the sum with the threshold is used, convex in s.
        flat = padded.reshape(len(padded), rows)
        blocks = _windows(flat, self._blocks, _BLOCK + start, _BLOCK)
        together = max(_OF_ONE_THREAD // self._kernel.size, 1)
        if together >= rows:
            products = self._kernel @ blocks
        else:
            parts = [blocks[..., at : at + together] for at in range(0, rows, together)]
            products = np.concatenate([self._kernel @ part for part in parts], axis=2)
        sums = products.reshape(-1, rows)[:n]
        # All other outputs at once: each is the same array, one row further on.
        values = _windows(flat[start:].reshape(-1), tail, n * rows, rows)
        limits_high, limits_low = limits / self._high, limits / self._low
        sums = sums.reshape(-1)
        together = min(max(_CHUNK // (2 * tail), 1), n * rows)
        width = max(_OF_ONE_VECTOR // (2 * tail), 1)
        if len(self._larger) < 2 * tail * (together + width):
            # The last columns may be beyond the terms; they are not used, but must be finite.
            self._larger = np.zeros(2 * tail * (together + width))
        for at in range(0, n * rows, together):
            part = slice(at, min(at + together, n * rows))
            number = -(-(part.stop - at) // width)
            terms = self._larger[: 2 * tail * number * width].reshape(2 * tail, number * width)
            np.maximum(values[:, part], limits_high[part], out=terms[:tail, : part.stop - at])
            np.maximum(values[:, part], limits_low[part], out=terms[tail:, : part.stop - at])
            columns = terms.reshape(2 * tail, number, width).transpose(1, 0, 2)
            sums[part] += (self._of_densities @ columns).reshape(-1)[: part.stop - at]
        return sums.reshape(n, *padded.shape[1:])

    def _thresholds(self, padded: FloatArray) -> FloatArray:
        """Thresholds [n, 2, m], the same for both ends of a cell."""
        start, (n, _, m) = self._start, (len(self._t), *padded.shape[2:])
        middle = _middle(padded[start:])
        if self._picked.shape != (n, 2, m):
            places = self._indices[..., :m] + np.arange(n)[:, None, None]
            self._picked = places * (2 * m) + np.arange(2 * m).reshape(2, m)
        threshold = middle.take(self._picked) * self._densities[..., :m]
        if start > 0:
            before = np.minimum(*padded[start - 1 : start - 1 + n].swapaxes(0, 1))
            np.minimum(threshold, self._low * before, out=threshold)
            np.minimum(threshold, self._high * before, out=threshold)
        return np.asarray(threshold)

    def _search(self, padded: FloatArray) -> None:
        """The best thresholds for the middle of every cell, as places where V attains them."""
        better = self._better[:, 0].mean(axis=0)
        m = padded.shape[3]
        for side, middle in enumerate(_middle(padded[self._start :]).transpose(1, 2, 0)):
            # The products of each density and all values [m, k], which increase backwards.
            by_high, by_low = (np.ascontiguousarray(d * middle[:, ::-1]) for d in self._ends)
            chosen = []
            for products, others, density in ((by_high, by_low, 0), (by_low, by_high, 1)):
                # Of the other density, the products from this place on are smaller; of two equal
                # ones, that of C counts as smaller.
                smaller = [
                    np.searchsorted(other, product, "right" if density else "left")
                    for other, product in zip(others, products, strict=True)
                ]
                place = (middle.shape[1] - np.stack(smaller))[:, ::-1]
                last = self._reached(place, density, better[:m, None])
                output = np.maximum(last, 0)
                at_last = self._ends[density] * np.take_along_axis(
                    middle, output + np.arange(len(self._t)), axis=1
                )
                chosen.append((output, np.where(last >= 0, at_last, np.inf)))
            (in_high, smallest_high), (in_low, smallest_low) = chosen
            # Without such an output, the largest product of all is the best.
            is_none = np.isinf(np.minimum(smallest_high, smallest_low))
            is_high = np.where(
                is_none, middle[:, : len(self._t)] > 0.0, smallest_high <= smallest_low
            )
            self._densities[:, side, :m] = np.where(is_high, self._high, self._low).T
            self._indices[:, side, :m] = np.where(is_high, in_high, in_low).T
        self._picked = np.zeros((0, 0, 0), np.int64)

    def _reached(
        self, place: NDArray[np.int64], density: int, better: FloatArray
    ) -> NDArray[np.int64]:
        """The last output [m, n] whose product and all smaller ones have the mass `better`.

        It is -1 if no output has as much.

        Args:
            place: the first value [m, k] whose product with the other density is smaller.
            density: 0 for outputs with the density C, and 1 for c.
            better: the mass [m, 1].
        """
        n, tail = len(self._t), len(self._tail)
        shares = self._share, 1.0 - self._share
        from_here = np.append(np.cumsum(self._tail[::-1])[::-1], 0.0)
        if tail > _FEW_OUTPUTS:
            # The mass falls from output to output, so halving finds the last one.
            first = np.arange(n)
            reached = np.zeros((len(place), n), np.int64)
            step = 1 << (tail.bit_length() - 1)
            while step:
                output = reached + (step - 1)
                inside = output < tail
                output = np.minimum(output, tail - 1)
                after = np.take_along_axis(place, output + first, axis=1) - first
                mass = (shares[1 - density] * from_here).take(np.clip(after, 0, tail))
                mass += (shares[density] * from_here).take(output)
                reached += step * (inside & (mass >= better))
                step >>= 1
            return reached - 1
        rows, column = place.strides
        shape = (len(place), n, tail)
        windows = as_strided(place, shape, (rows, column, column), writeable=False)
        after = np.clip(windows - np.arange(n)[:, None], 0, tail)
        mass = (shares[1 - density] * from_here).take(after)
        mass += shares[density] * from_here[:-1]
        return np.asarray((mass >= better[..., None]).sum(axis=-1) - 1)

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
        t, low, high, cells = _of_points(self._t), self._low, self._high, len(runs)
        values = np.zeros((len(t), 2, 2, 0))
        a, error, b_of_ends = np.zeros((3, 2, 2, cells))
        b, slope = np.zeros((2, 2, cells))
        largest_u = lines.largest.reshape(-1, 2).T[:, None]
        lost = (1.0 - self._t)[:, None, None]
        counting = np.searchsorted(-runs, -np.arange(runs.max() + 1), "right")
        m = 0
        for n, chance in reversed([*enumerate(chances[: len(counting)].tolist())]):  # after n runs
            if counting[n] > m:  # more cells
                m = int(counting[n])
                before, values = values, np.zeros((len(t), 2, 2, m))
                values[..., : before.shape[3]] = before
                a_m, b_m, slope_m, ends_m = a[..., :m], b[:, :m], slope[:, :m], b_of_ends[..., :m]
                error_m, u_m, smallest = error[..., :m], largest_u[..., :m], lines.smallest[:m]
                slope_of_smallest = lines.slope[:m]
            rounding = self.rounding(values, a_m)
            after = values[:, :, 0]
            values = self(values, a_m, ends_m, n)
            values[:, :, 0] += chance * lost
            values[:, :, 1] += np.maximum(high * after, low * after)
            more_a, more_b, more_slope = high * a_m[:, 0], low * b_m[0], low * slope_m[0]
            a_m *= u_m
            a_m[:, 0] += chance
            a_m[:, 1] += more_a
            slope_m *= smallest
            slope_m += slope_of_smallest * b_m
            slope_m[1] += more_slope
            b_m *= smallest
            b_m[0] += chance
            b_m[1] += more_b
            ends_m[:] = lines.at_ends(b_m, slope_m).reshape(2, m, 2).transpose(2, 0, 1)
            _cap(values, a_m - ends_m * t)
            # An operator never increases an earlier error: its masses sum to at most 1.
            error_m[:, 1] += high * error_m[:, 0]
            error_m += rounding
        up = 4.0 * np.finfo(float).eps * float(runs.max()) + numerics.SUM_ROUNDING
        psi = values[:, :, 1] + (error[:, 1] + up * a[:, 1]) * (1.0 + t[..., 0])
        return psi.transpose(2, 1, 0), a[:, 1].T


def _cap(values: FloatArray, lines: FloatArray) -> None:
    """Replaces values [n, 2, 2, m] by lines where these are smaller on average over both ends.

    Both ends of a cell are replaced or neither, so that the values stay convex functions of the
    probability that a run is better.
    """
    is_below = lines[:, 0] + lines[:, 1] < values[:, 0] + values[:, 1]
    if is_below.any():
        np.copyto(values, lines, where=is_below[:, None])


def _of_points(values: FloatArray) -> FloatArray:
    """Values [n] at the points as an array [n, 1, 1, 1]."""
    return values[:, None, None, None]


def _middle(values: FloatArray) -> FloatArray:
    """Means [n, 2, m] of values [n, 2, 2, m] over both ends of the cells."""
    return np.asarray(0.5 * (values[:, 0] + values[:, 1]))


def _windows(values: FloatArray, number: int, width: int, step: int) -> FloatArray:
    """Parts [number, width, ...] of values [n, ...], each `step` values further on, not copied."""
    first = values.strides[0]
    shape, strides = (number, width, *values.shape[1:]), (step * first, *values.strides)
    return np.ndarray(shape, values.dtype, values, 0, strides)


def _falls(logs: FloatArray) -> FloatArray:
    """Decreases [n-1, m] of decreasing values [n, m] that are given by logarithms."""
    with np.errstate(invalid="ignore"):
        falls = np.exp(logs[:-1]) * -np.expm1(np.diff(logs, axis=0))
    return np.where(np.isfinite(logs[:-1]), falls, 0.0)
