"""One run of a study: training, checks and the score, with every error hidden.

Job schedulers announce the end of a job by a signal. A handler such as that of submitit then raises
an exception in the middle of a run. A run that such a signal cuts has not failed: the signal ends
the study, and the run is resumed.
"""

import contextlib
import hashlib
import math
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput, ProtocolViolation
from audit.processes import Devices
from audit.protocols.base import Point
from audit.tuning.isolation import seeded, silence, without_gradients
from audit.tuning.journal import Record
from audit.tuning.outcome import Outcome, Trial

_pending: list[BaseException] = []
Train = Callable[[Trial], Outcome]
Accept = Callable[[Outcome], bool]
# Random generators and output streams are global to a process, so runs take turns.
_one_at_a_time = threading.RLock()


class Interrupted(KeyboardInterrupt):
    """A signal handler raised an exception, which ends the study after the present run."""


def is_pending() -> bool:
    """Whether a signal handler has raised an exception, which a trainer may have caught."""
    return bool(_pending)


@contextlib.contextmanager
def interruptions() -> Iterator[None]:
    """Ends the study by the exception of a signal handler, whatever the running trainer does.

    It concerns the handlers that are installed when the study begins. Does nothing outside of the
    main thread, where Python calls no handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number, handler in replaced.items():
            signal.signal(number, _noting(handler))
        yield
    except KeyboardInterrupt:
        if _pending:
            raise _pending[0] from None
        raise
    finally:
        _pending.clear()
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _noting(handler: Callable[[int, FrameType | None], Any]) -> Callable[..., None]:
    def noting(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            _pending.append(error)
            raise Interrupted from error

    return noting


@dataclass(frozen=True)
class Attempt:
    """Result of one run, and whether the study must abort (`violation`) or was interrupted."""

    record: Record
    model: Any = None
    violation: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class Task:
    """One run, as sent to a worker process. It does not contain the key of the study."""

    train: Train
    trial: Trial
    index: int
    point: Point
    noise: float
    accept: Accept | None
    devices: Devices | None = None

    def __call__(self) -> Attempt:
        """Trains once. A run that fails counts and loses, and its error is not shown."""
        with _one_at_a_time, contextlib.ExitStack() as stack:
            if self.devices is not None:
                self.trial.device = self.devices.claim(stack)
            try:
                attempt = self._attempted()
            finally:
                self.trial.checkpoints.discard()
        if self.trial.checkpoints.error:
            # The run has not lost: it continues when the study is resumed.
            raise InvalidInput(self.trial.checkpoints.error)
        if attempt.interrupted or is_pending():
            raise KeyboardInterrupt
        return attempt

    def _attempted(self) -> Attempt:
        lost = Record(self.index, self.point, None)
        try:
            with silence(), seeded(self.trial.seed) as noise:
                self.trial.checkpoints.begin()
                outcome = self.train(self.trial)
                check_outcome(outcome, self.trial)
                model, noises = without_gradients(outcome.model), noise()
                score = outcome.score + self.noise
                accepted = (
                    self.accept is not None
                    and not outcome.lost
                    and _is_accepted(self.accept, Outcome(score, model))
                )
        except ProtocolViolation as error:
            return Attempt(lost, violation=str(error))
        except KeyboardInterrupt:
            return Attempt(lost, interrupted=True)
        except BaseException:  # its message may describe private records
            return Attempt(replace(lost, raised=True))
        if not math.isfinite(score):
            return Attempt(replace(lost, noises=noises))
        checked = tuple(sorted(self.trial.checked))
        record = Record(
            self.index, self.point, score, digest(model), checked, accepted, noises=noises
        )
        return Attempt(record, model)


def check_outcome(outcome: Any, trial: Trial) -> None:
    """Checks the outcome of a run, and again everything that was passed to `trial.check`."""
    if not isinstance(outcome, Outcome):
        raise ProtocolViolation(
            f"train must return a tuning.Outcome, got {checks.kind_of(outcome)}"
        )
    if trial.part is not None and "records" not in trial.checked:
        raise ProtocolViolation(
            "train must call trial.records(count) to learn which records it may read, because the "
            "tuning trains on a part of them"
        )
    trial.check_again()
    trial.checkpoints.end()


def _is_accepted(accept: Accept, outcome: Outcome) -> bool:
    try:
        answer = accept(outcome)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its message may describe private records
        raise ProtocolViolation(
            "accept must return True or False for every outcome, got an exception; "
            "study.rehearse shows it"
        ) from None
    return is_yes(answer)


def is_yes(answer: Any) -> bool:
    """The answer of `accept` as a bool. Others are refused: with None, a study would never end."""
    if not isinstance(answer, bool | np.bool_):
        raise ProtocolViolation(
            f"accept must return True or False for every outcome, got {checks.kind_of(answer)}"
        )
    return bool(answer)


def seeded_alike(noise: str) -> str:
    """Error message for two runs that drew the same noise from a global generator."""
    return (
        "train must draw its noise from trial.seed, or not seed global generators (for a fixed "
        "split of the data, use a separate generator), got two runs that seeded "
        f"{noise.split(':')[0]} equally"
    )


def digest(model: Any) -> str | None:
    """A digest by which a model is recognised when it is trained again; None if it has none."""
    if model is None:
        return ""
    state = getattr(model, "state_dict", None)
    try:
        content = state() if callable(state) else model
        if isinstance(content, Mapping):
            content = [(str(name), _bytes(value)) for name, value in content.items()]
        else:
            content = _bytes(content)
        return hashlib.sha256(pickle.dumps(content, protocol=4)).hexdigest()
    except Exception:  # a model of any class may raise anything here
        return None


def _bytes(value: Any) -> Any:
    numpy = getattr(value, "numpy", None)
    if callable(numpy):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        array: NDArray[Any] = value
        return (str(array.dtype), array.shape, array.tobytes())
    return value
