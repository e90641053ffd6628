"""Private hyper-parameter tuning by random search (Xiang, Wang & Wang 2024, algorithm 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import LaneOutcomes, Lanes
from audit.repetitions import Repetitions

# Lanes handed to an engine at a time. It is part of the results: seeds are drawn pack by pack.
_PACK = 1 << 20


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
        diverged: [T] number of runs that diverged; they are never chosen.
    """

    runs: NDArray[np.int64]
    chosen: NDArray[np.int64]
    candidate: NDArray[np.int64]
    score: NDArray[np.float64]
    lambda_a: NDArray[np.float64]
    lambda_c: NDArray[np.float64]
    diverged: NDArray[np.int64]


def best_of_runs(
    run: Callable[[Lanes], Sequence[LaneOutcomes]],
    law: Repetitions,
    candidates: int,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
    views: int = 1,
) -> list[Winners]:
    """Plays T tunings at once: draws every K, flattens all runs to lanes, keeps the best of each.

    Each run takes one of the candidates uniformly. Of equal scores the first run wins, whatever
    the data.

    Args:
        run: runs a pack of lanes and gives its outcomes in every view.
        law: the law of K.
        candidates: how many hyper-parameter candidates there are.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of K, candidates and lane seeds.
        views: how many views the same runs serve.

    Returns:
        What each view makes of the runs.

    Raises:
        ValueError: a score is NaN.
    """
    tunings = len(included)
    runs = law.sample(rng, tunings)
    ends = np.cumsum(runs)
    total = int(ends[-1]) if tunings else 0
    all_winners = [_nobody(runs) for _ in range(views)]
    for start in range(0, total, _PACK):
        lane = np.arange(start, min(start + _PACK, total))
        tuning = np.searchsorted(ends, lane, side="right")
        lanes = Lanes(
            included=included[tuning],
            candidate=rng.integers(0, candidates, len(lane)),
            seeds=rng.integers(0, 2**64, len(lane), dtype=np.uint64),
        )
        for winners, outcomes in zip(all_winners, run(lanes), strict=True):
            _update(winners, outcomes, lanes, tuning, lane - (ends - runs)[tuning])
    return all_winners


def _nobody(runs: NDArray[np.int64]) -> Winners:
    size = len(runs)
    return Winners(
        runs=runs,
        chosen=np.full(size, -1, dtype=np.int64),
        candidate=np.full(size, -1, dtype=np.int64),
        score=np.full(size, -np.inf),
        lambda_a=np.full(size, -np.inf),
        lambda_c=np.full(size, -np.inf),
        diverged=np.zeros(size, dtype=np.int64),
    )


def _update(
    winners: Winners,
    outcomes: LaneOutcomes,
    lanes: Lanes,
    tuning: NDArray[np.int64],
    index: NDArray[np.int64],
) -> None:
    """Lets a pack of lanes, sorted by tuning, compete; `index` is a lane's place in its tuning."""
    scores = np.where(outcomes.finite, outcomes.scores, -np.inf)
    if np.isnan(scores).any():
        raise ValueError("score must be a number for every run, got NaN")
    np.add.at(winners.diverged, tuning, ~outcomes.finite)
    first = np.flatnonzero(np.diff(tuning, prepend=-1))
    highest = np.maximum.reduceat(scores, first)
    lane = np.arange(len(lanes))
    is_best = scores == np.repeat(highest, np.diff(np.append(first, len(lanes))))
    best = np.minimum.reduceat(np.where(is_best, lane, len(lanes)), first)
    # A pack may continue a tuning that an earlier pack began: only a better score replaces.
    better = highest > winners.score[tuning[first]]
    best, who = best[better], tuning[first][better]
    winners.chosen[who] = index[best]
    winners.candidate[who] = lanes.candidate[best]
    winners.score[who] = scores[best]
    winners.lambda_a[who] = outcomes.lambda_a[best]
    winners.lambda_c[who] = outcomes.lambda_c[best]
