"""A fixed K."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit.numerics import FloatArray
from audit.repetitions.base import (
    MAX_RUNS,
    Repetitions,
    checked_generator,
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
