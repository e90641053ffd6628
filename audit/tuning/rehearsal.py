"""A rehearsal of a study: runs on synthetic or public records that do not hide errors."""

import dataclasses
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit import checks
from audit.errors import InvalidInput, ProtocolViolation
from audit.tuning.isolation import seeded, without_gradients
from audit.tuning.one_run import check_outcome, is_yes, seeded_alike
from audit.tuning.outcome import Outcome, Trial
from audit.tuning.plan import FINAL, Plan
from audit.tuning.resume_test import check_resumption
from audit.tuning.secret_draws import Draws

_KEY_BITS = 256
_MAX_DEPTH = 8


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
