"""Upper limits of an error rate from a count."""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.arrays import FloatArray
from audit.numerics import QUANTILE_ACCURACY

# Limits of all counts are tabulated up to this number of trials.
_MAX_TABLE_TRIALS = 4096
# Expected counts below this overflow the beta quantile. Raising them only raises the limit.
_MIN_POSITIVE_COUNT = 1e-9


def upper_limit(count: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper-Pearson upper limit of a rate, exact for one threshold, rounded up.

    Expected counts [n] may be fractions, and alpha is at most 0.5. Without trials the limit is 1.
    Source: Clopper & Pearson 1934; statsmodels' `proportion_confint` computes the same quantile.
    """
    count = np.asarray(count)
    if count.dtype.kind == "i" and 0 < trials <= _MAX_TABLE_TRIALS:
        return _table(trials, alpha)[count]
    return _clopper_pearson(count, trials, alpha)


@lru_cache(maxsize=256)
def _table(trials: int, alpha: float) -> FloatArray:
    return _clopper_pearson(np.arange(trials + 1), trials, alpha)


def _clopper_pearson(count: ArrayLike, trials: int, alpha: float) -> FloatArray:
    count = np.asarray(count, dtype=np.float64)
    if trials == 0:
        return np.ones_like(count)
    tiny = (count > 0) & (count < _MIN_POSITIVE_COUNT)
    count = np.where(tiny, _MIN_POSITIVE_COUNT, count)
    below = count < trials
    shape, other_shape = count[below] + 1.0, trials - count[below]
    quantile = special.betainccinv(shape, other_shape, alpha) * (1.0 + QUANTILE_ACCURACY)
    # For more than 1e5 trials, the relative error of the quantile reaches 1e-10. Its tail is
    # accurate, and -log(tail) is a convex function of the limit that starts at 0.
    tail = special.betaincc(shape, other_shape, np.minimum(quantile, 1.0))
    short = tail > alpha
    quantile[short] *= np.log(alpha) / np.log(tail[short]) * (1.0 + QUANTILE_ACCURACY)
    limit = np.ones_like(count)
    limit[below] = np.minimum(quantile, 1.0)
    return limit
