"""A tuning as a mechanism that can be composed, and tuning on a random subset, then a final run.

Tuning on a subset is that of Koskela & Kulkarni 2023. Its cost is a mean, over the losses of the
tuning, of the exact profile of the final run at another epsilon (proposition 12 of docs/theory.md).
The pair of the tuning follows from its region bound.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting import (
    DominatingPair,
    LossPair,
    Mechanism,
    PrivacyProfile,
    largest_epsilon,
    parse_mechanism,
    reach,
)
from audit.numerics import PROFILE_ACCURACY, FloatArray, dot, memoize, safe_log
from audit.protocols import Subset
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.extensions import check_add_remove
from audit.upper_bounds.published.papernot_steinke import Curve, lemma_7_curve
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import BoundValue, bound, find
from audit.upper_bounds.tight import tight_at_other_delta

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


@dataclass(frozen=True)
class SubsetCurve:
    """The cost of tuning on a subset and a final run, as a function of epsilon.

    Attributes:
        tuning: a pair that dominates the tuning; P has the record, P' does not.
        final: the same for the final run.
        final_mirrored: the same for the final run, with P and P' exchanged.
        sampling_rate: q in [0, 1], the probability that a record is used for tuning.
        on_all: whether the final run uses all records, instead of the rest.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import tuning_cost
        >>> round(tuning_cost(GaussianMechanism(0.25), "subset:0.1/tnb:0,0.1", 1e-5).epsilon, 3)
        0.863
    """

    tuning: LossPair
    final: DominatingPair
    final_mirrored: DominatingPair
    sampling_rate: float
    on_all: bool = False

    def __post_init__(self) -> None:
        checks.validate(self, "on_all", checks.flag)

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' profiles at epsilon >= 0."""
        of_directions = self._all(epsilon) if self.on_all else self._rest(epsilon)
        return min(max(of_directions) * (1.0 + PROFILE_ACCURACY), 1.0)

    def _rest(self, epsilon: float) -> tuple[float, float]:
        q, (loss, log_mass, only) = self.sampling_rate, self._outputs
        if q == 1.0:
            return float(self.tuning.profile(epsilon)), float(self.tuning.mirrored.profile(epsilon))
        log_other = math.log1p(-q)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_q = np.log(q)
            # t / e^eps and, where t <= 0, the gain q r1 - e^eps + 1 - q in units of r1.
            share = 1.0 - np.exp(np.minimum(log_q + loss - epsilon, 1.0))
            gains = np.exp(log_mass + log_other) * self.final.profile(
                epsilon + np.log(np.maximum(share, 1e-300)) - log_other
            )
            sure = q - np.exp(np.minimum(epsilon - loss, 0.0)) + np.exp(log_other - loss)
            gains = np.where(share > 0.0, gains, np.exp(log_mass + loss) * np.maximum(sure, 0.0))
            # e^eps (1-q) t.
            scaled_t = np.maximum(1.0 - np.exp(np.minimum(epsilon + log_q + loss, 1.0)), 0.0)
            losses = scaled_t * self.final_mirrored.profile(
                epsilon + log_other - np.log(np.maximum(scaled_t, 1e-300))
            )
        return q * only + float(gains.sum()), float(dot(np.exp(log_mass), losses))

    def _all(self, epsilon: float) -> tuple[float, float]:
        q, (loss, log_mass, only) = self.sampling_rate, self._outputs
        with np.errstate(divide="ignore"):
            log_w = np.maximum(np.logaddexp(np.log1p(-q), np.log(q) + loss), -1e6)
        with_record = np.exp(log_mass + log_w) * self.final.profile(epsilon - log_w)
        without = dot(np.exp(log_mass), self.final_mirrored.profile(epsilon + log_w))
        return q * only + float(with_record.sum()), float(without)

    @property
    def _outputs(self) -> tuple[FloatArray, FloatArray, float]:
        """Losses log r1 [n] of the tuning, log P1_0-masses, and the P1-mass of infinite losses."""
        pmf = self.tuning.pmf
        log_mass = np.append(safe_log(pmf.q_only), pmf.log_mass - pmf.loss)
        return np.append(-1e6, pmf.loss), log_mass, pmf.p_only


def _at_other_delta(
    base: Mechanism, protocol: Subset, delta: float, certified: float
) -> BoundValue:
    """The bound by curves that all deltas share."""
    check_add_remove(base)
    if protocol.sampling_rate == 1.0 and protocol.final != "all":
        return tight_at_other_delta(base, protocol.repetitions, delta, certified)
    curves = _same_base(base, protocol)
    return BoundValue(largest_epsilon((curve.delta for curve in curves), delta))


@bound(
    "subset",
    100,
    "both directions' hockey sticks of the mixture of two pairs, from the region bound's profile",
    about=("any base, add-remove or zero-out neighbours",),
    protocol=Subset,
    title=r"$\varepsilon_U$ subset (any score)",
    at_other_delta=_at_other_delta,
)
def subset(base: Mechanism, protocol: Subset, delta: float) -> BoundValue:
    """Smallest epsilon of tuning on a subset and a final run, over both directions."""
    check_add_remove(base)
    if protocol.sampling_rate == 1.0 and protocol.final != "all":
        # The final run reads no record, so the tuning is a random search on all records.
        return find("tight").body(base, protocol.repetitions, delta)
    curves = _same_base(base, protocol)
    return BoundValue(largest_epsilon((curve.delta for curve in curves), delta))


@memoize(4)
def _same_base(base: Mechanism, protocol: Subset) -> "list[SubsetCurve]":
    return subset_curves(base, base, protocol)


def subset_curves(tuning: Mechanism, final: Mechanism, protocol: Subset) -> list[SubsetCurve]:
    """The curve of each possible direction, with different mechanisms for tuning and final run."""
    pair = TunedMechanism(tuning, protocol.repetitions).pairs[0]
    assert isinstance(pair, LossPair)
    ends = final.pairs[0], final.pairs[-1]
    # The pair of the tuning has the larger profile of both directions, so only the final run's
    # direction may be unknown.
    return [
        SubsetCurve(pair, *sides, protocol.sampling_rate, protocol.final == "all")
        for sides in ([ends] if final.is_directed else [ends, ends[::-1]])
    ]
