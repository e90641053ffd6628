"""The journal of a study on disk, from which an interrupted study resumes with the same draws.

It contains the number of runs, every candidate and every score. So only its owner may read it, and
it is deleted when the study is over.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audit import files, processes
from audit.errors import InvalidInput
from audit.files import open_same
from audit.tuning.checkpoints import RUNS

_FORMAT = 3
_STATE: dict[str, Any] = {"settings": str, "key": str, "runs": (int, list, type(None))}
# In the order of deletion. The state, which then says that the study is over, is deleted after the
# runs, so that a folder with runs and no state is recognised as damaged. The lock is deleted last,
# because it marks the folder as that of a study.
_MODELS, _LOCK = "models", "lock"
_NAMES = (
    "runs.jsonl",
    "end.json",
    _MODELS,
    RUNS,
    "state.json",
    "READ_ME_PRIVATE.txt",
    ".gitignore",
    _LOCK,
)
_DRAFT, _OVER, _HANDED_OVER = ".draft", "over", "handed_over"
_WORDS = """PRIVATE. This folder belongs to a differentially private tuning that is not over.

It contains the number of runs, all candidates and their scores. The guarantee of the tuning does
not hold against anyone who reads it. Do not publish, log or commit it; it is deleted at the end.
"""


@dataclass(frozen=True)
class Record:
    """A finished run, as kept for resuming.

    The score is None if the run lost. `model` is a digest by which its model is recognised, and
    `checked` names the checks that it passed. `noises` identifies the noise of its global
    generators: no two runs share an entry.
    """

    index: int
    point: tuple[float, ...]
    score: float | None
    model: str | None = None
    checked: tuple[str, ...] = ()
    accepted: bool = False
    raised: bool = False
    noises: tuple[str, ...] = ()


class Memory:
    """Keeps a study in this process only."""

    folder: Path | None = None

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None
        self._records: list[Record] = []
        self._handed_over = Counter[int]()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Does nothing: no other process shares this memory."""
        yield

    def state(self) -> dict[str, Any] | None:
        """The state of the study; None if it has not begun."""
        return self._state

    def begin(self, state: dict[str, Any]) -> None:
        """Stores the state with the key of all draws, before the first draw."""
        self._state = state

    def hand_over(self, index: int) -> None:
        """Notes that a run is about to begin, or to begin again, here or on a worker."""
        self._handed_over[index] += 1

    def times_handed_over(self, index: int) -> int:
        """How often a run has been handed over; some of these attempts may not have begun."""
        return self._handed_over[index]

    def records(self) -> list[Record]:
        """The finished runs."""
        return list(self._records)

    def add(self, record: Record) -> None:
        """Adds a finished run."""
        self._records.append(record)

    def forget_runs(self) -> None:
        """Deletes the folders of all runs."""

    def begun(self) -> int:
        """Number of runs that may have begun: they were handed over."""
        self.records()
        return len(self._handed_over)

    def end(self) -> None:
        """Deletes the study."""
        self._state, self._records = None, []
        self._handed_over.clear()


class Journal(Memory):
    """Keeps a study in a folder that only its owner may read.

    Every write is on disk before the study continues. There is a line for every finished run, and
    one for every time that a run was handed over. An incomplete last line is dropped: its run is
    repeated with the same seed, or was not handed over. Each line has a checksum over all lines
    before it, and `end.json` has the number of lines with a checksum, so that an edited or
    shortened journal is refused. An old copy of the whole folder cannot be recognised: it repeats
    the later runs with their seeds.
    """

    def __init__(self, folder: str | Path) -> None:
        if "\0" in str(folder):
            raise InvalidInput(f"folder must be a name without null characters, got {folder!r}")
        self.folder: Path = Path(folder).absolute()
        self._state_path = self.folder / "state.json"
        self._records_path = self.folder / "runs.jsonl"
        self._end_path = self.folder / "end.json"
        self._checksum, self._lines = "", 0
        self._handed_over = Counter[int]()
        self._writing = threading.Lock()  # joblib hands over runs in a thread of its own

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other processes."""
        try:
            files.make_folder(self.folder, 0o700, parents=True)
            names = {path.name.removesuffix(_DRAFT) for path in self.folder.iterdir()}
            # Files that belong to something else must be neither hidden nor deleted.
            if names and not (_LOCK in names and names <= {*_NAMES}):
                foreign = sorted(names - {*_NAMES}) or sorted(names)
                raise InvalidInput(
                    f"folder must be empty, new, or that of a study, got {str(self.folder)!r}, "
                    f"which holds {foreign[0]!r}"
                )
            self.folder.chmod(0o700)
        except OSError as error:
            raise InvalidInput(
                f"folder must be one that can be created and written, got {str(self.folder)!r}"
            ) from error
        with contextlib.ExitStack() as stack:
            with self._written():
                try:
                    stack.enter_context(processes.locked(self.folder / _LOCK, wait=False))
                except TimeoutError as error:
                    raise InvalidInput(
                        f"folder must be that of a study not running elsewhere, got {self.folder}"
                    ) from error
            yield

    def state(self) -> dict[str, Any] | None:
        """The state of the study; None if it has not begun."""
        if not (text := self._read(self._state_path)) and not self._state_path.exists():
            for path in (self._records_path, self._end_path, self.folder / _MODELS):
                if path.exists() or path.is_symlink():
                    raise self._edited(self._state_path, f", got {path.name} without it")
            return None
        try:
            state = json.loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"folder must hold a study, got {self._state_path}") from error
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise InvalidInput(f"folder must hold a study of format {_FORMAT}, got {self.folder}")
        if state.get(_OVER) is True:  # its deletion was interrupted
            return None
        checksum = state.pop("checksum", None)
        is_complete = all(
            name in state and isinstance(state[name], _STATE[name]) for name in _STATE
        )
        if not is_complete or checksum != _checksum("", state):
            raise self._edited(self._state_path)
        return state

    def begin(self, state: dict[str, Any]) -> None:
        """Writes the state with the key of all draws atomically."""
        state = {**state, "format": _FORMAT}
        with self._written():
            write_durably(self.folder / "READ_ME_PRIVATE.txt", _WORDS)
            write_durably(self.folder / ".gitignore", "*\n")
            text = json.dumps({**state, "checksum": _checksum("", state)})
            if self._state_path.exists() and self.state() is not None:
                # an aborted study; a kill must not bring it back
                write_durably(self._state_path, text)
            self.forget_runs()
            shutil.rmtree(self.folder / _MODELS, ignore_errors=True)
            for path in (self._records_path, self._end_path):
                path.unlink(missing_ok=True)
            write_durably(self._state_path, text)
        self._checksum, self._lines = _checksum("", state), 0
        self._handed_over.clear()

    def records(self) -> list[Record]:
        """The finished runs; an incomplete last line is removed from the file."""
        self._checksum, self._lines = _checksum("", self.state() or {}), 0
        lines = self._read(self._records_path).split(b"\n")
        self._handed_over.clear()
        records, ends = [], [""]
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = json.loads(line)
                checksum = row.pop("checksum")
                if checksum != _checksum(self._checksum, row):
                    raise InvalidInput("checksum")
                if _HANDED_OVER in row:
                    self._handed_over[int(row[_HANDED_OVER])] += 1
                else:
                    for name in ("point", "checked", "noises"):
                        row[name] = tuple(row[name])
                    records.append(Record(**row))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise self._edited(self._records_path, f", got a damaged line {number}") from error
            self._checksum, self._lines = checksum, number
            ends.append(_end(number, checksum))
        # The process may have died between writing a line and the count of lines.
        end = self._read(self._end_path).decode(errors="replace")
        if end not in ends[-2:]:
            raise self._edited(
                self._records_path,
                f", got {self._lines} lines where {self._end_path} has {end[:8].split(' ')[0]!r}",
            )
        if lines[-1]:
            with self._written(), open(self._records_path, "r+b", opener=open_same) as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        if end != ends[-1]:  # a second death at this place must not leave two lines uncounted
            with self._written():
                write_durably(self._end_path, ends[-1])
        return records

    def add(self, record: Record) -> None:
        self._append(json.loads(json.dumps(asdict(record))))

    def hand_over(self, index: int) -> None:
        self._append({_HANDED_OVER: index})
        super().hand_over(index)

    def _append(self, row: dict[str, Any]) -> None:
        with self._writing, self._written():
            checksum = _checksum(self._checksum, row)
            with open(self._records_path, "a", encoding="utf-8", opener=open_same) as file:
                file.write(json.dumps({**row, "checksum": checksum}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            write_durably(self._end_path, _end(self._lines + 1, checksum))
            self._checksum, self._lines = checksum, self._lines + 1

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Turns an error of the disk into one clear line."""
        try:
            yield
        except OSError as error:
            raise InvalidInput(
                f"folder must be one that can be written, got {str(self.folder)!r} "
                f"({error.strerror}); run the same study again, and it resumes"
            ) from error

    def _read(self, path: Path) -> bytes:
        with self._written(), contextlib.suppress(FileNotFoundError):
            # A pipe or a device in its place would never end.
            if not stat.S_ISREG(path.lstat().st_mode):
                raise self._edited(path)
            with open(path, "rb", opener=open_same) as file:
                return file.read()
        return b""

    def _edited(self, path: Path, found: str = "") -> InvalidInput:
        return InvalidInput(
            f"folder must hold a study as it was written: {path} was edited or damaged{found}; "
            f"restore it (deleting {self.folder} begins a new study; the privacy cost of the runs "
            "so far remains)"
        )

    def forget_runs(self) -> None:
        shutil.rmtree(self.folder / RUNS, ignore_errors=True)

    def end(self) -> None:
        """Deletes the files of the study, and the folder if nothing else is in it."""
        # If the disk is full, an interrupted deletion may leave a folder that is refused.
        with contextlib.suppress(OSError):
            write_durably(self._state_path, json.dumps({"format": _FORMAT, _OVER: True}))
        for name in _NAMES:
            for path in (self.folder / name, self.folder / (name + _DRAFT)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _end(lines: int, checksum: str) -> str:
    """The text of `end.json`: the number of lines, and a checksum of it and of the last line."""
    return f"{lines} {_checksum(checksum, {'lines': lines})}"


def _checksum(before: str, row: dict[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(row, sort_keys=True)).encode()).hexdigest()


def write_durably(path: Path, text: str) -> None:
    """Writes a file atomically, and waits until it is on disk."""
    files.write_durably(path, [text.encode()], path.with_name(path.name + _DRAFT))
