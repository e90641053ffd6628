"""One more run of adaptive search, when only a part of the candidates can have the density C.

The density of the next candidate has mean 1 under the prior. So it cannot be C for every candidate
that would be worse than the winner, as the operator of proposition 11 allows. Proposition 26 of
docs/theory.md bounds the contribution of the next run by densities C on prior mass (1-c)/(C-c) and
c elsewhere, for any threshold eta.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from audit.arrays import FloatArray

# Points of t that share a threshold, and values in memory at once.
_BLOCK, _CHUNK = 8, 1 << 16
# Thresholds are searched anew once the number of runs is smaller by this factor.
_REFRESH = 0.85


class TwoDensities:
    """The operator of proposition 26 for several winners [m], rounded up.

    Args:
        places: log r of the outputs [k], in units of the spacing of log t, increasing by 1.
        masses: P-probabilities [k] of the outputs.
        never: P-probability of r = 0.
        t: the lattice [n] of likelihood ratios.
        better: smallest and largest probability [2, m], without the record, that a run with a
            candidate from the prior is better than the winner.
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
        first, last = int(places[0]), int(places[-1])
        self._low, self._high = low, high
        self._share = (1.0 - low) / (high - low) if low < 1.0 < high else 1.0
        self._masses, self._never, self._t, self._better = masses, never, t, better
        self._lower = t[0] * ratio ** np.arange(first, 0)
        # The last block may reach beyond the lattice.
        blocks = -(-len(t) // _BLOCK)
        self._blocks, self._taps = blocks, len(masses)
        self._spare = blocks * _BLOCK - len(t)
        self._upper = t[-1] * ratio ** np.arange(1, last + 1 + self._spare)
        width = _BLOCK + self._taps - 1
        self._kernel = np.zeros((width, _BLOCK))
        for column in range(_BLOCK):
            self._kernel[column : column + self._taps, column] = masses
        self._indices = np.zeros((2, better.shape[1], blocks), np.int64)
        self._labels = np.full((2, better.shape[1], blocks), -1)
        self._next = np.inf

    def rounding(self, value: FloatArray, a: FloatArray) -> FloatArray:
        """The error of one step [2, m], over 1 + t."""
        largest = np.maximum(np.abs(value).max(axis=2), a)
        return np.asarray((self._taps + 8) * np.finfo(float).eps * self._high * largest)

    def __call__(self, value: FloatArray, a: FloatArray, b: FloatArray, n: int) -> FloatArray:
        """The new values [2, m, n], over 1 + t, from values over 1 + t and lines a - b t [2, m]."""
        padded = self._padded(value, a, b)
        if n <= self._next:
            self._search(padded)
            self._next = _REFRESH * n
        out = np.empty(value.shape)
        m = value.shape[1]
        rows = max(_CHUNK // (self._blocks * len(self._kernel)), 1)
        for side in (0, 1):
            for start in range(0, m, rows):
                part = slice(start, min(start + rows, m))
                out[side, part] = self._chunk(padded[side, part], a[side, part], side, part)
        out /= 1.0 + self._t
        return out

    def _padded(self, value: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
        t = self._t
        values = value * (1.0 + t)
        # A convex function is below its chord from t = 0, a decreasing one below its last value.
        below = a[..., None] + (values[..., :1] - a[..., None]) * (self._lower / t[0])
        above = np.minimum(values[..., -1:], a[..., None] - b[..., None] * self._upper)
        return np.concatenate([below, values, above], axis=2)

    def _windows(self, padded: FloatArray) -> FloatArray:
        return sliding_window_view(padded, len(self._kernel), axis=-1)[..., ::_BLOCK, :]

    def _chunk(self, padded: FloatArray, a: FloatArray, side: int, part: slice) -> FloatArray:
        share, low, high = self._share, self._low, self._high
        windows = self._windows(padded)
        index, label = self._indices[side, part], self._labels[side, part]
        picked = np.take_along_axis(windows, (index + _BLOCK // 2)[..., None], axis=2)[..., 0]
        threshold = picked * np.choose(label + 1, (0.0, low, high))
        f = np.maximum(self._windows(padded * (share * high)), share * threshold[..., None])
        f += np.maximum(
            self._windows(padded * ((1.0 - share) * low)), (1.0 - share) * threshold[..., None]
        )
        sums = f.reshape(-1, f.shape[-1]) @ self._kernel
        sums = sums.reshape(*f.shape[:-1], _BLOCK)
        zero = share * np.maximum(high * a[:, None], threshold)
        zero += (1.0 - share) * np.maximum(low * a[:, None], threshold)
        least, most = self._better[:, part]
        better = np.where(threshold > 0.0, least[:, None], most[:, None])
        sums += (self._never * zero - threshold * better)[..., None]
        return sums.reshape(len(sums), -1)[:, : len(self._t)]

    def _search(self, padded: FloatArray) -> None:
        """The best thresholds at the middle of every block, as places where V attains them."""
        m = padded.shape[1]
        weights = np.concatenate([self._share * self._masses, (1.0 - self._share) * self._masses])
        middle = self._better.mean(axis=0)
        for side in (0, 1):
            for cell in range(m):
                windows = self._windows(padded[side, cell])
                values = windows[:, _BLOCK // 2 : _BLOCK // 2 + self._taps]
                both = np.concatenate([self._high * values, self._low * values], axis=1)
                order = np.argsort(both, axis=1)
                mass = np.cumsum(weights[order], axis=1)
                at = np.minimum((mass < middle[cell]).sum(axis=1), mass.shape[1] - 1)
                place = np.take_along_axis(order, at[:, None], axis=1)[:, 0]
                self._labels[side, cell] = np.where(place < self._taps, 1, 0)
                self._indices[side, cell] = place % self._taps
