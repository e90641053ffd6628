"""The Laplace mechanism."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.accounting.mechanism import Mechanism
from audit.accounting.pairs import DominatingPair, LaplacePair


@dataclass(frozen=True)
class LaplaceMechanism(Mechanism):
    """Laplace noise.

    Attributes:
        scale: scale of the noise in units of the sensitivity, >= 0.002.

    Example:
        >>> round(LaplaceMechanism(2.0).epsilon(1e-5), 4), LaplaceMechanism(2.0).pure_epsilon
        (0.5, 0.5)
    """

    scale: float

    _words: ClassVar[str] = "Laplace noise of scale {scale:.6g} sensitivities"

    def __post_init__(self) -> None:
        checks.store_validated(
            self, scale=checks.interval("scale", self.scale, 0.002, closed_low=True)
        )

    @property
    def attained(self) -> bool:
        return True

    @property
    def pure_epsilon(self) -> float:
        return 1.0 / self.scale

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (LaplacePair(self.scale),)
