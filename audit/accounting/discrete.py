"""Mechanisms with finitely many outputs, or that are dominated by such a mechanism."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy import special

from audit import checks
from audit.accounting.mechanism import Mechanism
from audit.accounting.pairs import DiscretePair, DominatingPair, LossPair, PrivacyLossPmf
from audit.numerics import FloatArray, memoize

_LARGEST_PURE = 1.001e6  # a bound may round a value of 1e6 up


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
