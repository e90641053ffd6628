"""Sums of up to a million powers, sum_j c_j x^j, evaluated at many x at once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray

from audit.numerics import FLOAT_ROUNDING

Array = NDArray[np.float64]

# So many products of a power and a coefficient are made at once: 16 MB.
_AT_ONCE = 2_000_000
# Smaller shares of the largest coefficient count as 0: below 1e-308 numbers lose their digits.
_LEAST = 1e-290
# Chebyshev nodes of a piece, and how short a piece may become in log(-log x).
_NODES = 16
_SHORTEST = 1e-3
# Values are interpolated where a table costs less than all of them would.
_WORTHWHILE = 50_000_000


@dataclass(frozen=True, eq=False)
class PowerSum:
    """log sum_j c_j x^j for c_j >= 0, from log x: every term is positive, so nothing cancels.

    As a function of log(-log x) it is smooth: where many values of many terms are asked for, they
    are interpolated from pieces of a table, split until the last coefficients are rounding.

    Attributes:
        coefficients: c_j [n], not all 0.
    """

    coefficients: Array

    @cached_property
    def _kept(self) -> Array:
        """The coefficients, without those that have lost digits: they are next to no number."""
        return np.where(
            self.coefficients > _LEAST * self.coefficients.max(), self.coefficients, 0.0
        )

    @cached_property
    def _first(self) -> int:
        """The lowest power, factored out, so that x underflowing to 0 leaves a finite logarithm."""
        return int(np.flatnonzero(self._kept)[0])

    @cached_property
    def _blocks(self) -> Array:
        """The coefficients from the lowest power on, [blocks, width]: power i width + j."""
        kept = np.trim_zeros(self._kept)
        width = int(np.sqrt(len(kept) - 1)) + 1
        blocks = np.zeros((-(-len(kept) // width), width))
        blocks.ravel()[: len(kept)] = kept
        return blocks

    def __call__(self, log_x: ArrayLike) -> Array:
        """The logarithm at log x <= 0, of any shape."""
        log_x = np.asarray(log_x, dtype=np.float64)
        flat = log_x.ravel()
        within = self._interpolated if flat.size * self._blocks.size > _WORTHWHILE else self._exact
        lowest = self._first * flat if self._first else 0.0
        return (within(flat) + lowest).reshape(log_x.shape)

    def _exact(self, log_x: Array) -> Array:
        """log sum_ij c_ij x^(i width) x^j: one matrix product, powers from one exponential each."""
        rows, width = self._blocks.shape
        share = max(_AT_ONCE // (rows + width), 1)
        found = np.empty(len(log_x))
        with np.errstate(invalid="ignore"):
            for start in range(0, len(log_x), share):
                part = log_x[start : start + share, None]
                inner, outer = np.arange(width) * part, np.arange(rows) * width * part
                inner[:, 0] = outer[:, 0] = 0.0  # not 0 times minus infinity
                sums = np.exp(inner) @ self._blocks.T
                found[start : start + share] = np.log(np.einsum("ni,ni->n", sums, np.exp(outer)))
        return found

    @cached_property
    def _range(self) -> tuple[float, float]:
        """log(-log x) from where all powers are 1 to rounding, to where only the lowest is left."""
        terms = float(self._blocks.size)
        ratio = float(np.log(self._blocks.max()) - np.log(self._blocks[0, 0]))
        return float(np.log(1e-5 / terms)), float(np.log(40.0 + np.log(terms) + ratio))

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Ends of pieces [m+1], and Chebyshev coefficients [m, nodes] of each."""
        points = chebyshev.chebpts1(_NODES)
        fit = np.linalg.inv(chebyshev.chebvander(points, _NODES - 1))
        low, high = self._range
        ends = np.linspace(low, high, max(int(high - low), 1) + 1)
        left, right = ends[:-1], ends[1:]
        lefts, tables = [], []
        while len(left):
            middle, half = 0.5 * (left + right), 0.5 * (right - left)
            at = middle[:, None] + half[:, None] * points
            values = self._exact(-np.exp(at).ravel()).reshape(at.shape)
            table = values @ fit.T
            done = np.abs(table[:, -3:]).max(axis=1) <= FLOAT_ROUNDING * (
                1.0 + np.abs(values).max(axis=1)
            )
            done |= half < _SHORTEST
            lefts.append(left[done])
            tables.append(table[done])
            left, middle, right = left[~done], middle[~done], right[~done]
            left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        order = np.argsort(np.concatenate(lefts))
        return np.append(np.concatenate(lefts)[order], high), np.concatenate(tables)[order]

    def _interpolated(self, log_x: Array) -> Array:
        with np.errstate(divide="ignore"):
            at = np.log(-log_x)
        low, high = self._range
        ends, table = self._table
        inside = (at > low) & (at < high)
        piece = np.clip(np.searchsorted(ends, at[inside], side="right") - 1, 0, len(table) - 1)
        left, right = ends[piece], ends[piece + 1]
        t = (2.0 * at[inside] - left - right) / (right - left)
        # Clenshaw's recurrence, every value with the coefficients of its piece.
        one, two = np.zeros_like(t), np.zeros_like(t)
        for column in table.T[:0:-1]:
            one, two = column[piece] + 2.0 * t * one - two, one
        found = np.empty_like(at)
        found[inside] = table[piece, 0] + t * one - two
        found[at >= high] = np.log(self._blocks[0, 0])
        near = at <= low
        # sum c_j e^(-j s) = sum c_j (1 - j s + j^2 s^2/2 - ...), j s below 1e-5.
        total, first, second = self._moments
        s = -log_x[near]
        found[near] = np.log(total) + np.log1p(-first * s + 0.5 * second * s * s)
        return found

    @cached_property
    def _moments(self) -> tuple[float, float, float]:
        c = self._blocks.ravel()
        j = np.arange(float(len(c)))
        total = float(c.sum())
        return total, float(c @ j) / total, float(c @ (j * j)) / total
