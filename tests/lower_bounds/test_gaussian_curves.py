"""Bounds at one threshold: Clopper-Pearson, and the curves of Gaussian bases.

A violation is a bound above the true value. If the true rate is 5 %, the number of violations
exceeds `max_violations` with probability at most 1e-3. So a correct estimator fails such a test
with at most that probability. Seeds are fixed, so a test always passes or always fails.
"""

import math

import numpy as np
import pytest
from scipy import stats
from simulated_scores import DELTA, TNB, best_of, max_violations

from audit import lower_bounds, repetitions
from audit.accounting import GaussianMechanism, calibrate_mu
from audit.lower_bounds import families
from audit.lower_bounds.scores import Scores, upper_limit
from audit.upper_bounds import reduced_exact


def test_clopper_pearson_limit_equals_statsmodels() -> None:
    from statsmodels.stats.proportion import proportion_confint

    for trials in (1, 30, 5_000, 10**7):
        count = np.unique(np.geomspace(1, trials, 40).astype(int)) - 1
        for alpha in (1e-9, 0.05, 0.5):
            theirs = proportion_confint(count, trials, alpha=2 * alpha, method="beta")[1]
            ours = upper_limit(count, trials, alpha)
            # For 10^7 trials, statsmodels' limits are up to a relative 1e-10 too small.
            np.testing.assert_allclose(ours, theirs, rtol=2e-12 if trials < 10**5 else 1e-9)
            assert np.all(ours >= theirs)


def test_clopper_pearson_limit_inverts_the_binomial() -> None:
    for count, trials, alpha in [(0, 10, 0.05), (3, 50, 0.025), (49, 50, 0.01), (50, 50, 0.05)]:
        limit = float(upper_limit(np.array([count]), trials, alpha)[0])
        if count == trials:
            assert limit == 1.0
        else:
            assert stats.binom.cdf(count, trials, limit) == pytest.approx(alpha, rel=1e-7)


def test_clopper_pearson_limit_of_many_trials_is_not_too_small() -> None:
    """P[at most one of n] = (1 - p)^n + n p (1 - p)^(n - 1) is at most alpha at the limit p."""
    for trials in (10**5, 10**6, 10**7, 3 * 10**7):
        for alpha in (0.5, 0.025, 1e-3, 1e-9):
            p = float(upper_limit(np.array([1]), trials, alpha)[0])
            log_rest = (trials - 1) * math.log1p(-p)
            at_most_one = math.exp(log_rest) * (1.0 - p + trials * p)
            assert alpha * (1.0 - 1e-9) < at_most_one <= alpha


def test_split_evaluates_the_threshold_on_other_trials() -> None:
    # Only the even trials, which choose the threshold, separate the two sides.
    even = np.arange(200) % 2 == 0
    split = lower_bounds.ClopperPearson(rule=lower_bounds.Split())
    assert split(np.zeros(200), np.where(even, 1.0, 0.0), 0.0).epsilon == 0.0
    assert split(np.zeros(200), np.ones(200), 0.0).epsilon > 3.0


@pytest.mark.thorough
def test_epsilon_of_the_best_of_k_equals_the_exact_epsilon() -> None:
    for spec in ("fixed:1", "tnb:0,0.01", "tnb:1,0.01", "poisson:20", "two-point:0.01,100"):
        for mu in (0.247, 0.864):
            distribution = repetitions.parse_repetitions(spec)
            exact = reduced_exact(GaussianMechanism(mu), distribution, DELTA)
            found = families.best_of_gaussian_epsilon(mu, distribution, DELTA)
            assert 0.999 * exact.epsilon < found <= exact.epsilon


def test_pooled_bounds_are_valid() -> None:
    mu, delta = calibrate_mu(4.0, DELTA), DELTA
    exact = reduced_exact(GaussianMechanism(mu), TNB, delta)
    rng = np.random.default_rng(10)
    audits, runs = 100, 4000
    above: dict[str, int] = {}
    for _ in range(audits):
        for bound in lower_bounds.pooled_bounds(
            rng.normal(size=runs), rng.normal(mu, size=runs), TNB, delta, threshold=2.5
        ):
            above[bound.key] = above.get(bound.key, 0) + (
                bound.epsilon > exact.epsilon - exact.error
            )
    assert len(above) == 4
    assert max(above.values()) <= max_violations(audits)


@pytest.mark.slow
def test_lifted_curve_is_valid_for_winners_and_gaussian_curve_is_not() -> None:
    audits, trials, alpha = 2000, 1000, 0.05
    mu = calibrate_mu(4.0, DELTA)
    exact = reduced_exact(GaussianMechanism(mu), TNB, DELTA)
    true_epsilon_low = exact.epsilon - exact.error
    rng = np.random.default_rng(20)
    rule = lower_bounds.ThresholdFromTheory(mu, TNB)
    gaussian = lower_bounds.GaussianCurve(rule=rule)
    curves = {"lifted": lower_bounds.LiftedCurve(TNB, rule=rule), "gaussian": gaussian}
    values: dict[str, list[float]] = {name: [] for name in curves}
    for _ in range(audits):
        scores = Scores.of(best_of(TNB, rng, trials), mu + best_of(TNB, rng, trials))
        for name, curve in curves.items():
            values[name].append(curve.find(scores, DELTA, alpha).epsilon)
    violations = {name: np.sum(np.array(v) > true_epsilon_low) for name, v in values.items()}
    assert violations["lifted"] <= max_violations(
        audits
    )  # 5 % of 2,000 is 100; the margin allows 131
    # A valid bound exceeds the allowed number with probability 1e-3; this one errs in 8 % ...
    assert violations["gaussian"] > max_violations(audits) + 20
    # The valid bound is within 30 % of the true epsilon on average.
    assert np.mean(values["lifted"]) > 0.7 * true_epsilon_low
    # ... and with many trials nearly always.
    many, large = 10, 100_000
    above = 0
    for _ in range(many):
        scores = Scores.of(best_of(TNB, rng, large), mu + best_of(TNB, rng, large))
        above += gaussian.find(scores, DELTA, alpha).epsilon > exact.epsilon
    assert above >= 9
