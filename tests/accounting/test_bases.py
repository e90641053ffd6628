"""Base mechanisms: against closed forms, exact small cases, and other accountants."""

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from audit import accounting, repetitions, upper_bounds
from audit.accounting import (
    ApproximateDp,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    PrivacyProfile,
    PureDp,
    RandomisedResponse,
    RenyiCurve,
    WorstOf,
    ZeroConcentratedDp,
)
from audit.accounting.composition import compose
from audit.accounting.dpsgd import SampledStep
from audit.accounting.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    LossPair,
    PrivacyLossPmf,
    gaussian_profile,
)
from audit.integrations.opacus import tuning_epsilon
from audit.upper_bounds import TunedMechanism

LOG_TWO_PI = math.log(2.0 * math.pi)
EPSILONS = np.array([-3.0, -1.0, -0.2, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
BASES = {
    "gaussian": GaussianMechanism(0.8),
    "laplace": LaplaceMechanism(1.5),
    "response": RandomisedResponse(0.7, 5),
    "pure": PureDp(1.2),
    "approximate": ApproximateDp(0.4, 1e-3),
    "discrete": DiscreteMechanism(np.array([0.1, 0.2, 0.7, 0.0]), np.array([0.2, 0.2, 0.5, 0.1])),
    "zcdp": ZeroConcentratedDp(0.1),
    "sampled": DpSgd(1.0, 50, 0.05),
    "replaced": DpSgd(1.0, 20, 0.05, "replace-one"),
    "profile": PrivacyProfile(np.array([0.0, 0.5, 1.0]), np.array([0.4, 0.1, 0.01])),
}


@pytest.mark.parametrize("name", BASES)
def test_profile_is_attained_by_extreme_events(name: str) -> None:
    # The hockey stick is the largest P(E) - e^eps P'(E) over events, attained by extreme ones.
    for pair in BASES[name].pairs:
        left, right = pair.event_range
        t = np.unique(np.concatenate([np.linspace(left, right, 40001), np.arange(0.0, 12.0)]))
        log_p, log_q = pair.events(t[(t >= left) & (t <= right)])
        assert np.all(np.diff(np.exp(log_p)) <= 1e-12)
        assert np.all(np.diff(np.exp(log_q)) <= 1e-12)
        for epsilon in EPSILONS:
            best = np.max(np.exp(log_p) - np.exp(epsilon + log_q))
            assert best == pytest.approx(float(pair.profile(epsilon)), abs=1e-6)


@pytest.mark.parametrize("name", BASES)
def test_profiles_of_both_directions_satisfy_their_identity(name: str) -> None:
    # H_-eps(P || P') = 1 - e^-eps + e^-eps H_eps(P' || P).
    pairs = BASES[name].pairs
    there, back = pairs[0], pairs[-1]
    for epsilon in EPSILONS:
        mirrored = -math.expm1(-epsilon) + math.exp(-epsilon) * float(back.profile(epsilon))
        assert float(there.profile(-epsilon)) == pytest.approx(mirrored, rel=1e-9, abs=1e-11)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mu", "count"), [(0.1, 100), (1.0, 1), (3.0, 9), (1e-3, 10), (1e-4, 1), (10.0, 4)]
)
def test_composed_gaussians_are_accurate_in_the_tail(mu: float, count: int) -> None:
    pair = compose([(GaussianPair(mu), count)])
    exact = GaussianPair(mu * math.sqrt(count))
    for z in (-3.0, 0.0, 2.0, 5.0, 8.0, 11.0):
        epsilon = exact.mu * z
        for side in (pair, pair.mirrored):
            error = float(side.profile(epsilon)) / float(exact.profile(epsilon)) - 1.0
            assert -1e-9 < error < 3e-4


@pytest.mark.slow
def test_many_different_pairs_compose_to_the_gaussian_closed_form() -> None:
    # 66 Gaussian pairs, every other one twice: one of mu = sqrt(sum of squares).
    mu, counts = np.geomspace(0.01, 0.1, 66), 1 + np.arange(66) % 2
    pair = compose([(GaussianPair(float(m)), int(n)) for m, n in zip(mu, counts, strict=True)])
    exact = GaussianMechanism(float(np.sqrt(counts @ mu**2)))
    epsilons = np.array([0.0, 0.5, 1.0, 2.0, exact.epsilon(1e-10)])
    for side in (pair, pair.mirrored):
        excess = side.profile(epsilons) / exact.delta(epsilons) - 1.0
        assert excess.min() >= -1e-9
        assert excess.max() < 3e-4


@pytest.mark.slow
def test_a_hundred_million_steps_are_composed_in_stages() -> None:
    # A thousand candidates of 100,000 steps each; one grid for all steps would be too fine.
    one = DpSgd(1.0, 100_000, 0.01)
    together = Composition((one,) * 1000)
    found = together.epsilon(1e-5)
    # The sum of many losses is nearly normal; Renyi divergences bound it from above.
    atoms = one.loss_terms[0][0].atoms(math.inf)
    masses = np.exp(atoms.log_mass)
    mean = float(masses @ atoms.loss)
    deviation = math.sqrt(float(masses @ (atoms.loss - mean) ** 2))
    normal = 1e8 * mean + 1e4 * deviation * stats.norm.isf(1e-5)
    assert normal < found < 1.005 * normal
    assert found < together.renyi_epsilon(1e-5)
    assert upper_bounds.tuning_cost(one, "grid:1000", 1e-5).epsilon == pytest.approx(
        found, rel=1e-9
    )


def test_pairs_with_one_loss_compose_to_the_sum_of_losses() -> None:
    coin = DiscreteMechanism([1.0, 0.0], [0.75, 0.25])
    pair = compose([(coin.pairs[0], 7)])
    # The only loss is log(4/3): it has mass 1 under P, and (3/4)^7 under P'.
    assert float(pair.profile(0.0)) == pytest.approx(1.0 - 0.75**7, rel=1e-12)


def test_composed_responses_are_binomial() -> None:
    epsilon_0, count = 0.3, 40
    pair = Composition((RandomisedResponse(epsilon_0),) * count).pairs[0]
    truths = np.arange(count + 1)
    yes = special.expit(epsilon_0)
    mass = stats.binom.pmf(truths, count, yes)
    loss = epsilon_0 * (2 * truths - count)
    for epsilon in (0.0, 0.5, 1.0, 3.0, 8.0):
        exact = float(np.sum(mass * np.maximum(-np.expm1(epsilon - loss), 0.0)))
        assert exact * (1 - 1e-9) <= float(pair.profile(epsilon)) <= exact * (1 + 2e-3) + 1e-9


def test_composition_of_different_parts_agrees_with_the_gaussian_closed_form() -> None:
    mechanism = Composition((GaussianMechanism(0.3), GaussianMechanism(0.4)))
    assert mechanism.gaussian_mu == pytest.approx(0.5)
    pair = compose([(GaussianPair(0.3), 1), (GaussianPair(0.1), 16)])
    exact = GaussianPair(0.5)
    for epsilon in (0.0, 1.0, 3.0):
        assert float(pair.profile(epsilon)) == pytest.approx(
            float(exact.profile(epsilon)), rel=1e-4
        )
    both = Composition((LaplaceMechanism(2.0), GaussianMechanism(0.3)))
    alone = [part.epsilon(5e-6) for part in both.parts]
    assert max(alone) < both.epsilon(1e-5) < sum(alone)
    orders = np.array([1.5, 4.0])
    assert both.renyi(orders) == pytest.approx(sum(part.renyi(orders) for part in both.parts))
    # Full batches are one Gaussian among other parts, too.
    full = Composition((LaplaceMechanism(2.0), DpSgd(10.0, 9)))
    assert full.epsilon(1e-5) == both.epsilon(1e-5)


def test_laplace_divergences_equal_integration() -> None:
    pair, scale = LaplacePair(0.8), 0.8
    first, second = stats.laplace(0.0, scale), stats.laplace(1.0, scale)
    for epsilon in (-1.0, 0.0, 0.4, 1.2):
        exact, _ = integrate.quad(
            lambda x, e=epsilon: max(first.pdf(x) - math.exp(e) * second.pdf(x), 0.0),
            -40,
            40,
            points=[0.0, 0.5 * (1 - scale * epsilon), 1.0],
            limit=400,
        )
        assert float(pair.profile(epsilon)) == pytest.approx(exact, abs=1e-8)
    for alpha in (1.2, 3.0, 20.0):
        moment, _ = integrate.quad(
            lambda x, a=alpha: math.exp(a * first.logpdf(x) + (1 - a) * second.logpdf(x)),
            -30,
            30,
            points=[0.0, 1.0],
        )
        exact = math.log(moment) / (alpha - 1)
        assert pair.renyi(np.array([alpha]))[0] == pytest.approx(exact, rel=1e-7)
    one = Composition((LaplaceMechanism(scale), PureDp(1e-9)))
    assert one.delta(EPSILONS) == pytest.approx(LaplaceMechanism(scale).delta(EPSILONS), abs=1e-8)


SETTINGS = [(1.0, 0.01, 500), (0.7, 0.05, 100), (4.0, 0.1, 1000), (0.5, 0.3, 5)]


@pytest.mark.parametrize(("sigma", "rate", "steps"), SETTINGS)
def test_renyi_of_sampled_steps_agrees_with_opacus_and_dp_accounting(
    sigma: float, rate: float, steps: int
) -> None:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant
    from opacus.accountants.analysis import rdp

    orders = [1.1, 1.5, 2.0, 3.5, 8.0, 32.0, 100.0]
    ours = DpSgd(sigma, steps, rate).renyi(np.array(orders))
    opacus = rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=steps, orders=orders)
    assert ours == pytest.approx(np.array(opacus), rel=1e-6)
    accountant = RdpAccountant(orders=orders)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    theirs, whole = np.array(accountant._rdp), np.array(orders) % 1 == 0
    assert ours[whole] == pytest.approx(theirs[whole], rel=1e-6)
    assert np.all(ours <= theirs * (1 + 1e-6))  # its fractional orders are bounds, or infinite


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(("sigma", "rate", "steps"), SETTINGS)
def test_profile_of_sampled_steps_agrees_with_dp_accounting_in_both_directions(
    sigma: float, rate: float, steps: int
) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    pld = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=1e-4
    ).self_compose(steps)
    removed, added = DpSgd(sigma, steps, rate).pairs
    for pair, other in ((removed, pld._pmf_remove), (added, pld._pmf_add)):
        for delta in (1e-2, 1e-5, 1e-9):
            epsilon = other.get_epsilon_for_delta(delta)
            ours = accounting.solve_epsilon(lambda e, p=pair: float(p.profile(e)), delta)
            assert ours == pytest.approx(epsilon, rel=1e-3)


def test_the_prv_accountant_agrees() -> None:
    from opacus.accountants import PRVAccountant

    logging.getLogger().setLevel(logging.ERROR)
    accountant = PRVAccountant()
    accountant.history = [(1.0, 0.01, 500)]
    epsilon = DpSgd(1.0, 500, 0.01).epsilon(1e-5)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), abs=0.02)


@pytest.mark.parametrize("neighbours", accounting.NEIGHBOURS)
def test_sampling_everything_is_the_gaussian_mechanism(neighbours: str) -> None:
    almost, whole = (DpSgd(3.0, 20, rate, neighbours) for rate in (1.0 - 1e-12, 1.0))
    for delta in (1e-2, 1e-5, 1e-20):
        assert almost.epsilon(delta) == pytest.approx(whole.epsilon(delta), rel=2e-4)
    orders = np.array([1.5, 3.0, 40.0])
    assert almost.renyi(orders) == pytest.approx(whole.renyi(orders), rel=1e-6)


@pytest.mark.parametrize("missed", [1e-9, 1e-12, 1e-15])
def test_sampling_rate_near_one_equals_integration(missed: float) -> None:
    # The part 1 - q of both densities determines the result; compared with integration.
    sigma, alpha, rate = 0.5, 5.0, 1.0 - missed
    x, step = np.linspace(-40.0, 40.0, 16001, retstep=True)
    rest, (p, q) = math.log(1.0 - rate), stats.norm.logpdf(x[None], [[2.0], [-2.0]])
    log_p, log_q = (np.logaddexp(rest + stats.norm.logpdf(x), math.log(rate) + s) for s in (p, q))
    exact = special.logsumexp(alpha * log_p + (1.0 - alpha) * log_q) + math.log(step)
    found = DpSgd(sigma, 1, rate, "replace-one").renyi(np.array([alpha]))
    assert found == pytest.approx([exact / (alpha - 1.0)], rel=1e-12)


@pytest.mark.slow
def test_renyi_and_profile_of_one_sampled_step_equal_integration() -> None:
    sigma, rate = 0.8, 0.1
    x = np.linspace(-20.0, 24.0, 800001)

    def log_density(mean: Any) -> Any:
        rest, moved = stats.norm.logpdf(x, 0, sigma), stats.norm.logpdf(x, mean, sigma)
        return np.logaddexp(math.log(1 - rate) + rest, math.log(rate) + moved)

    for neighbours, pair in (
        ("add-remove", (log_density(1.0), log_density(0.0))),
        ("replace-one", (log_density(1.0), log_density(-1.0))),
    ):
        base = DpSgd(sigma, 1, rate, neighbours)
        for epsilon in (0.0, 0.3, 1.0, 2.5):
            exact = [
                integrate.trapezoid(np.maximum(np.exp(p) - np.exp(epsilon + q), 0), x)
                for p, q in (pair, pair[::-1])
            ]
            assert float(base.delta(epsilon)) == pytest.approx(max(exact), rel=1e-5)
        for alpha in (1.3, 4.0, 11.0):
            exact = [
                math.log(integrate.trapezoid(np.exp(alpha * p + (1 - alpha) * q), x)) / (alpha - 1)
                for p, q in (pair, pair[::-1])
            ]
            assert base.renyi(np.array([alpha]))[0] == pytest.approx(max(exact), rel=1e-8)


@pytest.mark.parametrize("neighbours", accounting.NEIGHBOURS)
@pytest.mark.parametrize(("sigma", "rate"), [(0.06, 0.01), (0.1, 0.3), (0.15, 0.05), (0.2, 0.999)])
def test_divergences_of_low_orders_at_little_noise_equal_integration(
    neighbours: str, sigma: float, rate: float
) -> None:
    width = 1e-3
    x = np.arange(-5.0, 6.0, sigma * width)

    def log_density(mean: Any) -> Any:
        rest, moved = (-0.5 * ((x - at) / sigma) ** 2 for at in (0.0, mean))
        return np.logaddexp(math.log1p(-rate) + rest, math.log(rate) + moved) - 0.5 * LOG_TWO_PI

    p, q = log_density(1.0), log_density(-1.0 if neighbours == "replace-one" else 0.0)
    orders = np.array([1.01, 1.1, 1.2, 1.5])
    found = SampledStep(sigma, rate, neighbours == "replace-one").renyi(orders)
    for alpha, ours in zip(orders, found, strict=True):
        exact = max(
            float(special.logsumexp(alpha * a + (1.0 - alpha) * b)) + math.log(width)
            for a, b in ((p, q), (q, p))
        ) / (alpha - 1.0)
        assert exact * (1 - 1e-8) <= ours <= exact * (1 + 1e-6)


def test_opposite_gradients_dominate_every_replacement() -> None:
    # One step, records with gradients g and g' anywhere in the unit disc.
    sigma, rate = 0.9, 0.2
    base = DpSgd(sigma, 1, rate, "replace-one")
    side = np.linspace(-6.0, 6.0, 401)
    x, y = np.meshgrid(side, side)
    cell = (side[1] - side[0]) ** 2

    def density(radius: Any, angle: Any) -> Any:
        a, b = radius * math.cos(angle), radius * math.sin(angle)
        moved = stats.norm.pdf(x, a, sigma) * stats.norm.pdf(y, b, sigma)
        return (1 - rate) * stats.norm.pdf(x, 0, sigma) * stats.norm.pdf(y, 0, sigma) + rate * moved

    for radius, angle in ((1.0, math.pi), (1.0, 2.0), (1.0, 0.5), (0.5, math.pi), (0.0, 0.0)):
        p, q = density(1.0, 0.0), density(radius, angle)
        for epsilon in (0.0, 0.2, 0.6):
            exact = np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)) * cell
            assert exact <= float(base.delta(epsilon)) * (1 + 1e-4)


def test_replacing_a_record_costs_less_than_removing_and_adding() -> None:
    one, both = DpSgd(1.0, 100, 0.05), DpSgd(1.0, 100, 0.05, "replace-one")
    assert one.epsilon(1e-6) < both.epsilon(1e-6)
    # Group privacy: eps -> 2 eps, delta -> (1 + e^eps) delta.
    epsilon = one.epsilon(1e-6)
    assert both.epsilon(1e-6 * (1 + math.exp(epsilon))) <= 2 * epsilon
    assert "replace-one" in both.description
    assert "add-remove" in one.description


@pytest.mark.slow
@settings(max_examples=8)
@given(st.floats(0.5, 20.0), st.floats(1e-4, 0.9), st.integers(1, 3000), st.floats(-70.0, -0.7))
def test_renyi_and_profile_agree_at_any_setting(
    sigma: Any, rate: Any, steps: Any, log_delta: Any
) -> None:
    base, delta = DpSgd(sigma, steps, rate), math.exp(log_delta)
    exact = base.epsilon(delta)
    assert 0.0 <= exact <= base.renyi_epsilon(delta) * (1 + 1e-4) + 1e-6
    assert exact <= DpSgd(sigma, steps, 1.0).epsilon(delta) * (1 + 1e-4)


@pytest.mark.slow
@pytest.mark.thin(5)
@pytest.mark.parametrize("sigma", [0.1, 30.0])
@pytest.mark.parametrize("rate", [1e-6, 0.9])
@pytest.mark.parametrize("steps", [1, 100, 10**4])
def test_extreme_sampling_is_finite(sigma: float, rate: float, steps: int) -> None:
    base = DpSgd(sigma, steps, rate)
    values = [base.epsilon(delta) for delta in (0.5, 1e-5, 1e-30)]
    assert np.isfinite(values).all()
    assert values == sorted(values)


def test_a_profile_of_points_is_the_least_private_mechanism_that_satisfies_them() -> None:
    base = GaussianMechanism(1.0)
    epsilons = np.linspace(0.0, 12.0, 1201)
    copy = PrivacyProfile(epsilons, base.delta(epsilons))
    at = np.linspace(0.0, 8.0, 37) + 0.003
    assert np.all(copy.delta(at) >= base.delta(at) * (1 - 1e-9))
    assert copy.delta(at) == pytest.approx(base.delta(at), rel=1e-3)
    assert copy.delta(epsilons) == pytest.approx(base.delta(epsilons), rel=1e-6, abs=1e-12)
    two = PrivacyProfile([0.0, 1.0], [1.0, 1e-3])
    other = ApproximateDp(1.0, 1e-3)
    assert two.delta(EPSILONS) == pytest.approx(other.delta(EPSILONS), rel=1e-9)
    # Most outputs with a small loss have equal probabilities, but they are counted as outputs.
    for profile in (copy, two, PrivacyProfile([0.0], [0.1])):
        law = profile.pairs[0].pmf
        assert float(np.exp(law.log_mass).sum()) + law.p_only == pytest.approx(1.0, abs=1e-9)


def test_a_renyi_curve_between_its_orders() -> None:
    orders = np.array([1.25, 2.0, 4.0, 8.0, 32.0])
    base = RenyiCurve(orders, 0.5 * orders)
    between = np.array([1.01, 1.5, 3.0, 31.0])
    assert np.all(base.renyi(between) >= 0.5 * between)
    assert base.renyi(orders) == pytest.approx(0.5 * orders)
    assert np.isinf(base.renyi(np.array([33.0]))).all()
    fine = RenyiCurve(np.linspace(1.01, 60.0, 3000), 0.5 * np.linspace(1.01, 60.0, 3000))
    assert fine.renyi_epsilon(1e-5) == pytest.approx(4.7284, rel=1e-3)
    assert fine.epsilon(1e-5) == pytest.approx(fine.renyi_epsilon(1e-5), rel=1e-3)
    concentrated = ZeroConcentratedDp(0.5)
    for one in (concentrated, fine):
        for delta in (1e-80, 1e-40, 1e-5):
            assert one.epsilon(delta) == one.renyi_epsilon(delta)
    # For a large delta, the pair also uses the mirror images of the points of the profile.
    assert concentrated.epsilon(0.5) < 0.95 * concentrated.renyi_epsilon(0.5)


def test_any_of_several_is_the_worst_of_them() -> None:
    several = WorstOf((GaussianMechanism(0.5), PureDp(0.7)))
    for epsilon in (0.1, 0.6, 0.8):
        worst = max(float(one.delta(epsilon)) for one in several.candidates)
        assert float(several.delta(epsilon)) == worst
        assert float(several.pairs[0].profile(epsilon)) >= worst * (1 - 1e-9)


def test_tuning_increases_the_probability_that_a_base_reveals_everything() -> None:
    # One run in 10^4 reveals the record. The best of K reveals it with probability 1 - phi(1 - d).
    law, leak = repetitions.parse_repetitions("tnb:0,0.01"), 1e-4
    base = DiscreteMechanism(np.array([1 - leak, leak, 0.0]), np.array([1 - leak, 0.0, leak]))
    rng = np.random.default_rng(7)
    runs = law.sample(rng, 200_000)
    leaked = np.mean(rng.random(200_000) < -np.expm1(runs * math.log1p(-leak)))
    curve = upper_bounds.RegionCurve(base.pairs[0], law)
    assert float(law.phi_survival(leak)) == pytest.approx(leaked, rel=0.1)
    assert leaked > 10 * leak  # an accountant that keeps the base's delta is wrong
    assert float(law.phi_survival(leak)) <= curve.delta(50.0) <= law.mean * leak * (1 + 1e-6)
    with pytest.raises(accounting.DeltaUnreachable, match="delta must be above"):
        upper_bounds.region(base, law, 1e-3)


def test_loss_pairs_with_one_sided_outputs() -> None:
    pair = LossPair(PrivacyLossPmf(np.array([0.0]), np.array([math.log(0.9)]), 0.1, 0.1))
    assert pair.profile([0.0, 5.0]) == pytest.approx([0.1, 0.1])
    assert np.isinf(pair.renyi(np.array([2.0]))).all()
    apart = DiscreteMechanism([1.0, 0.0], [0.0, 1.0])
    assert float(apart.delta(100.0)) == 1.0


def test_cumulative_masses_of_ranked_outputs() -> None:
    pair = DiscreteMechanism([0.5, 0.5, 0.0], [0.1, 0.5, 0.4]).pairs[0]
    worse, worse_with = np.exp(pair.ranked())
    # In order of falling loss: first outputs of P alone (none here), last those of P' alone.
    assert worse == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0], abs=1e-15)
    assert worse_with == pytest.approx([1.0, 1.0, 0.9, 0.4, 0.0], abs=1e-15)


def test_curves_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("epsilon,delta\n0,0.3\n1, 0.01\n\n2 1e-6\n")
    base = accounting.parse_mechanism(f"profile:{path}")
    assert base.delta(np.array([1.0, 2.0, 9.0])) == pytest.approx([0.01, 1e-6, 1e-6])
    path.write_text("2,0.1\n4,0.2\n")
    assert accounting.parse_mechanism(f"renyi:{path}").renyi(np.array([4.0]))[0] == pytest.approx(
        0.2
    )
    path.write_text("1,2\nthree,4\n")
    with pytest.raises(ValueError, match="two numbers per line, got 'three,4'"):
        accounting.read_curve(path)
    with pytest.raises(ValueError, match="readable csv file"):
        accounting.read_curve(tmp_path / "missing.csv")


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        ("gaussian:0.5", GaussianMechanism(0.5)),
        ("laplace:2", LaplaceMechanism(2.0)),
        ("response:1,3", RandomisedResponse(1.0, 3)),
        ("pure:1", PureDp(1.0)),
        ("approximate:1,1e-6", ApproximateDp(1.0, 1e-6)),
        ("zcdp:0.1", ZeroConcentratedDp(0.1)),
    ],
)
def test_bases_by_name(spec: str, base: Any) -> None:
    assert accounting.parse_mechanism(spec) == base


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: accounting.parse_mechanism("laplace"), "takes 1 number after"),
        (lambda: accounting.parse_mechanism("lapalce:1"), "did you mean 'laplace'"),
        (lambda: DpSgd(1.0, 10, 1.5), r"sampling_rate must be in \(0, 1\]"),
        (lambda: DpSgd(0.01, 10, 0.5), "noise_multiplier must be in"),
        (
            lambda: DpSgd(0.1, 10**6, 0.9),
            r"sampling_rate \* sqrt\(steps\) / noise_multiplier must be",
        ),
        (lambda: DpSgd(1.0, 10, 0.5, "swap"), "neighbours must be one of"),
        (lambda: PrivacyProfile([1.0, 0.5], [0.1, 0.1]), "epsilons must be increasing"),
        (lambda: PrivacyProfile([0.0], [1.5]), r"deltas must be in \[0, 1\]"),
        (lambda: RenyiCurve([1.0], [0.1]), "orders must be > 1"),
        (lambda: RenyiCurve([2.0, 3.0], [0.1, np.inf]), "divergences must be finite"),
        (
            lambda: accounting.GaussianMechanism(1e-300),
            r"mu must be in \[1e-12, 1000\], got 1e-300",
        ),
        (lambda: DpSgd(1e300, 100), r"sqrt\(steps\) / noise_multiplier must be in \[1e-12, 1000\]"),
        (lambda: DpSgd(1e300, 100, 0.1), r"sampling_rate \* sqrt\(steps\) .* must be in \[1e-12"),
        (lambda: DpSgd(1.0, 10**9, 1e-9), r"steps must be a whole number in \[1, 100000000\]"),
        (lambda: Composition(()), "parts must name at least one"),
        (lambda: Composition((1.0,)), "parts must be mechanisms, got 1.0"),
        (lambda: accounting.WorstOf(3), "candidates must be a list of mechanisms, got 3"),
        (lambda: PrivacyProfile(["x"], [0.1]), "epsilons must be numbers, got"),
    ],
)
def test_invalid_input_is_refused(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class Accountant:
    """The attributes of an Opacus accountant that are read."""

    def __init__(self, *history: Any) -> None:
        self.history = list(history)


@pytest.mark.thorough
def test_from_opacus_reads_an_accountant() -> None:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for _ in range(100):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    for _ in range(50):
        accountant.step(noise_multiplier=2.0, sample_rate=0.02)
    run = accounting.from_opacus(accountant)
    assert run.renyi_epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.02)
    cost = tuning_epsilon(accountant, "tnb:0,0.1", 1e-5)
    assert (
        run.epsilon(1e-5)
        < cost
        < upper_bounds.published.profile(
            run, repetitions.parse_repetitions("tnb:0,0.1"), 1e-5
        ).epsilon
    )
    with pytest.raises(ValueError, match="accountant must have recorded a step"):
        tuning_epsilon(RDPAccountant(), "tnb:0,0.1", 1e-5)


@pytest.mark.filterwarnings("ignore:GDP accounting", "ignore:Secure RNG")
@pytest.mark.parametrize("name", ["rdp", "gdp", "prv"])
def test_from_opacus_reads_every_accountant_and_the_engine(name: str) -> None:
    from opacus import PrivacyEngine

    engine = PrivacyEngine(accountant=name)
    for _ in range(10):
        engine.accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    # Opacus divides by int(n * rate), so its epsilon is valid only if n is public.
    expected = DpSgd(1.0, 10, 0.01, "zero-out")
    assert accounting.from_opacus(engine) == expected
    assert accounting.from_opacus(engine.accountant) == expected
    stated = accounting.from_opacus(engine, "add-remove")
    assert stated == DpSgd(1.0, 10, 0.01, "add-remove")
    assert stated.epsilon(1e-5) == expected.epsilon(1e-5)


@pytest.mark.parametrize(
    "other", [GaussianMechanism(1.0), LaplaceMechanism(1.0), DpSgd(1.0, 10, 0.1)]
)
def test_a_composition_with_a_run_that_reveals_everything_reveals_everything(other: Any) -> None:
    reveals = DiscreteMechanism((1.0, 0.0), (0.0, 1.0))
    for parts in ((other, reveals), (reveals, other)):
        found = Composition(parts).delta(np.array([0.0, 1.0, 30.0]))
        assert found.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(accounting.DeltaUnreachable, match="no epsilon removes"):
        Composition((other, reveals)).epsilon(1e-5)


@pytest.mark.slow
def test_zero_out_has_the_numbers_of_add_remove_and_its_own_name() -> None:
    for rate in (0.05, 1.0):
        one, other = DpSgd(2.0, 100, rate), DpSgd(2.0, 100, rate, "zero-out")
        assert one != other
        assert other.description == one.description.replace("add-remove", "zero-out")
        assert other.epsilon(1e-5) == one.epsilon(1e-5)
        assert (other.renyi(np.array([1.5, 9.0])) == one.renyi(np.array([1.5, 9.0]))).all()
        assert other.gaussian_mu == one.gaussian_mu
        plain = accounting.mechanism_to_dict(other)
        assert accounting.mechanism_from_dict(plain) == other
    assert accounting.relations(other) == {"zero-out"}
    for protocol in ("fixed:2", "subset:0.2/fixed:2"):
        costs = [upper_bounds.tuning_cost(base, protocol, 1e-5).epsilon for base in (one, other)]
        assert costs[0] == costs[1]
    noise = [
        upper_bounds.calibrate_noise(
            "fixed:1", target_epsilon=2.0, target_delta=1e-5, steps=50, neighbours=relation
        )
        for relation in accounting.NEIGHBOURS
    ]
    assert noise[0] == noise[1] == noise[2] / 2


@pytest.mark.filterwarnings("ignore:the history begins again")
def test_phases_with_equal_noise_and_rate_are_merged() -> None:
    run = accounting.from_opacus(
        Accountant((1.0, 0.1, 3), (2.0, 0.1, 5), (1.0, 0.1, 4), (2.0, 0.2, 1))
    )
    phases = (1.0, 7, 0.1), (2.0, 5, 0.1), (2.0, 1, 0.2)
    assert run == Composition(tuple(DpSgd(*phase, "zero-out") for phase in phases))


def test_a_schedule_of_many_phases_is_bounded_by_one_of_few_phases() -> None:
    schedule = Accountant(*((1.0 + 0.01 * i, 0.01 + 1e-5 * i, 2) for i in range(100)))
    exact = accounting.from_opacus(schedule, most_phases=100)
    joined = accounting.from_opacus(schedule, most_phases=8)
    assert len(exact.parts) == 100
    assert len(joined.parts) <= 8
    assert sum(part.steps for part in joined.parts) == 200
    # By Renyi divergences instead of a hundred compositions: never below, and not far above.
    alpha = np.array([1.1, 2.0, 8.0, 64.0])
    ratio = joined.renyi(alpha) / exact.renyi(alpha)
    assert np.all((ratio > 1.0) & (ratio < 1.5))
    one = accounting.from_opacus(schedule, most_phases=1)
    assert one == DpSgd(1.0, 200, 0.01 + 1e-5 * 99, "zero-out")


@pytest.mark.thorough
def test_a_history_that_begins_again_is_noticed() -> None:
    class Recorded:
        def __init__(self, *history: Any) -> None:
            self.history = list(history)

    warm, cool = (2.0, 0.01, 10), (1.0, 0.01, 90)
    for history, models in (((warm, cool) * 2, 2), ((warm, cool) * 3, 3), ((warm, cool, warm), 2)):
        with pytest.warns(UserWarning, match=f"if one PrivacyEngine trained {models} models"):
            together = accounting.from_opacus(Recorded(*history))
        assert together.epsilon(1e-5) > accounting.from_opacus(Recorded(warm, cool)).epsilon(1e-5)
    # A schedule that does not return is one run; warnings are errors here.
    accounting.from_opacus(Recorded(warm, cool, (0.8, 0.01, 5)))
    accounting.from_opacus(Recorded(warm, warm))


@pytest.mark.parametrize(
    ("accountant", "message"),
    [
        (
            [Accountant((1.0, 0.1, 3))] * 2,
            "or PrivacyEngine, got a list of 2; all runs of a tuning",
        ),
        (None, "accountant must be an Opacus accountant or PrivacyEngine, got None"),
        (Accountant((1.0, 0.1)), r"history must be of \(noise multiplier, .* got \(1.0, 0.1\)"),
        (Accountant((1.0, 0.1, 2.5)), "steps must be a whole number >= 1, got 2.5"),
        (Accountant((0.0, 0.1, 2)), r"noise_multiplier must be in \(0, inf\), got 0.0"),
        (Accountant(*([(1.0, 0.1, 2)] * 50), (math.inf, 0.1, 2)), "noise_multiplier must be in"),
        (Accountant((1.0, math.nan, 2)), r"sampling_rate must be in \(0, 1\], got nan"),
        (Accountant((10**400, 0.1, 2)), "history must be of"),
    ],
)
def test_invalid_accountants_are_refused(
    accountant: list[Accountant] | Accountant | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        accounting.from_opacus(accountant)


def test_checked_values_are_stored() -> None:
    # As text from a preset or a csv: the checked number is kept, not the text.
    assert accounting.GaussianMechanism("0.5") == accounting.GaussianMechanism(0.5)
    assert DpSgd("70", "300") == DpSgd(70.0, 300)
    assert float(accounting.PureDp("1").epsilon(1e-5)) == accounting.PureDp(1.0).epsilon(1e-5)


def test_parse_mechanism_returns_a_mechanism_unchanged() -> None:
    assert accounting.parse_mechanism(DpSgd(70.0, 300)) == DpSgd(70.0, 300)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "rate"), [(2.0, 0.01), (1.0, 1e-4), (0.5, 0.5), (10.0, 0.1)])
def test_one_sampled_step_is_accurate_where_its_loss_jumps(sigma: float, rate: float) -> None:
    # Outputs beyond x leak more than eps: P(> x) - e^eps P'(> x), x where the loss is eps.
    removed, added = DpSgd(sigma, 1, rate).pairs
    spacing = float(np.diff(removed.pmf.loss).min())

    def check(pair: Any, epsilon: Any, exact: Any, rounding: Any) -> None:
        # Never below, and above by less than a cell of the grid plus the transform's rounding.
        assert exact <= float(pair.profile(epsilon)) * (1 + 1e-9) + rounding
        assert float(pair.profile(epsilon + spacing)) <= exact * (1 + 1e-9) + 3e-15

    for x in np.linspace(0.0, 11.0, 12):
        epsilon = math.log1p(rate * math.expm1((x - 0.5 / sigma) / sigma))
        stays, moved = stats.norm.sf(x), stats.norm.sf(x - 1 / sigma)
        exact = (1 - rate) * stays + rate * moved - math.exp(epsilon) * stays
        check(removed, epsilon, exact, 1e-15 * stays)
        below, moved = stats.norm.cdf(-x), stats.norm.cdf(-x - 1 / sigma)
        epsilon = -math.log1p(rate * math.expm1((-x - 0.5 / sigma) / sigma))
        exact = below - math.exp(epsilon) * ((1 - rate) * below + rate * moved)
        check(added, epsilon, exact, 1e-15 * below)


def test_few_steps_are_the_sum_of_their_jumps() -> None:
    # Two steps, by quadrature over the first: the second's profile at the remaining epsilon.
    sigma, rate = 2.0, 0.01
    one, two = DpSgd(sigma, 1, rate).pairs[0], DpSgd(sigma, 2, rate).pairs[0]
    atoms = DpSgd(sigma, 1, rate).loss_terms[0][0].atoms(1e-4)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 1.5):
        exact = float(np.exp(atoms.log_mass) @ one.profile(epsilon - atoms.loss))
        assert float(two.profile(epsilon)) == pytest.approx(exact, rel=1e-3)


def test_equal_parts_are_composed_as_one_power() -> None:
    # Ten thousand equal parts are one distribution, composed ten thousand times.
    part = accounting.LaplaceMechanism(20.0)
    same = accounting.Composition((part,) * 4)
    each = accounting.Composition(tuple(accounting.LaplaceMechanism(20.0) for _ in range(4)))
    assert [count for _, count in same.loss_terms] == [4]
    assert same.epsilon(1e-5) == pytest.approx(each.epsilon(1e-5), rel=1e-9)
    assert same.renyi(np.array([3.0])) == pytest.approx(each.renyi(np.array([3.0])), rel=1e-12)
    assert "4 times (Laplace" in same.description
    many = accounting.Composition((part,) * 10_000)
    assert len(many.loss_terms) == 1


@pytest.mark.slow
def test_equal_steps_and_equal_compositions_are_merged() -> None:
    apart = accounting.Composition(tuple(DpSgd(2.0, 5, 0.1) for _ in range(3)))
    assert [count for _, count in apart.loss_terms] == [15]
    assert apart.epsilon(1e-5) == pytest.approx(DpSgd(2.0, 15, 0.1).epsilon(1e-5), rel=1e-9)
    parts = tuple(DpSgd(2.0 + 0.1 * i, 20, 0.05) for i in range(6))
    once, twice = accounting.Composition(parts), accounting.Composition(parts * 2)
    again = accounting.Composition((once, once))
    assert (len(again.loss_terms), len(twice.loss_terms)) == (1, 6)
    assert again.epsilon(1e-5) == pytest.approx(twice.epsilon(1e-5), rel=1e-4)


@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.1, 0.9])
@pytest.mark.parametrize("sigma", [0.3, 2.0, 300.0, 1e5])
def test_moments_of_integer_orders_equal_binomial_sums_of_sixty_digits(
    sigma: float, rate: float
) -> None:
    orders = [2, 5, 17, 64]
    found = SampledStep(sigma, rate).renyi(np.array(orders, dtype=np.float64))
    with mpmath.workdps(60):
        square, chance = 1 / mpmath.mpf(sigma) ** 2, mpmath.mpf(rate)
        for order, ours in zip(orders, found, strict=True):
            moment = mpmath.fsum(
                mpmath.binomial(order, k)
                * (1 - chance) ** (order - k)
                * chance**k
                * mpmath.exp(square * k * (k - 1) / 2)
                for k in range(order + 1)
            )
            exact = float(mpmath.log(moment) / (order - 1))
            assert exact * (1 - 1e-10) <= ours <= exact * (1 + 1e-6)


def test_reach_of_a_profile_ends_where_only_rounding_errors_remain() -> None:
    def left_over(epsilon: Any) -> Any:
        return float(np.exp(-epsilon)) + (4e-40 if epsilon < 1e6 else 3e-40)

    assert 50.0 < accounting.reach(left_over) < 200.0
    assert 50.0 < accounting.reach(lambda epsilon: float(np.exp(-epsilon))) < 200.0


def test_any_of_several_is_the_least_private_one_if_there_is_one() -> None:
    quiet, loud = DpSgd(2.0, 40, 0.05), DpSgd(1.5, 50, 0.1)
    assert WorstOf((quiet, loud)).pairs is loud.pairs
    assert WorstOf((GaussianMechanism(0.1), GaussianMechanism(0.3))).gaussian_mu == 0.3
    # Parameters that are equal do not matter.
    for other in (DpSgd(2.0, 50, 0.1), DpSgd(1.5, 40, 0.1), DpSgd(1.5, 50, 0.05), loud):
        assert WorstOf((other, loud)).pairs is loud.pairs
    # The noise of one is less, the steps of the other more: neither is known to be the worst.
    both = WorstOf((DpSgd(1.5, 40, 0.1), DpSgd(2.0, 50, 0.1)))
    assert both.gaussian_mu is None
    replaced = DpSgd(1.5, 50, 0.1, "replace-one")
    assert WorstOf((quiet, replaced)).pairs[0] is not replaced.pairs[0]


def test_equal_mechanisms_share_one_cache_entry() -> None:
    for name in ("gaussian", "laplace", "response", "pure", "approximate", "zcdp"):
        one = BASES[name]
        same = dataclasses.replace(one)  # type: ignore[type-var]
        assert one == same
        assert hash(one) == hash(same)
    assert DpSgd(1.0, 7, 0.1).pairs[0] is DpSgd(1.0, 7, 0.1).pairs[0]


def test_rounded_masses_have_no_negative_divergence() -> None:
    law = PrivacyLossPmf(np.array([0.0]), np.log([1.0 - 1e-9]), 0.0, 0.0)
    assert LossPair(law).renyi(np.array([1.5, 8.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", BASES)
def test_orders_and_epsilons_must_be_numbers(name: str) -> None:
    for base in (BASES[name], Composition((BASES[name], BASES[name]))):
        for wrong in (None, math.nan, 1.0, [2.0, 0.5], math.inf):
            with pytest.raises(ValueError, match=r"alpha must be numbers in \(1, inf\), got"):
                base.renyi(wrong)
        with pytest.raises(ValueError, match=r"epsilon must be numbers, got 'x'"):
            base.delta("x")


@pytest.mark.parametrize("mu", [0.0005, 0.013, 0.05])
def test_composition_of_a_loss_with_two_modes(mu: float) -> None:
    """The delta of a pair with finitely many losses and a Gaussian is a mean of Gaussian deltas."""
    p, q = np.array([0.7, 0.1, 0.2]), np.array([0.1, 0.8, 0.1])
    loss, epsilons = np.log(p / q), np.array([0.0, 0.3, 0.69, 1.0, 1.94, 1.95])
    known = accounting.DiscreteMechanism(p, q, directed=True)
    found = accounting.Composition((known, accounting.GaussianMechanism(mu))).delta(epsilons)
    exact = [
        max(p @ gaussian_profile(e - loss, mu), q @ gaussian_profile(e + loss, mu))
        for e in epsilons
    ]
    assert np.all(found >= np.array(exact) * (1.0 - 1e-9))
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(("scale", "mu"), [(1.0, 0.0132), (1.25, 0.027), (3.3, 0.0124)])
def test_laplace_with_a_small_gaussian_is_composed(scale: float, mu: float) -> None:
    both = accounting.Composition(
        (accounting.LaplaceMechanism(scale), accounting.GaussianMechanism(mu))
    )
    # The Laplace mechanism alone costs at most 1 / scale, and the Gaussian adds a few mu.
    assert 0.9 / scale < both.epsilon(1e-5) < 1.0 / scale + 5.0 * mu


@pytest.mark.parametrize("rarest", [1e-20, 1e-100, 1e-300])
def test_composition_of_large_losses_that_nearly_never_occur(rarest: float) -> None:
    one = accounting.DiscreteMechanism([0.5, 0.5, rarest], [0.5, 0.5, 1e-10 * rarest])
    for runs in (2, 3, 10):
        composed = accounting.Composition((one,) * runs)
        assert composed.epsilon(1e-5) == 0.0
        # P[the rare output at least once], up to the rounding of the transform.
        assert rarest <= float(composed.delta(1.0)) <= 11.0 * rarest + 1e-12


def test_errors_name_unreachable_deltas_and_the_end_of_the_computation() -> None:
    with pytest.raises(ValueError, match=r"above 0\.001, which no epsilon removes"):
        ApproximateDp(1.0, 1e-3).epsilon(1e-4)
    with pytest.raises(ValueError, match=r"e-4., where its computation ends, got 1e-50"):
        TunedMechanism(GaussianMechanism(1.0), "poisson:3").epsilon(1e-50)


def test_the_profile_of_few_outputs_is_rounded_up_from_exact_fractions() -> None:
    """Probabilities are dyadic, so that their sums are exact; only e^epsilon has rounding."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        counts = rng.multinomial(2**20 - 8, rng.dirichlet(np.full(8, 0.4)), size=2) + 1
        p, q = counts / 2.0**20
        pair = DiscretePair(p, q)
        losses = np.log(p) - np.log(q)
        epsilons = np.concatenate([losses, losses - 1e-13, rng.uniform(-2.0, 3.0, 8), [0.0]])
        for epsilon, rounded in zip(epsilons, pair.profile(epsilons), strict=True):
            with mpmath.workdps(40):
                factor = mpmath.exp(mpmath.mpf(float(epsilon)))
                exact = sum(
                    max(mpmath.mpf(int(a)) - factor * int(b), 0)
                    for a, b in zip(*counts, strict=True)
                ) / mpmath.mpf(2**20)
                assert exact <= mpmath.mpf(float(rounded)) <= exact + 1e-13
    # Of a mechanism that reveals nothing, no logarithm differs.
    assert DiscretePair([0.25, 0.75], [0.25, 0.75]).profile(0.0) < 1e-14
