"""Checkpoints of one run: its folder, its saved state, and the steps whose noise is drawn again.

A run that is interrupted and resumed is one run if it continues with the same noise. Its output is
then the same function of the records and of the seed, and the interruption costs nothing. If the
state of the generator cannot be saved, or if a repeated step is not the same step, then the resumed
run draws new noise, and all steps count that the attempts at the run may have taken. The study
accounts for `redrawn_steps` steps more than one run has. A run that may need more is not resumed.

A run whose noise cannot be continued takes at most T + R steps over all of its attempts, discarded
steps included (docs/theory.md, "Interrupted runs"). So the log of a run, in its folder, has a line
before the first step of every attempt, and a line after every saved state. The journal of the study
counts how often the run was handed over; if a line of the log is missing, that attempt counts as a
whole run.

The state is a file of values and arrays, written atomically and read without pickle. It has a
header in json and the bytes of its arrays, followed by a checksum. It holds plain values, lists,
tuples, dictionaries, and arrays of numpy, torch and JAX. No class of the user is stored, so reading
a file runs no code of anyone else.
"""

import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput
from audit.files import make_folder, open_same, write_durably
from audit.tuning import snapshots

RUNS = "runs"
"""Name of the folder of all runs, in the folder of a study."""
_STATE, _FILES, _ATTEMPTS = "state", "files", "attempts.jsonl"

_MAGIC = b"dp-tuning-audit state 1\n"
_CHECKSUM_BYTES = 32
_LENGTH_BYTES = 8
_DRAFT = ".draft"


@dataclass(frozen=True)
class PastAttempt:
    """What the log says about an earlier attempt.

    Attributes:
        start: the number of steps in the state that it loaded; 0 if it loaded none.
        saved: the number of steps in the last state that it is known to have saved, or `start`.
        limited: whether it could not take more than `checkpoint_every` steps after a saved state.
        renewed: whether it drew new noise and new batches from its start on.
        refused: whether it ended before its first step.
        machine: the properties of its machine.
    """

    start: int = 0
    saved: int = 0
    limited: bool = False
    renewed: bool = False
    refused: bool = False
    machine: Mapping[str, str] | None = None


def steps_taken(
    attempts: Sequence[PastAttempt], steps: int, interval: int | None, *, same_noise: bool
) -> int:
    """The largest number of steps that attempts at a run may have taken together.

    Args:
        attempts: the attempts, in their order.
        steps: number of steps of the run.
        interval: the number of steps after which a limited attempt must have saved its state.
        same_noise: whether attempts on one machine repeat the same steps with the same noise and
            the same rounding. Such attempts are one: together they take no other steps than a
            single run from the start of the first of them.

    Returns:
        The number of steps with different noise or rounding, discarded steps included.
    """
    total, group_start, group_steps = 0, 0, 0
    before: PastAttempt | None = None
    for attempt in attempts:
        if attempt.refused:
            continue
        # An attempt takes at most the steps that remain after its start. A limited one takes at
        # most an interval after its last state, because the next step raises an error.
        max_steps = steps - attempt.start
        if attempt.limited and interval is not None:
            max_steps = min(max_steps, attempt.saved - attempt.start + interval)
        joins = (
            same_noise
            and before is not None
            and not attempt.renewed
            and attempt.start >= group_start
            and same_machine(attempt.machine, before.machine)
        )
        if joins:
            group_steps = steps - group_start
        else:
            total += group_steps
            group_start, group_steps = attempt.start, max_steps
        before = attempt
    return total + group_steps


def same_machine(first: Mapping[str, str] | None, second: Mapping[str, str] | None) -> bool:
    """Whether two machines agree in all properties that are known of both."""
    if first is None or second is None:
        return False
    return not differences(first, second)


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The properties of the first machine that the second is known not to have."""
    return [
        f"{name} {value}"
        for name, value in first.items()
        if name in second and second[name] != value
    ]


class AttemptLog:
    """The log of a run: in its folder, or in memory if there is none.

    Args:
        path: the file; None to keep the log in memory.
        handed_over: how often the study has handed over the run, the present time included.
    """

    def __init__(self, path: Path | None, handed_over: int = 1) -> None:
        self._path = path
        self._handed_over = handed_over
        self._lines: list[dict[str, Any]] = []
        self._attempt = ""

    def hand_over(self) -> None:
        """Notes that the study hands over the run, before a worker receives it."""
        self._note({"handed_over": self._handed_over})

    def begin(self, machine: Mapping[str, str]) -> None:
        """Notes a new attempt, before its first step."""
        self._attempt = secrets.token_hex(8)
        self._note({"attempt": self._attempt, "machine": dict(machine)})

    def add(self, **changes: Any) -> None:
        """Notes more about the present attempt; the line is on disk when this returns."""
        self._note({"attempt": self._attempt, **changes})

    def is_latest(self) -> bool:
        """Whether no other attempt has begun since this one."""
        attempts = [line["attempt"] for line in self._read() if "machine" in line]
        return not attempts or attempts[-1] == self._attempt

    def earlier(self) -> list[PastAttempt]:
        """All attempts but the present one."""
        lines = self._read()
        noted = {line.get("handed_over") for line in lines}
        if self._path is None:
            missing = self._handed_over - 1
        else:
            missing = sum(number not in noted for number in range(1, self._handed_over))
        attempts: dict[str, dict[str, Any]] = {}
        for line in lines:
            if (name := line.get("attempt")) is not None and name != self._attempt:
                attempts.setdefault(name, {}).update(line)
        return [PastAttempt()] * missing + [_past(entry) for entry in attempts.values()]

    def _read(self) -> list[dict[str, Any]]:
        if self._path is None:
            return self._lines
        try:
            with open(self._path, encoding="utf-8", opener=open_same) as file:
                text = file.read()
        except FileNotFoundError:
            return []
        entries = []
        for line in text.split("\n"):
            # A line that a killed process did not complete is that of an attempt without a step.
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    entries.append(entry)
        return entries

    def _note(self, line: dict[str, Any]) -> None:
        if self._path is None:
            self._lines.append(line)
            return
        with open(self._path, "a", encoding="utf-8", opener=open_same) as file:
            file.write("\n" + json.dumps(line) + "\n")  # the former line may be incomplete
            file.flush()
            os.fsync(file.fileno())


def _past(entry: Mapping[str, Any]) -> PastAttempt:
    values = {field.name: entry[field.name] for field in fields(PastAttempt) if field.name in entry}
    values["saved"] = max(values.get("saved", 0), values.get("start", 0))
    return PastAttempt(**values)


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
        handed_over: how often the study has handed over this run, the present time included.
        is_repeated: whether the workers may begin a run again without the study's knowledge.
        renews_always: whether a resumed run draws new noise in any case, for the rehearsal.
        error: why the run cannot go on. It is kept because `train` may catch the exception.
    """

    folder: Path | None = None
    steps: int | None = None
    rules: ResumeRules = field(default_factory=ResumeRules)
    before_save: Callable[[int], None] | None = field(default=None, repr=False)
    handed_over: int = 1
    is_repeated: bool = False
    renews_always: bool = False
    error: str = field(default="", init=False)
    saved: int = field(default=0, init=False)
    resumed_at: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._temporary: Path | None = None
        self._log = AttemptLog(None)
        self._start = self._last_saved = 0
        self._redraws = ""  # the reason why the noise of this run cannot be continued
        self._has_loaded = self._renewed = False
        self._watched: int | None = None  # steps since the last state; None if they are not seen
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
    def begins_again(self) -> bool:
        """Whether there was an earlier attempt whose state this one has not asked for."""
        return not self._has_loaded and bool(self._log.earlier())

    @property
    def last_saved(self) -> int:
        """The number of steps before the last saved state; 0 without one."""
        return self._last_saved

    @property
    def unrecorded_steps(self) -> int:
        """Steps before the resumption that the accountant of the resumed run has not recorded."""
        return self._unrecorded

    def hand_over(self) -> None:
        """Notes in the folder of the run that a worker is about to receive it."""
        with self._stopping():
            self._open_log().hand_over()

    def begin(self) -> None:
        """Notes a new attempt at the run, before its first step."""
        folder = self._visible_folder
        with self._stopping():
            self._log = self._open_log()
            if self.folder is not None and folder is None and self.rules.redrawn_steps:
                # An attempt that leaves no line in the log would not be counted.
                raise InvalidInput(
                    f"folder must be on a disk that every worker sees, because redrawn_steps is "
                    f"given, got {str(self.folder.parent.parent)!r}, which this worker does not see"
                )
            self._log.begin(snapshots.machine())
            has_state = folder is not None and (folder / _STATE).exists()
            if not has_state and (reason := self._other_machine()):
                self._check_before_first_step(reason)  # and not after all steps

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
            steps = checks.integer("steps", steps, self._last_saved, self.steps)
            recorded = snapshots.recorded_steps(objects)
            self._check_claimed(steps, recorded)
            if reason := self._redraws or snapshots.reason_to_redraw(objects):
                self.redraws(reason)
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
            if reason:
                self._log.add(saved=steps)
        self.saved += 1
        self._last_saved = steps
        if self._watched is not None:
            self._watched = 0

    def load(self, objects: dict[str, Any], device: str = "cpu") -> dict[str, Any] | None:
        """Restores the saved state; None if there is none, and the run begins at its first step."""
        with self._stopping():
            if self._has_loaded or self.saved:  # the run goes back: this is a new attempt
                self._log.begin(snapshots.machine())
            elif snapshots.recorded_steps(objects):
                raise InvalidInput(
                    "load_state must be called before the first step, got an accountant that has "
                    "recorded steps"
                )
            content = read_state(self._state_path())
            self._start = self._last_saved = 0 if content is None else content["steps"]
            reason = self._reason_to_renew(content, objects)
            if reason:
                self._check_before_first_step(reason)
            values = {} if content is None else snapshots.restore(content, objects, device)
            self._renewed = bool(reason) and bool(self._log.earlier())
            if self._renewed or (self.renews_always and content is not None):
                values = snapshots.renew(objects, values)
            self._watch(objects)
            self._log.add(
                start=self._start,
                limited=self._watched is not None,
                renewed=self._renewed,
                machine=snapshots.machine(),
            )
        self._has_loaded = True
        if content is None:
            return None
        self.resumed_at = content["steps"]
        if not content["recorded"]:
            self._unrecorded = content["steps"]
        return {**values, "steps": content["steps"]}

    def redraws(self, reason: str) -> None:
        """Notes that the noise of this run cannot be continued, and counts all steps so far."""
        self._redraws = reason
        with self._stopping():
            self._check_counted(reason)

    def end(self) -> None:
        """Checks the last interval between checkpoints and all attempts, after the last step."""
        with self._stopping():
            if self._redraws:
                if self.steps is not None:
                    self._check_interval(self.steps)
                self._check_counted(self._redraws)
            elif not self._renewed and (reason := self._other_machine() or self._unseen_reason()):
                self._check_counted(reason)

    def discard(self) -> None:
        """Deletes the temporary folder of the run."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _open_log(self) -> AttemptLog:
        folder = self._visible_folder
        if folder is None:
            return AttemptLog(None, self.handed_over)
        make_folder(folder.parent, 0o700)
        make_folder(folder, 0o700)
        return AttemptLog(folder / _ATTEMPTS, self.handed_over)

    def _check_claimed(self, steps: int, recorded: int | None) -> None:
        """Compares the stated number of steps with those that were recorded and seen."""
        if recorded is not None and self.steps is not None:
            expected = steps - self._unrecorded
            if recorded != expected:
                raise InvalidInput(
                    f"steps must be the number that the accountant has recorded, {recorded}, "
                    f"got {expected}"
                )
        if self._watched is not None and steps - self._last_saved != self._watched:
            raise InvalidInput(
                f"steps must be the number of steps that the optimizer has taken, "
                f"{self._last_saved + self._watched}, got {steps}"
            )

    def _reason_to_renew(self, content: dict[str, Any] | None, objects: dict[str, Any]) -> str:
        """Why this attempt would not continue the same run; "" if it does."""
        saved_reason = "" if content is None else content["redraws"]
        self._redraws = saved_reason or snapshots.reason_to_redraw(objects) or self._redraws
        if self._redraws:
            return self._redraws
        if content is None:
            return self._other_machine()
        differs = differences(content["machine"], snapshots.machine())
        if not differs:
            return ""
        return f"its checkpoint was written with {', '.join(differs)}, which rounds otherwise"

    def _other_machine(self) -> str:
        """Why an attempt without a saved state is not the same run as the earlier attempts."""
        if self._start:
            return ""
        for attempt in self._log.earlier():
            differs = differences(attempt.machine or {}, snapshots.machine())
            if differs and not attempt.refused:
                return f"it began on a machine with {', '.join(differs)}, which rounds otherwise"
        return ""

    def _unseen_reason(self) -> str:
        """Why an attempt whose objects the study has not seen may not be the same run as earlier.

        Such a loop has no checkpoint. The study then judges by what the process has used.
        """
        is_seen = self._has_loaded or bool(self.saved)
        return "" if is_seen or not self._log.earlier() else snapshots.reason_of_process()

    def _watch(self, objects: dict[str, Any]) -> None:
        """Limits the steps after a saved state, if the noise cannot be continued and is seen."""
        self._watched = None
        is_limited = self._redraws and self.rules.checkpoint_every is not None
        if is_limited and snapshots.watch_steps(objects, self._before_step):
            self._watched = 0

    def _before_step(self) -> None:
        """Refuses a step that is more than an interval after the last state."""
        assert self._watched is not None
        with self._stopping():
            self._check_interval(self._last_saved + self._watched + 1)
        self._watched += 1

    def _check_counted(self, reason: str) -> None:
        """Checks the budget, and that repeated steps have new noise and new batches."""
        self._check_budget(reason)
        if not self._log.is_latest():
            raise InvalidInput(
                "workers must not train one run at the same time if its noise cannot be continued, "
                "got another attempt that began later; run the same study again, and it resumes"
            )
        if self._log.earlier() and not self._renewed:
            raise InvalidInput(
                "load_state must be called before the first step, with every generator of the run, "
                "because a run that is repeated needs new noise and new batches, got an earlier "
                f"attempt and no load_state that could renew them: {reason} (if there may be no "
                "state yet, call save_state(0, ...) at the beginning)"
            )

    def _check_before_first_step(self, reason: str) -> None:
        """Checks the budget; notes that a refused attempt takes no step."""
        try:
            self._check_budget(reason)
        except InvalidInput:
            self._log.add(refused=True)
            raise

    def _check_budget(self, reason: str) -> None:
        """Checks that all attempts together take at most `redrawn_steps` more than one run."""
        if self.is_repeated and self._visible_folder is None:
            raise InvalidInput(
                "folder must be on a disk that every worker sees, because this backend may begin a "
                f"run again, and {reason}"
            )
        earlier = self._log.earlier()
        if not earlier:
            return
        allowed, extra = self.rules.redrawn_steps, None
        if self.steps is not None:
            # This attempt takes at most T - start steps, so all take at most T + extra.
            interval, same_noise = self.rules.checkpoint_every, not self._redraws
            taken = steps_taken(earlier, self.steps, interval, same_noise=same_noise)
            extra = max(taken - self._start, 0)
        if extra is None or extra > allowed:
            steps = "its steps" if extra is None else f"{extra} steps"
            raise InvalidInput(
                f"redrawn_steps must be at least the number of steps that this run may repeat with "
                f"other noise ({steps}), got {allowed}: {reason}; the run cannot be resumed here, "
                "and Study.stop releases the best of the finished runs"
            )

    def _check_interval(self, steps: int) -> None:
        interval = self.rules.checkpoint_every
        if interval is not None and steps - self.last_saved > interval:
            raise InvalidInput(
                f"save_state must be called after at most {interval} steps (checkpoint_every), got "
                f"{steps - self.last_saved} steps without it"
            )

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


def write_state(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file atomically: a process that is killed leaves the former file.

    The draft has a random name and is created exclusively, so that two processes that write the
    same file cannot mix their contents.

    Raises:
        InvalidInput: a value is none that can be stored.
        OSError: the file cannot be written.
    """
    arrays: list[NDArray[np.uint8]] = []
    packed = _pack(dict(content), arrays, "state")
    header = json.dumps({"content": packed, "sizes": [array.size for array in arrays]}).encode()
    body: list[Any] = [_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "big"), header, *arrays]
    checksum = hashlib.sha256()
    for chunk in body:
        checksum.update(chunk)
    draft = path.with_name(f"{path.name}{_DRAFT}-{secrets.token_hex(8)}")
    write_durably(path, [*body, checksum.digest()], draft)


def read_state(path: Path) -> dict[str, Any] | None:
    """The content of a file; None if it does not exist, is damaged, or is a link."""
    try:
        with open(path, "rb", opener=open_same) as file:
            data = file.read()
    except OSError:
        return None
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != checksum:
        return None
    start = len(_MAGIC) + _LENGTH_BYTES
    end = start + int.from_bytes(body[len(_MAGIC) : start], "big")
    header = json.loads(body[start:end])
    arrays = []
    for size in header["sizes"]:
        arrays.append(np.frombuffer(body, np.uint8, size, end).copy())
        end += size
    content: dict[str, Any] = _unpack(header["content"], arrays)
    return content


def _pack(value: Any, arrays: list[NDArray[np.uint8]], name: str) -> Any:
    """The value as json; arrays are appended to the list and replaced by their position."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    kind = type(value)
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind in (list, tuple):
        return {kind.__name__: [_pack(item, arrays, name) for item in value]}
    if isinstance(value, Mapping) and kind.__module__ in ("builtins", "collections"):
        items = [item for pair in value.items() for item in pair]
        return {"dict": [_pack(item, arrays, name) for item in items]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        scalar = {"scalar": True} if isinstance(value, np.generic) else {}
        return {"numpy": _add(arrays, np.asarray(value)), **scalar}
    packers: dict[str, Callable[..., Any]] = {"torch": _pack_torch, "jax": _pack_jax}
    for library, packer in packers.items():
        if library in sys.modules and (packed := packer(value, arrays)) is not None:
            return packed
    raise InvalidInput(
        f"{name} must hold numbers, text, arrays of numpy, torch or JAX, and lists, tuples and "
        f"dictionaries of them, got {checks.kind_of(value)}; pass an object with state_dict and "
        "load_state_dict by itself"
    )


def _add(arrays: list[NDArray[np.uint8]], array: NDArray[Any]) -> list[Any]:
    arrays.append(np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8))
    # The names of JAX's own types, such as bfloat16, say more than their codes.
    text = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
    return [len(arrays) - 1, text, list(array.shape)]


def _pack_torch(value: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    arrays.append(flat.numpy().copy())
    kind = str(value.dtype).removeprefix("torch.")
    return {"torch": [len(arrays) - 1, kind, list(value.shape)], "device": value.device.type}


def _pack_jax(value: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    jax = sys.modules["jax"]
    if not isinstance(value, jax.Array):
        return None
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value))
        return {"key": _add(arrays, data), "generator": str(jax.random.key_impl(value))}
    return {"jax": _add(arrays, np.asarray(value))}


def _unpack(packed: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    if not isinstance(packed, dict):
        return packed
    kind, content = next(iter(packed.items()))
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("list", "tuple"):
        values = [_unpack(value, arrays) for value in content]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        items = [_unpack(item, arrays) for item in content]
        return dict(zip(items[::2], items[1::2], strict=True))
    place, dtype, shape = content
    data = arrays[place]
    if kind == "torch":
        import torch

        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
    if kind == "numpy":
        array = data.view(np.dtype(dtype)).reshape(shape)
        return array[()] if "scalar" in packed else array
    import jax

    array = data.view(jax.numpy.dtype(dtype)).reshape(shape)
    if kind == "key":
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=packed["generator"])
    return jax.numpy.asarray(array)
