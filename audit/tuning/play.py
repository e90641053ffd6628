"""One study, played: K, candidates and seeds from one key, the best run kept, nothing shown.

All draws follow from the key and the scores so far; so whoever is killed and starts again makes the
same ones. Of equal scores the first run wins, in whatever order they end; in an adaptive search,
whose bounds do not cover ties broken by order, a run drawn at random from the key.
"""

import hashlib
import itertools
import math
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.accounting import Mechanism
from audit.processes import end_with_parent
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.tuning.isolation import seeded, silence, without_gradients
from audit.tuning.journal import Memory, Record
from audit.tuning.outcome import (
    Best,
    Outcome,
    Part,
    Private,
    ProtocolViolation,
    StudyAborted,
    Trial,
)
from audit.tuning.samplers import Ended, Point, next_point
from audit.tuning.secret_draws import Draws, secret_integer
from audit.tuning.space import Space

__all__ = [
    "FINAL",
    "LIVE",
    "Plan",
    "Played",
    "check_outcome",
    "is_yes",
    "play",
    "seeded_alike",
]

Train = Callable[[Trial], Outcome]
Accept = Callable[[Outcome], bool]

LIVE: tuple[type[Protocol], ...] = (
    RandomSearch,
    Grid,
    Adaptive,
    Subset,
    UntilAccepted,
    RandomStopping,
)
"""The protocols that a study can run."""

_LOOKS_BACK = (Adaptive, UntilAccepted, RandomStopping)
# What is drawn from the key; each has its own stream for every run.
_RUNS, _CANDIDATE, _SEED, _SCORE, _STOP, _PART, _TIE = range(7)
# The final run of protocols that have one: an index beyond all others.
FINAL = 1 << 62


@dataclass(frozen=True)
class Plan:
    """What a study does, settled before anything runs.

    Attributes:
        protocol: how runs are chosen.
        space: of candidates.
        base_of: the mechanism that a run with a candidate must be.
        private: the noise of the score; None where it reads public records only.
        expected_batch_size: what noisy sums are divided by; None where the study names no constant.
    """

    protocol: Protocol
    space: Space
    base_of: Callable[[Mapping[str, Any]], Mechanism]
    private: Private | None = None
    expected_batch_size: float | None = None

    def rng(self, key: int, stream: int, index: int = 0) -> Draws:
        """The source of one draw."""
        return Draws(key, stream, index)

    def runs(self, key: int) -> Sequence[int] | None:
        """The indices of all runs; None where what comes out decides how many there are."""
        rng = self.rng(key, _RUNS)
        if isinstance(self.protocol, Grid):
            drawn = rng.random(self.protocol.candidates) < self.protocol.inclusion
            return [int(index) for index in np.flatnonzero(drawn)]
        if isinstance(self.protocol, RandomSearch | Adaptive | Subset):
            return range(int(self.protocol.repetitions.sample(rng, 1)[0]))
        return None

    def point(self, key: int, index: int, before: Sequence[Ended]) -> Point:
        """The candidate of a run, as a point of the space."""
        return next_point(
            self.protocol, self.space, self.rng(key, _CANDIDATE, index), index, before
        )

    def trial(self, key: int, index: int, point: Point) -> Trial:
        """What `train` is told of a run."""
        candidate = self.space.at(point)
        seed = secret_integer(64, key, _SEED, index) >> 1
        part = None
        if isinstance(self.protocol, Subset):
            coins = secret_integer(256, key, _PART)
            final = self.protocol.final if index == FINAL else None
            part = Part(coins, self.protocol.sampling_rate, final)
        return Trial(candidate, self.base_of(candidate), seed, part, self.expected_batch_size)

    def noise(self, key: int, index: int) -> float:
        """What is added to a run's score."""
        if self.private is None:
            return 0.0
        return float(self.rng(key, _SCORE, index).normal(0.0, self.private.noise_std))

    def stops(self, key: int, index: int) -> bool:
        """Whether to give up after a run that was not accepted."""
        stop = self.protocol.stop if isinstance(self.protocol, RandomStopping) else 0.0
        return bool(self.rng(key, _STOP, index).random() < stop)

    def rank(self, key: int, record: Record) -> tuple[float, float, int]:
        """Orders the runs that can win: by score, then by how ties are broken."""
        assert record.score is not None
        adaptive = isinstance(self.protocol, Adaptive)
        tie = float(self.rng(key, _TIE, record.index).random()) if adaptive else 0.0
        return record.score, tie, -record.index


@dataclass(frozen=True)
class Played:
    """What came of a study.

    Attributes:
        best: what is released.
        checked: what `Trial.check` saw in every run that could win.
    """

    best: Best
    checked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Attempt:
    record: Record
    model: Any = None
    void: str = ""
    interrupted: bool = False


def play(
    plan: Plan,
    key: int,
    runs: Sequence[int] | None,
    train: Train,
    memory: Memory,
    *,
    accept: Accept | None = None,
    jobs: int = 1,
    save: Callable[[Any, Path], None] | None = None,
    load: Callable[[Path], Any] | None = None,
) -> Played:
    """Goes on with a study from where its memory ends, to its end.

    Args:
        plan: what is done.
        key: what all draws follow from.
        runs: the indices of all runs; None where what comes out decides.
        train: one run.
        memory: what was done, and where it is kept.
        accept: which outcome is good enough, where the protocol runs until one is.
        jobs: how many runs at a time.
        save: writes a model to a path; without it the winner of an interrupted study is trained
            once more from its own seed.
        load: reads it again.

    Raises:
        Void: a run was not what the study accounts for, or the winner does not come out the same.
    """
    if runs is None and accept is None:
        raise ValueError(
            f"accept must be given with protocol {plan.protocol.spec}: a function of an outcome"
        )
    if jobs != 1 and isinstance(plan.protocol, _LOOKS_BACK):
        raise ValueError(f"jobs must be 1 with protocol {plan.protocol.spec}, got {jobs!r}")
    done = {record.index: record for record in memory.records()}
    can_win = [one for one in done.values() if _can_win(one, runs is None)]

    def rank(record: Record) -> tuple[float, float, int]:
        return plan.rank(key, record)

    winner = max(can_win, key=rank, default=None)
    noises = {noise for record in done.values() for noise in record.noises}
    models: dict[int, Any] = {}
    # Where a final run follows, no other model is released, and none is kept.
    has_final = isinstance(plan.protocol, Subset)

    def admit(found: _Attempt) -> None:
        nonlocal winner
        if found.void:
            raise StudyAborted(found.void)
        record = found.record
        if alike := sorted(noises & {*record.noises}):
            raise StudyAborted(seeded_alike(alike[0]))
        noises.update(record.noises)
        ahead = _can_win(record, runs is None) and (winner is None or rank(record) > rank(winner))
        is_kept = ahead if not has_final else record.index == FINAL and record.score is not None
        folder = memory.folder if save is not None else None
        if is_kept and save is not None and folder is not None:
            _save(save, found.model, _path(folder, record.index))
        memory.add(record)
        done[record.index] = record
        if is_kept:
            # The model before goes only now that whoever starts again knows of this one.
            if folder is not None and winner is not None:
                _path(folder, winner.index).unlink(missing_ok=True)
            models.clear()
            models[record.index] = found.model
        if ahead:
            winner = record

    def task(index: int, point: Point) -> _Task:
        trial = plan.trial(key, index, point)
        return _Task(train, trial, index, point, plan.noise(key, index), accept)

    if runs is None:
        index = 0
        while True:
            if index not in done:
                admit(task(index, plan.point(key, index, ()))())
            if done[index].accepted or plan.stops(key, index):
                break
            index += 1
    elif isinstance(plan.protocol, Adaptive):
        for index in runs:
            if index not in done:
                ended = [done[before] for before in runs if before < index]
                admit(task(index, plan.point(key, index, [_ended(one) for one in ended]))())
    else:
        for one in _all(
            lambda: (task(i, plan.point(key, i, ())) for i in runs if i not in done), jobs
        ):
            admit(one)

    if winner is None:
        # A run that raised ranks below one whose score is not finite: this is the best one's rank.
        if runs is not None and done and all(record.raised for record in done.values()):
            raise StudyAborted(
                "every run raised an exception, which is not shown because it may describe private "
                "records; call study.rehearse(train, records) on synthetic or public records"
            )
        return Played(Best())
    if has_final and FINAL not in done:
        admit(task(FINAL, winner.point)())
    released = done[FINAL] if has_final else winner
    model = models.get(released.index)
    if released.score is not None and released.index not in models:
        path = None if memory.folder is None else _path(memory.folder, released.index)
        if load is not None and path is not None and path.exists():
            model = load(path)
        else:
            again = task(released.index, released.point)()
            same = replace(again.record, noises=released.noises) == released
            if not same or released.model is None:
                raise StudyAborted(
                    "train must give the same run for the same trial.seed, or save and load be "
                    "given: the winner was found by an earlier process and came out different now"
                )
            model = again.model
    admitted = [frozenset(one.checked) for one in done.values() if one.score is not None]
    return Played(
        Best(plan.space.at(released.point), released.score, model),
        frozenset.intersection(*admitted),
    )


def _can_win(record: Record, until_accepted: bool) -> bool:
    if record.index == FINAL:
        return False  # it is told who won
    return record.accepted if until_accepted else record.score is not None


def _ended(record: Record) -> Ended:
    return Ended(record.point, -math.inf if record.score is None else record.score)


def _all(tasks: Callable[[], Iterator["_Task"]], jobs: int) -> Iterator["_Attempt"]:
    """The attempts, in any order; `tasks` yields those that are still to do whenever it is called.

    Args:
        tasks: the runs to do.
        jobs: how many at a time, in processes of joblib's active backend.

    Raises:
        ValueError: that backend has threads, which share what they print and their generators.
        RuntimeError: a worker died.
    """
    if jobs == 1:
        yield from (task() for task in tasks())
        return
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    if getattr(backend, "supports_sharedmem", False):
        raise ValueError(
            "joblib's active backend must run each job in a process (loky, dask or ray), got "
            f"{type(backend).__name__}"
        )
    given: dict[str, Any] = {"n_jobs": jobs}
    if type(backend).__name__ == "LokyBackend":
        given |= {"backend": "loky", "initializer": _begin_worker}
    # Ray hands out nothing before the last run of a call is over: a few runs at a time.
    streams = backend.supports_return_generator
    share = None if streams else 4 * joblib.effective_n_jobs(jobs)
    while next(tasks(), None) is not None:
        calls = (joblib.delayed(_attempt)(task) for task in itertools.islice(tasks(), share))
        workers = joblib.Parallel(**given, return_as="generator_unordered" if streams else "list")
        attempts = workers(calls)
        died = False
        try:
            for one in attempts:  # noqa: UP028 (closed below, where it may warn)
                yield one
        except TerminatedWorkerError:  # its message would tell how many runs were left
            died = True
        finally:
            # Cut off, joblib warns of how many runs were left, which nobody is to know.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if streams:
                    attempts.close()
        if died:
            raise RuntimeError(
                "a worker died, as it does when memory runs out; run the same study again, with "
                "fewer jobs if need be, and it resumes with the same draws"
            )


def _begin_worker() -> None:
    """Silences a worker for its whole life, and ends it when the study's process ends."""
    end_with_parent()
    nowhere = open(os.devnull, "w")  # noqa: SIM115 (open as long as the worker lives)
    for descriptor in (1, 2):
        os.dup2(nowhere.fileno(), descriptor)
    sys.stdout = sys.stderr = nowhere


# Global generators and streams belong to a process: one run at a time uses them.
_one_at_a_time = threading.RLock()


@dataclass(frozen=True)
class _Task:
    """One run, as it is sent to a worker: without the study's key."""

    train: Train
    trial: Trial
    index: int
    point: Point
    noise: float
    accept: Accept | None

    def __call__(self) -> _Attempt:
        """Whatever goes wrong in the run counts, and loses; nothing of it is shown.

        Raises:
            KeyboardInterrupt: the user stops the study; a new one, without a message.
        """
        with _one_at_a_time:
            found = self._attempted()
        if found.interrupted:
            raise KeyboardInterrupt
        return found

    def _attempted(self) -> _Attempt:
        lost = Record(self.index, self.point, None)
        try:
            with silence(), seeded(self.trial.seed) as noise:
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
            return _Attempt(lost, void=str(error))
        except KeyboardInterrupt:
            return _Attempt(lost, interrupted=True)
        except BaseException:  # its message may describe private records
            return _Attempt(replace(lost, raised=True))
        if not math.isfinite(score):
            return _Attempt(replace(lost, noises=noises))
        checked = tuple(sorted(self.trial.checked))
        record = Record(
            self.index, self.point, score, _digest(model), checked, accepted, noises=noises
        )
        return _Attempt(record, model)


def _attempt(task: _Task) -> _Attempt:
    """A function of the module, as Dask's backend needs it; its dashboard shows this name."""
    return task()


def check_outcome(outcome: Any, trial: Trial) -> None:
    """Checks what a run returned, and all that the trial was given to check.

    Raises:
        Inadmissible: the run was not what the study accounts for.
    """
    if not isinstance(outcome, Outcome):
        raise ProtocolViolation(
            f"train must return a tuning.Outcome, got a {type(outcome).__name__}"
        )
    if trial.part is not None and "records" not in trial.checked:
        raise ProtocolViolation(
            "train must ask trial.records(count) which records it may read, where the tuning is on "
            "a part of them"
        )
    trial.check_again()


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
    """What `accept` answered.

    Raises:
        Inadmissible: neither yes nor no; None, for example, would never end the study.
    """
    if not isinstance(answer, bool | np.bool_):
        raise ProtocolViolation(
            f"accept must return True or False for every outcome, got a {type(answer).__name__}"
        )
    return bool(answer)


def seeded_alike(noise: str) -> str:
    """The message about two runs with the same noise from a global generator."""
    return (
        "train must draw its noise from trial.seed, or leave the seeds of global generators alone "
        "(for a fixed split of the data, use a generator of its own), got two runs that seeded "
        f"{noise.split(':')[0]} alike"
    )


def _digest(model: Any) -> str | None:
    """What a model is recognised by when it is trained again; None if it can not be."""
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
    except Exception:  # whatever a model of the user's own makes of it
        return None


def _bytes(value: Any) -> Any:
    numpy = getattr(value, "numpy", None)
    if callable(numpy):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        array: NDArray[Any] = value
        return (str(array.dtype), array.shape, array.tobytes())
    return value


def _path(folder: Path, index: int) -> Path:
    return folder / "models" / str(index)


def _save(save: Callable[[Any, Path], None], model: Any, path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    save(model, draft)
    draft.chmod(0o600)
    os.replace(draft, path)
