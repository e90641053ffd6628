"""The generic bounds by Renyi divergence (Papernot & Steinke 2022)."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from audit.accounting import Mechanism, best_order, renyi_to_epsilon
from audit.repetitions import Poisson, Repetitions, TruncatedNegativeBinomial
from audit.upper_bounds.result import UpperBound, not_applicable

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

_NAME = "renyi"
_ASSUMES = "any score, any base"


def renyi(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """Renyi bound on the best of K runs, converted to (epsilon, delta)-DP.

    Theorem 2 for truncated negative binomial K, theorem 6 for Poisson K. Both orders are optimised
    over a continuum.

    Args:
        base: the base mechanism, through its Renyi divergences (and profile, for theorem 6).
        repetitions: the law of K.
        delta: in (0, 1).
    """
    if isinstance(repetitions, TruncatedNegativeBinomial):
        source = "Papernot & Steinke 2022, theorem 2"
        curve = _truncated_negative_binomial(base, repetitions)
    elif isinstance(repetitions, Poisson):
        source = "Papernot & Steinke 2022, theorem 6"
        curve = _poisson(base, repetitions)
    else:
        return not_applicable(
            _NAME, "K must be truncated negative binomial or Poisson", "Papernot & Steinke 2022"
        )

    # D_alpha grows with alpha, so the bound at its best order serves every smaller order too.
    flat_until, lowest = best_order(curve)

    def monotone(alpha: Array) -> Array:
        return np.where(alpha <= flat_until, np.minimum(lowest, curve(alpha)), curve(alpha))

    return UpperBound(_NAME, renyi_to_epsilon(monotone, delta), _ASSUMES, source)


def _truncated_negative_binomial(base: Mechanism, repetitions: TruncatedNegativeBinomial) -> Curve:
    """e(alpha) + (1+eta) min_b [(1-1/b) e(b) + log(1/gamma)/b] + log E[K]/(alpha-1)."""
    log_inverse_gamma = -math.log(repetitions.gamma)

    def penalty(order: Array) -> Array:
        return base.renyi(order) * (1.0 - 1.0 / order) + log_inverse_gamma / order

    constant = (1.0 + repetitions.eta) * best_order(penalty)[1]
    log_mean = math.log(repetitions.mean)
    return lambda alpha: base.renyi(alpha) + constant + log_mean / (alpha - 1.0)


def _poisson(base: Mechanism, repetitions: Poisson) -> Curve:
    """e(alpha) + mu d + log(mu)/(alpha-1), the base (h, d)-DP at e^h = 1 + 1/(alpha-1).

    The chance e^-mu of no run adds its own term to the Renyi sum; it matters only for small mu.
    """

    def curve(alpha: Array) -> Array:
        h = -np.log1p(-1.0 / alpha)
        exponent = base.renyi(alpha) + repetitions.mu * base.delta(h)
        log_sum = (alpha - 1.0) * exponent + math.log(repetitions.mu)
        return np.logaddexp(-repetitions.mu, log_sum) / (alpha - 1.0)

    return curve
