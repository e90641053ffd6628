"""Columns by which the runs are not what the used columns say; each is refused by name.

A column of a config is often not needed, such as `max_steps` next to `steps`. If it says that a run
was less private than the mechanism that follows from the other columns, the bound could be too
small, so the table is refused until the user says which column holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit import checks
from audit.accounting import DpSgd, Mechanism
from audit.errors import InvalidInput
from audit.finished.columns import IGNORE, is_missing, without_prefix, words_of
from audit.finished.material import Material
from audit.finished.runs import RunSettings, is_false
from audit.numbers_from_text import read_number


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRIVATE = _names(
    "dp private isdp isprivate usedp useprivacy enabledp enableprivacy withdp dpsgd "
    "usedpsgd differentialprivacy differentiallyprivate privacy"
)
_NOT_PRIVATE = _names(
    "disabledp nodp nonprivate notprivate withoutdp disableprivacy nonprivatebaseline"
)
"""Names of flags, without spaces and in lower case."""

_TRAININGS = _names(
    "nruns numruns runs nsplits numsplits nfolds numfolds folds kfolds kfold cvfolds "
    "nseeds numseeds nrepeats numrepeats repeats nrepetitions repetitions"
)
_RECORDS = _names(
    "ntrain numtrain trainsize ntrainsamples numtrainsamples ntrainexamples "
    "numtrainexamples trainsetsize datasetsize nrecords numrecords records nexamples "
    "numexamples"
)
_SCHEDULES = _names("scheduler schedule scheduling decay anneal annealing")
_CONSTANT = _names("constant const fixed false no off 0 0.0 1 1.0")
_OTHER_NOISES = _names("label labels input image pixel aug augmentation exploration")
_OTHER_LENGTHS = _names("eval save log logging test val validation print checkpoint")
_MARGIN = 1.01


def refuse_other_trainings(
    columns: Mapping[str, Sequence[Any]],
    mapping: Mapping[str, str],
    settings: RunSettings,
    where: str,
) -> None:
    """Refuses rows that are no single private training with constant noise on all records.

    Args:
        columns: the values of each column.
        mapping: roles of columns; a column that is mapped is not examined.
        settings: what holds for all runs.
        where: the table, in words.

    Raises:
        InvalidInput: a column states this.
    """
    for column, cells in columns.items():
        if column in mapping or without_prefix(column) in mapping:
            continue
        for cell in cells:
            if not is_missing(cell) and (problem := _problem(column, cell, settings)):
                raise InvalidInput(
                    f"{where} must have {problem}, got {checks.one_line(cell)} in column "
                    f"{checks.one_line(column)}; {_or_ignore(column)}"
                )


def _problem(column: str, cell: object, settings: RunSettings) -> str:
    """What a row must be and is not, by one cell; empty if the cell says nothing."""
    words = words_of(without_prefix(column).replace("/", ".").rpartition(".")[2])
    name = "".join(words)
    if (name in _PRIVATE and is_false(cell)) or (name in _NOT_PRIVATE and _is_true(cell)):
        return "runs with differential privacy only, because no bound holds for the others"
    number = _number(cell)
    if name in _TRAININGS and number is not None and number > 1.0:
        return "one row for each training"
    if {"noise", "sigma"} & set(words) and _SCHEDULES & set(words):
        constant = str(cell).strip().lower() in _CONSTANT
        return "" if constant else "runs with constant noise, or the smallest noise of each run"
    if name in _RECORDS and number is not None and settings.records is not None:
        # A number in (0, 1] is a fraction of an unknown number of records.
        fewer = 1.0 < number < settings.records
        return f"runs on all {settings.records} records (--records)" if fewer else ""
    return ""


def refuse_less_private(
    material: Material,
    doubtful: Mapping[str, str],
    runs: Iterable[Mechanism],
    settings: RunSettings,
) -> None:
    """Refuses a column that is not needed, and says that a run was less private than its mechanism.

    Args:
        material: the runs of the source.
        doubtful: the columns that are not used, with what they may be.
        runs: the mechanism of each run.
        settings: what holds for all runs.

    Raises:
        InvalidInput: a column states this.
    """
    shuffled = settings.batches == "shuffled"  # the steps of a mechanism are then epochs
    for recorded, mechanism in zip(material.runs, runs, strict=True):
        if not isinstance(mechanism, DpSgd):
            continue
        for column, kind in doubtful.items():
            number = _number(recorded.values.get(column))
            if number is None or not (used := _exceeded(column, kind, number, mechanism, shuffled)):
                continue
            raise InvalidInput(
                f"{recorded.where}: {checks.one_line(column)} must not say that the run was less "
                f"private than {used}, which follows from the other columns and options, got "
                f"{number:g}: map the right column to its role; {_or_ignore(column)}"
            )


def _exceeded(column: str, kind: str, number: float, run: DpSgd, shuffled: bool) -> str:
    """The parameter of a run that a number contradicts towards less privacy; else empty."""
    words = set(words_of(without_prefix(column)))
    if kind == "noise" and not words & _OTHER_NOISES:
        names_noise = words & {"noise", "sigma", "nm", "nmult"} or "noisemult" in "".join(words)
        smaller = 0.0 <= number * _MARGIN < run.noise_multiplier
        return f"noise multiplier {run.noise_multiplier:g}" if names_noise and smaller else ""
    if kind == "rate" and (words & {"q", "tau"} or ({"rate", "prob"} & words and len(words) > 1)):
        larger = run.sampling_rate * _MARGIN < number <= 1.0
        return f"sampling rate {run.sampling_rate:g}" if larger else ""
    if kind == "length" and not words & _OTHER_LENGTHS and "per" not in words:
        # The tracker's own counter of logged rows begins with an underscore.
        if without_prefix(column).startswith("_"):
            return ""
        epochs = any("epoch" in word for word in words)
        if shuffled and not epochs:
            return ""
        steps = number / run.sampling_rate if epochs else number
        return f"{run.steps} steps" if steps > run.steps * _MARGIN + 2.0 else ""
    return ""


def _or_ignore(column: str) -> str:
    name = checks.printable(without_prefix(column))[:60]
    return f"if it means something else, add --columns '{name}={IGNORE}' (in Python, columns=)"


def _is_true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "1.0")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or is_missing(value):
        return None
    try:
        return read_number(value) if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
