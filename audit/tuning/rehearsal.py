"""A rehearsal of a study: runs on synthetic or public records that do not hide errors.

The differential test of the study's training function runs on these records too, because it adds,
removes and replaces records. It needs a function that takes its records as an argument, as
`audit.check` calls it. Its result decides which conditions of the certificate are stated as tested.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit import checks
from audit.accounting import DpSgd
from audit.certificate import conditions
from audit.checks import with_article
from audit.errors import InvalidInput, PrivacyLeak, ProtocolViolation
from audit.tuning.checkpoints import RUNS, Checkpoints
from audit.tuning.isolation import seeded, without_gradients
from audit.tuning.outcome import Outcome, Trial
from audit.tuning.plan import FINAL, Plan
from audit.tuning.play import check_outcome, digest, is_yes, seeded_alike
from audit.tuning.secret_draws import Draws

if TYPE_CHECKING:
    from audit.loop.findings import PremiseReport


_KEY_BITS = 256
_MAX_DEPTH = 8
_ATTEMPTS = 3  # at one run of the test
_OutcomeOf = Callable[[Trial], tuple[Outcome, tuple[str, ...]]]
# The condition of a certificate that each premise supports.
_CONDITION_OF = {
    "contribution": "clipping",
    "noise": "noise",
    "batches": "poisson_sampling",
    "released numbers": "released",
    "number of records": "relation add-remove",
}
_Rebuild = Callable[..., Any]


class _Killed(BaseException):
    """Represents the end of the process; a loop that catches `Exception` does not catch it."""


def check_resumption(outcome_of: _OutcomeOf, trial: Trial) -> None:
    """Compares a run that is killed and resumed with the same run without an interruption.

    A loop that draws new noise after a resumption, or repeats earlier noise, gives another result:
    another score, other bytes of the model, or other states of the global generators.

    The killed run saves its state, takes the steps up to the next checkpoint, and loses them. A run
    that never saves its state is not tested. One whose noise cannot be continued must load its
    state, but is not compared: the study counts the steps that it repeats. If the study allows such
    steps, a further run is resumed with new noise, and must then give another result.

    Args:
        outcome_of: trains once on synthetic or public records, as the study does.
        trial: the run, whose seed is not used in a study.

    Raises:
        PrivacyLeak: the resumed run is not the same run.
    """
    with tempfile.TemporaryDirectory() as folder:
        complete = _attempt(outcome_of, trial, Path(folder) / RUNS / "0")
        saved = complete.checkpoints.saved
        if not saved:
            return
        kill_after = (saved + 1) // 2
        path = Path(folder) / RUNS / "1"
        killed = _attempt(outcome_of, trial, path, kill_after)
        step = killed.checkpoints.last_saved
        renewed_path = Path(folder) / RUNS / "2"
        if step and path.is_dir():
            shutil.copytree(path, renewed_path)
        resumed = _attempt(outcome_of, trial, path)
        if not resumed.checkpoints.resumed_at and step:
            raise PrivacyLeak(
                f"train must call trial.load_state, because it calls trial.save_state; a run that "
                f"was killed after step {step} began again at its first step"
            )
        if complete.checkpoints.cannot_continue:
            return
        _compare(complete, resumed, step)
        if trial.checkpoints.rules.redrawn_steps and step:
            renewed = _attempt(outcome_of, trial, renewed_path, renews=True)
            _check_new_noise(resumed, renewed, step)


def _compare(complete: "_Attempt", resumed: "_Attempt", step: int) -> None:
    for name, value in complete.result.items():
        if value != resumed.result[name]:
            raise PrivacyLeak(
                "train must continue a resumed run with the same noise and batches, got "
                f"another {name} from a run that was killed after the checkpoint at step "
                f"{step} and resumed than from the same run without an interruption; save "
                "every generator, call load_state after all other draws, and save the state "
                "between two iterations over a loader"
            )


def _check_new_noise(resumed: "_Attempt", renewed: "_Attempt", step: int) -> None:
    """A run that would repeat its noise with another rounding is no run with repeated steps."""
    names = ("score", "model")
    if all(renewed.result[name] == resumed.result[name] for name in names):
        raise PrivacyLeak(
            "train must draw its noise from the generators that load_state restores, because "
            "redrawn_steps is given, got the same result from a run that was resumed after step "
            f"{step} with new states of all generators"
        )


@dataclasses.dataclass(frozen=True)
class _Attempt:
    checkpoints: Checkpoints
    result: dict[str, object]


def _attempt(
    outcome_of: _OutcomeOf,
    trial: Trial,
    folder: Path,
    kill_after: int | None = None,
    renews: bool = False,
) -> _Attempt:
    """One attempt at the run; with `kill_after`, it ends before the state is saved once more."""
    rules, steps = trial.checkpoints.rules, trial.checkpoints.steps
    trial = dataclasses.replace(trial)
    # The test repeats more steps than the study may, on records that are not private.
    rules = dataclasses.replace(rules, redrawn_steps=_ATTEMPTS * (steps or 0))
    checkpoints = Checkpoints(folder, steps, rules, renews_always=renews)
    trial.checkpoints = checkpoints

    def kill(saved: int) -> None:
        if saved == kill_after:
            raise _Killed

    checkpoints.before_save = kill
    checkpoints.begin()
    try:
        outcome, noises = outcome_of(trial)
    except _Killed:
        return _Attempt(checkpoints, {})
    except InvalidInput:
        if not checkpoints.begins_again:
            raise
        return _Attempt(checkpoints, {})
    model = digest(outcome.model)
    return _Attempt(
        checkpoints,
        {"score": repr(outcome.score), "model": model, "state of the generators": noises},
    )


@dataclass(frozen=True)
class WithRecords:
    """Binds the records to a training function."""

    train: Callable[..., Outcome]
    records: Any

    def __call__(self, trial: Trial) -> Outcome:
        return self.train(trial, self.records)


@dataclass(frozen=True)
class Rehearsal:
    """Runs of a training function outside of the study, on synthetic or public records if given."""

    train: Callable[..., Outcome]
    plan: Plan
    records: Any = None

    def trial(self, key: int | None = None, index: int = 0) -> Trial:
        """A trial outside of the study, with a candidate from the prior; None draws a new key."""
        key = secrets.randbits(_KEY_BITS) if key is None else key
        point = self.plan.space.draw(Draws(key, 1, index))
        return self.plan.trial(key, index, point)

    def outcome(self, trial: Trial, records: Any = None) -> tuple[Outcome, tuple[str, ...]]:
        """Trains once, seeded as in the study, and checks the outcome; adds its noises."""
        records = self.records if records is None else records
        with seeded(trial.seed) as noise:
            outcome = self.train(trial) if records is None else self.train(trial, records)
            check_outcome(outcome, trial)
            return dataclasses.replace(outcome, model=without_gradients(outcome.model)), noise()

    def run(
        self,
        accept: Callable[[Outcome], bool] | None = None,
        save: Callable[[Any, Path], None] | None = None,
        load: Callable[[Path], Any] | None = None,
    ) -> "Rehearsed":
        """Trains two or three times.

        If `train` saves its state, another run is killed and resumed (see `check_resumption`). Also
        calls `accept`, `save` and `load`, so that their errors are raised here.
        """
        key = secrets.randbits(_KEY_BITS)
        indices = [0, 1] + [FINAL] * (self.trial(key, FINAL).is_final)
        outcomes, noises, watched, saved, longest = [], set[str](), False, 0, 0.0
        for index in indices:
            trial = self.trial(key, index)
            began = time.monotonic()
            outcome, noise = self.outcome(trial)
            longest = max(longest, time.monotonic() - began)
            watched |= trial.watch.called
            saved += trial.checkpoints.saved
            if alike := sorted(noises & {*noise}):
                raise ProtocolViolation(seeded_alike(alike[0]))
            noises.update(noise)
            outcomes.append(outcome)
        if saved:
            check_resumption(self.outcome, self.trial())
        if accept is not None:
            for outcome in outcomes:
                is_yes(accept(outcome))
        if save is not None and load is not None:
            with tempfile.TemporaryDirectory() as folder:
                save(outcomes[0].model, Path(folder) / "model")
                load(Path(folder) / "model")
        return Rehearsed(outcomes, watched, longest)


class Rehearsed(NamedTuple):
    """The outcomes of a rehearsal, whether `train` called `trial.watch`, and its longest run."""

    outcomes: list[Outcome]
    watched: bool
    run_seconds: float


def synthetic(records: Any) -> Any:
    """Random records of the same types and shapes. No value of the given records is read.

    Floating-point numbers are normal; integers and booleans are 0 or 1. The structure of lists,
    tuples, mappings, dataclasses and torch's `TensorDataset` is kept.
    """
    return _synthetic(records, np.random.default_rng(), 0)


def _synthetic(value: Any, rng: np.random.Generator, depth: int) -> Any:
    def again(element: Any) -> Any:
        return _synthetic(element, rng, depth + 1)

    if depth > _MAX_DEPTH:
        raise _unknown(value)
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        letter = "f" if isinstance(value, float) else "i"
        return type(value)(_numbers((), letter, rng))
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return np.asarray(_numbers(value.shape, value.dtype.kind, rng)).astype(value.dtype)
    kind = type(value)
    if kind.__module__.split(".")[0] == "torch":
        import torch

        if isinstance(value, torch.Tensor):
            letter = "f" if value.is_floating_point() else "i"
            values = torch.from_numpy(np.asarray(_numbers(tuple(value.shape), letter, rng)))
            return values.to(dtype=value.dtype, device=value.device)
        if kind is torch.utils.data.TensorDataset:
            return torch.utils.data.TensorDataset(*map(again, value.tensors))
    if isinstance(value, Mapping):
        return {name: again(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(again, value))
    if isinstance(value, list | tuple):
        return kind(map(again, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: again(getattr(value, name)) for name in names})
    raise _unknown(value)


def _numbers(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Any:
    return rng.standard_normal(shape) if kind == "f" else rng.integers(0, 2, shape)


def _unknown(value: Any) -> InvalidInput:
    return InvalidInput(
        "records must be arrays, tensors, or collections of them, so that synthetic ones can be "
        f"made for the rehearsal, got {checks.kind_of(value)}; call study.rehearse(train, "
        "records=...) with synthetic or public records first, or pass rehearse=False"
    )


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
