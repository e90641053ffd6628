"""Which records a batch holds, and how often each of them is used.

The statistical tests have fixed seeds, and state their error.
"""

from typing import Any

import numpy as np
import pytest
from premise_reports import report
from scipy import stats

from audit.loop.premises.inclusions import (
    Inclusions,
    _Decoder,
    detectable_ratio,
    judge_used_records,
    tries_to_see,
)
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop


def test_a_sum_of_contributions_is_decoded() -> None:
    random = np.random.default_rng(0)
    columns = random.normal(size=(5, 30))
    decode = _Decoder.of(columns)
    for _ in range(50):
        inside = random.integers(0, 2, size=5).astype(float)
        decoded = decode(inside @ columns, 0.0)
        assert decoded is not None
        assert np.array_equal(decoded, inside)
    assert decode(columns[0] * 0.5, 0.0) is None
    assert decode(2 * columns[0], 0.0) is None
    assert decode(random.normal(size=30), 0.0) is None


def test_equal_contributions_are_not_decoded() -> None:
    columns = np.random.default_rng(0).normal(size=(3, 30))
    columns[2] = columns[0]
    assert not len(_Decoder.of(columns).places)


def drawn(random: Any, rate: float, members: float, runs: int = 60, per_run: bool = False) -> Any:
    """Poisson samples at `rate`, of a share of 8 records."""
    used = random.random((runs if per_run else 1, 1, 8)) < members
    return Inclusions(((random.random((runs, 8, 8)) < rate) & used).astype(float))


def test_used_records_are_tested_at_the_stated_level() -> None:
    # Correct draws: p-values are at least uniform (conservative), also where a fifth is left out.
    random = np.random.default_rng(1)
    p_values = [
        test.p_value
        for members in (1.0, 0.8)
        for _ in range(150)
        for test in judge_used_records(drawn(random, 0.3, members), 0.3)
    ]
    assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 1e-3
    assert min(p_values) > 1e-4


@pytest.mark.parametrize("per_run", [False, True])
def test_a_part_at_the_rate_of_all_is_found(per_run: bool) -> None:
    random = np.random.default_rng(2)
    tests = judge_used_records(drawn(random, 0.375, 0.8, 100, per_run), 0.3)
    assert min(test.p_value for test in tests if test.matters) < 1e-8


def test_the_power_of_the_test_of_rates_is_as_stated() -> None:
    # The rate that is found with 80 %: 400 simulations err by 2 % (one standard error).
    random = np.random.default_rng(3)
    tries, rate = 3000, 0.3
    ratio = detectable_ratio(tries, rate)
    assert tries_to_see(ratio, rate) == pytest.approx(tries, rel=1e-6)
    hits = random.binomial(tries, ratio * rate, size=400)
    shown = stats.binom.sf(hits - 1, tries, rate) < 1e-5 / 500
    assert shown.mean() == pytest.approx(0.8, abs=0.08)


@pytest.mark.slow
def test_the_verdict_states_the_rate_that_is_found() -> None:
    found = report(Control(Loop(sampling_rate=0.3, steps=8)))
    assert found.measured["detectable rate"] <= 1.2
    assert "times as often as accounted are found with 80 % probability" in found.power
