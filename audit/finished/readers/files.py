"""Paths of sources, and the content of files with one-line errors."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput, require_modules


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
