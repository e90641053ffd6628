"""The generic bounds by Renyi divergence (Papernot & Steinke 2022)."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.accounting import Mechanism, ZeroConcentratedDp, best_order, renyi_to_epsilon
from audit.repetitions import Poisson, Repetitions, Truncated, TruncatedNegativeBinomial
from audit.upper_bounds.region import RegionCurve
from audit.upper_bounds.registry import Value, bound
from audit.upper_bounds.result import NotApplicable

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

_ANY_BASE = ("any base",)
_POINTS = 1 << 11


@bound(
    "renyi",
    40,
    "Papernot & Steinke 2022",
    about=_ANY_BASE,
    title=r"$\varepsilon_U$ Renyi (any score)",
)
def renyi(base: Mechanism, repetitions: Repetitions, delta: float) -> Value:
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
    elif isinstance(repetitions, Poisson):
        source = "Papernot & Steinke 2022, theorem 6"
    else:
        raise NotApplicable("K must be truncated negative binomial or Poisson")
    return _converted(base, renyi_curve, repetitions, delta, source)


@bound("lemma-7", 50, "Papernot & Steinke 2022, lemma 7", about=_ANY_BASE)
def lemma_7(base: Mechanism, repetitions: Repetitions, delta: float) -> Value:
    """The generic Renyi bound for any law of K, maximised over the events of the base.

    Args:
        base: the base mechanism, through its Renyi divergences and its pairs.
        repetitions: the law of K, any.
        delta: in (0, 1).
    """
    return _converted(base, lemma_7_curve, repetitions, delta)


@bound("lemma-22", 45, "Papernot & Steinke 2022, lemma 22", about=_ANY_BASE, is_special=True)
def lemma_22(base: Mechanism, repetitions: Repetitions, delta: float) -> Value:
    """The generic Renyi bound for a truncated law, through the law before truncation.

    Args:
        base: the base mechanism.
        repetitions: a law conditioned on K <= most.
        delta: in (0, 1).
    """
    if not isinstance(repetitions, Truncated):
        raise NotApplicable("K must be conditioned on K <= most")
    return _converted(base, lemma_22_curve, repetitions, delta)


@bound("corollary-4", 30, "Papernot & Steinke 2022, corollary 4", about=_ANY_BASE)
def corollary_4(base: Mechanism, repetitions: Repetitions, delta: float) -> Value:
    """Theorem 2 in closed form for a rho-zCDP base.

    Args:
        base: Gaussian (rho = mu^2/2) or rho-zCDP.
        repetitions: truncated negative binomial, with log(1/gamma) >= rho.
        delta: in (0, 1).
    """
    if zero_concentrated(base) is None:
        raise NotApplicable("the base must be Gaussian or zero-concentrated")
    if not isinstance(repetitions, TruncatedNegativeBinomial):
        raise NotApplicable("K must be truncated negative binomial")
    if -math.log(repetitions.gamma) < (zero_concentrated(base) or 0.0):
        raise NotApplicable("log(1/gamma) must be at least rho")
    return _converted(base, corollary_4_curve, repetitions, delta)


def _converted(
    base: Mechanism,
    curve_of: Callable[[Mechanism, Any], Curve],
    repetitions: Repetitions,
    delta: float,
    source: str | None = None,
) -> Value:
    if not np.isfinite(base.renyi(np.array([1.0 + 1e-6]))).all():
        raise NotApplicable("the base has no finite Renyi divergence")
    epsilon = renyi_to_epsilon(curve_of(base, repetitions), delta)
    if not math.isfinite(epsilon):
        raise NotApplicable("the divergence is too large for a number")
    return Value(epsilon, source=source)


def renyi_curve(base: Mechanism, repetitions: Repetitions) -> Curve:
    """Theorem 2 or 6 as a function of the order: maps orders [n] > 1 to divergences [n].

    Raises:
        ValueError: K is neither truncated negative binomial nor Poisson.
    """
    if isinstance(repetitions, TruncatedNegativeBinomial):
        return _monotone(_truncated_negative_binomial(base, repetitions))
    if isinstance(repetitions, Poisson):
        return _monotone(_poisson(base, repetitions))
    raise ValueError(
        f"repetitions must be truncated negative binomial or Poisson, got {repetitions.spec}"
    )


def _monotone(curve: Curve) -> Curve:
    """D_alpha grows with alpha, so a bound at its best order serves every smaller order too."""
    flat_until, lowest = best_order(curve)

    def monotone(alpha: Array) -> Array:
        values = curve(alpha)
        return np.where(alpha <= flat_until, np.minimum(lowest, values), values)

    return monotone


def lemma_7_curve(base: Mechanism, repetitions: Repetitions, points: int = _POINTS) -> Curve:
    """D_alpha + log max phi'(q)^alpha phi'(q')^(1-alpha) / (alpha-1) over the events of the base.

    The maximum is over the hull of the region bound: a^alpha b^(1-alpha) is convex, grows with a
    and falls with b, so it is largest at a vertex.

    Args:
        base: the base mechanism.
        repetitions: the law of K, any.
        points: points on the curve of events; fewer are faster and no less safe.
    """
    logs = []
    for pair in base.pairs:
        a, b = RegionCurve(pair, repetitions, points).vertices
        kept = a > 1e-200 * a[-1]  # below, b underflows
        with np.errstate(divide="ignore"):
            log_b = np.maximum(np.log(b[kept]), repetitions.log_phi_prime_at(-np.inf))
        logs.append((np.log(a[kept]), log_b))
    log_none = -np.inf
    if repetitions.probability_of_none > 0:
        log_none = math.log(repetitions.probability_of_none)

    def curve(alpha: Array) -> Array:
        rest = alpha - 1.0
        gain = np.max([_largest(rest, log_a, log_b) for log_a, log_b in logs], axis=0)
        return np.maximum(np.logaddexp(log_none, rest * base.renyi(alpha) + gain), 0.0) / rest

    return _monotone(curve)


def _largest(rest: Array, log_a: Array, log_b: Array) -> Array:
    """Largest a (a/b)^rest [n] over the vertices; infinite if it may lie below those kept."""
    heights = log_a + np.outer(rest, log_a - log_b)
    best = np.argmax(heights, axis=1)
    cut = (best == 0) & (len(log_a) > 1) & (log_a[0] < -400.0 + log_a[-1])
    return np.where(cut, np.inf, heights[np.arange(len(rest)), best])


def lemma_22_curve(base: Mechanism, repetitions: Truncated) -> Curve:
    """Lemma 7 of the law before truncation, and what truncation adds at most.

    log(1/P[K<=m]) / (alpha-1) + log(1 + T/(E[K]-T)), T = E[K; K > m].
    """
    untruncated = lemma_7_curve(base, repetitions.law)
    counts = np.arange(repetitions.most + 1.0)
    log_kept = min(float(special.logsumexp(repetitions.law.log_pmf(counts))), 0.0)  # log P[K <= m]
    log_share = log_kept + math.log(repetitions.mean / repetitions.law.mean)  # of E[K], for K <= m
    return lambda alpha: (
        untruncated(alpha) + max(-log_share, 0.0) + 1e-12 - log_kept / (alpha - 1.0)
    )


def zero_concentrated(base: Mechanism) -> float | None:
    """The rho for which D_alpha = rho alpha, where the base is of that kind."""
    if isinstance(base, ZeroConcentratedDp):
        return base.rho
    return None if base.gaussian_mu is None else base.gaussian_mu**2 / 2.0


def corollary_4_curve(base: Mechanism, repetitions: TruncatedNegativeBinomial) -> Curve:
    """Corollary 4 as a function of the order; flat up to the order 1 + sqrt(log E[K] / rho).

    Raises:
        ValueError: the base is not zero-concentrated, or rho > log(1/gamma).
    """
    rho, log_inverse_gamma = zero_concentrated(base), -math.log(repetitions.gamma)
    if rho is None or rho > log_inverse_gamma:
        raise ValueError(f"rho must be at most log(1/gamma) = {log_inverse_gamma:g}, got {rho!r}")
    eta, log_mean = repetitions.eta, math.log(repetitions.mean)
    constant = 2.0 * (1.0 + eta) * math.sqrt(rho * log_inverse_gamma) - eta * rho
    best = math.sqrt(log_mean / rho)

    def curve(alpha: Array) -> Array:
        rest = np.maximum(alpha - 1.0, best)
        return rho * rest + log_mean / rest + constant

    return curve


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
