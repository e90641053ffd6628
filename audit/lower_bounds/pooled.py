"""Bounds from every run of every trial, not only from the winners.

A harness that plays the game sees all K runs. Runs are independent draws of the base mechanism, so
their rates are known far better than the winners', and the law of K lifts them: the best of K runs
scores above t with probability 1 - phi(1 - s) if one run does with probability s.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit import repetitions as laws
from audit.claims import Claim, Condition, Kind
from audit.lower_bounds.counting import GaussianFamily, epsilon_from_limits
from audit.lower_bounds.estimator import ThresholdEstimator
from audit.lower_bounds.rates import upper_limit
from audit.lower_bounds.rules import TradeOffStatistic
from audit.lower_bounds.scores import checked
from audit.protocols import RandomSearch
from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]

_GROUPS = 25
# Fewer runs than this on one side of the threshold say too little of their spread.
_FEWEST = 10


@dataclass(frozen=True)
class PooledClopperPearson(ThresholdEstimator, TradeOffStatistic):
    """Limits for one run, lifted to the best of K; nothing else is assumed of the base.

    The probability that the best of K scores above t is 1 - phi(1 - s), s that of one run, so exact
    limits of s are limits of it. The scores are those of single runs.

    Attributes:
        repetitions: law of K, also as text.
    """

    repetitions: Repetitions
    name: ClassVar[str] = "pooled"

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", laws.parse(self.repetitions))
        super().__post_init__()

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project; limits of Clopper & Pearson 1934",
            protocols=(RandomSearch,),
            needs=(Condition.INDEPENDENT_TRIALS, Condition.RELEASED_SCORE),
        )

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        # FP grows with the rate of one run and so does FN = phi(FN of one run).
        fp = self.repetitions.phi_survival(fp_upper)
        fn = self.repetitions.phi(fn_upper)
        return epsilon_from_limits(np.minimum(fp * (1.0 + 1e-12), 1.0), fn * (1.0 + 1e-12), delta)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit * (1.0 - 1e-12), 0.0)


@dataclass(frozen=True)
class PooledGaussianCurve(GaussianFamily):
    """The Gaussian curve of one run, and the best of K runs at that mu.

    Attributes:
        repetitions: law of K, also as text.
    """

    repetitions: Repetitions
    name: ClassVar[str] = "pooled-gaussian-curve"

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", laws.parse(self.repetitions))
        super().__post_init__()

    @property
    def scored(self) -> Repetitions:
        return Fixed(1)

    @property
    def played(self) -> Repetitions:
        return self.repetitions

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project; the curve is that of Nasr et al. 2023",
            protocols=(RandomSearch,),
            needs=(
                Condition.INDEPENDENT_TRIALS,
                Condition.RELEASED_SCORE,
                Condition.GAUSSIAN_STATISTIC,
                Condition.MONOTONE_SCORE,
            ),
        )


def selected_rate_limit(
    scores: ArrayLike, hits: ArrayLike, repetitions: Repetitions, alpha: float
) -> float:
    """Upper limit of the chance that the run with the best of K scores is a hit (asymptotic).

    For a released statistic that is no function of the score: the run of rank r among R pooled ones
    is the best of K with weight phi(r/R) - phi((r-1)/R). The error is that of Student's t over a
    jackknife of 25 groups. With few hits the chance that any of K runs is a hit is used instead,
    whose limit is exact and larger.

    Args:
        scores: of R pooled runs, the larger the better; ties count in the order of the runs.
        hits: whether the released statistic of each run lies in the event, [R].
        repetitions: law of K.
        alpha: error of the one-sided limit.
    """
    checks.interval("alpha", alpha, 0.0, 1.0)
    score = checked("scores", scores)
    hit = np.asarray(hits, dtype=bool)
    if hit.shape != score.shape:
        raise ValueError(f"hits must have one entry per score, got {hit.shape} for {score.shape}")
    runs, count = len(score), int(hit.sum())
    any_run = float(repetitions.phi_survival(upper_limit(count, runs, alpha)))
    if count < _FEWEST or runs < 2 * _GROUPS:
        return min(any_run, 1.0)
    group = np.arange(runs) % _GROUPS
    without = np.array(
        [_selected_rate(score[group != g], hit[group != g], repetitions) for g in range(_GROUPS)]
    )
    estimate = _selected_rate(score, hit, repetitions)
    error = np.sqrt((_GROUPS - 1) / _GROUPS * np.sum((without - without.mean()) ** 2))
    quantile = -float(special.stdtrit(_GROUPS - 1, alpha))
    return float(min(estimate + quantile * error, any_run, 1.0))


def _selected_rate(score: Array, hit: NDArray[np.bool_], repetitions: Repetitions) -> float:
    runs = len(score)
    best_first = np.argsort(-score, kind="stable")
    beaten = repetitions.phi_survival(np.arange(runs + 1) / runs)
    return float(np.diff(beaten)[hit[best_first]].sum())
