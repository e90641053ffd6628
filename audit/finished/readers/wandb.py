"""Weights & Biases: the csv of its website, and folders of offline runs.

An offline run is one file, `run-ID.wandb`: a log of protocol buffers in the framing of LevelDB.
Only three records matter here: the configuration of the run, later changes of it, and the exit
code. They are read without the library of W&B, whose reader is private.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.finished.material import (
    COMPLETE,
    FAILED,
    RUNNING,
    Evidence,
    Material,
    RecordedRun,
    flattened,
)
from audit.finished.readers.registry import (
    ReadOptions,
    TableFormat,
    as_path,
    is_folder_with,
    read_yaml,
    reader,
    shown,
    table_format,
)

_BLOCK, _HEADER, _IDENTITY = 32768, 7, b":W&B"
_CONFIG, _RUN, _EXIT = 5, 17, 18  # fields of a record
_CONFIG_OF_RUN, _SWEEP_OF_RUN = 4, 12
_UPDATE, _KEY, _NESTED_KEY, _JSON = 1, 1, 2, 16
_OWN = frozenset(
    {"Name", "State", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "ID", "Hostname"}
)
_SWEEP = "runs belong to a sweep, which may be grid, random or bayes: its method is not recorded"


def _run_files(folder: Path) -> list[Path]:
    inner = folder / "wandb" if (folder / "wandb").is_dir() else folder
    paths = sorted(inner.glob("*run-*/run-*.wandb")) or sorted(inner.glob("run-*.wandb"))
    # `latest-run` is a link to the last run.
    return [path for path in paths if not path.parent.is_symlink()]


def _run_folders(folder: Path) -> list[Path]:
    inner = folder / "wandb" if (folder / "wandb").is_dir() else folder
    folders = [path for path in sorted(inner.glob("*run-*")) if path.is_dir()]
    return [path for path in folders if (path / "files" / "config.yaml").is_file()]


def _is_wandb(folder: Path) -> bool:
    return bool(_run_files(folder) or _run_folders(folder))


def _is_run_file(source: Any) -> bool:
    path = as_path(source)
    return path is not None and path.suffix == ".wandb"


@reader("W&B", lambda source: _is_run_file(source) or is_folder_with(_is_wandb)(source), place=310)
def read_offline(source: Any, options: ReadOptions) -> Material:
    """The runs of a folder `wandb` with offline runs, or of one such run."""
    root = Path(source)
    name = f"W&B {shown(root)}"
    files = [root] if root.is_file() else _run_files(root)
    runs, sweeps = [], False
    for file in files:
        values, state, in_sweep = _run_of_file(file)
        sweeps = sweeps or in_sweep
        runs.append(RecordedRun(values, f"{name}, {file.stem}", state))
    if not files:  # folders of online runs keep the configuration only
        for folder in _run_folders(root):
            runs.append(RecordedRun(_config_of_yaml(folder), f"{name}, {folder.name}"))
    evidence = Evidence(remarks=(_SWEEP,)) if sweeps else Evidence()
    columns = frozenset(column for run in runs for column in run.values)
    bookkeeping = frozenset(column for column in columns if column.startswith("_"))
    return Material(name, tuple(runs), evidence, bookkeeping, columns - bookkeeping)


def _config_of_yaml(folder: Path) -> dict[str, Any]:
    content = read_yaml(folder / "files" / "config.yaml") or {}
    values = {
        key: cell["value"]
        for key, cell in content.items()
        if isinstance(cell, dict) and "value" in cell and not key.startswith("_")
    }
    return flattened(values)


def _run_of_file(path: Path) -> tuple[dict[str, Any], str, bool]:
    """Configuration and state of a run, and whether it belongs to a sweep."""
    config: dict[str, Any] = {}
    state, in_sweep = RUNNING, False
    try:
        data = checks.read_bytes(path, 10**9)
        for record in _records(data):
            for number, content in _fields(record):
                if number == _RUN and isinstance(content, bytes):
                    for field, value in _fields(content):
                        if field == _CONFIG_OF_RUN and isinstance(value, bytes):
                            config |= _items(value)
                        in_sweep = in_sweep or (field == _SWEEP_OF_RUN and bool(value))
                elif number == _CONFIG and isinstance(content, bytes):
                    config |= _items(content)
                elif number == _EXIT and isinstance(content, bytes):
                    codes = [value for field, value in _fields(content) if field == 1]
                    state = FAILED if any(codes) else COMPLETE
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise InvalidInput(
            f"source must be an offline run of W&B, got {shown(path)}: "
            f"{checks.one_line(str(error))}"
        ) from None
    return {name: cell for name, cell in flattened(config).items()}, state, in_sweep


def _items(content: bytes) -> dict[str, Any]:
    """Settings of a record of configuration."""
    values: dict[str, Any] = {}
    for field, item in _fields(content):
        if field != _UPDATE or not isinstance(item, bytes):
            continue
        names, value = [], None
        for number, cell in _fields(item):
            if number in (_KEY, _NESTED_KEY) and isinstance(cell, bytes) and cell:
                names.append(cell.decode())
            elif number == _JSON and isinstance(cell, bytes):
                value = json.loads(cell)
        if names and not names[0].startswith("_"):
            values["/".join(names)] = value
    return values


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log: blocks of fragments, each with checksum, length and type."""
    if data[:4] != _IDENTITY:
        raise ValueError("the file does not begin as a log of W&B")
    position, record = _HEADER, b""
    while position + _HEADER <= len(data):
        room = _BLOCK - position % _BLOCK
        if room < _HEADER:
            position += room
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + _HEADER])
        position += _HEADER
        if position + length > len(data):
            return  # the process ended while it wrote
        record += data[position : position + length]
        position += length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""
        elif kind == 0:
            return  # zeros at the end of a file that was not closed


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and contents of the fields of a protocol buffer."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(content, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")
        if position + size > len(content):
            raise ValueError("a record is cut off")
        yield number, content[position : position + size]
        position += size


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def _is_export(columns: Sequence[str]) -> bool:
    return {"Name", "State"} <= set(columns)


def _evidence_of_export(rows: Sequence[Any]) -> Evidence:
    sweeps = {str(row.get("Sweep") or "").strip() for row in rows} - {""}
    return Evidence(remarks=(_SWEEP,)) if sweeps else Evidence()


table_format(
    TableFormat(
        "W&B",
        _is_export,
        lambda column: column in _OWN or column.startswith("_"),
        _evidence_of_export,
    )
)
