"""The winners of simulated tunings, and the comparison of runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch, RunOutcomes
from audit.errors import InvalidInput

_PROXIES = ("lambda_a", "lambda_c", "lambda_known", "lambda_start", "lambda_end")
Run = Callable[[RunBatch], Sequence[RunOutcomes]]
"""Trains a batch of runs and returns its outcomes in every view."""
LogRatio = Callable[["Winners"], NDArray[np.float64]]
"""The log-likelihood ratio of each tuning's choice, with over without the canary, [T]."""


@dataclass(frozen=True)
class GameContext:
    """The training function and the fixed choices of the adversary."""

    run: Run  # trains a batch of runs and returns its outcomes in every view
    features: NDArray[np.float64]  # [n, d], the candidates' features, each in [0, 1]
    tuned_log_ratio: LogRatio  # in tuning on a subset, the chosen run's log-likelihood ratio
    log_ratio_scale: float  # sigma^2 / N, the unit of lambda_c
    views: int = 1  # number of threat models that evaluate the same runs
    records: int = 0
    good_enough: float = -np.inf  # the score above which a run is accepted
    sampler: str = "gaussian-process"
    keep_runs: bool = False  # whether a random search stores the outcomes of every run

    @property
    def candidates(self) -> int:
        """Number of candidates."""
        return len(self.features)


@dataclass(frozen=True)
class Winners:
    """The released runs of T tunings.

    Attributes:
        runs: [T], K, the number of runs.
        chosen: [T], index of the best run; -1 if K = 0 or every run diverged.
        candidate: [T], index of the best run's candidate; -1 if there is none.
        score: [T], the best run's score; minus infinity if there is none.
        lambda_a: [T], the best run's proxy; minus infinity if there is none.
        lambda_c: [T], the best run's proxy for sampled batches; minus infinity if there is none.
        lambda_known: [T], the best run's proxy given the training records, likewise.
        lambda_start: [T], the best run's proxy from the final weights, with the canary's gradient
            at the initial weights, likewise.
        lambda_end: [T], the same with the canary's gradient at the final weights, likewise.
        diverged: [T], number of runs that diverged; they are never chosen.
        run_score: [R], score of every run, tuning by tuning; minus infinity if it diverged. Empty
            if runs are not stored.
        run_lambda_a: [R], lambda_a of every run, likewise.
        run_lambda_c: [R], lambda_c of every run, likewise.

    Example:
        >>> import numpy as np
        >>> empty_winners(np.array([3, 0])).chosen.tolist()  # before any run
        [-1, -1]
    """

    runs: NDArray[np.int64]
    chosen: NDArray[np.int64]
    candidate: NDArray[np.int64]
    score: NDArray[np.float64]
    lambda_a: NDArray[np.float64]
    lambda_c: NDArray[np.float64]
    lambda_known: NDArray[np.float64]
    lambda_start: NDArray[np.float64]
    lambda_end: NDArray[np.float64]
    diverged: NDArray[np.int64]
    run_score: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), kw_only=True)
    run_lambda_a: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), kw_only=True)
    run_lambda_c: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), kw_only=True)

    def keep(self, places: NDArray[np.int64], outcomes: RunOutcomes) -> None:
        """Stores the outcomes of the runs at these positions among all runs."""
        for stored, new_values in (
            (self.run_score, outcomes.scores),
            (self.run_lambda_a, outcomes.lambda_a),
            (self.run_lambda_c, outcomes.lambda_c),
        ):
            stored[places] = np.where(outcomes.finite, new_values, -np.inf)

    def compete(
        self,
        outcomes: RunOutcomes,
        batch: RunBatch,
        tuning: NDArray[np.int64],
        index: NDArray[np.int64],
    ) -> None:
        """Updates the winners with a batch of runs; ties go to the earlier run.

        Args:
            outcomes: outcomes of the batch.
            batch: the batch, sorted by tuning.
            tuning: [R], each run's tuning.
            index: [R], each run's index in its tuning.

        Raises:
            InvalidInput: a score is NaN.
        """
        scores = np.where(outcomes.finite, outcomes.scores, -np.inf)
        if np.isnan(scores).any():
            raise InvalidInput("score must be a number for every run, got NaN")
        np.add.at(self.diverged, tuning, ~outcomes.finite)
        starts = np.flatnonzero(np.diff(tuning, prepend=-1))
        highest = np.maximum.reduceat(scores, starts)
        position = np.arange(len(batch))
        is_best = scores == np.repeat(highest, np.diff(np.append(starts, len(batch))))
        best = np.minimum.reduceat(np.where(is_best, position, len(batch)), starts)
        # A batch may continue a tuning of an earlier batch: only a better score replaces its
        # winner.
        better = highest > self.score[tuning[starts]]
        best, who = best[better], tuning[starts][better]
        self.chosen[who] = index[best]
        self.candidate[who] = batch.candidate[best]
        self.score[who] = scores[best]
        self.take_proxies(who, outcomes, best)

    def take_proxies(
        self, who: NDArray[np.int64], outcomes: RunOutcomes, position: NDArray[np.int64]
    ) -> None:
        """Copies the proxies of some runs to the tunings `who` whose winners they are."""
        for name in _PROXIES:
            getattr(self, name)[who] = getattr(outcomes, name)[position]


def empty_winners(runs: NDArray[np.int64], kept: int = 0) -> Winners:
    """Winners before any run, for tunings with these numbers of runs, [T]; stores `kept` runs."""
    size = len(runs)
    return Winners(
        runs=runs,
        chosen=np.full(size, -1, dtype=np.int64),
        candidate=np.full(size, -1, dtype=np.int64),
        score=np.full(size, -np.inf),
        **{name: np.full(size, -np.inf) for name in _PROXIES},
        diverged=np.zeros(size, dtype=np.int64),
        run_score=np.empty(kept),
        run_lambda_a=np.empty(kept),
        run_lambda_c=np.empty(kept),
    )
