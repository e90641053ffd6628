"""Where to put the threshold, and what looking for it costs.

A rule takes the scores and a curve and returns the threshold it settles on with upper limits of
both error rates there that hold together with confidence 1 - alpha (`max-grid` excepted).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from audit.lower_bounds.curves import BestOfGaussian, Curve, best_of_gaussian_rates
from audit.lower_bounds.rates import upper_limit
from audit.lower_bounds.scores import Scores
from audit.repetitions import Repetitions

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_GRID_SIZE = 200
# Ratio of neighbouring ranks among those that Bonferroni's inequality is paid for.
_RANK_RATIO = 2.0


@dataclass(frozen=True)
class Choice:
    """What a rule settled on.

    Attributes:
        threshold: on the scale of the scores.
        strength: what the limits prove, on the scale of the curve.
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


def best_of(scores: Scores, thresholds: Array, curve: Curve, delta: float, alpha: float) -> Choice:
    """The strongest of some thresholds, each with both limits at level alpha / 2."""
    n0, n1 = len(scores.without), len(scores.with_record)
    fp, fn = scores.false_positives(thresholds), scores.false_negatives(thresholds)
    strength = curve.strength(
        upper_limit(fp, n0, alpha / 2.0), upper_limit(fn, n1, alpha / 2.0), delta
    )
    best = int(np.argmax(strength))
    return Choice(
        float(thresholds[best]), float(strength[best]), int(fp[best]), int(fn[best]), n0, n1
    )


def fixed(scores: Scores, threshold: float, curve: Curve, delta: float, alpha: float) -> Choice:
    """One threshold chosen before the game."""
    return best_of(scores, np.array([threshold]), curve, delta, alpha)


def candidates(scores: Scores) -> Array:
    """Up to 200 thresholds, evenly spaced over the finite scores, as papers search them."""
    pooled = np.concatenate([scores.without, scores.with_record])
    finite = pooled[np.isfinite(pooled)]
    if len(finite) == 0:
        return np.zeros(1)
    # Half of each end, so that the span of scores near the largest float does not overflow.
    return np.asarray(2.0 * np.linspace(finite.min() / 2.0, finite.max() / 2.0, _GRID_SIZE))


def max_grid(scores: Scores, curve: Curve, delta: float, alpha: float) -> Choice:
    """The best of the candidates, as if it had been the only one: too large."""
    return best_of(scores, candidates(scores), curve, delta, alpha)


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
    thresholds = scores.sorted_without[ranks - 1]
    share = alpha / (2.0 * len(ranks))
    fn = scores.false_negatives(thresholds)
    strength = curve.strength(upper_limit(n0 - ranks, n0, share), upper_limit(fn, n1, share), delta)
    best = int(np.argmax(strength))
    return Choice(
        float(thresholds[best]), float(strength[best]), int(n0 - ranks[best]), int(fn[best]), n0, n1
    )


@lru_cache(maxsize=64)
def _ranks(n: int) -> Counts:
    steps = np.arange(int(math.log(n) / math.log(_RANK_RATIO)) + 1)
    from_end = np.rint(n / 2.0 * _RANK_RATIO**-steps).astype(np.int64)
    from_end = from_end[from_end > 0]
    return np.unique(np.concatenate([from_end, n - from_end, [n]]))[1 if n > 8 else 0 :]


def split(scores: Scores, curve: Curve, delta: float, alpha: float) -> Choice:
    """The best threshold of the even trials, judged by the odd ones."""
    search = Scores(scores.without[0::2], scores.with_record[0::2])
    judge = Scores(scores.without[1::2], scores.with_record[1::2])
    threshold = max_grid(search, curve, delta, alpha).threshold
    return fixed(judge, threshold, curve, delta, alpha)


@lru_cache(maxsize=256)
def from_theory(
    mu: float,
    repetitions: Repetitions,
    trials_without: int,
    trials_with: int,
    curve: Curve,
    delta: float,
    alpha: float,
) -> float:
    """The threshold to fix in advance for standardised scores, N(b mu, 1) in one run, best of K.

    It maximises what the curve proves when the counts come out as expected. Any threshold fixed in
    advance gives a valid bound; only the strength depends on whether the expectation was right.

    Args:
        mu: expected distance in standard deviations.
        repetitions: law of K.
        trials_without: planned trials without the record.
        trials_with: planned trials with it.
        curve: the curve to be used.
        delta: in [0, 1).
        alpha: total error of both limits.

    Returns:
        Threshold in standard deviations from the mean without the record.
    """
    low, high, best = -9.0, 9.0 + mu, 0.0
    for _ in range(3):
        grid = np.linspace(low, high, 201)
        fp, _, fn, _ = best_of_gaussian_rates(grid, mu, repetitions)
        strength = curve.strength(
            upper_limit(fp * trials_without, trials_without, alpha / 2.0),
            upper_limit(fn * trials_with, trials_with, alpha / 2.0),
            delta,
        )
        peak = int(np.argmax(strength))
        best = float(grid[peak])
        low, high = grid[max(peak - 1, 0)], grid[min(peak + 1, len(grid) - 1)]
    return best


__all__ = [
    "BestOfGaussian",
    "Choice",
    "best_of",
    "bonferroni",
    "candidates",
    "fixed",
    "from_theory",
    "max_grid",
    "split",
]
