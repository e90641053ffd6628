"""Upper limits of a rate from a count: at one threshold, and at all thresholds at once."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.lower_bounds.recursion import convolve
from audit.numerics import QUANTILE_ACCURACY, safe_root

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

Limit = Callable[[ArrayLike, int, float], Array]
"""A function of (count, trials, alpha): limits that hold with probability at least 1 - alpha."""

_LARGEST_TABLE = 4096
# Ratio of neighbouring ranks that the band is drawn through.
_RANK_RATIO = 1.15


def upper_limit(count: ArrayLike, trials: int, alpha: float) -> Array:
    """Clopper-Pearson upper limit of a rate, exact for one threshold.

    Args:
        count: events [n] among the trials; expected counts need not be whole.
        trials: number of trials; with none, the limit is 1.
        alpha: error of this one-sided limit, in (0, 0.5].

    Source: Clopper & Pearson 1934; the quantile that statsmodels' `proportion_confint` takes.
    """
    count = np.asarray(count)
    if count.dtype.kind == "i" and 0 < trials <= _LARGEST_TABLE:
        return _table(trials, alpha)[count]
    return _clopper_pearson(count, trials, alpha)


@lru_cache(maxsize=256)
def _table(trials: int, alpha: float) -> Array:
    return _clopper_pearson(np.arange(trials + 1), trials, alpha)


def _clopper_pearson(count: ArrayLike, trials: int, alpha: float) -> Array:
    count = np.asarray(count, dtype=np.float64)
    if trials == 0:
        return np.ones_like(count)
    # An expected count of 1e-300 overflows the beta quantile; more events only raise the limit.
    count = np.where((count > 0) & (count < 1e-9), 1e-9, count)
    below = count < trials
    limit = np.ones_like(count)
    limit[below] = special.betainccinv(count[below] + 1.0, trials - count[below], alpha)
    return np.minimum(limit * (1.0 + QUANTILE_ACCURACY), 1.0)


def band_limit(count: ArrayLike, trials: int, alpha: float) -> Array:
    """Upper limits that hold at every threshold at once with probability at least 1 - alpha.

    The band of Berk & Jones 1979, one-sided: at ranks j on a grid dense at both ends, the j-th
    order statistic of `trials` uniforms stays above its own quantile of one common small level. The
    level is such that all do together with probability 1 - alpha, exactly (Noe 1972). Between
    ranks, the limit of the next safer one holds.

    Args:
        count: events above the thresholds [n], any number of them.
        trials: number of trials; with none, the limit is 1.
        alpha: joint error, in (0, 1).
    """
    count = np.asarray(count, dtype=np.int64)
    if trials == 0:
        return np.ones(count.shape)
    ranks, quantiles = _band(trials, alpha)
    at = np.searchsorted(ranks, trials - count, side="right") - 1
    floor = np.where(at >= 0, quantiles[np.maximum(at, 0)], 0.0)
    return 1.0 - floor * (1.0 - QUANTILE_ACCURACY)


@lru_cache(maxsize=64)
def band_ranks(n: int) -> Counts:
    """The ranks [m] at which the limits of the band change, ascending from 1 to n."""
    steps = np.arange(int(math.log(n) / math.log(_RANK_RATIO)) + 1, dtype=np.float64)
    from_end = np.rint(n * _RANK_RATIO**-steps).astype(np.int64)
    return np.unique(np.concatenate([from_end, n + 1 - from_end]))


@lru_cache(maxsize=64)
def _band(n: int, alpha: float) -> tuple[Counts, Array]:
    """Ranks [m], and what the uniform order statistics there all exceed."""
    ranks = band_ranks(n)

    def quantiles(level: float) -> Array:
        return np.asarray(special.betaincinv(ranks, n + 1.0 - ranks, level), dtype=np.float64)

    # One look alone has error `level`, all together at most their number times as much.
    low, high = math.log(alpha / len(ranks)), math.log(alpha)
    if len(ranks) == 1:
        return ranks, quantiles(alpha)

    def too_likely(log_level: float) -> bool:
        return _below_somewhere(n, ranks, quantiles(math.exp(log_level))) > alpha

    return ranks, quantiles(math.exp(safe_root(too_likely, low, high, 1e-3)))


def _below_somewhere(n: int, ranks: Counts, floors: Array) -> float:
    """P[some rank's order statistic of n uniforms lies below its floor]; floors ascend.

    The number of points below a floor is followed from floor to floor as a Poisson process of rate
    n, dropping what breaks the band; at the end it is conditioned on n points in all.
    """
    states, start, reached = np.ones(1), 0, 0.0
    for rank, floor in zip(ranks.tolist(), floors.tolist(), strict=True):
        mean = n * (floor - reached)
        spread = math.sqrt(mean)
        first = max(int(mean - 8.5 * spread), 0)
        k = np.arange(first, int(mean + 9.0 * spread + 30.0) + 1.0)
        kernel = np.exp(special.xlogy(k, mean) - mean - special.gammaln(k + 1.0))
        start += first
        states = convolve(states, kernel)[: max(rank - start, 0)]
        heavy = np.flatnonzero(states > 1e-18)
        if len(heavy) == 0:
            return 1.0
        states, start = states[heavy[0] :], start + int(heavy[0])
        reached = floor
    k = start + np.arange(len(states), dtype=np.float64)
    rest, left = n - k, n * (1.0 - reached)
    log_rest = special.xlogy(rest, left) - left - special.gammaln(rest + 1.0)
    log_all = n * math.log(n) - n - math.lgamma(n + 1.0)
    return float(np.clip(1.0 - states @ np.exp(log_rest - log_all), 0.0, 1.0)) * (1.0 + 1e-6)
