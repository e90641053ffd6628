"""Simulated grid search: every candidate once, or each with the same probability."""

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
    """Winners of T grid searches; ties go to the earlier candidate.

    Args:
        run: trains a batch of runs and returns its outcomes in every view.
        protocol: the number of candidates, and the probability that each is trained.
        candidates: the same number, or 1 if all candidates have the same hyperparameters.
        included: [T], whether the canary is in the data set of each tuning.
        rng: source of the candidates that are trained and of run seeds.
        views: number of threat models that evaluate the same runs.

    Returns:
        The winners in each view; `chosen` is the candidate's position in the grid.
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
