"""A canary crafted from the records: one that no other record looks like."""

import numpy as np
from numpy.typing import NDArray

from canaries.input_space import InputCanary

# With more features than this, directions are taken at random: they are nearly orthogonal anyway.
_MAX_FEATURES = 1024
# How much longer than the longest record. Far longer, and a model learns it in a step, after which
# its gradient is gone.
_LENGTH = 2.0


def crafted(features: NDArray[np.float64], labels: NDArray[np.int64]) -> InputCanary:
    """A record in a direction that the others leave free, of the rarest class.

    Its gradient then meets those of the others as little as it can, as the Dirac canary's does. The
    direction is a feature that is 0 in every record, if there is one, else the one in which the
    records have the smallest mean square.

    Args:
        features: [n, ...] of the records.
        labels: [n] classes.

    Returns:
        The canary, twice as long as the longest record.

    Raises:
        ValueError: no records, or labels that are no classes.

    Example:
        >>> import numpy as np
        >>> canary = crafted(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([0, 1]))
        >>> canary.features.tolist(), canary.label  # where the others are blank
        ([0.0, 4.0], 0)
    """
    features, labels = np.asarray(features), np.asarray(labels)
    if len(features) == 0 or labels.dtype.kind not in "biu" or labels.min() < 0:
        raise ValueError(
            f"canary must be given for {len(features)} records with labels of type {labels.dtype}"
        )
    flat = features.reshape(len(features), -1).astype(np.float64)
    length = _LENGTH * max(float(np.linalg.norm(flat, axis=1).max()), 1.0)
    direction = np.zeros(flat.shape[1])
    blank = np.flatnonzero(~flat.any(axis=0))
    if len(blank):
        direction[blank[0]] = 1.0
    elif flat.shape[1] <= _MAX_FEATURES:
        direction = np.linalg.eigh(flat.T @ flat)[1][:, 0]
    else:
        direction = np.random.default_rng(0).normal(size=flat.shape[1])
        direction /= np.linalg.norm(direction)
    # No sign of an eigenvector is better than the other; the same one every time.
    direction *= np.sign(direction[np.argmax(np.abs(direction))])
    kind = features.dtype if features.dtype.kind == "f" else np.float64
    values = (length * direction).reshape(features.shape[1:]).astype(kind)
    return InputCanary(values, int(np.argmin(np.bincount(labels))), "crafted")
