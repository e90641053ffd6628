"""The class `Records`: labelled records."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from canaries import InputCanary


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records.

    Attributes:
        features: [n, channels, height, width] or [n, ...], finite.
        labels: [n] classes in [0, classes).
        classes: number of classes.
        name: the name in reports.

    Raises:
        InvalidInput: there are no records, features are not finite, labels are not classes, or the
            numbers of features and labels differ.

    Example:
        >>> import numpy as np
        >>> Records(np.zeros((3, 1, 8, 8), np.float32), np.array([0, 1, 9]), 10, "mine").name
        'mine'
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int
    name: str

    def __post_init__(self) -> None:
        if len(self.features) == 0:
            raise InvalidInput(f"data set {self.name} must have at least one record, got none")
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "iu":
            raise InvalidInput(
                f"labels of {self.name} must be whole numbers, one per record, got shape "
                f"{self.labels.shape} of {self.labels.dtype}"
            )
        if len(self.features) != len(self.labels):
            raise InvalidInput(
                f"data set {self.name} must have one label per record, got "
                f"{len(self.labels)} labels for {len(self.features)} records"
            )
        if np.iscomplexobj(self.features):
            raise InvalidInput(
                f"features of {self.name} must be real numbers, got {self.features.dtype}"
            )
        if not np.all(np.isfinite(self.features)):
            raise InvalidInput(f"features of {self.name} must be finite, got NaN or infinity")
        if self.labels.min() < 0 or self.labels.max() >= self.classes:
            raise InvalidInput(
                f"labels of {self.name} must be in [0, {self.classes - 1}], got "
                f"{self.labels.min()} to {self.labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def canary(self, index: int) -> InputCanary:
        """Record `index` as a canary, written M[I] in the paper.

        Raises:
            InvalidInput: the index is out of range.
        """
        if not 0 <= index < len(self):
            raise InvalidInput(
                f"canary_index must be in [0, {len(self) - 1}] for {self.name}, got {index}"
            )
        return InputCanary(self.features[index], int(self.labels[index]), f"{self.name}[{index}]")
