"""A tuning as a mechanism, which can be composed with other tunings or with a final run."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting import DominatingPair, Mechanism, PrivacyProfile, parse_mechanism, reach
from audit.numerics import FloatArray
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.papernot_steinke import Curve, lemma_7_curve
from audit.upper_bounds.region import region_curve

_GRID = 1025
# Points on the curve of events; four times as many reduce epsilon by less than a relative 1e-6.
_POINTS = 1 << 12


@dataclass(frozen=True)
class TunedMechanism(Mechanism):
    """The release of the best of K runs of a base.

    Its privacy profile is the region bound, its Renyi divergences are those of lemma 7. Use it in a
    `Composition` of several tunings, or of a tuning and a final run.

    Attributes:
        base: one run.
        repetitions: the distribution of K; text is parsed.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import parse_repetitions
        >>> tuned = TunedMechanism(GaussianMechanism(0.25), parse_repetitions("tnb:0,0.1"))
        >>> round(tuned.epsilon(1e-5), 3)
        1.191
    """

    base: Mechanism
    repetitions: Repetitions

    def __post_init__(self) -> None:
        checks.store_validated(
            self,
            base=parse_mechanism(self.base),
            repetitions=parse_repetitions(self.repetitions),
        )

    @cached_property
    def _profile(self) -> PrivacyProfile:
        curves = [region_curve(pair, self.repetitions, _POINTS) for pair in self.base.pairs]

        def delta(epsilon: float) -> float:
            return max(curve.delta(epsilon) for curve in curves)

        # Between these points the profile of the pair is a chord in e^epsilon, above the convex
        # profile.
        epsilons = np.linspace(0.0, reach(delta) or 1.0, _GRID)
        return PrivacyProfile(epsilons, np.array([delta(epsilon) for epsilon in epsilons]))

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return self._profile.pairs

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        orders = checks.numbers("alpha", alpha, 1.0)
        return self._lemma_7(orders.ravel()).reshape(orders.shape)

    @cached_property
    def _lemma_7(self) -> Curve:
        return lemma_7_curve(self.base, self.repetitions)

    @property
    def description(self) -> str:
        return f"the best of K ~ {self.repetitions.spec} runs of ({self.base.description})"
