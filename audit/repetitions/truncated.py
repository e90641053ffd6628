"""A limit on the number of runs."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.repetitions.base import Array, Repetitions

LONGEST = 1_000_000
_POWERS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Truncated(Repetitions):
    """A law conditioned on K <= most: a limit on the number of runs (Papernot & Steinke, lemma 22).

    Attributes:
        law: the law before conditioning.
        most: the largest number of runs allowed, up to a million.
    """

    law: Repetitions
    most: int

    def __post_init__(self) -> None:
        most = checks.whole("most", self.most, 1, LONGEST)
        checks.keep(self, most=most)
        if self.law.untruncated is not self.law:
            raise ValueError(f"law must not be truncated twice, got {self.law.spec!r}")
        if not np.isfinite(self._log_weights).any():
            raise ValueError(
                f"most must leave {self.law.spec} a possible number of runs, got {self.most}"
            )

    @property
    def spec(self) -> str:
        return f"{self.law.spec}@{self.most}"

    @cached_property
    def _log_weights(self) -> Array:
        return self.law.log_pmf(np.arange(self.most + 1.0))

    @cached_property
    def _pmf(self) -> Array:
        weights = np.exp(self._log_weights - np.max(self._log_weights))
        return weights / weights.sum()

    @property
    def untruncated(self) -> Repetitions:
        return self.law

    @cached_property
    def log_kept(self) -> float:
        return min(float(special.logsumexp(self._log_weights)), 0.0)

    @cached_property
    def mean(self) -> float:
        return float(self._pmf @ np.arange(self.most + 1.0))

    @property
    def probability_of_none(self) -> float:
        return float(self._pmf[0])

    def log_pmf(self, k: ArrayLike) -> Array:
        possible = np.asarray(k) <= self.most
        return np.where(possible, self.law.log_pmf(k) - self.log_kept, -np.inf)

    @staticmethod
    def _log_polynomial(coefficients: Array, log_x: ArrayLike) -> Array:
        """log sum_j c_j x^j for c_j >= 0; every term is positive, so nothing cancels.

        Paterson & Stockmeyer's scheme: blocks of about sqrt(n) powers by one matrix product, the
        blocks by Horner's rule.
        """
        log_x = np.asarray(log_x, dtype=np.float64)
        first = int(np.flatnonzero(coefficients)[0])
        wanted = coefficients[first:]
        width = math.isqrt(len(wanted) - 1) + 1
        blocks = np.zeros((math.ceil(len(wanted) / width), width))
        blocks.ravel()[: len(wanted)] = wanted
        x = np.exp(log_x).ravel()
        total = np.zeros_like(x)
        share = max(_POWERS_AT_ONCE // width, 1)
        for start in range(0, len(x), share):
            part = x[start : start + share]
            powers = np.cumprod(
                np.column_stack([np.ones_like(part), *[part] * (width - 1)]), axis=1
            )
            step = powers[:, -1] * part
            for block in (powers @ blocks.T).T[::-1]:
                total[start : start + share] = total[start : start + share] * step + block
        # The lowest power is factored out, so that x underflowing to 0 leaves a finite logarithm.
        return np.log(total).reshape(log_x.shape) + (first * log_x if first else 0.0)

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        return np.minimum(self._log_polynomial(self._pmf, log_x), 0.0)

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        # 1 - phi(x) = (1 - x) sum_j P[K > j] x^j: no cancellation.
        more_than = np.cumsum(self._pmf[::-1])[::-1][1:]
        log_sum = self._log_polynomial(np.asarray(more_than), log_x)
        return np.clip(-np.expm1(log_x) * np.exp(log_sum), 0.0, 1.0)

    def some_phi_at(self, log_x: ArrayLike) -> Array:
        possible = np.concatenate([[0.0], self._pmf[1:]])
        return np.minimum(np.exp(self._log_polynomial(possible, log_x)), 1.0)

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        return self._log_polynomial((self._pmf * np.arange(self.most + 1.0))[1:], log_x)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.choice(self.most + 1, size=size, p=self._pmf).astype(np.int64)

    def given_no_failure(self, failure: float) -> Repetitions:
        return Truncated(self.law.given_no_failure(failure), self.most)

    @property
    def means(self) -> tuple[float, float]:
        return self.law.means

    def with_mean(self, mean: float) -> Repetitions:
        return Truncated(self.law.with_mean(mean), self.most)
