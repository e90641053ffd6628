"""The order-statistics bound: valid for independent canaries, not if they share a size."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special, stats

from audit import accounting
from studies.coverage.order_statistics import order_statistics_bound, tail_probability

Sample = tuple[np.ndarray, np.ndarray]
CANARIES, RUNS = 1000, 200


def independent(rng: np.random.Generator, mu: float) -> Sample:
    """Signed scores and coins of canaries that are independent Gaussian mechanisms."""
    coins = rng.integers(0, 2, CANARIES).astype(bool)
    return rng.normal(size=CANARIES) + mu * (coins - 0.5), coins


def sharing_a_size(rng: np.random.Generator, mu: float) -> Sample:
    """Canaries with one shared size; each has the same trade-off curve as in `independent`."""
    coins = rng.integers(0, 2, CANARIES).astype(bool)
    size = abs(rng.normal() + mu / 2)
    correct = rng.random(CANARIES) < special.expit(mu * size)
    return size * np.where(correct == coins, 1.0, -1.0), coins


def violations(
    sample: Callable[[np.random.Generator, float], Sample], mu: float, guesses: int
) -> tuple[float, float]:
    """The violation rate of the order-statistics bound, and its mean share of the true value."""
    true_epsilon = accounting.GaussianMechanism(mu).epsilon(1e-5)
    rng = np.random.default_rng(0)
    bounds = [order_statistics_bound(*sample(rng, mu), guesses).epsilon for _ in range(RUNS)]
    above = float(np.mean([bound > true_epsilon for bound in bounds]))
    return above, float(np.mean(bounds)) / true_epsilon


@pytest.mark.thin(2)
@pytest.mark.parametrize("mu", [1.0, 2.0])
@pytest.mark.parametrize("guesses", [100, 1000])
def test_order_statistics_bound_is_valid_for_independent_canaries(mu: float, guesses: int) -> None:
    # At an error of 5 %, 21 or more of 200 runs err with probability 1e-3.
    rate, share = violations(independent, mu, guesses)
    assert rate <= 20 / RUNS
    assert share > 0.6


@pytest.mark.thin(2)
@pytest.mark.parametrize("mu", [1.0, 2.0])
def test_order_statistics_bound_is_not_valid_for_a_shared_size(mu: float) -> None:
    # The canaries have the Gaussian curve, but the bound errs in 46 % of the runs at mu = 1 and in
    # 54 % at mu = 2.
    rate, _ = violations(sharing_a_size, mu, CANARIES)
    assert 0.35 < rate < 0.65


def test_a_canary_with_a_shared_size_has_the_gaussian_curve() -> None:
    # size * sign is N(mu/2, 1) with the canary and N(-mu/2, 1) without: Kolmogorov-Smirnov tests,
    # false alarm 1e-3 each.
    rng, mu = np.random.default_rng(1), 1.5
    for coin in (False, True):
        size = np.abs(rng.normal(size=20_000) + mu / 2)
        correct = rng.random(20_000) < special.expit(mu * size)
        signed = size * np.where(correct == coin, 1.0, -1.0)
        assert stats.kstest(signed - mu * (coin - 0.5), "norm").pvalue > 1e-3


def test_distribution_of_correct_guesses_equals_simulation() -> None:
    # 20,000 runs, within 4 standard deviations, and rounded up by at most 2 %.
    rng, mu, canaries, guesses = np.random.default_rng(2), 1.0, 30, 10
    scores = rng.normal(size=(20_000, canaries)) + mu / 2
    most_certain = np.take_along_axis(
        scores, np.argsort(-np.abs(scores), axis=1)[:, :guesses], axis=1
    )
    correct = (most_certain > 0).sum(axis=1)
    for at_least in (7, 8, 9, 10):
        found, expected = np.mean(correct >= at_least), tail_probability(30, 10, at_least, mu)
        error = np.sqrt(expected * (1 - expected) / 20_000)
        assert found - 4 * error < 1.001 * expected < 1.02 * found + 4 * error
    assert tail_probability(30, 30, 20, mu) == pytest.approx(
        stats.binom.sf(19, 30, special.ndtr(mu / 2))
    )
    assert tail_probability(30, 10, 0, mu) == 1.0


def test_invalid_input_raises_one_line() -> None:
    with pytest.raises(ValueError, match="guesses must be"):
        order_statistics_bound([1.0], [True], 2)
    with pytest.raises(ValueError, match="included must be one true or false"):
        order_statistics_bound([1.0], [1], 1)
    bound = order_statistics_bound([1.0, -1.0], [True, False], 2)
    assert "canaries that do not interact" in bound.assumes
