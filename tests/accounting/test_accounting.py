"""One run: profiles against high precision, conversions, calibration, the papers' mu."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

from audit import accounting
from audit.accounting import DiscreteMechanism, DpSgd, GaussianMechanism, PureDp, composition
from audit.accounting.composition import compose
from audit.accounting.pairs import GaussianPair


@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 2.0, 30.0])
def test_gaussian_profile_to_1e10_of_sixty_digits(mu: float) -> None:
    mpmath.mp.dps = 60
    z = np.array([-20.0, -5.0, -3.99, -1.0, 0.0, 1.0, 5.0, 15.0, 30.0])
    epsilon = mu * (z + mu / 2)
    for e, value in zip(epsilon, GaussianMechanism(mu).delta(epsilon), strict=True):
        m, x = mpmath.mpf(mu), mpmath.mpf(float(e))
        exact = mpmath.ncdf(-x / m + m / 2) - mpmath.e**x * mpmath.ncdf(-x / m - m / 2)
        assert value == pytest.approx(float(exact), rel=1e-10)


def test_gaussian_profile_is_the_mass_of_its_best_event() -> None:
    mu, epsilon = 0.7, 0.9
    below, below_shifted = GaussianMechanism(mu).pairs[0].events(np.linspace(-9, 9, 200_001))
    s, shifted = -np.expm1(below), -np.expm1(below_shifted)
    # H_eps(P||P') is the maximum over events; s' >= s, so P' has the role of the larger one.
    best = np.max(shifted - math.exp(epsilon) * s)
    assert GaussianMechanism(mu).delta(epsilon) == pytest.approx(best, rel=1e-7)


def test_epsilon_inverts_the_profile_and_rounds_up() -> None:
    for mu in (1e-4, 0.3, 5.0, 30.0):
        for delta in (1e-30, 1e-5, 0.1):
            mechanism = GaussianMechanism(mu)
            epsilon = mechanism.epsilon(delta)
            assert mechanism.delta(epsilon) <= delta
            if epsilon > 0:
                assert mechanism.delta(epsilon * (1 - 1e-6)) > delta * (1 - 1e-8)


def test_renyi_conversion_is_the_infimum_over_orders() -> None:
    mu, delta = 0.5, 1e-6
    alpha = 1 + np.exp(np.linspace(-6, 6, 2_000_001))
    values = alpha * mu**2 / 2 + np.log1p(-1 / alpha)
    values -= (math.log(delta) + np.log(alpha)) / (alpha - 1)
    assert GaussianMechanism(mu).renyi_epsilon(delta) == pytest.approx(values.min(), rel=1e-7)
    assert GaussianMechanism(mu).renyi_epsilon(delta) >= GaussianMechanism(mu).epsilon(delta)


@pytest.mark.parametrize("method", accounting.ACCOUNTINGS)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 200.0])
def test_calibration_spends_the_budget(method: str, epsilon: float) -> None:
    mechanism = GaussianMechanism(accounting.calibrate_mu(epsilon, 1e-5, method))
    spent = mechanism.renyi_epsilon(1e-5) if method == "rdp" else mechanism.epsilon(1e-5)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize("method", accounting.ACCOUNTINGS)
def test_calibration_of_sampled_batches_spends_the_budget(method: str) -> None:
    noise = accounting.calibrate_noise_multiplier(2.0, 1e-5, 50, 0.1, method)
    mechanism = DpSgd(noise, 50, 0.1)
    spent = mechanism.renyi_epsilon(1e-5) if method == "rdp" else mechanism.epsilon(1e-5)
    assert 2.0 * (1 - 1e-5) <= spent <= 2.0


def test_budgets_of_the_papers() -> None:
    assert accounting.calibrate_mu(1.0, 1e-5) == pytest.approx(0.24721, abs=5e-6)


def test_full_batch_dp_sgd_is_one_gaussian_mechanism() -> None:
    mechanism = DpSgd(noise_multiplier=20.0, steps=100)
    assert mechanism.gaussian_mu == 0.5
    assert accounting.full_batch_noise_multiplier(0.5, 100) == 20.0
    # N steps of alpha/(2 sigma^2) each.
    assert mechanism.renyi(7.0) == pytest.approx(100 * 7.0 / (2 * 20.0**2))
    assert mechanism.delta(1.0) == GaussianMechanism(0.5).delta(1.0)


def test_mu_of_the_papers() -> None:
    assert accounting.mean_inclusion_mu(10.0, 400, 0.5) == pytest.approx(0.5 * 20 / 10)
    mpmath.mp.dps = 50
    for sigma in (0.5, 2.0, 1e3, 1e6):
        u = 1 / mpmath.mpf(sigma)
        inside = mpmath.e ** (u**2) * mpmath.ncdf(1.5 * u) + 3 * mpmath.ncdf(-0.5 * u) - 2
        exact = float(mpmath.sqrt(2) * mpmath.mpf("0.1") * 10 * mpmath.sqrt(inside))
        assert accounting.gdp_limit_mu(sigma, 100, 0.1) == pytest.approx(exact, rel=1e-9)


def test_pure_dp_costs_its_parameter() -> None:
    mechanism = PureDp(1.3)
    assert mechanism.delta(1.3) == pytest.approx(0.0, abs=1e-15)
    assert mechanism.epsilon(1e-9) == pytest.approx(1.3, rel=1e-8)
    yes = 1 / (1 + math.exp(-1.3))
    assert mechanism.delta(0.0) == pytest.approx(2 * yes - 1)


def test_discrete_mechanism_equals_values_computed_by_hand() -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.3, 0.2, 0.4])
    mechanism = DiscreteMechanism(p, q)
    # In this direction the last output distinguishes the data sets: 0.4 for every epsilon.
    assert mechanism.delta(50.0) == pytest.approx(0.4)
    assert mechanism.pairs[0].profile(0.0) == pytest.approx(0.4)
    assert mechanism.renyi(2.0) == math.inf
    order_two = math.log(0.5**2 / 0.1 + 0.3 + 0.2)
    assert mechanism.pairs[0].renyi(np.array([2.0]))[0] == pytest.approx(order_two)
    below_p, below_q = mechanism.pairs[0].events(np.arange(5.0))
    # Outputs that are more likely under q come first: masses 0 and 0.4, then the two equal ones.
    np.testing.assert_allclose(np.exp(below_p), [1.0, 1.0, 0.7, 0.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(np.exp(below_q), [1.0, 0.6, 0.3, 0.1, 0.0], atol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianMechanism(0.0), r"mu must be in \[1e-12, 1000\], got 0.0"),
        (lambda: GaussianMechanism(math.nan), r"mu must be in"),
        (lambda: DpSgd(-1.0, 10), r"noise_multiplier must be in \(0, inf\), got -1.0"),
        (lambda: DpSgd(1.0, 0), r"steps must be a whole number >= 1, got 0"),
        (lambda: GaussianMechanism(1.0).epsilon(0.0), r"delta must be in \(0, 1\), got 0.0"),
        (lambda: accounting.calibrate_mu(-1.0, 1e-5), r"epsilon must be in \(0, inf\), got -1.0"),
        (lambda: accounting.calibrate_mu(1.0, 2.0), r"delta must be in \(0, 1\), got 2.0"),
        (
            lambda: accounting.calibrate_mu(1.0, 1e-5, "exakt"),
            r"accounting must be one of rdp, exact, got 'exakt'; did you mean 'exact'\?",
        ),
        (
            lambda: DiscreteMechanism(np.array([0.5, 0.6]), np.array([0.5, 0.5])),
            r"p must be probabilities that sum to 1",
        ),
    ],
)
def test_bad_input_is_refused(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("mu", [1e-12, 1e-9, 1e-6, 0.99e-4])
def test_profile_of_the_smallest_mu_keeps_its_digits(mu: float) -> None:
    base = GaussianMechanism(mu)
    # The total variation distance is erf(mu / sqrt 8), exactly.
    assert float(base.delta(0.0)) == pytest.approx(special.erf(mu / math.sqrt(8)), rel=1e-13)
    assert float(base.delta(1e300)) == 0.0
    # delta(c mu) / mu is phi(c) - c Phi(-c), the mean of what a normal exceeds c by, up to O(mu).
    for c in (0.1, 1.0, 5.0, 20.0):
        limit = math.exp(-0.5 * c * c) * (
            math.sqrt(0.5 / math.pi) - 0.5 * c * special.erfcx(c * math.sqrt(0.5))
        )
        rel = 1e-12 + mu * (1.0 + c) ** 3
        assert float(base.delta(c * mu)) / mu == pytest.approx(limit, rel=rel)
    # Both formulas agree at the boundary between them.
    below, above = GaussianMechanism(0.9999999e-4), GaussianMechanism(1.0000001e-4)
    for epsilon in (0.0, 1e-4, 3e-4):
        mean = 0.5 * float(below.delta(epsilon) + above.delta(epsilon))
        middle = float(GaussianMechanism(1e-4).delta(epsilon))
        assert mean == pytest.approx(middle, rel=1e-9)


def test_a_budget_given_as_text_is_read_as_the_number() -> None:
    assert accounting.calibrate_mu("1", "1e-5") == accounting.calibrate_mu(1.0, 1e-5)


@pytest.mark.parametrize("mu", [0.01, 0.3])
def test_the_composition_of_very_many_small_losses_is_accurate(mu: Any) -> None:
    steps = 23 * 10**6
    pair = compose([(GaussianPair(mu / math.sqrt(steps)), steps)])
    exact = float(GaussianPair(mu).profile(0.0))
    assert exact <= float(pair.profile(0.0)) <= 1.03 * exact


@pytest.mark.thorough
def test_rare_large_losses_on_a_short_grid_are_nearly_gaussian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As 10^7 steps at rate 1e-6 on the usual grid; the skewness of the sum is 0.06."""
    monkeypatch.setattr(composition, "_LARGEST_TRANSFORM", 1 << 17)
    monkeypatch.setattr(composition, "_MAX_CELLS", (1 << 16) - 16)
    limit = GaussianMechanism(1e-4 * math.sqrt(10**4 * math.expm1(1.0))).epsilon(1e-5)
    assert limit <= DpSgd(1.0, 10**4, 1e-4).epsilon(1e-5) < 1.1 * limit


@pytest.mark.parametrize("longest", [1 << 11, composition._LARGEST_TRANSFORM])
def test_no_grid_loses_mass(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small losses and a rare large one, whose sums end where the grid ends."""
    monkeypatch.setattr(composition, "_LARGEST_TRANSFORM", longest)
    monkeypatch.setattr(composition, "_MAX_CELLS", longest // 2 - 16)
    rng = np.random.default_rng(0)
    for _ in range(4):
        loss = np.array([-rng.uniform(0.01, 0.05), rng.uniform(0.01, 0.05), rng.uniform(1.0, 8.0)])
        rare = 1e-6
        small = np.stack([np.ones(2), np.exp(-loss[:2])])
        rest = np.array([1.0 - rare, 1.0 - rare * math.exp(-loss[2])])
        p = np.append(np.linalg.solve(small, rest), rare)
        p /= p.sum()
        q = p * np.exp(-loss)
        q /= q.sum()
        for pair, (first, second) in zip(
            DiscreteMechanism(tuple(p), tuple(q)).pairs, ((p, q), (q, p)), strict=True
        ):
            found = compose([(pair, 3)])
            chances = [np.prod(np.array([*product(each, repeat=3)]), 1) for each in (first, second)]
            for epsilon in (0.0, 0.05, 0.5):
                exact = np.maximum(chances[0] - math.exp(epsilon) * chances[1], 0.0).sum()
                # The probabilities are rounded, which moves losses and profiles by a few 1e-16.
                assert float(found.profile(epsilon)) >= exact - 1e-15


@pytest.mark.parametrize(("runs", "rate"), [(1_000, 0.3), (10_000, 0.01), (1_000_000, 1e-4)])
@pytest.mark.parametrize("tilts", [[0.0], [0.0, 50.0, -50.0, 100.0, -100.0, 200.0]])
def test_no_mass_of_a_transform_is_below_the_exact_one(
    runs: int, rate: float, tilts: list[float]
) -> None:
    """The number of runs with the larger of two losses is binomial."""
    grid = composition._Grid(0, np.log(np.array([1 - rate, rate])), runs)
    mean, size = runs * rate, 4096
    last = min(runs, size // 2 - 8)
    log_mass, _, _ = composition._sum_of([grid], 0.01, 0, last, size, tilts)
    places = np.unique([*np.linspace(0, min(last, 3 * mean), 60).astype(int), int(mean)])
    with mpmath.workdps(30):
        exact = [
            mpmath.log(mpmath.binomial(runs, int(k)))
            + int(k) * mpmath.log(mpmath.mpf(rate))
            + (runs - int(k)) * mpmath.log(1 - mpmath.mpf(rate))
            for k in places
        ]
        assert all(mass >= value for mass, value in zip(log_mass[places], exact, strict=True))
    # At the mean, rounding explains less than 1e-8.
    at_mean = int(np.searchsorted(places, int(mean)))
    assert log_mass[places[at_mean]] - float(exact[at_mean]) < 1e-8
