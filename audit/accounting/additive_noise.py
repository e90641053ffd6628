"""The Gaussian and the Laplace mechanism."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.accounting.mechanism import LARGEST_SPREAD, SMALLEST_SPREAD, Mechanism
from audit.accounting.pairs import DominatingPair, GaussianPair, LaplacePair


@dataclass(frozen=True)
class GaussianMechanism(Mechanism):
    r"""Mu-Gaussian DP: as hard to attack as N(0, 1) against N(mu, 1).

    Full-batch DP-SGD has :math:`\mu = \sqrt{T} / \sigma` for :math:`T` steps with noise multiplier
    :math:`\sigma`.

    Attributes:
        mu: distance of the two means in standard deviations, in [1e-12, 1000].

    Example:
        >>> round(GaussianMechanism(1.0).epsilon(1e-5), 4)
        4.3772
        >>> GaussianMechanism(1.0).delta([0.0, 1.0, 2.0]).round(4).tolist()
        [0.3829, 0.1269, 0.0209]
    """

    mu: float

    _words: ClassVar[str] = "Gaussian, mu = {mu:.6g}"
    attained: ClassVar[bool] = True
    is_symmetric: ClassVar[bool] = True  # faster than its pairs, for a million trials

    def __post_init__(self) -> None:
        limits = checks.interval, SMALLEST_SPREAD, LARGEST_SPREAD
        checks.validate(self, "mu", *limits, closed_low=True, closed_high=True)

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (GaussianPair(self.mu),)


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
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.validate(self, "scale", checks.interval, 0.002, closed_low=True)

    @property
    def pure_epsilon(self) -> float:
        return 1.0 / self.scale

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (LaplacePair(self.scale),)
