"""An exact test of whether two samples have the same distribution."""

import math
from collections.abc import Sequence

import numpy as np


def two_sample_p_value(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """An upper bound on the p-value of the test of Kolmogorov and Smirnov for samples of one size.

    With n values in each sample, the largest one-sided distance of the empirical distribution
    functions is at least h/n with probability C(2n, n+h) / C(2n, n) (Gnedenko & Korolyuk 1951, by
    reflection of paths). Twice that bounds the two-sided p-value. Equal values only lower the
    distance, so that the bound also holds for whole numbers.

    Args:
        ours: the first sample.
        theirs: the second sample; of a longer sample, the first values are compared.

    Example:
        >>> two_sample_p_value([1, 2, 3], [4, 5, 6])
        0.1
        >>> two_sample_p_value([1, 2, 3], [1, 2, 3])
        1.0
    """
    n = min(len(ours), len(theirs))
    if n == 0:
        return 1.0
    our_values, their_values = (
        np.sort(np.asarray(values[:n], dtype=float)) for values in (ours, theirs)
    )
    all_values = np.concatenate([our_values, their_values])
    above = np.searchsorted(our_values, all_values, side="right")
    below = np.searchsorted(their_values, all_values, side="right")
    h = int(np.abs(above - below).max())
    return min(1.0, 2 * math.comb(2 * n, n + h) / math.comb(2 * n, n))
