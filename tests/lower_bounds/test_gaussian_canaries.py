"""Bounds for canaries that do not interact, and where they are not valid.

If the true rate of violations is 5 %, their number exceeds `max_violations` with probability at
most 1e-3. Seeds are fixed, so a test always passes or always fails.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special, stats
from simulated_scores import bound_of, max_violations

from audit import accounting
from audit.lower_bounds import (
    LowerBound,
    families,
    gaussian_canaries_bound,
    independent_canaries_bound,
)
from studies.coverage.gaussian_pair import gaussian_pair_bound, pair_epsilon

Sample = tuple[np.ndarray, np.ndarray]
Sampler = Callable[[np.random.Generator, float, int], Sample]


def equal(rng: np.random.Generator, mu: float, canaries: int) -> Sample:
    """Scores and coins of canaries that are independent Gaussian mechanisms."""
    coins = rng.random(canaries) < 0.5
    return rng.normal(size=canaries) + mu * coins, coins


def unequal(rng: np.random.Generator, mu: float, canaries: int) -> Sample:
    """The same, but half of the canaries have no effect."""
    coins = rng.random(canaries) < 0.5
    return rng.normal(size=canaries) + mu * coins * (rng.random(canaries) < 0.5), coins


def sharing_a_size(rng: np.random.Generator, mu: float, canaries: int) -> Sample:
    """Canaries with one shared size; each has the same trade-off curve as in `equal`."""
    coins = rng.random(canaries) < 0.5
    size = abs(rng.normal() + mu / 2)
    correct = rng.random(canaries) < special.expit(mu * size)
    return size * np.where(correct == coins, 1.0, -1.0), coins


def bounds(
    bound: Callable[..., LowerBound], sample: Sampler, mu: float, canaries: int, runs: int
) -> tuple[float, float]:
    """The number of violations, and the mean bound as a share of the true epsilon."""
    true_epsilon = accounting.GaussianMechanism(mu).epsilon(1e-5)
    rng = np.random.default_rng(7)
    found = np.array([bound(*sample(rng, mu, canaries)).epsilon for _ in range(runs)])
    return int(np.sum(found > true_epsilon)), float(found.mean() / true_epsilon)


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(("canaries", "mu", "share"), [(20, 2.0, 0.4), (400, 0.5, 0.6)])
def test_gaussian_canaries_bound_is_exact_for_equal_sizes(
    canaries: int, mu: float, share: float
) -> None:
    violations, mean_share = bounds(gaussian_canaries_bound, equal, mu, canaries, 400)
    # Exact: 5 or fewer of 400 runs err with probability 1e-4.
    assert 5 < violations <= max_violations(400)
    assert mean_share > share


@pytest.mark.thorough
@pytest.mark.parametrize("canaries", [20, 400])
def test_gaussian_canaries_bound_is_valid_for_unequal_sizes(canaries: int) -> None:
    violations, _ = bounds(gaussian_canaries_bound, unequal, 1.5, canaries, 200)
    assert violations <= max_violations(200)


@pytest.mark.thorough
def test_gaussian_pair_bound_holds_for_equal_sizes_and_many_canaries() -> None:
    violations, share = bounds(gaussian_pair_bound, equal, 0.5, 2000, 100)
    assert violations <= max_violations(100)
    assert share > 0.6


def test_gaussian_pair_bound_is_not_valid_for_unequal_sizes() -> None:
    # It errs in 94 % of the runs.
    violations, _ = bounds(gaussian_pair_bound, unequal, 1.5, 10_000, 50)
    assert violations > 40


@pytest.mark.slow
@pytest.mark.parametrize("bound", [gaussian_canaries_bound, gaussian_pair_bound])
def test_bounds_by_values_are_not_valid_for_a_shared_size(
    bound: Callable[..., LowerBound],
) -> None:
    # About a quarter of the runs have a size large enough.
    violations, _ = bounds(bound, sharing_a_size, 1.0, 1000, 100)
    assert violations > max_violations(100)


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_mu_limit_inverts_the_noncentral_t_distribution(alpha: float) -> None:
    scores, coins = equal(np.random.default_rng(3), 2.0, 60)
    without, with_canary = scores[~coins], scores[coins]
    n0, n1 = len(without), len(with_canary)
    t = stats.ttest_ind(with_canary, without).statistic
    mu = families.mu_lower_limit(without, with_canary, alpha)
    # The cells increase the p-value by about 1 %, so the exact one is slightly below alpha.
    exact = stats.nct.sf(t, n0 + n1 - 2, mu * math.sqrt(n0 * n1 / (n0 + n1)))
    assert 0.97 * alpha < exact < alpha


@pytest.mark.parametrize(
    ("gap", "log_ratio"), [(0.5, 0.0), (0.75, 0.2), (0.3, -0.4), (0.0, 0.2), (-1.0, 0.1)]
)
def test_epsilon_of_a_pair_equals_integration(gap: float, log_ratio: float) -> None:
    epsilon = pair_epsilon(gap, log_ratio, 1e-5)
    x = np.linspace(-30.0, 30.0, 1_000_001)
    without, with_record = stats.norm.pdf(x), stats.norm.pdf(x, gap, math.exp(log_ratio))
    growth = math.exp(epsilon)
    deltas = [
        np.trapezoid(np.maximum(p - growth * q, 0.0), x)
        for p, q in ((without, with_record), (with_record, without))
    ]
    assert max(deltas) == pytest.approx(1e-5, rel=1e-4)
    exact = accounting.GaussianMechanism(0.5).epsilon(1e-5)
    if (gap, log_ratio) == (0.5, 0.0):
        assert epsilon == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("bound", [gaussian_canaries_bound, gaussian_pair_bound])
def test_scores_that_prove_nothing(bound: Callable[..., LowerBound]) -> None:
    coins = np.arange(20) % 2 == 0
    noise = np.random.default_rng(0).normal(size=20)
    for scores in (np.where(coins, np.inf, noise), np.zeros(20)):
        assert bound(scores, coins).epsilon == 0.0
    if bound is gaussian_canaries_bound:
        assert bound(noise - 5.0 * coins, coins).epsilon == 0.0
    assert bound(noise[:1], coins[:1]).epsilon == 0.0
    scores, coins = equal(np.random.default_rng(0), 3.0, 400)
    found = bound(scores, coins)
    assert found.epsilon > 1.0
    assert found.valid == (bound is gaussian_canaries_bound)
    assert "canaries that do not interact" in found.assumes
    with pytest.raises(ValueError, match="included must be one true or false"):
        bound([1.0], [1])
    with pytest.raises(ValueError, match="confidence must"):
        bound(scores, coins, confidence=1.0)


def test_independent_canaries_are_trials() -> None:
    scores, coins = equal(np.random.default_rng(3), 2.0, 1000)
    found = independent_canaries_bound(scores, coins)
    assert found.epsilon == bound_of(scores[~coins], scores[coins]).epsilon > 1.0
    assert "canaries that do not interact" in found.assumes
    assert "canaries whose scores have the same distributions" in found.assumes
