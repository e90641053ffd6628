"""Files that are written completely or not at all, and replace no file of anyone else.

Links are not followed.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput

_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag; links are rare there
_BINARY: int = getattr(os, "O_BINARY", 0)


def create(path: Path, mode: int = 0o666) -> int:
    """Descriptor of a new file for writing, in place of a file or link with this name.

    A link that someone prepared at a predictable name, such as that of a draft, would otherwise
    lead to another file, which would be overwritten.

    Raises:
        OSError: the file cannot be created.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # the draft of a process that was killed, or a link; never its target
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS | _BINARY, mode)


def open_same(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Descriptor of a file that is not a link, created if the flags contain O_CREAT.

    Raises:
        OSError: it is a link, or it cannot be opened.
    """
    refuse_link(path)  # for systems without the flag
    return os.open(path, flags | _NO_LINKS | _BINARY, mode)


def refuse_link(path: str | Path) -> None:
    """Raises OSError if a path is a link."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "It is a link, which is not followed", str(path))


def make_folder(path: Path, mode: int = 0o777, *, parents: bool = False) -> None:
    """Creates a folder unless it exists; raises OSError if it is a link or another file."""
    refuse_link(path)
    path.mkdir(mode=mode, parents=parents, exist_ok=True)
    refuse_link(path)


def write_durably(path: Path, parts: Iterable[Any], draft: Path) -> None:
    """Writes a file atomically and waits until it is on disk: a kill leaves the former file.

    Args:
        path: the file, which only its owner can read.
        parts: its bytes, or arrays of bytes.
        draft: the name of the incomplete file, in the same folder.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with open(create(draft, 0o600), "wb") as file:
            for chunk in parts:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if sys.platform == "win32":  # Folders cannot be opened there.
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turns an error of the disk into one clear line; TimeoutError means that a lock is held."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise InvalidInput(
            f"out must be a writable folder with free space, got {str(folder)!r}: "
            f"{checks.reason_of(error)}"
        ) from error


@contextlib.contextmanager
def written_completely(path: Path, *, new: bool = False) -> Iterator[Path]:
    """A temporary file that is renamed to `path` on success; `new` keeps an existing file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writable(path.parent):
            os.close(create(temporary))
            yield temporary
            with open(temporary, "r+b") as file:  # Windows syncs only files opened for writing.
                os.fsync(file.fileno())
            if new:
                _move_if_absent(temporary, path)
            else:
                os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _move_if_absent(temporary: Path, path: Path) -> None:
    """Renames a file to a path, unless the path exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:  # The file system has no hard links, so only the lock protects the path.
        os.replace(temporary, path)


def write_text(path: Path, text: str, *, new: bool = False) -> None:
    """Writes a text file completely or not at all; creates its folder if needed."""
    with writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with written_completely(path, new=new) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
