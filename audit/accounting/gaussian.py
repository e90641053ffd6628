"""The Gaussian mechanism."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.accounting.mechanism import Mechanism
from audit.accounting.pairs import DominatingPair, GaussianPair


@dataclass(frozen=True)
class GaussianMechanism(Mechanism):
    """Mu-Gaussian DP: full-batch DP-SGD has mu = sqrt(steps) / noise_multiplier.

    Attributes:
        mu: distance of the two means in standard deviations, in (0, 1000].
    """

    mu: float

    _words: ClassVar[str] = "Gaussian, mu = {mu:.6g}"

    def __post_init__(self) -> None:
        checks.keep(self, mu=checks.interval("mu", self.mu, 0.0, 1e3, closed_high=True))

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def attained(self) -> bool:
        return True

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (GaussianPair(self.mu),)
