"""Upper bounds against exact small cases, brute force over all orders, and one another."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from known import assert_in_order
from scipy import integrate, special

from audit import accounting, attacks, repetitions, upper_bounds
from audit.accounting import DiscreteMechanism, GaussianMechanism, PureDp
from audit.accounting.conversion import epsilon_of_order
from audit.attacks import TunedOrder, attack_order, worst_case_order, worst_case_split_order
from audit.orders import FoldedOrder, SplitOrder
from audit.upper_bounds import ReducedGame, RegionCurve
from audit.upper_bounds.published import ReducedGameRenyi
from audit.upper_bounds.reduced import log_density
from audit.upper_bounds.region import corner_events
from benchmarks.reduced_renyi import settings, share_of_delta

LAWS = [
    "tnb:0,0.01",
    "tnb:1,0.01",
    "tnb:-0.5,0.05",
    "tnb:3,0.1",
    "poisson:20",
    "poisson:0.5",
    "binomial:30,0.5",
    "two-point:0.01,100",
    "fixed:1",
    "fixed:10",
    "tnb:0,0.01@100",
]


def by_name(base: Any, spec: Any, delta: Any) -> Any:
    law = repetitions.parse_repetitions(spec)
    return {bound.name: bound for bound in upper_bounds.all_upper_bounds(base, law, delta)}


def hockey_stick(p: Any, q: Any, epsilon: Any) -> Any:
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def tuned(masses: Any, order: Any, law: Any) -> Any:
    """Distribution of the best of K outputs, the order from worst to best (X theorem 2)."""
    at_or_below = np.cumsum(masses[list(order)])
    phi = law.phi(np.minimum(np.concatenate([[0.0], at_or_below]), 1.0))
    result = np.empty(len(masses))
    result[list(order)] = np.diff(phi)
    return result


def test_known_values() -> None:
    bounds = by_name(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5)
    expected = {
        "renyi": 1.889,
        "profile": 1.720,
        "reduced-renyi": 1.164,
        "reduced-exact": 1.089,
        "region": 1.449,
    }
    for name, value in expected.items():
        assert bounds[name].epsilon == pytest.approx(value, rel=3e-3), name
    assert bounds["worst-order"].epsilon >= 1.443
    assert bounds["worst-order"].attained
    assert bounds["region"].epsilon >= 1.4434


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mu", "spec", "values"),
    [
        (1.0, "tnb:0,0.01", {"renyi": 7.910, "profile": 7.26, "region": 6.55}),
        (1.0, "tnb:1,0.01", {"renyi": 10.741, "profile": 9.79, "region": 8.36}),
    ],
)
def test_published_values(mu: float, spec: str, values: dict[str, float]) -> None:
    # `renyi` is what dp-accounting's RepeatAndSelectDpEvent gives for sigma = 1.
    bounds = by_name(GaussianMechanism(mu), spec, 1e-5)
    for name, value in values.items():
        assert bounds[name].epsilon == pytest.approx(value, rel=2e-3), name


@pytest.mark.thorough
@pytest.mark.thin(19)
@pytest.mark.parametrize("mu", [pytest.param(0.02, marks=pytest.mark.slow), 0.24721, 1.0, 4.0])
@pytest.mark.parametrize("spec", LAWS)
@pytest.mark.parametrize("delta", [pytest.param(1e-12, marks=pytest.mark.slow), 1e-5, 1e-2])
def test_hierarchy(mu: float, spec: str, delta: float) -> None:
    bounds = by_name(GaussianMechanism(mu), spec, delta)
    exact, worst, region = (bounds[n] for n in ("reduced-exact", "worst-order", "region"))
    # The cells of worst-order are coarser than those of reduced-exact, by under 1e-4.
    assert exact.epsilon - exact.error <= worst.epsilon * (1 + 1e-4) + 1e-6
    assert worst.epsilon <= region.epsilon
    assert exact.epsilon - exact.error <= bounds["reduced-renyi"].epsilon
    for name in ("renyi", "profile"):
        if bounds[name].applies and delta < 1e-2:
            assert region.epsilon - region.error <= bounds[name].epsilon, name
    assert 0 <= region.error <= 2e-3 * region.epsilon
    assert 0 <= exact.error <= 1e-3 * max(exact.epsilon, 1e-3)


def test_one_run_costs_one_run() -> None:
    base = GaussianMechanism(0.8)
    bounds = by_name(base, "fixed:1", 1e-6)
    for name in ("reduced-exact", "worst-order", "region"):
        assert bounds[name].epsilon == pytest.approx(base.epsilon(1e-6), rel=1e-5), name
    assert bounds["reduced-renyi"].epsilon == pytest.approx(base.renyi_epsilon(1e-6), rel=1e-6)


def test_fixed_k_equals_the_extreme_value_distribution() -> None:
    # P[max of k <= x] = Phi(x)^k; hockey stick by adaptive quadrature, a second computation.
    k, mu, epsilon = 5, 0.6, 0.7
    game = ReducedGame(mu, repetitions.parse_repetitions(f"fixed:{k}"))

    def density(x: Any) -> Any:
        return k * special.ndtr(x) ** (k - 1) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def positive(x: Any, sign: Any) -> Any:
        p, q = density(x), density(x - mu)
        p, q = (p, q) if sign > 0 else (q, p)
        return max(p - math.exp(epsilon) * q, 0.0)

    exact = max(
        integrate.quad(positive, -9, 9 + mu, args=(sign,), limit=400, epsabs=1e-13)[0]
        for sign in (1, -1)
    )
    assert game.delta(epsilon) == pytest.approx(exact, rel=1e-5)
    assert game.attained_delta(epsilon) <= exact * (1 + 1e-9)
    assert game.delta(epsilon) >= exact * (1 - 1e-9)


def test_reduced_renyi_by_quadrature() -> None:
    mu, law, alpha = 0.5, repetitions.parse_repetitions("tnb:0,0.02"), 6.0
    game = ReducedGameRenyi(mu, law)

    def density(x: Any) -> Any:
        value = math.exp(law.log_phi_prime_at(special.log_ndtr(x)))
        return value * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    for sign in (1.0, -1.0):
        shifts = (0.0, mu) if sign > 0 else (mu, 0.0)
        total = integrate.quad(
            lambda x, s=shifts: density(x - s[0]) ** alpha * density(x - s[1]) ** (1 - alpha),
            -12,
            12,
            limit=400,
            epsabs=1e-13,
        )[0]
        expected = math.log(total) / (alpha - 1)
        assert game.renyi(np.array([alpha]), sign)[0] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    "order",
    [SplitOrder(0.8), FoldedOrder(0.5, (-3.0, -1.0, 0.4), (2.5, 1.4, 0.6))],
    ids=["split", "folded"],
)
def test_masses_of_an_order_by_simulation(order: FoldedOrder | SplitOrder) -> None:
    # 150,000 tunings, 7 bins: each count within 5 standard deviations (false alarm 1e-5 in all).
    mu, law, size = 0.9, repetitions.parse_repetitions("poisson:4"), 150_000
    rng = np.random.default_rng(3)
    game = TunedOrder(mu, law, order)
    bins = np.array([-np.inf, -1.5, -0.5, 0.1, 0.5, 0.8, 1.6, np.inf])
    left, right = game.edges
    middle = np.where(np.isinf(left), right - 1, np.where(np.isinf(right), left + 1, left / 2))
    middle = np.where(np.isfinite(left) & np.isfinite(right), (left + right) / 2, middle)
    for mean, (lower, upper) in zip((0.0, mu), game.masses, strict=True):
        runs = law.sample(rng, size)
        x = rng.normal(mean, 1.0, runs.sum())
        starts = np.concatenate([[0], np.cumsum(runs)[:-1]])[runs > 0]
        # Of equal scores the smaller x wins: scores are ranked with x as the second key.
        place = np.empty(len(x))
        place[np.lexsort((-x, order.rank(x)))] = np.arange(len(x))
        winner = x[np.argsort(place)[np.maximum.reduceat(place, starts).astype(int)]]
        observed = np.histogram(winner, bins)[0] / size
        expected = np.histogram(middle, bins, weights=lower)[0]
        # Cells of 0.005 that straddle an edge of a bin add at most 0.002 of mass.
        spread = 5 * np.sqrt(expected * (1 - expected) / size) + 2e-3
        assert np.all(np.abs(observed - expected) < spread)
        assert np.all(lower <= upper)
        assert lower.sum() == pytest.approx(1 - law.probability_of_none, abs=1e-8)


def test_a_folded_order_leaks_more_than_any_split_order() -> None:
    # So split orders are not optimal. A continuous score such as |x - c| leaks more than both.
    law = repetitions.parse_repetitions("tnb:1,0.01")
    _, split = worst_case_split_order(1.0, law, 1e-5)
    order, folded = worst_case_order(1.0, law, 1e-5)
    region = upper_bounds.region(GaussianMechanism(1.0), law, 1e-5).epsilon
    assert folded > 1.003 * split
    assert folded <= region <= 1.0005 * folded
    assert folded == pytest.approx(TunedOrder(1.0, law, order).epsilon(1e-5), rel=1e-4)
    x = np.linspace(-12.0, -1.25, 2001)[:-1]
    v_shaped = FoldedOrder(-1.25, tuple(x), tuple(-2.5 - x))
    increasing = TunedOrder(1.0, law, SplitOrder(-np.inf)).epsilon(1e-5)
    assert TunedOrder(1.0, law, v_shaped).epsilon(1e-5) > 1.5 * increasing


@pytest.mark.thin(5)
@pytest.mark.parametrize("spec", ["tnb:0,0.01", "tnb:1,0.01", "poisson:20", "binomial:30,0.5"])
@pytest.mark.parametrize("mu", [0.24721, 1.0, 5.0])
def test_region_bound_is_nearly_attained(spec: str, mu: float) -> None:
    bounds = by_name(GaussianMechanism(mu), spec, 1e-5)
    gap = bounds["region"].epsilon / bounds["worst-order"].epsilon - 1
    assert 0 <= gap < (5e-4 if spec.startswith("tnb") else 1.3e-2)


def test_best_split_order_beats_the_increasing_score() -> None:
    law = repetitions.parse_repetitions("tnb:1,0.01")
    order, epsilon = worst_case_split_order(1.0, law, 1e-5)
    increasing = TunedOrder(1.0, law, SplitOrder(-np.inf)).epsilon(1e-5)
    decreasing = TunedOrder(1.0, law, SplitOrder(np.inf)).epsilon(1e-5)
    # By symmetry the decreasing order leaks what the increasing one does, in the other direction.
    assert increasing == pytest.approx(decreasing, rel=1e-3)
    assert epsilon > 1.5 * increasing
    assert epsilon == pytest.approx(TunedOrder(1.0, law, order).epsilon(1e-5), rel=1e-4)


@pytest.mark.parametrize("scale", [0.1, 1e-20])
def test_a_corner_is_where_the_chords_of_its_neighbours_meet(scale: float) -> None:
    # s' = 4 s up to the corner at s = 5/3, then 5 + s, accurate also for the smallest events.
    s, with_record = scale * np.array([[0.0, 1.0, 3.0, 4.0], [0.0, 4.0, 8.0, 9.0]])
    corners = -np.expm1(corner_events(np.log1p(-s), np.log1p(-with_record)))
    assert corners[:, 1] / scale == pytest.approx([5 / 3, 20 / 3], rel=1e-12)


def test_attack_order_prefers_events_that_trials_can_detect() -> None:
    law, mu = repetitions.parse_repetitions("tnb:0,0.01"), accounting.calibrate_mu(4.0, 1e-5)
    _, few = attack_order(mu, law, 1e-5, 300)
    _, many = attack_order(mu, law, 1e-5, 1_000_000)
    assert many < few < 0


@pytest.mark.slow
def test_region_of_pure_dp_tends_to_two_plus_eta() -> None:
    # Discrete dominating pair: (2 + eta) eps as gamma -> 0 (PS corollary 3), from below.
    for eta, spec in ((0.0, "tnb:0,1e-12"), (1.0, "tnb:1,1e-12"), (0.5, "tnb:0.5,1e-12")):
        bound = upper_bounds.region(PureDp(1.0), repetitions.parse_repetitions(spec), 1e-9)
        # The limit lies within the stated discretisation error, and that is small.
        assert bound.epsilon - bound.error <= 2.0 + eta + 1e-9
        assert bound.epsilon == pytest.approx(2.0 + eta, rel=1e-2)
    bounds = by_name(PureDp(1.0), "geometric:1e-6", 1e-9)
    assert bounds["liu-talwar"].epsilon == pytest.approx(3.0, rel=1e-5)
    assert not bounds["reduced-exact"].applies
    assert bounds["reduced-exact"].assumes.startswith("does not apply")


def test_example_1_of_xiang_et_al_nearly_attains_three_epsilon() -> None:
    b, d, e = 1e-3, 1e2, math.e
    p = np.array([1 - b * e - d * b, b * e, d * b])
    q = np.array([1 - b - d * b * e, b, d * b * e])
    law = repetitions.parse_repetitions("tnb:1,0.001")
    a, a_q = tuned(p, (0, 1, 2), law), tuned(q, (0, 1, 2), law)
    np.testing.assert_allclose(a, [8.66e-3, 2.60e-4, 9.91e-1], rtol=5e-3)
    np.testing.assert_allclose(a_q, [2.66e-3, 1.34e-5, 9.97e-1], rtol=5e-3)
    attained = float(np.max(np.abs(np.log(a / a_q))))
    assert attained == pytest.approx(2.96, abs=0.01)
    region = upper_bounds.region(DiscreteMechanism(p, q), law, 1e-9).epsilon
    assert attained <= region <= 3.0 + 1e-6


@pytest.mark.thorough
@pytest.mark.thin(4)
@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_a_discrete_base_exceeds_the_region_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    concentration = float(rng.choice([0.2, 1.0, 5.0]))
    p, q = (rng.dirichlet(np.full(size, concentration)) for _ in range(2))
    if rng.random() < 0.3:
        q = np.append(q[:-1] * (1 - 1e-3), q[-1] * (1 - 1e-3) + 1e-3)
    law = repetitions.parse_repetitions(str(rng.choice(LAWS)))
    base = DiscreteMechanism(p, q)
    curves = [RegionCurve(pair, law) for pair in base.pairs]
    tightest = math.inf
    for epsilon in (0.0, 0.3, 1.0, 2.5, 6.0):
        bounds = [curve.delta(epsilon) for curve in curves]
        for order in itertools.permutations(range(size)):
            a, a_q = tuned(p, order, law), tuned(q, order, law)
            assert hockey_stick(a, a_q, epsilon) <= bounds[0] + 1e-12
            assert hockey_stick(a_q, a, epsilon) <= bounds[1] + 1e-12
        # Discretisation: the envelope of the curve's own lines is below, and close.
        for curve, bound in zip(curves, bounds, strict=True):
            lower = curve.lower.delta(epsilon)
            assert min(lower, 1.0) <= bound * (1 + 1e-9) + 1e-15
            tightest = min(tightest, bound - lower)
    assert tightest <= 1e-4


def test_region_bound_increases_with_every_parameter() -> None:
    law = repetitions.parse_repetitions("tnb:0,0.01")
    by_mu = [upper_bounds.region(GaussianMechanism(m), law, 1e-5).epsilon for m in (0.1, 0.2, 0.4)]
    assert by_mu == sorted(by_mu)
    base = GaussianMechanism(0.3)
    by_delta = [upper_bounds.region(base, law, d).epsilon for d in (1e-3, 1e-6, 1e-9)]
    assert by_delta == sorted(by_delta)
    by_runs = [
        upper_bounds.region(base, repetitions.parse_repetitions(f"tnb:0,{g}"), 1e-5).epsilon
        for g in (0.5, 0.1, 1e-3, 1e-6)
    ]
    assert by_runs == sorted(by_runs)


@pytest.mark.slow
@pytest.mark.thin(8)
@pytest.mark.parametrize("mu", [1e-4, 30.0])
@pytest.mark.parametrize("delta", [1e-30, 0.5])
@pytest.mark.parametrize(
    "spec",
    [
        "tnb:0,1e-9",
        "poisson:1e6",
        pytest.param("two-point:1e-6,1000000", marks=pytest.mark.slow),
    ],
)
def test_extreme_settings_are_finite_and_in_order(mu: float, delta: float, spec: str) -> None:
    assert_in_order(by_name(GaussianMechanism(mu), spec, delta).values())


@pytest.mark.slow
def test_a_delta_below_the_end_of_every_computation_is_refused() -> None:
    # The profile of composed steps ends at about 1e-36, which counts as a full leak.
    base = accounting.DpSgd(1.0, 100, 0.01)
    assert upper_bounds.tuning_cost(base, "fixed:3", 1e-30).epsilon < 10.0
    with pytest.raises(ValueError, match="where its computation ends, got 1e-50"):
        upper_bounds.tuning_cost(base, "fixed:3", 1e-50)


def test_bounds_that_do_not_apply_have_a_reason() -> None:
    bounds = by_name(GaussianMechanism(0.5), "two-point:0.1,10", 1e-5)
    for name in ("liu-talwar", "renyi", "profile"):
        assert not bounds[name].applies
        assert bounds[name].assumes.startswith("does not apply: K must be")
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 1.5"):
        by_name(GaussianMechanism(0.5), "fixed:2", 1.5)


def exact_renyi(mu: Any, law: Any, order: Any, sign: Any) -> Any:
    """Renyi divergence of the reduced game, by the trapezoid rule on a sufficiently fine grid."""
    low, high, cells = -45.0 - order * mu, 45.0 + (order + 1.0) * mu, 1_500_000
    x = np.linspace(low, high, cells + 1)
    p, q = log_density(x, law), log_density(x - mu, law)
    p, q = (p, q) if sign > 0 else (q, p)
    terms = p + (order - 1.0) * (p - q)
    log_sum = terms.max() + math.log(np.exp(terms - terms.max()).sum() * (high - low) / cells)
    return np.logaddexp(log_sum, np.log(max(law.probability_of_none, 1e-320))) / (order - 1.0)


@pytest.mark.thorough
@pytest.mark.thin(4)
@pytest.mark.parametrize("seed", range(4))
def test_the_renyi_divergence_of_the_reduced_game_is_never_too_small(seed: int) -> None:
    # A coarse grid misses sharp bends, where one run and many runs have equal weight.
    rng = np.random.default_rng(seed)
    many, few = int(np.exp(rng.uniform(1.0, 14.0))), float(np.exp(rng.uniform(-9.0, -0.1)))
    laws = (
        f"two-point:{few},{many}",
        f"tnb:{rng.uniform(-0.9, 3.0)},{few}",
        f"poisson:{many**0.5}",
        f"two-point:{few},{many}",
    )
    law = repetitions.parse_repetitions(laws[seed % 4])
    mu = float(np.exp(rng.uniform(-3.0, 1.0)))
    game = ReducedGameRenyi(mu, law)
    orders = 1.0 + np.exp(rng.uniform(-2.0, math.log(50.0 / mu), 2))
    for sign in (1.0, -1.0):
        for order, found in zip(orders, game.renyi(orders, sign), strict=True):
            exact = exact_renyi(mu, law, float(order), sign)
            assert exact * (1.0 - 1e-9) <= found <= exact * (1.0 + 1e-5) + 1e-9
            # The proved bound is close above, or below if negligible outputs are omitted.
            converted = float(epsilon_of_order(exact, order, 1e-5))
            proved = game.renyi_epsilon(float(order), 1e-5, sign)
            assert proved <= converted + 1e-3 * max(exact, 0.01)


@pytest.mark.parametrize(("mean", "other"), [(0.0, 1.0), (1.0, 0.0)])
def test_cells_whose_mass_rounds_to_zero_are_counted(mean: float, other: float) -> None:
    # One run, cells where p > q: the integral of p^4 q^-3, nearly constant over these short cells.
    order, width = 4.0, 2e-15
    edges = (-3.0 if mean < other else 4.0) + width * np.arange(9.0)
    log_p, log_q = (-0.5 * (edges[1:] - at) ** 2 for at in (mean, other))
    exact = order * log_p - (order - 1.0) * log_q + np.log(np.diff(edges) / math.sqrt(2 * math.pi))
    game = ReducedGameRenyi(1.0, repetitions.parse_repetitions("fixed:1"))
    found, _ = game._chords(order, edges, mean, other)
    assert np.all(found >= exact - 1e-9)


@pytest.mark.slow
def test_algorithm_3_is_never_below_the_exact_reduced_game() -> None:
    # A slice of python -m benchmarks.reduced_renyi, whose 2,000 settings docs/theory.md reports.
    shares = [share_of_delta(one) for one in settings(10, seed=5)]
    assert 0.1 < max(shares) <= 1.0


def test_a_two_point_distribution_for_which_a_coarse_grid_is_too_low() -> None:
    base, law = (
        GaussianMechanism(0.2196194),
        repetitions.parse_repetitions("two-point:0.00075,39584"),
    )
    found = upper_bounds.published.reduced_renyi(base, law, 1.63773883e-7).epsilon
    exact = upper_bounds.reduced_exact(base, law, 1.63773883e-7)
    assert exact.epsilon - exact.error <= found == pytest.approx(8.41987, abs=1e-5)


def test_an_enormous_mu_needs_little_memory() -> None:
    # It once took 24 GB; cells are counted, not bytes.
    mu, law = 1000.0, repetitions.parse_repetitions("tnb:0,0.01")
    assert len(ReducedGame(mu, law)._edges) <= 2**18 + 2
    assert len(ReducedGameRenyi(mu, law)._cells(1.0 + 0.2)) < 20_000


@pytest.mark.slow
def test_every_function_accepts_a_distribution_as_text() -> None:
    text, law = "tnb:1,0.1", repetitions.parse_repetitions("tnb:1,0.1")
    base, alpha = GaussianMechanism(0.5), np.array([2.0, 8.0])
    doors = [
        lambda k: attacks.worst_case_order(0.5, k, 1e-5)[1],
        lambda k: attacks.worst_case_split_order(0.5, k, 1e-5)[1],
        lambda k: attacks.attack_order(0.5, k, 1e-5, 1000)[1],
        lambda k: attacks.TunedOrder(0.5, k, SplitOrder(1.0)).epsilon(1e-5),
        lambda k: upper_bounds.calibrate_runs(base, k, target_epsilon=3.0, target_delta=1e-5).spec,
        lambda k: upper_bounds.published.hypo_curve(base, k, 2.0)(alpha).tolist(),
        lambda k: upper_bounds.published.renyi_curve(base, k)(alpha).tolist(),
        lambda k: upper_bounds.published.lemma_7_curve(base, k, 64)(alpha).tolist(),
        lambda k: upper_bounds.TunedMechanism(base, k).renyi(alpha).tolist(),
    ]
    for door in doors:
        assert door(text) == door(law)


def test_reduced_bounds_have_a_reason_if_their_masses_underflow() -> None:
    # One run costs 3,541. The relevant masses underflow, and mu of "G" is 1e+21.
    base, law = accounting.DpSgd(0.1, 100, 0.5), repetitions.parse_repetitions("tnb:0,0.01")
    assert "must be negligible at this delta" in upper_bounds.reduced_exact(base, law, 1e-5).reason
    found = upper_bounds.published.reduced_gdp_limit(base, law, 1e-5)
    assert "the approximation's mu must be in [1e-12, 1000], got" in found.reason
    # Without underflow, the bound exists and is below the bound for any score.
    base = accounting.DpSgd(0.5, 100, 0.5)
    found = upper_bounds.reduced_exact(base, law, 1e-5)
    assert base.epsilon(1e-5) < found.epsilon < upper_bounds.region(base, law, 1e-5).epsilon


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("base", "runs"),
    [
        (GaussianMechanism(4.14), 1000),
        (GaussianMechanism(4.14), 100_000),
        (GaussianMechanism(13.1), 100_000),
        (GaussianMechanism(100.0), 20),
        (GaussianMechanism(100.0), 1000),
        (accounting.DpSgd(1.0, 100_000, 0.01), 1000),
        pytest.param(accounting.DpSgd(1.0, 10**6, 0.01), 100_000, marks=pytest.mark.slow),
    ],
)
def test_costs_of_many_revealing_runs_are_between_an_attack_and_composition(
    base: Any, runs: int
) -> None:
    # Probabilities with the record are e^-1000 and less. An attack: outputs of one event are the
    # worst, so the best of all runs belongs to it only if all runs do.
    low, high = base.pairs[0].event_range
    log_p, log_q = base.pairs[0].events(np.linspace(low, high, 20_001))
    gains = np.exp(runs * log_p) - 1e-5
    likely = gains > 0.0
    attained = float(np.max(np.log(gains[likely]) - runs * log_q[likely]))
    search, grid = (
        upper_bounds.tuning_cost(base, f"{protocol}:{runs}", 1e-5).epsilon
        for protocol in ("fixed", "grid")
    )
    assert attained < search < 1.4 * attained
    assert attained < grid < 1.4 * attained
