"""How the next candidate of a study is chosen: from the prior, in order, or by what came before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.protocols import Adaptive, Grid, Protocol
from audit.tuning.space import Space
from audit.upper_bounds.published import project_density

Array = NDArray[np.float64]
Point = tuple[float, ...]

__all__ = ["Ended", "adaptive_point", "kernel", "next_point", "relative_density"]

_POOL = 512
EXPLORATION = 1.0  # standard deviations of the model that are added to its mean
SHARPNESS = 2.0  # of the softmax, per standard deviation of the scores
NOISE = 0.1  # variance of a score around what its candidate is worth
FEW = 3  # runs before which nothing is learnt


@dataclass(frozen=True)
class Ended:
    """A run that is over.

    Attributes:
        point: its candidate, as a point of the space.
        score: its score; minus infinity if it lost.
    """

    point: Point
    score: float


def next_point(
    protocol: Protocol,
    space: Space,
    rng: np.random.Generator,
    index: int,
    before: Sequence[Ended],
) -> Point:
    """The candidate of run `index`.

    Args:
        protocol: how candidates are chosen.
        space: of candidates.
        rng: this run's own source.
        index: of the run, from 0; of a grid, of the candidate.
        before: the runs that an adaptive choice may look at.
    """
    if isinstance(protocol, Grid):
        return space.points()[index]
    if isinstance(protocol, Adaptive):
        return adaptive_point(protocol, space, rng, before)
    return space.draw(rng)


def adaptive_point(
    protocol: Adaptive, space: Space, rng: np.random.Generator, before: Sequence[Ended]
) -> Point:
    """Draws from a density within [low, high] times the prior (Wang et al. 2023, section 4).

    A pool is drawn from the prior, and one of it chosen with weights h_i / n, where every h_i lies
    within [low, high]. So the chance of any set of candidates lies within [low, high] times its
    chance under the prior, whatever came before, and however large the pool.
    """
    pool = [tuple(point) for point in rng.random((_POOL, len(space.dimensions))).tolist()]
    u = rng.random()
    density = relative_density(protocol, space, pool, before)
    chosen = int(np.searchsorted(np.cumsum(density) / len(pool), u))
    return pool[min(chosen, len(pool) - 1)]


def relative_density(
    protocol: Adaptive, space: Space, pool: Sequence[Point], before: Sequence[Ended]
) -> Array:
    """The density [n] over a pool, relative to the prior: within [low, high], and of mean 1.

    Softmax of what a Gaussian process hopes of each candidate, projected.
    """
    known = [one for one in before if np.isfinite(one.score)]
    if len(known) < FEW or len({one.score for one in known}) == 1:
        return np.ones(len(pool))
    # Slow to import, and only wanted here.
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import WhiteKernel

    scores = np.array([one.score for one in known])
    # A run that lost is as bad as the worst that did not.
    scores = np.array([max(one.score, scores.min()) for one in before])
    scores = (scores - scores.mean()) / scores.std()
    model = GaussianProcessRegressor(kernel() + WhiteKernel(NOISE), optimizer=None)
    model.fit(np.stack([space.features(one.point) for one in before]), scores)
    mean, deviation = model.predict(
        np.stack([space.features(point) for point in pool]), return_std=True
    )
    hope = SHARPNESS * (mean + EXPLORATION * deviation)
    weights = np.exp(hope - hope.max())
    return project_density(weights / weights.mean(), protocol.low, protocol.high)


def kernel() -> Any:
    """The covariance, by features in [0, 1], of what candidates are worth."""
    from sklearn.gaussian_process.kernels import RBF  # slow to import

    return RBF(0.3)
