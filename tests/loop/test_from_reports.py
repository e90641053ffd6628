"""Mistakes after public reports, and correct loops, in torch, numpy and JAX."""

import pytest
from premise_reports import report

reports = pytest.importorskip(
    "benchmarks.training_loops.from_reports", reason="JAX, optax or jax_privacy is not installed"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook"),
]


@pytest.mark.parametrize("name", reports.FROM_REPORTS)
def test_a_mistake_is_found(name: str) -> None:
    found = report(reports.FROM_REPORTS[name])
    assert found.broken, str(found)


@pytest.mark.parametrize("name", reports.FROM_REPORTS_CORRECT)
def test_a_correct_loop_is_not_accused(name: str) -> None:
    found = report(reports.FROM_REPORTS_CORRECT[name])
    assert not found.broken, str(found)
