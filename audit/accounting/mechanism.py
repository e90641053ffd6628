"""The interface of base mechanisms, which describe the privacy of one run, and the basic ones.

The basic mechanisms are Gaussian and Laplace noise, mechanisms with finitely many outputs, and
pure and approximate DP.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.accounting.conversion import reach, renyi_to_epsilon, solve_epsilon
from audit.accounting.pairs import (
    DiscretePair,
    DominatingPair,
    GaussianPair,
    LaplacePair,
    LossPair,
    PrivacyLoss,
    PrivacyLossPmf,
)
from audit.numerics import COARSE_ORDERS, FloatArray, memoize

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


_LARGEST_PURE = 1.001e6  # a bound may round a value of 1e6 up


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


@dataclass(frozen=True, eq=False)
class DiscreteMechanism(Mechanism):
    """A mechanism with finitely many outputs, given by its output distributions on two neighbours.

    Unless `directed` is set, either data set may be the one with the record, so every cost stays
    the same when p and q are exchanged.

    Attributes:
        p: probabilities [n] on one data set.
        q: probabilities [n] on its neighbour.
        directed: whether p is known to belong to the data set with the record.

    Example:
        >>> coin = DiscreteMechanism([0.75, 0.25], [0.25, 0.75])
        >>> coin.delta([0.0, 1.0]).round(4).tolist()
        [0.5, 0.0704]
    """

    p: FloatArray
    q: FloatArray
    directed: bool = False

    _words: ClassVar[str] = "finitely many outputs, both distributions given"
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        DiscretePair(self.p, self.q)  # validates the probabilities
        p, q = (np.asarray(values, dtype=np.float64) for values in (self.p, self.q))
        checks.store_validated(self, p=p, q=q)
        checks.validate(self, "directed", checks.flag)

    @property
    def is_directed(self) -> bool:
        return self.directed

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return DiscretePair(self.p, self.q), DiscretePair(self.q, self.p)


@dataclass(frozen=True)
class PureDp(Mechanism):
    """Any (epsilon, 0)-DP mechanism: randomised response dominates it (Kairouz et al. 2015).

    Attributes:
        epsilon_0: the pure privacy parameter, in (0, 1e6].

    Example:
        >>> PureDp(1.0).pure_epsilon
        1.0
    """

    epsilon_0: float

    _words: ClassVar[str] = "epsilon-DP, epsilon = {epsilon_0:.6g}"

    def __post_init__(self) -> None:
        checks.validate(self, "epsilon_0", checks.interval, 0.0, _LARGEST_PURE, closed_high=True)

    @property
    def pure_epsilon(self) -> float:
        return self.epsilon_0

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return ApproximateDp(self.epsilon_0, 0.0).pairs


@dataclass(frozen=True)
class ApproximateDp(Mechanism):
    """Any (epsilon, delta)-DP mechanism, by the pair that dominates it (Kairouz et al. 2015).

    Attributes:
        epsilon_0: in (0, 1e6].
        delta_0: in [0, 1).

    Example:
        >>> one = ApproximateDp(1.0, 1e-6)
        >>> round(one.epsilon(1e-5), 4), round(float(one.delta(2.0)), 9)
        (1.0, 1e-06)
    """

    epsilon_0: float
    delta_0: float

    _words: ClassVar[str] = "(epsilon, delta)-DP, epsilon = {epsilon_0:.6g}, delta = {delta_0:.3g}"

    def __post_init__(self) -> None:
        checks.validate(self, "delta_0", checks.interval, 0.0, 1.0, closed_low=True)
        checks.validate(self, "epsilon_0", checks.interval, 0.0, _LARGEST_PURE, closed_high=True)

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (_pair(self.epsilon_0, self.delta_0),)


@memoize(16)  # bounds remember their curves by the pair
def _pair(epsilon_0: float, delta_0: float) -> LossPair:
    """Randomised response that reveals the data set with probability delta_0."""
    loss = np.array([-epsilon_0, epsilon_0])
    log_mass = special.log_expit(loss) + math.log1p(-delta_0)
    return LossPair(PrivacyLossPmf(loss, log_mass, delta_0, delta_0))


@dataclass(frozen=True)
class RandomisedResponse(Mechanism):
    """Reports the true option with e^epsilon_0 times the probability of each other option.

    Attributes:
        epsilon_0: in (0, 1e6].
        options: number of options, >= 2.
    """

    epsilon_0: float
    options: int = 2

    _words: ClassVar[str] = "randomised response, epsilon = {epsilon_0:.6g}, {options} options"
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.validate(self, "options", checks.integer, 2)
        checks.validate(self, "epsilon_0", checks.interval, 0.0, _LARGEST_PURE, closed_high=True)

    @property
    def pure_epsilon(self) -> float:
        return self.epsilon_0

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        log_lie = -float(np.logaddexp(self.epsilon_0, math.log(self.options - 1.0)))
        loss = [-self.epsilon_0, self.epsilon_0]
        log_mass = [log_lie, log_lie + self.epsilon_0]
        if self.options > 2:
            loss.insert(1, 0.0)
            log_mass.insert(1, log_lie + math.log(self.options - 2.0))
        return (LossPair(PrivacyLossPmf(np.array(loss), np.array(log_mass))),)
