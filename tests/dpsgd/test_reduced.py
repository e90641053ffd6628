"""The reduced engine against closed forms; each statistical test has false-alarm rate 1e-4."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
from toy import ALARM, run_batch

import threat_models
from audit.dpsgd import DpSgdSettings, RunBatch, choose_engine, make_engine, reduced, streams


def dirac(score: str = "first-coordinate", worst_order: Any = None) -> Any:
    return threat_models.build("ETCV", "dirac", score, worst_order=worst_order)


@pytest.mark.parametrize("included", [False, True])
def test_distribution_of_the_proxy_and_the_score(included: bool) -> None:
    settings = DpSgdSettings(30, 4.0, 0.5, (0.1, 0.7))
    pack = run_batch(200_000, included, seed=1, candidates=2)
    out = make_engine("reduced", dirac(), settings).run(pack)
    # S / (N C) has distribution N(b, sigma^2 / N), and the score is lr N C lambda_a.
    expected = st.norm(float(included), 4 / np.sqrt(30))
    assert st.kstest(out.lambda_a, expected.cdf).pvalue > ALARM
    rates = np.array([0.1, 0.7])[pack.candidate]
    np.testing.assert_allclose(out.scores, rates * 30 * 0.5 * out.lambda_a, rtol=1e-12)
    assert out.finite.all()


def test_worst_order_ranks_the_standardised_sum() -> None:
    settings = DpSgdSettings(30, 4.0, 0.5, (0.1,))
    pack = run_batch(10_000, True)
    plain = make_engine("reduced", dirac(), settings).run(pack)
    ordered = make_engine("reduced", dirac("worst-order", 2.0), settings).run(pack)
    x = plain.lambda_a * np.sqrt(30) / 4.0
    expected = np.where(x > 2, 1e6 + x, -x)
    np.testing.assert_allclose(ordered.scores, expected, rtol=1e-12)


def test_sampling_gives_a_binomial_mixture() -> None:
    settings = DpSgdSettings(8, 0.4, 1.0, (0.1,), sampling_rate=0.3)
    out = make_engine("reduced", dirac(), settings).run(run_batch(100_000, True))
    hits = np.arange(9)
    weights = st.binom.pmf(hits, 8, 0.3)

    def cdf(x: Any) -> Any:
        return (weights * st.norm.cdf(x[:, None] * 8, hits, 0.4 * np.sqrt(8))).sum(1)

    assert st.kstest(out.lambda_a, cdf).pvalue > ALARM


def test_lambda_c_is_the_most_powerful_statistic_of_one_run() -> None:
    # E[exp(L)] = 1 without the canary. No statistic has more power at any error rate (Neyman and
    # Pearson); the mean loses power because it hides a few large steps. Tolerance: 4 standard
    # deviations.
    settings = DpSgdSettings(50, 0.7, 0.5, (0.1,), sampling_rate=0.05)
    engine = make_engine("reduced", dirac(), settings)
    without, with_it = (
        engine.run(run_batch(40_000, False, 1)),
        engine.run(run_batch(40_000, True, 2)),
    )
    ratio = np.exp((without.lambda_c - 0.5) * 50 / 0.7**2)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(40_000)
    powers = {}
    for proxy in ("lambda_a", "lambda_c"):
        x, y = getattr(without, proxy), getattr(with_it, proxy)
        powers[proxy] = np.array([np.mean(y > np.quantile(x, 1 - fp)) for fp in (0.3, 0.1, 0.01)])
    assert (powers["lambda_c"] > powers["lambda_a"] + 4 * 0.005).all()
    # At sampling rate 1 it equals lambda_a, the limit of the formula as the rate approaches 1.
    full = make_engine("reduced", dirac(), DpSgdSettings(50, 0.7, 0.5, (0.1,)))
    whole = full.run(run_batch(1000, True))
    np.testing.assert_array_equal(whole.lambda_c, whole.lambda_a)
    near = DpSgdSettings(50, 0.7, 0.5, (0.1,), sampling_rate=1 - 1e-13)
    close = make_engine("reduced", dirac(), near).run(run_batch(1000, True))
    np.testing.assert_allclose(close.lambda_c, close.lambda_a, atol=1e-9)


@pytest.mark.parametrize("tau", [1e-9, 0.01, 0.5, 1 - 1e-9])
def test_lambda_c_matches_the_sum_over_steps(tau: float) -> None:
    # Compares with sum_i log(1 - tau + tau exp((2 x_i - 1) / (2 sigma^2))) over the drawn steps,
    # which are more than one product can hold.
    steps, sigma = 2500, 0.2
    pack = run_batch(40, True)
    settings = DpSgdSettings(steps, sigma, 1.0, (0.1,), sampling_rate=tau)
    out = make_engine("reduced", dirac(), settings).run(pack)
    hits = st.binom.ppf(streams.uniforms(pack.seeds, 2), steps, tau)
    noise = streams.normal_rows(pack.seeds, 3, steps)
    noise += (streams.normals(pack.seeds, 0) / np.sqrt(steps) - noise.mean(1))[:, None]
    x = (np.arange(steps) < hits[:, None]) + sigma * noise
    np.testing.assert_allclose(x.mean(1), out.lambda_a, rtol=1e-12, atol=1e-14)
    taken = np.log(tau) + (2 * x - 1) / (2 * sigma**2)
    expected = np.logaddexp(np.log1p(-tau), taken).sum(1)
    np.testing.assert_allclose(
        out.lambda_c, 0.5 + sigma**2 / steps * expected, rtol=1e-13, atol=1e-14
    )


def test_softplus_sums_of_extreme_values() -> None:
    ends = np.array([[0.0] * 2000, [1e3] * 2000, [-1e3] * 2000, [1e300] + [-1e300] * 1999])
    expected = [2000 * np.log(2), 2e6, 0.0, 1e300]
    np.testing.assert_allclose(reduced.softplus_sums(ends), expected, rtol=1e-15)


def test_compiled_and_numpy_normals_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = np.array([0, 1, 2**32, 2**64 - 1], dtype=np.uint64)
    if streams._compiled is None:
        pytest.skip("no compiler when this was installed")
    compiled = [streams.normal_rows(seeds, 3, count) for count in (1, 64, 100_001)]
    monkeypatch.setattr(streams, "_compiled", None)
    for rows in compiled:
        plain = streams.normal_rows(seeds, 3, rows.shape[1])
        np.testing.assert_allclose(rows, plain, rtol=2e-15, atol=1e-300)
        np.testing.assert_allclose(rows[:, 0], streams.normals(seeds, 3), rtol=2e-15)


def test_compiled_normals_are_accurate_in_the_tails() -> None:
    # The inverse of the mixing bijection gives words for every magnitude of the tail.
    if streams._compiled is None:
        pytest.skip("no compiler when this was installed")
    masses = [0, 1, *(1 << i for i in range(1, 53)), *(3 << i for i in range(51)), 2**53 - 1]
    words = [mass << 11 | bit for mass in masses for bit in (0, 1)]
    keys = np.array([(unmixed(word) - int(streams._GAMMA)) % 2**64 for word in words], np.uint64)
    found = np.empty((len(keys), 1))
    streams._compiled.normal_rows(keys.ctypes.data, len(keys), found.ctypes.data, 1)
    tails = np.repeat([(mass + 0.5) / 2**54 for mass in masses], 2)
    signs = np.tile([1.0, -1.0], len(masses))
    np.testing.assert_allclose(found[:, 0], signs * st.norm.isf(tails), rtol=2e-15, atol=1e-300)


def unmixed(z: int) -> int:
    for shift, factor in ((31, 1), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
        z = z * pow(factor, -1, 2**64) % 2**64 if factor > 1 else z
        z ^= z >> shift ^ z >> 2 * shift
    return z


def test_momentum_matches_a_simulation_of_steps() -> None:
    settings = DpSgdSettings(6, 2.0, 1.5, (0.1,), momentum=0.8)
    out = make_engine("reduced", dirac(), settings).run(run_batch(100_000, True))
    released = 1.5 + 3.0 * np.random.default_rng(5).standard_normal((100_000, 6))
    velocity, moved = np.zeros(100_000), np.zeros(100_000)
    for column in released.T:
        velocity = 0.8 * velocity + column
        moved += 0.1 * velocity
    proxy = released.sum(1) / (6 * 1.5)
    assert st.ks_2samp(out.scores, moved).pvalue > ALARM
    # Tests the joint distribution through several directions in the plane of proxy and score.
    for weight in (1.0, -2.0):
        mixed = out.lambda_a + weight * out.scores
        assert st.ks_2samp(mixed, proxy + weight * moved).pvalue > ALARM


def test_outcome_depends_only_on_the_seed() -> None:
    engine = make_engine("reduced", dirac(), DpSgdSettings(10, 1.0, 1.0, (0.1,)))
    pack = run_batch(1000, True)
    whole = engine.run(pack)
    turned = engine.run(RunBatch(pack.included[::-1], pack.candidate[::-1], pack.seeds[::-1]))
    np.testing.assert_array_equal(whole.lambda_a, turned.lambda_a[::-1])
    assert len(np.unique(whole.lambda_a)) == 1000


@pytest.mark.slow
def test_normals_of_consecutive_seeds_are_independent_down_to_the_tails() -> None:
    z = streams.normals(np.arange(4_000_000, dtype=np.uint64), 0)
    assert st.kstest(z, "norm").pvalue > ALARM
    # The count beyond 4.5 is Poisson with mean 27.2; the serial correlation is N(0, 1/n).
    low, high = st.poisson(4_000_000 * 2 * st.norm.sf(4.5)).ppf([ALARM / 2, 1 - ALARM / 2])
    assert low <= np.sum(np.abs(z) > 4.5) <= high
    assert abs(np.mean(z[1:] * z[:-1])) < st.norm.isf(ALARM / 2) / 2000
    other = streams.normals(np.arange(4_000_000, dtype=np.uint64), 1)
    assert abs(np.mean(z * other)) < st.norm.isf(ALARM / 2) / 2000


def test_inapplicable_settings_are_rejected_with_the_reason() -> None:
    settings = DpSgdSettings(3, 1.0, 1.0, (0.1,))
    digits = threat_models.build("ETCV", "input")
    assert choose_engine(dirac(), settings)[0] == "reduced"
    assert "distribution of the released statistic is known" in choose_engine(dirac(), settings)[1]
    assert choose_engine(digits, settings)[0] != "reduced"
    with pytest.raises(ValueError, match="input canary"):
        make_engine("reduced", digits, settings)
    with pytest.raises(ValueError, match="did you mean 'reduced'"):
        make_engine("reducd", digits, settings)


def test_a_name_of_no_model_is_rejected_although_no_model_is_trained() -> None:
    for name, reason in (("os.getcwd", "must return a torch"), ("os.system", "cannot be created")):
        with pytest.raises(ValueError, match=f"model {name} {reason}"):
            make_engine("reduced", dirac(), DpSgdSettings(3, 1.0, 1.0, (0.1,), model=name))
    own = DpSgdSettings(3, 1.0, 1.0, (0.1,), model="audit.dpsgd.models.logistic")
    assert make_engine("reduced", dirac(), own).name == "reduced"


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"noise_multiplier must be in \(0, inf\), got -1"):
        DpSgdSettings(3, -1, 1.0, (0.1,))
    with pytest.raises(ValueError, match=r"max_grad_norm must be in \(0, 1e\+100\), got nan"):
        DpSgdSettings(3, 1, float("nan"), (0.1,))
    with pytest.raises(ValueError, match="learning_rates"):
        DpSgdSettings(3, 1, 1.0, ())
    with pytest.raises(ValueError, match="sampling_rate"):
        DpSgdSettings(3, 1, 1.0, (0.1,), sampling_rate=0)
    with pytest.raises(ValueError, match="momentum"):
        DpSgdSettings(3, 1, 1.0, (0.1,), momentum=(0.5, 1.0))
    with pytest.raises(ValueError, match="max_grad_norm must name at least one number"):
        DpSgdSettings(3, 1, (), (0.1,))
    with pytest.raises(ValueError, match="steps"):
        DpSgdSettings(0, 1, 1.0, (0.1,))


def test_the_reduced_engine_does_not_import_torch() -> None:
    code = (
        "import sys, numpy as np, threat_models\n"
        "from audit.dpsgd import *\n"
        "e = make_engine('reduced', threat_models.build('ETCV', 'dirac'), "
        "DpSgdSettings(3, 1.0, 1.0, (0.1,)))\n"
        "e.run(RunBatch(np.ones(3, bool), np.zeros(3, int), np.arange(3, dtype=np.uint64)))\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
