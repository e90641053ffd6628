"""Papernot & Steinke 2022: Renyi bounds on the best of K runs, and on conditioned outputs.

They extend Liu & Talwar 2019, whose bound for a base that fails with a small probability is here,
too.
"""

import math
from collections.abc import Callable

import numpy as np

from audit import checks
from audit.accounting import (
    DeltaUnreachable,
    Mechanism,
    PureDp,
    ZeroConcentratedDp,
    renyi_to_epsilon,
)
from audit.errors import NotApplicable
from audit.numerics import (
    COARSE_ORDERS,
    PROFILE_ACCURACY,
    QUANTILE_ACCURACY,
    FloatArray,
    best_alpha,
)
from audit.protocols import UntilAccepted
from audit.repetitions import Poisson, PowerLaw, Repetitions, parse_repetitions
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import FAILURE_TOO_LIKELY, BoundValue, bound

Curve = Callable[[FloatArray], FloatArray]
_ANY_BASE = ("any base",)
_POINTS = 1 << 14

_LIU_TALWAR = (
    "Liu & Talwar 2019 (geometric: 3 eps); Papernot & Steinke 2022, cor. 3 ((2+eta) eps) "
    "and lemma 20 (delta > 0)"
)


@bound(
    "renyi",
    40,
    "Papernot & Steinke 2022",
    about=_ANY_BASE,
    title=r"$\varepsilon_U$ Renyi (any score)",
)
def renyi(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Renyi bound on the best of K runs, converted to (epsilon, delta)-DP.

    Theorem 2 for truncated negative binomial K, theorem 6 for Poisson K. Both orders are optimised
    over a continuum.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(renyi(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.597
    """
    curve = renyi_curve(base, repetitions)
    theorem = repetitions.renyi_theorem
    return _converted(curve, delta, theorem.source if theorem else None)


@bound("lemma-7", 50, "Papernot & Steinke 2022, lemma 7", about=_ANY_BASE)
def lemma_7(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """The generic Renyi bound for any distribution of K, maximised over the events of the base.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(lemma_7(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.272
    """
    check_finite(base)
    return _converted(lemma_7_curve(base, repetitions), delta)


@bound("lemma-22", 45, "Papernot & Steinke 2022, lemma 22", about=_ANY_BASE, is_special=True)
def lemma_22(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """The generic Renyi bound for a truncated K, from that for K before truncation.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(lemma_22(GaussianMechanism(0.25), "tnb:0,0.1@20", 1e-5).epsilon, 3)
        1.403
    """
    if repetitions.untruncated is repetitions:
        raise NotApplicable("K must be conditioned on K <= most")
    check_finite(base)
    return _converted(lemma_22_curve(base, repetitions), delta)


@bound("corollary-4", 30, "Papernot & Steinke 2022, corollary 4", about=_ANY_BASE)
def corollary_4(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Theorem 2 in closed form for a base that is Gaussian (rho = mu^2/2) or rho-zCDP.

    K must be truncated negative binomial, with log(1/gamma) >= rho.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(corollary_4(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.597
    """
    return _converted(corollary_4_curve(base, repetitions), delta)


def check_finite(base: Mechanism) -> None:
    """Refuses a base without finite Renyi divergences, to which no Renyi bound applies."""
    if not np.isfinite(base.renyi(np.array([1.0 + 1e-6]))).all():
        raise NotApplicable("the base has no finite Renyi divergence")


def _converted(curve: Curve, delta: float, source: str | None = None) -> BoundValue:
    epsilon = renyi_to_epsilon(curve, delta, refined=COARSE_ORDERS)
    if not math.isfinite(epsilon):
        raise NotApplicable("the divergence is too large for a floating-point number")
    return BoundValue(epsilon, source=source)


def renyi_curve(base: Mechanism, repetitions: str | Repetitions) -> Curve:
    """Theorem 2 or 6 as a function of the order: maps orders [n] > 1 to divergences [n].

    Raises:
        NotApplicable: K is neither truncated negative binomial nor Poisson, or all divergences of
            the base are infinite.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = renyi_curve(GaussianMechanism(0.25), "tnb:0,0.1")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.95, 1.096]
    """
    repetitions = parse_repetitions(repetitions)
    theorem = repetitions.renyi_theorem
    if theorem is None:
        raise NotApplicable("K must be truncated negative binomial or Poisson")
    check_finite(base)
    penalty = theorem.penalty(base.renyi, base.delta)
    log_none = _log_none(repetitions)
    log_mean = math.log(repetitions.mean)

    def curve(alpha: FloatArray) -> FloatArray:
        order_less_one = alpha - 1.0
        log_sum = order_less_one * (base.renyi(alpha) + penalty(alpha)) + log_mean
        return np.logaddexp(log_none, log_sum) / order_less_one

    return _monotone(curve)


def _log_none(repetitions: Repetitions) -> float:
    """log P[K = 0], the logarithm of the term that K = 0 adds to a Renyi sum."""
    none = repetitions.probability_of_none
    return math.log(none) if none > 0.0 else -math.inf


def _monotone(curve: Curve) -> Curve:
    """A bound for every order: D_alpha grows with alpha, so its minimum covers smaller orders."""
    flat_until, lowest = best_alpha(curve, refined=COARSE_ORDERS)

    def monotone(alpha: FloatArray) -> FloatArray:
        values = curve(alpha)
        return np.where(alpha <= flat_until, np.minimum(lowest, values), values)

    return monotone


def lemma_7_curve(base: Mechanism, repetitions: str | Repetitions, points: int = _POINTS) -> Curve:
    r"""Lemma 7 as a function of the order.

    .. math:: D_\alpha + \frac{1}{\alpha - 1}
        \log \max_{(q, q')} \varphi'(q)^\alpha\, \varphi'(q')^{1 - \alpha}

    over the events of the base. The maximum is over the hull of the region bound:
    :math:`a^\alpha b^{1 - \alpha}` is convex, grows with a and falls with b, so it is largest at a
    vertex.

    Args:
        base: the base mechanism.
        repetitions: the distribution of K, any.
        points: points on the curve of events; fewer are faster and give a larger bound.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = lemma_7_curve(GaussianMechanism(0.25), "tnb:0,0.1")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.575, 0.765]
    """
    repetitions = parse_repetitions(repetitions)
    logs = []
    for pair in base.pairs:
        a, log_b = region_curve(pair, repetitions, points).vertices
        usable = a > 1e-200 * a[-1]
        log_b = np.maximum(log_b[usable], repetitions.log_phi_prime_at(-np.inf))
        logs.append((np.log(a[usable]), log_b))
    log_none = _log_none(repetitions)

    def curve(alpha: FloatArray) -> FloatArray:
        order_less_one = alpha - 1.0
        gain = np.max([_largest(order_less_one, log_a, log_b) for log_a, log_b in logs], axis=0)
        return (
            np.maximum(np.logaddexp(log_none, order_less_one * base.renyi(alpha) + gain), 0.0)
            / order_less_one
        )

    return _monotone(curve)


def _largest(powers: FloatArray, log_a: FloatArray, log_b: FloatArray) -> FloatArray:
    """Largest a (a/b)^rest [n] over the vertices; infinite if it may be at a dropped vertex."""
    # a / b decreases along the hull, so a larger power selects an earlier vertex.
    log_ratio = log_a - log_b
    low_end, high_end = (
        int(np.argmax(log_a + end * log_ratio)) for end in (powers.max(), powers.min())
    )
    between = slice(min(low_end, high_end), max(low_end, high_end) + 1)
    heights = log_a[between] + np.outer(powers, log_ratio[between])
    best = np.argmax(heights, axis=1)
    cut = (best + between.start == 0) & (len(log_a) > 1) & (log_a[0] < -400.0 + log_a[-1])
    return np.where(cut, np.inf, heights[np.arange(len(powers)), best])


def lemma_22_curve(base: Mechanism, repetitions: str | Repetitions) -> Curve:
    r"""Lemma 7 for K before truncation, plus the largest effect of the truncation.

    The addition is
    :math:`\log(1 / P[K \le m]) / (\alpha - 1) + \log(1 + T / (\mathbb{E}[K] - T))` with
    :math:`T = \mathbb{E}[K; K > m]`.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = lemma_22_curve(GaussianMechanism(0.25), "tnb:0,0.1@20")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.707, 0.896]
    """
    repetitions = parse_repetitions(repetitions)
    untruncated, log_kept = repetitions.untruncated, repetitions.log_kept
    log_share = log_kept + math.log(repetitions.mean / untruncated.mean)  # of E[K], for K <= m
    curve = lemma_7_curve(base, untruncated)
    added = max(-log_share, 0.0) + QUANTILE_ACCURACY
    return lambda alpha: curve(alpha) + added - log_kept / (alpha - 1.0)


def power_law(repetitions: Repetitions) -> PowerLaw:
    """The parameters of a truncated negative binomial distribution; refuses any other."""
    law = repetitions.power_law
    if law is None:
        raise NotApplicable("K must be truncated negative binomial")
    return law


def corollary_4_curve(base: Mechanism, repetitions: str | Repetitions) -> Curve:
    r"""Corollary 4 as a function of the order.

    The curve is flat up to the order :math:`1 + \sqrt{\log \mathbb{E}[K] / \rho}`.

    Raises:
        NotApplicable: the base is not zero-concentrated, K is not truncated negative binomial, or
            rho > log(1/gamma).

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = corollary_4_curve(GaussianMechanism(0.25), "tnb:0,0.1")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.95, 1.096]
    """
    rho = base.rho if isinstance(base, ZeroConcentratedDp) else None
    if base.gaussian_mu is not None:
        rho = base.gaussian_mu**2 / 2.0
    if rho is None:
        raise NotApplicable("the base must be Gaussian or zero-concentrated")
    repetitions = parse_repetitions(repetitions)
    law = power_law(repetitions)
    log_inverse_gamma = -math.log(law.gamma)
    if log_inverse_gamma < rho:
        raise NotApplicable("log(1/gamma) must be at least rho")
    eta, log_mean = law.eta, math.log(repetitions.mean)
    constant = 2.0 * (1.0 + eta) * math.sqrt(rho * log_inverse_gamma) - eta * rho
    best = math.sqrt(log_mean / rho)

    def curve(alpha: FloatArray) -> FloatArray:
        order_less_one = np.maximum(alpha - 1.0, best)
        return rho * order_less_one + log_mean / order_less_one + constant

    return curve


# Shares of delta that are tried for the probability that some run fails.
_SHARES = (0.01, 0.3, 0.7, 0.99)


@bound("approximate", 20, "Papernot & Steinke 2022, lemma 20 (and 7)", about=("any base",))
def approximate(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Lemma 20: lemma 7 for the pure part of the base, and the probability that some run fails.

    Failures spend a share of delta, the Renyi conversion the rest; the best of four shares is used.

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
        except DeltaUnreachable:
            continue
        clean = repetitions.given_no_failure(delta_0)
        delta_left = (1.0 - share) * delta
        best = min(best, renyi_to_epsilon(lemma_7_curve(pure, clean), delta_left))
    if math.isinf(best):
        raise NotApplicable(FAILURE_TOO_LIKELY)
    return BoundValue(best)


_PARTS = 13


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
    growth = math.expm1(checks.interval("epsilon_0", epsilon_0, 0.0))
    delta_0 = checks.interval("delta_0", delta_0, 0.0, 1.0, closed_low=True)
    # As in theorem 6, K = 0 adds a term, which matters if E[K] is small.
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


def conditional_curve(base: Mechanism, acceptance: float) -> Curve:
    r"""Proposition 15: the divergence of the output given that it lies in a set S, by order.

    With u = 1/p, v = 1/q, w = 1/r summing to 1, :math:`\alpha - 1` times the bound is

    .. math:: (\alpha - u - w) D_{(\alpha - u)/w} + (\alpha + v - 2) D'_{\alpha + v - 1}
        + (w + 1) \log(1 / Q(S)),

    minimised over a grid of (u, v, w). Orders alpha+v-1 below 1 give a moment of at most 1, that is
    0.

    Args:
        base: one run.
        acceptance: Q(S), the smaller over both data sets, in (0, 1].

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = conditional_curve(GaussianMechanism(0.25), acceptance=0.1)
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [1.084, 1.245]
    """
    cost = -np.log(checks.interval("acceptance", acceptance, 0.0, 1.0, closed_high=True))
    shares = np.linspace(0.0, 1.0, _PARTS)
    triples = [(u, v, 1.0 - u - v) for u in shares for v in shares if u + v < 1.0 - 1e-9]

    def curve(alpha: FloatArray) -> FloatArray:
        best = np.full(len(alpha), np.inf)
        orders = {v: np.maximum(alpha + v - 1.0, 1.0 + 1e-12) for v in shares}
        second = {
            v: np.maximum(alpha + v - 2.0, 0.0) * base.renyi(order) for v, order in orders.items()
        }
        for u, v, w in triples:
            of_base = (alpha - u - w) * base.renyi((alpha - u) / w)
            best = np.minimum(best, of_base + second[v] + (w + 1.0) * cost)
        return best / (alpha - 1.0)

    return curve


@bound(
    "proposition-15",
    10,
    "Papernot & Steinke 2022, proposition 15",
    about=("any base",),
    protocol=UntilAccepted,
    title=r"$\varepsilon_U$ proposition 15 (any score)",
    deferred=True,  # it takes seconds, and two-events is smaller
)
def proposition_15(base: Mechanism, protocol: UntilAccepted, delta: float) -> BoundValue:
    """Proposition 15 converted to (epsilon, delta)-DP.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = UntilAccepted(0.1)
        >>> round(proposition_15(GaussianMechanism(0.25), protocol, 1e-5).epsilon, 3)
        1.762
    """
    check_finite(base)
    curve = conditional_curve(base, protocol.acceptance)
    return BoundValue(renyi_to_epsilon(curve, delta, 1e-3, 1e7, COARSE_ORDERS))


@bound("liu-talwar", 10, _LIU_TALWAR, about=("any base",))
def liu_talwar(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """(2 + eta) epsilon_0 if K is TNB(eta, gamma); 3 epsilon_0 if K is geometric.

    An (epsilon_0, delta_0)-DP base is epsilon_0-DP except for an event of probability delta_0, and
    some run fails with probability 1 - phi(1 - delta_0). Given that no run fails, K is again
    truncated negative binomial with the same eta. delta_0 solves 1 - phi(1 - delta_0) = delta.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(liu_talwar(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        2.015
    """
    law = power_law(repetitions)
    delta_0 = float(repetitions.inverse_survival(delta)) * (1.0 - QUANTILE_ACCURACY)
    try:
        epsilon = (2.0 + law.eta) * base.epsilon(delta_0)
    except DeltaUnreachable:
        raise NotApplicable(FAILURE_TOO_LIKELY) from None
    return BoundValue(epsilon)
