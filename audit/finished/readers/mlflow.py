"""MLflow: a file store, or the csv of `search_runs`.

A run that only groups other runs, and has no parameter of its own, is no training and is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.finished.columns import is_missing
from audit.finished.material import COMPLETE, FAILED, RUNNING, Evidence, Material, RecordedRun
from audit.finished.readers.registry import (
    ReadOptions,
    TableFormat,
    is_folder_with,
    read_text,
    read_yaml,
    reader,
    shown,
    table_format,
)

_STATES = {1: RUNNING, 2: RUNNING, 3: COMPLETE, 4: FAILED, 5: FAILED}
"""States of runs by the numbers in `meta.yaml`: running, scheduled, finished, failed, killed."""

_PARENT = "tags.mlflow.parentRunId"
_KEPT = ("params.",)
_OWN = (
    "run_id",
    "experiment_id",
    "artifact_uri",
    "start_time",
    "end_time",
    "run_uuid",
    "run_name",
    "user_id",
    "source_type",
)


def _is_run(folder: Path) -> bool:
    return (folder / "meta.yaml").is_file() and (folder / "params").is_dir()


def _is_experiment(folder: Path) -> bool:
    return (folder / "meta.yaml").is_file() and any(map(_is_run, _folders(folder)))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _is_store(folder: Path) -> bool:
    return _is_experiment(folder) or any(map(_is_experiment, _folders(folder)))


@reader("MLflow", is_folder_with(_is_store), place=300)
def read_store(source: Any, options: ReadOptions) -> Material:
    """The runs of one experiment of a file store (`mlruns`), deleted runs included."""
    root = Path(source)
    name = f"MLflow {shown(root)}"
    experiments = [root] if _is_experiment(root) else list(filter(_is_experiment, _folders(root)))
    titles = [str(read_yaml(path / "meta.yaml").get("name", path.name)) for path in experiments]
    if options.study is not None:
        experiments = [
            path
            for path, title in zip(experiments, titles, strict=True)
            if options.study in (title, path.name)
        ]
    if len(experiments) != 1:
        raise InvalidInput(
            f"study must name one of the experiments {', '.join(map(checks.one_line, titles))} of "
            f"{name}, got {checks.one_line(options.study)}"
        )
    runs, parents = [], {}
    for folder in filter(_is_run, _folders(experiments[0])):
        meta = read_yaml(folder / "meta.yaml")
        values = {f"params.{path.name}": read_text(path) for path in _files(folder / "params")}
        tags = {path.name: read_text(path).strip() for path in _files(folder / "tags")}
        runs.append((folder.name, meta, values))
        parents[folder.name] = tags.get("mlflow.parentRunId", "")
    groups = set(parents.values())
    trained = [
        (meta, values) for name_of_run, meta, values in runs if values or name_of_run not in groups
    ]
    return Material(
        name,
        tuple(
            RecordedRun(
                values,
                f"{name}, run {meta.get('run_name') or meta.get('run_id')}",
                _STATES.get(meta.get("status"), FAILED),
            )
            for meta, values in trained
        ),
        _evidence_of_groups(len(runs) - len(trained)),
        parameters=frozenset(column for _, values in trained for column in values),
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


def _evidence_of_groups(groups: int) -> Evidence:
    if not groups:
        return Evidence()
    subject = "1 run groups" if groups == 1 else f"{groups} runs group"
    return Evidence(remarks=(f"{subject} other runs, without parameters, and does not count",))


def _without_groups(material: Material, columns: Sequence[str]) -> Material:
    """The runs of `search_runs` without those that only group others."""
    parents = {run.values.get(_PARENT) for run in material.runs}
    trained = [
        run
        for run in material.runs
        if run.values.get("run_id") not in parents or _has_parameters(run.values)
    ]
    return replace(
        material,
        runs=tuple(trained),
        evidence=_evidence_of_groups(len(material.runs) - len(trained)),
    )


def _has_parameters(values: Mapping[str, Any]) -> bool:
    return any(name.startswith("params.") and not is_missing(cell) for name, cell in values.items())


table_format(
    TableFormat(
        "MLflow",
        lambda columns: {"run_id", "experiment_id"} <= set(columns),
        lambda column: column in _OWN or column.startswith("tags."),
        parameters=lambda column: column.startswith("params."),
        complete=_without_groups,
    )
)
