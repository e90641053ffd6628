"""Protocols that look back, on lanes: run j of all tunings together, then run j+1."""

import math

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import Lanes
from audit.protocols import Adaptive, RandomStopping, UntilAccepted
from audit.tuning.lane_samplers import Sampler
from audit.tuning.winners import Run, Winners, nobody

# Where so unlikely a row of runs is not accepted, the acceptance is not what it is said to be.
_IMPOSSIBLE = 1e-15
# Of one tuning, side by side, once few tunings are left.
_MOST_AHEAD = 16


def best_of_adaptive(
    run: Run,
    protocol: Adaptive,
    sampler: Sampler,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Winners:
    """Plays T tunings in rounds; each run's candidate is drawn by what came before in its tuning.

    Args:
        run: runs a pack of lanes.
        protocol: the law of K, and how far a density may be from the uniform prior.
        sampler: of the T tunings, fresh.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of K, candidates and lane seeds.
    """
    runs = protocol.repetitions.sample(rng, len(included))
    winners = nobody(runs)
    for index in range(int(runs.max(initial=0))):
        tuning = np.flatnonzero(runs > index)
        candidate = drawn(sampler.densities(tuning), rng.random(len(tuning)))
        lanes = Lanes(
            included=included[tuning],
            candidate=candidate,
            seeds=rng.integers(0, 2**64, len(tuning), dtype=np.uint64),
        )
        (outcomes,) = run(lanes)
        winners.compete(outcomes, lanes, tuning, np.full(len(tuning), index))
        sampler.add(tuning, candidate, outcomes)
    return winners


def drawn(densities: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Candidates [R] from densities [R, n] relative to the uniform prior, and uniforms [R]."""
    chances = np.cumsum(densities, axis=1) / densities.shape[1]
    return np.minimum((chances <= uniforms[:, None]).sum(axis=1), densities.shape[1] - 1)


def first_accepted(
    run: Run,
    protocol: UntilAccepted | RandomStopping,
    candidates: int,
    good_enough: float,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Winners:
    """Plays T tunings in rounds until each has a run that scores above a threshold, or stops.

    The number of runs after which one stops is drawn first. Each run takes one of the candidates
    uniformly.

    Args:
        run: runs a pack of lanes.
        protocol: until a run is accepted, or stopped after some that were not.
        candidates: how many hyper-parameter candidates there are.
        good_enough: a run is accepted if its score is above.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of stops, candidates and lane seeds.

    Returns:
        `runs` are those up to the accepted one, or to the stop.

    Raises:
        ValueError: so many runs are not accepted that the protocol's acceptance cannot be true.
    """
    size = len(included)
    if isinstance(protocol, RandomStopping):
        most = rng.geometric(protocol.stop, size)
    else:
        unlikely = math.log(_IMPOSSIBLE) / math.log1p(-min(protocol.acceptance, 1.0 - 1e-15))
        most = np.full(size, math.ceil(unlikely))
    winners = nobody(np.zeros(size, dtype=np.int64))
    active = np.arange(size)
    while active.size:
        ahead = max(1, min(size // active.size, _MOST_AHEAD))
        tuning = np.repeat(active, ahead)
        index = winners.runs[tuning] + np.tile(np.arange(ahead), active.size)
        lanes = Lanes(
            included=included[tuning],
            candidate=rng.integers(0, candidates, len(tuning)),
            seeds=rng.integers(0, 2**64, len(tuning), dtype=np.uint64),
        )
        (outcomes,) = run(lanes)
        kept = outcomes.finite & (outcomes.scores > good_enough) & (index < most[tuning])
        places = np.arange(len(tuning)).reshape(active.size, ahead)
        is_kept = kept[places]
        found = is_kept.any(axis=1)
        # A run after the accepted one was never made, as far as the protocol goes.
        first = np.where(found, is_kept.argmax(axis=1), ahead - 1)
        made = np.minimum(winners.runs[active] + first + 1, most[active])
        was_made = index < np.repeat(made, ahead)
        np.add.at(winners.diverged, tuning, was_made & ~outcomes.finite)
        winners.runs[active] = made
        who, lane = active[found], places[found, first[found]]
        winners.chosen[who] = index[lane]
        winners.candidate[who] = lanes.candidate[lane]
        winners.score[who] = outcomes.scores[lane]
        winners.take_proxies(who, outcomes, lane)
        active = active[~found & (made < most[active])]
    if isinstance(protocol, UntilAccepted) and (winners.chosen < 0).any():
        raise ValueError(
            "acceptance must be a lower limit of the chance that a run is accepted, got "
            f"{protocol.acceptance!r}, and none of {int(winners.runs.max())} runs was"
        )
    return winners
