"""Loops by Opacus, for which the number of records is public.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import pytest

import audit
from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from benchmarks.training_loops import loops
from benchmarks.training_loops.opacus_loops import Private

pytestmark = pytest.mark.usefixtures("little_work")

DATA = TrainingSet.of(loops.dense())


@pytest.mark.parametrize(
    "size", [24, pytest.param(8, marks=pytest.mark.slow)], ids=["one batch", "three batches"]
)
def test_make_private_is_attacked_under_zero_out(size: int) -> None:
    found = audit.check(Private(batch_size=size), loops.dense(), jobs=1, trials=40)
    assert found.exit_code == 0, str(found)
    assert found.trials == 40
    assert found.premises.relation == "zero-out"
    notes = [note for note in found.premises.notes if "number of records is public" in note]
    assert len(notes) == 1
    assert str(found).count("the number of records is public") == 2  # the relation, and the note


@pytest.mark.slow
def test_add_remove_still_reports_the_dependence_on_n() -> None:
    found = check_premises(Private(batch_size=24), DATA, relation="add-remove").report
    assert [finding.premise for finding in found.findings] == ["number of records"]
