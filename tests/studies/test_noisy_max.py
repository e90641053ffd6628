"""What report noisy max leaks, against closed forms, bounds and a search over all values."""

import numpy as np
import pytest
from scipy import optimize

from audit import upper_bounds
from audit.accounting import GaussianMechanism
from studies.noisy_max import attained, chance_of_event, equal_values, leak

SIGMA, DELTA = 4.0, 1e-6


def test_two_values_are_one_gaussian_mechanism() -> None:
    # Their difference has standard deviation sigma sqrt 2 and moves by 2.
    epsilon, inside = attained(2, SIGMA, DELTA)
    assert inside == 1
    assert epsilon == pytest.approx(GaussianMechanism(2.0**0.5 / SIGMA).epsilon(DELTA), rel=1e-5)


@pytest.mark.thin(2)
@pytest.mark.parametrize("candidates", [3, 10])
def test_no_event_leaks_more_than_the_bound(candidates: int) -> None:
    epsilon, _ = attained(candidates, SIGMA, DELTA)
    bound = upper_bounds.tuning_cost(
        GaussianMechanism(1.0 / SIGMA), f"noisy-max:{candidates}", DELTA
    ).epsilon
    assert 0.8 * bound < epsilon < bound


def test_chances_agree_with_simulation() -> None:
    inside, outside = np.array([0.5, -1.0]), np.array([0.0, 0.3, 1.0])
    noise = np.random.default_rng(0).normal(size=(200_000, 5))
    noisy = noise + np.concatenate([inside, outside])
    share = np.mean(noisy.argmax(axis=1) < 2)
    # Five standard errors: p = 6e-7.
    assert chance_of_event(inside, outside) == pytest.approx(share, abs=5 * 0.5 / 200_000**0.5)
    assert equal_values(0.7, 2, 3) == pytest.approx(
        chance_of_event(np.full(2, 0.7), np.zeros(3)), abs=1e-9
    )


def test_no_other_values_of_three_candidates_leak_more() -> None:
    random, epsilon = np.random.default_rng(0), 1.7
    equal = leak(epsilon, 1, 2, SIGMA)

    def lost(values: np.ndarray) -> float:
        inside, outside = np.clip(values[:1], -7.0, 7.0), np.clip(np.append(values[1:], 0.0), -7, 7)
        moved = chance_of_event(inside - 2.0 / SIGMA, outside)
        return (np.exp(epsilon) * moved - chance_of_event(inside, outside)) / equal

    starts = np.array([-3.0, 0.0]) + random.normal(size=(4, 2))
    best = max(-optimize.minimize(lost, start, method="Nelder-Mead").fun for start in starts)
    assert best == pytest.approx(1.0, abs=1e-4)
