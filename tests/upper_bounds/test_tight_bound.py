"""The tight bound: against every order of small bases, the games that attain it, and limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit import repetitions, upper_bounds
from audit.accounting import (
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    PureDp,
    compose,
)
from audit.accounting.composition import COARSE_CELLS
from audit.accounting.conversion import expecting
from audit.attacks import TunedOrder, worst_case_order
from audit.upper_bounds import FoldedGame, RegionCurve, TightCurve, costs
from audit.upper_bounds.tight import _Envelope, tight_at_other_delta

LAWS = ["fixed:2", "fixed:5", "poisson:3", "binomial:6,0.5", "tnb:0,0.05", "two-point:0.3,9"]


def random_pair(seed: Any, outputs: Any) -> Any:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(outputs)), rng.dirichlet(np.ones(outputs))


def phi(x: Any, law: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.exp(law.log_phi_at(np.minimum(np.log(x), 0.0)))


def worst_of_all_orders(p: Any, q: Any, law: Any, epsilon: Any) -> Any:
    """The largest hockey-stick divergence over all orders of n outputs, by 2^n subproblems.

    The contribution of an output depends on the set of better outputs, not on the set's order.
    """
    n = len(p)
    sets = np.arange(1 << n)
    outside = 1 - (sets[:, None] >> np.arange(n) & 1)
    best = [phi(outside @ v, law) for v in (p, q)]
    worst = np.zeros(1 << n)
    for size in range(n - 1, -1, -1):
        preferred = sets[outside.sum(axis=1) == n - size]
        for i in range(n):
            one = preferred[outside[preferred, i] == 1]
            with_it = one | (1 << i)
            mass, mass_with = (v[one] - v[with_it] for v in best)
            gain = np.maximum(mass - np.exp(epsilon) * mass_with, 0.0)
            worst[one] = np.maximum(worst[one], gain + worst[with_it])
    return worst[0]


@pytest.mark.thorough
@pytest.mark.thin(9)
@pytest.mark.parametrize("spec", LAWS)
@pytest.mark.parametrize(("outputs", "parts"), [(3, 4), (11, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_no_order_exceeds_the_bound_and_one_attains_it(
    spec: str, outputs: int, parts: int, seed: int
) -> None:
    # A score may be randomised: every output is split into equal parts, ranked on their own.
    law = repetitions.parse_repetitions(spec)
    p, q = random_pair(seed, outputs)
    base = DiscreteMechanism(p, q)
    split, split_with = (np.repeat(v / parts, parts) for v in (p, q))
    for epsilon in (0.0, 0.5):
        for pair, sides in zip(base.pairs, ((split, split_with), (split_with, split)), strict=True):
            truth = worst_of_all_orders(*sides, law, epsilon)
            curve = TightCurve.at(pair, law, max(truth, 1e-3))
            claimed = curve.delta(epsilon)
            assert truth <= claimed * (1 + 1e-12)
            assert claimed <= RegionCurve(pair, law).delta(epsilon)
            if truth > 0.02:
                assert truth >= 0.95 * claimed
                assert curve.best_order(epsilon).delta(epsilon) >= 0.995 * claimed


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize("spec", LAWS)
def test_outputs_with_probability_zero_on_one_side(spec: str) -> None:
    law, rng = repetitions.parse_repetitions(spec), np.random.default_rng(1)
    for seed in range(4):
        p, q = random_pair(seed, 7)
        p[0] = q[-1] = 0.0
        p, q = p / p.sum(), q / q.sum()
        for pair, sides in zip(DiscreteMechanism(p, q).pairs, ((p, q), (q, p)), strict=True):
            low, high = pair.event_range
            curve = TightCurve(pair, law, np.sort(rng.uniform(low, high, 5)))
            for epsilon in (0.0, 1.0, 3.0):
                claimed = curve.delta(epsilon)
                assert worst_of_all_orders(*sides, law, epsilon) <= claimed * (1 + 1e-12)
                assert claimed <= RegionCurve(pair, law).delta(epsilon)


@pytest.mark.thin(5)
@pytest.mark.parametrize("points", [3, 40])
@pytest.mark.parametrize("spec", [*LAWS, "tnb:1,0.1@12"])
def test_the_bound_is_valid_for_any_number_of_events(spec: str, points: int) -> None:
    law, (pair,) = repetitions.parse_repetitions(spec), GaussianMechanism(0.7).pairs
    coarse = TightCurve(pair, law, np.linspace(-6.0, 6.0, points))
    fine = TightCurve.at(pair, law, 1e-3)
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        game = fine.best_order(epsilon)
        assert game.delta(epsilon) <= coarse.delta(epsilon)
        assert game.delta(epsilon) <= fine.delta(epsilon)


def test_one_run_is_covered_by_a_single_event() -> None:
    # One cell precedes the event and one follows; neither has two neighbours.
    p, q = np.array([0.05, 0.35, 0.6]), np.array([0.5, 0.4, 0.1])
    for pair in DiscreteMechanism(p, q).pairs:
        for at in np.linspace(*pair.event_range, 20)[1:-1]:
            curve = TightCurve(pair, repetitions.Fixed(1), np.array([at]))
            for epsilon in (0.0, 0.5, 1.5):
                assert pair.profile(epsilon) <= curve.delta(epsilon) * (1 + 1e-12)


@pytest.mark.parametrize("spec", ["fixed:4", "poisson:3", "tnb:0,0.05"])
def test_leakage_of_folded_orders_is_exact(spec: str) -> None:
    law, epsilon = repetitions.parse_repetitions(spec), 0.3
    p, q = np.array([0.1, 0.15, 0.2, 0.25, 0.3]), np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    left = [np.append(np.cumsum(v[::-1])[::-1], 0.0) for v in (p, q)]
    with np.errstate(divide="ignore"):
        logs = np.log(left[0]), np.log(left[1])
    # Cell 4 after none from the front, cells 3 and 2 after two.
    game = FoldedGame(logs, law, np.array([2, 2, 2, 2, 0]))
    chunks = [[4], [0, 1], [3], [2]]
    preferred = np.cumsum([0, *(p[c].sum() for c in chunks)])
    preferred_with = np.cumsum([0, *(q[c].sum() for c in chunks)])
    mass, mass_with = (
        -np.diff(phi(np.maximum(1.0 - v, 0.0), law)) for v in (preferred, preferred_with)
    )
    exact = np.maximum(mass - np.exp(epsilon) * mass_with, 0.0).sum()
    assert game.delta(epsilon) == pytest.approx(exact, rel=1e-8)
    assert game.delta(epsilon) <= exact * (1 + 1e-12)


@pytest.mark.thorough
@pytest.mark.thin(7)
@pytest.mark.parametrize(
    "base",
    [
        GaussianMechanism(0.24721),
        GaussianMechanism(1.0),
        LaplaceMechanism(2.0),
        PureDp(0.3),
        DpSgd(1.0, 200, 0.02),
    ],
)
@pytest.mark.parametrize("spec", ["fixed:3", "poisson:20", "tnb:0,0.01"])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_bound_is_attained(base: Any, spec: str, delta: float) -> None:
    law = repetitions.parse_repetitions(spec)
    tight = upper_bounds.tight(base, law, delta)
    assert tight.epsilon <= upper_bounds.region(base, law, delta).epsilon * (1 + 1e-9)
    assert tight.error <= 2e-3 * tight.epsilon
    worst = upper_bounds.worst_order(base, law, delta)
    if base.attained:
        assert tight.epsilon * (1 - 3e-3) <= worst.epsilon <= tight.epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "region", "tight"),
    [("fixed:10", 3.0096, 2.7273), ("fixed:3", 1.7186, 1.6306), ("poisson:20", 2.5734, 2.5511)],
)
def test_the_bound_is_below_the_region_bound(spec: str, region: float, tight: float) -> None:
    base, law = GaussianMechanism(0.24721), repetitions.parse_repetitions(spec)
    assert upper_bounds.region(base, law, 1e-5).epsilon == pytest.approx(region, rel=1e-4)
    assert upper_bounds.tight(base, law, 1e-5).epsilon == pytest.approx(tight, rel=2e-4)
    # The same order with other cells.
    order, attained = worst_case_order(0.24721, law, 1e-5)
    assert attained == pytest.approx(tight, rel=1e-4)
    assert attained == pytest.approx(TunedOrder(0.24721, law, order, 0.01).epsilon(1e-5), rel=1e-4)


def test_one_run_costs_one_run() -> None:
    base, law = GaussianMechanism(0.8), repetitions.parse_repetitions("fixed:1")
    assert upper_bounds.tight(base, law, 1e-6).epsilon == pytest.approx(
        base.epsilon(1e-6), rel=1e-6
    )


@pytest.mark.thin(3)
@pytest.mark.parametrize("mu", [1e-3, 10.0, 40.0])
@pytest.mark.parametrize(
    "spec",
    ["tnb:0,0.01", pytest.param("fixed:1000", marks=pytest.mark.slow), "poisson:0.01"],
)
def test_extreme_bases_keep_their_order(mu: float, spec: str) -> None:
    base, law = GaussianMechanism(mu), repetitions.parse_repetitions(spec)
    for delta in (1e-15, 0.3):
        attained, tight, region = (
            upper_bounds.find(name).function(base, law, delta).epsilon
            for name in ("worst-order", "tight", "region")
        )
        assert 0.0 <= attained <= tight <= region * (1 + 1e-9)


@pytest.mark.parametrize("spec", ["tnb:0,1e-170", "tnb:0,1e-200", "tnb:0,1e-299"])
def test_the_bound_is_above_an_attack_for_enormous_numbers_of_runs(spec: str) -> None:
    # E[K] is up to 10^296: products of slopes of phi overflow, and once did in the hull.
    base, law = GaussianMechanism(1.0), repetitions.parse_repetitions(spec)
    attained = upper_bounds.worst_order(base, law, 1e-5).epsilon
    for name in ("lemma-7", "region", "tight"):
        assert (
            attained <= upper_bounds.find(name).function(base, law, 1e-5).epsilon <= 1.01 * attained
        )


def test_bounds_below_the_epsilon_of_an_attack_are_withdrawn() -> None:
    base, law = GaussianMechanism(1.0), "tnb:0,0.01"
    rows = [upper_bounds.region(base, law, 1e-5), upper_bounds.worst_order(base, law, 1e-5)]
    assert costs.without_contradictions(rows) == rows
    wrong, attack = replace(rows[0], epsilon=0.99 * rows[1].epsilon), rows[1]
    refused, kept = costs.without_contradictions([wrong, attack])
    assert kept == attack
    assert not refused.applies
    assert "which an attack attains" in refused.assumes
    # A bound for monotone scores may be below the epsilon of the worst score.
    monotone = upper_bounds.reduced_exact(base, law, 1e-5)
    assert monotone.epsilon < attack.epsilon
    assert costs.without_contradictions([monotone, attack]) == [monotone, attack]


def test_the_best_column_of_each_row_does_not_depend_on_the_order_of_epsilons() -> None:
    rng = np.random.default_rng(17)
    gains, slopes, weights = rng.random((60, 40)), rng.random((60, 40)), rng.random(60)
    rows = _Envelope(gains, weights, slopes)
    for epsilon in rng.uniform(-3.0, 5.0, 40):
        columns, values = rows.best(epsilon)
        np.testing.assert_array_equal(columns, rows.table(epsilon).argmax(axis=1))
        np.testing.assert_array_equal(values, rows.table(epsilon).max(axis=1))
    assert rows.most(40.0) < 1e-9 * rows.most(-3.0)  # a row that gains nothing adds nothing


def test_tight_is_never_above_region() -> None:
    base, delta = GaussianMechanism(1e-4), 1e-30
    tight = upper_bounds.tight(base, "tnb:0,1e-9", delta).epsilon
    assert tight <= upper_bounds.region(base, "tnb:0,1e-9", delta).epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "spec"),
    [
        (GaussianMechanism(0.25), "tnb:0,0.01"),
        (DpSgd(1.0, 500, 0.01), "fixed:20"),
        (PureDp(0.3), "poisson:10"),
    ],
)
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-8])
def test_an_expected_epsilon_is_taken_only_if_it_is_a_bound(
    base: Any, spec: str, delta: float
) -> None:
    """What a certificate states decides where the bound is looked for, and not whether it holds."""
    law = repetitions.parse_repetitions(spec)
    searched = tight_at_other_delta(base, law, delta, 1e-5)
    sharp = upper_bounds.tight(base, spec, delta).epsilon
    with expecting(searched.epsilon):
        stated = tight_at_other_delta(base, law, delta, 1e-5)
    assert stated.epsilon == pytest.approx(searched.epsilon, rel=1e-9)
    for share in (0.5, 0.98, 1.2, 30.0):
        with expecting(share * searched.epsilon):
            value = tight_at_other_delta(base, law, delta, 1e-5).epsilon
        assert sharp * (1.0 - 2e-4) <= value <= 1.011 * searched.epsilon + 0.021


@pytest.mark.slow
def test_a_grid_twice_as_coarse_changes_the_epsilon_of_an_order_as_that_of_the_best_one() -> None:
    """The error of an attained epsilon, against the search for an order on the coarse grid."""
    for base, spec in ((DpSgd(1.0, 500, 0.01), "fixed:20"), (DpSgd(2.0, 200, 0.05), "tnb:1,0.1")):
        law = repetitions.parse_repetitions(spec)
        coarse = compose(base.loss_terms, COARSE_CELLS)
        searched = max(
            TightCurve.at(pair, law, 1e-5).worst_order(1e-5).epsilon(1e-5)
            for pair in (coarse, coarse.mirrored)
        )
        attained = upper_bounds.worst_order(base, spec, 1e-5)
        fine = attained.epsilon + 0.5 * attained.error
        assert abs(0.5 * attained.error - abs(fine - searched)) < 2e-6 * fine
