"""Records that suppress a step, and records that are not finite.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import numpy as np
import pytest
from premise_reports import report
from scipy import stats

from audit.loop.premises.verdicts import two_sample_p_value
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.fourth_turn import FOURTH_TURN
from benchmarks.training_loops.loops import Loop

pytestmark = pytest.mark.usefixtures("little_work")


# `make test` has a step that is left out, and another number of steps that depends on a record.
@pytest.mark.slow
def test_a_suppressed_step_is_reported_as_such() -> None:
    found = report(FOURTH_TURN["a batch with an error is skipped"])
    assert found.findings[0].kind == "number of steps"
    assert found.findings[0].numbers["one"] == 6
    assert found.findings[0].numbers["other"] == 0


@pytest.mark.slow
def test_records_that_are_not_finite_are_only_noted_where_they_are_released() -> None:
    found = report(Control(Loop()))
    assert not found.broken
    assert any("the epsilon holds for finite records" in note for note in found.notes)


def test_the_p_value_of_two_samples_is_at_least_the_exact_one() -> None:
    random = np.random.default_rng(0)
    for size in (3, 8, 20):
        for shift in (0.0, 1.0, 3.0):
            ours, theirs = random.normal(size=size), random.normal(shift, size=size)
            exact = float(stats.ks_2samp(ours, theirs, method="exact").pvalue)
            bound = two_sample_p_value(ours.tolist(), theirs.tolist())
            assert exact <= bound * (1 + 1e-9)
            assert bound <= max(2 * exact, 1e-300)
    p_values = [
        two_sample_p_value(*random.integers(0, 4, size=(2, 20)).tolist()) for _ in range(400)
    ]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05  # conservative for whole numbers
