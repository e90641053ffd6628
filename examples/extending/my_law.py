"""A law of K of one's own: uniform between 1 and a limit."""

from dataclasses import dataclass

import numpy as np
import pytest

from audit import upper_bounds
from audit.accounting import GaussianMechanism
from audit.repetitions import Repetitions


@dataclass(frozen=True)
class UniformRuns(Repetitions):
    """K is 1, 2, ..., most, each as likely.

    All is a sum of `most` terms, written in log(x) so that it keeps its digits where x is near 1.
    """

    most: int

    @property
    def spec(self):
        return f"uniform:{self.most}"

    @property
    def mean(self):
        return (self.most + 1) / 2.0

    @property
    def probability_of_none(self):
        return 0.0

    @property
    def _k(self):
        return np.arange(1.0, self.most + 1.0)

    def log_pmf(self, k):
        with np.errstate(divide="ignore"):
            return np.log(np.isin(k, self._k) / self.most)

    def log_phi_at(self, log_x):
        with np.errstate(divide="ignore", under="ignore"):
            return np.log(np.exp(np.multiply.outer(log_x, self._k)).mean(axis=-1))

    def one_minus_phi_at(self, log_x):
        return -np.expm1(np.multiply.outer(log_x, self._k)).mean(axis=-1)

    def log_phi_prime_at(self, log_x):
        with np.errstate(invalid="ignore"):  # x = 0 leaves the first term alone
            powers = np.where(self._k == 1.0, 0.0, np.multiply.outer(log_x, self._k - 1.0))
        return np.log((self._k * np.exp(powers)).mean(axis=-1))

    def sample(self, rng, size):
        return rng.integers(1, self.most, size, endpoint=True)


def test_generating_function_against_its_sum():
    law, x = UniformRuns(7), np.linspace(0.01, 1.0, 50)
    k = np.arange(8)
    assert law.pmf(k).sum() == pytest.approx(1.0)
    assert law.phi(x) == pytest.approx((law.pmf(k) * x[:, None] ** k).sum(axis=1))
    slope = (law.pmf(k[1:]) * k[1:] * x[:, None] ** (k[1:] - 1)).sum(axis=1)
    assert law.phi_prime(x) == pytest.approx(slope)
    assert law.phi_prime(1.0) == pytest.approx(law.mean)


def test_digits_near_one():
    # 1 - phi(1 - s) is E[K] s for a tiny s; 1 - (1 - s) alone would be 0.
    assert UniformRuns(7).phi_survival(1e-200) == pytest.approx(4e-200)


def test_draws():
    # A mean of 10,000 draws of standard deviation 2: within 0.1 but for one in a million seeds.
    assert UniformRuns(7).sample(np.random.default_rng(0), 10_000).mean() == pytest.approx(
        4, abs=0.1
    )


def test_its_cost_lies_between_fixed_numbers_of_runs():
    base = GaussianMechanism(0.5)
    cost = upper_bounds.tuning_cost(base, UniformRuns(4), 1e-5).epsilon
    one, four = (upper_bounds.tuning_cost(base, f"fixed:{k}", 1e-5).epsilon for k in (1, 4))
    assert one < cost < four
