"""The trials of a finished tuning, read from a csv file or from the values of a study."""

import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audit import checks
from audit.accounting import (
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    ZeroConcentratedDp,
)
from audit.errors import InvalidInput

_KNOWN = ("noise_multiplier", "sampling_rate", "steps", "mu", "rho")
"""Columns that describe a mechanism."""

_OTHER_NAMES = {
    "sigma": "noise_multiplier",
    "noise": "noise_multiplier",
    "sample_rate": "sampling_rate",
    "rate": "sampling_rate",
    "batch": "sampling_rate",
    "batch_size": "sampling_rate",
    "q": "sampling_rate",
    "iterations": "steps",
}
"""Other common names of columns."""

_REASONS = {
    "unexpected end of data": "a quote is not closed",
    "',' expected after '\"'": "a comma is missing after a quote",
}
"""Plain reasons for an invalid csv file, by the messages of Python's csv reader."""


def trial_of(
    values: Mapping[str, Any], neighbours: str = "add-remove", group_size: int = 1
) -> Mechanism | None:
    """The mechanism of one trial, from the columns of `_KNOWN`; None if they describe none."""
    known = {name: value for name, value in values.items() if value not in (None, "")}
    if "noise_multiplier" in known:
        if "steps" not in known:
            raise InvalidInput("steps must be given with noise_multiplier, got none")
        return DpSgd(
            known["noise_multiplier"],
            known["steps"],
            known.get("sampling_rate", 1.0),
            neighbours,
            group_size,
        )
    for name, given, plain in (
        ("group_size", group_size, 1),
        ("neighbours", neighbours, "add-remove"),
    ):
        if given != plain and ("mu" in known or "rho" in known):
            raise InvalidInput(
                f"{name} must be {plain} for a trial with mu or rho, which hold for its own "
                f"group and neighbours, got {checks.one_line(given)}"
            )
    if "mu" in known:
        return GaussianMechanism(known["mu"])
    if "rho" in known:
        return ZeroConcentratedDp(checks.interval("rho", known["rho"], 0.0))
    return None


def read_trials(
    path: str | Path, neighbours: str = "add-remove", group_size: int = 1
) -> list[Mechanism]:
    """Trials from a csv file: a heading with columns of `_KNOWN`, then one row per trial."""
    return [trial for trial, _ in _rows("trials", path, neighbours, group_size)]


def read_prior(path: str | Path, neighbours: str = "add-remove", group_size: int = 1) -> Mixture:
    """The prior from a csv file with columns of `_KNOWN`, and `chance` if not equally likely."""
    rows = _rows("prior", path, neighbours, group_size)
    found: dict[Mechanism, float] = {}
    for one, given in rows:
        chance = checks.interval("chance", given or 1.0 / len(rows), 0.0, 1.0, closed_high=True)
        found[one] = min(found.get(one, 0.0) + chance, 1.0)
    return Mixture(tuple(found), tuple(found.values()))


def _rows(
    name: str, path: str | Path, neighbours: str, group_size: int
) -> list[tuple[Mechanism, Any]]:
    """The mechanism and the chance of every row of a csv file. Equal rows are read once."""
    given = f"{name} must be a readable csv file, got {checks.one_line(str(path))}"
    try:
        # Spreadsheets write a byte order mark first.
        text = io.StringIO(checks.read_text(path).removeprefix("\ufeff"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{given}: {checks.reason_of(error)}") from error
    rows = csv.DictReader(text, restval="", skipinitialspace=True, strict=True)
    read: dict[str, tuple[Mechanism, Any]] = {}
    found = []
    try:
        rows.fieldnames = [column.strip() for column in rows.fieldnames or ()]
        _check_heading(name, rows.fieldnames, path)
        for row in rows:
            if (key := repr(row)) not in read:
                where = f"{name}, line {rows.line_num}"
                read[key] = _trial_of_row(where, row, neighbours, group_size), row.get("chance")
            found.append(read[key])
    except csv.Error as error:
        reason = _REASONS.get(str(error), str(error))
        raise InvalidInput(f"{given}: {reason} in line {rows.reader.line_num}") from error
    if not found:
        raise InvalidInput(f"{name} must be at least one row below a heading, got none in {path}")
    return found


def _check_heading(name: str, heading: list[str], path: str | Path) -> None:
    """Checks that a heading names the columns that identify a mechanism, each once."""
    if not heading:
        raise InvalidInput(f"{name} must be at least one row below a heading, got none in {path}")
    for column, times in Counter(heading).items():
        if times > 1 and column in (*_KNOWN, "chance"):
            raise InvalidInput(
                f"{name} must name column {column} once, got it {times} times in {path}"
            )
    identifies = {"noise_multiplier", "mu", "rho"} & set(heading)
    missing = [one for one in (_KNOWN[:3] if identifies else _KNOWN) if one not in heading]
    # A missing sampling rate means full batches; learning_rate is no misspelling of it.
    near = [
        f"{column!r} may be {alike[0]!r}"
        for column in heading
        if (
            alike := difflib.get_close_matches(
                _folded(column), missing, n=1, cutoff=0.85 if identifies else 0.6
            )
        )
    ]
    if not identifies or (near and "noise_multiplier" in heading):
        hint = f"; {', '.join(near)}" if near else ""
        if len(heading) == 1 and re.search("[;\t]", heading[0]):
            hint = ": separate columns by commas, and write decimals with a point"
        raise InvalidInput(
            f"{name} must have columns noise_multiplier, steps and sampling_rate, or mu, or rho, "
            f"got {', '.join(map(repr, heading))} in {str(path)!r}{hint}"
        )


def _folded(column: str) -> str:
    """The known name of a column, if it is written differently or has another common name."""
    plain = "_".join(column.lower().replace("-", " ").split())
    return _OTHER_NAMES.get(plain, plain)


def _trial_of_row(where: str, row: dict[str, str], neighbours: str, group_size: int) -> Mechanism:
    more = row.get(None, ())  # type: ignore[call-overload]
    if more:
        raise InvalidInput(
            f"{where}: row must have one value for each of {len(row) - 1} columns, got "
            f"{len(row) - 1 + len(more)}: write decimals with a point, not a comma"
        )
    identifying = [one for one in ("noise_multiplier", "mu", "rho") if row.get(one, "") != ""]
    if len(identifying) != 1:
        raise InvalidInput(
            f"{where}: row must have one of noise_multiplier, mu and rho, got "
            f"{' and '.join(identifying) or 'none of them'}"
        )
    try:
        trial = trial_of(row, neighbours, group_size)
    except ValueError as error:
        raise InvalidInput(f"{where}: {error}") from None
    assert trial is not None  # the row has one of the three
    return trial
