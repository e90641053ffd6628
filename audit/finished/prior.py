"""The prior of random trials, from a table of all candidates and their probabilities."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from audit.accounting import Mechanism, Mixture
from audit.errors import InvalidInput
from audit.finished import readers
from audit.finished.columns import is_missing, listed
from audit.finished.interpretation import interpret
from audit.finished.runs import RunSettings, chance_of

_CHANCES = ("chance", "probability")
_RESEMBLES_CHANCE = frozenset(
    {"chances", "prob", "probabilities", "p", "weight", "weights", "pmf", "frequency", "share"}
)


def read_prior(path: str | Path, mapping: Mapping[str, str], settings: RunSettings) -> Mixture:
    """The prior from a table with one row per candidate.

    Args:
        path: the table, as for the trials; a column `chance` or `probability`, in upper or lower
            case, has the probabilities. Without it, all rows are equally likely.
        mapping: roles of columns.
        settings: what holds for all runs.

    Raises:
        InvalidInput: the table is not understood, or a candidate has no probability.
    """
    try:
        material = readers.read(path, readers.ReadOptions())
    except InvalidInput as error:
        raise InvalidInput(f"prior: {error}") from None
    columns = [name for name in material.columns if name.strip().lower() in _CHANCES]
    if len(columns) > 1:
        raise InvalidInput(f"prior must have one column of probabilities, got {listed(columns)}")
    chances = [1.0 / len(material.runs)] * len(material.runs)
    if columns:
        cells = [run.values.get(columns[0]) for run in material.runs]
        for run, cell in zip(material.runs, cells, strict=True):
            if is_missing(cell):
                raise InvalidInput(
                    f"{run.where}: {columns[0]} must be given for every candidate, got none"
                )
        try:
            chances = [chance_of(cell) for cell in cells]
        except ValueError as error:
            raise InvalidInput(f"prior: {error}") from None
        runs = tuple(
            replace(run, values={name: v for name, v in run.values.items() if name != columns[0]})
            for run in material.runs
        )
        material = replace(material, runs=runs)
    mechanisms, roles = interpret(material, mapping, settings)
    not_about_privacy = roles.not_about_privacy
    doubtful = [name for name in not_about_privacy if name.strip().lower() in _RESEMBLES_CHANCE]
    if doubtful:
        named = f"{', '.join(roles.used)} and {' or '.join(_CHANCES)}"
        raise InvalidInput(f"prior must have only columns {named}, got {listed(doubtful)}")
    total: dict[Mechanism, float] = {}
    for mechanism, chance in zip(mechanisms, chances, strict=True):
        total[mechanism] = min(total.get(mechanism, 0.0) + chance, 1.0)
    return Mixture(tuple(total), tuple(total.values()))
