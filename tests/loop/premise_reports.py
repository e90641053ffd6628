"""Reports of the differential test about controls."""

from typing import Any

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.sixth_torch import sixty


def report(control: Control, **options: Any) -> Any:
    """The report about a control on its own records."""
    records = TrainingSet.of(control.data())
    return check_premises(control.train, records, relation=control.relation, **options).report


def broken_premises(train: Any) -> list[str]:
    """The broken premises of a function on sixty records, in the order of the report."""
    findings = check_premises(train, TrainingSet.of(sixty())).report.findings
    return [finding.premise for finding in findings]
