"""Rerunning until the output is acceptable, and why a fixed number of runs is a bad idea."""

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.accounting import DiscreteMechanism, Mechanism, renyi_to_epsilon
from audit.protocols import UntilAccepted
from audit.upper_bounds.registry import Value, bound
from audit.upper_bounds.renyi import Curve
from audit.upper_bounds.result import NotApplicable, UpperBound

Array = NDArray[np.float64]

_PARTS = 13


def conditional_curve(base: Mechanism, acceptance: float) -> Curve:
    """Proposition 15: the divergence of the output given that it lies in a set S, by order.

    With u = 1/p, v = 1/q, w = 1/r summing to 1, (alpha-1) times the bound is
    (alpha-u-w) D_{(alpha-u)/w} + (alpha+v-2) D'_{alpha+v-1} + (w+1) log(1/Q(S)), minimised over a
    grid of (u, v, w). Orders alpha+v-1 below 1 give a moment of at most 1, that is 0.

    Args:
        base: one run.
        acceptance: Q(S), the smaller over both data sets, in (0, 1].
    """
    cost = -np.log(checks.interval("acceptance", acceptance, 0.0, 1.0, closed_high=True))
    shares = np.linspace(0.0, 1.0, _PARTS)
    triples = [(u, v, 1.0 - u - v) for u in shares for v in shares if u + v < 1.0 - 1e-9]

    def curve(alpha: Array) -> Array:
        best = np.full(len(alpha), np.inf)
        for u, v, w in triples:
            first = (alpha - u - w) * base.renyi((alpha - u) / w)
            order = np.maximum(alpha + v - 1.0, 1.0 + 1e-12)
            second = np.maximum(alpha + v - 2.0, 0.0) * base.renyi(order)
            best = np.minimum(best, first + second + (w + 1.0) * cost)
        return best / (alpha - 1.0)

    return curve


def conditional_sampling(base: Mechanism, acceptance: float, delta: float) -> UpperBound:
    """Epsilon of rerunning until the output lies in S, by proposition 15.

    Args:
        base: one run.
        acceptance: the smallest chance, over both data sets, that a run is accepted.
        delta: in (0, 1).
    """
    return proposition_15(base, UntilAccepted(acceptance), delta)


@bound(
    "proposition-15",
    10,
    "Papernot & Steinke 2022, proposition 15",
    about=("any base",),
    protocol=UntilAccepted,
)
def proposition_15(base: Mechanism, protocol: UntilAccepted, delta: float) -> Value:
    """Proposition 15 converted to (epsilon, delta)-DP.

    Args:
        base: one run.
        protocol: rerunning until a run is accepted.
        delta: in (0, 1).
    """
    if not np.isfinite(base.renyi(np.array([1.0 + 1e-6]))).all():
        raise NotApplicable("the base has no finite Renyi divergence")
    return Value(renyi_to_epsilon(conditional_curve(base, protocol.acceptance), delta, 1e-3, 1e7))


def corollary_16(base: Mechanism, acceptance: float) -> Curve:
    """p = q = infinity: D_alpha + (alpha-2)/(alpha-1) D'_{alpha-1} + 2 log(1/Q(S))/(alpha-1)."""
    cost = -np.log(checks.interval("acceptance", acceptance, 0.0, 1.0, closed_high=True))

    def curve(alpha: Array) -> Array:
        rest = alpha - 1.0
        second = np.maximum(alpha - 2.0, 0.0) * base.renyi(np.maximum(rest, 1.0 + 1e-12))
        return base.renyi(alpha) + (second + 2.0 * cost) / rest

    return curve


def repeated_response(epsilon_0: float, k: int) -> DiscreteMechanism:
    """Randomised response run k times, "yes" preferred: what a fixed K really costs.

    The best is "no" only if all k are. It is no better than k epsilon_0 (Papernot & Steinke 2022,
    proposition 17).
    """
    checks.interval("epsilon_0", epsilon_0, 0.0, 500.0)
    checks.whole("k", k, 1)
    # "no" has the chance e^epsilon_0 / (1 + e^epsilon_0) on one data set, the rest on the other.
    logs = -np.logaddexp(0.0, np.array([-epsilon_0, epsilon_0]))
    p, q = (np.array([np.exp(k * log), -np.expm1(k * log)]) for log in logs)
    return DiscreteMechanism(p, q)


def repeated_response_divergence(epsilon_0: float, k: int, alpha: Array) -> Array:
    """A lower bound on its Renyi divergence: k eps - k log(1 + e^-eps) / (alpha-1)."""
    return k * epsilon_0 - k * np.log1p(np.exp(-epsilon_0)) / (np.asarray(alpha) - 1.0)
