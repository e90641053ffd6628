"""Bounds through pure DP: a base that is (epsilon, 0)-DP but for a small chance of failure.

An (epsilon_0, delta_0)-DP pair is, but for an event of probability delta_0, a pair of pure DP. Some
run fails with probability 1 - phi(1 - delta_0), and given that none does K has another law. So a
delta inside the base grows with E[K], whatever bound is used for the rest.
"""

import math

import numpy as np

from audit import checks
from audit.accounting import Mechanism, PureDp, Unreachable, renyi_to_epsilon
from audit.numerics import PROFILE_ACCURACY, QUANTILE_ACCURACY
from audit.repetitions import Poisson, Repetitions, parse_repetitions
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.renyi import lemma_7_curve
from audit.upper_bounds.result import NotApplicable

_SOURCE = (
    "Liu & Talwar 2019 (geometric: 3 eps); Papernot & Steinke 2022, cor. 3 ((2+eta) eps) "
    "and lemma 20 (delta > 0)"
)
_TOO_SMALL = "delta must be above the chance that one of K runs fails, about E[K] delta_base"
_SHARES = (0.01, 0.3, 0.7, 0.99)


@bound("liu-talwar", 10, _SOURCE, about=("any base",))
def liu_talwar(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """(2 + eta) epsilon_0 for TNB(eta, gamma) repetitions; 3 epsilon_0 when they are geometric.

    A base that is (epsilon_0, delta_0)-DP is pure but for an event of probability delta_0, and some
    run fails with probability 1 - phi(1 - delta_0). Given that none does, K is again truncated
    negative binomial with the same eta. So delta_0 is the one with 1 - phi(1 - delta_0) = delta.

    Args:
        base: the base mechanism.
        repetitions: the law of K.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(liu_talwar(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        2.015
    """
    law = repetitions.power_law
    if law is None:
        raise NotApplicable("K must be truncated negative binomial")
    delta_0 = float(repetitions.inverse_survival(delta)) * (1.0 - QUANTILE_ACCURACY)
    try:
        epsilon = (2.0 + law.eta) * base.epsilon(delta_0)
    except Unreachable:
        raise NotApplicable(_TOO_SMALL) from None
    return BoundValue(epsilon)


def without_failures(repetitions: Repetitions | str, delta_0: float) -> Repetitions:
    """The law of K given that no run failed, each with chance delta_0 in [0, 1).

    `Repetitions.given_no_failure` for laws and for texts (Papernot & Steinke 2022, lemma 20).

    Example:
        >>> without_failures("poisson:20", 0.25).spec
        'poisson:15'
    """
    return parse_repetitions(repetitions).given_no_failure(delta_0)


@bound("approximate", 20, "Papernot & Steinke 2022, lemma 20 (and 7)", about=("any base",))
def approximate(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Lemma 20: lemma 7 for the pure part of the base, beside the chance that some run fails.

    delta_0 takes a share of delta, the Renyi conversion the rest; the best of several shares.

    Args:
        base: the base mechanism, through its privacy profile.
        repetitions: the law of K, any.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(approximate(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.81
    """
    best = math.inf
    for share in _SHARES:
        delta_0 = float(repetitions.inverse_survival(share * delta)) * (1.0 - PROFILE_ACCURACY)
        try:
            pure = PureDp(max(base.epsilon(delta_0), 1e-9))
        except Unreachable:
            continue
        law = repetitions.given_no_failure(delta_0)
        rest = (1.0 - share) * delta
        best = min(best, renyi_to_epsilon(lemma_7_curve(pure, law), rest))
    if math.isinf(best):
        raise NotApplicable(_TOO_SMALL)
    return BoundValue(best)


def corollary_21(
    epsilon_0: float, delta_0: float, repetitions: Poisson
) -> tuple[float, float, float]:
    """Papernot & Steinke's corollary 21: Poisson repetitions of an (epsilon_0, delta_0)-DP base.

    Args:
        epsilon_0: > 0.
        delta_0: in [0, 1).
        repetitions: Poisson.

    Returns:
        alpha, epsilon' and delta': the tuned mechanism is delta'-approximately (alpha,
        epsilon')-RDP, at every smaller order too; `approximate_to_delta` converts it.

    Example:
        >>> from audit.repetitions import Poisson
        >>> tuple(round(value, 6) for value in corollary_21(1.0, 1e-6, Poisson(10.0)))
        (1.581977, 4.956493, 1e-05)
    """
    checks.interval("epsilon_0", epsilon_0, 0.0)
    checks.interval("delta_0", delta_0, 0.0, 1.0, closed_low=True)
    growth = math.expm1(epsilon_0)
    # As in theorem 6, having no run at all adds its own term, which matters where E[K] is small.
    mu = repetitions.mu * (1.0 - delta_0)
    log_sum = float(np.logaddexp(-mu, epsilon_0 / growth + math.log(mu)))
    return 1.0 + 1.0 / growth, growth * log_sum, float(repetitions.phi_survival(delta_0))


def approximate_to_delta(alpha: float, divergence: float, failure: float, epsilon: float) -> float:
    """delta at epsilon of a failure-approximately (alpha, divergence)-RDP mechanism.

    failure + e^((alpha-1)(divergence-epsilon)) (Papernot & Steinke 2022, section E).

    Example:
        >>> round(approximate_to_delta(alpha=10.0, divergence=0.3, failure=1e-6, epsilon=2.0), 9)
        1.227e-06
    """
    return min(failure + math.exp(min((alpha - 1.0) * (divergence - epsilon), 0.0)), 1.0)
