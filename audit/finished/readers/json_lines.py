"""Runs in json: one object per line, a list of objects, or an object of columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.finished.material import Material, flattened
from audit.finished.readers.registry import (
    ReadOptions,
    is_file_with_suffix,
    read_text,
    reader,
    shown,
)
from audit.finished.readers.scikit_learn import is_search_table, material_of_search
from audit.finished.readers.tables import material_of_rows


@reader("json", is_file_with_suffix(".json", ".jsonl", ".ndjson"), place=800)
def read_json(source: Any, options: ReadOptions) -> Material:
    """The runs of a json file or of a file with one json object per line."""
    path = Path(source)
    name = shown(path)
    text = read_text(path)
    try:
        content = _loads(text, name)
    except InvalidInput:
        raise
    except (ValueError, RecursionError):
        return _of_lines(text, name, options)
    if isinstance(content, Mapping):
        if is_search_table(content):
            return material_of_search(content, name)
        rows = _rows_of_columns(content)
        of_lines = path.suffix.lower() != ".json"
        one_line = len(text.splitlines()) == 1
        if rows is None and one_line and (of_lines or not _may_hold_several(content)):
            rows = [content]
        if rows is None:
            raise InvalidInput(
                f"source must be a list of json objects, one per run, got one object in {name}, "
                "which may hold several runs: write [{...}, {...}]"
            )
        content = rows
    if not isinstance(content, list) or not all(isinstance(row, Mapping) for row in content):
        raise InvalidInput(f"source must be a list of json objects, one per run, got {name}")
    rows = [flattened(row) for row in content]
    return material_of_rows(
        rows, [f"{name}, run {i}" for i in range(1, len(rows) + 1)], name, options
    )


def _of_lines(text: str, name: str, options: ReadOptions) -> Material:
    rows, places = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = _loads(line, f"{name}, line {number}")
        except InvalidInput:
            raise
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, Mapping):
            raise InvalidInput(
                f"{name}, line {number}: line must be a json object, got {checks.one_line(line)}"
            )
        rows.append(flattened(row))
        places.append(f"{name}, line {number}")
    return material_of_rows(rows, places, name, options)


def _loads(text: str, where: str) -> Any:
    """The content of json text.

    Raises:
        InvalidInput: an object has two values of one name.
        ValueError: the text is not json.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, value in pairs:
            if name in content:  # Python would keep the last value
                shown_name = checks.one_line(name)
                raise InvalidInput(
                    f"{where}: object must name each value once, got {shown_name} twice"
                )
            content[name] = value
        return content

    return json.loads(text, object_pairs_hook=unique)


def _may_hold_several(content: Mapping[str, Any]) -> bool:
    """Whether an object may hold several runs: a list, numbered values, or objects of equal names.

    Python writes any content in one line by default, so that one line need not be one run.
    """
    values = list(content.values())
    objects = [value for value in values if isinstance(value, Mapping)]
    numbered = len(content) > 1 and all(str(name).isdigit() for name in content)
    alike = len(values) == len(objects) > 1 and len({frozenset(entry) for entry in objects}) == 1
    return (
        numbered
        or alike
        or any(isinstance(value, list) for value in values)
        or any(map(_may_hold_several, objects))
    )


def _rows_of_columns(content: Mapping[str, Any]) -> list[Any] | None:
    """Rows of an object of lists of one length; None for any other object.

    One list of objects is a list of runs. Two of them with a name in common are two lists of runs.
    """
    columns = list(content.values())
    is_one_list = len(columns) == 1 and isinstance(columns[0], list) and columns[0]
    if is_one_list and all(isinstance(cell, Mapping) for cell in columns[0]):
        return list(columns[0])
    if not columns or not all(isinstance(column, list) for column in columns):
        return None
    if len({len(column) for column in columns}) != 1:
        return None
    names = [
        {name for cell in column if isinstance(cell, Mapping) for name in cell}
        for column in columns
    ]
    if sum(map(len, names)) > len(set().union(*names)):
        return None
    return [dict(zip(content, cells, strict=True)) for cells in zip(*columns, strict=True)]
