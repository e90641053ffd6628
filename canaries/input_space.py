"""A canary that is a real record."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit import checks


@dataclass(frozen=True, eq=False)
class InputCanary:
    """A record of another data set, or any the adversary makes (Xiang et al. 2024, sec. 4.1).

    Attributes:
        features: one record, e.g. [channels, height, width], without a batch dimension; an array
            of finite real numbers.
        label: its class, >= 0.
        name: what reports call it, e.g. "MNIST[0]".

    Raises:
        ValueError: features that are no array of real numbers, empty or not finite, or a label that
            is no whole number >= 0.

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
            came = self.features.dtype if is_array else type(self.features).__name__
            raise ValueError(
                "canary features must be a numpy array of real numbers, "
                f"got {self.name} with {came}"
            )
        if self.features.size == 0 or not np.all(np.isfinite(self.features)):
            raise ValueError(
                f"canary features must be finite and not empty, got {self.name} with "
                f"shape {self.features.shape}"
            )
        object.__setattr__(self, "label", checks.integer("canary label", self.label, 0))

    def __eq__(self, other: object) -> bool:
        """Whether both are the same record, whatever their names."""
        return (
            isinstance(other, InputCanary)
            and self.label == other.label
            and np.array_equal(self.features, other.features)
        )

    def __hash__(self) -> int:
        return hash((self.label, self.features.shape, float(self.features.sum())))
