"""Binomial K."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.numerics import FloatArray, format_exact
from audit.repetitions.base import (
    MAX_RUNS,
    ProfileTheorem,
    Repetitions,
    checked_generator,
    counts,
    format_spec,
)


@dataclass(frozen=True)
class Binomial(Repetitions):
    """Binomial(n, p) on k >= 0 (Koskela, Redberg & Wang 2024, theorem 5.7).

    Example:
        >>> Binomial(30, 0.5).mean
        15.0
    """

    n: int
    p: float

    def __post_init__(self) -> None:
        checks.validate(self, "n", checks.integer, 1, MAX_RUNS)
        checks.validate(self, "p", checks.interval, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        return format_spec("binomial", self.n, self.p)

    @property
    def words(self) -> str:
        chance = format_exact(self.p)
        return f"the binomial distribution of {self.n} trials with probability {chance}"

    @property
    def mean(self) -> float:
        return self.n * self.p

    @property
    def probability_of_none(self) -> float:
        return float(np.exp(self.log_phi_at(-np.inf)))

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        n, possible = counts(k)
        possible = possible & (n <= self.n)
        n = np.where(possible, n, 0.0)
        failures = self.n - n
        log_ways = special.gammaln(self.n + 1.0) - special.gammaln(n + 1.0)
        log_ways = log_ways - special.gammaln(failures + 1.0)
        log_p = log_ways + special.xlogy(n, self.p) + special.xlog1py(failures, -self.p)
        return np.where(possible, log_p, -np.inf)

    def _log_base(self, log_x: ArrayLike) -> FloatArray:
        """log(1 - p + p x)."""
        log_x = np.asarray(log_x, dtype=np.float64)
        return log_x if self.p == 1.0 else np.log1p(self.p * np.expm1(log_x))

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return self.n * self._log_base(log_x)

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return -np.expm1(self.n * self._log_base(log_x))

    def some_phi_at(self, log_x: ArrayLike) -> FloatArray:
        # (1-p+px)^n - (1-p)^n, relative to the first term.
        log_base = self._log_base(log_x)
        if self.p == 1.0:
            return np.exp(self.n * log_base)
        share = np.log1p(-self.p * np.exp(np.asarray(log_x) - log_base))
        return np.exp(self.n * log_base) * -np.expm1(self.n * share)

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        log_base = self._log_base(log_x)
        # 0 log(0) = 0 by convention.
        log_power = (self.n - 1.0) * log_base if self.n > 1 else np.zeros_like(log_base)
        return math.log(self.mean) + log_power

    def inverse_survival(self, y: ArrayLike) -> FloatArray:
        possible = np.minimum(np.asarray(y, dtype=np.float64), 1.0 - self.probability_of_none)
        with np.errstate(divide="ignore"):
            return np.clip(-np.expm1(np.log1p(-possible) / self.n) / self.p, 0.0, 1.0)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        rng = checked_generator(rng)
        return rng.binomial(self.n, self.p, size).astype(np.int64)

    def _given_no_failure(self, failure: float) -> Repetitions:
        return Binomial(self.n, self.p * (1.0 - failure) / (1.0 - self.p * failure))

    @property
    def means(self) -> tuple[float, float]:
        return 0.0, float(self.n)

    def with_mean(self, mean: float) -> Repetitions:
        mean = checks.interval("mean", mean, 0.0, 1e15)
        return Binomial(self.n, min(mean / self.n, 1.0))

    @property
    def profile_theorem(self) -> ProfileTheorem | None:
        if self.p == 1.0:
            return None

        def penalty(epsilon_1: FloatArray, delta_1: FloatArray) -> FloatArray:
            allowed = epsilon_1 >= np.log1p(self.p / (1.0 - self.p) * delta_1)
            growth = self.p * np.expm1(epsilon_1) + self.p * delta_1
            return np.where(allowed, (self.n - 1) * np.log1p(growth), np.inf)

        return ProfileTheorem("Koskela, Redberg & Wang 2024, theorem 5.7", penalty)
