"""Linear statistic of all recorded numbers, learned from some of the trials."""

import numpy as np

from audit.arrays import FloatArray

# Smallest share of the within-class covariance that is replaced by its mean variance times the
# identity. The share is larger with fewer trials per recorded number.
_SMALLEST_SHRINKAGE = 0.02
# Numbers are clipped to this many robust standard deviations before the weights are learned.
_LIMIT = 4.0
_DEVIATION_OF_NORMAL = 1.4826  # standard deviation in units of the median absolute deviation


def discriminant(without: FloatArray, with_record: FloatArray) -> FloatArray | None:
    """Fisher's linear discriminant with a shrunk covariance, of clipped numbers.

    A rare output that reveals the record is far from all others. It would inflate the variance of
    its number, whose weight would then be too small to reveal anything.

    Args:
        without: [n0, f], numbers recorded in trials without the record.
        with_record: [n1, f], numbers recorded in trials with it.

    Returns:
        [f] weights; a high weighted sum indicates the record. None if all trials are equal.
    """
    recorded = _clipped(np.concatenate([without, with_record]))
    without, with_record = recorded[: len(without)], recorded[len(without) :]
    scale = recorded.std(axis=0)
    varies = np.isfinite(scale) & (scale > 1e-12 * np.abs(recorded).max(axis=0))
    if not varies.any():
        return None
    scale = np.where(varies, scale, 1.0)
    weights = np.where(varies, 1.0 / scale, 0.0)
    means = [sample.mean(axis=0) for sample in (without, with_record)]
    within = np.concatenate([without - means[0], with_record - means[1]]) * weights
    trials, numbers = len(recorded), int(varies.sum())
    covariance = within.T @ within / max(trials - 2, 1)
    shrinkage = min(max(numbers / (numbers + trials), _SMALLEST_SHRINKAGE), 1.0)
    mean_variance = max(np.trace(covariance) / numbers, 1e-12)
    shrunk = (1.0 - shrinkage) * covariance + shrinkage * mean_variance * np.eye(len(weights))
    direction: FloatArray = np.linalg.solve(shrunk, (means[1] - means[0]) * weights) * weights
    return direction


def _clipped(numbers: FloatArray) -> FloatArray:
    """[n, f], numbers within a few robust standard deviations of their median.

    A number that is the same in most trials has no such deviation, and stays as it is.
    """
    center = np.median(numbers, axis=0)
    deviation = _DEVIATION_OF_NORMAL * np.median(np.abs(numbers - center), axis=0)
    reach = np.where(deviation > 0, _LIMIT * deviation, np.inf)
    clipped: FloatArray = np.clip(numbers, center - reach, center + reach)
    return clipped
