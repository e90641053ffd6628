"""Reports of the differential test about controls."""

from typing import Any

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from benchmarks.training_loops.correct import Control


def report(control: Control, **options: Any) -> Any:
    """The report about a control on its own records."""
    records = TrainingSet.of(control.data())
    return check_premises(control.train, records, relation=control.relation, **options).report
