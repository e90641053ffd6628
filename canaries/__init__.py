"""Canaries: the record z by which the two neighbouring data sets differ.

A canary is a worst-case gradient, a given record, or one that differs from all records of a data
set.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput

__all__ = ["Canary", "DiracCanary", "InputCanary", "crafted"]

# With more features, a random direction is nearly orthogonal to the records.
_MAX_FEATURES = 1024
# Norm relative to the longest record. A model fits a much longer canary in one step, after which
# its gradient vanishes.
_LENGTH = 2.0


@dataclass(frozen=True)
class DiracCanary:
    """A canary whose gradient is (C, 0, ..., 0) for every model, Z_D in the paper.

    It has no features: engines add the clipping norm C to the first coordinate of the sum of
    gradients. Sources: Nasr et al. 2023; Xiang et al. 2024, sec. 4.1.

    Example:
        >>> DiracCanary().name
        'dirac'
    """

    name: str = "dirac"


@dataclass(frozen=True, eq=False)
class InputCanary:
    """A canary with features, from any data set or crafted (Xiang et al. 2024, section 4.1).

    Attributes:
        features: one record, e.g. [channels, height, width], without a batch dimension; an array
            of finite real numbers.
        label: its class, >= 0.
        name: its name in reports, e.g. "MNIST[0]".

    Raises:
        InvalidInput: the features are not a nonempty array of finite real numbers, or the label is
            not a whole number >= 0.

    Example:
        >>> import numpy as np
        >>> InputCanary(np.zeros((1, 8, 8), np.float32), label=3).name
        'input'
    """

    features: NDArray[np.float32] | NDArray[np.float64]
    label: int
    name: str = "input"

    def __post_init__(self) -> None:
        is_array = isinstance(self.features, np.ndarray)
        if not is_array or self.features.dtype.kind not in "biuf":
            kind = self.features.dtype if is_array else type(self.features).__name__
            raise InvalidInput(
                "canary features must be a numpy array of real numbers, "
                f"got {self.name} with {kind}"
            )
        if self.features.size == 0 or not np.all(np.isfinite(self.features)):
            raise InvalidInput(
                f"canary features must be finite and not empty, got {self.name} with "
                f"shape {self.features.shape}"
            )
        object.__setattr__(self, "label", checks.integer("canary label", self.label, 0))

    def __eq__(self, other: object) -> bool:
        """Whether both have the same features and label; names are ignored."""
        return (
            isinstance(other, InputCanary)
            and self.label == other.label
            and np.array_equal(self.features, other.features)
        )

    def __hash__(self) -> int:
        return hash((self.label, self.features.shape, float(self.features.sum())))


Canary = DiracCanary | InputCanary
"""A canary: a `DiracCanary` or an `InputCanary`."""


def crafted(features: NDArray[np.float64], labels: NDArray[np.int64]) -> InputCanary:
    """A canary of the rarest class in a direction that the records do not use.

    Its gradient is then nearly orthogonal to those of the records, like the Dirac canary's. The
    direction is a feature that is 0 in every record, if one exists, else the direction in which the
    records have the smallest mean square. Whole numbers may be indices of a vocabulary, so that
    every feature of their canary is the value that the records use least, moved into the range of
    the feature.

    Args:
        features: [n, ...] features of the records.
        labels: [n] classes.

    Returns:
        The canary; its norm is twice that of the longest record, unless features are whole numbers.

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
    rarest_label = int(np.argmin(np.bincount(labels)))
    if features.dtype.kind in "biu":
        used, counts = np.unique(features, return_counts=True)
        # Each column of a table may have another vocabulary, so values stay within its range.
        values = np.maximum(used[np.argmin(counts)], features.min(axis=0))
        values = np.minimum(values, features.max(axis=0))
        return InputCanary(values, rarest_label, "crafted")
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
    return InputCanary(values, rarest_label, "crafted")
