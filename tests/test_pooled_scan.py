"""The scan of all runs: its law by hand, that it holds where it is tight, how far it reaches."""

import math

import numpy as np
import pytest
from scipy import stats

from audit import lower_bounds, repetitions
from audit.accounting import calibrate_mu
from audit.claims import Assumption, facts_of_tuning
from audit.lower_bounds import Bonferroni, PooledClopperPearson, PooledScan, pooled_scan
from audit.protocols import RandomSearch
from audit.repetitions import Fixed

DELTA = 1e-5
TNB = repetitions.parse_repetitions("tnb:0,0.01")


def test_evidence_comes_at_just_the_epsilon_that_is_said() -> None:
    """Against f and its inverse, solved on a grid: the k-th one above the j-th zero, or not."""
    rng, delta = np.random.default_rng(0), 0.02
    law = repetitions.parse_repetitions("poisson:2")
    grid = np.linspace(0.0, 1.0, 100_001)
    best, beaten = law.phi(grid), law.phi_survival(1.0 - grid)
    for _ in range(10):
        v, u = rng.random(2)
        at = math.log(
            pooled_scan._ratios(
                *(law.phi(v), law.phi_survival(1.0 - v), law.phi(u), law.phi_survival(1.0 - u)),
                delta,
            )
        )
        for epsilon, expected in ((at - 0.01, False), (at + 0.01, True)):
            # f(u) is the largest F that both conditions allow beside G = u.
            low = best <= math.exp(epsilon) * law.phi(u) + delta
            high = law.phi_survival(1.0 - u) <= math.exp(epsilon) * beaten + delta
            assert (grid[low & high].max(initial=-1.0) > v) == expected


def test_reference_games_are_uniform_order_statistics() -> None:
    # Kolmogorov's test against Beta(j, n + 1 - j) at 4 ranks: false alarm 1e-3 all together.
    best, beaten = pooled_scan._games(200, Fixed(1), 0)
    assert np.abs(best + beaten - 1.0).max() < 1e-12
    ranks = pooled_scan._ranks(200)
    assert ranks[[0, -1]].tolist() == [1, 200]
    assert np.all(np.diff(ranks) > 0)
    for at in np.linspace(0, len(ranks) - 1, 4).astype(int):
        law = stats.beta(ranks[at], 201 - ranks[at])
        assert stats.kstest(best[at], law.cdf, method="asymp").pvalue > 1e-3 / 4
    for n in (1, 2, 3, 10):
        assert pooled_scan._ranks(n).tolist()[-1] == n


@pytest.mark.parametrize("spec", ["fixed:1", "tnb:0,0.1"])
def test_it_holds_in_the_worst_game_and_spends_its_error_there(spec: str) -> None:
    # The tuning is exactly (1, 0)-DP and leaks at every threshold: F = f(G). Of 150 games at 5 %,
    # 17 or more have chance 1e-3; that none errs, at 4.3 %, 1.4e-3.
    law, growth = repetitions.parse_repetitions(spec), math.e
    rng, games, n = np.random.default_rng(1), 150, 40

    def inverse_of_f(v: np.ndarray) -> np.ndarray:
        low = law.inverse(law.phi(v) / growth)
        high = 1.0 - law.inverse_survival(np.minimum(growth * law.phi_survival(1.0 - v), 1.0))
        return np.maximum(low, high)

    values = []
    for _ in range(games):
        zeros, ones = inverse_of_f(rng.random(n)), rng.random(n)
        values.append(PooledScan(law)(zeros, ones, 0.0).epsilon)
    assert 0 < np.sum(np.array(values) > 1.0) < 17
    assert np.mean(values) > 0.15


def test_it_holds_where_all_thresholds_tell_and_reaches_further() -> None:
    """All runs of 200 tunings by a monotone score: 4.277 in truth."""
    mu, rng, runs = calibrate_mu(4.0, DELTA), np.random.default_rng(2), round(200 * TNB.mean)
    scan, bonferroni = PooledScan(TNB), PooledClopperPearson(TNB, rule=Bonferroni())
    found = []
    for _ in range(8):
        sides = rng.normal(size=runs), rng.normal(mu, size=runs)
        found.append((scan(*sides, DELTA).epsilon, bonferroni(*sides, DELTA).epsilon))
    ours, theirs = np.mean(found, axis=0)
    assert 1.1 * theirs < ours < 4.27
    # With an error too small for reference games every rank pays for itself: less, but not nothing.
    strict = scan(*sides, DELTA, confidence=1.0 - 1e-4).epsilon
    assert 0.5 < strict < found[-1][0]


def test_what_shows_nothing_and_what_it_needs() -> None:
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
