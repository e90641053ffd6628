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

from audit.config import AuditConfig
from audit.game import Block, Trials

_CONFIG, _SHARDS = "config.json", "shards"


class DamagedShard(Exception):
    """A shard that is not what its block must have left."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one audit's results.

    Attributes:
        path: the folder.
        views: names of the views that every block's runs serve (`AuditConfig.view_names`).
    """

    path: Path
    views: tuple[str, ...] = ("",)

    @classmethod
    def open(cls, config: AuditConfig) -> "RunFolder":
        """Makes the folder, or opens the one that this very audit began.

        Raises:
            ValueError: the folder cannot be written, or holds an audit with other settings.
        """
        path = Path(config.out)
        folder = cls(path, config.view_names)
        try:
            (path / _SHARDS).mkdir(parents=True, exist_ok=True)
            if (path / _CONFIG).exists():
                folder._check(config)
            else:
                folder.write_text(_CONFIG, json.dumps(config.identity, indent=2) + "\n")
        except OSError as error:
            raise ValueError(
                f"out must be a writable folder, got {config.out!r}: {error}"
            ) from error
        return folder

    def _check(self, config: AuditConfig) -> None:
        try:
            there: dict[str, Any] = json.loads((self.path / _CONFIG).read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"out holds a {_CONFIG} that is not json, got {str(self.path)!r}: {error}"
            ) from error
        now = config.identity
        changed = [
            f"{name} {there.get(name)!r} there and {now.get(name)!r} now"
            for name in sorted(there.keys() | now.keys())
            if there.get(name) != now.get(name)
        ]
        if changed:
            raise ValueError(
                f"out must be a new folder or hold this audit, got {str(self.path)!r} with other "
                f"settings: {'; '.join(changed)}"
            )

    def write_text(self, name: str, text: str) -> Path:
        """Writes a text file of the folder, whole or not at all."""
        self.path.mkdir(exist_ok=True)
        with self._whole(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
        return self.path / name

    @contextlib.contextmanager
    def _whole(self, path: Path) -> Iterator[Path]:
        """A temporary neighbour of `path` that takes its place when the block ends well.

        Raises:
            ValueError: it cannot be written, for instance because the disk is full.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise ValueError(
                f"out must be a writable folder with room, got {str(self.path)!r}: {error}"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def shards(self, block: Block) -> list[Path]:
        """Where a block's trials lie, one file for every view."""
        names = [f"{block.name}-{view}" if view else block.name for view in self.views]
        return [self.path / _SHARDS / f"{name}.npz" for name in names]

    def has(self, blocks: Sequence[Block]) -> bool:
        """Whether every block has left its shards, whatever they hold."""
        return all(path.exists() for block in blocks for path in self.shards(block))

    def save(self, block: Block, games: Sequence[Trials]) -> None:
        """Writes a block's trials, each file whole or not at all."""
        for path, trials in zip(self.shards(block), games, strict=True):
            arrays = {field.name: getattr(trials, field.name) for field in fields(Trials)}
            with self._whole(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)

    def load(self, block: Block) -> tuple[Trials, ...]:
        """Reads a block's trials and checks that they are what the block must have left.

        Raises:
            FileNotFoundError: the block was not played yet.
            DamagedShard: a file cannot be read, or holds something else.
        """
        return tuple(_read(path, block) for path in self.shards(block))


def _read(path: Path, block: Block) -> Trials:
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {field.name: file[field.name] for field in fields(Trials)}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedShard(f"{path}: {error}") from error
    for name, array in arrays.items():
        if array.shape != (block.trials,):
            raise DamagedShard(f"{path}: {name} has shape {array.shape}, not {block.trials}")
    trials = Trials(**arrays)
    expected = block.start + np.arange(block.trials)
    if not np.array_equal(trials.trial, expected) or np.isnan(trials.score).any():
        raise DamagedShard(f"{path}: its trials are not those of the block")
    return trials
