"""Writes the results of an audit into its folders."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from audit import console
from audit.game import store
from audit.game.audit_loop import TrialsOfViews
from audit.game.settings import AuditConfig
from audit.game.setup import SetUp
from audit.report import assemble, pictures, provenance, summary, tables
from audit.report.results import Report


def write_reports(
    views: Sequence[AuditConfig],
    set_ups: Sequence[SetUp],
    folder: store.RunFolder,
    trials: TrialsOfViews,
) -> list[Report]:
    """Computes and writes the report of every view of the runs."""
    made, progress = provenance.made(), partial(console.with_bar, unit="budget")
    reports = []
    for view, (of_view, of_trials) in enumerate(zip(views, trials, strict=True)):
        report = assemble.assemble(of_view, set_ups, of_trials, view, made, progress)
        folder.check_same()  # The folder may have changed if its file system has no locks.
        results = Path(of_view.out)
        store.write_text(results / "results.csv", tables.to_csv(tables.to_table(report)))
        store.write_text(results / "summary.json", summary.to_json(report))
        pictures.draw(report, results / "figure.png")
        pictures.draw_scores(report, of_trials, results / "scores.png")
        reports.append(report)
    return reports
