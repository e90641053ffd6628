"""The residual statistic: released gradients minus the contributions of the other records.

The adversary of the game knows the training function and all records but the canary. From the
gradients released before step t, the adversary can compute the contributions of the other records
and of the canary to step t. The rest of the released gradient is noise, plus the canary's
contribution if it is in the data. For full batches and Gaussian noise, the likelihood ratio of
these residuals is the most powerful statistic.

The contributions are taken from two further runs of the function, with and without the canary, to
which the released gradients are forced (see `audit.loop.runs.coupled_runs`). Both use a seed of
the adversary's own, so that the statistic is a function of the released gradients and of the
adversary's knowledge alone. A bound on it is therefore valid for every training function, also for
one whose runs cannot be coupled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.loop.runs.coupled_runs import CoupledRuns, RecordingWatch, Step, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import Train
from audit.numerics import FloatArray
from audit.opacus_objects import has_full_batches
from audit.user_code import run_seed

# Above these sizes, the gradients of a run are not kept.
_MAX_BYTES = 2e8
# The contribution of the canary may differ by this share between seeds.
_TOLERANCE = 0.1
# No trial has such a number, so the adversary's noise is not that of a trial.
_FIRST_OWN_TRIAL = 2**32 - 64
_SEEDS = 16
RUNS_PER_TRIAL = 3
"""Number of runs of the function in a trial whose residual statistic is computed."""


@dataclass(frozen=True)
class Residuals:
    """Computes the residual statistic of a run.

    Attributes:
        train: the training function.
        candidate: its hyperparameters.
        without: the records without the canary.
        canary: the record, [1, ...].
        initial: the weights and buffers that every run starts from.
        seed: seed of the adversary's own runs.
        offset: [T, D], an estimate of minus the noise that these runs have in common.
    """

    train: Train
    candidate: Any
    without: TrainingSet
    canary: TrainingSet
    initial: Mapping[str, Any]
    seed: int
    offset: FloatArray

    @staticmethod
    def of(
        train: Train,
        candidate: Any,
        without: TrainingSet,
        canary: TrainingSet,
        initial: Mapping[str, Any],
        seed: int,
    ) -> "Residuals | None":
        """Prepares the statistic, by 19 runs of the function.

        Returns:
            None if the accountant does not describe full batches, the steps have gradients of
            different parameters, the gradients of one run do not fit into memory, or runs with and
            without the canary have different noise: one generator may draw batches of n or n + 1
            records and the noise.
        """
        runs = CoupledRuns(train, candidate)
        own_seed = run_seed(seed, _FIRST_OWN_TRIAL)
        first_run = runs.run(without, own_seed, like=Trace(initial=dict(initial)))
        first_run.initial = dict(initial)
        size = 8.0 * len(first_run.steps) * sum(first_run.sizes)
        if (
            first_run.error
            or not has_full_batches(first_run.history)
            or not 0.0 < size <= _MAX_BYTES
        ):
            return None
        if not first_run.has_equal_steps:
            return None
        mean = np.zeros_like(first_run.gradients)
        contributions = []
        for i in range(_SEEDS + 1):
            other_run = (
                first_run
                if i == 0
                else runs.run(without, run_seed(seed, _FIRST_OWN_TRIAL + i), first_run)
            )
            if other_run.error or len(other_run.steps) != len(first_run.steps):
                return None
            if i > 0:
                mean += other_run.gradients / _SEEDS
            if i < 2:
                present = runs.run(
                    without.with_record(canary),
                    run_seed(seed, _FIRST_OWN_TRIAL + i),
                    like=first_run,
                )
                if present.error or len(present.steps) != len(first_run.steps):
                    return None
                contributions.append(present.gradients - other_run.gradients)
        contribution, of_other_seed = contributions
        gap = np.linalg.norm(contribution - of_other_seed)
        if gap > _TOLERANCE * np.linalg.norm(contribution):
            return None
        return Residuals(
            train, candidate, without, canary, initial, own_seed, first_run.gradients - mean
        )

    def recorder(self) -> RecordingWatch:
        """Records the gradients that a trial's run releases."""
        return RecordingWatch(Trace(initial=dict(self.initial)), None)

    def statistic(self, trial: Trace) -> float:
        """The log-likelihood ratio of a trial's residuals, up to a factor.

        Args:
            trial: the record of the trial's run.

        Returns:
            The sum over steps of (<u, c> - |c|^2 / 2) / sigma^2: u is the residual, c the canary's
            contribution and sigma the accounted noise multiplier of the step; minus infinity if
            the adversary's own runs fail.
        """
        runs = CoupledRuns(self.train, self.candidate)
        trial.initial = dict(self.initial)
        absent = runs.run(self.without, self.seed, like=trial)
        present = runs.run(self.without.with_record(self.canary), self.seed, like=trial)
        accounted = absent.accounted
        if accounted is None or absent.error or present.error:
            return -np.inf
        total = 0.0
        steps = zip(trial.steps, absent.steps, present.steps, self.offset, strict=False)
        for t, (released, without, with_both, offset) in enumerate(steps):
            contribution = with_both.gradient - without.gradient
            residual = released.gradient - without.gradient + offset
            product = residual @ contribution - 0.5 * (contribution @ contribution)
            total += float(product) / (accounted.sigma(t) * _scale(released)) ** 2
        return total if np.isfinite(total) else -np.inf


def _scale(step: Step) -> float:
    """C over the divisor, where the optimizer states both; else 1."""
    return step.clip / step.divisor if step.clip and step.divisor else 1.0
