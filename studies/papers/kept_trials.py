"""Trials of finished games, small enough to be kept in the repository.

An audit writes a shard for every block of trials. `keep` joins the shards to one compressed file
per view, so that bounds can be recomputed without training: `python -m studies.table3.keep
runs/table3-*/`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.game.settings import AuditConfig
from audit.game.store import read_settings

_SHARD = re.compile(r"budget(\d+)-repeat(\d+)-block(\d+)-?(.*)\.npz")
_PER_TRIAL = (
    "trial",
    "bit",
    "runs",
    "candidate",
    "score",
    "lambda_a",
    "lambda_known",
    "lambda_start",
    "lambda_end",
)
_PER_RUN = ("run_score", "run_lambda_a")
_SMALLER: dict[str, type] = {
    "trial": np.int32,
    "runs": np.int32,
    "candidate": np.int8,
    "run_lambda_a": np.float32,
}


@dataclass(frozen=True)
class KeptGame:
    """The trials of one view at one budget, all repeats.

    Attributes:
        name: name of the preset.
        config: the settings of this view.
        epsilon: eps_B.
        noise_multiplier: the noise multiplier for which one run costs eps_B.
        threshold: threshold of the worst-order score on the standardised lambda_a; None for other
            scores.
        split_top: where the worst-order score splits; None for other scores.
        planned: number of trials that the preset plans at this budget.
        repeat: [T] number of the repeat that each trial belongs to.
        columns: the columns of `audit.game.play.Trials`, of trials [T] and of runs [R].
            Of the runs, only the columns that a bound uses are kept.
    """

    name: str
    config: AuditConfig
    epsilon: float
    noise_multiplier: float
    threshold: float | None
    split_top: float | None
    planned: int
    repeat: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    @property
    def mu(self) -> float:
        """mu of one run's Gaussian mechanism."""
        return float(np.sqrt(self.config.steps) / self.noise_multiplier)

    @property
    def bit(self) -> NDArray[np.bool_]:
        """[T] whether the canary was in the data."""
        return self.columns["bit"]

    @property
    def has_runs(self) -> bool:
        """Whether the score of every run is kept."""
        return "run_score" in self.columns


def keep(folder: Path, out: Path) -> list[Path]:
    """Joins the shards of an audit, finished or not, to one file per view.

    An unfinished audit keeps, at each budget and repeat, the blocks before the first missing one.
    Returns the paths of the written files.

    Raises:
        ValueError: the folder holds no audit or no trials.
    """
    settings, bound_to = read_settings(folder)
    blocks: dict[tuple[str, int, int], dict[int, Path]] = defaultdict(dict)
    for path in (folder / "shards").glob("*.npz"):
        if match := _SHARD.fullmatch(path.name):
            budget, repeat, block, view = match.groups()
            blocks[view, int(budget), int(repeat)][int(block)] = path
    if not blocks:
        raise ValueError(f"folder must hold the trials of an audit, got {str(folder)!r}")
    views = sorted({view for view, _, _ in blocks})
    # All views of a budget keep the same trials.
    counts = {
        game: min(_blocks_in_order(blocks[view, *game]) for view in views)
        for game in {key[1:] for key in blocks}
    }
    out.mkdir(parents=True, exist_ok=True)
    return [
        _keep_view(folder.name, view, blocks, counts, settings, bound_to, out) for view in views
    ]


def _blocks_in_order(blocks: dict[int, Path]) -> int:
    """How many blocks there are before the first missing one."""
    return next(number for number in range(len(blocks) + 1) if number not in blocks)


def _keep_view(
    name: str,
    view: str,
    blocks: dict[tuple[str, int, int], dict[int, Path]],
    counts: dict[tuple[int, int], int],
    settings: dict[str, Any],
    bound_to: dict[str, Any],
    out: Path,
) -> Path:
    parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
    used = (*_PER_TRIAL, *_used_per_run(_view(AuditConfig.from_mapping(settings), view)))
    for (budget, repeat), count in sorted(counts.items()):
        for number in range(count):
            with np.load(blocks[view, budget, repeat][number], allow_pickle=False) as shard:
                for column in used:
                    if column in shard:
                        parts[column].append(shard[column])
                trials = len(shard["bit"])
            parts["budget"].append(np.full(trials, budget, np.int8))
            parts["repeat"].append(np.full(trials, repeat, np.int8))
    columns = {
        column: np.concatenate(arrays).astype(_SMALLER.get(column, arrays[0].dtype))
        for column, arrays in parts.items()
    }
    # The machine's folder of data sets says nothing about the trials.
    settings = {**settings, "data_root": ""}
    described = {"view": view, "settings": settings, "fixed": bound_to["fixed"]}
    path = out / f"{name}{'-' if view else ''}{view}.npz"
    text = np.array(json.dumps(described))
    np.savez_compressed(path, allow_pickle=False, described=text, **columns)
    return path


def _used_per_run(config: AuditConfig) -> tuple[str, ...]:
    """The columns of runs that a statistic or a bound of `table3` uses."""
    if config.threat != "ETCV" or config.canary != "dirac":
        return ("run_score",)
    return () if config.score == "worst-order" else ("run_lambda_a",)


def _view(whole: AuditConfig, view: str) -> AuditConfig:
    """The settings of one view of an audit."""
    return dict(zip(whole.view_names, whole.views, strict=True))[view]


def load(path: Path) -> Iterator[KeptGame]:
    """The games of a file that `keep` wrote, one per budget with trials."""
    with np.load(path, allow_pickle=False) as file:
        described = json.loads(str(file["described"]))
        columns = {column: file[column] for column in file.files if column != "described"}
    all_views = AuditConfig.from_mapping(described["settings"])
    config = _view(all_views, described["view"])
    of_run = np.repeat(columns["budget"], columns["runs"])
    for budget in np.unique(columns["budget"]):
        fixed = described["fixed"][budget]
        in_trials, in_runs = columns["budget"] == budget, of_run == budget
        of_budget = {
            column: values[in_runs if column in _PER_RUN else in_trials]
            for column, values in columns.items()
            if column not in ("budget", "repeat")
        }
        yield KeptGame(
            name=path.stem,
            config=config,
            epsilon=all_views.epsilon[budget],
            noise_multiplier=fixed["noise_multiplier"],
            threshold=fixed["threshold"],
            split_top=fixed["split_top"],
            planned=all_views.trials * all_views.repeats,
            repeat=columns["repeat"][in_trials].astype(np.int64),
            columns=of_budget,
        )
