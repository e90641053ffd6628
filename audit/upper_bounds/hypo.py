"""Adaptive choice of hyper-parameters (Wang et al. 2023, DP-HyPO): the sampling density learns.

After every run the density over the hyper-parameters may change, but it stays within [c, C] times
the prior; how far that is costs log(C/c) at every place where a density ratio enters.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit import repetitions as laws
from audit.accounting import Mechanism, renyi_to_epsilon
from audit.numerics import best_renyi_order, last_kept
from audit.protocols import Adaptive
from audit.repetitions import Repetitions
from audit.upper_bounds.registry import Value, bound
from audit.upper_bounds.renyi import Curve, power_law
from audit.upper_bounds.result import NotApplicable, UpperBound

Array = NDArray[np.float64]


def hypo_curve(base: Mechanism, repetitions: str | Repetitions, ratio: float) -> Curve:
    """Theorem 1 as a function of the order alpha.

    e' = e + (1+theta) (1-1/b) e_b + (alpha/(alpha-1) + 1 + theta) log(C/c)
    + (1+theta) log(1/gamma)/b + log E[T]/(alpha-1), minimised over b.

    Args:
        base: one run with any fixed hyper-parameter.
        repetitions: truncated negative binomial.
        ratio: C/c >= 1.
    """
    repetitions = laws.parse(repetitions)
    log_ratio = math.log(checks.interval("ratio", ratio, 1.0, closed_low=True))
    law = power_law(repetitions)
    log_inverse_gamma = -math.log(law.gamma)
    shape, log_mean = 1.0 + law.eta, math.log(repetitions.mean)

    def penalty(order: Array) -> Array:
        return base.renyi(order) * (1.0 - 1.0 / order) + log_inverse_gamma / order

    constant = shape * (best_renyi_order(penalty)[1] + log_ratio)

    def curve(alpha: Array) -> Array:
        rest = alpha - 1.0
        return base.renyi(alpha) + constant + (alpha * log_ratio + log_mean) / rest

    return curve


def hypo(base: Mechanism, repetitions: Repetitions, delta: float, ratio: float) -> UpperBound:
    """Theorem 1, converted to (epsilon, delta)-DP.

    Args:
        base: one run with any fixed hyper-parameter.
        repetitions: truncated negative binomial.
        delta: in (0, 1).
        ratio: C/c >= 1, how far the density may move from the prior.
    """
    checks.interval("ratio", ratio, 1.0, closed_low=True)
    return hypo_theorem_1(
        base, Adaptive(repetitions, 1.0 / math.sqrt(ratio), math.sqrt(ratio)), delta
    )


@bound(
    "hypo",
    10,
    "Wang et al. 2023 (DP-HyPO), theorem 1",
    about=("any base",),
    protocol=Adaptive,
)
def hypo_theorem_1(base: Mechanism, protocol: Adaptive, delta: float) -> Value:
    """Theorem 1 converted to (epsilon, delta)-DP, for an adaptive protocol.

    Args:
        base: one run with any fixed hyper-parameter.
        protocol: the law of K and how far the density may move from the prior.
        delta: in (0, 1).
    """
    law = protocol.repetitions
    if law.power_law is None:
        raise NotApplicable("K must be truncated negative binomial")
    return Value(renyi_to_epsilon(hypo_curve(base, law, protocol.high / protocol.low), delta))


def hypo_pure(epsilon_0: float, repetitions: str | Repetitions, ratio: float) -> float:
    """Epsilon for a base of pure DP, (2 + theta)(epsilon_0 + log(C/c)) (theorem 2)."""
    checks.interval("epsilon_0", epsilon_0, 0.0)
    checks.interval("ratio", ratio, 1.0, closed_low=True)
    return (2.0 + power_law(repetitions).eta) * (epsilon_0 + math.log(ratio))


def project_density(
    density: ArrayLike, low: float, high: float, prior: ArrayLike | None = None
) -> Array:
    """The nearest density within [low, high] times the prior, in the prior's L2 norm.

    The projection of f is clip(f + t, low, high), with t such that the mean is 1.

    Args:
        density: f, relative to the prior, [n].
        low: c in [0, 1].
        high: C >= 1.
        prior: probabilities [n]; uniform if not given.

    Returns:
        The projected density relative to the prior, [n], with prior mean 1.
    """
    values = np.asarray(density, dtype=np.float64)
    checks.interval("low", low, 0.0, 1.0, closed_low=True, closed_high=True)
    checks.interval("high", high, 1.0, closed_low=True)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"density must be finite numbers in one row, got {values!r}")
    weights = np.full(len(values), 1.0 / len(values)) if prior is None else np.asarray(prior)
    if weights.shape != values.shape or not np.all(weights >= 0) or abs(weights.sum() - 1) > 1e-9:
        raise ValueError(f"prior must be {len(values)} probabilities, got {weights!r}")
    least, most = low - float(values.max()), high - float(values.min())

    def mean_above_one(t: float) -> float:
        return 1.0 - float(weights @ np.clip(values + t, low, high))

    t = last_kept(mean_above_one, most, least, 0.0)
    return np.clip(values + t, low, high)
