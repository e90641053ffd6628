"""The lower bounds hold, where they say they do; and the ones that do not are shown not to.

Coverage is tested against games whose epsilon is known exactly. A violation is a bound above the
truth. With a true rate of 5 % the number of violations exceeds `allowed(games)` with probability
under 1e-3, so a correct estimator fails one of these tests with that probability at most; seeds are
fixed, so it fails always or never.
"""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from audit import coverage_study, lower_bounds, repetitions
from audit.accounting import DpSgd, GaussianMechanism, calibrate_mu
from audit.attacks.orders import attack_order
from audit.claims import facts_of_game, facts_of_tuning
from audit.lower_bounds import counting, one_run, pooled, rank_sum, rates, rules, scan, two_tails
from audit.lower_bounds.scores import Scores
from audit.orders import IncreasingOrder
from audit.protocols import RandomSearch
from audit.upper_bounds import RegionCurve, reduced_exact
from audit.upper_bounds.published import reduced_renyi

DELTA = 1e-5
TNB = repetitions.parse_repetitions("tnb:0,0.01")


def allowed(games: int, rate: float = 0.05) -> int:
    return int(stats.binom.ppf(1.0 - 1e-3, games, rate))


def best_of(law: repetitions.Repetitions, rng: np.random.Generator, size: int) -> np.ndarray:
    """The largest of K standard normal draws, `size` times: the K-th root of a uniform."""
    return special.ndtri(rng.random(size) ** (1.0 / law.sample(rng, size)))


def winners(law: repetitions.Repetitions, rng: np.random.Generator, size: int) -> np.ndarray:
    """The same for laws that may give no run, whose output is minus infinity."""
    return IncreasingOrder().best(law.sample(rng, size), 0.0, rng)


@pytest.mark.slow
def test_a_fixed_threshold_covers_by_the_lifted_curve_and_not_by_the_gaussian_one() -> None:
    games, trials, alpha = 2000, 1000, 0.05
    mu = calibrate_mu(4.0, DELTA)
    truth = reduced_exact(GaussianMechanism(mu), TNB, DELTA)
    assert truth.epsilon is not None
    truth_low = truth.epsilon - truth.error
    rng = np.random.default_rng(20)
    rule = lower_bounds.ThresholdFromTheory(mu, TNB)
    gaussian = lower_bounds.GaussianCurve(rule=rule)
    curves = {"lifted": lower_bounds.LiftedCurve(TNB, rule=rule), "gaussian": gaussian}
    values: dict[str, list[float]] = {name: [] for name in curves}
    for _ in range(games):
        scores = Scores.of(best_of(TNB, rng, trials), mu + best_of(TNB, rng, trials))
        for name, curve in curves.items():
            values[name].append(curve.find(scores, DELTA, alpha).epsilon)
    violations = {name: np.sum(np.array(v) > truth_low) for name, v in values.items()}
    assert violations["lifted"] <= allowed(games)  # 5 % of 2,000 is 100; the margin allows 131
    # A valid bound passes `allowed` with probability 1e-3; this one passes it by far (8 %) ...
    assert violations["gaussian"] > allowed(games) + 20
    # The bound is worth something too: within 30 % of the truth on average.
    assert np.mean(values["lifted"]) > 0.7 * truth_low
    # ... and with many trials it is above the truth nearly always.
    many, large = 10, 100_000
    above = 0
    for _ in range(many):
        scores = Scores.of(best_of(TNB, rng, large), mu + best_of(TNB, rng, large))
        above += gaussian.find(scores, DELTA, alpha).epsilon > truth.epsilon
    assert above >= 9


def leaky_response(
    epsilon: float, delta: float, rng: np.random.Generator, trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """The (epsilon, delta)-DP mechanism that all others are postprocessings of."""
    honest = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    sides = []
    for truth in (-1.0, 1.0):
        answer = np.where(rng.random(trials) < honest, truth, -truth)
        sides.append(np.where(rng.random(trials) < delta, 2.0 * truth, answer))
    return sides[0], sides[1]


def least_favourable(
    epsilon: float, delta: float, rng: np.random.Generator, n0: int, n1: int
) -> tuple[np.ndarray, np.ndarray]:
    """The continuous game that attains both constraints at every threshold.

    Ones are uniform, zeros have distribution function min(e^eps u + delta, 1 - e^-eps (1-delta-u)).
    """
    growth = math.exp(epsilon)
    corner = (1.0 - delta) * (1.0 - 1.0 / growth) / (growth - 1.0 / growth)
    v = rng.random(n0)
    low = np.clip((v - delta) / growth, 0.0, None)
    high = 1.0 - delta - (1.0 - v) * growth
    return np.where(v <= growth * corner + delta, low, high), rng.random(n1)


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("n0", "n1", "epsilon", "delta"),
    [(30, 200, 2.0, 0.0), (100, 40, 0.5, 1e-2), (300, 300, 1.0, 1e-5), (400, 400, 3.0, 1e-3)],
)
def test_the_scan_holds_in_its_least_favourable_game_and_wastes_little(
    n0: int, n1: int, epsilon: float, delta: float
) -> None:
    rng = np.random.default_rng(1)
    games, alpha = 1000 if n0 * n1 < 10_000 else 500, 0.05
    above = 0
    for _ in range(games):
        scores = Scores.of(*least_favourable(epsilon, delta, rng, n0, n1))
        above += scan.Scan().find(scores, delta, alpha).epsilon > epsilon
    assert above <= allowed(games, alpha)
    # Counts are whole numbers, so the error is not quite spent; but much of it is.
    assert above >= 0.4 * alpha * games


def exact_crossing(
    n0: int, n1: int, delta: float, epsilon: float, boundary: dict[int, int]
) -> float:
    """P[c_j <= boundary_j for some j] by counting lattice paths in whole numbers."""
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
                ways = [1] * (low_ones + 1)  # paths with so many ones before the next zero
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
def test_the_recursion_is_exact(
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


@pytest.mark.parametrize("n", [1, 2, 7, 100, 3000])
def test_the_band_holds_at_every_rank_at_once(n: int) -> None:
    rng = np.random.default_rng(2)
    games, alpha = 3000, 0.05
    above_each = rates.band_limit(np.arange(n + 1), n, alpha)
    uniforms = np.sort(rng.random((games, n)), axis=1)
    # With j - 1 scores at or below a threshold just under the j-th, the rate above is 1 - U_(j).
    rate_above = 1.0 - uniforms
    limit = above_each[n - np.arange(1, n + 1)]
    broken = int(np.sum(np.any(rate_above > limit, axis=1)))
    assert broken <= allowed(games, alpha)
    assert broken >= 0.6 * alpha * games


CASES: dict[str, tuple[list[float], list[float]]] = {
    "nothing": ([], []),
    "one side only": ([], [1.0, 2.0]),
    "other side only": ([1.0], []),
    "one trial": ([0.0], [1.0]),
    "constant": ([1.0] * 40, [1.0] * 40),
    "minus infinity": ([-math.inf] * 30, [-math.inf] * 30),
    "wrong way round": ([1.0] * 40, [0.0] * 40),
    "huge": ([1e308, -1e308] * 20, [1e308, -1e308] * 20),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("direction", ["higher", "lower", "both"])
def test_scores_that_say_nothing_give_zero(name: str, direction: str) -> None:
    without, with_record = CASES[name]
    bounds = lower_bounds.all_lower_bounds(
        without, with_record, repetitions=TNB, mu=1.0, direction=direction
    )
    assert all(math.isfinite(b.epsilon) for b in bounds)
    valid = [b for b in bounds if b.valid and not b.name.startswith("lifted")]
    if name == "wrong way round" and direction != "higher":
        # Low scores do speak for the record here, so whoever looks that way finds it.
        assert bounds[0].epsilon > 1.0
        assert bounds[0].direction == "lower"
    else:
        assert all(b.epsilon == 0.0 for b in valid)


def test_scores_apart_give_what_their_number_allows() -> None:
    for trials in (20, 200, 2000):
        bound = lower_bounds.lower_bound([-math.inf] * trials, [math.inf] * trials)
        # No test at level alpha can do better than the one that looks only here, at full alpha:
        # all of 2 n scores on their side of the corner, but for delta.
        single = math.log(1.0 / (1.0 - 0.05 ** (0.5 / trials)) - 1.0)
        assert 0.75 * single - 0.5 < bound.epsilon < single
        assert (bound.false_positives, bound.false_negatives) == (0, 0)
    far = lower_bounds.lower_bound([0.0] * 50, [1.0] * 500)
    assert far.trials_without == 50
    assert far.trials_with == 500
    assert far.epsilon > lower_bounds.lower_bound([0.0] * 50, [1.0] * 50).epsilon


def test_both_directions_cost_something_and_find_either() -> None:
    rng = np.random.default_rng(3)
    low, high = rng.normal(size=500), rng.normal(2.0, size=500)
    one_way = lower_bounds.lower_bound(low, high)
    both = lower_bounds.lower_bound(low, high, direction="both")
    turned = lower_bounds.lower_bound(high, low, direction="both")
    assert 0.9 * one_way.epsilon < both.epsilon < one_way.epsilon
    assert (both.direction, turned.direction) == ("higher", "lower")
    # Turning the scores upside down is the same game.
    upside_down = lower_bounds.lower_bound(-low, -high, direction="lower")
    assert upside_down.epsilon == one_way.epsilon
    assert upside_down.threshold == -one_way.threshold
    assert lower_bounds.lower_bound(high, low).epsilon == 0.0


def test_the_default_needs_no_seed_and_no_order() -> None:
    rng = np.random.default_rng(4)
    low, high = rng.normal(size=400), rng.normal(1.0, size=300)
    first = lower_bounds.lower_bound(low, high)
    assert lower_bounds.lower_bound(rng.permutation(low), rng.permutation(high)) == first
    # Nor does a strictly increasing change of scale move it.
    assert lower_bounds.lower_bound(np.exp(low), np.exp(high)).epsilon == first.epsilon


def test_more_confidence_or_ties_mean_less() -> None:
    rng = np.random.default_rng(5)
    low, high = rng.normal(size=400), rng.normal(1.5, size=400)
    values = [lower_bounds.lower_bound(low, high, confidence=c).epsilon for c in (0.5, 0.9, 0.999)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[1] > values[2] > 0.0
    deltas = [lower_bounds.lower_bound(low, high, delta=d).epsilon for d in (0.0, 1e-4, 0.05)]
    assert deltas[0] >= deltas[1] > deltas[2]
    rounded = lower_bounds.lower_bound(np.round(low), np.round(high)).epsilon
    assert rounded < values[1] * 1.2


def test_the_default_beats_the_best_valid_figures_of_others() -> None:
    """N(0,1) against N(1.5,1), 1000+1000 trials; others reach 2.33 at most."""
    rng = np.random.default_rng(6)
    bounds = [
        lower_bounds.lower_bound(rng.normal(size=1000), rng.normal(1.5, size=1000)).epsilon
        for _ in range(30)
    ]
    mean, error = np.mean(bounds), np.std(bounds) / math.sqrt(len(bounds))
    assert mean - 2.0 * error > 2.33


def test_bad_input_is_refused_in_one_line() -> None:
    good = [0.0, 1.0]
    cases = [
        (
            ([0.0, math.nan, math.nan], good),
            {},
            "scores_without must not be NaN, got 2 NaN among 3",
        ),
        ((good, [[1.0]]), {}, r"scores_with must have one dimension, got shape \(1, 1\)"),
        ((good, ["a"]), {}, "scores_with must be a list of numbers"),
        ((good, good), {"delta": 1.0}, r"delta must be in \[0, 1\), got 1.0"),
        ((good, good), {"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
        ((good, good), {"direction": "up"}, "direction must be one of higher, lower, both"),
    ]
    for scores, options, message in cases:
        with pytest.raises(ValueError, match=message):
            lower_bounds.lower_bound(*scores, **options)
    with pytest.raises(ValueError, match=r"mu must be in \(0, 10000\), got -1"):
        lower_bounds.all_lower_bounds(good, good, mu=-1)
    with pytest.raises(ValueError, match="guesses must be a whole number in"):
        lower_bounds.one_run_bounds(good, [True, False], guesses=9)
    with pytest.raises(ValueError, match="included must be one true or false per score"):
        lower_bounds.one_run_bounds(good, good)


def test_every_bound_names_its_claim() -> None:
    rng = np.random.default_rng(7)
    low, high = best_of(TNB, rng, 200), 1.0 + best_of(TNB, rng, 200)
    bounds = lower_bounds.all_lower_bounds(low, high, repetitions=TNB, mu=1.0)
    assert len({b.key for b in bounds}) == len(bounds)
    assert bounds[0] == lower_bounds.lower_bound(low, high)
    assert bounds[0].valid
    labels = {b.key: b.label for b in bounds}
    assert labels["gaussian-curve:fixed"] == "not valid for tuned outputs"
    assert labels["clopper-pearson:max-grid"] == "uncorrected"
    assert labels["bayesian:fixed"] == "Bayesian"
    assert labels["lifted-curve:fixed"] == "valid"
    assert all(b.valid == (b.label == "valid") and b.assumes and b.source for b in bounds)
    untuned = {b.key: b for b in lower_bounds.all_lower_bounds(low, high, mu=1.0)}
    assert untuned["gaussian-curve:fixed"].label == "valid"
    assert not any(key.startswith("lifted") for key in untuned)


def test_an_estimator_is_a_statistic_with_a_rule() -> None:
    rng = np.random.default_rng(70)
    low, high = best_of(TNB, rng, 200), 1.0 + best_of(TNB, rng, 200)
    by_key = {b.key: b for b in lower_bounds.all_lower_bounds(low, high, repetitions="tnb:0,0.01")}
    one = lower_bounds.ClopperPearson(rule=lower_bounds.MultiSplit())
    assert one == lower_bounds.ClopperPearson(rule=lower_bounds.MultiSplit())
    assert one(low, high) == by_key["clopper-pearson:multi-split"]
    lifted = lower_bounds.LiftedCurve("tnb:0,0.01", rule=lower_bounds.Band())
    assert lifted(low, high) == by_key["lifted-curve:band"]
    turned = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(3.0))
    upside_down = turned.mirrored(-low, -high, direction="lower")
    assert upside_down.epsilon == turned(low, high).epsilon
    # A bound of one's own has counted no trials unless it says so.
    own = lower_bounds.LowerBound("own", "rule", 1.0, 0.95, lifted.claim, upside_down.verdict)
    assert (own.trials_without, own.trials_with) == (0, 0)
    with pytest.raises(ValueError, match="rule must not go by limits of the error rates"):
        lower_bounds.Conditional(rule=lower_bounds.Band())


def test_a_bound_is_judged_by_what_is_known_of_the_game() -> None:
    rng = np.random.default_rng(71)
    low, high = best_of(TNB, rng, 50), 1.0 + best_of(TNB, rng, 50)
    game = {"empty_training_set": True, "full_batch": True, "one_plain_candidate": True}

    def labels(score: str, **different: bool) -> dict[str, str]:
        facts = facts_of_game(RandomSearch(TNB), score, "dirac", **(game | different))
        bounds = lower_bounds.all_lower_bounds(low, high, repetitions=TNB, mu=1.0, known=facts)
        return {bound.key: bound.label for bound in bounds}

    assert labels("first-coordinate")["lifted-curve:fixed"] == "valid"
    # With a training set the statistic is not N(b mu, 1) in one run.
    trained = labels("first-coordinate", empty_training_set=False)
    assert trained["lifted-curve:fixed"] == "not valid for this statistic"
    assert trained["scan:scan"] == trained["clopper-pearson:band"] == "valid"
    assert labels("val-loss")["lifted-curve:split"] == "not valid for this score"
    assert labels("val-loss")["lifted-curve:max-grid"] == "uncorrected"
    assert labels("val-loss")["gaussian-curve:fixed"] == "not valid for tuned outputs"
    unknown = facts_of_tuning(RandomSearch(TNB))
    only = lower_bounds.Conditional()(low, high, known=unknown)
    assert only.verdict.missing == (
        "independent trials",
        "each trial with its own fair coin",
    )


def test_clopper_pearson_is_that_of_statsmodels() -> None:
    from statsmodels.stats.proportion import proportion_confint

    for trials in (1, 30, 5_000, 10**7):
        count = np.unique(np.geomspace(1, trials, 40).astype(int)) - 1
        for alpha in (1e-9, 0.05, 0.5):
            theirs = proportion_confint(count, trials, alpha=2 * alpha, method="beta")[1]
            ours = rates.upper_limit(count, trials, alpha)
            np.testing.assert_allclose(ours, theirs, rtol=2e-12)
            assert np.all(ours >= theirs)


def test_clopper_pearson_is_the_exact_binomial_limit() -> None:
    for count, trials, alpha in [(0, 10, 0.05), (3, 50, 0.025), (49, 50, 0.01), (50, 50, 0.05)]:
        limit = float(rates.upper_limit(np.array([count]), trials, alpha)[0])
        if count == trials:
            assert limit == 1.0
        else:
            assert stats.binom.cdf(count, trials, limit) == pytest.approx(alpha, rel=1e-7)


def test_the_bayesian_interval_is_the_posterior_quantile() -> None:
    fp, fn, n, delta = 12, 7, 400, 1e-3
    counts = rules.ErrorCounts(np.array([fp]), np.array([fn]), n, n)
    found = lower_bounds.Bayesian().lower_limit(counts, delta, 0.05)[0]
    rng = np.random.default_rng(8)
    draws = 400_000
    fp_rate = rng.beta(fp + 0.5, n - fp + 0.5, draws)
    fn_rate = rng.beta(fn + 0.5, n - fn + 0.5, draws)
    below = np.mean(counting.epsilon_from_limits(fp_rate, fn_rate, delta) <= found)
    assert below == pytest.approx(0.05, abs=4.0 * math.sqrt(0.05 * 0.95 / draws))


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (1.0, 1e-2), (2.5, 1e-3)])
def test_the_conditional_test_holds_with_fair_coins(epsilon: float, delta: float) -> None:
    rng = np.random.default_rng(9)
    games, trials = 3000, 400
    conditional = lower_bounds.Conditional(rule=lower_bounds.FixedThreshold(0.0))
    above = 0
    for _ in range(games):
        with_record = int(rng.binomial(2 * trials, 0.5))
        without, _ = leaky_response(epsilon, delta, rng, 2 * trials - with_record)
        _, with_scores = leaky_response(epsilon, delta, rng, with_record)
        found = conditional.find(Scores.of(without, with_scores), delta, 0.05)
        above += found.epsilon > epsilon
    assert above <= allowed(games)
    assert above > 0.3 * 0.05 * games


def test_the_curve_of_the_reduced_game_is_its_exact_epsilon() -> None:
    for spec in ("fixed:1", "tnb:0,0.01", "tnb:1,0.01", "poisson:20", "two-point:0.01,100"):
        for mu in (0.247, 0.864):
            law = repetitions.parse_repetitions(spec)
            exact = reduced_exact(GaussianMechanism(mu), law, DELTA)
            assert exact.epsilon is not None
            found = counting.best_of_gaussian_epsilon(mu, law, DELTA)
            assert 0.999 * exact.epsilon < found <= exact.epsilon


def test_pooled_runs_hold_and_reach_further_than_winners() -> None:
    mu, delta = calibrate_mu(4.0, DELTA), DELTA
    truth = reduced_exact(GaussianMechanism(mu), TNB, delta)
    assert truth.epsilon is not None
    rng = np.random.default_rng(10)
    games, runs = 100, 4000
    above: dict[str, int] = {}
    for _ in range(games):
        for bound in lower_bounds.pooled_bounds(
            rng.normal(size=runs), rng.normal(mu, size=runs), TNB, delta, threshold=2.5
        ):
            above[bound.key] = above.get(bound.key, 0) + (
                bound.epsilon > truth.epsilon - truth.error
            )
    assert len(above) == 10
    assert max(above.values()) <= allowed(games)


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
def test_the_rank_sum_holds_and_wastes_little(spec: str, mu: float, n0: int, n1: int) -> None:
    law, rng, games = repetitions.parse_repetitions(spec), np.random.default_rng(18), 2000
    above = 0
    for _ in range(games):
        scores = Scores.of(winners(law, rng, n0), mu + winners(law, rng, n1))
        pairs = rank_sum.pairs_in_order(scores)
        above += rank_sum.mu_lower_limit(pairs, n0, n1, law, 0.05) > mu
    # The reference games are held to 4.3 % on average, so that 99 of 100 draws of them are safe.
    assert 0.6 * 0.05 * games < above <= allowed(games)


def test_the_rank_sum_holds_for_any_score_of_a_gaussian_base() -> None:
    """Rounded, folded and noisy scores of N(b mu, 1), the order by which the best is chosen."""
    rng, games, n, mu = np.random.default_rng(19), 500, 300, 1.0
    law = repetitions.parse_repetitions("geometric:0.2")
    for score in (np.round, lambda x: np.abs(x + 1.0), lambda x: x + rng.normal(size=x.shape)):
        above = 0
        for _ in range(games):
            sides = []
            for mean in (0.0, mu):
                runs = law.sample(rng, n)
                scores = score(rng.normal(mean, 1.0, runs.sum()))
                starts = np.concatenate([[0], np.cumsum(runs)[:-1]])
                sides.append(np.maximum.reduceat(scores, starts))
            pairs = rank_sum.pairs_in_order(Scores.of(*sides))
            above += rank_sum.mu_lower_limit(pairs, n, n, law, 0.05) > mu
        assert above <= allowed(games)


def test_the_rank_sum_reaches_further_than_any_threshold() -> None:
    """Means of 60 games, and what a threshold known in advance gives on the same scores."""
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


def test_the_rank_sum_at_a_tiny_error_falls_back_and_is_monotone() -> None:
    n, law = 1000, repetitions.Fixed(1)
    alphas = (0.2, 0.05, 0.01, 1e-3, 1e-4, 1e-7)
    limits = [rank_sum.mu_lower_limit(900_000, n, n, law, alpha) for alpha in alphas]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] > 1.0  # the means are 1.81 apart
    # As many pairs as in one of the allowed games at mu = 0 refute nothing; one more does.
    few = rank_sum._reference_games(20, 30, law)
    reached = round(few._reached(0, 5))
    assert few.limit(reached, 5) == -math.inf < few.limit(reached + 1, 5)
    # Hoeffding's inequality is never the stronger one.
    games = rank_sum._reference_games(n, n, law)
    for alpha in (0.2, 0.05, 0.01):
        assert games.limit_by_hoeffding(900_000, alpha) < rank_sum.mu_lower_limit(
            900_000, n, n, law, alpha
        )
    more = [rank_sum.mu_lower_limit(u, n, n, law, 0.05) for u in range(500_000, 10**6, 9_999)]
    assert more == sorted(more)
    assert more[0] == -math.inf
    with pytest.raises(ValueError, match="rule must have a threshold"):
        lower_bounds.ClopperPearson(rule=lower_bounds.RankSum())([0.0], [1.0])


def test_the_selected_rate_covers_when_the_statistic_is_not_the_score() -> None:
    rng = np.random.default_rng(11)
    # Score and released statistic correlate; the truth by playing the protocol many times.
    for spec, runs, correlation in [("geometric:0.1", 2000, 0.6), ("poisson:3", 300, 1.0)]:
        law, games, alpha = repetitions.parse_repetitions(spec), 300, 0.3
        many = law.sample(rng, 200_000)
        score = winners(law, rng, len(many))
        noise = math.sqrt(1.0 - correlation**2) * rng.normal(size=len(many))
        rate = float(np.mean(correlation * score + noise > 1.5))
        limits = []
        for _ in range(games):
            scores = rng.normal(size=runs)
            noise = math.sqrt(1.0 - correlation**2) * rng.normal(size=runs)
            hits = correlation * scores + noise > 1.5
            limits.append(pooled.selected_rate_limit(scores, hits, law, alpha))
        # Chernoff's constant leaves room, so nearly no limit is broken; and none is far off.
        assert np.sum(np.array(limits) < rate - 4.0 * math.sqrt(rate / len(many))) <= 0.1 * games
        trials = runs / law.mean
        assert np.mean(limits) < rate + 4.0 * math.sqrt(rate * (1.0 - rate) / trials)
    # Without a hit it is the limit of so many winners; without runs it says nothing.
    nothing = pooled.selected_rate_limit(np.arange(100.0), np.zeros(100, bool), law, 0.05)
    groups, too_long = pooled._groups(100, law)
    assert 0.6 * 100 / law.mean < groups < 100 / law.mean
    assert nothing == pytest.approx(1.0 - 0.05 ** (1.0 / groups), abs=20.0 * too_long)
    assert pooled.selected_rate_limit([], [], law, 0.05) == 1.0
    # If every run is a hit, so is every winner of one run or more.
    every = repetitions.parse_repetitions("geometric:0.5")
    assert pooled.selected_rate_limit(np.arange(200.0), np.ones(200, bool), every, 0.05) == 1.0


def test_who_chooses_a_threshold_does_not_judge_it() -> None:
    # What separates the even trials, by which the threshold is chosen, is not in the odd ones.
    even = np.arange(200) % 2 == 0
    split = lower_bounds.ClopperPearson(rule=lower_bounds.Split())
    assert split(np.zeros(200), np.where(even, 1.0, 0.0), 0.0).epsilon == 0.0
    assert split(np.zeros(200), np.ones(200), 0.0).epsilon > 3.0


def test_a_tuning_of_one_run_that_is_told_apart_is_bounded_exactly() -> None:
    # No false positive and no false negative of 200 runs, each at half the error.
    runs, chosen_by = 200, np.linspace(0.0, 1.0, 200)
    sides = (chosen_by, np.zeros(runs)), (chosen_by, np.ones(runs))
    found = lower_bounds.selected_bound(*sides[0], *sides[1], "fixed:1", threshold=0.5, delta=0.0)
    rate = 1.0 - 0.025 ** (1.0 / runs)
    exact = math.log((1.0 - rate) / rate)
    assert exact * (1.0 - 1e-5) <= found.epsilon <= exact


def test_a_tuning_by_any_score_is_bounded_from_all_its_runs() -> None:
    """The score is noise beside the released statistic: the winner is any run."""
    rng, mu, trials = np.random.default_rng(25), 3.0, 1000
    runs = round(trials * TNB.mean)
    truth = GaussianMechanism(mu).epsilon(DELTA)
    values = []
    for _ in range(5):
        low, high = rng.normal(size=runs), rng.normal(mu, size=runs)
        noise = rng.normal(size=(2, runs))
        bound = lower_bounds.selected_bound(noise[0], low, noise[1], high, TNB, threshold=3.0)
        values.append(bound.epsilon)
    assert bound.valid
    assert bound.key == "pooled-any-score:fixed"
    assert 3.5 < np.mean(values) < max(values) < truth


def test_one_run_bounds_hold_with_many_independent_canaries() -> None:
    rng = np.random.default_rng(12)
    games, canaries, epsilon, mu = 30, 200, 1.0, 1.0
    gaussian_truth = GaussianMechanism(mu).epsilon(DELTA)
    above: dict[str, int] = {}
    for _ in range(games):
        coins = rng.random(canaries) < 0.5
        honest = rng.random(canaries) < math.exp(epsilon) / (1.0 + math.exp(epsilon))
        answers = np.where(honest, coins, ~coins).astype(float)
        normal = rng.normal(size=canaries) + mu * coins
        for scores, truth in [(answers, epsilon), (normal, gaussian_truth)]:
            for bound in lower_bounds.one_run_bounds(scores, coins, DELTA, guesses=canaries // 2):
                if truth == epsilon and bound.name == "one-run-gaussian-curve":
                    continue
                key = f"{bound.key} {truth:.1f}"
                above[key] = above.get(key, 0) + (bound.epsilon > truth)
    assert len(above) == 9
    assert max(above.values()) <= allowed(games)
    assert above["one-run:fixed 1.0"] > 0  # randomised response spends the error


def test_one_run_reproduces_the_published_p_value() -> None:
    # All guesses right with delta = 0: q^r.
    q = math.exp(2.0) / (1.0 + math.exp(2.0))
    assert one_run.p_value(50, 20, 20, 2.0, 0.0) == pytest.approx(q**20)
    assert one_run.p_value(50, 20, 0, 2.0, 0.0) == 1.0
    by_hand = stats.binom.sf(14, 20, q)
    slope = max((stats.binom.sf(14 - i, 20, q) - by_hand) / i for i in range(1, 16))
    expected = by_hand + 2 * 50 * 1e-4 * slope
    assert one_run.p_value(50, 20, 15, 2.0, 1e-4) == pytest.approx(expected)


@pytest.mark.slow
def test_a_million_scores_say_nearly_all_there_is() -> None:
    rng = np.random.default_rng(13)
    low, high = rng.normal(size=500_000), rng.normal(1.0, size=500_000)
    bound = lower_bounds.lower_bound(low, high)
    assert 2.5 < bound.epsilon < GaussianMechanism(1.0).epsilon(DELTA)
    # All pairs see what one threshold cannot: the truth is 4.377.
    all_pairs = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())(low, high)
    assert 4.33 < all_pairs.epsilon < GaussianMechanism(1.0).epsilon(DELTA)


@pytest.mark.slow
def test_the_largest_refuted_member_of_a_family_is_below_the_truth() -> None:
    """Families by profile: the tuned Gaussian with any score, and subsampled DP-SGD."""
    rng = np.random.default_rng(14)
    mu, trials, games = calibrate_mu(4.0, DELTA), 1000, 4
    above = 0
    profile = cache(lambda m: RegionCurve(GaussianMechanism(m).pairs[0], TNB, 1 << 11).delta)
    values = []
    for _ in range(games):
        # An audit of the first-coordinate score; the claim is about the base's worst tuning.
        bound = lower_bounds.family_bound(
            best_of(TNB, rng, trials),
            mu + best_of(TNB, rng, trials),
            profile,
            lambda m: m,
            (1e-2, 10.0),
            "Gaussian base, any score",
            threshold=3.3,
        )
        values.append(bound.epsilon)
        above += bound.epsilon > mu
    assert above <= allowed(games)
    assert np.mean(values) > 0.3 * mu

    def lost(sigma: float, rate: float, steps: int, with_record: bool, size: int) -> np.ndarray:
        x = rng.normal(0.0, sigma, (size, steps))
        if with_record:
            x += rng.random((size, steps)) < rate
        ratio = np.log(rate) + (x - 0.5) / sigma**2
        return np.logaddexp(np.log1p(-rate), ratio).sum(axis=1)

    truth = DpSgd(0.8, 20, 0.2).epsilon(DELTA)
    bound = lower_bounds.family_bound(
        lost(0.8, 0.2, 20, False, 2000),
        lost(0.8, 0.2, 20, True, 2000),
        lambda s: DpSgd(1.0 / s, 20, 0.2).delta,
        lambda s: DpSgd(1.0 / s, 20, 0.2).epsilon(DELTA),
        (0.6, 2.0),
        "DP-SGD with Poisson sampling, strength one over the noise multiplier",
    )
    assert 0.4 * truth < bound.epsilon < truth


def test_the_split_order_curve_holds_and_sees_further_than_counting() -> None:
    rng = np.random.default_rng(15)
    trials, games = 1000, 300
    game = next(g for g in coverage_study.games(trials) if g.name.startswith("worst order"))
    assert game.threshold is not None
    assert game.split_top is not None
    rule = lower_bounds.FixedThreshold(game.threshold)
    curve = lower_bounds.WorstOrderCurve(TNB, game.split_top, rule=rule)
    mus, by_counting = [], []
    for _ in range(games):
        scores = Scores.of(*game.sample(rng, trials))
        mus.append(rule.choose(scores, curve, DELTA, 0.05).limit)
        counted = lower_bounds.ClopperPearson(rule=rule).find(scores, DELTA, 0.05)
        by_counting.append(counted.epsilon)
    assert np.sum(np.array(mus) > calibrate_mu(4.0, DELTA)) <= allowed(games)
    # The attack's own figure: about 2.45 by counting alone where the paper's score gives 1.94.
    assert 2.3 < np.mean(by_counting) < 2.8
    assert curve.epsilon_at(float(np.mean(mus)), DELTA) > 1.3 * np.mean(by_counting)


def test_the_worst_order_refutes_a_bound_made_for_increasing_scores() -> None:
    """1e5 + 1e5 trials, eps_B = 1, tnb:1,0.01: more than `reduced-renyi`, assuming nothing."""
    law, trials, mu = repetitions.parse_repetitions("tnb:1,0.01"), 100_000, calibrate_mu(1.0, DELTA)
    order, threshold = attack_order(mu, law, DELTA, trials)
    rng = np.random.default_rng(16)
    low = order.best(law.sample(rng, trials), 0.0, rng)
    high = order.best(law.sample(rng, trials), mu, rng)
    published = reduced_renyi(GaussianMechanism(mu), law, DELTA).epsilon
    assert published is not None
    fixed = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(threshold))
    for estimator in (lower_bounds.Scan(), fixed):
        assert estimator(low, high).epsilon > published + 0.1


@given(
    without=st.lists(st.integers(-6, 1), min_size=25, max_size=60),
    with_record=st.lists(st.integers(-1, 6), min_size=25, max_size=60),
    at=st.integers(0, 59),
    delta=st.sampled_from([0.0, 1e-5, 0.05]),
)
@settings(max_examples=30)
def test_clearer_scores_never_mean_less(
    without: list[int], with_record: list[int], at: int, delta: float
) -> None:
    """The validity of the scan rests on this: its evidence is monotone in every score."""
    before = lower_bounds.lower_bound(without, with_record, delta).epsilon
    clearer = list(with_record)
    clearer[at % len(clearer)] += 2
    lower = list(without)
    lower[at % len(lower)] -= 2
    # The inversion stops within 2e-3 standard deviations of its target.
    assert lower_bounds.lower_bound(without, clearer, delta).epsilon >= before - 0.01
    assert lower_bounds.lower_bound(lower, with_record, delta).epsilon >= before - 0.01


@pytest.mark.parametrize(
    ("n0", "n1", "delta"),
    [(1, 10**5, 1e-5), (10**5, 1, 1e-5), (100, 100, 0.9), (1000, 1000, 0.5), (50, 50, 1e-300)],
)
def test_extreme_numbers_and_deltas_are_answered(n0: int, n1: int, delta: float) -> None:
    rng = np.random.default_rng(17)
    bound = lower_bounds.lower_bound(rng.normal(size=n0), rng.normal(2.0, size=n1), delta)
    assert 0.0 <= bound.epsilon < math.log(max(n0, n1))
    none = lower_bounds.lower_bound(rng.normal(size=n0), rng.normal(size=n1), delta)
    assert none.epsilon < 3.0


@pytest.mark.parametrize("log_odds", [-3.0, 0.0, 5.0])
def test_the_scan_cuts_no_tail_of_the_ones_between_its_ranks(log_odds: float) -> None:
    for zeros in (1, 50):
        chances, first = scan._negative_binomial(zeros, log_odds, 10**7)
        law = stats.nbinom(zeros, special.expit(log_odds))
        assert chances == pytest.approx(law.pmf(first + np.arange(len(chances))), rel=1e-6)
        assert law.cdf(first - 1) + law.sf(first + len(chances) - 1) < 1e-14


def test_both_tails_together_are_exact_in_their_worst_game() -> None:
    """P[M <= m] by play and by formula: 4 standard deviations, and at most 1 % rounded up."""
    rng, games = np.random.default_rng(22), 4_000
    for n0, n1, epsilon, delta in [(12, 10, 1.0, 0.05), (30, 40, 2.0, 1e-5), (50, 50, 0.3, 0.6)]:
        fewest = np.array(
            [
                two_tails.fewest_errors(Scores.of(*least_favourable(epsilon, delta, rng, n0, n1)))[
                    0
                ]
                for _ in range(games)
            ]
        )
        for errors in np.unique(np.quantile(fewest, [0.02, 0.1, 0.5])).astype(int):
            played = np.mean(fewest <= errors)
            found = two_tails.probability(n0, n1, delta, epsilon, int(errors))
            slack = 4.0 * math.sqrt(played * (1.0 - played) / games)
            assert played - slack < found < 1.03 * played + slack
        # More errors, or a smaller epsilon, are less telling.
        at_epsilon = [two_tails.probability(n0, n1, delta, e, 3) for e in (0.0, 0.5, 1.5, 4.0)]
        assert at_epsilon == sorted(at_epsilon)


def test_perfect_separation_and_large_deltas_prove_what_both_tails_together_can() -> None:
    apart = lower_bounds.lower_bound([0.0] * 1000, [1.0] * 1000)
    assert apart.epsilon == pytest.approx(6.07, abs=0.005)
    assert (apart.false_positives, apart.false_negatives, apart.threshold) == (0, 0, 0.0)
    # P[all in order] = ((1 - q)^n, with q = 1 / (1 + e^eps) up to delta) = 0.2 alpha.
    q = 1.0 - 0.01 ** (1.0 / 2000.0)
    assert apart.epsilon == pytest.approx(math.log(1.0 / q - 1.0), abs=0.01)
    # The scan alone gives nothing here, Clopper and Pearson's limits 0.57.
    large = lower_bounds.lower_bound([0.0] * 100, [1.0] * 100, delta=0.9)
    limits = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(0.5))
    assert large.epsilon > limits([0.0] * 100, [1.0] * 100, delta=0.9).epsilon > 0.5


def test_a_game_may_stop_at_any_look() -> None:
    """Randomised response by a threshold; a game is broken if any of seven looks is."""
    rng, epsilon, games, alpha = np.random.default_rng(23), 1.0, 1000, 0.2
    sizes = lower_bounds.doubling(1280, first=20)
    assert sizes == (20, 40, 80, 160, 320, 640, 1280)
    counted = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(0.0))
    broken = {"planned": 0, "unplanned": 0, "unpaid": 0}

    @cache  # the scores are -1 and 1: how many there are is all there is to know
    def is_broken(name: str, number: int, low_ones: int, high_ones: int) -> bool:
        low, high = (
            np.repeat([-1.0, 1.0], [sizes[number - 1] - ones, ones])
            for ones in (low_ones, high_ones)
        )
        looks = {
            "planned": len(sizes),
            "unplanned": lower_bounds.SequentialPlan(number=number),
            "unpaid": None,
        }[name]
        return counted(low, high, 0.0, 1.0 - alpha, looks=looks).epsilon > epsilon

    for _ in range(games):
        low, high = leaky_response(epsilon, 0.0, rng, sizes[-1])
        ones = [[int((side[:size] > 0.0).sum()) for side in (low, high)] for size in sizes]
        for name in broken:
            broken[name] += any(is_broken(name, look, *at) for look, at in enumerate(ones, 1))
    assert max(broken["planned"], broken["unplanned"]) <= allowed(games, alpha)
    assert broken["unpaid"] > allowed(games, alpha)
    shares = [lower_bounds.SequentialPlan(number=j).share for j in range(1, 2000)]
    assert 0.999 < sum(shares) < 1.0
    for wrong in ({"planned": 0}, {"planned": 3, "number": 4}, {"number": 0}):
        with pytest.raises(ValueError, match="must be a whole number"):
            lower_bounds.SequentialPlan(**wrong)


def test_the_ceiling_is_what_no_game_can_pass_and_trials_needed_is_its_inverse() -> None:
    rng = np.random.default_rng(24)
    for trials in (7, 50, 1000):
        most = lower_bounds.max_detectable_epsilon(trials, trials)
        assert lower_bounds.trials_needed(most) == trials
        for mu in (1.0, 4.0, 8.0):
            low, high = rng.normal(size=trials), rng.normal(mu, size=trials)
            assert lower_bounds.lower_bound(low, high).epsilon <= most
    assert lower_bounds.max_detectable_epsilon(0, 10) == 0.0
    assert lower_bounds.max_detectable_epsilon(
        500, 500, looks=5
    ) < lower_bounds.max_detectable_epsilon(500, 500)
    assert lower_bounds.max_detectable_epsilon(
        500, 500, confidence=0.5
    ) > lower_bounds.max_detectable_epsilon(500, 500)
    # 2 n scores all in order: n = log(1 / (0.2 alpha)) / 2 * (e^eps + 1), whatever the size.
    for epsilon in (3.0, 10.0, 40.0):
        expected = math.log(1.0 / 0.01) / 2.0 * (math.exp(epsilon) + 1.0)
        assert lower_bounds.trials_needed(epsilon) == pytest.approx(expected, rel=0.06)
    with pytest.raises(ValueError, match="epsilon must be in"):
        lower_bounds.trials_needed(-1.0)


def test_numbers_beyond_the_arithmetic_are_refused_in_one_line() -> None:
    for confidence in (1.0 - 1e-12, 1.0 - 1e-10):
        with pytest.raises(ValueError, match=r"confidence must be at most 1 - 1e-09, beyond which"):
            lower_bounds.lower_bound([0.0], [1.0], confidence=confidence)
    with pytest.raises(ValueError, match="scores_without must be numbers that a float can hold"):
        lower_bounds.lower_bound([10**400], [1.0])
    sure = lower_bounds.lower_bound([0.0] * 500, [1.0] * 500, confidence=1.0 - 1e-8)
    assert 2.0 < sure.epsilon < lower_bounds.lower_bound([0.0] * 500, [1.0] * 500).epsilon
