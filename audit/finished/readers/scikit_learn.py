"""scikit-learn: `cv_results_`, or a search that was fitted.

Each candidate is trained once per split. With several splits, every record trains some models and
validates others. A score on private validation records is not a function of the model's output
alone, so no bound on the selection holds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.errors import InvalidInput
from audit.finished.material import GRID, RANDOM, SEQUENTIAL, Evidence, Material, RecordedRun
from audit.finished.readers.registry import ReadOptions, TableFormat, reader, table_format

_SCORE = re.compile(
    r"(?:mean|std|rank|split\d+)_(?:test|train)_\w+|(?:mean|std)_(?:fit|score)_time"
)
_SPLIT = re.compile(r"split(\d+)_test_\w+")
_SEARCHES = {"GridSearchCV": GRID, "RandomizedSearchCV": RANDOM}
_CROSS_VALIDATED = (
    "each candidate was trained on {splits} splits, so its score is computed on private records "
    "that other splits train on, and no bound on the choice by such a score is known; with one "
    "split of public validation records, there is one"
)


def is_search_table(source: Any) -> bool:
    """Whether a source is `cv_results_`: a mapping of columns with `params`."""
    return (
        isinstance(source, Mapping)
        and "params" in source
        and any(str(name).startswith(("mean_test_", "rank_test_", "split0_")) for name in source)
    )


@reader(
    "scikit-learn", lambda source: is_search_table(source) or hasattr(source, "cv_results_"), 10
)
def read_search(source: Any, options: ReadOptions) -> Material:
    """The runs of a search of scikit-learn."""
    if hasattr(source, "cv_results_"):
        return material_of_search(source.cv_results_, "the search", type(source).__name__)
    return material_of_search(source, "cv_results_")


def material_of_search(table: Mapping[str, Any], name: str, kind: str = "") -> Material:
    """The runs of `cv_results_`: one per candidate."""
    params = [dict(candidate) for candidate in table["params"]]
    if not params:
        raise InvalidInput(f"{name} must have at least one candidate, got none")
    runs = tuple(
        RecordedRun({f"param_{key}": value for key, value in candidate.items()}, f"{name}, row {i}")
        for i, candidate in enumerate(params)
    )
    return _material(name, runs, [str(column) for column in table], kind)


def _material(
    name: str, runs: tuple[RecordedRun, ...], columns: Sequence[str], kind: str = ""
) -> Material:
    splits = len({match.group(1) for match in map(_SPLIT.fullmatch, columns) if match})
    columns_of_runs = frozenset(column for run in runs for column in run.values)
    return Material(
        name,
        runs,
        _evidence(columns, kind),
        parameters=columns_of_runs,
        trainings=max(splits, 1),
        no_bound=_CROSS_VALIDATED.format(splits=splits) if splits > 1 else "",
    )


def _evidence(columns: Sequence[str], kind: str = "") -> Evidence:
    if {"iter", "n_resources"} <= set(columns) or kind.startswith("Halving"):
        return Evidence(SEQUENTIAL, ("successive halving drops candidates by their results",))
    method = _SEARCHES.get(kind)
    return Evidence(method, (f"the search is a {kind}",)) if method else Evidence()


def _is_export(columns: Sequence[str]) -> bool:
    return "params" in columns and any(column.startswith("mean_test_") for column in columns)


def _with_splits(material: Material, columns: Sequence[str]) -> Material:
    """The runs of an exported table, each of which was trained once per split."""
    splits = len({match.group(1) for match in map(_SPLIT.fullmatch, columns) if match})
    if splits < 2:
        return material
    return replace(material, trainings=splits, no_bound=_CROSS_VALIDATED.format(splits=splits))


table_format(
    TableFormat(
        "scikit-learn",
        _is_export,
        lambda column: (
            column in ("params", "iter", "n_resources") or _SCORE.fullmatch(column) is not None
        ),
        lambda rows: _evidence(list(rows[0])),
        lambda column: column.startswith("param_"),
        _with_splits,
    )
)
