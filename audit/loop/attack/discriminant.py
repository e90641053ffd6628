"""Linear statistic of all recorded numbers, learned from some of the trials."""

import numpy as np

from audit.arrays import FloatArray

# Smallest share of the within-class covariance that is replaced by its mean variance times the
# identity. The share is larger with fewer trials per recorded number.
_SMALLEST_SHRINKAGE = 0.02


def discriminant(without: FloatArray, with_record: FloatArray) -> FloatArray | None:
    """Fisher's linear discriminant with a shrunk covariance.

    Args:
        without: [n0, f], numbers recorded in trials without the record.
        with_record: [n1, f], numbers recorded in trials with it.

    Returns:
        [f] weights; a high weighted sum indicates the record. None if all trials are equal.
    """
    both = np.concatenate([without, with_record])
    scale = both.std(axis=0)
    varies = np.isfinite(scale) & (scale > 1e-12 * np.abs(both).max(axis=0))
    if not varies.any():
        return None
    scale = np.where(varies, scale, 1.0)
    weights = np.where(varies, 1.0 / scale, 0.0)
    means = [part.mean(axis=0) for part in (without, with_record)]
    within = np.concatenate([without - means[0], with_record - means[1]]) * weights
    trials, numbers = len(both), int(varies.sum())
    covariance = within.T @ within / max(trials - 2, 1)
    shrinkage = min(max(numbers / (numbers + trials), _SMALLEST_SHRINKAGE), 1.0)
    mean_variance = max(np.trace(covariance) / numbers, 1e-12)
    shrunk = (1.0 - shrinkage) * covariance + shrinkage * mean_variance * np.eye(len(weights))
    found: FloatArray = np.linalg.solve(shrunk, (means[1] - means[0]) * weights) * weights
    return found
