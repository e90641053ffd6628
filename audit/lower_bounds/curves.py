"""From upper limits of the two error rates to a lower bound on epsilon.

A curve says which pairs of error rates a mechanism of a given strength can have. `Raw` knows only
the definition of differential privacy, so it speaks of the protocol that was played. The others
know the family the protocol belongs to and find its strength: more evidence, if they are right.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]

# Allowance for rounding in the inverse normal and inverse generating functions (about 1e-14).
_MU_ALLOWANCE = 1e-9


class Curve(Protocol):
    """A family of trade-off curves, ordered by strength."""

    @property
    def name(self) -> str:
        """Name of the estimator that uses the curve."""

    def __hash__(self) -> int:
        """Curves are frozen: what is computed for one is kept."""

    def strength(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        """The strength that each pair of limits [n] proves; the larger the stronger."""

    def epsilon(self, strength: float, delta: float) -> float:
        """The epsilon of the member of that strength, rounded down; at least 0."""


def raw_epsilon(fp_upper: Array, fn_upper: Array, delta: float) -> Array:
    """max(log((1-delta-FP)/FN), log((1-delta-FN)/FP), 0) (Xiang, Wang & Wang 2024, eq. 4)."""
    fp, fn = np.asarray(fp_upper, dtype=np.float64), np.asarray(fn_upper, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_fn = np.log(np.maximum(1.0 - delta - fp, 0.0)) - np.log(fn)
        by_fp = np.log(np.maximum(1.0 - delta - fn, 0.0)) - np.log(fp)
    return np.maximum(np.nan_to_num(np.maximum(by_fn, by_fp), nan=0.0), 0.0)


@dataclass(frozen=True)
class Raw:
    """Every (epsilon, delta)-DP mechanism; the strength is epsilon itself."""

    name: str = "clopper-pearson"

    def strength(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        return raw_epsilon(fp_upper, fn_upper, delta)

    def epsilon(self, strength: float, delta: float) -> float:
        return max(strength * (1.0 - 1e-12), 0.0)


@dataclass(frozen=True)
class BestOfGaussian:
    """The best of K draws of N(0, 1) against the best of K draws of N(mu, 1); the strength is mu.

    With K = 1 always it is the Gaussian curve of Nasr et al. 2023.
    """

    repetitions: Repetitions
    name: str = "lifted-curve"

    def strength(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        # A rate y of the best is the rate s of one run with 1 - phi(1 - s) = y.
        fp_one = self.repetitions.inverse_survival(fp_upper)
        tp_one = self.repetitions.inverse_survival(1.0 - fn_upper)
        with np.errstate(invalid="ignore"):
            mu = special.ndtri(tp_one) - special.ndtri(fp_one)
        return np.nan_to_num(mu, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)

    def epsilon(self, strength: float, delta: float) -> float:
        mu = strength - _MU_ALLOWANCE * max(1.0, abs(strength))
        return best_of_gaussian_epsilon(mu, self.repetitions, delta) if mu > 0.0 else 0.0


def gaussian() -> BestOfGaussian:
    """The curve of a Gaussian mechanism without tuning (Nasr et al. 2023)."""
    return BestOfGaussian(Fixed(1), "gaussian-curve")


def best_of_gaussian_rates(
    thresholds: Array, mu: float, repetitions: Repetitions
) -> tuple[Array, Array, Array, Array]:
    """FP, 1 - FP, FN, 1 - FN of the best of K at thresholds in standard deviations."""
    without, with_record = special.log_ndtr(thresholds), special.log_ndtr(thresholds - mu)
    return (
        repetitions.one_minus_phi_at(without),
        np.exp(repetitions.log_phi_at(without)),
        np.exp(repetitions.log_phi_at(with_record)),
        repetitions.one_minus_phi_at(with_record),
    )


def best_of_gaussian_epsilon(mu: float, repetitions: Repetitions, delta: float) -> float:
    """A lower bound on the epsilon of the best of K draws of N(0, 1) against N(mu, 1).

    Every event gives a lower bound on epsilon, so whatever the grid of events the value is safe.
    The events are half lines: exact when the likelihood ratio of the pair is monotone.
    """
    low, high = -39.0, 39.0 + mu
    best = 0.0
    for _ in range(3):
        grid = np.linspace(low, high, 401)
        fp, tn, fn, tp = best_of_gaussian_rates(grid, mu, repetitions)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_fp = np.log(np.maximum(tp - delta, 0.0)) - np.log(fp)
            by_fn = np.log(np.maximum(tn - delta, 0.0)) - np.log(fn)
        values = np.nan_to_num(np.maximum(by_fp, by_fn), nan=0.0, posinf=0.0)
        peak = int(np.argmax(values))
        best = max(best, float(values[peak]))
        low, high = grid[max(peak - 1, 0)], grid[min(peak + 1, len(grid) - 1)]
    return best * (1.0 - 1e-9)
