"""The differential test of a study's training function.

The test needs a function that takes its records as an argument, as `audit.check` calls it. It adds,
removes and replaces records, so it runs on synthetic or public records. Its result decides which
conditions of the certificate are stated as tested.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audit.accounting import DpSgd
from audit.certificate import conditions
from audit.checks import with_article
from audit.errors import InvalidInput
from audit.tuning.rehearsal import Rehearsal

if TYPE_CHECKING:
    from audit.loop.findings import PremiseReport

# The condition of a certificate that each premise supports.
_CONDITION_OF = {
    "contribution": "clipping",
    "noise": "noise",
    "batches": "poisson_sampling",
    "released numbers": "released",
    "number of records": "relation add-remove",
}
_Rebuild = Callable[..., Any]


def check_loop(rehearsal: Rehearsal, cpu_seconds: float = 1800.0) -> "PremiseReport":
    """Tests whether runs of the training function are the mechanism that the study accounts for.

    The runs have one candidate, drawn from the prior. The study's own accounting is the claim
    unless the function passes an accountant to `trial.watch`, which must then agree with it. After
    `cpu_seconds` of CPU time, the test ends without a result.
    """
    from audit.loop.premises.check_premises import check_premises
    from audit.loop.runs.records import TrainingSet
    from audit.loop.runs.work import CpuLimit

    features, labels, rebuild = _labelled(rehearsal.records)
    # A study on a random part of the records is tested without the part: with all records.
    trial = dataclasses.replace(rehearsal.trial(), part=None)
    base = trial.base
    if not isinstance(base, DpSgd):
        raise InvalidInput(f"base must be DP-SGD for the differential test, got {base.description}")

    def train(records: TrainingSet, candidate: Any, seed: int, watch: Any) -> Any:
        watch(_StudyAccountant(base))
        trial_of_run = dataclasses.replace(trial, seed=seed, watch=watch)
        outcome, _ = rehearsal.outcome(trial_of_run, rebuild(records))
        if watch.accountant is not None and not isinstance(watch.accountant, _StudyAccountant):
            trial_of_run.check(watch.accountant)
        # The study adds the noise of a private score afterwards.
        score = {} if rehearsal.plan.private else {"score": outcome.score}
        return {"model": outcome.model, **score}

    # The rehearsal has already shown the function's output, and the test calls it many times.
    # Some trainers write to these streams themselves, so None does not do.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        return check_premises(
            train,
            TrainingSet(features, labels),
            relation=base.neighbours,
            cpu=CpuLimit(cpu_seconds),
        ).report


def can_test(training: Any, records: Any) -> bool:
    """Whether `check_loop` supports a training mechanism and a form of records."""
    try:
        _labelled(records)
    except InvalidInput:
        return False
    return bool(conditions.testable(training, None))


def fingerprint(train: Any) -> str:
    """SHA-256 of a function's file, or else of its code, and of the plain values that it holds."""
    function = inspect.unwrap(getattr(train, "func", train))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None)
    try:
        content = Path(inspect.getsourcefile(function) or "").read_bytes()
    except (TypeError, OSError):
        content = b""
        if code is not None:
            content = code.co_code + repr((code.co_consts, code.co_names)).encode()
    held: dict[str, Any] = {}
    if isinstance(train, functools.partial):
        held |= {f"argument {i}": value for i, value in enumerate(train.args)} | train.keywords
    if code is not None:
        held |= {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}
        held |= function.__kwdefaults__ or {}
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            held |= inspect.getclosurevars(function).nonlocals
    # The representation of other objects may differ between two processes of one study.
    plain = {k: v for k, v in held.items() if v is None or isinstance(v, int | float | str)}
    start = repr((name, sorted(plain.items()))).encode()
    return hashlib.sha256(start + b"\0" + content).hexdigest()


def conditions_tested(report: "PremiseReport | None", public_score: bool) -> tuple[str, ...]:
    """Names of the certificate's conditions that a test without findings supports."""
    if report is None or report.broken or "contribution" not in report.tested:
        return ()
    names = [name for premise, name in _CONDITION_OF.items() if premise in report.tested]
    return (*names, "score") if public_score and "released" in names else tuple(names)


@dataclasses.dataclass(frozen=True)
class _StudyAccountant:
    """The history of a run as the study accounts for it, in the form of an Opacus accountant."""

    base: DpSgd

    @property
    def history(self) -> list[tuple[float, float, int]]:
        return [(self.base.noise_multiplier, self.base.sampling_rate, self.base.steps)]

    def get_epsilon(self, delta: float) -> float:
        return self.base.epsilon(delta)


def _labelled(records: Any) -> tuple[Any, Any, _Rebuild]:
    """Features, labels, and a function that puts both back into the form of the records."""
    kind: Any = type(records)
    wrap: _Rebuild
    columns: tuple[Any, ...]
    if kind.__name__ == "TensorDataset" and len(records.tensors) == 2:
        columns, wrap = records.tensors, kind
    elif isinstance(records, Sequence) and len(records) == 2 and not isinstance(records, str):
        columns = tuple(records)
        wrap = kind if hasattr(kind, "_fields") else lambda *pair: kind(pair)
    elif hasattr(records, "shape"):
        columns, wrap = (records,), lambda array: array
    else:
        raise InvalidInput(
            "records must be an array, a pair (features, labels) or a TensorDataset of both for "
            f"the differential test, got {with_article(kind.__name__)}"
        )
    sizes = [len(column) if getattr(column, "ndim", 0) else -1 for column in columns]
    if min(sizes) < 1 or len(set(sizes)) > 1:
        raise InvalidInput(f"records must have one label each, got parts of {sizes} records")
    features = _numpy(columns[0])
    shape = features.shape
    labels = _numpy(columns[1]) if len(columns) > 1 else np.zeros(len(features), np.int64)

    def rebuild(changed: Any) -> Any:
        arrays = (changed.features.reshape(-1, *shape[1:]), changed.labels)
        return wrap(*(_like(old, new) for old, new in zip(columns, arrays, strict=False)))

    return features.reshape(len(features), -1) if features.ndim < 2 else features, labels, rebuild


def _numpy(values: Any) -> Any:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _like(old: Any, new: Any) -> Any:
    if hasattr(old, "new_tensor"):
        return old.new_tensor(new)
    return np.asarray(new, dtype=old.dtype)
