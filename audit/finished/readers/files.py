"""Paths of sources, and the content of files with one-line errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput


def as_path(source: Any) -> Path | None:
    """The path that a source names; None if it is an address or not a path."""
    if isinstance(source, Path):
        return source
    if isinstance(source, str) and "://" not in source and "\0" not in source:
        return Path(source)
    return None


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
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{what} must be a readable file, got {checks.one_line(str(path))}: "
            f"{checks.reason_of(error)}"
        ) from error


def read_yaml(path: Path) -> Any:
    """The content of a yaml file.

    Raises:
        InvalidInput: PyYAML is not installed, or the file is not yaml.
    """
    try:
        import yaml
    except ImportError:
        raise InvalidInput(
            f"pyyaml must be installed to read {checks.one_line(str(path))}: pip install pyyaml"
        ) from None
    try:
        return yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise InvalidInput(
            f"source must be yaml, got {checks.one_line(str(path))}: {' '.join(str(error).split())}"
        ) from None
