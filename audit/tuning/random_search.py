"""Private hyper-parameter tuning by random search (Xiang, Wang & Wang 2024, algorithm 2)."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import Lanes
from audit.repetitions import Repetitions
from audit.tuning.winners import Run, Winners, nobody

# Lanes handed to an engine at a time. It is part of the results: seeds are drawn pack by pack.
_PACK = 1 << 20


def best_of_runs(
    run: Run,
    law: Repetitions,
    candidates: int,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
    views: int = 1,
    records: NDArray[np.bool_] | None = None,
    keep: bool = False,
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
        records: [T, n] which training records each tuning is on; None for all.
        keep: whether to keep what came of every run beside the winners.

    Returns:
        What each view makes of the runs.

    Raises:
        ValueError: a score is NaN.

    Example:
        >>> import numpy as np
        >>> from audit.dpsgd import LaneOutcomes
        >>> from audit.repetitions import Fixed
        >>> def run(lanes):
        ...     score = np.random.default_rng(0).normal(size=len(lanes)) + lanes.included
        ...     return [LaneOutcomes(*[score] * 6, np.isfinite(score))]
        >>> included, rng = np.array([False, True]), np.random.default_rng(0)
        >>> (winners,) = best_of_runs(run, Fixed(3), 1, included, rng)
        >>> winners.runs.tolist()
        [3, 3]
    """
    runs = law.sample(rng, len(included))
    ends = np.cumsum(runs)
    total = int(ends[-1]) if len(runs) else 0
    all_winners = [nobody(runs, total if keep else 0) for _ in range(views)]
    for lane in packs(total):
        tuning = np.searchsorted(ends, lane, side="right")
        lanes = Lanes(
            included=included[tuning],
            candidate=rng.integers(0, candidates, len(lane)),
            seeds=rng.integers(0, 2**64, len(lane), dtype=np.uint64),
            records=None if records is None else records[tuning],
        )
        for winners, outcomes in zip(all_winners, run(lanes), strict=True):
            winners.compete(outcomes, lanes, tuning, lane - (ends - runs)[tuning])
            if keep:
                winners.keep(lane, outcomes)
    return all_winners


def packs(total: int) -> Iterator[NDArray[np.int64]]:
    """The indices of so many lanes, as many at a time as an engine is handed."""
    for start in range(0, total, _PACK):
        yield np.arange(start, min(start + _PACK, total))
