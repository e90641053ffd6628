"""Distributions of K with a maximum."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.arrays import FloatArray
from audit.errors import InvalidInput
from audit.repetitions.base import Repetitions, checked_generator
from audit.repetitions.power_sum import PowerSum

_MAX_SUPPORT = 1_000_000


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
