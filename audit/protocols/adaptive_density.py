"""The sampling density of the adaptive protocol, from a Gaussian process (Wang et al. 2023).

A `Study` and the simulated tunings of an audit draw from this one density: the softmax of the upper
confidence bounds of a Gaussian process, projected into [low, high] times the prior.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from audit.arrays import FloatArray

EXPLORATION = 1.0  # number of standard deviations in the upper confidence bound
SHARPNESS = 2.0  # inverse temperature of the softmax, per standard deviation of the scores
NOISE = 0.1  # variance of a score around its candidate's mean
MIN_RUNS = 3  # with fewer runs the density is the prior
_LENGTH = 0.3  # length scale of the covariance, for features in [0, 1]
_BISECTION_STEPS, _USUAL_RANGE = 60, 1e6


def covariance(first: ArrayLike, second: ArrayLike) -> FloatArray:
    """Covariances [n, m] of the mean scores of candidates with features [n, d] and [m, d]."""
    from scipy.spatial import distance  # slow to import, and needed by an adaptive study alone

    rows, columns = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    squares = distance.cdist(rows / _LENGTH, columns / _LENGTH, metric="sqeuclidean")
    return np.asarray(np.exp(-0.5 * squares))


def confidence_density(
    among_runs: FloatArray,
    with_candidates: FloatArray,
    counts: FloatArray,
    scores: FloatArray,
    low: float,
    high: float,
) -> FloatArray:
    """Densities [R, n] over n candidates in R tunings, relative to the uniform prior.

    Args:
        among_runs: covariances [m, m] among the candidates that have scores.
        with_candidates: covariances [m, n] between these and the candidates to choose from.
        counts: numbers of runs [R, m] of each candidate that has scores; 0 if it has none yet.
        scores: mean scores [R, m], standardised.
        low: the smallest density.
        high: the largest density.
    """
    # K - K W (1 + W K W)^-1 W K with W = sqrt(counts / noise), the posterior covariance.
    weights = np.sqrt(counts / NOISE)
    weighted = weights[:, :, None] * with_candidates
    inner = weights[:, :, None] * among_runs * weights[:, None, :] + np.eye(len(among_runs))
    right = np.concatenate([weighted, (weights * scores)[:, :, None]], axis=2)
    solved = np.linalg.solve(inner, right)
    expected = np.einsum("rij,ri->rj", weighted, solved[:, :, -1])
    explained = np.einsum("rij,rij->rj", weighted, solved[:, :, :-1])
    variance = 1.0 + NOISE - explained  # the prior variance of a mean score is 1
    acquisition = SHARPNESS * (expected + EXPLORATION * np.sqrt(np.maximum(variance, 0.0)))
    density = np.exp(acquisition - acquisition.max(axis=1, keepdims=True))
    density /= density.mean(axis=1, keepdims=True)
    return project(density, low, high)


def project(
    densities: FloatArray, low: float, high: float, prior: FloatArray | None = None
) -> FloatArray:
    """The densities [R, n] with mean 1 within [low, high] that are closest to the given ones.

    Every row is clip(density + t, low, high) with the t at which its mean is 1, which solves the
    projection in the norm of the prior exactly. The bisection ends below this t, so no row has a
    mean above 1.

    Args:
        densities: densities [R, n] relative to the prior.
        low: the smallest density.
        high: the largest density.
        prior: probabilities [n]; uniform if not given.
    """
    below = low - densities.max(axis=1, keepdims=True)
    above = high - densities.min(axis=1, keepdims=True)
    # Very large densities take more steps.
    doublings = math.frexp(float((above - below).max(initial=1.0)) / _USUAL_RANGE)[1]
    for _ in range(_BISECTION_STEPS + max(doublings, 0)):
        middle = 0.5 * (below + above)
        clipped = np.clip(densities + middle, low, high)
        mean = (clipped if prior is None else clipped * prior * len(prior)).mean(
            axis=1, keepdims=True
        )
        below, above = np.where(mean <= 1.0, middle, below), np.where(mean <= 1.0, above, middle)
    return np.asarray(np.clip(densities + below, low, high))
