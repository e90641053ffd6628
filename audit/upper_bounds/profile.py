"""The generic bounds by privacy profile (Koskela, Redberg & Wang 2024)."""

import math

import numpy as np
from numpy.typing import NDArray

from audit.accounting import Mechanism, solve_epsilon
from audit.repetitions import Binomial, Poisson, Repetitions, TruncatedNegativeBinomial
from audit.upper_bounds.registry import Value, bound
from audit.upper_bounds.result import NotApplicable

Array = NDArray[np.float64]

_SOURCE = "Koskela, Redberg & Wang 2024"


@bound(
    "profile",
    60,
    _SOURCE,
    about=("any base",),
    title=r"$\varepsilon_U$ profile (any score)",
)
def profile(base: Mechanism, repetitions: Repetitions, delta: float) -> Value:
    """delta_A(eps) <= E[K] delta(eps - penalty), the penalty minimised over epsilon_1 >= 0.

    Theorem 5.2 for truncated negative binomial K, 5.7 for binomial, corollary 5.8 for Poisson. The
    penalty does not depend on epsilon, so it is minimised once.

    Args:
        base: the base mechanism, through its privacy profile.
        repetitions: the law of K.
        delta: in (0, 1).
    """
    if isinstance(repetitions, TruncatedNegativeBinomial):
        theorem = "theorem 5.2"
    elif isinstance(repetitions, Binomial) and repetitions.p < 1.0:
        theorem = "theorem 5.7"
    elif isinstance(repetitions, Poisson):
        theorem = "corollary 5.8"
    else:
        raise NotApplicable(
            "K must be truncated negative binomial, binomial with p < 1, or Poisson"
        )
    penalty = _smallest_penalty(base, repetitions)

    def tuned(epsilon: float) -> float:
        return repetitions.mean * float(base.delta(epsilon - penalty))

    return Value(solve_epsilon(tuned, delta), source=f"{_SOURCE}, {theorem}")


def _smallest_penalty(base: Mechanism, repetitions: Repetitions) -> float:
    """Minimises over epsilon_1 on a grid refined three times; any epsilon_1 is valid."""
    left, right = math.log(1e-12), math.log(700.0)
    values = np.empty(0)
    for _ in range(4):
        grid = np.linspace(left, right, 513)
        values = _penalty(base, repetitions, np.exp(grid))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(values.min())


def _penalty(base: Mechanism, repetitions: Repetitions, epsilon_1: Array) -> Array:
    delta_1 = base.delta(epsilon_1) * (1.0 + 1e-9)
    if isinstance(repetitions, TruncatedNegativeBinomial):
        odds = 1.0 / repetitions.gamma - 1.0
        with np.errstate(divide="ignore"):
            inside = np.logaddexp(epsilon_1, np.log(odds) + np.log(delta_1))
        return (1.0 + repetitions.eta) * inside
    growth = np.expm1(epsilon_1)
    if isinstance(repetitions, Binomial):
        p = repetitions.p
        allowed = epsilon_1 >= np.log1p(p / (1.0 - p) * delta_1)
        penalty = (repetitions.n - 1) * np.log1p(p * growth + p * delta_1)
        return np.where(allowed, penalty, np.inf)
    with np.errstate(over="ignore"):
        return repetitions.mean * (growth + delta_1)
