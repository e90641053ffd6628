"""The scan of all runs is exact, and has its nominal error in the least favourable case."""

import math

import numpy as np
import pytest
from scipy import stats

from audit import lower_bounds, repetitions
from audit.accounting import calibrate_mu
from audit.claims import Assumption, facts_of_tuning
from audit.lower_bounds import PooledScan, monte_carlo
from audit.lower_bounds.estimator import epsilon_from_limits
from audit.lower_bounds.scores import upper_limit
from audit.protocols import RandomSearch
from audit.repetitions import Fixed

DELTA = 1e-5
TNB = repetitions.parse_repetitions("tnb:0,0.01")


def test_evidence_appears_at_the_computed_epsilon() -> None:
    """Compared with f on a grid: is the k-th one above the j-th zero?"""
    rng, delta = np.random.default_rng(0), 0.02
    distribution = repetitions.parse_repetitions("poisson:2")
    grid = np.linspace(0.0, 1.0, 100_001)
    best, beaten = distribution.phi(grid), distribution.phi_survival(1.0 - grid)
    for _ in range(10):
        v, u = rng.random(2)
        at = math.log(
            monte_carlo._ratios(
                *(
                    distribution.phi(v),
                    distribution.phi_survival(1.0 - v),
                    distribution.phi(u),
                    distribution.phi_survival(1.0 - u),
                ),
                delta,
            )
        )
        for epsilon, expected in ((at - 0.01, False), (at + 0.01, True)):
            # f(u) is the largest F that both conditions allow at G = u.
            low = best <= math.exp(epsilon) * distribution.phi(u) + delta
            high = distribution.phi_survival(1.0 - u) <= math.exp(epsilon) * beaten + delta
            assert (grid[low & high].max(initial=-1.0) > v) == expected


def test_simulated_audits_are_uniform_order_statistics() -> None:
    # Kolmogorov-Smirnov tests against Beta(j, n + 1 - j) at 4 ranks: false alarm 1e-3 in total.
    best, beaten = monte_carlo._simulated_order_statistics(200, Fixed(1), 0)
    assert np.abs(best + beaten - 1.0).max() < 1e-12
    ranks = monte_carlo._ranks(200)
    assert ranks[[0, -1]].tolist() == [1, 200]
    assert np.all(np.diff(ranks) > 0)
    for at in np.linspace(0, len(ranks) - 1, 4).astype(int):
        distribution = stats.beta(ranks[at], 201 - ranks[at])
        assert stats.kstest(best[at], distribution.cdf, method="asymp").pvalue > 1e-3 / 4
    for n in (1, 2, 3, 10):
        assert monte_carlo._ranks(n).tolist()[-1] == n


@pytest.mark.parametrize("spec", ["fixed:1", "tnb:0,0.1"])
def test_error_in_the_least_favourable_case_is_nominal(spec: str) -> None:
    # The tuning is exactly (1, 0)-DP and attains it at every threshold: F = f(G). At an error of
    # 5 %, 17 or more of 150 audits err with probability 1e-3. At 4.3 %, none errs with 1.4e-3.
    distribution, growth = repetitions.parse_repetitions(spec), math.e
    rng, audits, n = np.random.default_rng(1), 150, 40

    def inverse_of_f(v: np.ndarray) -> np.ndarray:
        low = distribution.inverse(distribution.phi(v) / growth)
        high = 1.0 - distribution.inverse_survival(
            np.minimum(growth * distribution.phi_survival(1.0 - v), 1.0)
        )
        return np.maximum(low, high)

    values = []
    for _ in range(audits):
        zeros, ones = inverse_of_f(rng.random(n)), rng.random(n)
        values.append(PooledScan(distribution)(zeros, ones, 0.0).epsilon)
    assert 0 < np.sum(np.array(values) > 1.0) < 17
    assert np.mean(values) > 0.15


def test_all_runs_prove_more_than_limits_at_the_best_threshold() -> None:
    """All runs of 200 tunings by a monotone score; the true epsilon is 4.277."""
    mu, rng, runs = calibrate_mu(4.0, DELTA), np.random.default_rng(2), round(200 * TNB.mean)
    pooled, threshold = PooledScan(TNB), 2.5
    found = []
    for _ in range(8):
        low, high = rng.normal(size=runs), rng.normal(mu, size=runs)
        fp = upper_limit(int(np.sum(low > threshold)), runs, 0.025)
        fn = upper_limit(int(np.sum(high <= threshold)), runs, 0.025)
        limits = TNB.phi_survival(fp), TNB.phi(fn)
        at_threshold = float(epsilon_from_limits(*map(np.asarray, limits), DELTA))
        found.append((pooled(low, high, DELTA).epsilon, at_threshold))
    ours, fixed = np.mean(found, axis=0)
    assert 1.02 * fixed < ours < 4.27
    # If the error is too small for simulations, each rank has its own share: less, but not zero.
    strict = pooled(low, high, DELTA, confidence=1.0 - 1e-4).epsilon
    assert 0.5 < strict < found[-1][0]


def test_uninformative_scores_and_assumptions() -> None:
    scan = PooledScan("fixed:2")
    for sides in (([], [1.0]), ([1.0], []), ([1.0] * 50, [1.0] * 50), ([2.0] * 50, [1.0] * 50)):
        assert scan(*sides, DELTA).epsilon == 0.0
    apart = scan([0.0] * 50, [1.0] * 50, DELTA)
    assert (apart.threshold, apart.false_positives, apart.false_negatives) == (0.0, 0, 0)
    assert apart.epsilon > 2.0
    assert apart.key == "pooled:scan"
    known = facts_of_tuning(RandomSearch(Fixed(2)), Assumption.INDEPENDENT_TRIALS)
    by_loss = scan([0.0] * 50, [1.0] * 50, DELTA, known=known)
    assert by_loss.label == "not valid for a statistic other than the score"
    assert lower_bounds.pooled_bounds([0.0], [1.0], "fixed:2")[0].key == "pooled:scan"
