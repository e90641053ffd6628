"""One watched run of a user's training function."""

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.loop.runs import readings
from audit.loop.runs.optimizer_hooks import remembered_calibration
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.watch import Watch
from audit.loop.runs.work import CouldNotFinish
from audit.loop.sources.arrays import current_watch
from audit.numerics import FloatArray
from audit.opacus_objects import History, history_of
from audit.user_code import call_user_code, global_seed, seeded_generators

_MAX_NUMBERS = 50_000
"""Numbers of a run that a learned statistic uses: 1,000 trials of them take about 1 GB."""


class Train(Protocol):
    """A training function.

    Example:
        >>> def train(records, candidate, seed, watch):
        ...     return np.random.default_rng(seed).normal() + records.features.sum()
        >>> mine: Train = train
    """

    def __call__(self, records: TrainingSet, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains once.

        Args:
            records: the data; the canary, if it is included, is the last record.
            candidate: the hyperparameters, one of the audit's `candidates`, or None.
            seed: seed in [0, 2^32), different in every run. The global generators of torch, numpy
                and Python are already seeded with a number that follows from it.
            watch: function to call with the optimizer before the first step, for the white box;
                optional.

        Returns:
            The release: a torch module, an estimator, one score or several numbers, or None.
        """
        ...


@dataclass(frozen=True)
class AuditTask:
    """The part of an audit that all of its runs share.

    Attributes:
        train: the training function.
        records: X, the data set.
        canaries: [m] records that may be included, or None for Dirac canaries.
        validation: records by which the best of several runs is chosen; None chooses by the canary.
        loss: summed loss of a torch module on records; None takes the cross-entropy for gradients
            and margins for scores.
        delta: delta of the claim.
        initial: initial weights and buffers of every watched run, by name; None leaves the
            function's.
        replaced: [1] record in the data of runs without a canary; None leaves it out.
        expected_batch_size: the divisor that is set in every watched optimizer of Opacus; None
            leaves the function's.
    """

    train: Train
    records: TrainingSet
    canaries: TrainingSet | None
    validation: TrainingSet | None
    loss: Callable[..., Any] | None
    delta: float
    initial: Mapping[str, Any] | None = None
    replaced: TrainingSet | None = None
    expected_batch_size: float | None = None


def exchanges(relation: str, watched: bool) -> bool:
    """Whether trials without the record hold another: an accountant's epsilon is for removal."""
    return relation == "replace-one" and not watched


@dataclass(frozen=True)
class Run:
    """Record of one run with m canaries.

    Attributes:
        score: [m], scores of the canaries by the returned value; empty if it gives none.
        lambda_a: [m], see `WhiteBoxTrace`; empty if the optimizer was not watched.
        lambda_c: [m], see `WhiteBoxTrace`; empty if the optimizer was not watched.
        unread: the reason why the score, lambda_a and lambda_c are missing; empty if none is.
        residual: [1], see `audit.loop.attack.residuals`; empty if it is not computed.
        choice: score by which the best of several runs is chosen; minus infinity without one.
        details: [f], with one canary: all recorded numbers, for a learned statistic; of more than
            50,000 released numbers, evenly spaced ones.
        claim: the epsilon that the function promises, or None.
        history: the phases of its accountant (noise multiplier, sampling rate, steps), or None.
    """

    score: FloatArray
    lambda_a: FloatArray
    lambda_c: FloatArray
    choice: float
    details: FloatArray
    claim: float | None
    history: History | None
    unread: str = ""
    residual: FloatArray = field(default_factory=lambda: np.empty(0))


def run_once(
    task: AuditTask,
    included: NDArray[np.bool_],
    candidate: Any,
    seed: int,
    recorder: Watch | None = None,
) -> Run:
    """Calls the training function once and reads its output.

    Args:
        task: shared by all runs.
        included: [m], which canaries are in the data.
        candidate: hyperparameters.
        seed: seed of the run.
        recorder: another watch that sees the run.

    Raises:
        InvalidInput: the function raised an error, or returned an unreadable value.
    """
    with seeded_generators(global_seed(seed)):
        return _run(task, included, candidate, seed, recorder)


def _run(
    task: AuditTask,
    included: NDArray[np.bool_],
    candidate: Any,
    seed: int,
    recorder: Watch | None,
) -> Run:
    records, canaries = task.records, task.canaries
    if canaries is not None and included.any():
        chosen = TrainingSet(canaries.features[included], canaries.labels[included])
        records = records.with_record(chosen)
    elif task.replaced is not None:
        records = records.with_record(task.replaced)
    watch = Watch(canaries, included, task.loss, seed, task.initial, recorder)
    watch.expected_batch_size = task.expected_batch_size
    try:
        with current_watch(watch):
            result = call_user_code("train", task.train, records, candidate, seed, watch)
        watch.raise_failure()
    except InvalidInput as error:
        if isinstance(error.__cause__, CouldNotFinish):
            raise error.__cause__ from None
        raise
    finally:
        watch.close()
    trace = watch.trace()
    unread = watch.failure
    if task.replaced is not None and (trace is not None or unread):
        raise InvalidInput(
            "premises must be True where train calls watch and relation is 'replace-one', because "
            "the claim of its accountant is for a removed record, got False"
        )
    nothing = np.empty(0)
    model, numbers = readings.model_and_numbers(result)
    try:
        score, details = _read(task, model, numbers, len(included))
    except Exception as error:  # of the user's model or loss
        if task.validation is not None:
            raise InvalidInput(readings.reason_of(error)) from error
        score, details, unread = nothing, _evenly_spaced(numbers), readings.reason_of(error)
    return Run(
        score=score,
        lambda_a=nothing if trace is None else trace.lambda_a,
        lambda_c=nothing if trace is None else trace.lambda_c,
        choice=_choice(task, model, score),
        details=details if trace is None else np.concatenate([details, trace.details]),
        claim=claim_of(watch, task.delta),
        history=history_of(watch.accountant),
        unread=unread,
    )


def _read(
    task: AuditTask, model: Any, numbers: FloatArray, canaries: int
) -> tuple[FloatArray, FloatArray]:
    """The scores of the canaries [m] and everything else that was returned, [f]."""
    if model is None:
        # Numbers of the user's own: one per canary are scores.
        return (numbers if len(numbers) == canaries else np.empty(0)), _evenly_spaced(numbers)
    score = np.empty(0)
    if task.canaries is not None:
        score = readings.record_scores(model, task.canaries, task.loss)
        if canaries > 1:
            return score, numbers
    details = readings.details(model, task.records, task.loss)
    return score, np.concatenate([score, details, _evenly_spaced(numbers)])


def _evenly_spaced(numbers: FloatArray) -> FloatArray:
    """At most 50,000 of the numbers."""
    return numbers[:: max(math.ceil(len(numbers) / _MAX_NUMBERS), 1)].copy()


def _choice(task: AuditTask, model: Any, score: FloatArray) -> float:
    value = float(score[0]) if len(score) else -math.inf
    if task.validation is not None and model is not None:
        value = float(readings.record_scores(model, task.validation, task.loss).mean())
    return -math.inf if math.isnan(value) else value


# The epsilon of a history, which is the same for every run.
_epsilons: dict[tuple[Any, ...], float] = {}


def claim_of(watch: Any, delta: float) -> float | None:
    """The epsilon that a watched run claims; None if it claims nothing."""
    if watch.claimed is not None:
        return float(watch.claimed)
    accountant = watch.accountant
    if accountant is None:
        return None
    key = (type(accountant), history_of(accountant), delta)
    if key not in _epsilons:
        with warnings.catch_warnings():
            # Opacus warns that more Renyi orders could give a smaller epsilon; this one is claimed.
            warnings.simplefilter("ignore")
            _epsilons[key] = float(accountant.get_epsilon(delta=delta))
    return _epsilons[key]


@contextmanager
def many_runs() -> Iterator[None]:
    """Leaves out what each of many runs would repeat: warnings, log lines, calibrations."""
    with (
        remembered_calibration(),
        warnings.catch_warnings(),
        without_log_lines(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch compute with one thread unless the function chooses another number.

    The steps of a check are small. On a busy machine, the threads of such a step wait for each
    other.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # as the function does not use it, or loads it itself
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Disables log lines up to warnings.

    `logging.disable` clears the caches of all loggers, which takes as long as a step of a small
    loop. A check of many runs therefore enters this once.
    """
    disabled = logging.root.manager.disable
    if disabled >= logging.WARNING:
        yield
        return
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
