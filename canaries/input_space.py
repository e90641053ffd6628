"""A canary that is a real record."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class InputCanary:
    """A record of another data set, or any the adversary makes (Xiang et al. 2024, sec. 4.1).

    Attributes:
        features: one record, e.g. [channels, height, width], without a batch dimension; finite.
        label: its class, >= 0.
        name: what reports call it, e.g. "MNIST[0]".

    Raises:
        ValueError: features that are empty or not finite, or a negative label.
    """

    features: NDArray[np.float32] | NDArray[np.float64]
    label: int
    name: str = "input"

    def __post_init__(self) -> None:
        if self.features.size == 0 or not np.all(np.isfinite(self.features)):
            raise ValueError(
                f"canary features must be finite and not empty, got {self.name} with "
                f"shape {self.features.shape}"
            )
        if self.label < 0:
            raise ValueError(f"canary label must be >= 0, got {self.label}")

    def __eq__(self, other: object) -> bool:
        """Whether both are the same record, whatever their names."""
        return (
            isinstance(other, InputCanary)
            and self.label == other.label
            and np.array_equal(self.features, other.features)
        )

    def __hash__(self) -> int:
        return hash((self.label, self.features.shape, float(self.features.sum())))
