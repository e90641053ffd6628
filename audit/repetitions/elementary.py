"""The elementary distributions of K: fixed, with two values, binomial, and Poisson."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.numerics import FloatArray, format_exact, safe_log
from audit.repetitions.base import (
    MAX_RUNS,
    Function,
    ProfileTheorem,
    RenyiTheorem,
    Repetitions,
    checked_generator,
    counts,
    format_spec,
    log_of_one_minus,
)


@dataclass(frozen=True)
class Fixed(Repetitions):
    """K = k: naive repetition, whose cost grows with k (Papernot & Steinke 2022, proposition 17).

    Example:
        >>> Fixed(10).pmf([9, 10]).tolist()
        [0.0, 1.0]
    """

    k: int
    probability_of_none: ClassVar[float] = 0.0
    means: ClassVar[tuple[float, float]] = (1.0, math.inf)

    def __post_init__(self) -> None:
        checks.validate(self, "k", checks.integer, 1, MAX_RUNS)

    @property
    def spec(self) -> str:
        return format_spec("fixed", self.k)

    @property
    def mean(self) -> float:
        return float(self.k)

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        return np.where(np.asarray(k) == self.k, 0.0, -np.inf)

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return self.k * np.asarray(log_x, dtype=np.float64)

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return -np.expm1(self.log_phi_at(log_x))

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        log_x = np.asarray(log_x, dtype=np.float64)
        if self.k == 1:
            return np.zeros_like(log_x)
        return math.log(self.k) + (self.k - 1) * log_x

    def inverse_survival(self, y: ArrayLike) -> FloatArray:
        return -np.expm1(log_of_one_minus(y) / self.k)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        rng = checked_generator(rng)
        return np.full(size, self.k, dtype=np.int64)

    def _given_no_failure(self, failure: float) -> Repetitions:
        return self

    def with_mean(self, mean: float) -> Repetitions:
        return Fixed(max(round(checks.interval("mean", mean, 0.0, 1e15)), 1))


@dataclass(frozen=True)
class TwoPoint(Repetitions):
    """K = 1 with probability s, else K = L (Xiang, Wang & Wang 2024, equation 21).

    Example:
        >>> TwoPoint(0.5, 11).mean
        6.0
    """

    s: float
    L: int
    probability_of_none: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        checks.validate(self, "s", checks.interval, 0.0, 1.0)
        checks.validate(self, "L", checks.integer, 2, MAX_RUNS)

    @property
    def spec(self) -> str:
        return format_spec("two-point", self.s, self.L)

    @property
    def words(self) -> str:
        return f"two values, 1 with probability {format_exact(self.s)} and {self.L} otherwise"

    @property
    def mean(self) -> float:
        return self.s + (1.0 - self.s) * self.L

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        k = np.asarray(k)
        return safe_log(np.where(k == 1, self.s, np.where(k == self.L, 1.0 - self.s, 0.0)))

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        log_x = np.asarray(log_x, dtype=np.float64)
        return np.logaddexp(math.log(self.s) + log_x, math.log1p(-self.s) + self.L * log_x)

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        log_x = np.asarray(log_x, dtype=np.float64)
        return -self.s * np.expm1(log_x) - (1.0 - self.s) * np.expm1(self.L * log_x)

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        log_many = math.log1p(-self.s) + math.log(self.L) + (self.L - 1) * np.asarray(log_x)
        return np.logaddexp(math.log(self.s), log_many)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        rng = checked_generator(rng)
        return np.where(rng.random(size) < self.s, 1, self.L).astype(np.int64)

    @property
    def means(self) -> tuple[float, float]:
        return self.s + 2.0 * (1.0 - self.s), math.inf

    def with_mean(self, mean: float) -> Repetitions:
        mean = checks.interval("mean", mean, 0.0, 1e15)
        return TwoPoint(self.s, max(round((mean - self.s) / (1.0 - self.s)), 2))


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


@dataclass(frozen=True)
class Poisson(Repetitions):
    """Poisson(mu) on k >= 0 (Papernot & Steinke 2022, definition 2 and theorem 6).

    Example:
        >>> round(Poisson(10.0).expected_quantile(), 4)
        0.9
    """

    mu: float
    means: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def __post_init__(self) -> None:
        checks.validate(self, "mu", checks.interval, 0.0, 1e15)

    @property
    def spec(self) -> str:
        return format_spec("poisson", self.mu)

    @property
    def words(self) -> str:
        return f"the Poisson distribution with mean {format_exact(self.mu)}"

    @property
    def mean(self) -> float:
        return self.mu

    @property
    def probability_of_none(self) -> float:
        return math.exp(-self.mu)

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        n, possible = counts(k)
        log_p = n * math.log(self.mu) - self.mu - special.gammaln(n + 1.0)
        return np.where(possible, log_p, -np.inf)

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return np.asarray(self.mu * np.expm1(log_x))

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return np.asarray(-np.expm1(self.mu * np.expm1(log_x)))

    def some_phi_at(self, log_x: ArrayLike) -> FloatArray:
        # e^-mu expm1(mu x), in a form that does not overflow for large mu.
        x = np.exp(log_x)
        return np.asarray(np.exp(self.mu * np.expm1(log_x)) * -np.expm1(-self.mu * x))

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        return np.asarray(math.log(self.mu) + self.mu * np.expm1(log_x))

    def inverse_survival(self, y: ArrayLike) -> FloatArray:
        possible = np.minimum(np.asarray(y, dtype=np.float64), -math.expm1(-self.mu))
        with np.errstate(divide="ignore"):
            return np.clip(-np.log1p(-possible) / self.mu, 0.0, 1.0)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        rng = checked_generator(rng)
        return rng.poisson(self.mu, size).astype(np.int64)

    def _given_no_failure(self, failure: float) -> Repetitions:
        return Poisson(self.mu * (1.0 - failure))

    def with_mean(self, mean: float) -> Repetitions:
        return Poisson(checks.interval("mean", mean, 0.0, 1e15))

    @property
    def profile_theorem(self) -> ProfileTheorem:
        def penalty(epsilon_1: FloatArray, delta_1: FloatArray) -> FloatArray:
            with np.errstate(over="ignore"):
                return self.mu * (np.expm1(epsilon_1) + delta_1)

        return ProfileTheorem("Koskela, Redberg & Wang 2024, corollary 5.8", penalty)

    @property
    def renyi_theorem(self) -> RenyiTheorem:
        """The penalty E[K] delta, with the profile delta of the base at log(1 + 1/(alpha-1))."""

        def penalty(renyi: Function, profile: Function) -> Function:
            return lambda alpha: self.mu * profile(-np.log1p(-1.0 / alpha))

        return RenyiTheorem("Papernot & Steinke 2022, theorem 6", penalty)
