"""Distributions of K with a maximum, whose functions are polynomials of up to a million terms."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import FLOAT_ROUNDING, FloatArray, matrix_product, safe_log
from audit.repetitions.base import Repetitions, checked_generator

_MAX_SUPPORT = 1_000_000

# Products of a power and a coefficient per matrix product (16 MB).
_MAX_PRODUCTS = 2_000_000
# Coefficients below this share of the largest count as 0: denormal numbers are inaccurate.
_MIN_SHARE = 1e-290
# Chebyshev nodes of a piece, and the minimum length of a piece in log(-log x).
_NODES = 16
_MIN_LENGTH = 1e-3
# Above this number of products, a table with interpolation is faster.
_TABLE_FROM = 50_000_000


@dataclass(frozen=True, eq=False)
class PowerSum:
    """log sum_j c_j x^j for c_j >= 0, from log x; without cancellation.

    The sum is a smooth function of log(-log x). Many values of long sums are interpolated from a
    table of Chebyshev pieces, which are split until their last coefficients are rounding errors.
    """

    coefficients: FloatArray  # c_j [n], not all 0

    @cached_property
    def _kept(self) -> FloatArray:
        """The coefficients, with negligible and inaccurate ones set to 0."""
        return np.where(
            self.coefficients > _MIN_SHARE * self.coefficients.max(), self.coefficients, 0.0
        )

    @cached_property
    def _first(self) -> int:
        """The lowest power. It is factored out to keep the logarithm finite as x underflows."""
        return int(np.flatnonzero(self._kept)[0])

    @cached_property
    def _blocks(self) -> FloatArray:
        """The coefficients from the lowest power on, [blocks, width]: power i width + j."""
        coefficients = np.trim_zeros(self._kept)
        width = int(np.sqrt(len(coefficients) - 1)) + 1
        blocks = np.zeros((-(-len(coefficients) // width), width))
        blocks.ravel()[: len(coefficients)] = coefficients
        return blocks

    def __call__(self, log_x: ArrayLike) -> FloatArray:
        """The logarithm at log x <= 0, of any shape."""
        log_x = np.asarray(log_x, dtype=np.float64)
        flat = log_x.ravel()
        within = self._interpolated if flat.size * self._blocks.size > _TABLE_FROM else self._exact
        lowest = self._first * flat if self._first else 0.0
        return (within(flat) + lowest).reshape(log_x.shape)

    def _exact(self, log_x: FloatArray) -> FloatArray:
        """log sum_ij c_ij x^(i width) x^j, by one matrix product."""
        rows, width = self._blocks.shape
        share = max(_MAX_PRODUCTS // (rows + width), 1)
        log_sums = np.empty(len(log_x))
        with np.errstate(invalid="ignore"):
            for start in range(0, len(log_x), share):
                log_chunk = log_x[start : start + share, None]
                inner, outer = np.arange(width) * log_chunk, np.arange(rows) * width * log_chunk
                inner[:, 0] = outer[:, 0] = 0.0  # not 0 times minus infinity
                sums = matrix_product(np.exp(inner), self._blocks.T)
                log_sums[start : start + share] = np.log(np.einsum("ni,ni->n", sums, np.exp(outer)))
        return log_sums

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Range of log(-log x): below it all powers are 1; above it only the lowest remains."""
        terms = float(self._blocks.size)
        ratio = float(np.log(self._blocks.max()) - np.log(self._blocks[0, 0]))
        return float(np.log(1e-5 / terms)), float(np.log(40.0 + np.log(terms) + ratio))

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray]:
        """Ends of the pieces [m+1], and the Chebyshev coefficients [m, nodes] of each piece."""
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
            is_accurate = np.abs(table[:, -3:]).max(axis=1) <= FLOAT_ROUNDING * (
                1.0 + np.abs(values).max(axis=1)
            )
            is_accurate |= half < _MIN_LENGTH
            lefts.append(left[is_accurate])
            tables.append(table[is_accurate])
            left, middle, right = left[~is_accurate], middle[~is_accurate], right[~is_accurate]
            left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        order = np.argsort(np.concatenate(lefts))
        return np.append(np.concatenate(lefts)[order], high), np.concatenate(tables)[order]

    def _interpolated(self, log_x: FloatArray) -> FloatArray:
        at = safe_log(-log_x)
        low, high = self._range
        ends, table = self._table
        inside = (at > low) & (at < high)
        piece = np.clip(np.searchsorted(ends, at[inside], side="right") - 1, 0, len(table) - 1)
        left, right = ends[piece], ends[piece + 1]
        t = (2.0 * at[inside] - left - right) / (right - left)
        # Clenshaw's recurrence; each value uses the coefficients of its own piece.
        previous, before_previous = np.zeros_like(t), np.zeros_like(t)
        for column in table.T[:0:-1]:
            previous, before_previous = (
                column[piece] + 2.0 * t * previous - before_previous,
                previous,
            )
        log_sums = np.empty_like(at)
        log_sums[inside] = table[piece, 0] + t * previous - before_previous
        log_sums[at >= high] = np.log(self._blocks[0, 0])
        near = at <= low
        # sum c_j e^(-j s) = sum c_j (1 - j s + j^2 s^2/2 - ...), j s below 1e-5.
        total, first, second = self._moments
        s = -log_x[near]
        log_sums[near] = np.log(total) + np.log1p(-first * s + 0.5 * second * s * s)
        return log_sums

    @cached_property
    def _moments(self) -> tuple[float, float, float]:
        c = self._blocks.ravel()
        j = np.arange(float(len(c)))
        total = float(c.sum())
        return total, float(c @ j) / total, float(c @ (j * j)) / total


@dataclass(frozen=True)
class Truncated(Repetitions):
    """A distribution conditioned on K <= most (Papernot & Steinke 2022, lemma 22).

    Attributes:
        distribution: the distribution before conditioning.
        most: the largest number of runs, at most a million.

    Example:
        >>> from audit.repetitions import parse_repetitions
        >>> runs = parse_repetitions("tnb:0,0.01@100")
        >>> runs.most, round(runs.mean, 3)
        (100, 14.299)
    """

    distribution: Repetitions
    most: int

    def __post_init__(self) -> None:
        checks.validate(self, "most", checks.integer, 1, _MAX_SUPPORT)
        if self.distribution.untruncated is not self.distribution:
            raise InvalidInput(
                f"distribution must not be truncated already, got {self.distribution.spec!r}"
            )
        if not np.isfinite(self._log_weights).any():
            raise InvalidInput(
                f"most must leave {self.distribution.spec} a possible number of runs, "
                f"got {self.most}"
            )

    @property
    def spec(self) -> str:
        return f"{self.distribution.spec}@{self.most}"

    @property
    def words(self) -> str:
        return f"{self.distribution.words}, given that there are at most {self.most} runs"

    @cached_property
    def _log_weights(self) -> FloatArray:
        return self.distribution.log_pmf(np.arange(self.most + 1.0))

    @cached_property
    def _pmf(self) -> FloatArray:
        weights = np.exp(self._log_weights - np.max(self._log_weights))
        return weights / weights.sum()

    @property
    def untruncated(self) -> Repetitions:
        return self.distribution

    @cached_property
    def log_kept(self) -> float:
        return min(float(special.logsumexp(self._log_weights)), 0.0)

    @cached_property
    def mean(self) -> float:
        return float(self._pmf @ np.arange(self.most + 1.0))

    @property
    def probability_of_none(self) -> float:
        return float(self._pmf[0])

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        possible = np.asarray(k) <= self.most
        return np.where(possible, self.distribution.log_pmf(k) - self.log_kept, -np.inf)

    @cached_property
    def _phi(self) -> PowerSum:
        return PowerSum(self._pmf)

    @cached_property
    def _some_phi(self) -> PowerSum:
        return PowerSum(np.append(0.0, self._pmf[1:]))

    @cached_property
    def _slope(self) -> PowerSum:
        return PowerSum((self._pmf * np.arange(self.most + 1.0))[1:])

    @cached_property
    def _more_than(self) -> PowerSum:
        """1 - phi(x) = (1 - x) sum_j P[K > j] x^j, without cancellation."""
        return PowerSum(np.cumsum(self._pmf[::-1])[::-1][1:])

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return np.minimum(self._phi(log_x), 0.0)

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return np.clip(-np.expm1(log_x) * np.exp(self._more_than(log_x)), 0.0, 1.0)

    def some_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return np.minimum(np.exp(self._some_phi(log_x)), 1.0)

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        return self._slope(log_x)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        rng = checked_generator(rng)
        return rng.choice(self.most + 1, size=size, p=self._pmf).astype(np.int64)

    def _given_no_failure(self, failure: float) -> Repetitions:
        return Truncated(self.distribution.given_no_failure(failure), self.most)

    @property
    def means(self) -> tuple[float, float]:
        return self.distribution.means

    def with_mean(self, mean: float) -> Repetitions:
        return Truncated(self.distribution.with_mean(mean), self.most)
