"""Limits of a rate from a count."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# The quantiles behind the limits have a relative error of about 1e-14.
_ALLOWANCE = 1e-12


def upper_limit(count: ArrayLike, trials: int, alpha: float) -> Array:
    """Clopper-Pearson upper limit of a rate: exceeds it with probability at least 1 - alpha.

    Args:
        count: events [n] among the trials.
        trials: number of trials; with none, the limit is 1.
        alpha: error of this one-sided limit, in (0, 0.5].

    Source: Clopper & Pearson 1934; statsmodels' `proportion_confint`.
    """
    from statsmodels.stats.proportion import proportion_confint  # slow to import

    count = np.asarray(count, dtype=np.float64)
    if trials == 0:
        return np.ones_like(count)
    limit = np.asarray(proportion_confint(count, trials, alpha=2.0 * alpha, method="beta")[1])
    return np.minimum(limit * (1.0 + _ALLOWANCE), 1.0)
