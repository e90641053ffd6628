"""Bounds from one run with many canaries.

A violation is a bound above the true value. If the true rate is 5 %, the number of violations
exceeds `max_violations` with probability at most 1e-3. So a correct estimator fails such a test
with at most that probability. Seeds are fixed, so a test always passes or always fails.
"""

import math

import numpy as np
import pytest
from scipy import stats
from simulated_scores import DELTA, max_violations

from audit import lower_bounds
from audit.accounting import GaussianMechanism
from audit.lower_bounds import one_run


def test_one_run_bounds_are_valid() -> None:
    rng = np.random.default_rng(12)
    audits, canaries, epsilon, mu = 30, 200, 1.0, 1.0
    gaussian_epsilon = GaussianMechanism(mu).epsilon(DELTA)
    above: dict[str, int] = {}
    for _ in range(audits):
        coins = rng.random(canaries) < 0.5
        honest = rng.random(canaries) < math.exp(epsilon) / (1.0 + math.exp(epsilon))
        answers = np.where(honest, coins, ~coins).astype(float)
        normal = rng.normal(size=canaries) + mu * coins
        for scores, true_epsilon in [(answers, epsilon), (normal, gaussian_epsilon)]:
            for bound in lower_bounds.one_run_bounds(scores, coins, DELTA, guesses=canaries // 2):
                if true_epsilon == epsilon and bound.name == "one-run-gaussian-curve":
                    continue
                key = f"{bound.key} {true_epsilon:.1f}"
                above[key] = above.get(key, 0) + (bound.epsilon > true_epsilon)
    assert len(above) == 6
    assert max(above.values()) <= max_violations(audits)
    assert above["one-run:fixed 1.0"] > 0  # randomised response is the least favourable case


def test_one_run_p_value_equals_the_theorem() -> None:
    # All r guesses are correct, and delta = 0: q^r.
    q = math.exp(2.0) / (1.0 + math.exp(2.0))
    assert one_run.p_value(50, 20, 20, 2.0, 0.0) == pytest.approx(q**20)
    assert one_run.p_value(50, 20, 0, 2.0, 0.0) == 1.0
    by_hand = stats.binom.sf(14, 20, q)
    slope = max((stats.binom.sf(14 - i, 20, q) - by_hand) / i for i in range(1, 16))
    expected = by_hand + 2 * 50 * 1e-4 * slope
    assert one_run.p_value(50, 20, 15, 2.0, 1e-4) == pytest.approx(expected)
