"""Ray Tune: an experiment folder, or the csv of `ResultGrid.get_dataframe`.

Pickled files are not opened. Their names show whether a search algorithm chose the candidates.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.finished.material import (
    COMPLETE,
    SEQUENTIAL,
    Evidence,
    Material,
    RecordedRun,
    flattened,
    state_of,
)
from audit.finished.readers.registry import (
    ReadOptions,
    TableFormat,
    is_folder_with,
    read_text,
    reader,
    shown,
    table_format,
)

_OWN = frozenset(
    {
        *("timestamp", "checkpoint_dir_name", "done", "training_iteration", "trial_id", "date"),
        *("time_this_iter_s", "time_total_s", "pid", "hostname", "node_ip", "time_since_restore"),
        *("iterations_since_restore", "logdir", "experiment_tag", "experiment_id"),
        *("timesteps_total", "episodes_total", "warmup_time"),
    }
)


def _state_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("experiment_state-*.json"))


@reader("Ray Tune", is_folder_with(lambda folder: bool(_state_files(folder))), place=320)
def read_experiment(source: Any, options: ReadOptions) -> Material:
    """The runs of an experiment folder of Ray Tune."""
    root = Path(source)
    name = f"Ray Tune {shown(root)}"
    latest = _state_files(root)[-1]
    try:
        content = json.loads(read_text(latest))
        trials = content.get("trial_data") or content["checkpoints"]
        states = [trial[0] if isinstance(trial, list) else trial for trial in trials]
        states = [json.loads(state) if isinstance(state, str) else state for state in states]
        runs = tuple(
            RecordedRun(
                flattened(state["config"], "config/"),
                f"{name}, trial {state.get('trial_id')}",
                state_of(state.get("status", "TERMINATED")) or COMPLETE,
            )
            for state in states
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"source must be an experiment of Ray Tune, got {name}, whose {latest.name} is not "
            f"understood: {checks.one_line(str(error))}"
        ) from None
    if not runs:
        raise InvalidInput(f"{name} must have at least one run, got none")
    columns = frozenset(column for run in runs for column in run.values)
    return Material(name, runs, _evidence(root), parameters=columns)


def _evidence(root: Path) -> Evidence:
    """A search algorithm saves its state; without one, candidates are made beforehand."""
    if any(root.glob("searcher-state-*")) or any(root.glob("search_gen_state-*")):
        return Evidence(SEQUENTIAL, ("a search algorithm of Ray Tune saved its state",))
    if any(root.glob("basic-variant-state-*")):
        return Evidence(
            remarks=("Ray Tune made the candidates without a search algorithm (a grid or draws)",)
        )
    return Evidence()


def _is_export(columns: Sequence[str]) -> bool:
    return "trial_id" in columns and any(column.startswith("config/") for column in columns)


table_format(
    TableFormat(
        "Ray Tune",
        _is_export,
        lambda column: column in _OWN,
        parameters=lambda column: column.startswith("config/"),
    )
)
