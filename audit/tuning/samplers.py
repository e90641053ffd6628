"""Choice of the next candidate: from the prior, in grid order, or adaptively."""

from collections.abc import Sequence

import numpy as np

from audit.arrays import FloatArray
from audit.protocols import Adaptive, DistinctCandidates, Grid, Protocol
from audit.protocols.adaptive_density import MIN_RUNS, confidence_density, covariance
from audit.tuning.journal import Record
from audit.tuning.space import Space

Point = tuple[float, ...]

_POOL = 512


def next_point(
    protocol: Protocol,
    space: Space,
    rng: np.random.Generator,
    index: int,
    before: Sequence[Record],
) -> Point:
    """The candidate of run `index`, from 0; an adaptive choice uses the earlier runs."""
    if isinstance(protocol, Grid | DistinctCandidates):
        return space.points()[index]
    if isinstance(protocol, Adaptive):
        return adaptive_point(protocol, space, rng, before)
    return space.draw(rng)


def adaptive_point(
    protocol: Adaptive, space: Space, rng: np.random.Generator, before: Sequence[Record]
) -> Point:
    """A candidate from a density within [low, high] times the prior (Wang et al. 2023, section 4).

    The function draws a pool of n candidates from the prior and chooses one with weights h_i / n,
    where every h_i is within [low, high]. The probability of any set of candidates is therefore
    within [low, high] times its prior probability, for any earlier runs and any size of the pool.
    """
    pool = [tuple(point) for point in rng.random((_POOL, len(space.dimensions))).tolist()]
    u = rng.random()
    density = relative_density(protocol, space, pool, before)
    chosen = int(np.searchsorted(np.cumsum(density) / len(pool), u))
    return pool[min(chosen, len(pool) - 1)]


def relative_density(
    protocol: Adaptive, space: Space, pool: Sequence[Point], before: Sequence[Record]
) -> FloatArray:
    """The density [n] over a pool of points, relative to the prior.

    It is the projected softmax of a Gaussian process's upper confidence bounds.
    """
    known = [one.score for one in before if one.score is not None]
    if len(known) < MIN_RUNS or len({*known}) == 1:
        return np.ones(len(pool))
    # A failed run gets the lowest score of the other runs.
    scores = np.array([min(known) if one.score is None else one.score for one in before])
    scores = (scores - scores.mean()) / scores.std()
    runs = np.stack([space.features(one.point) for one in before])
    candidates = np.stack([space.features(point) for point in pool])
    counts = np.ones((1, len(before)))
    among, across = covariance(runs, runs), covariance(runs, candidates)
    (density,) = confidence_density(
        among, across, counts, scores[None], protocol.low, protocol.high
    )
    return density
