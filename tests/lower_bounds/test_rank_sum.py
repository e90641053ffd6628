"""The rank sum is valid, exact at its threshold, and proves more than any threshold.

A violation is a bound above the true value. If the true rate is 5 %, the number of violations
exceeds `max_violations` with probability at most 1e-3. So a correct estimator fails such a test
with at most that probability. Seeds are fixed, so a test always passes or always fails.
"""

import math

import numpy as np
import pytest
from simulated_scores import DELTA, max_violations, winners

from audit import lower_bounds, repetitions
from audit.accounting import GaussianMechanism
from audit.lower_bounds import monte_carlo
from audit.lower_bounds.scores import Scores


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("spec", "mu", "n0", "n1"),
    [
        ("fixed:1", 0.5, 1000, 1000),
        ("fixed:1", 1.5, 500, 300),
        ("fixed:1", 0.5, 20, 30),
        ("tnb:0,0.01", 0.25, 1000, 1000),
        ("poisson:2", 1.0, 100, 150),
    ],
)
def test_rank_sum_has_its_nominal_error(spec: str, mu: float, n0: int, n1: int) -> None:
    distribution, rng, audits = repetitions.parse_repetitions(spec), np.random.default_rng(18), 2000
    above = 0
    for _ in range(audits):
        scores = Scores.of(winners(distribution, rng, n0), mu + winners(distribution, rng, n1))
        pairs = monte_carlo.concordant_pairs(scores)
        above += monte_carlo.mu_lower_limit(pairs, n0, n1, distribution, 0.05) > mu
    # The simulated audits have an error of 4.3 % on average, so that 99 of 100 sets are valid.
    assert 0.6 * 0.05 * audits < above <= max_violations(audits)


@pytest.mark.thorough
def test_rank_sum_is_valid_for_any_score_of_a_gaussian_base() -> None:
    """Rounded, folded and noisy functions of N(b mu, 1), by which the best run is selected."""
    rng, audits, n, mu = np.random.default_rng(19), 500, 300, 1.0
    distribution = repetitions.parse_repetitions("geometric:0.2")
    for score in (np.round, lambda x: np.abs(x + 1.0), lambda x: x + rng.normal(size=x.shape)):
        above = 0
        for _ in range(audits):
            sides = []
            for mean in (0.0, mu):
                runs = distribution.sample(rng, n)
                scores = score(rng.normal(mean, 1.0, runs.sum()))
                starts = np.concatenate([[0], np.cumsum(runs)[:-1]])
                sides.append(np.maximum.reduceat(scores, starts))
            pairs = monte_carlo.concordant_pairs(Scores.of(*sides))
            above += monte_carlo.mu_lower_limit(pairs, n, n, distribution, 0.05) > mu
        assert above <= max_violations(audits)


@pytest.mark.slow
def test_rank_sum_proves_more_than_the_best_threshold() -> None:
    """Means of 60 audits, compared with a threshold from theory on the same scores."""
    rng = np.random.default_rng(21)
    for mu, n, least in [(0.5, 500, 1.42), (0.5, 10_000, 1.84), (1.5, 1000, 6.45)]:
        by_rule: dict[str, list[float]] = {}
        for _ in range(60):
            scores = Scores.of(rng.normal(size=n), rng.normal(mu, size=n))
            for rule in (lower_bounds.RankSum(), lower_bounds.ThresholdFromTheory(mu)):
                found = lower_bounds.GaussianCurve(rule=rule).find(scores, DELTA, 0.05)
                by_rule.setdefault(rule.name, []).append(found.epsilon)
        assert np.mean(by_rule["rank-sum"]) > max(least, 1.01 * np.mean(by_rule["fixed"]))
        assert np.mean(by_rule["rank-sum"]) < GaussianMechanism(mu).epsilon(DELTA)


def test_rank_sum_is_monotone_and_uses_hoeffding_for_small_errors() -> None:
    n, distribution = 1000, repetitions.Fixed(1)
    alphas = (0.2, 0.05, 0.01, 1e-3, 1e-4, 1e-7)
    limits = [monte_carlo.mu_lower_limit(900_000, n, n, distribution, alpha) for alpha in alphas]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] > 1.0  # the means are 1.81 apart
    # The number of pairs of an allowed simulated audit at mu = 0 refutes nothing; one more does.
    few = monte_carlo._simulated_audits(20, 30, distribution)
    reached = round(few._largest_pairs(0, 5))
    assert few.limit(reached, 5) == -math.inf < few.limit(reached + 1, 5)
    # Hoeffding's inequality always proves less.
    audits = monte_carlo._simulated_audits(n, n, distribution)
    for alpha in (0.2, 0.05, 0.01):
        assert audits.limit_by_hoeffding(900_000, alpha) < monte_carlo.mu_lower_limit(
            900_000, n, n, distribution, alpha
        )
    more = [
        monte_carlo.mu_lower_limit(u, n, n, distribution, 0.05)
        for u in range(500_000, 10**6, 9_999)
    ]
    assert more == sorted(more)
    assert more[0] == -math.inf
    with pytest.raises(ValueError, match="rule must have a threshold"):
        lower_bounds.ClopperPearson(rule=lower_bounds.RankSum())([0.0], [1.0])
