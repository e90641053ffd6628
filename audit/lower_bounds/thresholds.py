"""Where to put the threshold, and what looking for it costs.

A rule takes the scores and a method and returns the threshold it settles on, with the strength
proved there. With every rule but `max_grid` the strength is proved with error alpha.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from audit.lower_bounds.methods import Counts, Curve, Method, best_of_gaussian_rates
from audit.lower_bounds.rates import band_limit, band_ranks
from audit.lower_bounds.scores import Scores
from audit.repetitions import Repetitions

Array = NDArray[np.float64]

_GRID_SIZE = 200
# Ratio of neighbouring ranks among those that Bonferroni's inequality is paid for.
_RANK_RATIO = 2.0


@dataclass(frozen=True)
class Choice:
    """What a rule settled on.

    Attributes:
        threshold: on the scale of the scores.
        strength: what is proved there, on the scale of the method.
        false_positives: counted at the threshold.
        false_negatives: counted at the threshold.
        trials_without: trials without the record that were counted.
        trials_with: trials with the record that were counted.
    """

    threshold: float
    strength: float
    false_positives: int
    false_negatives: int
    trials_without: int
    trials_with: int


def _counted(scores: Scores, thresholds: Array) -> Counts:
    return Counts(
        scores.false_positives(thresholds),
        scores.false_negatives(thresholds),
        len(scores.without),
        len(scores.with_record),
    )


def _strongest(thresholds: Array, strength: Array, counts: Counts) -> Choice:
    best = int(np.argmax(strength))
    return Choice(
        float(thresholds[best]),
        float(strength[best]),
        int(counts.false_positives[best]),
        int(counts.false_negatives[best]),
        counts.trials_without,
        counts.trials_with,
    )


def fixed(scores: Scores, threshold: float, method: Method, delta: float, alpha: float) -> Choice:
    """One threshold chosen before the game."""
    at = np.array([threshold])
    counts = _counted(scores, at)
    return _strongest(at, method.strength(counts, delta, alpha), counts)


def candidates(scores: Scores) -> Array:
    """200 thresholds, evenly spaced over the finite scores, as the papers search them."""
    ends = [
        side[np.isfinite(side)][[0, -1]]
        for side in (scores.sorted_without, scores.sorted_with)
        if np.isfinite(side).any()
    ]
    if not ends:
        return np.zeros(1)
    # Halves, so that the span of scores near the largest float does not overflow.
    halves = np.concatenate(ends) / 2.0
    return np.asarray(2.0 * np.linspace(halves.min(), halves.max(), _GRID_SIZE))


def max_grid(scores: Scores, method: Method, delta: float, alpha: float) -> Choice:
    """The best of the candidates, as if it had been the only one: too large."""
    at = candidates(scores)
    counts = _counted(scores, at)
    return _strongest(at, method.strength(counts, delta, alpha), counts)


def bonferroni(scores: Scores, curve: Curve, delta: float, alpha: float) -> Choice:
    """The best of few thresholds, each paid for.

    The thresholds are scores without the record, of ranks fixed in advance. At the j-th smallest,
    the limit of the false positives is that of its order statistic, Beta(j, n0 - j + 1), which is
    Clopper-Pearson's for n0 - j events; and given the scores without the record, the false
    negatives are binomial. So both limits are exact, ties making them only safer.
    """
    n0, n1 = len(scores.without), len(scores.with_record)
    if n0 == 0:
        return Choice(math.nan, -math.inf, 0, 0, n0, n1)
    ranks = _ranks(n0)
    at = scores.sorted_without[ranks - 1]
    counts = Counts(n0 - ranks, scores.false_negatives(at), n0, n1)
    return _strongest(at, curve.strength(counts, delta, alpha / len(ranks)), counts)


@lru_cache(maxsize=64)
def _ranks(n: int) -> NDArray[np.int64]:
    """Ranks dense at both ends: 1/2, 1/4, ... of n from either."""
    steps = np.arange(int(math.log(n) / math.log(_RANK_RATIO)) + 1)
    from_end = np.rint(n / 2.0 * _RANK_RATIO**-steps).astype(np.int64)
    ranks = np.unique(np.concatenate([from_end, n - from_end, [n]]))
    return ranks[ranks > 0]


def band(scores: Scores, curve: Curve, delta: float, alpha: float) -> Choice:
    """The best of all thresholds, by limits that hold at all of them at once.

    The limits change at few ranks only: at a score without the record or just below one with it.
    """
    n0, n1 = len(scores.without), len(scores.with_record)
    if n0 == 0 or n1 == 0:
        return Choice(math.nan, -math.inf, 0, 0, n0, n1)
    below = np.nextafter(scores.sorted_with[n1 - band_ranks(n1)], -np.inf)
    at = np.concatenate([scores.sorted_without[band_ranks(n0) - 1], below])
    counts = _counted(scores, at)
    return _strongest(at, curve.strength(counts, delta, alpha, limit=band_limit), counts)


def split(scores: Scores, method: Method, delta: float, alpha: float) -> Choice:
    """The best threshold of the even trials, judged by the odd ones."""
    return _judged(*scores.even_and_odd, method, delta, alpha)


def multi_split(scores: Scores, method: Method, delta: float, alpha: float) -> Choice:
    """The median of many random splits, each with error alpha / 2 (Meinshausen et al. 2009).

    On average at most alpha / 2 of the splits' bounds are too large, so by Markov's inequality
    half of them are with probability at most alpha. The splits are the same ones every time.
    """
    found = [
        _judged(search, judge, method, delta, alpha / 2.0) for search, judge in scores.random_halves
    ]
    return sorted(found, key=lambda choice: choice.strength)[len(found) // 2]


def _judged(search: Scores, judge: Scores, method: Method, delta: float, alpha: float) -> Choice:
    at = max_grid(search, method.scout, delta, alpha).threshold
    return fixed(judge, at, method, delta, alpha)


@lru_cache(maxsize=256)
def from_theory(
    mu: float,
    repetitions: Repetitions,
    trials_without: int,
    trials_with: int,
    method: Method,
    delta: float,
    alpha: float,
) -> float:
    """The threshold to fix in advance for standardised scores, N(b mu, 1) in one run, best of K.

    It maximises what the method proves when the counts come out as expected. Any threshold fixed in
    advance gives a valid bound; only the strength depends on whether the expectation was right.

    Args:
        mu: expected distance in standard deviations.
        repetitions: law of K.
        trials_without: planned trials without the record.
        trials_with: planned trials with it.
        method: the method to be used.
        delta: in [0, 1).
        alpha: total error.

    Returns:
        Threshold in standard deviations from the mean without the record.
    """
    low, high, best = -9.0, 9.0 + mu, 0.0
    for _ in range(3):
        grid = np.linspace(low, high, 101)
        fp, _, fn, _ = best_of_gaussian_rates(grid, mu, repetitions)
        expected = Counts(fp * trials_without, fn * trials_with, trials_without, trials_with)
        peak = int(np.argmax(method.scout.strength(expected, delta, alpha)))
        best = float(grid[peak])
        low, high = grid[max(peak - 1, 0)], grid[min(peak + 1, len(grid) - 1)]
    return best
