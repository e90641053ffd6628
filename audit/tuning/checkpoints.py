"""Checkpoints of one run: its folder, its saved state, and the steps whose noise is drawn again.

A run that is interrupted and resumed is one run if it continues with the same noise. Its output is
then the same function of the records and of the seed, and the interruption costs nothing. If the
state of the generator cannot be saved, or if a repeated step is not the same step, then the steps
since the checkpoint are counted twice. The study accounts for `redrawn_steps` such steps in every
run, and a run that would need more is not resumed.
"""

import contextlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.files import make_folder, open_same
from audit.tuning import snapshots
from audit.tuning.state_file import read_state, write_state

RUNS = "runs"
"""Name of the folder of all runs, in the folder of a study."""

_STATE, _FILES, _ATTEMPTS = "state", "files", "attempts.jsonl"


@dataclass(frozen=True)
class ResumeRules:
    """What a study allows a resumed run.

    Attributes:
        redrawn_steps: number of steps of one run that may be repeated with other noise. The cost of
            a run includes them.
        checkpoint_every: a run whose noise cannot be continued saves its state at least once in
            this many steps; None if it need not.
    """

    redrawn_steps: int = 0
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        checks.validate(self, "redrawn_steps", checks.integer, 0)
        if self.checkpoint_every is not None:
            checks.validate(self, "checkpoint_every", checks.integer, 1)


@dataclass
class Checkpoints:
    """The checkpoints of one run.

    Without a folder, or on a machine that does not see the folder of the study, the run has a
    temporary folder and cannot be resumed.

    Attributes:
        folder: the folder of the run, in that of the study; None for a study in memory.
        steps: the number of steps of a run; None if its mechanism has no steps.
        rules: what the study allows a resumed run.
        before_save: called before a state is written, with the number of states saved before.
        error: why the run cannot go on. It is kept because `train` may catch the exception.
    """

    folder: Path | None = None
    steps: int | None = None
    rules: ResumeRules = field(default_factory=ResumeRules)
    before_save: Callable[[int], None] | None = field(default=None, repr=False)
    error: str = field(default="", init=False)
    saved: int = field(default=0, init=False)
    resumed_at: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._temporary: Path | None = None
        self._attempt = 1
        self._last_saved = 0
        self._redraws = ""  # the reason why the noise of this run cannot be continued
        self._counts_restarts = True
        self._unrecorded = 0

    @property
    def _visible_folder(self) -> Path | None:
        """The folder of the run; None if this machine does not see that of the study."""
        if self.folder is None or not self.folder.parent.parent.is_dir():
            return None
        return self.folder

    @property
    def cannot_continue(self) -> bool:
        """Whether the noise of the run, or a step of it, cannot be continued as it was."""
        return bool(self._redraws)

    @property
    def last_saved(self) -> int:
        """The number of steps before the last saved state; 0 without one."""
        return max(self._last_saved, 0)

    @property
    def unrecorded_steps(self) -> int:
        """Steps before the resumption that the accountant of the resumed run has not recorded."""
        return self._unrecorded

    def begin(self) -> None:
        """Notes a new attempt at the run, before its first step."""
        folder = self._visible_folder
        if folder is None:
            return
        with self._stopping():
            make_folder(folder.parent, 0o700)
            make_folder(folder, 0o700)
            self._attempt = 1 + sum("redrawn" not in line for line in self._log())
            self._note({"attempt": self._attempt})

    def files(self) -> Path:
        """The folder for files of the user's own, which only the owner can read."""
        folder = self._visible_folder
        if folder is None:
            return self._temporary_folder() / _FILES
        with self._stopping():
            make_folder(folder / _FILES, 0o700)
        return folder / _FILES

    def save(self, steps: int, objects: dict[str, Any], device: str = "cpu") -> None:
        """Writes the state of the run after a number of steps, in place of the former state."""
        with self._stopping():
            steps = checks.integer("steps", steps, 0, self.steps)
            recorded = snapshots.recorded_steps(objects)
            if recorded is not None and self.steps is not None:
                expected = steps - self._unrecorded
                if recorded != expected:
                    raise InvalidInput(
                        f"steps must be the number that the accountant has recorded, {recorded}, "
                        f"got {expected}"
                    )
            if reason := snapshots.reason_to_redraw(objects):
                self.redraws(reason, saves=True)
                self._check_interval(steps)
            content = {
                "steps": steps,
                "redraws": reason,
                "machine": snapshots.machine(),
                "recorded": recorded is not None,
                **snapshots.take(objects, device),
            }
            if self.before_save is not None:
                self.before_save(self.saved)
            write_state(self._state_path(), content)
        self.saved += 1
        self._last_saved = steps

    def load(self, objects: dict[str, Any], device: str = "cpu") -> dict[str, Any] | None:
        """Restores the saved state; None if there is none, and the run begins at its first step."""
        with self._stopping():
            path = self._state_path()
            content = read_state(path)
            if content is None:
                if path.exists():  # damaged: the earlier attempts may have taken all steps
                    self._last_saved = -1
                return None
            self._check_resumable(content)
            values = snapshots.restore(content, objects, device)
        self._counts_restarts = False
        self.resumed_at = self._last_saved = content["steps"]
        if not content["recorded"]:
            self._unrecorded = content["steps"]
        return {**values, "steps": content["steps"]}

    def redraws(self, reason: str, *, saves: bool = False) -> None:
        """Notes that the noise of this run cannot be continued, and counts its restarts.

        `saves` states that the run saves its state, as its earlier attempts therefore did.
        """
        self._redraws = reason
        if not self._counts_restarts:
            return
        self._counts_restarts = False
        if (restarts := self._attempt - 1) > 0:
            with self._stopping():
                # Before its first checkpoint, an attempt takes at most the steps of an interval. A
                # loop without checkpoints, or one whose checkpoint was damaged, may take all.
                has_interval = saves and self._last_saved >= 0
                lost = self._most_lost(0) if has_interval else self.steps
                self._count(None if lost is None else restarts * lost, reason)

    def end(self) -> None:
        """Checks the last interval between checkpoints, after the last step of the run."""
        if self._redraws and self.steps is not None:
            with self._stopping():
                self._check_interval(self.steps)

    def discard(self) -> None:
        """Deletes the temporary folder of the run."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _check_resumable(self, content: dict[str, Any]) -> None:
        machine = snapshots.machine()
        differs = [
            f"{name} {value}"
            for name, value in content["machine"].items()
            if name in machine and machine[name] != value
        ]
        reason = content["redraws"]
        if not reason and differs:
            reason = f"its checkpoint was written with {', '.join(differs)}, which rounds otherwise"
        if reason:
            self._redraws = content["redraws"]
            self._counts_restarts = False
            self._count(self._most_lost(content["steps"]), reason)

    def _most_lost(self, steps: int) -> int | None:
        """The largest number of steps after a checkpoint that an earlier attempt may have taken."""
        if self.steps is None:
            return None
        interval = self.rules.checkpoint_every
        return self.steps - steps if interval is None else min(self.steps - steps, interval)

    def _count(self, lost: int | None, reason: str) -> None:
        """Counts steps that are repeated with other noise; they are noted before they are taken."""
        before = sum(line.get("redrawn", 0) for line in self._log())
        allowed = self.rules.redrawn_steps
        if lost is None or before + lost > allowed:
            steps = "its steps" if lost is None else f"{before + lost} steps"
            raise InvalidInput(
                f"redrawn_steps must be at least the number of steps that this run repeats with "
                f"other noise ({steps}), got {allowed}: {reason}; the run cannot be resumed here, "
                "and Study.stop releases the best of the finished runs"
            )
        if lost:
            self._note({"redrawn": lost})

    def _check_interval(self, steps: int) -> None:
        interval = self.rules.checkpoint_every
        if interval is not None and steps - self.last_saved > interval:
            raise InvalidInput(
                f"save_state must be called after at most {interval} steps (checkpoint_every), got "
                f"{steps - self.last_saved} steps without it"
            )

    def _log(self) -> list[dict[str, int]]:
        folder = self._visible_folder
        if folder is None:
            return []
        try:
            with open(folder / _ATTEMPTS, encoding="utf-8", opener=open_same) as file:
                lines = file.read().split("\n")
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            # A line that a killed process did not complete is that of an attempt without a step.
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    def _note(self, line: dict[str, int]) -> None:
        folder = self._visible_folder
        if folder is None:
            return
        with open(folder / _ATTEMPTS, "a", encoding="utf-8", opener=open_same) as file:
            file.write("\n" + json.dumps(line) + "\n")  # the former line may be incomplete
            file.flush()
            os.fsync(file.fileno())

    def _state_path(self) -> Path:
        return (self._visible_folder or self._temporary_folder()) / _STATE

    def _temporary_folder(self) -> Path:
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="dp-tuning-audit-run-"))
            make_folder(self._temporary / _FILES, 0o700)
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Keeps the reason of an error: the run has not lost, but the study stops."""
        try:
            yield
        except InvalidInput as error:
            self.error = str(error)
            raise
        except OSError as error:
            self.error = (
                f"folder must be one that can be written, got {str(self.folder)!r} "
                f"({error.strerror}); run the same study again, and it resumes"
            )
            raise InvalidInput(self.error) from error


def delete_run(study: Path | None, index: int) -> None:
    """Deletes the folder of a run; a link in its place is deleted, and not what it leads to."""
    if study is None:
        return
    path = study / RUNS / str(index)
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
