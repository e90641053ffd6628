"""What tunings of a game release, and how a pack of runs competes for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import LaneOutcomes, Lanes

_PROXIES = ("lambda_a", "lambda_c", "lambda_known", "lambda_start", "lambda_end")
Run = Callable[[Lanes], Sequence[LaneOutcomes]]
"""Runs a pack of lanes and gives its outcomes in every view."""


@dataclass(frozen=True)
class Winners:
    """What T tunings released.

    Attributes:
        runs: [T] K, the number of runs.
        chosen: [T] index of the best run, -1 where K = 0 or every run diverged.
        candidate: [T] index of its hyper-parameter candidate, -1 likewise.
        score: [T] its score, minus infinity likewise.
        lambda_a: [T] its proxy, minus infinity likewise.
        lambda_c: [T] its proxy for sampled batches, minus infinity likewise.
        lambda_known: [T] its proxy for an adversary who knows the training records, likewise.
        lambda_start: [T] its proxy from the final weights, by the canary's gradient at the initial
            weights, likewise.
        lambda_end: [T] the same by the canary's gradient at the final weights, likewise.
        diverged: [T] number of runs that diverged; they are never chosen.
        run_score: [R] score of every run, tuning by tuning; minus infinity where it diverged. Empty
            where runs are not kept.
        run_lambda_a: [R] likewise.
        run_lambda_c: [R] likewise.

    Example:
        >>> import numpy as np
        >>> nobody(np.array([3, 0])).chosen.tolist()  # before any run
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

    def keep(self, lane: NDArray[np.int64], outcomes: LaneOutcomes) -> None:
        """Keeps what came of some lanes, by their places among all runs."""
        for kept, found in (
            (self.run_score, outcomes.scores),
            (self.run_lambda_a, outcomes.lambda_a),
            (self.run_lambda_c, outcomes.lambda_c),
        ):
            kept[lane] = np.where(outcomes.finite, found, -np.inf)

    def compete(
        self,
        outcomes: LaneOutcomes,
        lanes: Lanes,
        tuning: NDArray[np.int64],
        index: NDArray[np.int64],
    ) -> None:
        """Lets a pack of lanes compete; of equal scores the first lane wins.

        Args:
            outcomes: of the lanes.
            lanes: the pack, sorted by tuning.
            tuning: [R] of each lane.
            index: [R] its place in its tuning.

        Raises:
            ValueError: a score is NaN.
        """
        scores = np.where(outcomes.finite, outcomes.scores, -np.inf)
        if np.isnan(scores).any():
            raise ValueError("score must be a number for every run, got NaN")
        np.add.at(self.diverged, tuning, ~outcomes.finite)
        first = np.flatnonzero(np.diff(tuning, prepend=-1))
        highest = np.maximum.reduceat(scores, first)
        lane = np.arange(len(lanes))
        is_best = scores == np.repeat(highest, np.diff(np.append(first, len(lanes))))
        best = np.minimum.reduceat(np.where(is_best, lane, len(lanes)), first)
        # A pack may continue a tuning that an earlier pack began: only a better score replaces.
        better = highest > self.score[tuning[first]]
        best, who = best[better], tuning[first][better]
        self.chosen[who] = index[best]
        self.candidate[who] = lanes.candidate[best]
        self.score[who] = scores[best]
        self.take_proxies(who, outcomes, best)

    def take_proxies(
        self, who: NDArray[np.int64], outcomes: LaneOutcomes, lane: NDArray[np.int64]
    ) -> None:
        """Copies the proxies of some lanes to the tunings `who` whose winners they are."""
        for name in _PROXIES:
            getattr(self, name)[who] = getattr(outcomes, name)[lane]


def nobody(runs: NDArray[np.int64], kept: int = 0) -> Winners:
    """No winner yet, of so many runs [T], and room to keep some."""
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
