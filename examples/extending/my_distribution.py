"""A custom distribution of K: uniform between 1 and a maximum."""

from dataclasses import dataclass

import numpy as np
import pytest

from audit import upper_bounds
from audit.accounting import GaussianMechanism
from audit.repetitions import Repetitions


@dataclass(frozen=True)
class UniformRuns(Repetitions):
    """K is uniform on 1, 2, ..., max_runs.

    The generating function is a sum of `max_runs` terms. It takes log(x), so that it is accurate
    for x close to 1.
    """

    max_runs: int

    @property
    def spec(self):
        return f"uniform:{self.max_runs}"

    @property
    def mean(self):
        return (self.max_runs + 1) / 2.0

    @property
    def probability_of_none(self):
        return 0.0

    @property
    def _k(self):
        return np.arange(1.0, self.max_runs + 1.0)

    def log_pmf(self, k):
        with np.errstate(divide="ignore"):
            return np.log(np.isin(k, self._k) / self.max_runs)

    def log_phi_at(self, log_x):
        with np.errstate(divide="ignore", under="ignore"):
            return np.log(np.exp(np.multiply.outer(log_x, self._k)).mean(axis=-1))

    def one_minus_phi_at(self, log_x):
        return -np.expm1(np.multiply.outer(log_x, self._k)).mean(axis=-1)

    def log_phi_prime_at(self, log_x):
        with np.errstate(invalid="ignore"):  # at x = 0 only the first term is nonzero
            powers = np.where(self._k == 1.0, 0.0, np.multiply.outer(log_x, self._k - 1.0))
        return np.log((self._k * np.exp(powers)).mean(axis=-1))

    def sample(self, rng, size):
        return rng.integers(1, self.max_runs, size, endpoint=True)


def test_generating_function_equals_its_sum():
    runs, x = UniformRuns(7), np.linspace(0.01, 1.0, 50)
    k = np.arange(8)
    assert runs.pmf(k).sum() == pytest.approx(1.0)
    assert runs.phi(x) == pytest.approx((runs.pmf(k) * x[:, None] ** k).sum(axis=1))
    slope = (runs.pmf(k[1:]) * k[1:] * x[:, None] ** (k[1:] - 1)).sum(axis=1)
    assert runs.phi_prime(x) == pytest.approx(slope)
    assert runs.phi_prime(1.0) == pytest.approx(runs.mean)


def test_accuracy_near_one():
    # For tiny s, 1 - phi(1 - s) is E[K] s; in floating point, 1 - (1 - s) would be 0.
    assert UniformRuns(7).phi_survival(1e-200) == pytest.approx(4e-200)


def test_mean_of_draws():
    # The mean of 10,000 draws with standard deviation 2 is off by more than 0.1 for one in a
    # million seeds.
    assert UniformRuns(7).sample(np.random.default_rng(0), 10_000).mean() == pytest.approx(
        4, abs=0.1
    )


def test_its_cost_lies_between_fixed_numbers_of_runs():
    base = GaussianMechanism(0.5)
    cost = upper_bounds.tuning_cost(base, UniformRuns(4), 1e-5).epsilon
    one, four = (upper_bounds.tuning_cost(base, f"fixed:{k}", 1e-5).epsilon for k in (1, 4))
    assert one < cost < four
