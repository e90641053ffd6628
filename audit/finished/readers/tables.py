"""Tables as text: csv and tsv, in the dialects that spreadsheets and trackers write."""

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.finished.columns import listed, looks_like_a_number
from audit.finished.material import Material, runs_of_rows
from audit.finished.readers.registry import (
    ReadOptions,
    as_path,
    format_of_table,
    is_file_with_suffix,
    read_text,
    reader,
    shown,
)

_SUFFIXES = (".csv", ".tsv", ".txt", ".tab")
_DELIMITERS = ",;\t|"
_REASONS = {
    "unexpected end of data": "a quote is not closed",
    "',' expected after '\"'": "a comma is missing after a quote",
}
"""Plain reasons for an invalid csv file, by the messages of Python's csv reader."""

_WITH_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]+)?")
_WITHOUT_COMMA = re.compile(r"[+-]?[0-9]+(?:[eE][+-]?[0-9]+)?")
_WITH_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")


def _is_table(source: Any) -> bool:
    """Whether a source is the path of a table: by its suffix, or a pipe or device."""
    if is_file_with_suffix(*_SUFFIXES)(source):
        return True
    path = as_path(source)
    if path is None:
        return False
    try:
        return not path.suffix and not path.is_dir()
    except OSError:
        return True  # reading it gives the reason


@reader("csv", _is_table, place=900)
def read_table(source: Any, options: ReadOptions) -> Material:
    """The runs of a csv or tsv file: a heading, and one row per run."""
    path = Path(source)
    return table_of_text(read_text(path), shown(path), options)


def table_of_text(text: str, name: str, options: ReadOptions) -> Material:
    """The runs of a table as text.

    Args:
        text: a heading and rows; the delimiter is a comma, a semicolon, a tab or a bar.
        name: the table, in words for messages.
        options: what the reader needs besides.

    Raises:
        InvalidInput: the text is not such a table.
    """
    text, delimiter = _dialect(text)
    rows = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        heading = [column.strip() for column in next(rows, [])]
        _check_heading(heading, name)
        read = [(rows.line_num, cells) for cells in rows if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        reason = re.sub("'.' expected", "',' expected", str(error))
        raise InvalidInput(
            f"source must be a readable csv file, got {name}: {_REASONS.get(reason, reason)} in "
            f"line {rows.line_num}"
        ) from error
    if not read:
        raise InvalidInput(f"source must be at least one row below a heading, got none in {name}")
    _check_no_title(heading, read, name)
    for line, cells in read:
        if cells[0].lstrip().startswith("#") and not any(cell.strip() for cell in cells[1:]):
            raise InvalidInput(
                f"{name}, line {line}: row must be a run, got the comment "
                f"{checks.one_line(cells[0])}: remove it"
            )
        if len(cells) > len(heading):
            raise InvalidInput(
                f"{name}, line {line}: row must have one value for each of {len(heading)} columns, "
                f"got {len(cells)}: write decimals with a point, not a comma"
            )
    table = [dict(zip(heading, cells, strict=False)) for _, cells in read]
    if delimiter in ";\t":
        table = _with_points(table, heading, name)
    places = [f"{name}, line {line}" for line, _ in read]
    return material_of_rows(table, places, name, options)


def material_of_rows(
    rows: Sequence[Mapping[str, Any]], places: Sequence[str], name: str, options: ReadOptions
) -> Material:
    """The runs of rows, with what the tracker that exported them is known to write."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    exported = format_of_table(columns)
    runs = runs_of_rows(rows, places, name, options.ignored)
    if exported is None:
        return Material(name, runs)
    material = Material(
        name,
        runs,
        exported.evidence(rows),
        frozenset(filter(exported.bookkeeping, columns)),
        frozenset(filter(exported.parameters, columns)),
    )
    return exported.complete(material, columns)


def _dialect(text: str) -> tuple[str, str]:
    """The text without a line such as `sep=;`, and the delimiter of its heading."""
    first_line, _, below = text.partition("\n")
    if re.fullmatch(r"sep=.", first_line.strip()):
        return below, first_line.strip()[-1]
    counts = {mark: len(_cells(first_line, mark)) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: counts[mark])
    return text, best


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _check_no_title(heading: list[str], rows: Sequence[tuple[int, list[str]]], name: str) -> None:
    """Refuses a title or a comment in the place of the heading."""
    named = [column for column in heading if column]
    _, first_row = rows[0]
    below = [cell for cell in first_row if cell.strip()]
    # The true heading follows, and no name of a column is a number.
    if len(named) == 1 and len(below) > 1 and not any(map(looks_like_a_number, below)):
        kind = "comment" if heading[0].startswith("#") else "title"
        raise InvalidInput(
            f"{name} must begin with the names of its columns, got the {kind} "
            f"{checks.one_line(named[0])}: remove the lines above the heading"
        )


def _check_heading(heading: list[str], name: str) -> None:
    if not any(heading):
        raise InvalidInput(f"source must be at least one row below a heading, got none in {name}")
    if heading[0].startswith(("{", "[")):
        raise InvalidInput(
            f"source must be a table with a heading, got json in {name}: rename it to .json, or to "
            ".jsonl if each line is a run"
        )
    repeated = [column for column, times in Counter(heading).items() if times > 1 and column]
    if repeated:
        raise InvalidInput(
            f"{name} must name each column once, got {listed(repeated)} more than once"
        )


def _with_points(
    table: list[dict[str, str]], heading: Sequence[str], name: str
) -> list[dict[str, str]]:
    """Numbers with decimal commas written with points, if the dialect of the table is plain.

    A comma is a decimal comma only if every number of its column is written with one, or is whole,
    and if no number of the table is written with a point: then a point could separate thousands.
    """
    commas = []
    for column in heading:
        cells = [row.get(column, "").strip() for row in table]
        cells = [cell for cell in cells if cell]
        if any(map(_WITH_COMMA.fullmatch, cells)) and all(
            _WITH_COMMA.fullmatch(cell) or _WITHOUT_COMMA.fullmatch(cell) for cell in cells
        ):
            commas.append(column)
    if not commas:
        return table
    for row in table:
        for column, cell in row.items():
            if _WITH_POINT.fullmatch(cell.strip()):
                raise InvalidInput(
                    f"{name} must write all decimals in one way, got "
                    f"{checks.one_line(cell.strip())} in column {checks.one_line(column)} and "
                    f"decimal commas in column {checks.one_line(commas[0])}"
                )
    return [
        {
            column: cell.replace(",", ".") if column in commas else cell
            for column, cell in row.items()
        }
        for row in table
    ]
