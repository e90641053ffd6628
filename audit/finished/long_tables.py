"""Tables with several rows for each run, such as one row for every epoch that was logged.

Each row would count as a run. Nothing is guessed: a table that looks like a log is refused, and
the role `run` of a column says which rows are one run.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from audit import checks
from audit.errors import InvalidInput
from audit.finished.columns import (
    IGNORE,
    LENGTHS,
    ROLES,
    RUN,
    is_missing,
    name_set,
    number_in,
    typed_name,
    without_prefix,
    words_of,
)
from audit.finished.evidence import COMPLETE
from audit.finished.material import Material, RecordedRun

_IDENTIFIERS = name_set(
    "run runid runname runuuid trial trialid trialname trialnumber jobid id uid uuid candidateid"
)
_POSSIBLE_IDENTIFIERS = name_set("job name seed config configid candidate model modelid")
_COUNTERS = name_set(
    "epoch step globalstep iteration iter trainingiteration round timestep currentepoch "
    "epochnumber epochidx epochindex trainstep checkpoint"
)
"""Names of columns, without spaces and in lower case."""


def runs_of_log(material: Material, mapping: Mapping[str, str]) -> Material:
    """The runs of a source, where the rows of one run are put together.

    Args:
        material: the rows of the source.
        mapping: roles of columns; the column with the role `run` identifies runs.

    Raises:
        InvalidInput: rows look like a log of one run and no column has the role `run`; or the rows
            of one run state different privacy.
    """
    mapped = {
        column: mapping.get(column.strip()) or mapping.get(without_prefix(column))
        for column in material.columns
    }
    identifiers = [column for column, role in mapped.items() if role == RUN]
    if not identifiers:
        _refuse_log(material, mapped)
        return material
    groups: dict[str, list[RecordedRun]] = {}
    for row in material.runs:
        cell = row.values.get(identifiers[0])
        if is_missing(cell):
            raise InvalidInput(
                f"{row.where}: column {checks.one_line(identifiers[0])} must name the run of every "
                "row, got none"
            )
        groups.setdefault(str(cell).strip(), []).append(row)
    roles = {
        column: role or (without_prefix(column) if without_prefix(column) in ROLES else None)
        for column, role in mapped.items()
    }
    runs = tuple(_one_run(rows, roles) for rows in groups.values())
    remark = (
        f"{len(material.runs)} rows are {len(runs)} runs, by column "
        f"{checks.one_line(identifiers[0])}; the last row of each states its length"
    )
    evidence = replace(material.evidence, remarks=(*material.evidence.remarks, remark))
    return replace(material, runs=runs, evidence=evidence)


def _one_run(rows: Sequence[RecordedRun], roles: Mapping[str, str | None]) -> RecordedRun:
    """One run from its rows: the last row, if all state the same privacy and its length is last."""
    *_, last_row = rows
    values = dict(last_row.values)
    for column, role in roles.items():
        if role not in ROLES:
            continue
        cells = [row.values.get(column) for row in rows]
        present = [cell for cell in cells if not is_missing(cell)]
        if not present:
            continue
        if role in LENGTHS:
            longest = max(present, key=_length)
            from_zero = min(map(_length, present)) == 0.0 < _length(longest) < math.inf
            values[column] = _length(longest) + 1.0 if from_zero else longest
        elif len({str(cell).strip() for cell in present}) > 1:
            raise InvalidInput(
                f"{last_row.where}: rows of one run must state one {role}, got "
                f"{checks.one_line(present[0])} and {checks.one_line(present[-1])} in column "
                f"{checks.one_line(column)}"
            )
        else:
            values[column] = present[-1]
    states = [row.state for row in rows if row.state != COMPLETE]
    return replace(last_row, values=values, state=states[-1] if states else COMPLETE)


def _length(cell: object) -> float:
    """A number for comparisons; text that is no number is largest, so that it is refused later."""
    number = number_in(cell)
    return math.inf if number is None else number


def _refuse_log(material: Material, mapped: Mapping[str, str | None]) -> None:
    """Refuses rows of which several are one run, of which a column counts epochs or steps."""
    names = {
        column: "".join(words_of(without_prefix(column)))
        for column, role in mapped.items()
        if role is None
    }
    identifiers = [column for column, name in names.items() if name in _IDENTIFIERS]
    possible = [column for column, name in names.items() if name in _POSSIBLE_IDENTIFIERS]
    for counter, name in names.items():
        if name not in (*_COUNTERS, *LENGTHS) or counter in material.parameters:
            continue
        numbers = [number_in(row.values.get(counter)) for row in material.runs]
        for identifier in identifiers:
            if _counts_within(_cells(material, identifier), numbers):
                raise InvalidInput(_several_rows(material, identifier, counter))
        if name in LENGTHS:
            continue  # candidates of one seed may differ in their length
        for identifier in possible:
            if _counts_within(_cells(material, identifier), numbers, evenly=True):
                raise InvalidInput(_several_rows(material, identifier, counter))
        all_rows = [""] * len(numbers)
        if _counts_within(all_rows, numbers, evenly=True) and _settings_are_equal(material):
            raise InvalidInput(
                f"{material.name} must have one row for each run, but only "
                f"{checks.one_line(counter)} and results differ between its rows, got "
                f"{len(all_rows)} rows: keep the last row if they are the log of one run, or "
                f"{_each_row(counter)}"
            )


def _cells(material: Material, column: str) -> list[str]:
    return [str(row.values.get(column)).strip() for row in material.runs]


def _several_rows(material: Material, identifier: str, counter: str) -> str:
    """The message about a table with several rows for each run."""
    runs = len(set(_cells(material, identifier)))
    return (
        f"{material.name} must have one row for each run, but {checks.one_line(identifier)} "
        f"repeats while {checks.one_line(counter)} changes, got {len(material.runs)} rows with "
        f"{runs} values: add --columns '{typed_name(identifier)}={RUN}' (in Python, columns=) if "
        f"they are the log of {runs} runs, or {_each_row(counter)}"
    )


def _each_row(counter: str) -> str:
    name = typed_name(counter)
    return (
        f"'{name}={IGNORE}' (or ={'epochs' if 'epoch' in name.lower() else 'steps'}, if it is "
        "the length of the run) if each row is a run"
    )


def _counts_within(
    groups: Sequence[str], numbers: Sequence[float | None], *, evenly: bool = False
) -> bool:
    """Whether some group repeats, and no group has a number twice.

    With `evenly`, the numbers of each group must also be at least three in equal distances.
    """
    by_group: dict[str, list[float]] = {}
    for group, number in zip(groups, numbers, strict=True):
        if number is None:
            return False
        by_group.setdefault(group, []).append(number)
    for members in by_group.values():
        ordered = sorted(members)
        distances = {b - a for a, b in itertools.pairwise(ordered)}
        if 0.0 in distances or (evenly and (len(distances) > 1 or len(ordered) < 3)):
            return False
    return len(by_group) < len(groups)


def _settings_are_equal(material: Material) -> bool:
    """Whether no hyperparameter differs between rows."""
    return all(
        len({str(cell) for cell in cells}) == 1
        for column, cells in material.columns.items()
        if without_prefix(column) in ROLES or "".join(words_of(without_prefix(column))) in _KNOBS
    )


_KNOBS = name_set(
    "lr learningrate momentum weightdecay dropout maxgradnorm clip clippingnorm optimizer "
    "optimiser batchsize bs hidden layers seed sigma"
)
