"""Sequential plans, and what a number of trials can show.

A violation is a bound above the true value. If the true rate is 5 %, the number of violations
exceeds `max_violations` with probability at most 1e-3. So a correct estimator fails such a test
with at most that probability. Seeds are fixed, so a test always passes or always fails.
"""

import math
from functools import cache

import numpy as np
import pytest
from simulated_scores import bound_of, leaky_response, max_violations

from audit import lower_bounds


@pytest.mark.slow
def test_any_analysis_of_a_plan_is_valid() -> None:
    """Randomised response at one threshold; an audit errs if any of its seven analyses errs."""
    rng, epsilon, audits, alpha = np.random.default_rng(23), 1.0, 1000, 0.2
    sizes = lower_bounds.doubling_sizes(1280, first=20)
    assert sizes == (20, 40, 80, 160, 320, 640, 1280)
    counted = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(0.0))
    errors = {"planned": 0, "unplanned": 0, "uncorrected": 0}

    @cache  # The scores are -1 and 1, so their numbers determine the bound.
    def errs(name: str, number: int, low_ones: int, high_ones: int) -> bool:
        low, high = (
            np.repeat([-1.0, 1.0], [sizes[number - 1] - ones, ones])
            for ones in (low_ones, high_ones)
        )
        plan = {
            "planned": len(sizes),
            "unplanned": lower_bounds.SequentialPlan(number=number),
            "uncorrected": None,
        }[name]
        return counted(low, high, 0.0, 1.0 - alpha, plan=plan).epsilon > epsilon

    for _ in range(audits):
        low, high = leaky_response(epsilon, 0.0, rng, sizes[-1])
        ones = [[int((side[:size] > 0.0).sum()) for side in (low, high)] for size in sizes]
        for name in errors:
            errors[name] += any(errs(name, number, *at) for number, at in enumerate(ones, 1))
    assert max(errors["planned"], errors["unplanned"]) <= max_violations(audits, alpha)
    assert errors["uncorrected"] > max_violations(audits, alpha)
    shares = [lower_bounds.SequentialPlan(number=j).share for j in range(1, 2000)]
    assert 0.999 < sum(shares) < 1.0
    for wrong in ({"planned": 0}, {"planned": 3, "number": 4}, {"number": 0}):
        with pytest.raises(ValueError, match="must be a whole number"):
            lower_bounds.SequentialPlan(**wrong)


@pytest.mark.thorough
def test_no_audit_exceeds_max_detectable_epsilon_and_trials_needed_inverts_it() -> None:
    rng = np.random.default_rng(24)
    for trials in (4, 7, 50, 1000):
        most = lower_bounds.max_detectable_epsilon(trials, trials)
        assert lower_bounds.trials_needed(most) == trials
        for mu in (1.0, 4.0, 8.0):
            low, high = rng.normal(size=trials), rng.normal(mu, size=trials)
            assert bound_of(low, high).epsilon <= most
    assert lower_bounds.max_detectable_epsilon(0, 10) == 0.0
    assert lower_bounds.max_detectable_epsilon(
        500, 500, plan=5
    ) < lower_bounds.max_detectable_epsilon(500, 500)
    assert lower_bounds.max_detectable_epsilon(
        500, 500, confidence=0.5
    ) > lower_bounds.max_detectable_epsilon(500, 500)
    # 2 n scores all in order: n = log(1 / (0.2 alpha)) / 2 * (e^eps + 1), whatever the size.
    for epsilon in (3.0, 10.0, 40.0):
        expected = math.log(1.0 / 0.01) / 2.0 * (math.exp(epsilon) + 1.0)
        assert lower_bounds.trials_needed(epsilon) == pytest.approx(expected, rel=0.06)
    with pytest.raises(ValueError, match="epsilon must be in"):
        lower_bounds.trials_needed(-1.0)


@pytest.mark.slow
@pytest.mark.parametrize("error", [4e-5, 1e-5, 1e-7, 2e-9])
def test_trials_grow_with_the_logarithm_of_the_error(error: float) -> None:
    usual = lower_bounds.trials_needed(3.0, 1e-5, 0.95)
    found = lower_bounds.trials_needed(3.0, 1e-5, 1.0 - error)
    assert usual < found <= usual * math.log(error) / math.log(0.05)


@pytest.mark.thorough
@pytest.mark.parametrize(("epsilon", "reveals"), [(0.5, 0.8), (1.0, 0.9), (2.5, 0.97), (4.0, 0.99)])
def test_the_number_of_trials_is_enough_for_a_perfect_attack_only(
    epsilon: float, reveals: float
) -> None:
    """Every audit of separated scores proves epsilon, none with a trial less, and few weaker ones.

    The weaker attack on the same mechanism mistakes a share of its trials for the other data set.
    """
    rng, audits = np.random.default_rng(25), 30
    needed = lower_bounds.trials_needed(epsilon)
    proved = {"perfect": 0, "one less": 0, "weaker": 0, "weaker, more trials": 0}
    for _ in range(audits):
        low, high = rng.random(4 * needed), 1.0 + rng.random(4 * needed)
        weaker = np.where(rng.random((2, 4 * needed)) < reveals, [low, high], [high, low])
        for name, trials, scores in (
            ("perfect", needed, (low, high)),
            ("one less", needed - 1, (low, high)),
            ("weaker", needed, weaker),
            ("weaker, more trials", 4 * needed, weaker),
        ):
            proved[name] += bound_of(*(side[:trials] for side in scores)).epsilon >= epsilon
    assert proved["perfect"] == audits
    assert proved["one less"] == 0
    assert proved["weaker"] < min(audits // 2, proved["weaker, more trials"])
