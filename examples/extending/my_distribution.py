"""Your own distribution of K: uniform from 1 to a maximum."""

from dataclasses import dataclass

import numpy as np
import pytest

from audit import upper_bounds
from audit.accounting import GaussianMechanism
from audit.repetitions import Repetitions


@dataclass(frozen=True)
class UniformRuns(Repetitions):
    """K is uniform on 1, 2, ..., maximum.

    Each function is a sum of `maximum` terms. It takes log(x), which is accurate for x near 1.
    """

    maximum: int

    @property
    def spec(self):
        return f"uniform:{self.maximum}"

    @property
    def mean(self):
        return (self.maximum + 1) / 2.0

    @property
    def probability_of_none(self):
        return 0.0

    @property
    def _k(self):
        return np.arange(1.0, self.maximum + 1.0)

    def log_pmf(self, k):
        with np.errstate(divide="ignore"):
            return np.log(np.isin(k, self._k) / self.maximum)

    def log_phi_at(self, log_x):
        with np.errstate(divide="ignore", under="ignore"):
            return np.log(np.exp(np.multiply.outer(log_x, self._k)).mean(axis=-1))

    def one_minus_phi_at(self, log_x):
        return -np.expm1(np.multiply.outer(log_x, self._k)).mean(axis=-1)

    def log_phi_prime_at(self, log_x):
        with np.errstate(invalid="ignore"):  # only the first term is not 0 at x = 0
            powers = np.where(self._k == 1.0, 0.0, np.multiply.outer(log_x, self._k - 1.0))
        return np.log((self._k * np.exp(powers)).mean(axis=-1))

    def sample(self, rng, size):
        return rng.integers(1, self.maximum, size, endpoint=True)


def test_generating_function_against_its_sum():
    runs, x = UniformRuns(7), np.linspace(0.01, 1.0, 50)
    k = np.arange(8)
    assert runs.pmf(k).sum() == pytest.approx(1.0)
    assert runs.phi(x) == pytest.approx((runs.pmf(k) * x[:, None] ** k).sum(axis=1))
    slope = (runs.pmf(k[1:]) * k[1:] * x[:, None] ** (k[1:] - 1)).sum(axis=1)
    assert runs.phi_prime(x) == pytest.approx(slope)
    assert runs.phi_prime(1.0) == pytest.approx(runs.mean)


def test_accuracy_near_one():
    # 1 - phi(1 - s) is E[K] s for a tiny s, for which 1 - s rounds to 1.
    assert UniformRuns(7).phi_survival(1e-200) == pytest.approx(4e-200)


def test_sample_mean():
    # The mean of 10,000 draws with standard deviation 2 is off by 0.1 for one seed in a million.
    assert UniformRuns(7).sample(np.random.default_rng(0), 10_000).mean() == pytest.approx(
        4, abs=0.1
    )


def test_cost_is_between_those_of_one_and_four_runs():
    base = GaussianMechanism(0.5)
    cost = upper_bounds.tuning_cost(base, UniformRuns(4), 1e-5).epsilon
    one, four = (upper_bounds.tuning_cost(base, f"fixed:{k}", 1e-5).epsilon for k in (1, 4))
    assert one < cost < four
