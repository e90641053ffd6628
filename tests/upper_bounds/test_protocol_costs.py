"""The cost of every protocol: known values, brute force over all orders, and special cases."""

import importlib
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from audit import protocols, repetitions, upper_bounds
from audit.accounting import (
    ApproximateDp,
    Candidates,
    Composition,
    DeltaUnreachable,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    PureDp,
    WorstOf,
    solve_epsilon,
)
from audit.upper_bounds import GridCurve, SubsetCurve, registry, tuning_cost
from audit.upper_bounds.adaptive import adaptive
from audit.upper_bounds.published import papernot_steinke
from audit.upper_bounds.until_accepted import Chance, TwoEvents

DELTA = 1e-5
CASES = 40  # random small bases of a brute force


def rows(base: Any, protocol: Any, delta: Any = DELTA) -> Any:
    return {row.name: row for row in upper_bounds.all_upper_bounds(base, protocol, delta)}


def hockey_stick(p: Any, q: Any, epsilon: Any) -> Any:
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def random_law(rng: Any, size: Any) -> Any:
    return rng.dirichlet(np.full(size, 0.7)) * 0.98 + 0.02 / size


@pytest.mark.usefixtures("cached_bounds")
@pytest.mark.thin(9)
@pytest.mark.parametrize(
    ("mu", "delta", "protocol", "values"),
    [
        (1.0, 1e-5, "subset:0.3/tnb:1,0.1", {"koskela-kulkarni": 6.511, "subset": 4.959}),
        (0.1, 1e-5, "grid:100", {"grid": 2.519, "composition": 4.377, "grid-tight": 1.921}),
        (0.24721, 1e-5, "grid:10", {"grid": 3.010, "composition": 3.299, "grid-tight": 2.728}),
        (0.24721, 1e-5, "grid:30", {"grid": 4.715}),
        (0.24721, 1e-5, "grid:30,0.5", {"grid": 2.522}),
        (0.25, 1e-5, "grid:200,0.5", {"grid-tight": 5.803}),
        (1.0, 1e-2, "grid:3", {"grid": 5.282, "composition": 4.904, "grid-tight": 4.700}),
        (0.24721, 1e-5, "adaptive:0.9,1.1/tnb:0,0.01", {"hypo": 2.301, "adaptive": 1.812}),
        (0.24721, 1e-5, "adaptive:0.75,1.33/tnb:0,0.01", {"hypo": 3.064, "adaptive": 2.507}),
        pytest.param(
            *(0.24721, 1e-5, "adaptive:0.5,2/tnb:0,0.01", {"hypo": 4.731, "adaptive": 4.067}),
            marks=pytest.mark.slow,
        ),
        (0.24721, 1e-5, "adaptive:0.75,1.33/tnb:1,0.1", {"hypo": 3.878, "adaptive": 2.777}),
        (1.0, 1e-5, "adaptive:0.75,1.33/tnb:1,0.1", {"hypo": 10.347, "adaptive": 7.758}),
        (0.24721, 1e-5, "until:0.5", {"two-events": 1.134, "proposition-15": 1.510}),
        (0.24721, 1e-5, "until:0.1", {"two-events": 1.454, "proposition-15": 1.742}),
        (0.24721, 1e-5, "until:0.01", {"two-events": 1.797, "proposition-15": 2.031}),
        (1.0, 1e-5, "until:0.5", {"two-events": 5.056, "proposition-15": 6.500}),
        (1.0, 1e-5, "until:0.1", {"two-events": 6.243, "proposition-15": 7.395}),
        (1.0, 1e-5, "until:0.01", {"two-events": 7.562, "proposition-15": 8.521}),
        (0.24721, 1e-5, "stopping:0.5", {"two-events": 1.009}),
        (0.24721, 1e-5, "stopping:0.1", {"two-events": 1.227}),
        (0.24721, 1e-5, "stopping:0.01", {"two-events": 1.526}),
    ],
)
def test_known_values(mu: float, delta: float, protocol: str, values: dict[str, float]) -> None:
    found = rows(GaussianMechanism(mu), protocol, delta)
    for name, value in values.items():
        assert found[name].epsilon == pytest.approx(value, rel=2e-3), name
    assert tuning_cost(GaussianMechanism(mu), protocol, delta).epsilon == min(
        row.epsilon for row in found.values() if row.applies and not row.attained
    )
    for row in found.values():
        # The best order is below a tight bound by about 1e-4, due to discretisation.
        most = 2e-4 if row.name == "grid-tight" else 1e-4
        assert 0.0 <= row.error <= most * max(row.epsilon, 1.0), row.name


def chance_to_win(laws: Any, place: Any, preferred: Any, inclusion: Any) -> Any:
    """Probability that (candidate, output) is the best run, given the set of better pairs."""
    i, y = place
    rest = [
        1.0 - inclusion * sum(laws[j][z] for k, z in preferred if k == j) for j in range(len(laws))
    ]
    return inclusion * laws[i][y] * math.prod(rest[j] for j in range(len(laws)) if j != i)


def largest_leak(places: Any, gain: Any) -> Any:
    """The largest sum of positive gains over all orders, by dynamic programming over sets.

    The gain of a pair depends on the set of better pairs, not on the order of that set.
    """
    best: dict[frozenset[Any], float] = {frozenset(): 0.0}
    for size in range(len(places)):
        for chosen in itertools.combinations(places, size):
            preferred = frozenset(chosen)
            for place in set(places) - preferred:
                total = best[preferred] + max(gain(place, preferred), 0.0)
                after = preferred | {place}
                best[after] = max(best.get(after, 0.0), total)
    return best[frozenset(places)]


def leak_of_grid(laws: Any, laws_with: Any, epsilon: Any, inclusion: Any = 1.0) -> Any:
    """The largest delta of any order of (candidate, output)."""
    places = [(i, y) for i, law in enumerate(laws) for y in range(len(law))]

    def gain(place: Any, preferred: Any) -> Any:
        p, q = (chance_to_win(side, place, preferred, inclusion) for side in (laws, laws_with))
        return p - math.exp(epsilon) * q

    return largest_leak(places, gain)


def test_a_grid_leaks_more_than_independent_draws() -> None:
    laws, laws_with = [np.array([0.5606, 0.4394])] * 3, [np.array([0.1694, 0.8306])] * 3
    order = [(0, 1), (2, 0), (1, 0), (1, 1), (0, 0), (2, 1)]
    leak = sum(
        max(
            chance_to_win(laws, place, order[:before], 1.0)
            - math.e * chance_to_win(laws_with, place, order[:before], 1.0),
            0.0,
        )
        for before, place in enumerate(order)
    )
    assert leak == pytest.approx(0.3097, abs=2e-4)
    assert leak == pytest.approx(leak_of_grid(laws, laws_with, 1.0), rel=1e-12)
    base = DiscreteMechanism(laws[0], laws_with[0])
    law = repetitions.parse_repetitions("fixed:3")
    tight = upper_bounds.TightCurve.at(base.pairs[0], law, 0.2).delta(1.0)
    region = upper_bounds.RegionCurve(base.pairs[0], law).delta(1.0)
    assert tight == pytest.approx(0.1887, abs=2e-3)
    assert region == pytest.approx(0.786, abs=1e-3)
    assert tight < leak < region
    assert tuning_cost(base, "grid:3", leak).epsilon >= 1.0


@pytest.mark.thorough
@pytest.mark.thin(3)
@pytest.mark.parametrize("inclusion", [1.0, 0.4])
def test_no_order_of_a_small_grid_exceeds_a_bound(inclusion: float) -> None:
    rng = np.random.default_rng(6)
    for case in range(CASES // 20):
        sizes = [(2, 2, 2), (3, 2), (2, 3), (4, 2)][case % 4]
        pairs = [(random_law(rng, size), random_law(rng, size)) for size in sizes]
        if case % 3 == 0:
            pairs = [pairs[0]] * len(pairs)
        base = Candidates(tuple(DiscreteMechanism(*pair) for pair in pairs))
        epsilon = float(rng.uniform(0.0, 2.0))
        sides = [list(side) for side in zip(*pairs, strict=True)]
        leak = max(
            leak_of_grid(sides[0], sides[1], epsilon, inclusion),
            leak_of_grid(sides[1], sides[0], epsilon, inclusion),
        )
        if leak < 1e-6:
            continue
        grid = protocols.Grid(len(sizes), inclusion)
        for row in rows(base, grid, leak * (1.0 - 1e-9)).values():
            assert row.epsilon >= epsilon * (1.0 - 1e-6), (row.name, case)


@pytest.mark.slow
def test_candidates_of_a_grid_may_differ() -> None:
    quiet, loud = GaussianMechanism(0.2), GaussianMechanism(0.6)
    mixed = Candidates((quiet,) * 4 + (loud,) * 2)
    bounds = rows(mixed, "grid:6")
    assert bounds["composition"].epsilon == pytest.approx(
        GaussianMechanism(math.sqrt(4 * 0.04 + 2 * 0.36)).epsilon(DELTA), rel=1e-6
    )
    least, most = (rows(base, "grid:6")["grid"].epsilon for base in (quiet, loud))
    assert least < bounds["grid"].epsilon < most
    same = rows(Candidates((quiet,) * 6), "grid:6")["grid"].epsilon
    assert same == pytest.approx(least, rel=1e-9)
    # A candidate that leaks almost nothing can be ranked so that it reveals the other.
    one = rows(Candidates((loud, GaussianMechanism(1e-6))), "grid:2")
    assert loud.epsilon(DELTA) < one["grid"].epsilon < 1.1 * loud.epsilon(DELTA)
    assert one["composition"].epsilon == pytest.approx(loud.epsilon(DELTA), rel=1e-6)
    with pytest.raises(ValueError, match="base must have 5 candidates, as grid:5 has, got 6"):
        tuning_cost(mixed, "grid:5", DELTA)


@pytest.mark.slow
def test_special_cases_of_a_grid() -> None:
    base = GaussianMechanism(0.8)
    for bound in rows(base, "grid:1").values():
        assert bound.epsilon == pytest.approx(base.epsilon(DELTA), rel=1e-8)
    half = Mixture((base,), (0.5,))
    by_chance = rows(base, "grid:1,0.5")
    for bound in by_chance.values():
        assert bound.epsilon == pytest.approx(half.epsilon(DELTA), rel=1e-6)
    # For a Gaussian base, equal candidates leak most: the region bound.
    for grid, law in (("grid:20", "fixed:20"), ("grid:20,0.3", "binomial:20,0.3")):
        region = upper_bounds.region(base, law, DELTA).epsilon
        assert rows(base, grid)["grid"].epsilon == pytest.approx(region, rel=1e-5)


def test_a_random_choice_leaks_the_mean_of_several() -> None:
    parts = GaussianMechanism(0.3), GaussianMechanism(1.0)
    mixed = Mixture(parts, (0.25, 0.5))
    epsilons = np.array([-0.5, 0.0, 0.5, 2.0])
    mean = 0.25 * parts[0].delta(epsilons) + 0.5 * parts[1].delta(epsilons)
    mean[0] += 0.25 * (1.0 - math.exp(-0.5))
    assert mixed.delta(epsilons) == pytest.approx(mean, rel=1e-12)
    assert mixed.pairs[0].profile(epsilons) == pytest.approx(mean, rel=1e-5)
    assert np.all(mixed.pairs[0].profile(epsilons) >= mean * (1.0 - 1e-9))
    orders = np.array([2.0, 10.0])
    moments = 0.25 * np.exp((orders - 1) * parts[0].renyi(orders)) + 0.25
    moments += 0.5 * np.exp((orders - 1) * parts[1].renyi(orders))
    assert mixed.renyi(orders) == pytest.approx(np.log(moments) / (orders - 1), rel=1e-12)
    tuned = upper_bounds.tight(Mixture(parts, (0.5, 0.5)), "tnb:0,0.1", DELTA).epsilon
    assert tuned < upper_bounds.tight(WorstOf(parts), "tnb:0,0.1", DELTA).epsilon
    with pytest.raises(ValueError, match="chances must sum to at most 1"):
        Mixture(parts, (0.9, 0.9))


def subsets(values: Any) -> Any:
    return itertools.chain.from_iterable(
        itertools.combinations(values, size) for size in range(1, len(values) + 1)
    )


@pytest.mark.thorough
@pytest.mark.thin(3)
@pytest.mark.parametrize("stop", [None, 0.3])
def test_no_accepted_set_leaks_more_than_two_events(stop: float | None) -> None:
    rng = np.random.default_rng(15)
    for _ in range(CASES // 8):
        p, q = random_law(rng, 4), random_law(rng, 4)
        base, epsilon = DiscreteMechanism(p, q), float(rng.uniform(0.05, 1.5))
        leaks = {}
        for accepted in subsets(range(4)):
            index = list(accepted)
            results = []
            for law in (p, q):
                chance = law[index].sum()
                total = chance if stop is None else stop + (1.0 - stop) * chance
                nothing = 0.0 if stop is None else stop * (1.0 - chance)
                results.append(np.append(law[index], nothing) / total)
            least = min(p[index].sum(), q[index].sum())
            leaks[accepted] = least, hockey_stick(*results, epsilon)
        acceptance = 0.3
        protocol = "until:0.3" if stop is None else f"stopping:{stop}"
        allowed = [leak for least, leak in leaks.values() if stop or least >= acceptance]
        leak = max(allowed)
        if leak > 1e-4:
            assert tuning_cost(base, protocol, leak * (1 - 1e-9)).epsilon >= epsilon * (1 - 1e-6)


def test_corners_of_a_box_between_two_lines() -> None:
    # e in [0.2, 0.6] and f in [0.3, 0.8] where 0.7 <= e + f <= 1: a polygon of five corners.
    (pair,) = GaussianMechanism(1.0).pairs
    events = TwoEvents(pair, Chance((1.0, 0.0), (0.0, 1.0), 0.7), 1e-5)
    # Of e and of 1-f, on both data sets.
    pieces = np.log([[[[0.2], [0.6]]] * 2, [[[0.7], [0.2]]] * 2])
    log_e, log_rest, possible = events._cut_corners(*pieces)
    e, f = np.exp(log_e[0][possible]), -np.expm1(log_rest[0][possible])
    found = {(round(float(x), 9), round(float(y), 9)) for x, y in zip(e, f, strict=True)}
    assert found == {(0.4, 0.3), (0.6, 0.3), (0.6, 0.4), (0.2, 0.8), (0.2, 0.5)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "stop", "delta"), [(4.6, 0.3477, 2.6e-8), (1.0, 1e-6, 1e-12), (30.0, 0.5, 1e-6)]
)
def test_stopping_costs_at_small_deltas_are_those_of_two_events(
    mu: Any, stop: Any, delta: Any
) -> None:
    # Accepted are the outputs above one threshold and below another. The target is an output above
    # the first, with or without the case of no release. Logarithms are without the record first.
    x = np.linspace(-12.0 - mu, 12.0, 1201)
    ends = [special.log_ndtr(-x), special.log_ndtr(-x - mu)]
    above, rest = [end[:, None] for end in ends], [end[None] for end in ends]
    d, d_with = (
        np.log(stop + (1.0 - stop) * (np.exp(e) - np.expm1(r)))
        for e, r in zip(above, rest, strict=True)
    )
    attained = 0.0
    for of_nothing in (0.0, stop):
        with np.errstate(divide="ignore"):
            n, n_with = (
                np.logaddexp(np.log1p(-of_nothing) + e, np.log(of_nothing) + r)
                for e, r in zip(above, rest, strict=True)
            )
        gain = np.where(above[0] <= rest[0], np.exp(n - d) - delta, 0.0)
        likely = gain > 0.0
        leaks = np.log(gain[likely]) + d_with[likely] - n_with[likely]
        attained = max(attained, float(leaks.max()))
    found = tuning_cost(GaussianMechanism(mu), f"stopping:{stop}", delta)
    assert attained <= found.epsilon <= 1.01 * attained


@pytest.mark.slow
def test_special_cases_of_repeating_until_acceptance() -> None:
    base = GaussianMechanism(0.7)
    assert tuning_cost(base, "until:1", DELTA).epsilon == pytest.approx(
        base.epsilon(DELTA), rel=2e-5
    )
    assert tuning_cost(base, "stopping:1", DELTA).epsilon == base.epsilon(DELTA)
    # Pure DP: the ratio of one set and that of the other.
    for spec in ("until:0.01", "stopping:0.001"):
        assert tuning_cost(PureDp(0.3), spec, 1e-9).epsilon == pytest.approx(0.6, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["stopping:0.001", "until:0.1"])
@pytest.mark.parametrize("delta", [1e-20, 1e-50, 1e-300])
def test_repeating_finitely_many_outputs_costs_at_most_twice_the_largest_loss(
    protocol: str, delta: float
) -> None:
    # Both likelihood ratios of the coin are at most 3, and so are the ratios N/N' and D'/D.
    base = DiscreteMechanism([0.75, 0.25], [0.25, 0.75])
    rows = upper_bounds.all_upper_bounds(base, protocol, delta)
    (found,) = [one for one in rows if one.name == "two-events"]
    assert 0.99 < found.epsilon / (2.0 * math.log(3.0)) < 1.0 + 1e-4
    assert found.error < 1e-3


@pytest.mark.parametrize("law", ["tnb:0,0.01", "tnb:1,0.1"])
def test_the_subset_bound_is_attained_by_the_tuning_alone(law: str) -> None:
    # The tuned run alone is random search, amplified by sampling.
    base, rate = GaussianMechanism(1.0), 0.3
    worst = upper_bounds.worst_order(base, law, DELTA / rate).epsilon
    attained = math.log1p(rate * math.expm1(worst))
    found = rows(base, protocols.parse_protocol(f"subset:{rate}/{law}"))
    assert 0.999 * found["subset"].epsilon <= attained <= found["subset"].epsilon
    assert attained > 0.76 * found["koskela-kulkarni"].epsilon


def adaptive_leak(pair: Any, first: Any, second: Any, epsilon: Any) -> Any:
    """The leakage of two runs of two candidates, the second chosen given the first output."""
    places = [(i, y) for i in range(2) for y in range(2)]

    def gain(place: Any, preferred: Any) -> Any:
        worse = set(places) - preferred  # including the pair itself
        sides = []
        for laws in pair:
            one = {(i, y): (first, 1 - first)[i] * laws[i][y] for i, y in places}
            then = {
                (i, y): {
                    (j, z): (second[i, y], 1 - second[i, y])[j] * laws[j][z] for j, z in places
                }
                for i, y in places
            }
            found = one[place] * sum(then[place][other] for other in worse)
            found += sum(one[other] * then[other][place] for other in worse - {place})
            sides.append(found)
        return sides[0] - math.exp(epsilon) * sides[1]

    return largest_leak(places, gain)


@pytest.mark.thorough
def test_no_adaptive_choice_of_two_runs_exceeds_the_bound() -> None:
    rng = np.random.default_rng(62)
    for _ in range(CASES // 10):
        # Both candidates have one pair; the prior is uniform, densities are 0.6 or 1.4.
        p, q = random_law(rng, 2), random_law(rng, 2)
        flip = rng.random() < 0.5
        pair = [[law, law[::-1] if flip else law] for law in (p, q)]
        epsilon = float(rng.uniform(0.0, 2.0))
        leak = max(
            adaptive_leak(pair, first, np.reshape(second, (2, 2)), epsilon)
            for first, *second in itertools.product([0.3, 0.7], repeat=5)
        )
        if leak > 1e-6:
            several = [DiscreteMechanism(p, q)]
            several += [DiscreteMechanism(p[::-1], q[::-1])] if flip else []
            protocol = protocols.Adaptive("fixed:2", 0.6, 1.4)
            for name, row in rows(WorstOf(tuple(several)), protocol, leak * (1 - 1e-9)).items():
                if row.applies:
                    assert row.epsilon >= epsilon * (1 - 1e-6), name


@pytest.mark.slow
def test_an_adaptive_choice_without_freedom_is_random_search() -> None:
    base = GaussianMechanism(0.5)
    law = repetitions.parse_repetitions("tnb:0,0.05")
    region = upper_bounds.region(base, law, DELTA).epsilon
    for low, high in ((1.0, 1.0), (0.5, 1.0), (1.0, 3.0)):
        found = adaptive(base, protocols.Adaptive(law, low, high), DELTA).epsilon
        assert found == pytest.approx(region, rel=1e-12)
    nearly = protocols.Adaptive(law, 1 - 1e-7, 1 + 1e-7)
    near = adaptive(base, nearly, DELTA).epsilon
    assert near == pytest.approx(region, rel=1e-5)
    # A base that leaks almost nothing has histories that reveal almost nothing.
    assert tuning_cost(GaussianMechanism(1e-4), "adaptive:0.5,2/tnb:1,0.1", DELTA).epsilon < 2e-3
    pure = rows(PureDp(0.1), "adaptive:0.5,2/tnb:1,0.1", 1e-12)
    assert pure["hypo-pure"].epsilon == pytest.approx(3 * (0.1 + math.log(4)), rel=1e-12)
    assert pure["adaptive"].epsilon <= pure["hypo-pure"].epsilon * (1 + 1e-9)


@pytest.mark.slow
def test_tuning_on_a_subset_by_quadrature() -> None:
    # The best of two by an increasing score, then a final run: exact sums on a fine grid.
    mu, q, epsilon = 0.6, 0.25, 1.2
    x = np.linspace(-9.0, 9.6, 1861)
    step = x[1] - x[0]
    normal = [np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) * step for m in (mu, 0.0)]
    best = [2 * law * np.cumsum(law) for law in normal]
    tuned, final = (pair[0][:, None] / pair[1][:, None] for pair in (best, normal))
    mass = best[1][:, None] * normal[1][None]
    for spec, ratio in (
        ("subset:0.25/fixed:2", q * tuned + (1 - q) * final.T),
        ("subset:0.25,all/fixed:2", (q * tuned + 1 - q) * final.T),
    ):
        leak = max(
            float(np.sum(mass * np.maximum(ratio - math.exp(epsilon), 0.0))),
            float(np.sum(mass * np.maximum(1.0 - math.exp(epsilon) * ratio, 0.0))),
        )
        found = tuning_cost(GaussianMechanism(mu), spec, leak).epsilon
        assert epsilon * (1 - 1e-3) <= found <= 1.35 * epsilon


@pytest.mark.thorough
def test_the_sum_over_losses_is_the_double_integral() -> None:
    base = GaussianMechanism(0.5)
    tuned = upper_bounds.TunedMechanism(base, repetitions.parse_repetitions("tnb:1,0.2")).pairs[0]
    x = np.linspace(-10.0, 10.0, 4001)
    final_mass = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    final = np.exp(0.5 * x - 0.125)
    law = tuned.pmf
    for on_all in (False, True):
        curve = SubsetCurve(tuned, base.pairs[0], base.pairs[0], 0.2, on_all)
        ratios = np.exp(law.loss)[:, None]
        mixed = (0.2 * ratios + 0.8) * final if on_all else 0.2 * ratios + 0.8 * final
        mass = np.exp(law.log_mass - law.loss)[:, None] * final_mass
        for epsilon in (0.3, 1.5):
            sides = mixed - math.exp(epsilon), 1.0 - math.exp(epsilon) * mixed
            exact = max(float(np.sum(mass * np.maximum(side, 0.0))) for side in sides)
            assert curve.delta(epsilon) == pytest.approx(exact, rel=1e-4)
    # By default, the final run uses the remaining records, as in the paper.
    assert SubsetCurve(tuned, base.pairs[0], base.pairs[0], 0.2) == replace(curve, on_all=False)


def test_a_subset_of_runs_whose_profile_is_constant() -> None:
    # One run reveals the data set with probability 1/2, and so does a tuning with one run.
    base = DiscreteMechanism([0.5, 0.5, 0.0], [0.0, 0.5, 0.5], directed=True)
    assert tuning_cost(base, "subset:0.2/fixed:1", 0.5001).epsilon == 0.0
    with pytest.raises(DeltaUnreachable, match=r"subset: delta must be above 0\.5, which"):
        tuning_cost(base, "subset:0.2/fixed:1", 0.4999)


@pytest.mark.slow
def test_special_cases_of_a_subset() -> None:
    base, law = GaussianMechanism(0.6), repetitions.parse_repetitions("tnb:1,0.2")
    one, tuned = base.epsilon(DELTA), upper_bounds.TunedMechanism(base, law)
    for final in ("rest", "all"):
        none = tuning_cost(base, protocols.Subset(law, 0.0, final), DELTA).epsilon
        assert none == pytest.approx(one, rel=1e-8)
    everything = tuning_cost(base, protocols.Subset(law, 1.0, "rest"), DELTA).epsilon
    assert everything == pytest.approx(upper_bounds.region(base, law, DELTA).epsilon, rel=1e-4)
    everything = tuning_cost(base, protocols.Subset(law, 1.0, "all"), DELTA).epsilon
    assert everything == pytest.approx(Composition((tuned, base)).epsilon(DELTA), rel=1e-5)


SAMPLED = DpSgd(noise_multiplier=1.0, steps=20, sampling_rate=0.02)


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "protocol", ["grid:5", "grid:5,0.5", "adaptive:0.8,1.2/fixed:2", "until:0.2", "stopping:0.2"]
)
def test_sampled_bases(protocol: str) -> None:
    found = tuning_cost(SAMPLED, protocol, DELTA)
    runs = Composition((SAMPLED,) * 5).epsilon(DELTA)
    assert SAMPLED.epsilon(DELTA) * 0.8 < found.epsilon
    if protocol.startswith("grid"):
        assert found.epsilon <= runs * (1 + 1e-9)


SPECS = ("grid:{n}", "grid:{n},0.4", "adaptive:0.8,1.3/poisson:{n}", "until:{a}", "stopping:{a}")


@pytest.mark.slow
@settings(max_examples=4)
@given(
    st.sampled_from(SPECS),
    st.floats(0.05, 1.5),
    st.integers(1, 30),
    st.floats(0.01, 0.9),
    st.floats(1e-9, 1e-3),
)
def test_protocol_costs_are_monotone(spec: Any, mu: Any, n: Any, a: Any, delta: Any) -> None:
    def at(mu: Any, n: Any, a: Any, delta: Any) -> Any:
        return tuning_cost(GaussianMechanism(mu), spec.format(n=n, a=a), delta).epsilon

    here = at(mu, n, a, delta)
    slack = 1 + 1e-4
    assert here <= at(1.1 * mu, n, a, delta) * slack
    assert here <= at(mu, n + 1, a, delta) * slack
    assert here <= at(mu, n, 0.8 * a, delta) * slack
    assert here <= at(mu, n, a, 0.5 * delta) * slack
    if spec.startswith("grid"):
        assert here <= GaussianMechanism(mu * math.sqrt(n)).epsilon(delta) * slack


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("grid:4,0.3", "grid:4,0.6"),
        ("adaptive:0.8,1.3/poisson:5", "adaptive:0.7,1.3/poisson:5"),
        ("adaptive:0.8,1.3/poisson:5", "adaptive:0.8,1.5/poisson:5"),
        ("noisy-max:10", "noisy-max:20"),
        # This does not hold if the final run uses the remaining records: it then omits the subset.
        ("subset:0.1,all/tnb:1,0.1", "subset:0.3,all/tnb:1,0.1"),
        ("subset:0.3/tnb:1,0.1", "subset:0.3,all/tnb:1,0.1"),
        ("ptr:0.1,1e-7,1e-7/tnb:1,0.1", "ptr:0.2,1e-7,1e-7/tnb:1,0.1"),
        ("ptr:0.1,1e-7,1e-7/tnb:1,0.1", "ptr:0.1,3e-7,1e-7/tnb:1,0.1"),
        ("ptr:0.1,1e-7,1e-7/tnb:1,0.1", "ptr:0.1,1e-7,3e-7/tnb:1,0.1"),
        ("ptr:0.1,1e-7,1e-7/tnb:1,0.1", "ptr:0.1,1e-7,1e-7/tnb:1,0.05"),
    ],
)
def test_costs_grow_in_every_argument(less: str, more: str) -> None:
    base = GaussianMechanism(0.3)
    assert tuning_cost(base, less, DELTA).epsilon < tuning_cost(base, more, DELTA).epsilon


@pytest.mark.thorough
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("protocol", "runs"),
    [
        ("fixed:1", 1),
        ("fixed:4", 4),
        ("grid:4", 4),
        ("adaptive:0.5,2/fixed:1", 1),
        ("adaptive:0.5,2/fixed:4", 4),
        pytest.param("subset:0.5/fixed:4", 5, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("mu", [0.1, 2.0])
def test_choosing_costs_no_more_than_releasing_all_runs(
    protocol: str, runs: int, mu: float
) -> None:
    all_runs = GaussianMechanism(mu * math.sqrt(runs)).epsilon(DELTA)
    found = tuning_cost(GaussianMechanism(mu), protocol, DELTA).epsilon
    assert found <= all_runs * (1.0 + 1e-6)


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("mu", "protocol"),
    [
        (1e-4, "grid:1000"),
        pytest.param(40.0, "grid:1000,0.001", marks=pytest.mark.slow),
        (40.0, "adaptive:1e-3,1e3/poisson:3"),
        (20.0, "until:1e-3"),
        (1e-2, "stopping:1e-2"),
        (30.0, "subset:1e-6/poisson:50"),
        (20.0, "noisy-max:1000000"),
        (10.0, "ptr:1e-3,0,0/tnb:0,1e-3"),
    ],
)
def test_extreme_parameters_are_finite(mu: float, protocol: str) -> None:
    assert 0.0 <= tuning_cost(GaussianMechanism(mu), protocol, 1e-9).epsilon < 1e5


def test_fewer_pieces_of_the_curve_of_products_only_increase_the_cost_of_a_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, deltas = importlib.import_module("audit.upper_bounds.grid"), []
    for pieces in (400_000, 200):
        monkeypatch.setattr(module, "_MAX_PIECES", pieces)
        curve = GridCurve(DpSgd(1.0, 50, 0.02).pairs[:1], (1000,), 1.0, 1e-12)
        deltas.append(curve.delta(7.0))
    assert deltas[0] < deltas[1] < 1.01 * deltas[0]


@pytest.mark.slow
def test_a_grid_that_rarely_runs_costs_almost_nothing() -> None:
    base, inclusions = GaussianMechanism(0.5), (1e-300, 1e-12, 1e-6, 1e-5, 1e-3)
    costs = [tuning_cost(base, f"grid:10,{inclusion}", DELTA).epsilon for inclusion in inclusions]
    assert costs[:3] == [0.0, 0.0, 0.0]
    assert costs[2] < costs[3] < costs[4]
    # The leakage is that of the only run: P[a run] times the profile of a run.
    one, rare = (
        {row.name: row.epsilon for row in upper_bounds.all_upper_bounds(base, grid, DELTA)}[
            "composition"
        ]
        for grid in ("grid:1,1e-4", "grid:10,1e-300")
    )
    assert base.epsilon(DELTA / 1e-4) <= one == pytest.approx(base.epsilon(DELTA / 1e-4), rel=1e-4)
    assert rare is None or rare >= 0.0


@pytest.mark.slow
def test_a_base_with_its_own_delta_is_refused_in_one_line() -> None:
    base = ApproximateDp(0.3, 1e-3)
    for spec in ("grid:10", "until:0.1"):
        with pytest.raises(DeltaUnreachable, match="delta must be"):
            tuning_cost(base, spec, DELTA)
    # A grid whose deltas sum to less than delta.
    assert tuning_cost(ApproximateDp(0.05, 1e-8), "grid:20", DELTA).epsilon < 1.0


@dataclass
class OwnMechanism(Mechanism):
    """A user-defined mechanism without a hash."""

    mu: float

    @property
    def pairs(self) -> Any:
        return GaussianMechanism(self.mu).pairs

    @property
    def description(self) -> Any:
        return "own"


@pytest.mark.slow
def test_a_grid_takes_mechanisms_without_a_hash() -> None:
    own, like = OwnMechanism(0.5), GaussianMechanism(0.5)
    with pytest.raises(TypeError):
        hash(own)
    found = rows(Candidates((own, OwnMechanism(0.2), own)), "grid:3")
    for name, row in rows(Candidates((like, GaussianMechanism(0.2), like)), "grid:3").items():
        assert found[name].epsilon == pytest.approx(row.epsilon, rel=1e-6)
    alone = rows(own, "grid:1")["composition"].epsilon
    assert alone == pytest.approx(like.epsilon(DELTA), rel=1e-6)


def test_grid_curve_from_below() -> None:
    curve = GridCurve(GaussianMechanism(0.5).pairs, (10,), 0.7, 1e-12)
    for epsilon in (0.5, 3.0):
        assert curve.attained_delta(epsilon) <= curve.delta(epsilon)
        assert curve.attained_delta(epsilon) == pytest.approx(curve.delta(epsilon), rel=1e-4)


def test_a_grid_counts_rare_outputs_as_full_leaks_within_its_share_of_delta() -> None:
    curve = GridCurve(GaussianMechanism(0.5).pairs, (10,), 0.2, 1e-12)
    assert 10 * 0.2 * curve.least == pytest.approx(1e-12, abs=0.0)  # two of the candidates are run


def test_noisy_max() -> None:
    base = GaussianMechanism(0.25)
    many = rows(base, "noisy-max:100000", 1e-6)
    doubled = GaussianMechanism(0.5)  # theorem 3.2: m times the profile at sensitivity 2
    known = solve_epsilon(lambda epsilon: 1e5 * float(doubled.delta(epsilon)), 1e-6)
    assert many["noisy-max"].epsilon == pytest.approx(known, rel=1e-12)
    few = rows(base, "noisy-max:2", 1e-6)
    assert few["composition"].epsilon < few["noisy-max"].epsilon
    assert (
        tuning_cost(base, "noisy-max:2,monotone", 1e-6).epsilon
        < tuning_cost(base, "noisy-max:2", 1e-6).epsilon
    )
    assert tuning_cost(base, "noisy-max:1", 1e-6).epsilon == 0.0
    assert not rows(PureDp(1.0), "noisy-max:5")["noisy-max"].applies


@pytest.mark.thorough
def test_tests_before_release() -> None:
    base = GaussianMechanism(0.3)
    plain = tuning_cost(base, "tnb:1,0.1", 1e-3).epsilon
    free = tuning_cost(base, "ptr:0,0,0/tnb:1,0.1", 1e-3).epsilon
    assert free == pytest.approx(plain, rel=1e-3)
    found = rows(base, "ptr:0.1,1e-7,1e-7/tnb:1,0.1", 1e-3)
    assert found["tight"].epsilon <= found["region"].epsilon <= found["profile"].epsilon
    assert free + 0.1 < found["tight"].epsilon < free + 0.35


@pytest.mark.thin(5)
@pytest.mark.parametrize(
    "spec", ["grid:5", "grid:5,0.5", "adaptive:0.5,2/fixed:5", "best:2/fixed:5", "noisy-max:5"]
)
@pytest.mark.parametrize("epsilon_0", [5.0, 100.0, 600.0, 1e5])
def test_pure_runs_cost_at_most_the_sum_of_their_epsilons(spec: str, epsilon_0: float) -> None:
    protocol = protocols.parse_protocol(spec)
    composition = upper_bounds.find("composition", type(protocol)).function
    assert composition(PureDp(epsilon_0), protocol, DELTA).epsilon <= 5.0 * epsilon_0


@pytest.mark.slow
def test_a_grid_of_pure_runs_that_no_lattice_resolves_costs_at_most_their_sum() -> None:
    assert tuning_cost(PureDp(600.0), "grid:5", DELTA).epsilon <= 3000.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "candidates", "value"),
    [
        (DpSgd(0.8, 1000, 0.001), 10, 0.751),
        (DpSgd(0.8, 1000, 0.001), 30, 0.998),
        (DpSgd(0.8, 1000, 0.001), 100, 1.550),
        (DpSgd(0.6, 3000, 0.0005), 30, 2.378),
    ],
)
def test_grids_of_rarely_sampled_candidates_use_the_best_cut(
    base: DpSgd, candidates: int, value: float
) -> None:
    grid = upper_bounds.find("grid", protocols.Grid).function
    found = grid(base, f"grid:{candidates}", DELTA).epsilon
    assert found == pytest.approx(value, abs=6e-4)
    # With equal events for all other candidates, the product is the region bound of fixed:m.
    assert found >= upper_bounds.region(base, f"fixed:{candidates}", DELTA).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 0.9])
def test_no_cut_is_below_the_curve_of_products(epsilon: float) -> None:
    # The largest gain over combinations of a few events, one for each of two other candidates.
    base = DpSgd(0.8, 1000, 0.001)
    for pair in base.pairs:
        t = np.linspace(*pair.event_range, 4001)
        left, left_with = (np.exp(side) for side in pair.events(t))
        few = np.unique(np.searchsorted(-left, -np.geomspace(1.0, 1e-6, 60)).clip(0, 4000))
        a = np.multiply.outer(left[few], left[few]).ravel()
        b = np.multiply.outer(left_with[few], left_with[few]).ravel()
        pmf = pair.atoms(np.inf)
        gains = [
            np.maximum(a - math.exp(epsilon - loss) * b, 0.0).max()
            for loss in pmf.loss[pmf.mass > 1e-12]
        ]
        least = 3.0 * (pmf.mass[pmf.mass > 1e-12] @ gains)
        for share in (1e-6, 1e-2, 0.1, 0.3):
            curve = GridCurve((pair,), (3,), 1.0, share * DELTA)
            assert curve.delta(epsilon) >= least * (1.0 - 1e-6), share


@pytest.mark.slow
def test_an_exact_bound_saves_the_looser_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def note(*given: Any) -> Any:
        called.append(given)
        raise ArithmeticError("no curve is needed here")

    monkeypatch.setattr(papernot_steinke, "conditional_curve", note)
    found = tuning_cost(GaussianMechanism(0.25), "until:0.1", DELTA)
    assert found.attains == pytest.approx(found.epsilon, rel=2e-5)
    assert not called
    tuning_cost(PureDp(0.3), "until:0.1", DELTA)  # no score is known to attain its bound
    assert called
    # One data set accepts the worst outputs too rarely.
    rare = DiscreteMechanism([0.145, 0.0005, 0.8545], [0.01, 0.626, 0.364])
    assert tuning_cost(rare, "until:0.6856", 0.76).attains == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inclusion", "cases"), [pytest.param(1.0, 6, marks=pytest.mark.slow), (0.4, 2)]
)
def test_no_bound_of_a_grid_is_left_out_that_would_be_the_smallest(
    inclusion: float, cases: int
) -> None:
    rng = np.random.default_rng(7)
    left_out = 0
    for _ in range(cases):
        bases = [
            GaussianMechanism(math.exp(rng.uniform(-3.0, 1.0))),
            DiscreteMechanism(random_law(rng, 3), random_law(rng, 3)),
            DpSgd(math.exp(rng.uniform(-0.3, 1.0)), int(rng.integers(2, 40)), 0.1),
        ]
        base = bases[rng.integers(3)]
        protocol = protocols.Grid(int(rng.integers(1, 30)), inclusion=inclusion)
        delta = math.exp(rng.uniform(-16.0, -1.0))
        every = upper_bounds.all_upper_bounds(base, protocol, delta)
        least = min(row.epsilon for row in every)
        # A bound that is computed last is left out where it would gain less than 1 %.
        assert least <= tuning_cost(base, protocol, delta).epsilon <= 1.01 * least
        for row in every:  # the quick test is never wrong, whatever it is compared with
            entry = registry.find(row.name, protocols.Grid)
            for factor in (0.1, 0.5, 0.9, 1.0):
                above = entry.is_above(factor * row.epsilon, base, protocol, delta)
                assert not (above and factor == 1.0 and not entry.deferred)
                left_out += above
    assert left_out > cases


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        # Liu and Talwar's bound, the loosest, does not apply to a fixed number of runs.
        ("fixed:5", ["tight: delta must be above 0.005"]),
        ("two-point:0.5,7", ["tight: delta must be above 0.004"]),
        ("grid:5", ["composition: delta must be above 0.00499", "grid: delta must be above 0.01"]),
        ("pareto:3", ["pareto-front: delta must be above 1,"]),
    ],
)
def test_a_cost_without_a_bound_names_the_deltas_that_bounds_reach(
    spec: str, limits: list[str]
) -> None:
    with pytest.raises(DeltaUnreachable) as error:
        tuning_cost(ApproximateDp(0.1, 1e-3), spec, 1e-5)
    assert all(one in str(error.value) for one in limits), error.value
    assert "truncated negative binomial" not in str(error.value)


def test_a_cost_without_a_bound_that_applies_names_the_sharpest_bound() -> None:
    with pytest.raises(DeltaUnreachable, match=r"\(first-accepted: base must be DP-SGD"):
        tuning_cost(ApproximateDp(0.1, 1e-3), "schedule:1,2", 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("likely", [0.5, 1e-290])
def test_propose_test_release_of_runs_that_reveal_nothing(likely: float) -> None:
    # The profile of such a run is 0 from the first epsilon on.
    base = DiscreteMechanism([1.0 - likely, likely], [1.0 - likely, likely])
    assert len(set(base.profile_grid())) == len(base.profile_grid())
    spec = "ptr:1,1e-6,1e-7/tnb:1,0.1"
    found = tuning_cost(base, spec, 1e-3)
    # A test of epsilon 1 alone costs as much.
    alone = tuning_cost(ApproximateDp(1.0, 1.1e-6), "tnb:1,0.1", 1e-3)
    assert found.epsilon == pytest.approx(alone.epsilon, rel=1e-3)


def test_a_protocol_without_a_bound_is_named() -> None:
    class GridOfMine(protocols.Grid):
        """A subclass may tune in another way, so the bounds of its parent do not hold for it."""

    words = (
        r"protocol must have a bound .* got GridOfMine \('grid:3'\), which has none: register one"
    )
    with pytest.raises(ValueError, match=words):
        upper_bounds.tuning_cost(GaussianMechanism(0.25), GridOfMine(3), 1e-5)
