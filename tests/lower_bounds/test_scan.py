"""The scan is exact in its least favourable case, and valid, for any scores.

A violation is a bound above the true value. If the true rate is 5 %, the number of violations
exceeds `max_violations` with probability at most 1e-3. So a correct estimator fails such a test
with at most that probability. Seeds are fixed, so a test always passes or always fails.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from simulated_scores import DELTA, bound_of, least_favourable, max_violations

from audit import lower_bounds
from audit.accounting import GaussianMechanism
from audit.lower_bounds import scan
from audit.lower_bounds.scores import Scores


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("n0", "n1", "epsilon", "delta"),
    [(30, 200, 2.0, 0.0), (100, 40, 0.5, 1e-2), (300, 300, 1.0, 1e-5), (400, 400, 3.0, 1e-3)],
)
def test_scan_has_its_nominal_error_in_the_least_favourable_case(
    n0: int, n1: int, epsilon: float, delta: float
) -> None:
    rng = np.random.default_rng(1)
    audits, alpha = 1000 if n0 * n1 < 10_000 else 500, 0.05
    above = 0
    for _ in range(audits):
        scores = Scores.of(*least_favourable(epsilon, delta, rng, n0, n1))
        above += scan.Scan().find(scores, delta, alpha).epsilon > epsilon
    assert above <= max_violations(audits, alpha)
    # Counts are integers, so not all of the error is spent, but at least 40 % of it.
    assert above >= 0.4 * alpha * audits


def exact_crossing(
    n0: int, n1: int, delta: float, epsilon: float, boundary: dict[int, int]
) -> float:
    """P[c_j <= boundary_j for some j] by counting lattice paths with integers."""
    ceiling, total = (1.0 - delta) * math.exp(-epsilon), 0.0
    for atoms in range(n0 + 1):
        p_atoms = math.comb(n0, atoms) * delta**atoms * (1.0 - delta) ** (n0 - atoms)
        for low_ones in range(n1 + 1):
            p_ones = (
                math.comb(n1, low_ones) * ceiling**low_ones * (1.0 - ceiling) ** (n1 - low_ones)
            )
            crossed = any(rank <= atoms and limit >= 0 for rank, limit in boundary.items())
            inside = 0.0
            if not crossed:
                ways = [1] * (low_ones + 1)  # paths by the number of ones before the next zero
                for rank in range(atoms + 1, n0 + 1):
                    limit = boundary.get(rank, -1)
                    ways = [0 if ones <= limit else w for ones, w in enumerate(ways)]
                    ways = np.cumsum(np.array(ways, dtype=object)).tolist()
                inside = ways[-1] / math.comb(n0 - atoms + low_ones, low_ones)
            total += p_atoms * p_ones * (1.0 - inside)
    return total


@pytest.mark.parametrize(
    ("n0", "n1", "epsilon", "delta", "slack"),
    [
        (40, 40, 3.0, 0.0, 1e-5),
        (30, 20, 0.0, 0.0, 1e-5),
        (25, 60, 0.7, 0.0, 1e-5),
        (60, 45, 2.0, 1e-3, 2e-3),
        (20, 30, 1.0, 0.02, 2e-2),
    ],
)
def test_recursion_equals_exact_path_counts(
    n0: int, n1: int, epsilon: float, delta: float, slack: float
) -> None:
    ranks = np.array([n0 // 6, n0 // 3, n0 // 2, n0 - 3, n0])
    # About half the expected number of ones at each rank.
    limits = np.maximum(ranks * math.exp(-epsilon) * n1 / n0 / 2.0 - 1.0, 0.0).astype(np.int64)
    exact = exact_crossing(
        n0, n1, delta, epsilon, dict(zip(ranks.tolist(), limits.tolist(), strict=True))
    )
    found = scan._error(n0, n1, delta, 0.05, epsilon, ranks, limits)
    assert exact <= found <= exact * (1.0 + slack) + 5e-3 * 0.05


@pytest.mark.parametrize("log_odds", [-3.0, 0.0, 5.0])
def test_negative_binomial_tails_are_complete(log_odds: float) -> None:
    for zeros in (1, 50):
        probabilities, first = scan._negative_binomial(zeros, log_odds, 10**7)
        distribution = stats.nbinom(zeros, special.expit(log_odds))
        assert probabilities == pytest.approx(
            distribution.pmf(first + np.arange(len(probabilities))), rel=1e-6
        )
        assert distribution.cdf(first - 1) + distribution.sf(first + len(probabilities) - 1) < 1e-14


@given(
    out_scores=st.lists(st.integers(-6, 1), min_size=25, max_size=60),
    in_scores=st.lists(st.integers(-1, 6), min_size=25, max_size=60),
    at=st.integers(0, 59),
    delta=st.sampled_from([0.0, 1e-5, 0.05]),
)
@settings(max_examples=30)
@pytest.mark.filterwarnings("ignore:the bound is 0")
def test_better_separated_scores_never_lower_the_bound(
    out_scores: list[int], in_scores: list[int], at: int, delta: float
) -> None:
    """The proof that the scan is valid uses that its evidence is monotone in every score."""
    before = bound_of(out_scores, in_scores, delta=delta).epsilon
    higher = list(in_scores)
    higher[at % len(higher)] += 2
    lower = list(out_scores)
    lower[at % len(lower)] -= 2
    # The inversion stops within 2e-3 standard deviations of its target.
    assert bound_of(out_scores, higher, delta=delta).epsilon >= before - 0.01
    assert bound_of(lower, in_scores, delta=delta).epsilon >= before - 0.01


def test_two_tails_probability_equals_simulation() -> None:
    """P[M <= m] by simulation and by formula: 4 standard deviations, at most 3 % rounded up."""
    rng, audits = np.random.default_rng(22), 4_000
    for n0, n1, epsilon, delta in [(12, 10, 1.0, 0.05), (30, 40, 2.0, 1e-5), (50, 50, 0.3, 0.6)]:
        smallest = np.array(
            [
                scan.min_errors(Scores.of(*least_favourable(epsilon, delta, rng, n0, n1)))[0]
                for _ in range(audits)
            ]
        )
        for errors in np.unique(np.quantile(smallest, [0.02, 0.1, 0.5])).astype(int):
            rate = np.mean(smallest <= errors)
            found = scan.probability(n0, n1, delta, epsilon, int(errors), 0.05)
            slack = 4.0 * math.sqrt(rate * (1.0 - rate) / audits)
            assert rate - slack < found < 1.03 * rate + slack
        # The probability increases with epsilon.
        at_epsilon = [scan.probability(n0, n1, delta, e, 3, 0.05) for e in (0.0, 0.5, 1.5, 4.0)]
        assert at_epsilon == sorted(at_epsilon)


def test_two_tails_rounding_covers_factorials_of_many_trials() -> None:
    """P[a random order of steps climbs by c] = prod_{j < c} (up - j) / (down + 1 + j)."""
    rng = np.random.default_rng(23)
    for trials in (10**5, 10**7, 10**8):
        ups = rng.integers(10**3, trials // 10, 200).astype(np.float64)
        j = np.arange(3.0)
        exact = np.log((ups[:, None] - j) / (trials + 1.0 + j)).sum(axis=1)
        found = scan._reflection(ups, np.full(200, float(trials)), np.full(200, 3.0))
        allowed = scan._rounding(trials, trials)
        assert np.all(np.abs(np.log(found) - exact) < allowed)


def test_two_tails_bound_for_separated_scores_and_large_delta() -> None:
    apart = bound_of([0.0] * 1000, [1.0] * 1000)
    assert apart.epsilon == pytest.approx(6.07, abs=0.005)
    assert (apart.false_positives, apart.false_negatives, apart.threshold) == (0, 0, 0.0)
    # P[all in order] = ((1 - q)^n, with q = 1 / (1 + e^eps) up to delta) = 0.2 alpha.
    q = 1.0 - 0.01 ** (1.0 / 2000.0)
    assert apart.epsilon == pytest.approx(math.log(1.0 / q - 1.0), abs=0.01)
    # The scan of single tails proves nothing here, and Clopper-Pearson limits prove 0.57.
    large = bound_of([0.0] * 100, [1.0] * 100, delta=0.9)
    limits = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(0.5))
    assert large.epsilon > limits([0.0] * 100, [1.0] * 100, delta=0.9).epsilon > 0.5


@pytest.mark.parametrize(
    ("n0", "n1", "delta"),
    [(1, 10**5, 1e-5), (10**5, 1, 1e-5), (100, 100, 0.9), (1000, 1000, 0.5), (50, 50, 1e-300)],
)
def test_extreme_sizes_and_deltas_give_finite_bounds(n0: int, n1: int, delta: float) -> None:
    rng = np.random.default_rng(17)
    bound = bound_of(rng.normal(size=n0), rng.normal(2.0, size=n1), delta=delta)
    assert 0.0 <= bound.epsilon < math.log(max(n0, n1))
    none = bound_of(rng.normal(size=n0), rng.normal(size=n1), delta=delta)
    assert none.epsilon < 3.0


@pytest.mark.slow
def test_a_million_scores_give_tight_bounds() -> None:
    rng = np.random.default_rng(13)
    low, high = rng.normal(size=500_000), rng.normal(1.0, size=500_000)
    bound = bound_of(low, high)
    assert 2.5 < bound.epsilon < GaussianMechanism(1.0).epsilon(DELTA)
    # The rank sum proves more than any single threshold: the true epsilon is 4.377.
    all_pairs = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())(low, high)
    assert 4.33 < all_pairs.epsilon < GaussianMechanism(1.0).epsilon(DELTA)
