"""Simulated sequential protocols: run j of all tunings together, then run j + 1."""

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch
from audit.protocols import Adaptive
from audit.simulation.batch_samplers import make_sampler
from audit.simulation.winners import GameContext, Winners, empty_winners

# Runs of one tuning that are trained together once few tunings remain.
_MAX_AHEAD = 16


def best_of_adaptive(
    context: GameContext, protocol: Adaptive, included: NDArray[np.bool_], rng: np.random.Generator
) -> Winners:
    """Winners of T adaptive searches; the density of each candidate depends on the earlier runs."""
    sampler = make_sampler(context.sampler, protocol, context.features, len(included))
    runs = protocol.repetitions.sample(rng, len(included))
    winners = empty_winners(runs)
    for index in range(int(runs.max(initial=0))):
        tuning = np.flatnonzero(runs > index)
        candidate = draw_candidates(sampler.densities(tuning), rng.random(len(tuning)))
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        (outcomes,) = context.run(batch)
        winners.compete(outcomes, batch, tuning, np.full(len(tuning), index))
        sampler.add(tuning, candidate, outcomes)
    return winners


def draw_candidates(
    densities: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Candidates, [R], from densities, [R, n], relative to the prior and uniform numbers, [R]."""
    chances = np.cumsum(densities, axis=1) / densities.shape[1]
    return np.minimum((chances <= uniforms[:, None]).sum(axis=1), densities.shape[1] - 1)


def first_accepted(
    context: GameContext,
    max_runs: NDArray[np.int64],
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Winners:
    """Winners of T tunings that release the first run above a threshold.

    A tuning stops without a result after `max_runs`, [T], which is fixed or drawn first. Each run
    draws one of the candidates uniformly. `runs` counts the runs up to the accepted one, or up to
    the stop.
    """
    size = len(included)
    winners = empty_winners(np.zeros(size, dtype=np.int64))
    active = np.arange(size)
    while active.size:
        ahead = max(1, min(size // active.size, _MAX_AHEAD))
        tuning = np.repeat(active, ahead)
        index = winners.runs[tuning] + np.tile(np.arange(ahead), active.size)
        candidate = rng.integers(0, context.candidates, len(tuning))
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        (outcomes,) = context.run(batch)
        accepted = (
            outcomes.finite & (outcomes.scores > context.good_enough) & (index < max_runs[tuning])
        )
        places = np.arange(len(tuning)).reshape(active.size, ahead)
        is_kept = accepted[places]
        has_accepted = is_kept.any(axis=1)
        # Runs after the accepted one were trained only for speed; the protocol does not have them.
        first_place = np.where(has_accepted, is_kept.argmax(axis=1), ahead - 1)
        made = np.minimum(winners.runs[active] + first_place + 1, max_runs[active])
        was_made = index < np.repeat(made, ahead)
        np.add.at(winners.diverged, tuning, was_made & ~outcomes.finite)
        winners.runs[active] = made
        who, won = active[has_accepted], places[has_accepted, first_place[has_accepted]]
        winners.chosen[who] = index[won]
        winners.candidate[who] = batch.candidate[won]
        winners.score[who] = outcomes.scores[won]
        winners.take_proxies(who, outcomes, won)
        active = active[~has_accepted & (made < max_runs[active])]
    return winners
