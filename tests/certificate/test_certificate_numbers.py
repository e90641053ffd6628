"""Numbers of certificates against known values."""

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from certificate_helpers import ONE_RUN
from scipy import special

from audit.accounting import GaussianMechanism, PureDp
from audit.certificate import Certificate, Evidence, Status, StudyFacts, compute, verify
from audit.certificate.numbers import DELTAS, PrivacyPoint, TradeOff, derived
from audit.numerics import FloatArray


def gaussian_curve(mu: float, rate: FloatArray | float) -> FloatArray | float:
    return special.ndtr(-special.ndtri(rate) - mu)


@pytest.mark.thorough
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_numbers_of_one_gaussian_run_equal_closed_forms(mu: float) -> None:
    numbers = compute(GaussianMechanism(mu), ONE_RUN, 1e-5, ["region"])
    assert numbers.epsilon == pytest.approx(GaussianMechanism(mu).epsilon(1e-5), rel=1e-3)
    # A table of points is never above the curve, and close below it.
    advantage = 2 * special.ndtr(mu / 2) - 1
    assert advantage <= numbers.advantage <= 1.15 * advantage
    for found, rate in zip(numbers.true_positives, (0.01, 0.001), strict=True):
        true = 1 - gaussian_curve(mu, rate)
        assert true <= found <= 1.35 * true
    assert mu <= numbers.mu <= 1.2 * mu
    assert 0.0 <= numbers.mu_regret < 0.03
    for rate, least in numbers.trade_off:
        assert least <= gaussian_curve(mu, rate) + 1e-12


def test_numbers_of_pure_dp_equal_closed_forms() -> None:
    epsilon = 1.2
    numbers = compute(PureDp(epsilon), ONE_RUN, 1e-5, ["region"])
    # Randomised response: f(a) = max(1 - e^eps a, e^-eps (1 - a)), advantage tanh(eps / 2).
    assert numbers.advantage == pytest.approx(np.tanh(epsilon / 2), rel=2e-2)
    assert numbers.advantage >= np.tanh(epsilon / 2)
    assert numbers.true_positives[0] == pytest.approx(0.01 * np.exp(epsilon), rel=0.02)
    assert numbers.mu_regret > 0.01  # no Gaussian curve equals that of randomised response


def test_mu_is_the_smallest_with_a_lower_trade_off_curve() -> None:
    slack = 1e-5
    curve = TradeOff(compute(GaussianMechanism(1.0), ONE_RUN, slack, ["region"]).profile)
    rates = np.concatenate([np.geomspace(1e-12, 0.01, 500), np.linspace(0.01, 1, 2000)])
    reached = curve.false_negatives(rates) + slack
    mu = curve.mu(slack)
    assert (gaussian_curve(mu, rates) <= reached + 1e-12).all()
    assert not (gaussian_curve(0.99 * mu, rates) <= reached).all()
    regret = curve.regret(mu)
    shifted = curve.false_negatives(np.minimum(rates + regret, 1.0)) - regret
    assert (shifted <= gaussian_curve(mu, rates) + 1e-9).all()


def test_detectable_epsilon_is_that_of_an_audit_without_errors() -> None:
    # No error in n games bounds its rate by 1 - (alpha/2)^(1/n).
    rate = 1 - 0.025 ** (1 / 1000)
    expected = np.log((1 - 1e-5 - rate) / rate)
    assert Evidence(0.0, 0.95, 1000, 1000).ceiling(1e-5) == pytest.approx(expected, rel=1e-6)
    assert Evidence(0.0, 0.95, 1, 1).ceiling(1e-5) == 0.0


def test_evidence_above_the_bound_is_refused(certificate: Certificate) -> None:
    assert certificate.with_evidence(0.1, 0.95, 100, 100).evidence.epsilon_lower == 0.1
    with pytest.raises(ValueError, match="epsilon_lower must be at most the certified epsilon"):
        certificate.with_evidence(99.0, 0.95, 100, 100)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.2, 0.5, 1.0])
def test_groups_of_a_gaussian_have_the_epsilon_of_k_mu(mu: float) -> None:
    delta = 1e-5
    curve = TradeOff(compute(GaussianMechanism(mu), ONE_RUN, delta, ["region"]).profile)
    assert curve.group_epsilon(1, delta) == pytest.approx(GaussianMechanism(mu).epsilon(delta))
    for size in (2, 3):  # of k records: mu is k times as large
        true = GaussianMechanism(size * mu).epsilon(delta)
        assert true <= curve.group_epsilon(size, delta) <= 1.04 * true
    assert curve.group_epsilon(100, delta) is None
    assert curve.group_epsilon(101, delta) is None


def test_groups_of_pure_dp_cost_their_size() -> None:
    curve = TradeOff(compute(PureDp(0.5), ONE_RUN, 1e-5, ["region"]).profile)
    for size in (2, 5, 10):
        assert 0.999 * size * 0.5 <= curve.group_epsilon(size, 1e-5) <= size * 0.5 + 1e-6


def test_group_curve_is_the_chain_of_curves() -> None:
    # A computation without the corners of the curve: the supremum over a fine grid of rates.
    delta = 1e-5
    curve = TradeOff(compute(GaussianMechanism(0.5), ONE_RUN, delta, ["region"]).profile)
    rates = np.geomspace(1e-9, 1.0, 200_000)
    chain = rates
    for _ in range(3):
        chain = 1.0 - curve.false_negatives(chain)
    found = np.log(np.max((chain - delta) / rates))
    assert found <= curve.group_epsilon(3, delta) <= found + 1e-3


def quantile(p: mpmath.mpf) -> mpmath.mpf:
    """Quantile of the normal distribution."""
    if p > 0.5:
        return -quantile(1 - p)
    start = -mpmath.sqrt(-2 * mpmath.log(p)) if p < 0.1 else mpmath.mpf(-0.5)
    return mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(p), start)


def exact_mu(points: list[tuple[float, float]], slack: float) -> mpmath.mpf:
    """The largest gap at any crossing of two lines, with 50 digits."""
    lines = [(mpmath.mpf(0), mpmath.mpf(0))]
    for delta, epsilon in points:
        without_delta, ratio = 1 - mpmath.mpf(delta), mpmath.exp(-mpmath.mpf(epsilon))
        lines += [(without_delta, 1 / ratio), (ratio * without_delta, ratio)]
    largest = mpmath.mpf(0)
    for (a, b), (c, d) in itertools.combinations(lines, 2):
        rate = (a - c) / (b - d) if b != d else 0
        reached = max(height - slope * rate for height, slope in lines) + mpmath.mpf(slack)
        if 0 < rate < 1 and 0 < reached < 1:
            largest = max(largest, -quantile(rate) - quantile(reached))
    return largest


@pytest.mark.parametrize(
    ("points", "slack"),
    [
        ([(1e-14, 3.0), (1e-12, 2.0)], 1e-14),
        ([(3.6e-16, 57.5), (8.2e-16, 15.8), (7.5e-10, 12.3)], 3.6e-16),
        ([(2.5e-17, 103.6), (1.3e-16, 83.9), (5.9e-15, 2.28)], 7.6e-17),  # it was 11 % too small
        ([(9.7e-17, 2.3e-3), (6.5e-7, 1.7e-3)], 1.1e-16),
        ([(1e-14, 0.0)], 2e-14),
        ([(1e-5, 8.0), (1e-3, 5.0), (0.3, 1.0)], 1e-5),
        ([(1e-5, 40.0)], 0.3),
    ],
)
def test_mu_of_tiny_deltas_is_rounded_up(points: list[tuple[float, float]], slack: float) -> None:
    with mpmath.workdps(50):
        exact = exact_mu(points, slack)
        mu = TradeOff(tuple(PrivacyPoint(*point) for point in points)).mu(slack)
        assert exact <= mu <= exact * (1 + mpmath.mpf(2e-9))


@pytest.mark.parametrize("epsilon", [600.0, 699.0, 701.0, 744.0, 746.0, 1e4])
def test_mu_of_a_line_that_is_steeper_than_a_float(epsilon: float) -> None:
    delta, slack = 1e-6, 1e-5
    mu = TradeOff((PrivacyPoint(delta, epsilon),)).mu(slack)
    # The line meets the axis at the rate (1 - delta) e^-epsilon, where f_mu must be the slack.
    log_rate = special.log_ndtr(-mu - special.ndtri(slack))
    assert log_rate == pytest.approx(math.log1p(-delta) - epsilon, rel=1e-7)


def test_lines_of_different_steepness_meet_near_zero() -> None:
    steep, slack = PrivacyPoint(0.1, 2000.0), 0.15
    curve = TradeOff((steep, PrivacyPoint(0.2, 1000.0)))
    mu = curve.mu(slack)
    # The lines meet at 0.1 e^-2000, where f is 0.8, and the second line ends at 0.8 e^-1000.
    gaps = [
        -special.ndtri_exp(math.log(0.1) - 2000.0) - special.ndtri(0.8 + slack),
        -special.ndtri_exp(math.log(0.8) - 1000.0) - special.ndtri(slack),
    ]
    assert mu == pytest.approx(max(gaps), rel=1e-8)
    assert mu >= max(gaps)
    assert TradeOff((steep,)).mu(slack) > mu


@pytest.mark.parametrize("mu", [36.0, 40.0, 200.0])
def test_numbers_of_a_large_mu(mu: float) -> None:
    base, delta = GaussianMechanism(mu), 1e-5
    profile = tuple(PrivacyPoint(at, base.epsilon(at)) for at in DELTAS)
    numbers = derived(profile, delta)
    # The tabulated curve lies below that of the mechanism, whose mu it can only exceed.
    assert mu < numbers["mu"] < mu + 5.0
    assert numbers["advantage"] == 1.0
    assert numbers["trade_off"][0] == (0.0, 1.0 - min(point.delta for point in profile))
    assert "nan" not in json.dumps(numbers, default=str).lower()


def test_a_certificate_of_a_large_mu_is_issued_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.certificate.numbers.DELTAS", DELTAS[::5])  # 0.3 s each
    base = GaussianMechanism(40.0)
    certificate = Certificate.issue(
        base, base, ONE_RUN, 1e-5, None, StudyFacts({}, settings="0" * 64)
    )
    path = tmp_path / "large.json"
    path.write_text(json.dumps(certificate.as_dict()))
    assert verify(path).status is Status.CORRECT
    assert 40.0 < certificate.numbers.mu < 45.0
    assert "nan" not in path.read_text().lower()
