"""Loops of arrays and of later reports: mistakes are found, and no correct loop is accused."""

import pytest
from premise_reports import report

arrays = pytest.importorskip(
    "benchmarks.training_loops.arrays", reason="JAX, optax or jax_privacy is not installed"
)
later = pytest.importorskip("benchmarks.training_loops.later_reports")
threads = pytest.importorskip("benchmarks.training_loops.public_threads")
fifth = pytest.importorskip("benchmarks.training_loops.fifth_turn")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook"),
]

MISTAKES = arrays.ARRAYS | later.LATER_REPORTS | threads.PUBLIC_THREADS | fifth.FIFTH_TURN
CORRECT = arrays.ARRAYS_CORRECT | later.LATER_REPORTS_CORRECT | threads.PUBLIC_THREADS_CORRECT
CORRECT |= fifth.FIFTH_TURN_CORRECT


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    premises = report(MISTAKES[name])
    assert premises.broken, str(premises)


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_loop_is_not_accused(name: str) -> None:
    premises = report(CORRECT[name])
    assert not premises.broken, str(premises)
