"""A rehearsal of a study: runs on synthetic or public records that do not hide errors."""

import dataclasses
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit import checks
from audit.errors import InvalidInput, PrivacyLeak, ProtocolViolation
from audit.tuning.checkpoints import RUNS, Checkpoints
from audit.tuning.isolation import seeded, without_gradients
from audit.tuning.one_run import check_outcome, digest, is_yes, seeded_alike
from audit.tuning.outcome import Outcome, Trial
from audit.tuning.plan import FINAL, Plan
from audit.tuning.secret_draws import Draws

_KEY_BITS = 256
_MAX_DEPTH = 8

_ATTEMPTS = 3  # at one run of the test
_OutcomeOf = Callable[[Trial], tuple[Outcome, tuple[str, ...]]]


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
