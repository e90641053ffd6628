"""Estimators for families of mechanisms with one unknown parameter, among them Gaussian ones.

They report the largest value of the parameter that the counts refute, which means that the upper
limits of both error rates violate its privacy profile. A profile that is only an upper bound on the
true one is harder to refute, so the result remains valid.

The estimators for Gaussian bases bound mu, and report the epsilon of that mu. They prove more than
`ClopperPearson` from the same counts. The first three differ in whose scores they take and which
protocol the bound describes: single runs that were not tuned, the winners of a tuning, or all runs
of a tuning. The last takes the values of the scores of many canaries in one run.

Canaries of unequal size need no correction (proposition 15 of docs/theory.md), but they must not
interact: if 1,000 canaries share one random size, each with the Gaussian trade-off curve of mu = 1,
the bound exceeds the true epsilon in about a third of all runs.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import (
    ClopperPearson,
    LowerBound,
    ThresholdEstimator,
    check_confidence,
    default_facts,
)
from audit.lower_bounds.scores import (
    ErrorCounts,
    FixedThreshold,
    Split,
    ThresholdRule,
    best_of_gaussian_rates,
    checked_canaries,
    upper_limit,
)
from audit.numerics import FloatArray, safe_root
from audit.orders import SplitOrder
from audit.protocols import RandomSearch
from audit.repetitions import Fixed, Repetitions, parse_repetitions

Profile = Callable[[float], float | FloatArray]
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

# Values of epsilon at which a profile is compared with the limits. More values refute more.
_PROFILE_POINTS = 24
_STRENGTH_TOLERANCE = 1e-3
_MU_TOLERANCE = 1e-9
_MAX_MU = 40.0

# Rounding of the inverse normal and inverse generating functions is about 1e-14.
_MU_ALLOWANCE = 1e-9
# Rounding of the cells' masses in `best_of_gaussian_epsilon`, relative.
_MASS_ALLOWANCE = 1e-9
_EPSILON_TOLERANCE = 1e-6
_CELLS = 2000
# At delta = 0 a Gaussian has no finite epsilon, and the search ends here.
_MAX_EPSILON = 300.0
_MAX_MU_OF_CANARIES = 20.0
_MU_TOLERANCE_OF_CANARIES = 1e-4
# Probabilities at which the distribution of the variance is cut into cells. Each cell uses its
# smallest variance, which increases the p-value by about 1 %.
_CELL_EDGES = special.expit(np.linspace(-40.0, 40.0, 4001))
_CELL_MASSES = np.diff(_CELL_EDGES, prepend=0.0, append=1.0)


def refutes(profile: Profile, fp_upper: float, fn_upper: float) -> bool:
    """Whether limits of both errors refute a profile, from epsilon to delta, in both directions."""
    for rate, other_rate in ((fp_upper, fn_upper), (fn_upper, fp_upper)):
        power = 1.0 - other_rate
        if power <= rate:
            continue
        # Above log(power / rate) the left side of the inequality is negative.
        largest = math.log(power / rate)
        for epsilon in np.linspace(0.0, largest, _PROFILE_POINTS, endpoint=False)[::-1]:
            # At most `profile(epsilon)` is allowed for the event, so one epsilon is enough to
            # refute it.
            if power - math.exp(epsilon) * rate > float(profile(float(epsilon))):
                return True
    return False


def family_bound(
    out_scores: ArrayLike,
    in_scores: ArrayLike,
    family: Callable[[float], Profile],
    epsilon: Callable[[float], float],
    strengths: tuple[float, float],
    assumes: str,
    delta: float = 1e-5,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> LowerBound:
    """Lower bound on epsilon for a protocol of a known family with an unknown parameter.

    Args:
        out_scores: scores [n0] of the trials without the record.
        in_scores: scores [n1] of the trials with the record.
        family: maps the parameter to a privacy profile, which maps epsilon to an upper bound on
            delta; profiles must increase with the parameter.
        epsilon: maps the parameter to the epsilon to report, at `delta` and rounded down.
        strengths: the smallest and the largest value of the parameter to consider.
        assumes: why the family contains the protocol, for the assumptions of the result.
        delta: in [0, 1); it guides the choice of the threshold.
        confidence: in (0, 1).
        threshold: a threshold fixed in advance; without it, the even trials choose one for the odd
            trials.

    Returns:
        The epsilon of the largest value refuted; 0 if not even the smallest is refuted.

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> noise = np.random.default_rng(0).normal(size=(2, 500))
        >>> profiles = lambda mu: GaussianMechanism(mu).delta
        >>> epsilons = lambda mu: GaussianMechanism(mu).epsilon(1e-5)
        >>> out_scores, in_scores = noise[0], noise[1] + 2.0
        >>> found = family_bound(
        ...     out_scores, in_scores, profiles, epsilons, (0.1, 5.0), "Gaussian"
        ... )
        >>> round(found.epsilon, 1)  # true value 10.1
        6.1
    """
    low, high = strengths
    checks.interval("strengths", low, 0.0, high)
    rule: ThresholdRule = Split() if threshold is None else FixedThreshold(threshold)
    errors_bound = ClopperPearson(rule=rule)(out_scores, in_scores, delta, confidence)
    assert errors_bound.false_positives is not None
    assert errors_bound.false_negatives is not None
    alpha = 1.0 - confidence
    # By Bonferroni's inequality, both limits hold with probability at least 1 - alpha.
    fp = float(upper_limit(errors_bound.false_positives, errors_bound.trials_without, alpha / 2.0))
    fn = float(upper_limit(errors_bound.false_negatives, errors_bound.trials_with, alpha / 2.0))
    value = 0.0
    if refutes(family(low), fp, fn):
        while high / low > 1.0 + _STRENGTH_TOLERANCE:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if refutes(family(middle), fp, fn) else (low, middle)
        value = max(epsilon(low), 0.0)
    claim = Claim(
        Kind.BOUND,
        "Nasr et al. 2023, for any family with a profile",
        assumptions=(Assumption.INDEPENDENT_TRIALS,),
        about=(assumes,),
    )
    verdict = claim.validity(default_facts())
    return replace(errors_bound, name="family-curve", epsilon=value, claim=claim, verdict=verdict)


@dataclass(frozen=True, kw_only=True)
class CurveOfMu(ThresholdEstimator):
    """An estimator for outputs whose distribution is known except for mu, at a fixed threshold.

    The rate of false positives is then known, and the false negatives alone bound mu, because
    their rate decreases in mu. Scores are the released x in standard deviations: N(b mu, 1) in a
    single run.
    """

    rule: FixedThreshold

    @abstractmethod
    def rate_below(self, mu: float) -> float:
        """P[output <= threshold] with the record."""

    @abstractmethod
    def exact_epsilon(self, mu: float, delta: float) -> float:
        """The epsilon of the output at mu > 0, rounded down."""

    def lower_limit(self, counts: ErrorCounts, delta: float, alpha: float) -> FloatArray:
        return self.from_limits(
            np.ones(len(counts.false_negatives)),
            upper_limit(counts.false_negatives, counts.trials_with, alpha),
            delta,
        )

    def from_limits(self, fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
        return np.array([self._largest_refuted(float(fn)) for fn in np.asarray(fn_upper)])

    def _largest_refuted(self, fn_upper: float) -> float:
        """The largest mu whose rate below the threshold exceeds the limit."""
        if self.rate_below(0.0) <= fn_upper:
            return 0.0
        return safe_root(lambda mu: fn_upper - self.rate_below(mu), 0.0, _MAX_MU, _MU_TOLERANCE)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return 0.0 if limit <= 0.0 or delta <= 0.0 else self.exact_epsilon(limit, delta)

    def expected(self, mu: float, trials: int, alpha: float) -> float:
        """The bound on mu at the expected number of false negatives."""
        count = np.array([round(trials * self.rate_below(mu))])
        return self._largest_refuted(float(upper_limit(count, trials, alpha)[0]))


@dataclass(frozen=True)
class WorstOrderCurve(CurveOfMu):
    """The output of a tuning under a split order; the parameter is mu.

    The order prefers x > top, the larger the better, and below top the smaller x. The output is
    below t < top if no run is above top and at least one run is below t.

    Attributes:
        repetitions: distribution of K; text is parsed.
        top: where the order splits, in standard deviations.
        rule: the threshold t.

    Example:
        >>> from audit.lower_bounds import FixedThreshold
        >>> from audit.repetitions import parse_repetitions
        >>> WorstOrderCurve(parse_repetitions("tnb:0,0.1"), 2.0, rule=FixedThreshold(1.0)).name
        'worst-order-curve'
    """

    repetitions: Repetitions
    top: float
    name: ClassVar[str] = "worst-order-curve"

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))
        checks.validate(self, "top", checks.interval)

    statistic_claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "this project",
        protocols=(RandomSearch,),
        assumptions=(
            Assumption.INDEPENDENT_TRIALS,
            Assumption.GAUSSIAN_STATISTIC,
            Assumption.SPLIT_SCORE,
        ),
    )

    def rate_below(self, mu: float) -> float:
        above, below = SplitOrder(self.top).tails(min(self.rule.threshold, self.top), mu)
        above_or_below = self.repetitions.phi_survival(np.minimum(above + below, 1.0))
        return float(above_or_below - self.repetitions.phi_survival(above))

    def exact_epsilon(self, mu: float, delta: float) -> float:
        from audit.attacks import TunedOrder

        return TunedOrder(mu, self.repetitions, SplitOrder(self.top)).epsilon(delta)


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

    return (
        0.0
        if possible(0.0)
        else safe_root(possible, 0.0, _MAX_MU_OF_CANARIES, _MU_TOLERANCE_OF_CANARIES)
    )
