"""Scores of simulated audits, and the number of violations that a valid bound may have."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from audit import lower_bounds, repetitions
from audit.lower_bounds import LowerBound
from audit.orders import IncreasingOrder

DELTA = 1e-5
TNB = repetitions.parse_repetitions("tnb:0,0.01")


def max_violations(audits: int, rate: float = 0.05) -> int:
    """The number of violations that a rate of 5 % exceeds with probability at most 1e-3."""
    return int(stats.binom.ppf(1.0 - 1e-3, audits, rate))


def best_of(
    distribution: repetitions.Repetitions, rng: np.random.Generator, size: int
) -> np.ndarray:
    """The largest of K >= 1 standard normal draws: the K-th root of a uniform number."""
    return special.ndtri(rng.random(size) ** (1.0 / distribution.sample(rng, size)))


def winners(
    distribution: repetitions.Repetitions, rng: np.random.Generator, size: int
) -> np.ndarray:
    """The same for K >= 0; without a run the output is minus infinity."""
    return IncreasingOrder().best(distribution.sample(rng, size), 0.0, rng)


def leaky_response(
    epsilon: float, delta: float, rng: np.random.Generator, trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Every (epsilon, delta)-DP mechanism is a postprocessing of this one."""
    honest = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    sides = []
    for value in (-1.0, 1.0):
        answer = np.where(rng.random(trials) < honest, value, -value)
        sides.append(np.where(rng.random(trials) < delta, 2.0 * value, answer))
    return sides[0], sides[1]


def least_favourable(
    epsilon: float, delta: float, rng: np.random.Generator, n0: int, n1: int
) -> tuple[np.ndarray, np.ndarray]:
    """Continuous scores that attain both constraints of the definition at every threshold.

    With the record they are uniform; without it the distribution function is
    min(e^eps u + delta, 1 - e^-eps (1 - delta - u)).
    """
    growth = math.exp(epsilon)
    corner = (1.0 - delta) * (1.0 - 1.0 / growth) / (growth - 1.0 / growth)
    v = rng.random(n0)
    low = np.clip((v - delta) / growth, 0.0, None)
    high = 1.0 - delta - (1.0 - v) * growth
    return np.where(v <= growth * corner + delta, low, high), rng.random(n1)


def bound_of(out_scores: ArrayLike, in_scores: ArrayLike, **options: Any) -> LowerBound:
    """The recommended bound, with the scores by position."""
    return lower_bounds.lower_bound(out_scores=out_scores, in_scores=in_scores, **options)


def bounds_of(out_scores: ArrayLike, in_scores: ArrayLike, **options: Any) -> list[LowerBound]:
    """Every bound, with the scores by position."""
    return lower_bounds.all_lower_bounds(out_scores=out_scores, in_scores=in_scores, **options)
