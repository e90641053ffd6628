"""The tuning as a mechanism: composed with itself or with a final training run."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting import (
    DominatingPair,
    GaussianMechanism,
    Mechanism,
    PrivacyProfile,
    parse_mechanism,
    reach,
    solve_epsilon,
)
from audit.accounting.composition import compose
from audit.accounting.pairs import gaussian_profile
from audit.arrays import FloatArray
from audit.errors import NotApplicable
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.papernot_steinke import Curve, lemma_7_curve
from audit.upper_bounds.region import region_curve

_GRID = 1025
# Points on the curve of events: with four times as many epsilon falls by less than 1e-6 of itself.
_POINTS = 1 << 12
_MAX_RUNS = 1 << 20
_MAX_MU = 1e3  # of a Gaussian mechanism
_FEW, _MANY = 6, 400
# Cells of the privacy loss of all runs: with four times as many, epsilon falls by a relative 1e-5,
# and by 1e-3 for thousands of runs.
_CELLS = 1 << 15


@dataclass(frozen=True)
class TunedMechanism(Mechanism):
    """The best of K runs of a base, released: by the region bound and by lemma 7.

    Put it in a `Composition` to tune several times, or to tune and then train once more.

    Attributes:
        base: one run.
        repetitions: the distribution of K, also as text.

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

        epsilons = np.linspace(0.0, reach(delta) or 1.0, _GRID)
        return PrivacyProfile(epsilons, np.array([delta(epsilon) for epsilon in epsilons]))

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return self._profile.pairs

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        orders = np.asarray(alpha, dtype=np.float64)
        return self._lemma_7(orders.ravel()).reshape(orders.shape)

    @cached_property
    def _lemma_7(self) -> Curve:
        return lemma_7_curve(self.base, self.repetitions)

    @property
    def description(self) -> str:
        return f"the best of K ~ {self.repetitions.spec} runs of ({self.base.description})"


def composed(base: Mechanism, runs: int) -> Mechanism:
    """A given number of runs, all released.

    Raises:
        NotApplicable: where Gaussian runs together are beyond what the profile resolves.
    """
    mu = base.gaussian_mu
    if mu is not None:
        together = mu * math.sqrt(runs)
        if together > _MAX_MU:
            raise NotApplicable(f"all runs together must have mu <= {_MAX_MU:g}")
        return GaussianMechanism(together)
    return _Together(base, runs) if runs > 1 else base


@dataclass(frozen=True)
class _Together(Mechanism):
    """A given number of runs, from the pair of one run, whose steps are composed only once."""

    base: Mechanism
    runs: int

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        pair = compose([(self.base.pairs[0], self.runs)], _CELLS)
        return (pair,) if self.base.is_symmetric else (pair, pair.mirrored)


@dataclass(frozen=True)
class AllRuns:
    """All K runs released, and K: sum_k P[K = k] delta_k(eps), k runs composed.

    Attributes:
        base: one run.
        repetitions: the distribution of K.
        negligible: probability that K exceeds the largest composition, which counts as a full leak.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import Fixed
        >>> four = AllRuns(GaussianMechanism(0.5), Fixed(4), negligible=1e-12)
        >>> round(four.epsilon(1e-5), 4), round(GaussianMechanism(1.0).epsilon(1e-5), 4)
        (4.3772, 4.3772)
    """

    base: Mechanism
    repetitions: Repetitions
    negligible: float

    @cached_property
    def parts(self) -> list[tuple[float, Mechanism]]:
        """Probabilities and compositions; the largest number of runs represents its range."""
        most, chances = self._chances
        few = self.base.gaussian_mu is None
        runs = np.unique(np.ceil(np.geomspace(1.0, most, _FEW if few else _MANY)).astype(np.int64))
        places = np.searchsorted(runs, np.arange(1, most + 1))
        sums = np.bincount(places, chances[1:], len(runs))
        return [
            (float(chance), composed(self.base, int(k)))
            for k, chance in zip(runs, sums, strict=True)
            if chance > 0.0
        ]

    @cached_property
    def _chances(self) -> tuple[int, FloatArray]:
        """A largest number of runs, and the probabilities [K + 1] up to it."""
        most = 1
        while most <= _MAX_RUNS:
            chances = self.repetitions.pmf(np.arange(most + 1))
            if 1.0 - chances.sum() <= self.negligible:
                return most, chances
            most *= 2
        raise NotApplicable(f"K must be at most {_MAX_RUNS} but for a negligible chance")

    def delta(self, epsilon: float) -> float:
        """The profile at epsilon >= 0, rounded up."""
        _, chances = self._chances
        beyond = max(1.0 - float(chances.sum()), 0.0) + 1e-15
        if self._gaussian is not None:
            weights, mu = self._gaussian
            return beyond + float(weights @ gaussian_profile(epsilon, mu))
        return beyond + sum(c * float(one.delta(epsilon)) for c, one in self.parts)

    @cached_property
    def _gaussian(self) -> tuple[FloatArray, FloatArray] | None:
        """Chances and mu [n] of the compositions of Gaussian runs."""
        if self.base.gaussian_mu is None:
            return None
        weights, mu = zip(*((c, one.gaussian_mu) for c, one in self.parts), strict=True)
        return np.array(weights), np.array(mu)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta, rounded up."""
        return solve_epsilon(self.delta, delta)
