"""Private hyper-parameter tuning by random search (Xiang, Wang & Wang 2024, algorithm 2)."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch
from audit.repetitions import Repetitions
from audit.tuning.winners import Run, Winners, empty_winners

# Runs handed to an engine at a time. It is part of the results: seeds are drawn batch by batch.
_MAX_BATCH = 1 << 20


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
    """Plays T tunings at once: draws every K, flattens all runs to batch, keeps the best of each.

    Each run takes one of the candidates uniformly. Of equal scores the first run wins, whatever
    the data.

    Args:
        run: runs a batch of runs and gives its outcomes in every view.
        law: the law of K.
        candidates: how many hyper-parameter candidates there are.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of K, candidates and run seeds.
        views: how many views the same runs serve.
        records: [T, n] which training records each tuning is on; None for all.
        keep: whether to keep what came of every run beside the winners.

    Returns:
        What each view makes of the runs.

    Raises:
        ValueError: a score is NaN.

    Example:
        >>> import numpy as np
        >>> from audit.dpsgd import RunOutcomes
        >>> from audit.repetitions import Fixed
        >>> def run(batch):
        ...     score = np.random.default_rng(0).normal(size=len(batch)) + batch.included
        ...     return [RunOutcomes(score, score, score, np.isfinite(score))]
        >>> included, rng = np.array([False, True]), np.random.default_rng(0)
        >>> (winners,) = best_of_runs(run, Fixed(3), 1, included, rng)
        >>> winners.runs.tolist()
        [3, 3]
    """
    runs = law.sample(rng, len(included))
    ends = np.cumsum(runs)
    total = int(ends[-1]) if len(runs) else 0
    all_winners = [empty_winners(runs, total if keep else 0) for _ in range(views)]
    for places in index_batches(total):
        tuning = np.searchsorted(ends, places, side="right")
        batch = RunBatch(
            included=included[tuning],
            candidate=rng.integers(0, candidates, len(places)),
            seeds=rng.integers(0, 2**64, len(places), dtype=np.uint64),
            records=None if records is None else records[tuning],
        )
        for winners, outcomes in zip(all_winners, run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, places - (ends - runs)[tuning])
            if keep:
                winners.keep(places, outcomes)
    return all_winners


def index_batches(total: int) -> Iterator[NDArray[np.int64]]:
    """The indices of so many batch, as many at a time as an engine is handed."""
    for start in range(0, total, _MAX_BATCH):
        yield np.arange(start, min(start + _MAX_BATCH, total))
