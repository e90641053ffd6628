"""Keras Tuner: a project folder, with `oracle.json` and one folder per trial."""

import json
from pathlib import Path
from typing import Any

from audit.errors import InvalidInput
from audit.finished.material import COMPLETE, SEQUENTIAL, Evidence, Material, RecordedRun, state_of
from audit.finished.readers.registry import ReadOptions, is_folder_with, read_text, reader, shown

_MARKS = (
    ({"hyperband_iterations", "brackets"}, "Hyperband, which drops candidates by their results"),
    ({"num_initial_points"}, "Bayesian optimisation"),
)
"""Keys of `oracle.json` by which the oracle is known."""


def _is_project(folder: Path) -> bool:
    return (folder / "oracle.json").is_file() and any(folder.glob("trial_*/trial.json"))


@reader("Keras Tuner", is_folder_with(_is_project), place=340)
def read_project(source: Any, options: ReadOptions) -> Material:
    """The runs of a project of Keras Tuner."""
    root = Path(source)
    name = f"Keras Tuner {shown(root)}"
    runs = []
    for path in sorted(root.glob("trial_*/trial.json")):
        try:
            trial = json.loads(read_text(path))
            values = dict(trial["hyperparameters"]["values"])
            state = state_of(trial.get("status") or "COMPLETED") or COMPLETE
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InvalidInput(
                f"source must be a project of Keras Tuner, got {name}, whose "
                f"{path.parent.name}/{path.name} is not understood"
            ) from None
        standard_names: dict[str, str] = {} if "epochs" in values else {"tuner/epochs": "epochs"}
        runs.append(
            RecordedRun(
                {standard_names.get(str(key), str(key)): cell for key, cell in values.items()},
                f"{name}, {path.parent.name}",
                state,
            )
        )
    columns = frozenset(column for run in runs for column in run.values)
    bookkeeping = frozenset(column for column in columns if column.startswith("tuner/"))
    return Material(name, tuple(runs), _evidence(root, runs), bookkeeping, columns - bookkeeping)


def _evidence(root: Path, runs: list[RecordedRun]) -> Evidence:
    try:
        keys = set(json.loads(read_text(root / "oracle.json")))
    except (ValueError, TypeError, RecursionError):
        keys = set()
    if any(column.startswith("tuner/bracket") for run in runs for column in run.values):
        keys.add("brackets")
    for marks, oracle in _MARKS:
        if marks & keys:
            return Evidence(SEQUENTIAL, (f"the oracle is {oracle}",))
    return Evidence()
