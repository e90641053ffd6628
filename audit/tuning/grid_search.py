"""A grid on batch: every candidate of a list once, or each with some chance."""

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch
from audit.protocols import Grid
from audit.tuning.random_search import index_batches
from audit.tuning.winners import Run, Winners, empty_winners


def best_of_grid(
    run: Run,
    protocol: Grid,
    candidates: int,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
    views: int = 1,
) -> list[Winners]:
    """Plays T tunings at once. Of equal scores the first candidate of the list wins.

    Args:
        run: runs a batch of runs and gives its outcomes in every view.
        protocol: how many candidates, and the chance of each to be run.
        candidates: the same number, or 1 where all have the same hyper-parameters.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of which candidates are run, and of run seeds.
        views: how many views the same runs serve.

    Returns:
        What each view makes of the runs; `chosen` is the place in the list.
    """
    is_run = rng.random((len(included), protocol.candidates)) < protocol.inclusion
    every_tuning, every_place = np.nonzero(is_run)
    all_winners = [empty_winners(is_run.sum(axis=1)) for _ in range(views)]
    for places in index_batches(len(every_tuning)):
        tuning, place = every_tuning[places], every_place[places]
        batch = RunBatch(
            included=included[tuning],
            candidate=place if candidates > 1 else np.zeros_like(place),
            seeds=rng.integers(0, 2**64, len(places), dtype=np.uint64),
        )
        for winners, outcomes in zip(all_winners, run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, place)
    return all_winners
