"""The interface of all base mechanisms: the privacy of a single run."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting.conversion import reach, renyi_to_epsilon, solve_epsilon
from audit.accounting.pairs import DominatingPair, PrivacyLoss
from audit.numerics import COARSE_ORDERS, FloatArray

SMALLEST_SPREAD, LARGEST_SPREAD = 1e-12, 1e3
"""Allowed distances of two distributions in standard deviations. Outside, double precision shows no
difference or no overlap."""

GIVEN = "neighbours are those for which its parameters hold"


class Mechanism(ABC):
    """Privacy of one run.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> run: Mechanism = GaussianMechanism(0.5)
        >>> round(run.epsilon(1e-5), 4), round(float(run.delta(1.0)), 5), float(run.renyi(2.0))
        (1.9931, 0.00683, 0.25)
    """

    _words: ClassVar[str] = ""

    @property
    def gaussian_mu(self) -> float | None:
        """The mu of an exactly Gaussian mechanism; None for all others."""
        return None

    @property
    def pure_epsilon(self) -> float:
        """Smallest known epsilon at delta = 0, or infinity."""
        return np.inf

    @property
    @abstractmethod
    def pairs(self) -> tuple[DominatingPair, ...]:
        """Dominating pairs of both directions; one pair if it is its own mirror image."""

    @property
    def loss_terms(self) -> tuple[tuple[PrivacyLoss, int], ...]:
        """Privacy losses, with counts, whose composition is the first pair."""
        return ((self.pairs[0], 1),)

    @property
    def is_symmetric(self) -> bool:
        """Whether the first pair is its own mirror image."""
        return len(self.pairs) == 1

    @property
    def is_directed(self) -> bool:
        """Whether P of the first pair is known to be the data set with the record.

        The cost of combined mechanisms, and of tuning on a subset, depends on which data set has
        the record. If this is not known, the largest cost counts.
        """
        return self.is_symmetric

    @property
    def attained(self) -> bool:
        """Whether some neighbouring data sets attain the first pair, so that attacks can use it."""
        return False

    @property
    def description(self) -> str:
        """The mechanism and its neighbouring relation in words."""
        return self._words.format(**vars(self)) + f"; {GIVEN}"

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        """Renyi divergence of orders [n] > 1, the larger direction."""
        orders = checks.numbers("alpha", alpha, 1.0)
        # Either data set may have the record, so the worse direction counts.
        return np.max([pair.renyi(orders) for pair in self.pairs], axis=0)

    def delta(self, epsilon: ArrayLike) -> FloatArray:
        """Privacy profile delta(epsilon), the larger direction."""
        epsilons = checks.numbers("epsilon", epsilon)
        return np.max([pair.profile(epsilons) for pair in self.pairs], axis=0)

    def profile_grid(self, points: int = 2049) -> FloatArray:
        """Epsilons [n] from 0 to where the profile is negligible or constant, all different."""
        return np.linspace(0.0, reach(lambda epsilon: float(self.delta(epsilon))) or 1.0, points)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta by the exact profile, rounded up; at most `pure_epsilon`."""
        return solve_epsilon(
            lambda epsilon: float(self.delta(epsilon)), delta, enough=self.pure_epsilon
        )

    def renyi_epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta by Renyi divergences, as in the papers."""
        return renyi_to_epsilon(self.renyi, delta, refined=COARSE_ORDERS)
