"""Poisson K."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.numerics import FloatArray, format_exact
from audit.repetitions.base import (
    Function,
    ProfileTheorem,
    RenyiTheorem,
    Repetitions,
    checked_generator,
    counts,
    format_spec,
)


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
