"""Simulated grid search: every candidate once, or each with the same probability."""

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch
from audit.protocols import Grid
from audit.tuning.random_search import index_batches
from audit.tuning.winners import GameContext, Winners, empty_winners


def best_of_grid(
    context: GameContext, protocol: Grid, included: NDArray[np.bool_], rng: np.random.Generator
) -> list[Winners]:
    """Winners of T grid searches, by position, in each view; ties go to the earlier candidate."""
    is_run = rng.random((len(included), protocol.candidates)) < protocol.inclusion
    every_tuning, every_place = np.nonzero(is_run)
    all_winners = [empty_winners(is_run.sum(axis=1)) for _ in range(context.views)]
    for places in index_batches(len(every_tuning)):
        tuning, place = every_tuning[places], every_place[places]
        batch = RunBatch(
            included=included[tuning],
            candidate=place if context.candidates > 1 else np.zeros_like(place),
            seeds=rng.integers(0, 2**64, len(places), dtype=np.uint64),
        )
        for winners, outcomes in zip(all_winners, context.run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, place)
    return all_winners
