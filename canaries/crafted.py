"""A canary that is crafted to differ from all records of a data set."""

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from canaries.input_space import InputCanary

# With more features, a random direction is nearly orthogonal to the records.
_MAX_FEATURES = 1024
# Norm relative to the longest record. A model fits a much longer canary in one step, after which
# its gradient vanishes.
_LENGTH = 2.0


def crafted(features: NDArray[np.float64], labels: NDArray[np.int64]) -> InputCanary:
    """A canary of the rarest class in a direction that the records do not use.

    Its gradient is then nearly orthogonal to those of the records, like the Dirac canary's. The
    direction is a feature that is 0 in every record, if one exists, else the direction in which the
    records have the smallest mean square.

    Args:
        features: [n, ...] features of the records.
        labels: [n] classes.

    Returns:
        The canary; its norm is twice that of the longest record.

    Raises:
        InvalidInput: there are no records, or the labels are not classes.

    Example:
        >>> import numpy as np
        >>> canary = crafted(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([0, 1]))
        >>> canary.features.tolist(), canary.label  # the second feature is 0 in every record
        ([0.0, 4.0], 0)
    """
    features, labels = np.asarray(features), np.asarray(labels)
    if len(features) == 0 or labels.dtype.kind not in "biu" or labels.min() < 0:
        raise InvalidInput(
            "canary must be crafted from at least one record with whole-number labels >= 0, got "
            f"{len(features)} records with labels of type {labels.dtype}"
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
    # An eigenvector's sign is arbitrary; this makes it reproducible.
    direction *= np.sign(direction[np.argmax(np.abs(direction))])
    kind = features.dtype if features.dtype.kind == "f" else np.float64
    largest = float(np.finfo(kind).max)
    values = np.clip(length * direction, -largest, largest)
    values = values.reshape(features.shape[1:]).astype(kind)
    return InputCanary(values, int(np.argmin(np.bincount(labels))), "crafted")
