"""What a study keeps on disk, so that whoever kills it finds the same K and the same draws again.

It is private: who reads it knows the number of runs, every candidate and every score. Only its
owner may read it, and it is deleted when the study is over.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Journal", "Memory", "Record"]

_FORMAT = 1
# In the order in which they go. Without the key nothing else is ever taken for a study to go on
# with; while the lock is there, the folder is known to be a study's.
_MODELS, _LOCK = "models", "lock"
_NAMES = ("state.json", "runs.jsonl", "READ_ME_PRIVATE.txt", ".gitignore", _MODELS, _LOCK)
_DRAFT = ".draft"
_WORDS = """PRIVATE. This folder belongs to a differentially private tuning that is not over.

It holds the number of runs, all candidates tried and their scores. The guarantee of the tuning is
void for whoever reads it. Do not publish it, log it, or commit it; it is deleted at the end.
"""


@dataclass(frozen=True)
class Record:
    """One run that is over, as kept for resuming.

    Attributes:
        index: of the run.
        point: its candidate, as a point of the space.
        score: its score; None if it lost.
        model: a digest of its model, to recognise it by; None if it has none.
        checked: what was checked of it.
        own_seed: what torch was seeded with by the run itself; None if it was not.
        accepted: whether it was accepted, where the protocol runs until one is.
    """

    index: int
    point: tuple[float, ...]
    score: float | None
    model: str | None = None
    checked: tuple[str, ...] = ()
    accepted: bool = False
    own_seed: int | None = None


class Memory:
    """Keeps a study in this process alone."""

    folder: Path | None = None

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None
        self._records: list[Record] = []

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While the study runs."""
        yield

    def state(self) -> dict[str, Any] | None:
        """What was begun; None if nothing was."""
        return self._state

    def begin(self, state: dict[str, Any]) -> None:
        """Keeps the key of all draws, before the first of them is made."""
        self._state = state

    def records(self) -> list[Record]:
        """The runs that are over."""
        return list(self._records)

    def add(self, record: Record) -> None:
        """Keeps a run that is over."""
        self._records.append(record)

    def end(self) -> None:
        """Forgets everything."""
        self._state, self._records = None, []


class Journal(Memory):
    """Keeps a study in a folder that only its owner may read.

    Every write is on disk before the study goes on. A line that a kill has cut off is dropped: its
    run is done again, with the same seed.

    Args:
        folder: made if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder: Path = Path(folder)

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.json"

    @property
    def _records_path(self) -> Path:
        return self.folder / "runs.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder against other processes.

        Raises:
            ValueError: another process runs the study, or the folder holds something else.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = {path.name.removesuffix(_DRAFT) for path in self.folder.iterdir()}
            # What is not a study's is neither closed to others nor deleted in the end.
            if names and not (_LOCK in names and names <= {*_NAMES}):
                raise ValueError(
                    f"folder must be empty, new, or that of a study, got {str(self.folder)!r}"
                )
            self.folder.chmod(0o700)
        except OSError as error:
            raise ValueError(
                f"folder must be one that can be made and written, got {str(self.folder)!r}"
            ) from error
        with open(self.folder / _LOCK, "a", opener=_private) as lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:
                pass  # no such locks on Windows
            except OSError as error:
                raise ValueError(
                    f"folder must be that of a study not running elsewhere, got {self.folder}"
                ) from error
            yield

    def state(self) -> dict[str, Any] | None:
        """What was begun; None if nothing was.

        Raises:
            ValueError: the folder holds something else.
        """
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"folder must hold a study, got {self._state_path}") from error
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise ValueError(f"folder must hold a study of format {_FORMAT}, got {self.folder}")
        return state

    def begin(self, state: dict[str, Any]) -> None:
        """Writes the key of all draws, at once or not at all."""
        _write(self.folder / "READ_ME_PRIVATE.txt", _WORDS)
        _write(self.folder / ".gitignore", "*\n")
        self._records_path.unlink(missing_ok=True)
        _write(self._state_path, json.dumps({"format": _FORMAT, **state}))

    def records(self) -> list[Record]:
        """The runs that are over; what a kill has cut off is removed from the file."""
        try:
            lines = self._records_path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = json.loads(line)
                row["point"], row["checked"] = tuple(row["point"]), tuple(row["checked"])
                found.append(Record(**row))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise ValueError(
                    f"folder must hold the runs of a study, got a damaged line {number} in "
                    f"{self._records_path}"
                ) from error
        if lines[-1]:
            with open(self._records_path, "r+b") as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        return found

    def add(self, record: Record) -> None:
        with open(self._records_path, "a", encoding="utf-8", opener=_private) as file:
            file.write(json.dumps(asdict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        """Deletes the folder; what else may lie in it stays."""
        for name in _NAMES:
            if name == _MODELS:
                shutil.rmtree(self.folder / name, ignore_errors=True)
                continue
            for one in (name, name + _DRAFT):
                (self.folder / one).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(path: Path, text: str) -> None:
    """Writes a file at once or not at all, and waits until it is on disk."""
    draft = path.with_name(path.name + _DRAFT)
    with open(draft, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
