"""What every reader uses: its registration, and the files of a source with one-line errors.

Each format is one module, which registers a function.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput, require_modules
from audit.finished.material import Evidence, Material

Recognise = Callable[[Any], bool]
WEB = ("http://", "https://", "s3://", "gs://", "file://", "ftp://")
"""Beginnings of addresses that no reader opens."""
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers", ".gsheet")


def as_path(source: Any) -> Path | None:
    """The path that a source names; None if it is an address or not a path."""
    if isinstance(source, Path):
        return source
    if isinstance(source, str) and "://" not in source and "\0" not in source:
        return Path(source)
    return None


def shown(source: Any) -> str:
    """A source for a message; an address without its scheme may contain a password."""
    text = str(source)
    if "@" in text and "://" not in text and not os.path.exists(text):
        return "'***'"
    return checks.one_line(checks.without_password(text))


def is_folder_with(test: Callable[[Path], bool]) -> Callable[[Any], bool]:
    """A test of whether a source is a folder that passes a test."""

    def recognise(source: Any) -> bool:
        path = as_path(source)
        try:
            return path is not None and path.is_dir() and test(path)
        except OSError:
            return False

    return recognise


def is_file_with_suffix(*suffixes: str) -> Callable[[Any], bool]:
    """A test of whether a source is the path of a file with one of some suffixes."""

    def recognise(source: Any) -> bool:
        path = as_path(source)
        return path is not None and path.suffix.lower() in suffixes

    return recognise


def read_text(path: Path, what: str = "source") -> str:
    """The content of a text file, without a byte order mark.

    Raises:
        InvalidInput: the file cannot be read.
    """
    try:
        content = checks.read_bytes(path)
        # Spreadsheets save "Unicode text" as UTF-16, with a byte order mark.
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return (
            content.decode(encoding)
            .removeprefix("\ufeff")
            .replace("\r\n", "\n")
            .replace("\r", "\n")
        )
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{what} must be a readable file, got {shown(path)}: {checks.reason_of(error)}"
        ) from None  # the error of the system repeats the path


def read_yaml(path: Path) -> Any:
    """The content of a yaml file.

    Raises:
        MissingExtra: PyYAML is not installed.
        InvalidInput: the file is not yaml.
    """
    require_modules("trackers", "yaml")
    import yaml

    try:
        return yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise InvalidInput(
            f"source must be yaml, got {shown(path)}: {' '.join(str(error).split())}"
        ) from None


@dataclass(frozen=True)
class ReadOptions:
    """What a reader may need besides the source.

    Attributes:
        study: the name of a study or an experiment in a storage of several; None for the only one.
        ignored: columns that are mapped to `ignore`, so that a `state` or `status` among them is
            not the state of a run.
    """

    study: str | None = None
    ignored: frozenset[str] = frozenset()


Read = Callable[[Any, ReadOptions], Material]


@dataclass(frozen=True)
class Reader:
    """A registered reader.

    Attributes:
        name: the format.
        recognise: whether a source has the format; it reads as little as possible.
        read: the runs of a source of the format.
        place: readers of lower places are asked first.
    """

    name: str
    recognise: Recognise
    read: Read
    place: int


@dataclass(frozen=True)
class TableFormat:
    """Tables that a tracker exports, which the readers of tables recognise by their columns.

    Attributes:
        name: the tracker.
        recognise: whether columns are those of an export.
        bookkeeping: the columns that the tracker itself writes.
        evidence: what cells show about how candidates were chosen.
        parameters: the columns with hyperparameters.
        complete: adds what follows from the columns, such as several trainings per run.
    """

    name: str
    recognise: Callable[[Sequence[str]], bool]
    bookkeeping: Callable[[str], bool]
    evidence: Callable[[Sequence[Mapping[str, Any]]], Evidence] = lambda rows: Evidence()
    parameters: Callable[[str], bool] = lambda column: False
    complete: Callable[[Material, Sequence[str]], Material] = lambda material, columns: material


_READERS: list[Reader] = []


_TABLES: list[TableFormat] = []


def reader(name: str, recognise: Recognise, place: int = 100) -> Callable[[Read], Read]:
    """Registers the decorated function as the reader of a format."""

    def register(read: Read) -> Read:
        _READERS.append(Reader(name, recognise, read, place))
        _READERS.sort(key=lambda entry: entry.place)
        return read

    return register


def table_format(entry: TableFormat) -> TableFormat:
    """Registers the tables that a tracker exports."""
    _TABLES.append(entry)
    return entry


def format_of_table(columns: Sequence[str]) -> TableFormat | None:
    """The tracker whose export has these columns; None if there is none."""
    return next((entry for entry in _TABLES if entry.recognise(columns)), None)


def formats() -> list[str]:
    """The names of all formats."""
    return [entry.name for entry in _READERS]


def read(source: Any, options: ReadOptions) -> Material:
    """The runs of a source of any registered format.

    Raises:
        InvalidInput: no reader recognises the source, or its content is not understood.
    """
    for entry in _READERS:
        try:
            recognised = entry.recognise(source)
        except (OSError, ValueError):  # no such path, or a name that no system allows
            recognised = False
        if recognised:
            return entry.read(source, options)
    if isinstance(source, str | Path) and Path(source).suffix.lower() in _SPREADSHEETS:
        raise InvalidInput(
            f"source must be a table as text, got the spreadsheet {checks.one_line(str(source))}: "
            "export its sheet as csv"
        )
    if isinstance(source, str) and source.lower().startswith(WEB):
        raise InvalidInput(
            "source must be a file, a folder or the address of a database, got the address "
            f"{shown(source)}: download its runs, or export them as csv"
        )
    raise InvalidInput(
        "source must be a table, a folder or a storage of runs (csv, tsv, json, parquet, or of "
        f"Optuna, MLflow, W&B, Ray Tune, Hydra, Keras Tuner), got {checks.one_line(source)}"
    )
