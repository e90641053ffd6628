"""Mistakes of kinds that earlier versions did not see, their causes, and similar correct loops.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import re
from typing import Any

import pytest
from premise_reports import report

from benchmarks.training_loops import fourth_turn
from benchmarks.training_loops.broken import BROKEN
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.fourth_turn import CAUSES, FOURTH_TURN, FOURTH_TURN_CORRECT
from benchmarks.training_loops.loops import Loop

pytestmark = pytest.mark.usefixtures("little_work")

QUICK = (
    "a batch with a value above 50 is skipped",
    "overlapping windows of four rows",
)


QUICK_CORRECT = ("make_private with one batch, at default settings",)


def cases(names: Any, quick: Any) -> list[Any]:
    # The quick ones do all work: with less, it depends on the processor's rounding what is found.
    return [
        pytest.param(name, marks=pytest.mark.full_work if name in quick else pytest.mark.slow)
        for name in names
    ]


@pytest.mark.parametrize("name", cases(FOURTH_TURN, QUICK))
def test_a_mistake_is_found(name: str) -> None:
    found = report(FOURTH_TURN[name])
    assert found.broken, str(found)


@pytest.mark.parametrize("name", cases(FOURTH_TURN_CORRECT, QUICK_CORRECT))
def test_a_correct_loop_is_not_accused(name: str) -> None:
    found = report(FOURTH_TURN_CORRECT[name])
    assert not found.broken, str(found)
    if "random number of steps" not in name:  # whose noise is not tested
        assert not found.inconclusive, str(found)


@pytest.mark.parametrize("name", cases(CAUSES, list(CAUSES)[2:3]))
def test_the_first_cause_leads_to_the_mistake(name: str) -> None:
    control, words = CAUSES[name]
    found = report(control)
    assert words in found.findings[0].cause, str(found)


@pytest.mark.slow
def test_a_statistic_over_records_is_located() -> None:
    found = report(BROKEN["features centered by the batch mean"])
    cause = found.findings[0].cause
    assert re.search(r"mostly in `[\w.]+` of Linear, before the step in loops\.py:\d+\)", cause)


@pytest.mark.slow
def test_too_much_noise_is_a_sentence() -> None:
    found = report(Control(Loop(noise=fourth_turn.times(48.0))))
    assert not found.broken
    (note,) = (note for note in found.notes if "times as much noise" in note)
    assert float(note.split()[2]) == pytest.approx(48.0, rel=0.1)
    assert not [n for n in report(Control(Loop())).notes if "times as much noise" in n]
