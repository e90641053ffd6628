"""The input canary: a record with features and a label."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput


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
