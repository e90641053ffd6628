"""Hydra: the folder of a multirun, with one folder per job."""

from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.finished.material import (
    GRID,
    RANDOM,
    SEQUENTIAL,
    Evidence,
    Material,
    RecordedRun,
    flattened,
)
from audit.finished.readers.registry import ReadOptions, is_folder_with, read_yaml, reader, shown

_CONFIG = Path(".hydra", "config.yaml")
_SAMPLERS = {"RandomSampler": RANDOM, "GridSampler": GRID}


def _jobs(folder: Path) -> list[Path]:
    jobs = [path.parents[1] for path in folder.rglob(str(_CONFIG))]
    return sorted(jobs, key=lambda path: (len(path.name), path.name))


@reader("Hydra", is_folder_with(lambda folder: bool(_jobs(folder))), place=330)
def read_multirun(source: Any, options: ReadOptions) -> Material:
    """The runs of a multirun of Hydra."""
    root = Path(source)
    name = f"Hydra {shown(root)}"
    runs, changed = [], set()
    for job in _jobs(root):
        values = read_yaml(job / _CONFIG) or {}
        overrides = job / ".hydra" / "overrides.yaml"
        if not isinstance(values, dict):
            raise InvalidInput(f"{name} must have a mapping as {_CONFIG}, got another in {job}")
        if overrides.is_file():
            lines = read_yaml(overrides) or []
            changed |= {
                str(line).partition("=")[0].lstrip("+~").replace(".", "/") for line in lines
            }
        runs.append(RecordedRun(flattened(values), f"{name}, job {job.name}"))
    return Material(name, tuple(runs), _evidence(root), parameters=frozenset(changed))


def _evidence(root: Path) -> Evidence:
    """The sweeper, from the settings that Hydra saves."""
    settings = sorted(root.rglob("multirun.yaml")) or sorted(root.rglob("hydra.yaml"))
    targets = set()
    for path in settings:
        content = read_yaml(path) or {}
        sweeper = (content.get("hydra") or {}).get("sweeper") or {}
        sampler = sweeper.get("sampler")
        targets.add(
            (
                str(sweeper.get("_target_", "")).rpartition(".")[2],
                str(sampler.get("_target_", "")).rpartition(".")[2]
                if isinstance(sampler, dict)
                else "",
            )
        )
    if len(targets) != 1:
        return Evidence()
    sweeper_name, sampler_name = targets.pop()
    if sweeper_name == "BasicSweeper":
        return Evidence(GRID, ("Hydra's basic sweeper runs a list that is given beforehand",))
    if sampler_name in _SAMPLERS:
        return Evidence(_SAMPLERS[sampler_name], (f"the sweeper of Hydra used {sampler_name}",))
    if not sweeper_name:
        return Evidence()
    used = sampler_name or sweeper_name
    return Evidence(SEQUENTIAL, (f"the sweeper of Hydra was {checks.printable(used)[:60]}",))
