"""Selection bounds: against exact small games, other accountants, limits, and each other."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from known import OwnDistribution, assert_in_order
from scipy import integrate, optimize, stats

from audit import accounting, repetitions, upper_bounds
from audit.accounting import (
    ApproximateDp,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    PureDp,
    WorstOf,
    ZeroConcentratedDp,
)
from audit.protocols import Adaptive, NoisyMax, Subset
from audit.upper_bounds import LikelihoodOrder, RegionCurve, TunedMechanism
from audit.upper_bounds.published import (
    conditional_curve,
    hypo,
    hypo_curve,
    hypo_theorem_2,
    koskela_kulkarni,
    lemma_7_curve,
    noisy_max,
    proposition_15,
    renyi_curve,
    subset_divergences,
)

DELTA = 1e-5
LAWS = ["tnb:0,0.05", "tnb:1,0.1", "tnb:-0.5,0.2", "poisson:8", "binomial:20,0.4", "fixed:4"]
ANY = [*LAWS, "two-point:0.3,9", "tnb:1,0.05@12", "poisson:8@5"]


def value(bound: Any, base: Any, spec: Any, delta: Any = DELTA) -> Any:
    return (
        upper_bounds.find(bound).function(base, repetitions.parse_repetitions(spec), delta).epsilon
    )


def tuned(masses: Any, order: Any, law: Any) -> Any:
    """The distribution of the best of K outputs; the last in `order` is the best."""
    reached = np.append(0.0, np.cumsum(masses[list(order)]))
    with np.errstate(divide="ignore"):
        best = np.diff(np.exp(law.log_phi_at(np.minimum(np.log(reached), 0.0))))
    return np.append(np.maximum(best, 0.0), law.probability_of_none)


def hockey_stick(p: Any, q: Any, epsilon: Any) -> Any:
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def random_pair(seed: Any, outputs: Any = 4) -> Any:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(outputs)), rng.dirichlet(np.ones(outputs))


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize("spec", ANY)
@pytest.mark.parametrize("seed", range(3))
def test_no_order_of_a_small_base_exceeds_the_bounds(spec: str, seed: int) -> None:
    p, q = random_pair(seed)
    base, law = DiscreteMechanism(p, q), repetitions.parse_repetitions(spec)
    curves = [RegionCurve(pair, law) for pair in base.pairs]
    alphas = np.array([1.2, 2.0, 7.0])
    generic = lemma_7_curve(base, law)(alphas)
    for order in itertools.permutations(range(len(p))):
        there, back = tuned(p, order, law), tuned(q, order, law)
        for epsilon in (0.0, 0.3, 1.0, 3.0):
            assert hockey_stick(there, back, epsilon) <= curves[0].delta(epsilon) + 1e-12
            assert hockey_stick(back, there, epsilon) <= curves[1].delta(epsilon) + 1e-12
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = alphas[:, None] * np.log(there) + (1 - alphas[:, None]) * np.log(back)
        moments = np.where(there > 0, np.exp(terms), 0.0).sum(axis=1)
        assert np.all(np.log(moments) / (alphas - 1) <= generic * (1 + 1e-9))


@pytest.mark.thin(16)
@pytest.mark.parametrize("spec", ANY)
@pytest.mark.parametrize("delta", [pytest.param(1e-3, marks=pytest.mark.slow), 0.1])
def test_every_bound_holds_for_every_order_of_a_small_base(spec: str, delta: float) -> None:
    for seed in range(3):
        p, q = random_pair(seed, 3)
        if seed == 2:  # and outputs that give the record away
            p, q = np.array([0.88, 0.1, 0.02, 0.0]), np.array([0.88, 0.1, 0.0, 0.02])
        base, law = DiscreteMechanism(p, q), repetitions.parse_repetitions(spec)
        games = [
            (tuned(p, order, law), tuned(q, order, law))
            for order in itertools.permutations(range(len(p)))
        ]
        for row in upper_bounds.all_upper_bounds(base, law, delta):
            if row.claim.any_score and row.applies:
                for there, back in games:
                    assert hockey_stick(there, back, row.epsilon) <= delta * (1 + 1e-9), row
                    assert hockey_stick(back, there, row.epsilon) <= delta * (1 + 1e-9), row


@pytest.mark.parametrize("spec", ["tnb:0,0.05", "poisson:8", "fixed:4", "tnb:1,0.05@12"])
def test_leakage_of_the_likelihood_order_is_exact(spec: str) -> None:
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    base, law = DiscreteMechanism(p, q), repetitions.parse_repetitions(spec)
    there, back = tuned(p, range(4), law), tuned(q, range(4), law)
    game = LikelihoodOrder(base.pairs[0], law)
    for epsilon in (0.0, 0.5, 1.5):
        exact = max(hockey_stick(there, back, epsilon), hockey_stick(back, there, epsilon))
        assert game.delta(epsilon) == pytest.approx(exact, rel=1e-9, abs=1e-13)
    assert value("reduced-exact", base, spec, 0.01) <= value("region", base, spec, 0.01)


@pytest.mark.parametrize(
    ("base", "eta", "published"),
    [
        (GaussianMechanism(1.0), 0, 7.910),
        (GaussianMechanism(1.0), 1, 10.741),
        (DpSgd(1.0, 500, 0.01), 0, 3.030),
        (DpSgd(1.0, 500, 0.01), 1, 4.194),
    ],
)
def test_renyi_is_at_least_as_tight_as_dp_accounting(
    base: DpSgd | GaussianMechanism, eta: int, published: float
) -> None:
    import dp_accounting
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    event = dp_accounting.GaussianDpEvent(1.0)
    if base.gaussian_mu is None:
        event = dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.01, event), 500
        )
    law = repetitions.parse_repetitions(f"tnb:{eta},0.01")
    accountant = RdpAccountant()
    accountant.compose(RepeatAndSelectDpEvent(event, law.mean, eta))
    theirs = accountant.get_epsilon(DELTA)
    ours = upper_bounds.published.renyi(base, law, DELTA).epsilon
    assert theirs == pytest.approx(published, abs=2e-3)
    assert ours <= theirs * (1 + 1e-9)
    assert ours == pytest.approx(theirs, rel=5e-3)
    assert upper_bounds.region(base, law, DELTA).epsilon < ours


@pytest.mark.slow
@settings(max_examples=3)
@given(st.floats(0.01, 4.0), st.sampled_from(ANY), st.sampled_from([1e-2, 1e-5, 1e-9]))
def test_the_hierarchy_holds_for_gaussian_bases(mu: Any, spec: Any, delta: Any) -> None:
    base, law = GaussianMechanism(mu), repetitions.parse_repetitions(spec)
    rows = {row.name: row for row in upper_bounds.all_upper_bounds(base, law, delta)}
    region = rows["region"].epsilon
    for row in rows.values():
        if not row.applies:
            continue
        if row.attained or row.name.startswith("reduced-exact"):
            assert row.epsilon - row.error <= region
        elif row.claim.any_score:
            assert row.epsilon >= rows["worst-order"].epsilon - rows["worst-order"].error
            # Bounds with a separate failure probability may be smaller if delta is large.
            if row.name not in ("approximate", "liu-talwar", "tight"):
                assert row.epsilon >= region * (1 - 1e-9)
    assert rows["tight"].epsilon <= region * (1 + 1e-9)
    assert rows["reduced-exact"].epsilon <= rows["reduced-renyi"].epsilon * (1 + 1e-6) + 1e-9


@pytest.mark.slow
@pytest.mark.thin(8)
@pytest.mark.parametrize("base", [DpSgd(1.0, 200, 0.02), DpSgd(2.0, 50, 0.1, "replace-one")])
@pytest.mark.parametrize("spec", ["tnb:0,0.01", "tnb:1,0.05", "poisson:20", "fixed:5"])
def test_the_hierarchy_holds_for_sampled_bases(base: DpSgd, spec: str) -> None:
    law = repetitions.parse_repetitions(spec)
    rows = {row.name: row for row in upper_bounds.all_upper_bounds(base, law, DELTA)}
    region = rows["region"].epsilon
    assert rows["reduced-exact"].epsilon <= region
    assert 0.0 < rows["reduced-exact"].error < 1e-3 * region
    assert "not a bound" in rows["reduced-O"].assumes
    assert rows["tight"].epsilon * (1 - 1e-3) < rows["worst-order"].epsilon
    assert rows["worst-order"].epsilon <= rows["tight"].epsilon <= region * (1 + 1e-9)
    for name in (one.name for one in upper_bounds.entries() if one.claim.any_score):
        if name in rows and rows[name].applies and name != "tight":
            assert rows[name].epsilon >= region * (1 - 1e-9)
    assert base.epsilon(DELTA) <= region


@pytest.mark.parametrize("spec", ["tnb:0,0.01", "tnb:2,0.1", "poisson:20"])
@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_lemma_7_is_at_least_as_tight_as_theorems_2_and_6(spec: str, mu: float) -> None:
    base, law = GaussianMechanism(mu), repetitions.parse_repetitions(spec)
    orders = np.array([1.1, 2.0, 5.0, 30.0])
    assert np.all(lemma_7_curve(base, law)(orders) <= renyi_curve(base, law)(orders) * (1 + 1e-5))


def test_corollary_4_is_theorem_2_in_closed_form() -> None:
    law = repetitions.parse_repetitions("tnb:0.5,0.01")
    orders = np.array([1.5, 3.0, 10.0, 100.0])
    for base in (ZeroConcentratedDp(0.1), GaussianMechanism(math.sqrt(0.2))):
        closed = upper_bounds.published.corollary_4_curve(base, law)(orders)
        assert closed == pytest.approx(renyi_curve(base, law)(orders), rel=1e-6)
    with pytest.raises(ValueError, match="must be at least rho"):
        upper_bounds.published.corollary_4_curve(ZeroConcentratedDp(9.0), law)


def test_corollary_4_needs_a_distribution_with_enough_runs() -> None:
    # log(1/gamma) >= rho: at gamma = 0.5 up to rho = 0.69.
    law = repetitions.parse_repetitions("tnb:1,0.5")
    for rho, applies in ((0.69, True), (0.70, False)):
        found = upper_bounds.published.corollary_4(ZeroConcentratedDp(rho), law, DELTA)
        assert found.applies == applies
        assert applies or "log(1/gamma) must be at least rho" in found.assumes


def test_lemma_22_approaches_the_distribution_before_truncation() -> None:
    base, before = GaussianMechanism(0.5), repetitions.parse_repetitions("tnb:1,0.1")
    limit = upper_bounds.published.lemma_7(base, before, DELTA).epsilon
    values = []
    for most in (20, 60, 400):
        law = repetitions.parse_repetitions(f"tnb:1,0.1@{most}")
        values.append(upper_bounds.published.lemma_22(base, law, DELTA).epsilon)
        assert upper_bounds.published.lemma_7(base, law, DELTA).epsilon <= values[-1]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(limit, rel=1e-6)
    refused = upper_bounds.published.lemma_22(base, before, DELTA)
    assert not refused.applies
    assert not refused.applies


@pytest.mark.parametrize("spec", [*ANY, "fixed:3"])
def test_the_distribution_of_k_given_no_failure(spec: str) -> None:
    law, failure = repetitions.parse_repetitions(spec), 0.07
    k = np.arange(200)
    weights = law.pmf(k) * (1 - failure) ** k
    given_none = law.given_no_failure(failure)
    assert given_none.pmf(k) == pytest.approx(weights / weights.sum(), abs=1e-7)


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize("spec", ["tnb:0,0.05", "poisson:8@5"])
@pytest.mark.parametrize("base", [GaussianMechanism(0.4), ApproximateDp(0.2, 1e-9)])
def test_a_user_defined_distribution_has_only_the_general_bounds(
    spec: str, base: ApproximateDp | GaussianMechanism
) -> None:
    known = repetitions.parse_repetitions(spec)
    own = {
        row.name: row for row in upper_bounds.all_upper_bounds(base, OwnDistribution(known), DELTA)
    }
    for row in upper_bounds.all_upper_bounds(base, known, DELTA):
        if row.name in ("liu-talwar", "corollary-4", "renyi", "profile", "lemma-22"):
            assert row.name not in own or not own[row.name].applies
        elif not row.applies:
            assert not own[row.name].applies
        else:
            assert own[row.name].epsilon == pytest.approx(row.epsilon, rel=1e-7)
    assert own["approximate"].applies
    assert own["tight"].applies


@pytest.mark.parametrize("spec", ["tnb:0,0.05", "poisson:8", "fixed:4"])
def test_approximate_bases_are_covered_by_both_bounds(spec: str) -> None:
    law, leak, epsilon_0 = repetitions.parse_repetitions(spec), 1e-4, 0.2
    base, total = (
        ApproximateDp(epsilon_0, leak),
        4.0 * repetitions.parse_repetitions(spec).mean * 1e-4,
    )
    pair = base.pairs[0]
    yes, no = np.exp(pair.pmf.log_mass[::-1])
    p, q = np.array([no, yes, leak, 0.0]), np.array([yes, no, 0.0, leak])
    claimed = upper_bounds.published.approximate(base, law, total).epsilon
    tight = upper_bounds.region(base, law, total).epsilon
    assert tight <= claimed * (1 + 1e-9)
    exact = hockey_stick(tuned(p, range(4), law), tuned(q, range(4), law), tight)
    assert law.phi_survival(leak) * 0.9 < exact <= total
    alpha, divergence, failure = upper_bounds.published.corollary_21(
        epsilon_0, leak, repetitions.Poisson(8.0)
    )
    assert failure == pytest.approx(-math.expm1(-8e-4))
    assert divergence == pytest.approx(epsilon_0 + math.expm1(epsilon_0) * math.log(8.0), rel=1e-3)
    assert upper_bounds.published.approximate_to_delta(
        alpha, divergence, failure, 50.0
    ) == pytest.approx(failure, rel=1e-3)


def test_example_1_of_xiang_wang_and_wang() -> None:
    e, b, d = math.e, 1e-3, 1e2
    base = DiscreteMechanism(
        np.array([1 - b * e - d * b, b * e, d * b]), np.array([1 - b - d * b * e, b, d * b * e])
    )
    law = repetitions.parse_repetitions("tnb:1,1e-3")
    there, back = (tuned(pair, range(3), law) for pair in (base.p, base.q))
    assert there[:3] == pytest.approx([8.66e-3, 2.60e-4, 9.91e-1], rel=5e-3)
    assert back[:3] == pytest.approx([2.66e-3, 1.34e-5, 9.97e-1], rel=5e-3)
    leaked = math.log(there[1] / back[1])
    assert leaked == pytest.approx(2.96, abs=5e-3)
    delta = 1e-12
    assert leaked - 1e-6 <= upper_bounds.region(base, law, delta).epsilon <= 3.0 + 1e-6


@pytest.mark.thin(4)
@pytest.mark.parametrize("seed", range(4))
def test_conditional_sampling_against_every_set(seed: int) -> None:
    p, q = random_pair(seed, 4)
    base, orders = DiscreteMechanism(p, q), np.array([1.5, 2.0, 3.0, 10.0])
    for size in (1, 2, 3):
        for kept in itertools.combinations(range(4), size):
            rows = list(kept)
            there, back = p[rows] / p[rows].sum(), q[rows] / q[rows].sum()
            moments = np.sum(there ** orders[:, None] * back ** (1 - orders[:, None]), axis=1)
            chance = min(p[rows].sum(), q[rows].sum())
            bound = conditional_curve(base, chance)(orders)
            assert np.all(np.log(moments) / (orders - 1) <= bound + 1e-12)


def test_conditional_sampling_of_pure_dp_costs_twice() -> None:
    claimed = proposition_15(PureDp(0.3), "until:1e-4", 1e-9).epsilon
    assert 0.3 < claimed <= 0.6 * (1 + 1e-5)
    assert not proposition_15(ApproximateDp(0.3, 0.1), "until:0.5", 0.2).applies


def repeated_response(epsilon_0: Any, k: Any) -> Any:
    """Randomised response run k times, "yes" preferred: the best is "no" only if all runs are."""
    logs = -np.logaddexp(0.0, np.array([-epsilon_0, epsilon_0]))
    p, q = (np.array([np.exp(k * log), -np.expm1(k * log)]) for log in logs)
    return DiscreteMechanism(p, q)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_a_fixed_number_of_runs_costs_k_times(k: int) -> None:
    epsilon_0 = 0.4
    mechanism = repeated_response(epsilon_0, k)
    orders = np.array([1.5, 3.0, 20.0])
    assert mechanism.epsilon(1e-15) == pytest.approx(k * epsilon_0, rel=1e-3)
    proved = k * epsilon_0 - k * np.log1p(np.exp(-epsilon_0)) / (orders - 1.0)  # proposition 17
    assert np.all(mechanism.renyi(orders) >= proved * (1 - 1e-12))
    law = repetitions.Fixed(k)
    # Both are roots with a tolerance of 1e-10.
    bound = upper_bounds.region(PureDp(epsilon_0), law, 1e-6).epsilon
    assert mechanism.epsilon(1e-6) <= bound * (1.0 + 2e-10)


def test_noisy_max_against_its_exact_distribution() -> None:
    # Three queries at (0, 0, 0), or (1, -1, -1) apart: P[first wins] by quadrature.
    sigma = 1.5

    def wins(means: Any) -> Any:
        def chance(i: Any) -> Any:
            others = [m for j, m in enumerate(means) if j != i]
            return integrate.quad(
                lambda x: (
                    stats.norm.pdf(x, means[i], sigma) * np.prod(stats.norm.cdf(x, others, sigma))
                ),
                -12,
                12,
            )[0]

        return np.array([chance(i) for i in range(len(means))])

    p, q = wins([0.5, -0.5, -0.5]), wins([-0.5, 0.5, 0.5])
    for delta in (0.05, 0.01):
        claimed = noisy_max(GaussianMechanism(1 / sigma), "noisy-max:3", delta).epsilon
        assert hockey_stick(p, q, claimed) <= delta
        assert hockey_stick(q, p, claimed) <= delta
    base = GaussianMechanism(0.25)
    for m in (10, 1000):
        ours = noisy_max(base, NoisyMax(m), 1e-6).epsilon
        assert noisy_max(base, NoisyMax(m, monotone=True), 1e-6).epsilon < ours
        assert ours < noisy_max(base, NoisyMax(m, rounds=2), 1e-6).epsilon < 2.5 * ours
    laplace = noisy_max(LaplaceMechanism(4.0), "noisy-max:5", 1e-9).epsilon
    assert laplace <= 0.5 * (1 + 1e-9)


def test_candidates_of_different_cost() -> None:
    law = repetitions.parse_repetitions("tnb:1,0.1")
    several = [DpSgd(2.0, 100, 0.01), DpSgd(3.0, 250, 0.01)]
    alone = [upper_bounds.published.profile(one, law, 1e-6).epsilon for one in several]
    # Corollary 6.2 is theorem 5.2 for the worst of the candidates.
    together = upper_bounds.published.profile(WorstOf(tuple(several)), law, 1e-6).epsilon
    assert max(alone) <= together * (1 + 1e-9)
    assert together <= 1.1 * max(alone)
    assert upper_bounds.region(WorstOf(tuple(several)), law, 1e-6).epsilon < together
    epsilon_1, base = 0.3, several[0]
    by_formula = upper_bounds.published.corollary_6_2(
        epsilon_1, float(base.delta(epsilon_1)), base.epsilon(1e-6 / law.mean), law
    )
    assert alone[0] <= by_formula * (1 + 1e-9)


def test_propose_test_release_shifts_the_profile() -> None:
    released = GaussianMechanism(0.5)
    tested = upper_bounds.published.propose_test_release(released, 0.2, 1e-7, 2e-7)
    for epsilon in (0.3, 1.0, 2.0):
        expected = float(released.delta(epsilon - 0.2)) + 3e-7
        assert float(tested.delta(epsilon)) == pytest.approx(expected, rel=1e-3)
    law = repetitions.parse_repetitions("tnb:0,0.1")
    assert value("region", tested, law.spec, 1e-4) > value("region", released, law.spec, 1e-4)


def test_adaptive_sampling_costs_the_density_ratio() -> None:
    base, law = GaussianMechanism(1.0), repetitions.parse_repetitions("tnb:1,0.1")
    plain = hypo(base, Adaptive(law, 1.0, 1.0), DELTA).epsilon
    assert plain == pytest.approx(upper_bounds.published.renyi(base, law, DELTA).epsilon, rel=1e-9)
    costs = [hypo(base, Adaptive(law, 1.0, ratio), DELTA).epsilon for ratio in (1.1, 2.0, 4.0)]
    assert plain < costs[0] < costs[1] < costs[2]
    # Theorem 2 is theorem 1 at infinite orders.
    pure = hypo_theorem_2(PureDp(0.1), Adaptive(law, 1.0, 1.5), DELTA).epsilon
    assert pure == pytest.approx(3 * (0.1 + math.log(1.5)))
    assert hypo(PureDp(0.1), Adaptive(law, 1.0, 1.5), 1e-300).epsilon == pytest.approx(
        pure, rel=1e-2
    )
    assert not hypo(base, Adaptive("poisson:3", 0.5, 1.0), DELTA).applies


@pytest.mark.parametrize("seed", range(3))
def test_projected_densities_are_the_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    density, prior = 3.0 * rng.random(6), rng.dirichlet(np.ones(6))
    ours = upper_bounds.published.project_density(density, 0.6, 1.5, prior)
    assert prior @ ours == pytest.approx(1.0, abs=1e-12)
    assert np.all((ours >= 0.6) & (ours <= 1.5))
    solved = optimize.minimize(  # type: ignore[call-overload]
        lambda h: prior @ (h - density) ** 2,
        np.ones(6),
        jac=lambda h: 2 * prior * (h - density),
        bounds=[(0.6, 1.5)] * 6,
        constraints={"type": "eq", "fun": lambda h: prior @ h - 1.0, "jac": lambda h: prior},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    assert prior @ (ours - density) ** 2 <= solved.fun + 1e-9
    with pytest.raises(ValueError, match=r"density must be numbers, got \[nan\]"):
        upper_bounds.published.project_density([math.nan], 0.5, 2.0)


def test_tuning_on_a_subset_against_an_exact_mixture() -> None:
    # The subset's run and the final run are randomised responses: everything is a finite sum.
    rate, orders = 0.3, np.array([2.0, 3.0, 5.0])
    tune, final = random_pair(1, 3), random_pair(2, 3)
    curves = [
        lambda a, pair=pair: DiscreteMechanism(*pair).renyi(np.asarray(a)) for pair in (tune, final)
    ]
    there, back = subset_divergences(*curves, rate, orders)
    without = np.outer(tune[1], final[1]).ravel()
    mixed = rate * np.outer(tune[0], final[1]) + (1 - rate) * np.outer(tune[1], final[0])
    for p, q, bound in ((mixed.ravel(), without, there), (without, mixed.ravel(), back)):
        moments = np.sum(p ** orders[:, None] * q ** (1 - orders[:, None]), axis=1)
        assert np.all(np.log(moments) / (orders - 1) <= bound + 1e-12)


@pytest.mark.thorough
def test_tuning_on_a_subset_at_its_ends() -> None:
    base, spec = GaussianMechanism(0.3), "tnb:0,0.01"
    law = repetitions.parse_repetitions(spec)
    costs = [
        koskela_kulkarni(base, Subset(law, rate), DELTA).epsilon
        for rate in (0.0, 0.01, 0.1, 0.5, 1.0)
    ]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(base.renyi_epsilon(DELTA), rel=1e-4)
    assert costs[-1] == pytest.approx(value("lemma-7", base, spec), rel=1e-3)
    disjoint = DiscreteMechanism([0.3, 0.7], [0.0, 1.0])  # with infinite Renyi divergences
    assert not any(koskela_kulkarni(disjoint, Subset(law, rate), 0.01).applies for rate in (0, 1))


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize("base", [GaussianMechanism(0.4), DpSgd(1.0, 100, 0.02), PureDp(0.3)])
def test_tuning_as_a_mechanism(base: Any) -> None:
    law = repetitions.parse_repetitions("tnb:0,0.05")
    once = TunedMechanism(base, law)
    region = upper_bounds.region(base, law, DELTA).epsilon
    assert region * (1 - 1e-9) <= once.epsilon(DELTA) <= region * (1 + 1e-3)
    twice, then = Composition((once, once)), Composition((once, base))
    slack = 1 + 2e-3
    halves = [upper_bounds.region(base, law, DELTA / 2).epsilon, base.epsilon(DELTA / 2)]
    assert region < then.epsilon(DELTA) < sum(halves) * slack
    assert then.epsilon(DELTA) < twice.epsilon(DELTA) < 2 * halves[0] * slack
    assert twice.epsilon(DELTA) <= twice.renyi_epsilon(DELTA) * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(2))
def test_tuning_twice_covers_an_exact_game(seed: int) -> None:
    p, q = random_pair(seed, 3)
    law = repetitions.parse_repetitions("tnb:0,0.2")
    both = Composition((TunedMechanism(DiscreteMechanism(p, q), law),) * 2)
    for order in itertools.permutations(range(3)):
        there, back = tuned(p, order, law), tuned(q, order, law)
        for epsilon in (0.0, 0.5, 2.0):
            exact = hockey_stick(
                np.outer(there, there).ravel(), np.outer(back, back).ravel(), epsilon
            )
            assert exact <= float(both.delta(epsilon)) * (1 + 1e-9)


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_limits_of_distributions(mu: float) -> None:
    base = GaussianMechanism(mu)
    poisson = value("region", base, "poisson:10")
    assert value("region", base, "binomial:1000000,1e-5") == pytest.approx(poisson, rel=1e-3)
    tnb = repetitions.parse_repetitions("tnb:1e5,0.5")
    near = tnb.with_mean(10.0)
    assert upper_bounds.region(base, near, DELTA).epsilon == pytest.approx(poisson, rel=1e-3)
    one = value("region", base, "fixed:1")
    assert one == pytest.approx(base.epsilon(DELTA), rel=1e-5)
    assert value("reduced-exact", base, "fixed:1") == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tnb:0,0.01", "poisson:20"])
def test_sampling_everything_is_the_gaussian_bound(spec: str) -> None:
    almost, whole = DpSgd(3.0, 20, 1.0 - 1e-12), GaussianMechanism(math.sqrt(20) / 3.0)
    for name in ("region", "profile", "renyi", "lemma-7", "reduced-exact", "liu-talwar"):
        expected = value(name, whole, spec)
        if expected is not None:
            assert value(name, almost, spec) == pytest.approx(expected, rel=5e-4)


@settings(max_examples=5)
@given(
    st.floats(0.05, 3.0),
    st.floats(1.01, 1.5),
    st.sampled_from(["tnb:0,0.5", "tnb:1,0.5", "tnb:-0.5,0.5", "poisson:1"]),
    st.floats(2.0, 1e5),
)
def test_costs_increase_with_every_parameter(mu: Any, factor: Any, family: Any, mean: Any) -> None:
    law = repetitions.parse_repetitions(family).with_mean(mean)
    more = law.with_mean(mean * factor)
    base = upper_bounds.region(GaussianMechanism(mu), law, DELTA).epsilon
    # Above, exp(-epsilon) underflows: bounds are valid, but not accurate to six digits.
    assume(base < 500)
    slack = 1 + 1e-6
    assert base <= upper_bounds.region(GaussianMechanism(mu * factor), law, DELTA).epsilon * slack
    assert base <= upper_bounds.region(GaussianMechanism(mu), more, DELTA).epsilon * slack
    assert base <= upper_bounds.region(GaussianMechanism(mu), law, DELTA / factor).epsilon * slack


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("base", "spec", "delta"),
    [
        pytest.param(DpSgd(1.0, 500, 0.01), "tnb:0,1e-9", 1e-30, marks=pytest.mark.slow),
        pytest.param(DpSgd(1.0, 500, 0.01), "poisson:1e6", 0.4, marks=pytest.mark.slow),
        pytest.param(DpSgd(50.0, 1, 1e-5), "poisson:1e6", 1e-5, marks=pytest.mark.slow),
        pytest.param(DpSgd(50.0, 1, 1e-5), "tnb:5,1e-7", 1e-30, marks=pytest.mark.slow),
        (PureDp(0.1), "tnb:5,1e-7", 0.4),
        (PureDp(0.1), "poisson:1e6", 1e-30),
        (PureDp(0.1), "tnb:0,1e-9", 1e-5),
    ],
)
def test_extremes_of_other_bases(base: PureDp | DpSgd, spec: str, delta: float) -> None:
    law = repetitions.parse_repetitions(spec)
    assert_in_order(upper_bounds.all_upper_bounds(base, law, delta))


def test_invalid_input_is_refused() -> None:
    base, law = GaussianMechanism(1.0), repetitions.parse_repetitions("tnb:0,0.1")
    with pytest.raises(ValueError, match="ratio must be in"):
        hypo_curve(base, law, 0.5)
    with pytest.raises(ValueError, match="acceptance must be in"):
        conditional_curve(base, 0.0)
    assert "Gaussian or Laplace" in noisy_max(PureDp(1.0), "noisy-max:3", DELTA).reason
    with pytest.raises(ValueError, match="sampling_rate must be in"):
        subset_divergences(base.renyi, base.renyi, 1.5, np.array([2.0]))
    with pytest.raises(ValueError, match="K must be truncated"):
        renyi_curve(base, repetitions.parse_repetitions("fixed:2"))
    assert issubclass(accounting.DeltaUnreachable, ValueError)


@pytest.mark.thorough
def test_the_tight_bound_is_the_smallest() -> None:
    law = repetitions.parse_repetitions("tnb:0,0.05")
    assert upper_bounds.tuning_cost(GaussianMechanism(0.5), law, DELTA).name == "tight"
    # If delta is large, a separate failure probability improves only on the region bound.
    weak = GaussianMechanism(0.0117)
    assert value("approximate", weak, law.spec, 0.01) < value("region", weak, law.spec, 0.01)
    assert upper_bounds.tuning_cost(weak, law, 0.01).name == "tight"
    with pytest.raises(accounting.DeltaUnreachable, match="reaches, got 0"):
        upper_bounds.tuning_cost(ApproximateDp(0.1, 0.01), law, 0.01)
