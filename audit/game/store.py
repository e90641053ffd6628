"""Trials on disk: files are written completely or not at all, and verified when they are read."""

import contextlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from audit import checks, processes
from audit.errors import DamagedShard, InvalidInput
from audit.files import make_folder, writable, write_text, written_completely
from audit.game.binding import audit_digest, seal
from audit.game.play import Block, Trials

_CONFIG, _SHARDS, _LOCK = "config.json", "shards", ".lock"
_BOUND_TO = "bound_to"
_AUDIT, _SEAL = "audit", "seal"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder for one audit, until the context or the process ends; creates the folder."""
    with contextlib.ExitStack() as stack:
        try:
            with writable(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(processes.locked(folder / _LOCK, wait=False))
        except TimeoutError as held:
            raise InvalidInput(
                f"out must be a folder that no other process uses, got {str(folder)!r}, where "
                "another audit is running: wait until it ends, or choose another folder"
            ) from held
        yield


def is_started(folder: Path) -> bool:
    """Whether an audit was started in a folder."""
    return (folder / _CONFIG).exists()


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the audit in a folder, and the digests that its trials are bound to."""
    path = folder / _CONFIG
    try:
        stored = json.loads(checks.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        reason = checks.reason_of(error)
        raise InvalidInput(
            f"out holds a {_CONFIG} that is not json, got {str(folder)!r}: {reason}"
        ) from error
    if not isinstance(stored, dict) or not isinstance(stored.get(_BOUND_TO, {}), dict):
        raise InvalidInput(
            f"out holds a {_CONFIG} that is not an audit's, got {str(folder)!r} with "
            f"{str(stored)[:40]}"
        )
    bound_to = stored.pop(_BOUND_TO, {})
    return stored, bound_to


@dataclass(frozen=True)
class RunFolder:
    """The folder of the trials of an audit, which depend on `identity` and `bound_to`."""

    path: Path
    identity: dict[str, Any]
    bound_to: dict[str, Any]
    views: tuple[str, ...] = ("",)

    @cached_property
    def audit(self) -> str:
        """The digest of the audit, which every shard stores."""
        return audit_digest(self.identity, self.bound_to)

    def open(self) -> None:
        """Creates the folder, which must be locked, or checks that it holds the same audit."""
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            make_folder(self.path / _SHARDS)
            if not is_started(self.path):
                text = json.dumps(self.identity | {_BOUND_TO: self.bound_to}, indent=2)
                write_text(self.path / _CONFIG, text + "\n", new=True)
            self.check_same()

    def check_same(self) -> None:
        """Checks that the folder holds this audit; the error names the difference."""
        stored, stored_binding = read_settings(self.path)
        changed = [
            f"{name} {stored.get(name)!r} there and {self.identity.get(name)!r} now"
            for name in sorted(stored.keys() | self.identity.keys())
            if stored.get(name) != self.identity.get(name)
        ]
        if changed:
            raise InvalidInput(
                f"out must be a new folder or hold this audit, got {str(self.path)!r} with other "
                f"settings: {'; '.join(changed)}"
            )
        differences = _differences(stored_binding, json.loads(json.dumps(self.bound_to)))
        if differences:
            raise InvalidInput(
                f"out must be a new folder or hold this audit, got {str(self.path)!r}, whose "
                f"trials depend on another {', another '.join(differences)}"
            )

    def is_finished(self, blocks: Sequence[Block]) -> bool:
        """Whether the shards of every block exist; their content is not checked."""
        with writable(self.path):  # Its name may be too long.
            return all(path.exists() for block in blocks for path in self.shards(block))

    def shards(self, block: Block) -> list[Path]:
        """The files of a block's trials, one for every view."""
        names = [f"{block.name}-{view}" if view else block.name for view in self.views]
        return [self.path / _SHARDS / f"{name}.npz" for name in names]

    def save(self, block: Block, views: Sequence[Trials]) -> None:
        """Writes a block's trials, one file for every view."""
        for path, trials in zip(self.shards(block), views, strict=True):
            arrays = {field.name: getattr(trials, field.name) for field in fields(Trials)}
            marks = {
                _AUDIT: np.array(self.audit),
                _SEAL: np.array(seal(self.audit, path.name, arrays=arrays)),
            }
            with written_completely(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays, **marks)

    def load(self, block: Block) -> tuple[Trials, ...]:
        """Reads and verifies a block's trials; raises FileNotFoundError or DamagedShard."""
        return tuple(_read(path, self.audit) for path in self.shards(block))


def _differences(stored: dict[str, Any], current: dict[str, Any]) -> list[str]:
    changed = [name for name in current if stored.get(name) != current[name]]
    plug_ins = stored.get("plug_ins")
    named = [
        f"plug-in {name}"
        for name, digest in current["plug_ins"].items()
        if isinstance(plug_ins, dict) and plug_ins.get(name) != digest
    ]
    labels = [_WORDS.get(name, name) for name in changed if name != "plug_ins"]
    return [*labels, *named] or ["plug-in"] * bool(changed)


_WORDS = {
    "schema": "version of the files",
    "code": "version of the code",
    "data": "content of the data",
    "fixed": "noise, order or threshold",
}


def _read(path: Path, audit: str) -> Trials:
    try:
        stored = path.stat().st_size
        if not checks.is_stored_file(path):
            raise DamagedShard(f"{path}: it is empty or not an ordinary file")
        with open(path, "rb") as raw, zipfile.ZipFile(raw) as members:
            unpacked = sum(member.file_size for member in members.infolist())
        if unpacked > stored:
            raise DamagedShard(f"{path}: it unpacks to {unpacked} bytes, more than its own size")
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {field.name: file[field.name] for field in fields(Trials)}
            marks = {name: str(file[name]) for name in (_AUDIT, _SEAL)}
    except (FileNotFoundError, DamagedShard):
        raise
    except Exception as error:  # A damaged file can make the reader raise any exception.
        raise DamagedShard(f"{path}: {error}") from error
    if marks[_AUDIT] != audit:
        raise DamagedShard(f"{path}: it belongs to another audit")
    if marks[_SEAL] != seal(audit, path.name, arrays=arrays):
        raise DamagedShard(f"{path}: its content does not match its seal")
    return Trials(**arrays)
