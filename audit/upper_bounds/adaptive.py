r"""Adaptive choice of hyperparameters, as in DP-HyPO (Wang et al. 2023).

After every run the density over the hyperparameters may change, but it stays within [c, C] times
the prior. Theorems 1 and 2 of the paper pay log(C/c) wherever a density ratio enters. The bound
here holds for any distribution of K. Let Q be one run with its candidate drawn from the prior, the
candidate its label. The distribution of a run, given the earlier runs, lies within [c, C] times Q,
so a set of Q-probability x has a probability in [l(x), u(x)],

    u(x) = min(C x, 1 - c (1-x)),   l(x) = max(c x, 1 - C (1-x)).

The best of k runs is y, found in the i-th, with density at most C Q(y) u(1-s)^(k-1), s the
Q-chance of what is preferred to y: integrate the runs out from the last to the first, each has all
before it as its history. With the record it is at least c Q'(y) l(1-s')^(k-1). So

    delta_A(eps) <= int max_{(s, s') in R} [C phi'(u(1-s)) Q - e^eps c phi'(l(1-s')) Q']_+ ,

and the rest is the region bound's: a lower hull, a mixture of shifted profiles. c = C = 1 is it.

*Ties by order of arrival* are covered. Where the earlier of two equal runs wins, the runs before
the i-th must be worse and those after it no better: two events a and b of R, a within b, and the
sum over i of u_b^(i-1) u_a^(k-i), with u_b = u(1-s_b) and so on. This sum is k times the mean over
v in [0, 1] of (u_b + v (u_a - u_b))^(k-1). As u is concave and l convex, u_b + v (u_a - u_b) is at
most u(1-s_v), and l_b + v (l_a - l_b) at least l(1-s_v'), with (s_v, s_v') = (1-v) (s_b, s_b') +
v (s_a, s_a') in R, which is convex. So for each v the integrand is at most the maximum above.

Another bound costs nothing for a base that leaks nothing: with K, all runs and all candidates
released, the candidates are a function of what was released before. That is the composition of K
runs, sum_k P[K=k] delta_k(eps).
"""

import math
from dataclasses import dataclass

import numpy as np

from audit.accounting import Mechanism, Mixture, WorstOf, solve_epsilon
from audit.arrays import FloatArray
from audit.errors import NotApplicable
from audit.numerics import memoize
from audit.protocols import Adaptive
from audit.upper_bounds.composed import AllRuns
from audit.upper_bounds.region import RegionCurve
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.tight import tight


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
        # u(x) has two pieces, C x and 1 - c (1-x), and is no convex function where they meet.
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
            rest = np.log1p(np.maximum(self.high * np.expm1(log_left_with), -1.0))
            least = np.maximum(math.log(self.low) + log_left_with, rest)
        return np.minimum(most, 0.0), np.minimum(least, 0.0)

    def _log_slopes(self, log_left: FloatArray, log_left_with: FloatArray) -> FloatArray:
        slopes = self.repetitions.log_phi_prime_at(np.stack(self.worse(log_left, log_left_with)))
        return np.asarray(slopes) + np.log([[self.high], [self.low]])


_curve = memoize(8)(AdaptiveCurve)  # several bounds use the same curve


def adaptive_curves(base: Mechanism, protocol: Adaptive) -> list[AdaptiveCurve]:
    """One curve for each direction of the base."""
    law, low, high = protocol.repetitions, protocol.low, protocol.high
    if low == 1.0 or high == 1.0:
        low = high = 1.0  # a density nowhere above the prior, or nowhere below it, is the prior
    return [_curve(pair, law, low=low, high=high) for pair in base.pairs]


@bound(
    "adaptive",
    100,
    "adaptive bound: the region bound with densities within [c, C] of the prior",
    about=("any base",),
    protocol=Adaptive,
    title=r"$\varepsilon_U$ adaptive (any score)",
)
def adaptive(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """Smallest epsilon that the adaptive bound gives at delta, over both directions.

    Args:
        base: one run with any fixed hyperparameter, or with one drawn from the prior.
        protocol: the distribution of K, any, and the range of the density relative to the prior.
        delta: in (0, 1).
    """
    curves = adaptive_curves(base, protocol)
    epsilon = max(solve_epsilon(curve.delta, delta) for curve in curves)
    below = max(solve_epsilon(curve.lower.delta, delta) for curve in curves)
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
    """Smallest epsilon where densities cannot move: random search, and its tight bound.

    A density with prior mean 1 that is nowhere above 1, or nowhere below it, is 1 almost
    everywhere.

    Args:
        base: one run with any fixed hyperparameter, or with one drawn from the prior.
        protocol: the distribution of K, any, with c = 1 or C = 1.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = Adaptive("tnb:0,0.01", low=0.5, high=1.0)
        >>> round(adaptive_tight(GaussianMechanism(0.24721), protocol, 1e-5).epsilon, 4)
        1.4488
    """
    if protocol.low < 1.0 < protocol.high:
        raise NotApplicable("c or C must be 1, so that the density is the prior")
    found = tight(base, protocol.repetitions, delta)
    if not found.applies:
        raise NotApplicable(found.reason)
    return BoundValue(found.epsilon, found.error, attains=found.attains)


@bound(
    "composition",
    50,
    "composition of all K runs, each released with its candidate",
    about=("any base",),
    protocol=Adaptive,
    title=r"$\varepsilon_U$ composition (any score)",
)
def adaptive_composition(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """The cost of releasing all runs and K.

    Args:
        base: one run with any fixed hyperparameter, or with one drawn from the prior.
        protocol: the distribution of K, any.
        delta: in (0, 1).
    """
    return BoundValue(AllRuns(any_fixed(base), protocol.repetitions, 1e-3 * delta).epsilon(delta))


def any_fixed(base: Mechanism) -> Mechanism:
    """One run with any fixed hyperparameter, whatever the probabilities of the candidates."""
    return WorstOf(base.candidates) if isinstance(base, Mixture) else base
