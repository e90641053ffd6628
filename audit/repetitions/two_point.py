"""A K with two possible values."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit.numerics import FloatArray, format_exact, safe_log
from audit.repetitions.base import MAX_RUNS, Repetitions, checked_generator, format_spec


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
