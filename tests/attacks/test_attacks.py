"""Attacks on every bound: exact distributions, trials, and brute force over thousands of cases."""

import itertools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from audit import attacks, lower_bounds, protocols, repetitions, upper_bounds
from audit.accounting import DiscreteMechanism, GaussianMechanism
from audit.attacks import AdaptiveAttack, SubsetAttack, TunedOrder
from audit.lower_bounds import FixedThreshold
from audit.lower_bounds.scores import ErrorCounts
from audit.numerics import FloatArray
from audit.orders import SplitOrder
from studies.accepted_tails import AcceptedTailsCurve
from studies.papers import REPRODUCTIONS
from studies.papers.attacks import FoldedOrderCurve, PlayedOrder, play_attack
from studies.papers.max_provable_epsilon import _nearest, max_provable_epsilon

DELTA = 1e-5
SLOW = pytest.mark.slow
CASES = 3000

Place = tuple[int, int]  # a candidate and its output


def channels(rng: np.random.Generator, outputs: int, inputs: int) -> FloatArray:
    """Random channels [CASES, inputs, outputs]; half of them nearly deterministic."""
    shape = CASES, inputs
    noisy = rng.dirichlet(np.full(outputs, 0.5), shape)
    sharp = rng.dirichlet(np.full(outputs, 0.02), shape)
    return np.where(rng.random(CASES)[:, None, None] < 0.5, noisy, sharp)


def postprocessed(rng: np.random.Generator, base: DiscreteMechanism, outputs: int) -> FloatArray:
    """Pairs of distributions [2, CASES, outputs]: random postprocessings of one run of a base."""
    sides = np.stack([base.p, base.q])
    return np.einsum("si,cio->sco", sides, channels(rng, outputs, len(base.p)))


def largest_divergences(
    places: Sequence[Place], mass: Callable[[Place, Set[Place]], FloatArray], epsilon: float
) -> FloatArray:
    """The largest hockey-stick divergence of each case [CASES], over directions and orders.

    Args:
        places: the possible winners.
        mass: maps a place and the set preferred to it to its probabilities [2, CASES] of winning.
        epsilon: epsilon of the divergence.
    """
    best: dict[frozenset[Place], FloatArray] = {frozenset(): np.zeros((2, CASES))}
    for size in range(len(places)):
        for chosen in itertools.combinations(places, size):
            preferred = frozenset(chosen)
            for place in set(places) - preferred:
                p, q = mass(place, preferred)
                gain = np.maximum(
                    np.stack([p - math.exp(epsilon) * q, q - math.exp(epsilon) * p]), 0
                )
                after = preferred | {place}
                best[after] = np.maximum(best.get(after, 0.0), best[preferred] + gain)
    return best[frozenset(places)].max(axis=0)


def check(
    base: DiscreteMechanism, protocol: protocols.Protocol, divergences: FloatArray, epsilon: float
) -> None:
    """No bound is below epsilon at the largest delta of all cases, which is not negligible."""
    delta = float(divergences.max()) * (1 - 1e-9)
    assert delta > 1e-3
    rows = upper_bounds.all_upper_bounds(base, protocol, delta)
    known = [row for row in rows if row.applies and row.claim.any_score]
    assert known
    for row in known:
        assert row.epsilon >= epsilon * (1 - 1e-6), row.name


BASES = (
    DiscreteMechanism(np.array([0.56, 0.44]), np.array([0.17, 0.83])),
    DiscreteMechanism(np.array([0.1, 0.6, 0.3]), np.array([0.3, 0.6, 0.1])),
)


@pytest.mark.parametrize(
    ("base", "epsilon"), [(BASES[0], 1.0), pytest.param(BASES[1], 0.6, marks=SLOW)]
)
@pytest.mark.parametrize("inclusion", [1.0, 0.4])
def test_no_order_leaks_more_than_the_bounds_on_grids(
    base: DiscreteMechanism, epsilon: float, inclusion: float
) -> None:
    rng = np.random.default_rng(1)
    outputs = [postprocessed(rng, base, 2) for _ in range(3)]
    places = [(i, y) for i in range(3) for y in range(2)]

    def mass(place: Place, preferred: Set[Place]) -> FloatArray:
        i, y = place
        found = inclusion * outputs[i][:, :, y]
        for j in range(3):
            if j != i:
                better = sum((outputs[j][:, :, z] for k, z in preferred if k == j), 0.0)
                found = found * (1.0 - inclusion * better)
        return found

    check(base, protocols.Grid(3, inclusion), largest_divergences(places, mass, epsilon), epsilon)


@pytest.mark.parametrize(
    "spec",
    ["fixed:3", pytest.param("tnb:0,0.1", marks=SLOW), pytest.param("poisson:2", marks=SLOW)],
)
def test_no_order_leaks_more_than_the_bounds_on_searches(spec: str) -> None:
    rng, runs, epsilon = np.random.default_rng(2), repetitions.parse_repetitions(spec), 0.8
    prior = rng.dirichlet([1.0, 1.0], CASES).T
    outputs = [postprocessed(rng, BASES[0], 2) for _ in range(2)]
    places = [(i, y) for i in range(2) for y in range(2)]

    def one(place: Place) -> FloatArray:
        return prior[place[0]] * outputs[place[0]][:, :, place[1]]

    def mass(place: Place, preferred: Set[Place]) -> FloatArray:
        better = sum((one(other) for other in preferred), np.zeros((2, CASES)))
        before, after = (np.clip(1.0 - s, 0.0, 1.0) for s in (better, better + one(place)))
        return runs.phi(before) - runs.phi(after)

    divergences = largest_divergences(places, mass, epsilon)
    check(BASES[0], protocols.RandomSearch(runs), divergences, epsilon)


def test_no_order_leaks_more_than_the_bounds_on_adaptive_searches() -> None:
    # Two runs of two candidates; the output of the first sets the density of the second, 0.6 or
    # 1.4.
    rng, epsilon = np.random.default_rng(3), 0.9
    outputs = [postprocessed(rng, BASES[0], 2) for _ in range(2)]
    places = [(i, y) for i in range(2) for y in range(2)]
    first = rng.choice([0.3, 0.7], CASES)
    second = {place: rng.choice([0.3, 0.7], CASES) for place in places}

    def one(place: Place, share: FloatArray) -> FloatArray:
        return (share if place[0] == 0 else 1.0 - share) * outputs[place[0]][:, :, place[1]]

    def mass(place: Place, preferred: Set[Place]) -> FloatArray:
        worse = set(places) - set(preferred)
        found = one(place, first) * sum(one(other, second[place]) for other in worse)
        return found + sum(
            one(other, first) * one(place, second[other]) for other in worse - {place}
        )

    divergences = largest_divergences(places, mass, epsilon)
    check(BASES[0], protocols.Adaptive("fixed:2", 0.6, 1.4), divergences, epsilon)


@pytest.mark.parametrize("spec", ["until:0.3", "stopping:0.25"])
def test_no_accepted_set_leaks_more_than_the_bounds(spec: str) -> None:
    rng, protocol, epsilon = np.random.default_rng(4), protocols.parse_protocol(spec), 0.5
    stop = getattr(protocol, "stop", 0.0)
    outputs = postprocessed(rng, BASES[1], 4)
    divergences = np.zeros(CASES)
    for size in range(1, 5):
        for accepted in itertools.combinations(range(4), size):
            chance = outputs[:, :, accepted].sum(axis=2)
            allowed = stop + (chance.min(axis=0) >= getattr(protocol, "acceptance", 0.0)) > 0
            total = np.maximum(stop + (1.0 - stop) * chance, 1e-300)
            nothing = stop * (1.0 - chance)[:, :, None]
            p, q = np.concatenate([outputs[:, :, accepted], nothing], axis=2) / total[:, :, None]
            for one, other in ((p, q), (q, p)):
                divergence = np.maximum(one - math.exp(epsilon) * other, 0.0).sum(axis=1)
                divergences = np.maximum(divergences, np.where(allowed, divergence, 0.0))
    check(BASES[1], protocol, divergences, epsilon)


@pytest.mark.parametrize("final", ["rest", "all"])
def test_no_order_leaks_more_than_the_bounds_on_subsets(final: str) -> None:
    # The best of two runs by every order of three outputs; the final run depends on the winner.
    rng, q, epsilon = np.random.default_rng(5), 0.4, 0.7
    tuned = postprocessed(rng, BASES[1], 3)
    directed = np.stack([postprocessed(rng, BASES[1], 2) for _ in range(3)], axis=2)
    divergences = np.zeros(CASES)
    for order in itertools.permutations(range(3)):
        left = 1.0 - np.cumsum(tuned[:, :, order], axis=2)
        left = np.concatenate([np.ones((2, CASES, 1)), np.maximum(left, 0.0)], axis=2)
        best = (left[:, :, :-1] ** 2 - left[:, :, 1:] ** 2)[:, :, np.argsort(order)]
        for side in (0, 1):
            # Either distribution of the base may be the one without the record.
            w, v = best[side], best[1 - side]
            x, y = directed[side], directed[1 - side]
            without = w[:, :, None] * x
            if final == "rest":
                with_record = q * v[:, :, None] * x + (1 - q) * w[:, :, None] * y
            else:
                with_record = (q * v + (1 - q) * w)[:, :, None] * y
            for one, other in ((without, with_record), (with_record, without)):
                divergence = np.maximum(one - math.exp(epsilon) * other, 0.0).sum(axis=(1, 2))
                divergences = np.maximum(divergences, divergence)
    check(BASES[1], protocols.Subset("fixed:2", q, final), divergences, epsilon)


def test_adaptive_attack_has_its_stated_probabilities() -> None:
    protocol = protocols.parse_protocol("adaptive:0.3,3/tnb:1,0.2")
    attack = AdaptiveAttack(0.9, protocol, (3.0, 1.2), (-1.1, -2.0), (-0.3, 1.0), 0.6)
    shares = attack.back_shares
    mass = (1.0 - 0.3) / (3.0 - 0.3)
    for density in (shares / mass, (1.0 - shares) / (1.0 - mass)):
        assert np.all((density >= 0.3 - 1e-12) & (density <= 3.0 + 1e-12))
    rng = np.random.default_rng(6)
    # Two exact binomial tests, which fail by chance with probability 2e-4.
    for mean, chance in zip((0.0, 0.9), attack.chances(), strict=True):
        count = int(attack.play(rng, 100_000, mean).sum())
        assert stats.binomtest(count, 100_000, chance).pvalue > 1e-4
    # With c = C = 1, it is a split order, which has a closed form.
    free = protocols.parse_protocol("adaptive:1,1/tnb:1,0.2")
    plain = AdaptiveAttack(0.9, free, (1.2, 1.2), (-1.1, -1.1), (-0.3, 1.0), 0.6)
    for mean, chance in zip((0.0, 0.9), plain.chances(), strict=True):
        above, below = SplitOrder(1.2).tails(-1.1, mean)
        phi_survival = free.repetitions.phi_survival
        expected = phi_survival(above + below) - phi_survival(above)
        assert chance == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.slow
def test_adaptive_attack_leaks_more_than_independent_draws() -> None:
    spec, base = "tnb:1,0.1", GaussianMechanism(0.24721)
    protocol = protocols.parse_protocol(f"adaptive:0.5,2/{spec}")
    attack = attacks.adaptive_attack(0.24721, protocol, DELTA)
    without_freedom = upper_bounds.region(base, spec, DELTA).epsilon
    cost = upper_bounds.tuning_cost(base, protocol, DELTA).epsilon
    assert 1.15 * without_freedom < attack.epsilon(DELTA) < cost
    assert attack.epsilon(DELTA) > 0.34 * cost
    assert attack.epsilon(0.5) == 0.0


def test_subset_attack_on_no_record_and_on_all_records() -> None:
    mu, spec = 0.6, "tnb:1,0.2"
    one = GaussianMechanism(mu).epsilon(DELTA)
    order = SplitOrder(2.0)
    none = SubsetAttack(mu, protocols.Subset(spec, 0.0), order).epsilon(DELTA)
    assert none == pytest.approx(one, rel=1e-4)
    everything = SubsetAttack(mu, protocols.Subset(spec, 1.0), order).epsilon(DELTA)
    assert everything == pytest.approx(TunedOrder(mu, spec, order).epsilon(DELTA), rel=2e-3)


@pytest.mark.parametrize("final", ["rest", pytest.param("all", marks=SLOW)])
def test_subset_attack_is_below_the_cost_and_plays_its_density_ratio(final: str) -> None:
    mu, protocol = 0.6, protocols.Subset("tnb:1,0.2", 0.3, final)
    attack = attacks.subset_attack(mu, protocol, DELTA)
    cost = upper_bounds.tuning_cost(GaussianMechanism(mu), protocol, DELTA).epsilon
    assert 0.85 * cost < attack.epsilon(DELTA) <= cost
    # A density ratio has mean 1 without the record, its inverse with it: 4 standard errors.
    rng = np.random.default_rng(7)
    for mean, sign in ((0.0, 1.0), (mu, -1.0)):
        ratio = np.exp(sign * attack.play(rng, 40_000, mean))
        assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / 200.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spec", "attained", "proved", "by_curve"),
    [
        ("until:0.1", 0.999, 0.7, 0.7),
        pytest.param("tnb:1,0.1", 0.999, 0.6, 0.7, marks=SLOW),
        pytest.param("stopping:0.1", 0.999, 0.7, 0.7, marks=SLOW),
        pytest.param("grid:10", 0.999, 0.6, None, marks=SLOW),
        pytest.param("adaptive:0.5,2/tnb:1,0.1", 0.3, 0.2, None, marks=SLOW),
        pytest.param("subset:0.3/tnb:1,0.1", 0.6, 0.4, None, marks=SLOW),
    ],
)
def test_attacks_prove_much_of_the_cost_and_not_more(
    spec: str, attained: float, proved: float, by_curve: float | None
) -> None:
    # 4,000 + 4,000 trials. Each bound is wrong in 5 % of audits; the seed is fixed.
    settings = {"mus": [0.5], "deltas": [0.01], "protocols": [spec], "seed": 3, "trials": 4000}
    result = REPRODUCTIONS["attacks"].run(settings)
    assert any(spec in line for line in result.lines)
    (row,) = result.table.to_dict("records")
    assert attained < row["attained / cost"] <= 1.0
    assert proved < row["proved / cost"] <= 1.0
    if not math.isnan(row["ceiling"]):
        assert row["proved / cost"] < row["ceiling / cost"] + 0.05
        assert row["ceiling"] <= row["attained"] * (1 + 1e-6)
    if by_curve is None:
        assert math.isnan(row["proved by curve"])
    else:
        assert by_curve < row["proved by curve / cost"] <= 1.0


def test_played_order_has_its_stated_probabilities_and_its_curve_covers() -> None:
    mu, runs, trials = 1.0, repetitions.parse_repetitions("binomial:6,0.4"), 20_000
    order, epsilon = attacks.worst_case_order(mu, runs, 1e-2)
    search = PlayedOrder(TunedOrder(mu, runs, order, 0.02))
    rng = np.random.default_rng(9)
    left, right = search.game.edges
    at = right[np.argmin(abs(right - order.fold + 0.4))]
    curve = FoldedOrderCurve(runs, order.fold, order, rule=FixedThreshold(float(at)))
    below = np.append(right <= curve.rule.threshold, False)
    for mean, chances in zip((0.0, mu), search.probabilities, strict=True):
        played = search.play(mean, trials, rng)
        # The cells with the largest ratios, those below the threshold, and no run: exact binomial
        # tests, which fail by chance with probability 6e-4.
        large = search.log_ratio > np.median(search.log_ratio[played])
        for event in (large, below, np.arange(len(below)) == len(left)):
            count = int(event[played].sum())
            assert stats.binomtest(count, trials, chances[event].sum()).pvalue > 1e-4
    assert curve.rate_below(mu) == pytest.approx(search.probabilities[1][below].sum(), rel=1e-3)
    # 10 audits with 95 % bounds: more than 4 are wrong with probability 6e-5.
    counts = rng.binomial(trials, curve.rate_below(mu), 10)
    limits = curve.lower_limit(ErrorCounts(0 * counts, counts, trials, trials), 1e-2, 0.05)
    assert np.sum(limits > mu) <= 4
    assert np.mean(limits) > 0.95 * mu
    scores = np.append(right, np.inf)[search.play(mu, trials, rng)]
    proved = curve(np.zeros(trials), scores, 1e-2).epsilon
    assert 0.9 * epsilon < proved < 1.02 * epsilon
    rates = [curve.rate_below(value) for value in (0.0, 0.5, 1.0, 2.0)]
    assert rates == sorted(rates, reverse=True)
    assert curve.exact_epsilon(mu, 1e-2) == pytest.approx(epsilon, rel=1e-3)
    assert 1.0 < search.expected_ratio(1e-2, trials) < math.exp(epsilon)


@pytest.mark.slow
def test_at_most_half_of_all_audits_prove_more_than_max_provable_epsilon() -> None:
    """An exact test of an event that is fixed in advance, the best known estimator, comes close.

    Of 200 audits, more than 122 exceed the median with probability 1e-3.
    """
    without, with_record, trials, delta = 0.05, 0.005, 2000, 1e-3
    p, q = np.array([without, 1 - without]), np.array([with_record, 1 - with_record])
    limit = max_provable_epsilon(p, q, delta, trials)
    exact = math.log((without - delta) / with_record)
    assert 0.7 * exact < limit < exact
    rng = np.random.default_rng(10)
    proved = []
    for _ in range(200):
        hits, misses = rng.binomial(trials, (without, with_record))
        # Given their sum and without delta, the hits are binomial with a share of
        # e^eps / (1 + e^eps). The hits due to delta, at most this many with 99.9 %, are subtracted.
        hits -= int(stats.binom.isf(1e-3, trials, delta))
        share = stats.beta.ppf(0.049, hits, misses + 1)
        proved.append(math.log(share / (1 - share)))
    assert np.sum(np.array(proved) > limit) <= 122
    assert np.median(proved) > 0.85 * limit
    # More trials prove more, up to the exact epsilon; equal distributions prove nothing.
    assert limit < max_provable_epsilon(p, q, delta, 100 * trials) < exact
    assert max_provable_epsilon(p, p, delta, trials) == 0.0
    # A pair that leaks in both directions.
    both = np.array([0.1, 0.88, 0.02])
    leak = math.log(0.099 / 0.02)
    assert 0.5 * leak < max_provable_epsilon(both, both[::-1], delta, 500) < 0.9 * leak


def in_cells(distribution: Any, shift: float) -> tuple[FloatArray, FloatArray]:
    """Probabilities of cells of width 0.1, without and with the record, which shifts them."""
    edges = np.concatenate([[-np.inf], np.arange(-12.0, 12.0 + shift, 0.1), [np.inf]])
    return np.diff(distribution.cdf(edges)), np.diff(distribution.cdf(edges - shift))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distribution", "shift", "value"),
    [
        (stats.norm, 0.5, 0.862),
        (stats.norm, 1.5, 3.10),
        pytest.param(stats.laplace, 1.0, 0.90, marks=pytest.mark.slow),
    ],
)
def test_known_values_of_max_provable_epsilon(
    distribution: Any, shift: float, value: float
) -> None:
    pair = in_cells(distribution, shift)
    assert max_provable_epsilon(*pair, 1e-5, 1000) == pytest.approx(value, rel=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [20, 300])
def test_max_provable_epsilon_is_at_most_max_detectable_epsilon(trials: int) -> None:
    pair = in_cells(stats.norm, 1.5)
    limit = max_provable_epsilon(*pair, 1e-5, trials)
    assert 0.5 < limit <= lower_bounds.max_detectable_epsilon(trials, trials)
    # Two disjoint outputs: the nearest private pair has odds e^epsilon : 1, and n + n trials are
    # ten times less likely under it if 2 n log(1 + e^-epsilon) = log(10).
    found = max_provable_epsilon([1.0, 0.0], [0.0, 1.0], 1e-5, trials)
    exact = -math.log(math.expm1(math.log(10.0) / (2.0 * trials)))
    assert exact * (1.0 - 1e-3) <= found <= exact * 1.01


@pytest.mark.slow
def test_nearest_private_pair_has_the_smallest_divergence() -> None:
    """A general solver finds no (epsilon, delta)-DP pair with a smaller divergence."""
    rng = np.random.default_rng(4)
    for delta in (1e-3, 0.05):
        for _ in range(4):
            p, q = rng.dirichlet(np.full(4, 0.8), 2) * 0.96 + 0.01
            epsilon = 0.5 * DiscreteMechanism(p, q).epsilon(delta)
            found = _nearest(p, q, epsilon, delta)
            assert found is not None
            for one, other in (found, found[::-1]):
                assert one.sum() == pytest.approx(1.0, abs=1e-12)
                assert np.maximum(one - math.exp(epsilon) * other, 0.0).sum() <= delta

            def divergence(x: FloatArray, p: FloatArray = p, q: FloatArray = q) -> float:
                return -float(p @ np.log(x[:4]) + q @ np.log(x[4:8]))

            # Slack variables make the constraints smooth.
            def slack(x: FloatArray, delta: float = delta) -> FloatArray:
                return np.array([delta - x[8:12].sum(), delta - x[12:].sum()])

            def above(x: FloatArray, epsilon: float = epsilon) -> FloatArray:
                one, other, a, b = np.split(x, 4)
                e = math.exp(epsilon)
                return np.concatenate([a - one + e * other, b - other + e * one])

            start = np.concatenate([*found, np.full(8, delta / 5.0)])
            best = optimize.minimize(  # type: ignore[call-overload]
                divergence,
                start,
                method="SLSQP",
                bounds=[(1e-9, 1.0)] * 8 + [(0.0, 1.0)] * 8,
                constraints=[
                    {"type": "ineq", "fun": slack},
                    {"type": "ineq", "fun": above},
                    {"type": "eq", "fun": lambda x: [x[:4].sum() - 1.0, x[4:8].sum() - 1.0]},
                ],
                options={"maxiter": 500, "ftol": 1e-13},
            )
            assert divergence(np.concatenate(found)) <= best.fun + 1e-3


@pytest.mark.slow
def test_curve_of_two_tails_covers() -> None:
    # 200 audits of 2,000 + 2,000 trials: a 95 % bound is wrong over 22 times with probability 2e-4.
    mu = 0.8
    for spec in ("until:0.2", "stopping:0.2"):
        protocol = protocols.parse_protocol(spec)
        rng = np.random.default_rng(8)
        played = play_attack(mu, protocol, 1e-3, 2000, rng)
        assert isinstance(played.curve, AcceptedTailsCurve)
        tails = played.curve
        exact = attacks.AcceptedTails(mu, tails.low, tails.high, tails.stop).epsilon(1e-3)
        rate = tails.rate_below(mu)
        counts = rng.binomial(2000, rate, 200)
        by_count = {
            count: tails.epsilon_at(tails.lower_limit(_counts(count), 1e-3, 0.05)[0], 1e-3)
            for count in np.unique(counts)
        }
        wrong = sum(by_count[count] > exact for count in counts)
        assert wrong <= 22
        assert np.mean([by_count[count] for count in counts]) > 0.85 * exact


def _counts(count: int) -> ErrorCounts:
    return ErrorCounts(np.array([0]), np.array([count]), 2000, 2000)


def test_protocol_without_attack_is_reported() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="protocols must be ones with an attack, got noisy-max:3"):
        play_attack(1.0, protocols.parse_protocol("noisy-max:3"), DELTA, 100, rng)
