"""Writes the results of an audit, with their provenance, into its folders."""

import datetime
import os
import platform
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from audit import console
from audit.game import store
from audit.game.audit_loop import TrialsOfViews
from audit.game.settings import AuditConfig
from audit.game.setup import SetUp
from audit.report import assemble, pictures, summary, tables
from audit.report.results import Report
from audit.version import __version__

_LIBRARIES = ("numpy", "scipy", "torch", "opacus", "joblib", "pandas")


def provenance() -> dict[str, Any]:
    """Version, date, libraries and hardware, as values for json."""
    return {
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "libraries": {name: _version_of(name) for name in _LIBRARIES},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def write_reports(
    views: Sequence[AuditConfig],
    set_ups: Sequence[SetUp],
    folder: store.RunFolder,
    trials: TrialsOfViews,
) -> list[Report]:
    """Computes and writes the report of every view of the runs."""
    made, progress = provenance(), partial(console.with_bar, unit="budget")
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
