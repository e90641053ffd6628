"""Distributions of K against their definitions: sums over the pmf, limits, and exact samplers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from known import OwnDistribution
from scipy import special, stats

from audit import repetitions

SPECS = [
    "tnb:0,0.01",
    "tnb:-0.5,0.01",
    "tnb:3.5,0.2",
    "tnb:1,0.3",
    "geometric:0.05",
    "poisson:20",
    "poisson:0.3",
    "binomial:30,0.5",
    "binomial:1,0.4",
    "binomial:10,1",
    "two-point:0.01,100",
    "fixed:10",
    "fixed:1",
    "tnb:0,0.01@100",
    "poisson:3@4",
    "fixed:7@9",
]


@pytest.fixture(params=SPECS)
def law(request: pytest.FixtureRequest) -> Any:
    return repetitions.parse_repetitions(request.param)


def support(law: Any) -> Any:
    k = np.arange(8000.0)
    return k, law.pmf(k)


def test_pmf_sums_to_one_and_to_the_mean(law: str) -> None:
    k, p = support(law)
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    assert (p * k).sum() == pytest.approx(law.mean, rel=1e-8)
    assert p[0] == pytest.approx(law.probability_of_none, abs=1e-15)


def test_generating_functions_are_sums_over_the_pmf(law: str) -> None:
    k, p = support(law)
    x = np.array([1e-3, 0.1, 0.5, 0.9, 0.99])
    phi = (p[:, None] * x ** k[:, None]).sum(0)
    phi_prime = (p[1:, None] * k[1:, None] * x ** (k[1:, None] - 1)).sum(0)
    np.testing.assert_allclose(law.phi(x), phi, rtol=1e-9)
    np.testing.assert_allclose(law.phi_prime(x), phi_prime, rtol=1e-9)
    np.testing.assert_allclose(law.phi_survival(1 - x), 1 - phi, atol=1e-12)
    np.testing.assert_allclose(
        law.some_phi_at(np.log(x)), phi - law.probability_of_none, rtol=1e-9, atol=1e-300
    )


def test_survival_form_is_accurate_for_rare_events(law: str) -> None:
    # 1 - phi(1-s) = E[K] s - phi''(1) s^2/2 + ...: the first term to 1e-9 at s = 1e-14 / E[K].
    s = 1e-14 / law.mean
    assert law.phi_survival(s) == pytest.approx(law.mean * s, rel=1e-9)
    assert law.phi_survival(1e-300) == pytest.approx(law.mean * 1e-300, rel=1e-9)
    assert law.phi_prime(1.0) == pytest.approx(law.mean, rel=1e-12)


def test_generating_functions_at_their_ends(law: str) -> None:
    assert law.phi(1.0) == pytest.approx(1.0, abs=1e-15)
    assert law.phi(0.0) == pytest.approx(law.probability_of_none, rel=1e-12, abs=1e-300)
    assert law.phi_survival(0.0) == 0.0
    assert law.phi_survival(1.0) == pytest.approx(1.0 - law.probability_of_none)


def test_inverse_of_the_generating_function(law: str) -> None:
    s = np.array([1e-15, 1e-8, 1e-3, 0.2, 0.7, 1.0])
    np.testing.assert_allclose(law.inverse_survival(law.phi_survival(s)), s, rtol=1e-6)
    assert law.inverse_survival(0.0) == 0.0
    y = np.array([0.999, 0.9])
    np.testing.assert_allclose(law.phi(law.inverse(y)), np.maximum(y, law.phi(0.0)), rtol=1e-9)


def test_sampler_follows_the_pmf(law: str) -> None:
    # Chi-square over cells of expected count >= 20; false alarm 1e-4 for each of the distributions.
    size = 200_000
    drawn = law.sample(np.random.default_rng(5), size)
    k, p = support(law)
    cells = [int(i) for i in k if p[int(i)] * size >= 20]
    observed = np.array([np.sum(drawn == i) for i in cells] + [0], dtype=float)
    expected = np.array([p[i] for i in cells] + [0.0]) * size
    observed[-1], expected[-1] = size - observed.sum(), size - expected.sum()
    if expected[-1] < 5:
        assert observed[-1] < 40
        observed, expected = observed[:-1], expected[:-1]
    statistic = np.sum((observed - expected) ** 2 / expected)
    assert statistic <= stats.chi2.ppf(1 - 1e-4, max(len(expected) - 1, 1))


@pytest.mark.slow
def test_expected_quantile_of_the_best_run(law: str) -> None:
    # Gauss-Legendre over the whole polynomial, an independent quadrature.
    nodes, weights = special.roots_legendre(2000)
    integral = float(np.sum(weights * law.phi((nodes + 1) / 2)) / 2)
    assert law.expected_quantile() == pytest.approx(1 - integral, abs=2e-7)


def test_specs_round_trip(law: str) -> None:
    assert repetitions.parse_repetitions(law.spec) == law  # type: ignore[comparison-overlap]
    assert repetitions.parse_repetitions(law) is law  # type: ignore[comparison-overlap]
    assert str(law) == law.spec


gammas = st.floats(1e-300, 1.0, exclude_min=True, exclude_max=True)
shapes = st.floats(-1.0, 1e6, exclude_min=True, exclude_max=True)
chances = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
plain_laws = st.one_of(
    st.builds(repetitions.TruncatedNegativeBinomial, shapes, gammas),
    st.builds(repetitions.Poisson, st.floats(0.0, 1e15, exclude_min=True, exclude_max=True)),
    st.builds(repetitions.Binomial, st.integers(1, 10**9), chances | st.just(1.0)),
    st.builds(repetitions.TwoPoint, chances, st.integers(2, 10**12)),
    st.builds(repetitions.Fixed, st.integers(1, 10**12)),
)


@example(repetitions.TruncatedNegativeBinomial(2.225073858507e-311, 0.9999999999999999))
@given(plain_laws)
def test_every_spec_round_trips_to_an_equal_distribution(law: Any) -> None:
    assert repetitions.parse_repetitions(law.spec) == law
    assert repetitions.parse_repetitions(law.spec.upper()) == law
    more = [
        lambda: repetitions.Truncated(law, 300),
        lambda: repetitions.GivenNoFailure(law, 0.1),
        lambda: repetitions.Truncated(repetitions.GivenNoFailure(law, 0.1), 300),
        lambda: repetitions.GivenNoFailure(repetitions.Truncated(law, 300), 1e-7),
    ]
    for made in more:
        try:
            one = made()
        except ValueError:
            continue  # no possible number of runs remains, or every run fails
        assert repetitions.parse_repetitions(one.spec) == one


def test_parameters_given_as_text_or_by_numpy_are_stored_as_numbers() -> None:
    law = repetitions.Binomial(np.float64(10.0), np.float64(0.1))
    assert law.spec == "binomial:10,0.1"
    assert isinstance(law.n, int)
    assert repetitions.TruncatedNegativeBinomial(0, np.float64(0.1)).spec == "tnb:0,0.1"


@pytest.mark.parametrize("failure", [1e-9, 0.01, 0.3])
def test_given_no_failure_equals_bayes_rule(law: str, failure: float) -> None:
    k, p = support(law)
    expected = p * (1.0 - failure) ** k
    expected /= expected.sum()
    x = np.array([0.0, 1e-3, 0.5, 0.99, 1.0])
    s = np.array([1e-15, 1e-6, 0.3])
    for conditioned in (
        law.given_no_failure(failure),
        OwnDistribution(law).given_no_failure(failure),
    ):
        np.testing.assert_allclose(conditioned.pmf(k), expected, rtol=1e-9, atol=1e-300)
        assert conditioned.mean == pytest.approx(float(expected @ k), rel=1e-8)
        assert conditioned.probability_of_none == pytest.approx(expected[0], rel=1e-9, abs=1e-300)
        phi = (expected[:, None] * x ** k[:, None]).sum(0)
        np.testing.assert_allclose(conditioned.phi(x), phi, rtol=1e-9, atol=1e-300)
        # sum p_k (1 - (1-s)^k), each term with all its digits
        beaten = -np.expm1(k[:, None] * np.log1p(-s)) * expected[:, None]
        np.testing.assert_allclose(conditioned.phi_survival(s), beaten.sum(0), rtol=1e-8)
        slope = (expected[1:, None] * k[1:, None] * x[1:] ** (k[1:, None] - 1)).sum(0)
        np.testing.assert_allclose(conditioned.phi_prime(x[1:]), slope, rtol=1e-8)


def test_repeated_given_no_failure_and_its_sampler() -> None:
    law = OwnDistribution(repetitions.parse_repetitions("poisson:3"))
    twice = law.given_no_failure(0.2).given_no_failure(0.5)
    np.testing.assert_allclose(
        twice.pmf(np.arange(9)), repetitions.Poisson(1.2).pmf(np.arange(9)), rtol=1e-12
    )
    drawn = twice.sample(np.random.default_rng(3), 40_000)
    # Six standard errors.
    assert abs(drawn.mean() - 1.2) < 6.0 * np.sqrt(1.2 / len(drawn))
    assert law.given_no_failure(0.0) is law
    with pytest.raises(
        ValueError, match="failure must be smaller to sample from my own fixed:1000"
    ):
        OwnDistribution(repetitions.parse_repetitions("fixed:1000")).given_no_failure(0.5).sample(
            np.random.default_rng(0), 1
        )


def test_given_no_failure_keeps_rare_values_of_a_two_point_distribution() -> None:
    # P[K = 10^9] decreases to about e^-100, below the rounding error of the other probability.
    given_none = repetitions.TwoPoint(0.5, 10**9).given_no_failure(1e-7)
    assert given_none.phi_prime(1.0) == pytest.approx(1.0 + 1e9 * np.exp(-100.0), rel=1e-9)
    assert given_none.pmf(10**9) == pytest.approx(np.exp(-100.0), rel=1e-4)


def test_a_user_defined_distribution_has_no_theorem_and_no_family() -> None:
    law = OwnDistribution(repetitions.parse_repetitions("tnb:0,0.1"))
    assert law.power_law is law.profile_theorem is law.renyi_theorem is None  # type: ignore[comparison-overlap]
    assert law.untruncated is law
    assert law.means == (law.mean, law.mean)
    with pytest.raises(
        ValueError, match="must belong to a family with a free mean, got my own tnb"
    ):
        law.with_mean(7.0)


def test_logarithmic_distribution_is_the_limit_of_small_eta() -> None:
    x = np.linspace(0.01, 0.999, 7)
    limit = repetitions.parse_repetitions("tnb:0,0.01")
    for eta in (1e-9, -1e-9):
        near = repetitions.TruncatedNegativeBinomial(eta, 0.01)
        np.testing.assert_allclose(near.phi(x), limit.phi(x), rtol=1e-6)
        np.testing.assert_allclose(near.phi_survival(x), limit.phi_survival(x), rtol=1e-6)
        np.testing.assert_allclose(near.inverse_survival(x), limit.inverse_survival(x), rtol=1e-5)


def test_geometric_equals_tnb_one_and_truncated_distributions_are_conditional() -> None:
    assert repetitions.parse_repetitions("geometric:0.2") == repetitions.parse_repetitions(
        "tnb:1,0.2"
    )
    law, cut = (
        repetitions.parse_repetitions("poisson:3"),
        repetitions.parse_repetitions("poisson:3@4"),
    )
    k = np.arange(5)
    np.testing.assert_allclose(cut.pmf(k), law.pmf(k) / law.pmf(k).sum(), rtol=1e-12)
    assert cut.pmf(5) == 0.0


@pytest.mark.parametrize(
    "spec",
    [
        "tnb:100,1e-9",
        "tnb:0,1e-290",
        "tnb:-0.99,1e-290",
        "tnb:1000,0.5",
        "poisson:1e6",
        "binomial:2000000,0.5",
        "two-point:1e-9,1000000",
        "fixed:1000000",
        "tnb:0,0.001@20000",
    ],
)
def test_extreme_distributions_do_not_overflow(spec: str) -> None:
    law = repetitions.parse_repetitions(spec)
    log_x = np.array([-np.inf, -700.0, -1.0, -1e-12, -1e-300, 0.0])
    for values in (law.log_phi_at(log_x), law.one_minus_phi_at(log_x), law.log_phi_prime_at(log_x)):
        assert not np.isnan(values).any()
    assert np.all(np.diff(law.one_minus_phi_at(log_x)) <= 0)
    s = law.inverse_survival(np.array([1e-12, 0.3]))
    np.testing.assert_allclose(law.phi_survival(s), [1e-12, 0.3], rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tnb:0,1.2", r"gamma must be in \(0, 1\), got 1.2"),
        ("tnb:0,0", r"gamma must be in \(0, 1\), got 0"),
        ("tnb:-1,0.5", r"eta must be in \(-1, "),
        ("tnb:0", r"takes 2 numbers separated by a comma, got '0'"),
        ("poisson:-3", r"mu must be in \(0, "),
        ("poisson:nan", r"mu must be in \(0, "),
        ("binomial:2.5,0.5", r"n must be a whole number in \[1, 1000000000000000\], got 2.5"),
        ("two-point:0.5,1", r"L must be a whole number in \[2, 1000000000000000\], got 1"),
        ("fixed:0", r"k must be a whole number in \[1, 1000000000000000\], got 0"),
        ("fixed:5@3", r"most must leave fixed:5 a possible number of runs, got 3"),
        ("poison:3", r"got 'poison'; did you mean 'poisson'\?"),
        ("", r"repetitions must be one of tnb"),
        (None, r"repetitions must be a distribution of K, or one as text, got None"),
    ],
)
def test_bad_specs_are_refused_in_one_line(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        repetitions.parse_repetitions(spec)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "spec",
    [
        "tnb:0,1e-7@1000000",
        "tnb:-0.5,1e-5@100000",
        "two-point:1e-6,90000@100000",
        "poisson:50000@100000",
        "binomial:100000,0.3@50000",
        "fixed:77@100000",
    ],
)
def test_interpolated_values_of_a_long_truncated_distribution_equal_its_sums(spec: str) -> None:
    # The interpolated table is compared with the sums at 60 values.
    law = repetitions.parse_repetitions(spec)
    log_x = -np.exp(np.random.default_rng(0).uniform(-45.0, 7.0, 3000))
    log_x[:3] = 0.0, -np.inf, -1e-320
    for values in (law.log_phi_at, law.log_phi_prime_at, law.one_minus_phi_at):
        few = np.concatenate([values(part) for part in np.split(log_x[:60], 20)])
        many = values(log_x)[:60]
        np.testing.assert_allclose(many, few, rtol=1e-13, atol=1e-13)


def test_a_long_truncated_distribution_equals_its_closed_form() -> None:
    # P[K > 10^5] = e^-100, so the tail is negligible.
    cut, law = (
        repetitions.parse_repetitions("tnb:1,0.001@100000"),
        repetitions.parse_repetitions("tnb:1,0.001"),
    )
    log_x = -np.exp(np.linspace(-40.0, 6.0, 2000))
    np.testing.assert_allclose(
        cut.log_phi_prime_at(log_x), law.log_phi_prime_at(log_x), rtol=1e-11, atol=1e-11
    )
    np.testing.assert_allclose(cut.one_minus_phi_at(log_x), law.one_minus_phi_at(log_x), rtol=1e-11)


@pytest.mark.parametrize("spec", ["poisson:8@5", "poisson:0.3", "binomial:30,0.5"])
def test_a_user_defined_distribution_is_accurate_for_small_probabilities(spec: str) -> None:
    law = repetitions.parse_repetitions(spec)
    log_x = np.array([-np.inf, -300.0, -20.0, -1.0, -0.7, -0.5, -1e-3, 0.0])
    own = OwnDistribution(law).some_phi_at(log_x)
    np.testing.assert_allclose(own, law.some_phi_at(log_x), rtol=1e-13, atol=1e-300)
