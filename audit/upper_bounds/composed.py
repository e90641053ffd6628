"""The tuning as a mechanism: to be run again, or followed by a final training run."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit import repetitions as laws
from audit.accounting import DominatingPair, Mechanism, PrivacyProfile, reach
from audit.repetitions import Repetitions
from audit.upper_bounds.region import RegionCurve
from audit.upper_bounds.renyi import Curve, lemma_7_curve

Array = NDArray[np.float64]

_GRID = 1025


@dataclass(frozen=True)
class TunedMechanism(Mechanism):
    """The best of K runs of a base, released: by the region bound and by lemma 7.

    Put it in a `Composition` to tune several times, or to tune and then train once more.

    Attributes:
        base: one run.
        repetitions: the law of K, also as text.
    """

    base: Mechanism
    repetitions: Repetitions

    def __post_init__(self) -> None:
        checks.keep(self, repetitions=laws.parse(self.repetitions))

    @cached_property
    def _profile(self) -> PrivacyProfile:
        curves = [RegionCurve(pair, self.repetitions, 1 << 11) for pair in self.base.pairs]

        def delta(epsilon: float) -> float:
            return max(curve.delta(epsilon) for curve in curves)

        epsilons = np.linspace(0.0, reach(delta), _GRID)
        return PrivacyProfile(epsilons, np.array([delta(epsilon) for epsilon in epsilons]))

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return self._profile.pairs

    def renyi(self, alpha: ArrayLike) -> Array:
        orders = np.asarray(alpha, dtype=np.float64)
        return self._lemma_7(orders.ravel()).reshape(orders.shape)

    @cached_property
    def _lemma_7(self) -> Curve:
        return lemma_7_curve(self.base, self.repetitions)

    @property
    def description(self) -> str:
        return f"the best of K ~ {self.repetitions.spec} runs of ({self.base.description})"
