"""Adaptive search: earlier runs change the density of the next candidate within limits.

Its sampling density comes from a Gaussian process (Wang et al. 2023).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.numerics import FloatArray, format_exact
from audit.protocols.base import (
    USES_RESULTS,
    CandidateSpace,
    Case,
    FinishedRun,
    Point,
    SimulatedTunings,
    Statement,
)
from audit.protocols.random_search import RandomRuns
from audit.repetitions import Repetitions, TruncatedNegativeBinomial

EXPLORATION = 1.0  # number of standard deviations in the upper confidence bound
SHARPNESS = 2.0  # inverse temperature of the softmax, per standard deviation of the scores
NOISE = 0.1  # variance of a score around its candidate's mean
MIN_RUNS = 3  # with fewer runs the density is the prior
_LENGTH = 0.3  # length scale of the covariance, for features in [0, 1]
_BISECTION_STEPS, _USUAL_RANGE = 60, 1e6
_POOL = 512
_DENSITY_RANGE = (0.75, 1.33)  # in comparisons, as in the figures of DP-HyPO


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


@dataclass(frozen=True)
class Adaptive(RandomRuns):
    """K runs, each with a candidate from a density between low and high times the prior.

    The densities may depend on the earlier runs but not on K, which is drawn first. The best run is
    released. Ties are broken by an independent random number of each run, or by a fixed order of
    candidates and outputs, but not by the order of the runs. Source: Wang et al. 2023 (DP-HyPO,
    framework 1).

    Attributes:
        repetitions: the distribution of K; text is parsed.
        low: c in (0, 1], the smallest ratio of a density to the prior.
        high: C >= 1, the largest ratio.

    Example:
        >>> search = Adaptive("tnb:0,0.1", low=0.75, high=1.33)
        >>> search.spec
        'adaptive:0.75,1.33/tnb:0,0.1'
    """

    low: float
    high: float

    name: ClassVar[str] = "adaptive"
    assumption: ClassVar[str] = (
        "K runs; the density of each candidate is within [c, C] times the prior and may depend on "
        "earlier runs but not on K; ties are broken at random or by candidate and output, not by "
        "order of arrival"
    )
    parameters: ClassVar[str] = "LOW,HIGH"
    is_sequential: ClassVar[bool] = True
    is_adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "low", checks.interval, 0.0, 1.0, closed_high=True)
        checks.validate(self, "high", checks.interval, 1.0, 1e6, closed_low=True, closed_high=True)

    @property
    def spec(self) -> str:
        return f"adaptive:{self.low!r},{self.high!r}/{self.repetitions.spec}"

    @property
    def similar_search(self) -> Repetitions | None:
        return self.repetitions

    @classmethod
    def cases(cls, runs: float) -> list[Case]:
        low, high = _DENSITY_RANGE
        search = cls(TruncatedNegativeBinomial(0.0, 0.5).with_mean(runs), low, high)
        return [Case(f"adaptive within [{low:g}, {high:g}], logarithmic K", search, USES_RESULTS)]

    @cached_property
    def statement(self) -> Statement:
        low, high = format_exact(self.low), format_exact(self.high)
        bounds = f"between {low} and {high} times the prior"
        return Statement(
            f"The tuning trains {self.runs_in_words}. Earlier runs may change the probability "
            f"density of the next candidate to {bounds}. It releases the best run.",
            candidates=f"each candidate is drawn from a density {bounds}, which depends on the "
            "earlier runs alone",
        )

    def next_candidate(
        self,
        space: CandidateSpace,
        rng: np.random.Generator,
        index: int,
        before: Sequence[FinishedRun],
    ) -> Point:
        # A pool of n candidates is drawn from the prior, and one of them is chosen with weights
        # h_i / n, where every h_i is within [low, high]. The probability of any set of candidates
        # is therefore within [low, high] times its prior probability, for any earlier runs and any
        # size of the pool (Wang et al. 2023, section 4).
        pool = [tuple(point) for point in rng.random((_POOL, len(space.dimensions))).tolist()]
        u = rng.random()
        density = self.relative_density(space, pool, before)
        chosen = int(np.searchsorted(np.cumsum(density) / len(pool), u))
        return pool[min(chosen, len(pool) - 1)]

    def relative_density(
        self, space: CandidateSpace, pool: Sequence[Point], before: Sequence[FinishedRun]
    ) -> FloatArray:
        """The density [n] over a pool of candidates after some runs, relative to the prior."""
        finite_scores = [run.score for run in before if run.score is not None]
        if len(finite_scores) < MIN_RUNS or len({*finite_scores}) == 1:
            return np.ones(len(pool))
        # A failed run gets the lowest score of the other runs.
        scores = np.array(
            [min(finite_scores) if run.score is None else run.score for run in before]
        )
        scores = (scores - scores.mean()) / scores.std()
        runs = np.stack([space.features(run.point) for run in before])
        candidates = np.stack([space.features(point) for point in pool])
        counts = np.ones((1, len(before)))
        among, across = covariance(runs, runs), covariance(runs, candidates)
        (density,) = confidence_density(among, across, counts, scores[None], self.low, self.high)
        return density

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        return tunings.best_of_adaptive(self)
