"""The table of gaps: its attack on the best m of K runs, against simulation and known values."""

import math

import numpy as np
import pytest

from audit import repetitions, upper_bounds
from audit.accounting import GaussianMechanism
from audit.protocols import BestRuns
from studies.gaps import _chance, best_runs_attack, gaps

DELTA = 1e-5


@pytest.mark.parametrize("spec", ["fixed:4", "tnb:1,0.2", "poisson:3"])
def test_chances_of_the_event_are_those_of_simulated_tunings(spec: str) -> None:
    """40,000 tunings; the tolerance is 5 standard errors, so an error rate below 1e-5."""
    law, rng, trials = repetitions.parse_repetitions(spec), np.random.default_rng(3), 40_000
    front, rare = 0.15, 0.3
    for released, detected in ((1, 1), (3, 1), (3, 2)):
        k = law.sample(rng, trials)
        ahead = rng.binomial(k, front)
        second = rng.binomial(k - ahead, rare / (1.0 - front))
        shown = np.minimum(second, np.maximum(released - ahead, 0))
        rate = float((shown >= detected).mean())
        exact = float(_chance(law, released, detected, np.array(front), np.array(rare)))
        assert rate == pytest.approx(exact, abs=5.0 * math.sqrt(0.25 / trials))


def test_the_attack_is_below_the_bound_and_near_the_worst_order_for_one_run() -> None:
    base = GaussianMechanism(0.24721)
    one = best_runs_attack(base, BestRuns("tnb:0,0.01", released=1), DELTA)
    assert 0.99 < one / upper_bounds.worst_order(base, "tnb:0,0.01", DELTA).epsilon <= 1.0
    three = best_runs_attack(base, BestRuns("tnb:0,0.01", released=3), DELTA)
    assert 0.9 < three / upper_bounds.tuning_cost(base, "best:3/tnb:0,0.01", DELTA).epsilon < 1.0


def test_a_row_states_the_cost_before_now_and_the_attack() -> None:
    (gap,) = gaps([(GaussianMechanism(0.24721), "best:3/tnb:0,0.01")])
    assert gap.attained < gap.cost < gap.before
    assert gap.row.startswith("| ")
    assert gap.row.count("|") == 7
