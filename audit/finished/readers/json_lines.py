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
        content = json.loads(text)
    except (ValueError, RecursionError):
        return _of_lines(text, name, options)
    if isinstance(content, Mapping):
        if is_search_table(content):
            return material_of_search(content, name)
        rows = _rows_of_columns(content)
        if rows is None and len(text.splitlines()) == 1:
            rows = [content]  # a file of one line
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
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, Mapping):
            raise InvalidInput(
                f"{name}, line {number}: line must be a json object, got {checks.one_line(line)}"
            )
        rows.append(flattened(row))
        places.append(f"{name}, line {number}")
    return material_of_rows(rows, places, name, options)


def _rows_of_columns(content: Mapping[str, Any]) -> list[Any] | None:
    """Rows of an object of lists of one length; None for any other object."""
    columns = list(content.values())
    if not columns or not all(isinstance(column, list) for column in columns):
        return None
    if len({len(column) for column in columns}) != 1:
        return None
    return [dict(zip(content, cells, strict=True)) for cells in zip(*columns, strict=True)]
