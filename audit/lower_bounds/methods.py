"""From the counts at a threshold to the strength of the mechanism they prove.

A `Method` compares thresholds by the strength they prove, and turns the best strength into an
epsilon. Curves are methods that go by upper limits of the two error rates: a curve says which pairs
of error rates a mechanism of a given strength can have. `Raw` knows only the definition of
differential privacy, so it speaks of the protocol that was played. The others know the family that
the protocol belongs to and find its strength: more evidence, if they are right.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.lower_bounds.rates import Limit, upper_limit
from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]

# Allowance for rounding in the inverse normal and inverse generating functions (about 1e-14).
_MU_ALLOWANCE = 1e-9
_CELLS = 2000
_MASS_ALLOWANCE = 1e-9
_LARGEST_EPSILON = 300.0
# Standard deviations by which the numbers of trials may differ under fair coins.
_UNFAIR = 5.0


@dataclass(frozen=True, eq=False)
class Counts:
    """Outcomes at some thresholds.

    Attributes:
        false_positives: trials without the record above each threshold, [n].
        false_negatives: trials with the record not above each, [n].
        trials_without: number of trials without the record.
        trials_with: number of trials with it.
    """

    false_positives: Array | NDArray[np.int64]
    false_negatives: Array | NDArray[np.int64]
    trials_without: int
    trials_with: int


class Method(ABC):
    """A way to read counts. Frozen and hashable: what is computed for one is kept."""

    name: str

    @property
    def scout(self) -> "Method":
        """The method to search thresholds by: the same one, unless it is slow."""
        return self

    @abstractmethod
    def strength(self, counts: Counts, delta: float, alpha: float) -> Array:
        """The strength [n] that each threshold on its own proves with error alpha."""

    @abstractmethod
    def epsilon(self, strength: float, delta: float) -> float:
        """The epsilon of that strength, rounded down; at least 0."""


class Curve(Method):
    """A family of trade-off curves, ordered by strength."""

    @abstractmethod
    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        """The strength that each pair of upper limits [n] proves."""

    def strength(
        self, counts: Counts, delta: float, alpha: float, limit: Limit = upper_limit
    ) -> Array:
        """The strength from both limits at alpha / 2 each."""
        return self.from_limits(
            limit(counts.false_positives, counts.trials_without, alpha / 2.0),
            limit(counts.false_negatives, counts.trials_with, alpha / 2.0),
            delta,
        )


def raw_epsilon(fp_upper: Array, fn_upper: Array, delta: float) -> Array:
    """max(log((1-delta-FP)/FN), log((1-delta-FN)/FP), 0) (Xiang, Wang & Wang 2024, eq. 4)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        by_fn = np.log(np.maximum(1.0 - delta - fp_upper, 0.0)) - np.log(fn_upper)
        by_fp = np.log(np.maximum(1.0 - delta - fn_upper, 0.0)) - np.log(fp_upper)
    return np.maximum(np.nan_to_num(np.maximum(by_fn, by_fp), nan=0.0), 0.0)


@dataclass(frozen=True)
class Raw(Curve):
    """Every (epsilon, delta)-DP mechanism; the strength is epsilon itself."""

    name: str = "clopper-pearson"

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        return raw_epsilon(fp_upper, fn_upper, delta)

    def epsilon(self, strength: float, delta: float) -> float:
        return max(strength * (1.0 - 1e-12), 0.0)


@dataclass(frozen=True)
class BestOfGaussian(Curve):
    """The best of K draws of N(0, 1) against the best of K draws of N(mu, 1); the strength is mu.

    With K = 1 always it is the Gaussian curve of Nasr et al. 2023.
    """

    repetitions: Repetitions
    name: str = "lifted-curve"

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
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
    """The epsilon of the best of K draws of N(0, 1) against N(mu, 1), rounded down.

    The hockey-stick divergence of the outputs told apart only by cells of a grid is at most that of
    the outputs themselves, so whatever the grid the value is safe; it is about 1e-4 below.
    """
    edges = np.linspace(-9.0, 9.0 + mu, _CELLS)
    fp, tn, fn, tp = best_of_gaussian_rates(edges, mu, repetitions)

    def masses(below: Array, above: Array) -> Array:
        # Differences on the side of the smaller tail keep their digits. K = 0 is in the first cell.
        below = np.concatenate([[0.0], below, [1.0]])
        above = np.concatenate([[1.0], above, [0.0]])
        return np.asarray(np.where(above[1:] < 0.5, -np.diff(above), np.diff(below)))

    without, with_record = masses(tn, fp), masses(fn, tp)

    def excess(epsilon: float) -> float:
        growth = math.exp(epsilon) * (1.0 + _MASS_ALLOWANCE)
        scaled = 1.0 - _MASS_ALLOWANCE
        forward = np.maximum(scaled * without - growth * with_record, 0.0).sum()
        backward = np.maximum(scaled * with_record - growth * without, 0.0).sum()
        return float(max(forward, backward)) - delta

    # delta = 0 has no finite answer for a Gaussian; the cells' own largest ratio stands for it.
    low, high = 0.0, 1.0
    if excess(low) <= 0.0:
        return 0.0
    while excess(high) > 0.0 and high < _LARGEST_EPSILON:
        low, high = high, 2.0 * high
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    return low


@dataclass(frozen=True)
class Conditional(Method):
    """The conditional binomial test: of the trials on one side, how many had the record?

    It needs the coin of every trial to have been fair and tossed on its own. Then, for an event E
    with P[E | X] <= e^epsilon P[E | X'] + delta: call each trial without the record in E bad with
    probability min(delta / P[E | X], 1). A trial is good, without the record and in E with
    probability at most e^epsilon times that of being with the record and in E. So, given how many
    are with the record or good in E, the good ones are at most Binomial(., q) with
    q = e^epsilon / (1 + e^epsilon), and the bad ones at most Binomial(trials, delta / 2). The test
    allows for as many bad ones as occur but with 1 % of its error; one bad trial fewer only lowers
    the evidence. E is taken on both sides of the threshold, at half the error each. Numbers of
    trials that fair coins do not give prove nothing.
    """

    name: str = "conditional"

    def strength(self, counts: Counts, delta: float, alpha: float) -> Array:
        n0, n1 = counts.trials_without, counts.trials_with
        if abs(n0 - n1) > _UNFAIR * math.sqrt(n0 + n1):
            return np.zeros(len(counts.false_positives))
        share = alpha / 2.0
        bad = _quantile(n0 + n1, delta / 2.0, 0.01 * share)
        fp = np.asarray(counts.false_positives, dtype=np.float64)
        fn = np.asarray(counts.false_negatives, dtype=np.float64)

        def one_side(many: Array, few: Array) -> Array:
            good = np.maximum(many - bad, 0.0)
            share_of_many = np.where(
                good > 0, special.betaincinv(np.maximum(good, 1.0), few + 1.0, 0.99 * share), 0.0
            )
            with np.errstate(divide="ignore"):
                return np.asarray(special.logit(share_of_many))

        return np.maximum(np.maximum(one_side(n0 - fp, fn), one_side(n1 - fn, fp)), 0.0)

    def epsilon(self, strength: float, delta: float) -> float:
        return max(strength * (1.0 - 1e-12), 0.0)


@lru_cache(maxsize=256)
def _quantile(n: int, p: float, alpha: float) -> int:
    """The smallest count that Binomial(n, p) exceeds with probability at most alpha."""
    count = 0
    while count < n and float(special.bdtrc(count, n, p)) > alpha:
        count += 1
    return count


@dataclass(frozen=True)
class Bayesian(Method):
    """The alpha-quantile of epsilon when both error rates have their joint beta posterior.

    Zanella-Beguelin et al. 2023, with Jeffreys' prior; one integral over the false positives, by
    the trapezoidal rule on the logit scale. A statement of belief, not of coverage.
    """

    name: str = "bayesian"

    @property
    def scout(self) -> Method:
        return Raw()

    def strength(self, counts: Counts, delta: float, alpha: float) -> Array:
        pairs = zip(
            np.asarray(counts.false_positives).tolist(),
            np.asarray(counts.false_negatives).tolist(),
            strict=True,
        )
        n0, n1 = counts.trials_without, counts.trials_with
        return np.array([_posterior_quantile(fp, n0, fn, n1, delta, alpha) for fp, fn in pairs])

    def epsilon(self, strength: float, delta: float) -> float:
        return max(strength, 0.0)


def _posterior_quantile(
    fp: float, n0: int, fn: float, n1: int, delta: float, alpha: float
) -> float:
    a0, b0, a1, b1 = fp + 0.5, n0 - fp + 0.5, fn + 0.5, n1 - fn + 0.5
    t = np.linspace(-6.0, 6.0, 65)
    s = math.log(a0 / b0) + math.sqrt(1.0 / a0 + 1.0 / b0) * np.sinh(t)
    log_density = a0 * special.log_expit(s) + b0 * special.log_expit(-s) - special.betaln(a0, b0)
    weights = np.exp(log_density + np.log(np.cosh(t)))
    weights /= weights.sum()
    rate, rest = special.expit(s), special.expit(-s)

    def below(epsilon: float) -> float:
        # epsilon(FP, FN) <= e  iff  FN >= (1-delta-FP) e^-e  and  FN >= 1 - delta - e^e FP.
        growth = math.exp(epsilon)
        least = np.maximum((rest - delta) / growth, rest - delta - (growth - 1.0) * rate)
        return float(weights @ special.betaincc(a1, b1, np.clip(least, 0.0, 1.0)))

    low, high = 0.0, 60.0
    if below(low) >= alpha:
        return 0.0
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < alpha else (low, middle)
    return low
