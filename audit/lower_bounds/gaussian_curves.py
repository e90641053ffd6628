"""Estimators for Gaussian base mechanisms: they bound mu, and report the epsilon of that mu.

They prove more than `ClopperPearson` from the same counts if the base is Gaussian. The first
three differ in whose scores they take and which protocol the bound describes: single runs that were
not tuned, the winners of a tuning, or all runs of a tuning. The last takes the values of the scores
of many canaries in one run.

Canaries of unequal size need no correction (proposition 15 of docs/theory.md), but they must not
interact: if 1,000 canaries share one random size, each with the Gaussian trade-off curve of mu = 1,
the bound exceeds the true epsilon in about a third of all runs.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import (
    LowerBound,
    ThresholdEstimator,
    check_confidence,
    default_facts,
)
from audit.lower_bounds.rules import best_of_gaussian_rates
from audit.lower_bounds.scores import checked_canaries
from audit.numerics import FloatArray, safe_root
from audit.protocols import RandomSearch
from audit.repetitions import Fixed, Repetitions, parse_repetitions

# Rounding of the inverse normal and inverse generating functions is about 1e-14.
_MU_ALLOWANCE = 1e-9
# Rounding of the cells' masses in `best_of_gaussian_epsilon`, relative.
_MASS_ALLOWANCE = 1e-9
_EPSILON_TOLERANCE = 1e-6
_CELLS = 2000
# At delta = 0 a Gaussian has no finite epsilon, and the search ends here.
_MAX_EPSILON = 300.0
_MAX_MU = 20.0
_MU_TOLERANCE = 1e-4
# Probabilities at which the distribution of the variance is cut into cells. Each cell uses its
# smallest variance, which increases the p-value by about 1 %.
_CELL_EDGES = special.expit(np.linspace(-40.0, 40.0, 4001))
_CELL_MASSES = np.diff(_CELL_EDGES, prepend=0.0, append=1.0)
ASSUMPTIONS = (
    Assumption.NOT_TUNED,
    Assumption.GAUSSIAN_BASE,
    Assumption.GAUSSIAN_STATISTIC,
    Assumption.DISJOINT_CANARIES,
)
_T_TEST = Claim(
    Kind.BOUND,
    "this project: noncentral t",
    assumptions=ASSUMPTIONS,
    about=("one run with many canaries",),
)


class GaussianFamily(ThresholdEstimator):
    """Trade-off curves of Gaussian bases; the parameter is mu."""

    @property
    def score_repetitions(self) -> Repetitions:
        """The distribution of K behind one score."""
        return Fixed(1)

    @property
    def protocol_repetitions(self) -> Repetitions:
        """The distribution of K of the protocol that the bound describes."""
        return Fixed(1)

    def from_limits(self, fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
        return gaussian_mu(fp_upper, fn_upper, self.score_repetitions)

    def epsilon_at(self, limit: float, delta: float) -> float:
        mu = limit - _MU_ALLOWANCE * max(1.0, abs(limit))
        return best_of_gaussian_epsilon(mu, self.protocol_repetitions, delta) if mu > 0.0 else 0.0


@dataclass(frozen=True)
class GaussianCurve(GaussianFamily):
    """A Gaussian mechanism that was not tuned (Nasr et al. 2023).

    Valid for any score: no postprocessing of the mechanism has error rates below its curve.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import RankSum
        >>> noise = np.random.default_rng(0).normal(size=(2, 500))
        >>> found = GaussianCurve(rule=RankSum())(noise[0], noise[1] + 1.0, 1e-5)
        >>> round(found.epsilon, 2)  # true value 4.38
        3.7
    """

    name: ClassVar[str] = "gaussian-curve"

    statistic_claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "Nasr et al. 2023",
        assumptions=(
            Assumption.INDEPENDENT_TRIALS,
            Assumption.NOT_TUNED,
            Assumption.GAUSSIAN_BASE,
        ),
    )


@dataclass(frozen=True)
class _BestOfRunsCurve(GaussianFamily):
    """The best of K runs of a Gaussian base."""

    repetitions: Repetitions

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))

    @property
    def protocol_repetitions(self) -> Repetitions:
        return self.repetitions


@dataclass(frozen=True)
class LiftedCurve(_BestOfRunsCurve):
    """The best of K runs of a Gaussian base by an increasing score, from the winners' scores.

    Attributes:
        repetitions: distribution of K; text is parsed.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import RankSum
        >>> from audit.repetitions import Fixed
        >>> noise = np.random.default_rng(0).normal(size=(2, 500, 3)).max(axis=2)
        >>> round(LiftedCurve(Fixed(3), rule=RankSum())(noise[0], noise[1] + 1.0, 1e-5).epsilon, 2)
        6.98
    """

    name: ClassVar[str] = "lifted-curve"

    @property
    def score_repetitions(self) -> Repetitions:
        return self.repetitions

    statistic_claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "this project; the family is that of Xiang, Wang & Wang 2024, algorithm 3",
        protocols=(RandomSearch,),
        assumptions=(
            Assumption.INDEPENDENT_TRIALS,
            Assumption.GAUSSIAN_STATISTIC,
            Assumption.MONOTONE_SCORE,
        ),
    )


@dataclass(frozen=True)
class PooledGaussianCurve(_BestOfRunsCurve):
    """The best of K runs of a Gaussian base by an increasing score, from the scores of all runs.

    Attributes:
        repetitions: distribution of K; text is parsed.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import RankSum
        >>> from audit.repetitions import Fixed
        >>> runs = np.random.default_rng(0).normal(size=(2, 1000))
        >>> found = PooledGaussianCurve(Fixed(2), rule=RankSum())(runs[0], runs[1] + 1.0, 1e-5)
        >>> found.epsilon > 1.0
        True
    """

    name: ClassVar[str] = "pooled-gaussian-curve"

    statistic_claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "this project; the curve is that of Nasr et al. 2023",
        protocols=(RandomSearch,),
        assumptions=(
            Assumption.INDEPENDENT_TRIALS,
            Assumption.RELEASED_SCORE,
            Assumption.GAUSSIAN_STATISTIC,
            Assumption.MONOTONE_SCORE,
        ),
    )


def gaussian_mu(fp_upper: FloatArray, fn_upper: FloatArray, repetitions: Repetitions) -> FloatArray:
    """The mu [n] at which the best of K draws has these error rates; -inf if there is none.

    The best of K draws of N(0, 1) is compared with the best of K draws of N(mu, 1).
    """
    # The best of K has rate y if a single run has the rate s with 1 - phi(1 - s) = y.
    fp_single = repetitions.inverse_survival(fp_upper)
    tp_single = repetitions.inverse_survival(1.0 - fn_upper)
    with np.errstate(invalid="ignore"):
        mu = special.ndtri(tp_single) - special.ndtri(fp_single)
    return np.nan_to_num(mu, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)


def best_of_gaussian_epsilon(mu: float, repetitions: Repetitions, delta: float) -> float:
    """The epsilon of the best of K draws of N(0, 1) against N(mu, 1), rounded down.

    The outputs are rounded to the cells of a grid. Rounding is postprocessing, so the hockey-stick
    divergence can only decrease, whatever the grid. The result is about 1e-4 too small.
    """
    edges = np.linspace(-9.0, 9.0 + mu, _CELLS)
    fp, tn, fn, tp = best_of_gaussian_rates(edges, mu, repetitions)

    def masses(below: FloatArray, above: FloatArray) -> FloatArray:
        # Differences of the smaller tail are accurate. The first cell contains K = 0.
        below = np.concatenate([[0.0], below, [1.0]])
        above = np.concatenate([[1.0], above, [0.0]])
        return np.asarray(np.where(above[1:] < 0.5, -np.diff(above), np.diff(below)))

    without, with_record = masses(tn, fp), masses(fn, tp)

    def excess(epsilon: float) -> float:
        growth = math.exp(epsilon) * (1.0 + _MASS_ALLOWANCE)
        scaled = 1.0 - _MASS_ALLOWANCE
        # Cells with a positive excess form an event, whose probabilities are rounded against the
        # excess.
        forward = np.maximum(scaled * without - growth * with_record, 0.0).sum()
        backward = np.maximum(scaled * with_record - growth * without, 0.0).sum()
        return float(max(forward, backward)) - delta

    low, high = 0.0, 1.0
    if excess(low) <= 0.0:
        return 0.0
    while excess(high) > 0.0 and high < _MAX_EPSILON:
        low, high = high, 2.0 * high
    return safe_root(lambda epsilon: excess(epsilon) <= 0.0, low, high, _EPSILON_TOLERANCE)


def gaussian_canaries_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on epsilon from the t statistic of canaries with independent Gaussian scores.

    Args:
        scores: scores of the canaries, [m]; high if the canary was included. Infinite
            scores prove nothing.
        included: whether each canary was included, [m].
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(2000) < 0.5
        >>> bound = gaussian_canaries_bound(rng.normal(size=2000) + 0.5 * included, included)
        >>> round(bound.epsilon, 2)  # true value 1.99
        1.91
    """
    delta = checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    confidence = check_confidence(confidence)
    values, coins = checked_canaries("scores", scores, included)
    without, with_canary = values[~coins], values[coins]
    mu = mu_lower_limit(without, with_canary, 1.0 - confidence)
    return LowerBound(
        "gaussian-canaries",
        "t",
        best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0,
        float(confidence),
        _T_TEST,
        _T_TEST.validity(default_facts()),
        trials_without=len(without),
        trials_with=len(with_canary),
    )


def has_variance(without: FloatArray, with_canary: FloatArray) -> bool:
    """Whether both sides have a finite mean and a positive variance."""
    return min(len(without), len(with_canary)) >= 2 and all(
        np.isfinite(side).all() and np.ptp(side) > 0.0 for side in (without, with_canary)
    )


def mu_lower_limit(without: FloatArray, with_canary: FloatArray, alpha: float) -> float:
    """The largest mu that the t statistic of both sides refutes with error alpha, or 0."""
    if not has_variance(without, with_canary):
        return 0.0
    n0, n1 = len(without), len(with_canary)
    freedom = n0 + n1 - 2
    root_n = math.sqrt(n0 * n1 / (n0 + n1))
    pooled = math.sqrt((n0 * without.var() + n1 * with_canary.var()) / freedom)
    t = (with_canary.mean() - without.mean()) / pooled * root_n
    if t <= 0.0:
        return 0.0
    variances = 2.0 / freedom * special.gammaincinv(freedom / 2.0, _CELL_EDGES)
    smallest = t * np.sqrt(np.concatenate([[0.0], variances]))

    def possible(mu: float) -> bool:
        # The numerator is independent of the variance V (proposition 15), so P[T >= t] is the mean
        # over V of P[numerator >= t sqrt(V)].
        return float(_CELL_MASSES @ special.ndtr(mu * root_n - smallest)) > alpha

    return 0.0 if possible(0.0) else safe_root(possible, 0.0, _MAX_MU, _MU_TOLERANCE)
