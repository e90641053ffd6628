"""Trial records on disk: written whole or not at all, checked when read, never mixed."""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from audit import checks
from audit.game.binding import audit_digest, seal
from audit.game.play import Block, Trials
from audit.game.settings import AuditConfig

_CONFIG, _SHARDS, _LOCK = "config.json", "shards", ".lock"
_BOUND_TO = "bound_to"
_AUDIT, _SEAL = "audit", "seal"


class DamagedShard(Exception):
    """A shard that is not what its block must have left."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for one audit; the lock ends with the block, or with the process.

    Args:
        folder: the audit's folder, created if it does not exist.

    Raises:
        ValueError: another process holds the folder, or it cannot be written.
    """
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as held:
        raise ValueError(
            f"out must be a folder that no other process uses, got {str(folder)!r}, where another "
            "audit is running: wait until it ends, or choose another folder"
        ) from held
    except OSError as error:
        raise ValueError(f"out must be a writable folder, got {str(folder)!r}: {error}") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def written_whole(path: Path, *, new: bool = False) -> Iterator[Path]:
    """A temporary neighbour of `path` that takes its place when the block ends well.

    Args:
        path: the file.
        new: whether to keep a file that another process has written there in the meantime.

    Raises:
        ValueError: it cannot be written, for instance because the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        if new:
            _move_if_absent(temporary, path)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise ValueError(
            f"out must be a writable folder with room, got {str(path.parent)!r}: {error}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _move_if_absent(temporary: Path, path: Path) -> None:
    """Moves a file to a path, unless there is one."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links: the folder's lock is all there is
        os.replace(temporary, path)


def write_text(path: Path, text: str, *, new: bool = False) -> None:
    """Writes a text file, whole or not at all; its folder is made where it is absent.

    Args:
        path: the file.
        text: its content.
        new: whether to keep a file that another process has written there in the meantime.

    Raises:
        ValueError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"out must be a writable folder, got {str(path.parent)!r}: {error}"
        ) from error
    with written_whole(path, new=new) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def begun(folder: Path) -> bool:
    """Whether an audit was begun in a folder."""
    return (folder / _CONFIG).exists()


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the audit that was begun in a folder, and what its trials are bound to.

    Raises:
        ValueError: config.json is not what an audit leaves.
    """
    path = folder / _CONFIG
    try:
        there = json.loads(checks.read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"out holds a {_CONFIG} that is not json, got {str(folder)!r}: {error}"
        ) from error
    if not isinstance(there, dict) or not isinstance(there.get(_BOUND_TO, {}), dict):
        raise ValueError(
            f"out holds a {_CONFIG} that is not an audit's, got {str(folder)!r} with "
            f"{str(there)[:40]}"
        )
    bound_to = there.pop(_BOUND_TO, {})
    return there, bound_to


@dataclass(frozen=True)
class RunFolder:
    """The folder of one audit's trials.

    Attributes:
        path: the folder.
        audit: the audit's digest, which every shard carries (`binding.audit_digest`).
        views: names of the views that every block's runs serve (`AuditConfig.view_names`).
    """

    path: Path
    audit: str
    views: tuple[str, ...] = ("",)

    @classmethod
    def open(cls, config: AuditConfig, bound_to: dict[str, Any]) -> "RunFolder":
        """Makes the folder, or opens the one that this very audit began.

        The caller holds the folder (`locked`).

        Args:
            config: the audit.
            bound_to: what its trials come from beside the settings (`binding.binding`).

        Raises:
            ValueError: the folder cannot be written, or holds another audit.
        """
        folder = cls(Path(config.out), audit_digest(config, bound_to), config.view_names)
        try:
            (folder.path / _SHARDS).mkdir(parents=True, exist_ok=True)
            if not begun(folder.path):
                text = json.dumps(config.identity | {_BOUND_TO: bound_to}, indent=2)
                write_text(folder.path / _CONFIG, text + "\n", new=True)
            check_same(config, bound_to)
        except OSError as error:
            raise ValueError(
                f"out must be a writable folder, got {config.out!r}: {error}"
            ) from error
        return folder

    def shards(self, block: Block) -> list[Path]:
        """Where a block's trials lie, one file for every view."""
        names = [f"{block.name}-{view}" if view else block.name for view in self.views]
        return [self.path / _SHARDS / f"{name}.npz" for name in names]

    def save(self, block: Block, games: Sequence[Trials]) -> None:
        """Writes a block's trials, each file whole or not at all."""
        for path, trials in zip(self.shards(block), games, strict=True):
            arrays = {field.name: getattr(trials, field.name) for field in fields(Trials)}
            marks = {
                _AUDIT: np.array(self.audit),
                _SEAL: np.array(seal(self.audit, path.name, arrays=arrays)),
            }
            with written_whole(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays, **marks)

    def load(self, block: Block) -> tuple[Trials, ...]:
        """Reads a block's trials and checks that they are what the block left.

        Raises:
            FileNotFoundError: the block was not played yet.
            DamagedShard: a file cannot be read, belongs to another audit, or was changed.
        """
        return tuple(_read(path, self.audit) for path in self.shards(block))


def finished(config: AuditConfig, blocks: Sequence[Block]) -> bool:
    """Whether every block has left its shards in the audit's folder, whatever they hold."""
    folder = RunFolder(Path(config.out), "", config.view_names)
    return all(path.exists() for block in blocks for path in folder.shards(block))


def check_same(config: AuditConfig, bound_to: dict[str, Any]) -> None:
    """Checks that the folder of an audit holds this audit and no other.

    Args:
        config: the audit.
        bound_to: what its trials come from beside the settings (`binding.binding`).

    Raises:
        ValueError: it holds another audit; the message says what differs.
        OSError: its settings cannot be read.
    """
    folder, identity = Path(config.out), config.identity
    there, bound_there = read_settings(folder)
    changed = [
        f"{name} {there.get(name)!r} there and {identity.get(name)!r} now"
        for name in sorted(there.keys() | identity.keys())
        if there.get(name) != identity.get(name)
    ]
    if changed:
        raise ValueError(
            f"out must be a new folder or hold this audit, got {str(folder)!r} with other "
            f"settings: {'; '.join(changed)}"
        )
    now = json.loads(json.dumps(bound_to))
    others = [name for name in now if bound_there.get(name) != now[name]]
    if others:
        plug_ins = bound_there.get("plug_ins")
        named = [
            f"plug-in {name}"
            for name, digest in now["plug_ins"].items()
            if isinstance(plug_ins, dict) and plug_ins.get(name) != digest
        ]
        parts = [_WORDS.get(name, name) for name in others if name != "plug_ins"]
        raise ValueError(
            f"out must be a new folder or hold this audit, got {str(folder)!r} whose trials come "
            f"from another {', another '.join([*parts, *named] or ['plug-in'])}"
        )


_WORDS = {
    "schema": "version of the files",
    "code": "version of the code",
    "data": "content of the data",
    "fixed": "noise, order or threshold",
}


def _read(path: Path, audit: str) -> Trials:
    try:
        stored = path.stat().st_size
        with open(path, "rb") as raw, zipfile.ZipFile(raw) as members:
            unpacked = sum(member.file_size for member in members.infolist())
        if unpacked > stored:
            raise DamagedShard(f"{path}: it unpacks to {unpacked} bytes, more than its own size")
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {field.name: file[field.name] for field in fields(Trials)}
            marks = {name: str(file[name]) for name in (_AUDIT, _SEAL)}
    except (FileNotFoundError, DamagedShard):
        raise
    except Exception as error:  # what is read may be anything, and so may what its reader raises
        raise DamagedShard(f"{path}: {error}") from error
    if marks[_AUDIT] != audit:
        raise DamagedShard(f"{path}: it belongs to another audit")
    if marks[_SEAL] != seal(audit, path.name, arrays=arrays):
        raise DamagedShard(f"{path}: its content is not what its block left")
    return Trials(**arrays)
