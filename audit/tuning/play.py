"""Runs a study to its end: trains, records every run, and keeps the best model only.

One run is a `Task`: training, checks and the score, with every error hidden. Several runs at once
are in processes of joblib. All draws follow from the key and the scores so far, so a study that is
interrupted resumes with the same draws.

Job schedulers announce the end of a job by a signal. A handler such as that of submitit then raises
an exception in the middle of a run. A run that such a signal cuts has not failed: the signal ends
the study, and the run is resumed.
"""

import contextlib
import hashlib
import itertools
import math
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput, ProtocolViolation, StudyAborted, require_modules
from audit.files import make_folder
from audit.processes import Devices, end_with_parent, loky_options, worker_deaths
from audit.protocols.base import Point
from audit.tuning.checkpoints import RUNS, delete_run
from audit.tuning.isolation import seeded, silence, without_gradients
from audit.tuning.journal import Memory, Record
from audit.tuning.outcome import Best, Outcome, Trial
from audit.tuning.plan import FINAL, Plan

Train = Callable[[Trial], Outcome]
Accept = Callable[[Outcome], bool]

_pending: list[BaseException] = []
# Random generators and output streams are global to a process, so runs take turns.
_one_at_a_time = threading.RLock()

_LOKY = "LokyBackend"
"""The backend that never begins a run again by itself. Dask does if a worker is lost."""


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


HandOver = Callable[[Task], Task]


def attempts(
    tasks: Callable[[], Iterator[Task]], jobs: int, hand_over: HandOver
) -> Iterator[Attempt]:
    """Yields the results of the remaining tasks, in any order, from processes of joblib.

    `hand_over` is called with each task, in any thread, before a worker receives it.
    """
    if jobs == 1:
        yield from (hand_over(task)() for task in tasks())
        return
    require_modules("game", "joblib")
    import joblib
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    if getattr(backend, "supports_sharedmem", False):
        raise InvalidInput(
            "joblib's active backend must run each job in a process (loky, dask or ray), got "
            f"{type(backend).__name__}"
        )
    # A run that waits for a worker has been handed over, so there is at most one for each.
    options = {"n_jobs": jobs, "pre_dispatch": "n_jobs"} | loky_options(_begin_worker)
    may_repeat = type(backend).__name__ != _LOKY
    # Ray returns nothing before the last run of a call is over, so each call has few runs.
    streams = backend.supports_return_generator
    share = None if streams else 4 * joblib.effective_n_jobs(jobs)
    while next(tasks(), None) is not None:
        errors: list[InvalidInput] = []
        sent = _handed_over(itertools.islice(tasks(), share), hand_over, may_repeat, errors)
        calls = (joblib.delayed(_attempt)(task) for task in sent)
        workers = joblib.Parallel(**options, return_as="generator_unordered" if streams else "list")
        died, results = False, None
        try:
            results = workers(calls)
            for result in results:  # noqa: UP028 (closed below, where it may warn)
                yield result
        except worker_deaths():  # their messages would reveal how many runs were left
            died = True
        finally:
            # When it is closed early, joblib's warning would reveal how many runs were left.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if streams and results is not None:
                    results.close()
        if errors:
            raise errors[0]
        if died:
            raise RuntimeError(
                "a worker process died, possibly because memory ran out; run the same study again "
                "(with fewer jobs if necessary), and it resumes with the same draws"
            )


def _handed_over(
    tasks: Iterator[Task], hand_over: HandOver, may_repeat: bool, errors: list[InvalidInput]
) -> Iterator[Task]:
    """Hands over the tasks; ends at the first error, which joblib's thread could not raise."""
    for task in tasks:
        task.trial.checkpoints.is_repeated = may_repeat
        try:
            yield hand_over(task)
        except InvalidInput as error:
            errors.append(error)
            return


def _begin_worker() -> None:
    """Silences a worker for its whole life, and ends it when the study's process ends."""
    end_with_parent()
    nowhere = open(os.devnull, "w")  # noqa: SIM115 (open as long as the worker lives)
    for descriptor in (1, 2):
        os.dup2(nowhere.fileno(), descriptor)
    sys.stdout = sys.stderr = nowhere


def _attempt(task: Task) -> Attempt:
    """Runs a task. It is a function because Dask cannot send a method and displays its name."""
    return task()


@dataclass(frozen=True)
class Played:
    """The released run, and the names of the checks that every run that could win has passed."""

    best: Best
    checked: frozenset[str] = frozenset()


def play(
    plan: Plan,
    key: int,
    runs: Sequence[int] | None,
    train: Train,
    memory: Memory,
    *,
    accept: Accept | None = None,
    jobs: int = 1,
    devices: Devices | None = None,
    save: Callable[[Any, Path], None] | None = None,
    load: Callable[[Path], Any] | None = None,
) -> Played:
    """Runs a study from where its memory ends to its end.

    All draws follow from the secret key. `runs` has the indices of all runs; it is None if the
    outputs of the runs decide how many there are. Without `save` and `load`, the winner of an
    interrupted study is trained again from its own seed.
    """
    if runs is None and accept is None:
        raise InvalidInput(
            f"accept must be given with protocol {plan.protocol.spec}: a function of an outcome"
        )
    if jobs != 1 and plan.protocol.is_sequential:
        raise InvalidInput(f"jobs must be 1 with protocol {plan.protocol.spec}, got {jobs!r}")
    models = _Models(memory.folder, save, load)
    tuning = _Tuning(plan, key, train, accept, memory, models, devices)
    if runs is None:
        tuning.run_until_accepted()
    elif plan.protocol.is_sequential:
        tuning.run_in_sequence(runs)
    else:
        tuning.run_independently(runs, jobs)
    records = tuning.released()
    if not records:
        return Played(Best())
    best, *runners_up = [
        Best(plan.space.at(record.point), record.score, tuning.model_of(record))
        for record in records
    ]
    step = records[0].index if plan.protocol.releases_step else None
    return Played(replace(best, runners_up=tuple(runners_up), step=step), tuning.checked())


def best_so_far(
    plan: Plan,
    key: int,
    train: Train | None,
    memory: Memory,
    load: Callable[[Path], Any] | None = None,
) -> Best:
    """The best of the finished runs; its model is None without `load` and `train`."""
    models = _Models(memory.folder, lambda *_: None, load)
    tuning = _Tuning(plan, key, train or _no_training, None, memory, models, None)
    bests = [
        Best(
            plan.space.at(record.point),
            record.score,
            None if load is None and train is None else tuning.model_of(record),
        )
        for record in tuning.leaders
    ]
    return replace(bests[0], runners_up=tuple(bests[1:])) if bests else Best()


def _no_training(trial: Trial) -> Outcome:
    raise InvalidInput("load must find the model of the best run, or train must be given")


class _Tuning:
    """The runs of a study so far, and the leaders: the best of them, best first."""

    def __init__(
        self,
        plan: Plan,
        key: int,
        train: Train,
        accept: Accept | None,
        memory: Memory,
        models: "_Models",
        devices: Devices | None,
    ) -> None:
        self._plan, self._key, self._train, self._accept = plan, key, train, accept
        self._memory, self._models, self._devices = memory, models, devices
        self._has_final = plan.protocol.trains_on_subset
        self._places = plan.protocol.released_runs
        self._done = {record.index: record for record in memory.records()}
        self._noises = {noise for record in self._done.values() for noise in record.noises}
        self._leaders = self._best_of(self._done.values())
        self._forget(record.index for record in self._done.values() if record not in self._leaders)

    @property
    def leaders(self) -> list[Record]:
        """The best of the finished runs, best first."""
        return self._leaders

    def _forget(self, runs: Iterable[int]) -> None:
        """Deletes the folders of runs that have lost."""
        for index in runs:
            delete_run(self._memory.folder, index)

    def run_until_accepted(self) -> None:
        """One run after the other, until one is accepted or the tuning gives up."""
        index = 0
        while True:
            if index not in self._done:
                self._admit(self._run(index, self._plan.point(self._key, index)))
            if self._done[index].accepted or self._plan.stops(self._key, index):
                return
            index += 1

    def run_in_sequence(self, runs: Sequence[int]) -> None:
        """One run after the other; each candidate depends on the runs before it."""
        for index in runs:
            if index not in self._done:
                ended = [self._done[before] for before in runs if before < index]
                self._admit(self._run(index, self._plan.point(self._key, index, ended)))

    def run_independently(self, runs: Sequence[int], jobs: int) -> None:
        """All runs, in any order."""
        for attempt in attempts(
            lambda: (
                self._task(index, self._plan.point(self._key, index))
                for index in runs
                if index not in self._done
            ),
            jobs,
            self._hand_over,
        ):
            self._admit(attempt)

    def released(self) -> list[Record]:
        """The runs that are released, best first, after the final run if there is one."""
        if not self._leaders:
            # A run that raised ranks below one whose score is not finite, so this reveals no more
            # than the rank of the best run. Rejected runs are not ranked.
            ranked = not self._plan.protocol.ends_with_accepted
            if ranked and self._done and all(record.raised for record in self._done.values()):
                raise StudyAborted(
                    "every run raised an exception, which is not shown because it may describe "
                    "private records; call study.rehearse(train, records) on synthetic or public "
                    "records"
                )
            return []
        if not self._has_final:
            return self._leaders
        if FINAL not in self._done:
            self._admit(self._run(FINAL, self._leaders[0].point))
        return [self._done[FINAL]]

    def model_of(self, released: Record) -> Any:
        """The model of the released run, trained again if it was not saved."""
        if released.score is None:
            return None
        is_kept, model = self._models.read(released.index)
        if is_kept:
            return model
        again = self._run(released.index, released.point)
        is_same = replace(again.record, noises=released.noises) == released
        if not is_same or released.model is None:
            raise StudyAborted(
                "train must return the same result for the same trial.seed, or save and load must "
                "be given: an earlier process found the winner, and repeating its training gave "
                "another result"
            )
        return again.model

    def checked(self) -> frozenset[str]:
        """The names of the checks that every run that could win has passed."""
        passed = [{*record.checked} for record in self._done.values() if record.score is not None]
        return frozenset(set.intersection(*passed))

    def _task(self, index: int, point: Point) -> Task:
        trial = self._plan.trial(self._key, index, point)
        if self._memory.folder is not None:
            trial.checkpoints.folder = self._memory.folder / RUNS / str(index)
        noise = self._plan.noise(self._key, index)
        return Task(self._train, trial, index, point, noise, self._accept, self._devices)

    def _hand_over(self, task: Task) -> Task:
        """Counts an attempt at a run, durably and before the run can draw any noise."""
        checkpoints = task.trial.checkpoints
        checkpoints.handed_over = self._memory.times_handed_over(task.index) + 1
        # The log first: if the process dies between the two, the attempt has not begun.
        checkpoints.hand_over()
        self._memory.hand_over(task.index)
        return task

    def _run(self, index: int, point: Point) -> Attempt:
        return self._hand_over(self._task(index, point))()

    def _admit(self, attempt: Attempt) -> None:
        """Records a run, and keeps its model if it is one of the best so far."""
        if attempt.violation:
            raise StudyAborted(attempt.violation)
        record = attempt.record
        if alike := sorted(self._noises & {*record.noises}):
            raise StudyAborted(seeded_alike(alike[0]))
        self._noises.update(record.noises)
        leaders = self._best_of([*self._leaders, record])
        dropped = [leader.index for leader in self._leaders if leader not in leaders]
        # If a final run follows, its model is the only one that is released, or kept.
        is_kept = record in leaders
        if self._has_final:
            is_kept = record.index == FINAL and record.score is not None
        if is_kept:
            self._models.write(record.index, attempt.model)
        self._memory.add(record)
        self._done[record.index] = record
        if is_kept:
            # Older models are deleted only after the new one is recorded for a resumed study.
            self._models.keep(record.index, attempt.model, dropped)
        self._leaders = leaders
        self._forget([*dropped, *([] if record in leaders else [record.index])])

    def _best_of(self, records: Iterable[Record]) -> list[Record]:
        return sorted(filter(self._can_win, records), key=self._rank, reverse=True)[: self._places]

    def _can_win(self, record: Record) -> bool:
        if record.index == FINAL:
            return False  # its candidate is that of the winner
        if self._plan.protocol.ends_with_accepted:
            return record.accepted
        return record.score is not None

    def _rank(self, record: Record) -> tuple[float, float, int]:
        return self._plan.rank(self._key, record)


class _Models:
    """The models of the best runs so far, in memory and, if saved, in the folder of the study."""

    def __init__(
        self,
        folder: Path | None,
        save: Callable[[Any, Path], None] | None,
        load: Callable[[Path], Any] | None,
    ) -> None:
        self._folder = None if folder is None or save is None else folder / "models"
        self._save, self._load = save, load
        self._models: dict[int, Any] = {}

    def write(self, index: int, model: Any) -> None:
        """Saves a model; those saved before remain."""
        if self._save is None or self._folder is None:
            return
        path = self._folder / str(index)
        draft = path.with_name(path.name + ".draft")
        try:
            make_folder(self._folder, 0o700)
            if draft.is_symlink() or draft.is_file():  # prepared, or of a process that was killed
                draft.unlink()
        except OSError as error:
            raise InvalidInput(
                f"folder must be one that can be written, got {str(draft)!r}: {error.strerror}"
            ) from error
        self._save(model, draft)
        draft.chmod(0o600)
        os.replace(draft, path)

    def keep(self, index: int, model: Any, dropped: Iterable[int]) -> None:
        """Keeps a model in memory, and deletes those of the dropped runs."""
        self._models[index] = model
        for dropped_index in dropped:
            self._models.pop(dropped_index, None)
            if self._folder is not None:
                (self._folder / str(dropped_index)).unlink(missing_ok=True)

    def read(self, index: int) -> tuple[bool, Any]:
        """Whether the model of a run is kept, and the model."""
        if index in self._models:
            return True, self._models[index]
        if self._load is None or self._folder is None:
            return False, None
        path = self._folder / str(index)
        is_file = path.exists() and not (path.is_symlink() or self._folder.is_symlink())
        return (True, self._load(path)) if is_file else (False, None)
