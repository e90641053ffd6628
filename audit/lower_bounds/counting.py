"""Estimators from the counts at one threshold.

`ClopperPearson` knows only the definition of differential privacy, so it speaks of the protocol
that was played. `GaussianCurve` and `LiftedCurve` know the family that the protocol belongs to and
find its mu: more evidence, if they are right.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit import repetitions as laws
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import ThresholdEstimator
from audit.lower_bounds.rules import (
    ErrorCounts,
    Statistic,
    TradeOffStatistic,
    best_of_gaussian_rates,
)
from audit.numerics import QUANTILE_ACCURACY, safe_root
from audit.protocols import RandomSearch
from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]

# Allowance for rounding in the inverse normal and inverse generating functions (about 1e-14).
_MU_ALLOWANCE = 1e-9
_CELLS = 2000
_MASS_ALLOWANCE = 1e-9
_LARGEST_EPSILON = 300.0
# Standard deviations by which the numbers of trials may differ under fair coins.
_UNFAIR = 5.0


def epsilon_from_limits(fp_upper: Array, fn_upper: Array, delta: float) -> Array:
    """max(log((1-delta-FP)/FN), log((1-delta-FN)/FP), 0) (Xiang, Wang & Wang 2024, eq. 4)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        by_fn = np.log(np.maximum(1.0 - delta - fp_upper, 0.0)) - np.log(fn_upper)
        by_fp = np.log(np.maximum(1.0 - delta - fn_upper, 0.0)) - np.log(fp_upper)
    return np.maximum(np.nan_to_num(np.maximum(by_fn, by_fp), nan=0.0), 0.0)


@dataclass(frozen=True)
class ClopperPearson(ThresholdEstimator, TradeOffStatistic):
    """Every (epsilon, delta)-DP mechanism, by exact limits of both error rates.

    Example:
        >>> without, with_record = range(100), range(90, 190)
        >>> round(ClopperPearson()(without, with_record).epsilon, 2)
        2.36
    """

    name: ClassVar[str] = "clopper-pearson"

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "Clopper & Pearson 1934; Xiang, Wang & Wang 2024, eq. 4",
            assumptions=(Assumption.INDEPENDENT_TRIALS,),
        )

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        return epsilon_from_limits(fp_upper, fn_upper, delta)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit * (1.0 - QUANTILE_ACCURACY), 0.0)


def gaussian_mu(fp_upper: Array, fn_upper: Array, repetitions: Repetitions) -> Array:
    """The mu [n] whose best of K draws has just these error rates, -inf where there is none.

    The best of K draws of N(0, 1) against the best of K draws of N(mu, 1).
    """
    # A rate y of the best is the rate s of one run with 1 - phi(1 - s) = y.
    fp_one = repetitions.inverse_survival(fp_upper)
    tp_one = repetitions.inverse_survival(1.0 - fn_upper)
    with np.errstate(invalid="ignore"):
        mu = special.ndtri(tp_one) - special.ndtri(fp_one)
    return np.nan_to_num(mu, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)


class GaussianFamily(ThresholdEstimator, TradeOffStatistic):
    """Curves of Gaussian bases; the parameter is mu."""

    @property
    @abstractmethod
    def scored(self) -> Repetitions:
        """The law of K behind a score."""

    @property
    @abstractmethod
    def played(self) -> Repetitions:
        """The law of K of the protocol that the bound is about."""

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        return gaussian_mu(fp_upper, fn_upper, self.scored)

    def epsilon_at(self, limit: float, delta: float) -> float:
        mu = limit - _MU_ALLOWANCE * max(1.0, abs(limit))
        return best_of_gaussian_epsilon(mu, self.played, delta) if mu > 0.0 else 0.0


@dataclass(frozen=True)
class GaussianCurve(GaussianFamily):
    """A Gaussian mechanism that was not tuned (Nasr et al. 2023).

    It holds for any score: no postprocessing of the mechanism has error rates below its curve.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import RankSum
        >>> noise = np.random.default_rng(0).normal(size=(2, 500))
        >>> found = GaussianCurve(rule=RankSum())(noise[0], noise[1] + 1.0, 1e-5)
        >>> round(found.epsilon, 2)  # of 4.38
        3.7
    """

    name: ClassVar[str] = "gaussian-curve"

    @property
    def scored(self) -> Repetitions:
        return Fixed(1)

    @property
    def played(self) -> Repetitions:
        return Fixed(1)

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "Nasr et al. 2023",
            assumptions=(
                Assumption.INDEPENDENT_TRIALS,
                Assumption.NOT_TUNED,
                Assumption.GAUSSIAN_BASE,
            ),
        )


@dataclass(frozen=True)
class LiftedCurve(GaussianFamily):
    """The best of K runs of a Gaussian base by an increasing score.

    Attributes:
        repetitions: law of K, also as text.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import RankSum
        >>> from audit.repetitions import Fixed
        >>> noise = np.random.default_rng(0).normal(size=(2, 500, 3)).max(axis=2)
        >>> round(LiftedCurve(Fixed(3), rule=RankSum())(noise[0], noise[1] + 1.0, 1e-5).epsilon, 2)
        6.98
    """

    repetitions: Repetitions
    name: ClassVar[str] = "lifted-curve"

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))
        super().__post_init__()

    @property
    def scored(self) -> Repetitions:
        return self.repetitions

    @property
    def played(self) -> Repetitions:
        return self.repetitions

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project; the family is that of Xiang, Wang & Wang 2024, algorithm 3",
            protocols=(RandomSearch,),
            assumptions=(
                Assumption.INDEPENDENT_TRIALS,
                Assumption.GAUSSIAN_STATISTIC,
                Assumption.MONOTONE_SCORE,
            ),
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
    return safe_root(lambda epsilon: excess(epsilon) <= 0.0, low, high, 1e-6)


@dataclass(frozen=True)
class Conditional(ThresholdEstimator):
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

    Example:
        >>> import numpy as np
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(Conditional()(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.27
    """

    name: ClassVar[str] = "conditional"

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "Fisher 1935; the proof for delta > 0 is this project's",
            assumptions=(Assumption.INDEPENDENT_TRIALS, Assumption.FAIR_COINS),
        )

    def lower_limit(self, counts: ErrorCounts, delta: float, alpha: float) -> Array:
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

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit * (1.0 - QUANTILE_ACCURACY), 0.0)


@lru_cache(maxsize=256)
def _quantile(n: int, p: float, alpha: float) -> int:
    """The smallest count that Binomial(n, p) exceeds with probability at most alpha."""
    count = 0
    while count < n and float(special.bdtrc(count, n, p)) > alpha:
        count += 1
    return count


@dataclass(frozen=True)
class Bayesian(ThresholdEstimator):
    """The alpha-quantile of epsilon when both error rates have their joint beta posterior.

    Zanella-Beguelin et al. 2023, with Jeffreys' prior; one integral over the false positives, by
    the trapezoidal rule on the logit scale. A statement of belief, not of coverage.

    Example:
        >>> import numpy as np
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> found = Bayesian()(scores, scores + 2.0, 1e-5)
        >>> round(found.epsilon, 2), found.label
        (4.9, 'Bayesian')
    """

    name: ClassVar[str] = "bayesian"

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BAYESIAN,
            "Zanella-Beguelin et al. 2023",
            assumptions=(Assumption.INDEPENDENT_TRIALS,),
            about=("Jeffreys' prior",),
        )

    @property
    def for_search(self) -> Statistic:
        return ClopperPearson()

    def lower_limit(self, counts: ErrorCounts, delta: float, alpha: float) -> Array:
        pairs = zip(
            np.asarray(counts.false_positives).tolist(),
            np.asarray(counts.false_negatives).tolist(),
            strict=True,
        )
        n0, n1 = counts.trials_without, counts.trials_with
        return np.array([_posterior_quantile(fp, n0, fn, n1, delta, alpha) for fp, fn in pairs])

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit, 0.0)


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

    if below(0.0) >= alpha:
        return 0.0
    return safe_root(lambda epsilon: below(epsilon) >= alpha, 0.0, 60.0, 1e-5)
