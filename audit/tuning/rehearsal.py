"""A rehearsal of a study: the training function on synthetic or public records, errors shown."""

import dataclasses
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audit.errors import ProtocolViolation
from audit.tuning.isolation import seeded, without_gradients
from audit.tuning.one_run import check_outcome, is_yes, seeded_alike
from audit.tuning.outcome import Outcome, Trial
from audit.tuning.plan import FINAL, Plan
from audit.tuning.space import Candidate

__all__ = ["Rehearsal", "RehearsalTest", "WithRecords", "synthetic"]

_KEY_BITS = 256
_MAX_DEPTH = 8


@dataclass(frozen=True)
class WithRecords:
    """A training function of a trial alone, from one of a trial and records."""

    train: Callable[..., Outcome]
    records: Any

    def __call__(self, trial: Trial) -> Outcome:
        return self.train(trial, self.records)


@dataclass(frozen=True)
class Rehearsal:
    """The training function, the plan of the study and records, for tests of the function.

    Attributes:
        train: of a trial and records, or of a trial alone where `records` is None.
        plan: what the study does.
        records: synthetic or public records; None if `train` reads its own.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.tuning import Study
        >>> def one_record_less(rehearsal):
        ...     trial = rehearsal.trial()
        ...     full, _ = rehearsal.outcome(trial)
        ...     less, _ = rehearsal.outcome(trial, rehearsal.records[1:])
        ...     print(full.score - less.score)
        >>> study = Study({"lr": [0.1]}, base=GaussianMechanism(0.5), folder=None)
        >>> train = lambda trial, records: Outcome(records.sum())
        >>> _ = study.rehearse(train, np.ones(3), test=one_record_less)
        1.0
    """

    train: Callable[..., Outcome]
    plan: Plan
    records: Any = None

    def trial(self, key: int | None = None, index: int = 0) -> Trial:
        """A trial that does not belong to the study, with a candidate drawn from the prior.

        Args:
            key: of its draws; the same key gives the same candidate and seed. None draws a new one.
            index: of the run.
        """
        key = secrets.randbits(_KEY_BITS) if key is None else key
        point = self.plan.space.draw(self.plan.rng(key, 1, index))
        return self.plan.trial(key, index, point)

    def outcome(
        self, trial: Trial, records: Any = None, candidate: Candidate | None = None
    ) -> tuple[Outcome, tuple[str, ...]]:
        """Calls the training function once, seeded as in the study, and checks what it returns.

        Args:
            trial: of the run; two runs of equal trials draw the same noise.
            records: to train on instead of the rehearsal's own, such as one record more or less.
            candidate: hyperparameters instead of the trial's.

        Returns:
            The outcome, and what identifies the noise of the global generators.

        Raises:
            ProtocolViolation: the run was not what the study accounts for.
            Exception: any error that the function raised.
        """
        if candidate is not None:
            trial = dataclasses.replace(
                trial, candidate=candidate, base=self.plan.base_of(candidate)
            )
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
    ) -> list[Outcome]:
        """Calls `train` twice, and for a final run if there is one, then the other functions.

        Raises:
            ProtocolViolation: a run was not what the study accounts for.
            Exception: any error that one of the functions raised.
        """
        key = secrets.randbits(_KEY_BITS)
        indices = [0, 1] + [FINAL] * (self.trial(key, FINAL).is_final)
        found, noises = [], set[str]()
        for index in indices:
            outcome, noise = self.outcome(self.trial(key, index))
            if alike := sorted(noises & {*noise}):
                raise ProtocolViolation(seeded_alike(alike[0]))
            noises.update(noise)
            found.append(outcome)
        if accept is not None:
            for one in found:
                is_yes(accept(one))
        if save is not None and load is not None:
            with tempfile.TemporaryDirectory() as folder:
                save(found[0].model, Path(folder) / "model")
                load(Path(folder) / "model")
        return found


RehearsalTest = Callable[[Rehearsal], None]
"""A test of the training function; it raises if it finds a mistake."""


def synthetic(records: Any) -> Any:
    """Random records of the same types and shapes; no value of the given ones is read.

    Floating-point numbers are normal, whole numbers and booleans 0 or 1. Lists, tuples, mappings,
    dataclasses and torch's `TensorDataset` are made anew around them.

    Args:
        records: arrays, tensors, or a collection of them.

    Raises:
        ValueError: records of another type.

    Example:
        >>> features, labels = synthetic((np.full((5, 2), 7.0), np.full(5, 9)))
        >>> features.shape, bool((features == 7.0).any()), set(labels.tolist()) <= {0, 1}
        ((5, 2), False, True)
    """
    return _synthetic(records, np.random.default_rng(), 0)


def _synthetic(given: Any, rng: np.random.Generator, depth: int) -> Any:
    def again(one: Any) -> Any:
        return _synthetic(one, rng, depth + 1)

    if depth > _MAX_DEPTH:
        raise _unknown(given)
    if given is None:
        return None
    if isinstance(given, bool | int | float):
        letter = "f" if isinstance(given, float) else "i"
        return type(given)(_numbers((), letter, rng))
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiub":
        return np.asarray(_numbers(given.shape, given.dtype.kind, rng)).astype(given.dtype)
    kind = type(given)
    if kind.__module__.split(".")[0] == "torch":
        import torch

        if isinstance(given, torch.Tensor):
            letter = "f" if given.is_floating_point() else "i"
            values = torch.from_numpy(np.asarray(_numbers(tuple(given.shape), letter, rng)))
            return values.to(dtype=given.dtype, device=given.device)
        if kind is torch.utils.data.TensorDataset:
            return torch.utils.data.TensorDataset(*map(again, given.tensors))
    if isinstance(given, Mapping):
        return {name: again(one) for name, one in given.items()}
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return kind(*map(again, given))
    if isinstance(given, list | tuple):
        return kind(map(again, given))
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        names = [field.name for field in dataclasses.fields(given) if field.init]
        return dataclasses.replace(given, **{name: again(getattr(given, name)) for name in names})
    raise _unknown(given)


def _numbers(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Any:
    return rng.standard_normal(shape) if kind == "f" else rng.integers(0, 2, shape)


def _unknown(given: Any) -> ValueError:
    return ValueError(
        "records must be arrays, tensors, or collections of them, so that synthetic ones can be "
        f"made for the rehearsal, got a {type(given).__name__}; call study.rehearse(train, "
        "records=...) with synthetic or public records first, or pass rehearse=False"
    )
