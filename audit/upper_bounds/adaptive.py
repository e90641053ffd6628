"""Adaptive choice of hyperparameters, as in DP-HyPO (Wang et al. 2023): the simple bound.

The region bound with the curve (C phi'(u(1-s)), c phi'(l(1-s'))), where a set of candidates and
outputs with prior probability x has a probability in [l(x), u(x)] for one run of the search
(proposition 10 of docs/theory.md).
"""

import math
from dataclasses import dataclass

import numpy as np

from audit.accounting import Mechanism, largest_epsilon
from audit.errors import NotApplicable
from audit.numerics import FloatArray, memoize
from audit.protocols import Adaptive
from audit.upper_bounds.region import RegionCurve
from audit.upper_bounds.registry import BoundValue, bound, find


@dataclass(frozen=True)
class AdaptiveCurve(RegionCurve):
    """The adaptive bound as a function of epsilon, for one direction of the base.

    Attributes:
        low: c, the smallest ratio of a density to the prior.
        high: C, the largest ratio.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import parse_repetitions
        >>> (pair,) = GaussianMechanism(0.25).pairs
        >>> curve = AdaptiveCurve(pair, parse_repetitions("tnb:0,0.1"), low=0.75, high=1.33)
        >>> round(curve.delta(2.0), 6)
        0.000137
    """

    low: float = 1.0
    high: float = 1.0

    @property
    def _most(self) -> float:
        return self.high * self.repetitions.mean

    @property
    def _kink(self) -> float:
        # u(x) has two pieces, C x and 1 - c (1-x), and is not convex where they meet.
        if self.low == self.high or self.low == 1.0:
            return 0.0
        return math.log1p(-self.low) - math.log(self.high - self.low)

    def worse(
        self, log_left: FloatArray, log_left_with: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """log u(1-s) and log l(1-s') [n] of events, from log(1-s) and log(1-s')."""
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.minimum(
                math.log(self.high) + log_left, np.log1p(self.low * np.expm1(log_left))
            )
            other_share = np.log1p(np.maximum(self.high * np.expm1(log_left_with), -1.0))
            least = np.maximum(math.log(self.low) + log_left_with, other_share)
        return np.minimum(most, 0.0), np.minimum(least, 0.0)

    def _log_slopes(self, log_left: FloatArray, log_left_with: FloatArray) -> FloatArray:
        slopes = self.repetitions.log_phi_prime_at(np.stack(self.worse(log_left, log_left_with)))
        return np.asarray(slopes) + np.log([[self.high], [self.low]])


_curve = memoize(8)(AdaptiveCurve)  # several bounds use the same curve


def adaptive_curves(base: Mechanism, protocol: Adaptive) -> list[AdaptiveCurve]:
    """One curve for each direction of the base."""
    low, high = protocol.low, protocol.high
    if low == 1.0 or high == 1.0:
        low = high = 1.0  # a density nowhere above the prior, or nowhere below it, is the prior
    return [_curve(pair, protocol.repetitions, low=low, high=high) for pair in base.pairs]


def _preview(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """The adaptive bound, without its error."""
    curves = adaptive_curves(base, protocol)
    return BoundValue(largest_epsilon((curve.delta for curve in curves), delta))


@bound(
    "adaptive",
    100,
    "adaptive bound: the region bound with densities within [c, C] of the prior",
    about=("any base",),
    protocol=Adaptive,
    title=r"$\varepsilon_U$ adaptive (any score)",
    preview=_preview,
)
def adaptive(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """Smallest epsilon that the adaptive bound gives at delta, over both directions."""
    curves = adaptive_curves(base, protocol)
    epsilon = largest_epsilon((curve.delta for curve in curves), delta)
    below = largest_epsilon((curve.lower.delta for curve in curves), delta)
    return BoundValue(epsilon, error=epsilon - min(below, epsilon))


@bound(
    "adaptive-tight",
    110,
    "tight bound: a density that cannot be above the prior, or below it, is the prior",
    about=("any base, C = 1 or c = 1",),
    protocol=Adaptive,
    is_special=True,
    title=r"$\varepsilon_U$ adaptive, tight (any score)",
)
def adaptive_tight(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """The tight bound of random search, for C = 1 or c = 1: the density is then the prior."""
    if protocol.low < 1.0 < protocol.high:
        raise NotApplicable("c or C must be 1, so that the density is the prior")
    return find("tight").body(base, protocol.repetitions, delta)
