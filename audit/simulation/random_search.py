"""Simulated random search (Xiang, Wang & Wang 2024, algorithm 2) and grid search."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.dpsgd import RunBatch
from audit.repetitions import Repetitions
from audit.simulation.winners import GameContext, Run, Winners, empty_winners

# Runs passed to an engine at a time. Results depend on it: seeds are drawn batch by batch.
_MAX_BATCH = 1 << 20


def best_of_runs(
    run: Run,
    repetitions: Repetitions,
    candidates: int,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
    views: int = 1,
    records: NDArray[np.bool_] | None = None,
    keep: bool = False,
) -> list[Winners]:
    """Winners of T random searches: each tuning draws K and releases the best of its K runs.

    Each run draws one of the candidates uniformly. Ties go to the earlier run, whatever the data.

    Args:
        run: trains a batch of runs and returns its outcomes in every view.
        repetitions: the distribution of K.
        candidates: number of candidates.
        included: [T], whether the canary is in the data set of each tuning.
        rng: source of K, candidates and run seeds.
        views: number of threat models that evaluate the same runs.
        records: [T, n], the training records in each tuning's data set; None for all.
        keep: whether to store the outcomes of every run as well.

    Returns:
        The winners in each view.

    Raises:
        InvalidInput: a score is NaN.

    Example:
        >>> import numpy as np
        >>> from audit.dpsgd import RunOutcomes
        >>> from audit.repetitions import Fixed
        >>> def run(batch):
        ...     score = np.random.default_rng(0).normal(size=len(batch)) + batch.included
        ...     return [RunOutcomes(*[score] * 6, np.isfinite(score))]
        >>> included, rng = np.array([False, True]), np.random.default_rng(0)
        >>> (winners,) = best_of_runs(run, Fixed(3), 1, included, rng)
        >>> winners.runs.tolist()
        [3, 3]
    """
    keep = checks.flag("keep", keep)
    runs = repetitions.sample(rng, len(included))
    ends = np.cumsum(runs)
    total = int(ends[-1]) if len(runs) else 0
    all_winners = [empty_winners(runs, total if keep else 0) for _ in range(views)]
    for places in index_batches(total):
        tuning = np.searchsorted(ends, places, side="right")
        candidate = rng.integers(0, candidates, len(places))
        records_of_runs = None if records is None else records[tuning]
        batch = RunBatch.drawn(included[tuning], candidate, rng, records_of_runs)
        for winners, outcomes in zip(all_winners, run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, places - (ends - runs)[tuning])
            if keep:
                winners.keep(places, outcomes)
    return all_winners


def best_of_list(
    context: GameContext,
    is_run: NDArray[np.bool_],
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> list[Winners]:
    """Winners of T searches of a list in each view; ties go to the earlier candidate.

    `is_run`, [T, n]: which candidates each tuning trains; `chosen` is the winner's position.
    """
    every_tuning, every_place = np.nonzero(is_run)
    all_winners = [empty_winners(is_run.sum(axis=1)) for _ in range(context.views)]
    for places in index_batches(len(every_tuning)):
        tuning, place = every_tuning[places], every_place[places]
        candidate = place if context.candidates > 1 else np.zeros_like(place)
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        for winners, outcomes in zip(all_winners, context.run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, place)
    return all_winners


def index_batches(total: int) -> Iterator[NDArray[np.int64]]:
    """Yields the indices 0, ..., total - 1 in batches of at most _MAX_BATCH."""
    for start in range(0, total, _MAX_BATCH):
        yield np.arange(start, min(start + _MAX_BATCH, total))
