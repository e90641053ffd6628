"""The generic bounds by Renyi divergence (Papernot & Steinke 2022)."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from audit import repetitions as laws
from audit.accounting import Mechanism, ZeroConcentratedDp, renyi_to_epsilon
from audit.numerics import COARSE_ORDERS, QUANTILE_ACCURACY, minimize_over_alpha
from audit.repetitions import PowerLaw, Repetitions
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.result import NotApplicable

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

_ANY_BASE = ("any base",)
_POINTS = 1 << 14


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

    Args:
        base: the base mechanism, through its Renyi divergences (and profile, for theorem 6).
        repetitions: the law of K.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(renyi(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.597
    """
    theorem = repetitions.renyi_theorem
    if theorem is None:
        raise NotApplicable("K must be truncated negative binomial or Poisson")
    return _converted(base, renyi_curve, repetitions, delta, theorem.source)


@bound("lemma-7", 50, "Papernot & Steinke 2022, lemma 7", about=_ANY_BASE)
def lemma_7(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """The generic Renyi bound for any law of K, maximised over the events of the base.

    Args:
        base: the base mechanism, through its Renyi divergences and its pairs.
        repetitions: the law of K, any.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(lemma_7(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.272
    """
    return _converted(base, lemma_7_curve, repetitions, delta)


@bound("lemma-22", 45, "Papernot & Steinke 2022, lemma 22", about=_ANY_BASE, is_special=True)
def lemma_22(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """The generic Renyi bound for a truncated law, through the law before truncation.

    Args:
        base: the base mechanism.
        repetitions: a law conditioned on K <= most.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(lemma_22(GaussianMechanism(0.25), "tnb:0,0.1@20", 1e-5).epsilon, 3)
        1.403
    """
    if repetitions.untruncated is repetitions:
        raise NotApplicable("K must be conditioned on K <= most")
    return _converted(base, lemma_22_curve, repetitions, delta)


@bound("corollary-4", 30, "Papernot & Steinke 2022, corollary 4", about=_ANY_BASE)
def corollary_4(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Theorem 2 in closed form for a rho-zCDP base.

    Args:
        base: Gaussian (rho = mu^2/2) or rho-zCDP.
        repetitions: truncated negative binomial, with log(1/gamma) >= rho.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(corollary_4(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.597
    """
    rho = zero_concentrated(base)
    if rho is None:
        raise NotApplicable("the base must be Gaussian or zero-concentrated")
    law = repetitions.power_law
    if law is None:
        raise NotApplicable("K must be truncated negative binomial")
    if -math.log(law.gamma) < rho:
        raise NotApplicable("log(1/gamma) must be at least rho")
    return _converted(base, corollary_4_curve, repetitions, delta)


def _converted(
    base: Mechanism,
    curve_of: Callable[[Mechanism, Repetitions], Curve],
    repetitions: Repetitions,
    delta: float,
    source: str | None = None,
) -> BoundValue:
    if not np.isfinite(base.renyi(np.array([1.0 + 1e-6]))).all():
        raise NotApplicable("the base has no finite Renyi divergence")
    epsilon = renyi_to_epsilon(curve_of(base, repetitions), delta, refined=COARSE_ORDERS)
    if not math.isfinite(epsilon):
        raise NotApplicable("the divergence is too large for a number")
    return BoundValue(epsilon, source=source)


def renyi_curve(base: Mechanism, repetitions: str | Repetitions) -> Curve:
    """Theorem 2 or 6 as a function of the order: maps orders [n] > 1 to divergences [n].

    Raises:
        ValueError: K is neither truncated negative binomial nor Poisson.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = renyi_curve(GaussianMechanism(0.25), "tnb:0,0.1")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.95, 1.096]
    """
    repetitions = laws.parse_repetitions(repetitions)
    theorem = repetitions.renyi_theorem
    if theorem is None:
        raise ValueError(
            f"repetitions must be truncated negative binomial or Poisson, got {repetitions.spec}"
        )
    penalty = theorem.penalty(base.renyi, base.delta)
    log_none = _log_none(repetitions)
    log_mean = math.log(repetitions.mean)

    def curve(alpha: Array) -> Array:
        rest = alpha - 1.0
        log_sum = rest * (base.renyi(alpha) + penalty(alpha)) + log_mean
        return np.logaddexp(log_none, log_sum) / rest

    return _monotone(curve)


def _log_none(repetitions: Repetitions) -> float:
    """log P[K = 0]: having no run at all adds its own term to a Renyi sum."""
    none = repetitions.probability_of_none
    return math.log(none) if none > 0.0 else -math.inf


def _monotone(curve: Curve) -> Curve:
    """D_alpha grows with alpha, so a bound at its best order serves every smaller order too."""
    flat_until, lowest = minimize_over_alpha(curve, refined=COARSE_ORDERS)

    def monotone(alpha: Array) -> Array:
        values = curve(alpha)
        return np.where(alpha <= flat_until, np.minimum(lowest, values), values)

    return monotone


def lemma_7_curve(base: Mechanism, repetitions: str | Repetitions, points: int = _POINTS) -> Curve:
    """D_alpha + log max phi'(q)^alpha phi'(q')^(1-alpha) / (alpha-1) over the events of the base.

    The maximum is over the hull of the region bound: a^alpha b^(1-alpha) is convex, grows with a
    and falls with b, so it is largest at a vertex.

    Args:
        base: the base mechanism.
        repetitions: the law of K, any.
        points: points on the curve of events; fewer are faster and no less safe.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = lemma_7_curve(GaussianMechanism(0.25), "tnb:0,0.1")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.575, 0.765]
    """
    repetitions = laws.parse_repetitions(repetitions)
    logs = []
    for pair in base.pairs:
        a, b = region_curve(pair, repetitions, points).vertices
        kept = a > 1e-200 * a[-1]  # below, b underflows
        with np.errstate(divide="ignore"):
            log_b = np.maximum(np.log(b[kept]), repetitions.log_phi_prime_at(-np.inf))
        logs.append((np.log(a[kept]), log_b))
    log_none = _log_none(repetitions)

    def curve(alpha: Array) -> Array:
        rest = alpha - 1.0
        gain = np.max([_largest(rest, log_a, log_b) for log_a, log_b in logs], axis=0)
        return np.maximum(np.logaddexp(log_none, rest * base.renyi(alpha) + gain), 0.0) / rest

    return _monotone(curve)


def _largest(rest: Array, log_a: Array, log_b: Array) -> Array:
    """Largest a (a/b)^rest [n] over the vertices; infinite if it may lie below those kept."""
    # a / b falls along the hull: the larger the power, the earlier the vertex.
    log_ratio = log_a - log_b
    first, last = (int(np.argmax(log_a + end * log_ratio)) for end in (rest.max(), rest.min()))
    some = slice(min(first, last), max(first, last) + 1)
    heights = log_a[some] + np.outer(rest, log_ratio[some])
    best = np.argmax(heights, axis=1)
    cut = (best + some.start == 0) & (len(log_a) > 1) & (log_a[0] < -400.0 + log_a[-1])
    return np.where(cut, np.inf, heights[np.arange(len(rest)), best])


def lemma_22_curve(base: Mechanism, repetitions: str | Repetitions) -> Curve:
    """Lemma 7 of the law before truncation, and what truncation adds at most.

    log(1/P[K<=m]) / (alpha-1) + log(1 + T/(E[K]-T)), T = E[K; K > m].

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = lemma_22_curve(GaussianMechanism(0.25), "tnb:0,0.1@20")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.707, 0.896]
    """
    repetitions = laws.parse_repetitions(repetitions)
    untruncated, log_kept = repetitions.untruncated, repetitions.log_kept
    log_share = log_kept + math.log(repetitions.mean / untruncated.mean)  # of E[K], for K <= m
    curve = lemma_7_curve(base, untruncated)
    added = max(-log_share, 0.0) + QUANTILE_ACCURACY
    return lambda alpha: curve(alpha) + added - log_kept / (alpha - 1.0)


def power_law(repetitions: str | Repetitions) -> PowerLaw:
    """The parameters of a truncated negative binomial law.

    Raises:
        ValueError: K has another law.
    """
    repetitions = laws.parse_repetitions(repetitions)
    law = repetitions.power_law
    if law is None:
        raise ValueError(f"repetitions must be truncated negative binomial, got {repetitions.spec}")
    return law


def zero_concentrated(base: Mechanism) -> float | None:
    """The rho for which D_alpha = rho alpha, where the base is of that kind."""
    if isinstance(base, ZeroConcentratedDp):
        return base.rho
    return None if base.gaussian_mu is None else base.gaussian_mu**2 / 2.0


def corollary_4_curve(base: Mechanism, repetitions: str | Repetitions) -> Curve:
    """Corollary 4 as a function of the order; flat up to the order 1 + sqrt(log E[K] / rho).

    Raises:
        ValueError: the base is not zero-concentrated, K is not truncated negative binomial, or
            rho > log(1/gamma).

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = corollary_4_curve(GaussianMechanism(0.25), "tnb:0,0.1")
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [0.95, 1.096]
    """
    repetitions = laws.parse_repetitions(repetitions)
    law = power_law(repetitions)
    rho, log_inverse_gamma = zero_concentrated(base), -math.log(law.gamma)
    if rho is None or rho > log_inverse_gamma:
        raise ValueError(f"rho must be at most log(1/gamma) = {log_inverse_gamma:g}, got {rho!r}")
    eta, log_mean = law.eta, math.log(repetitions.mean)
    constant = 2.0 * (1.0 + eta) * math.sqrt(rho * log_inverse_gamma) - eta * rho
    best = math.sqrt(log_mean / rho)

    def curve(alpha: Array) -> Array:
        rest = np.maximum(alpha - 1.0, best)
        return rho * rest + log_mean / rest + constant

    return curve
