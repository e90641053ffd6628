"""Families of mechanisms with one unknown parameter: the largest value that the counts refute.

A family is anything that has a privacy profile for every value of its parameter: DP-SGD with
Poisson sampling by its privacy-loss distribution (`lambda s: DpSgd(1 / s, steps, rate).delta`), or
a tuning with any score by the region bound (`lambda mu: RegionCurve(GaussianMechanism(mu).pairs[0],
K).delta`). A value is refuted if the upper limits of both error rates lie where its profile does
not allow them: 1 - FN - e^eps FP > delta(eps) for some epsilon, or the same with FP and FN
exchanged. Where the profile is only an upper bound on the truth, refuting it takes more evidence,
never less.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit import repetitions as laws
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.counting import ClopperPearson
from audit.lower_bounds.estimator import ThresholdEstimator, check_confidence, facts_as_told
from audit.lower_bounds.rates import Limit, upper_limit
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.rules import (
    ErrorCounts,
    FixedThreshold,
    Split,
    ThresholdRule,
    TradeOffStatistic,
)
from audit.lower_bounds.scores import Scores
from audit.numerics import safe_root
from audit.orders import SplitOrder
from audit.protocols import RandomSearch, RandomStopping, UntilAccepted
from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]
Profile = Callable[[float], float | Array]

_EPSILONS = 24


def refutes(profile: Profile, fp_upper: float, fn_upper: float) -> bool:
    """Whether limits of both error rates refute a profile, epsilon -> delta, of both directions."""
    for few, other in ((fp_upper, fn_upper), (fn_upper, fp_upper)):
        room = 1.0 - other
        if room <= few:
            continue
        # Beyond log(room/few) nothing is left to refute; the evidence is below it.
        for epsilon in np.linspace(0.0, math.log(room / few), _EPSILONS, endpoint=False)[::-1]:
            if room - math.exp(epsilon) * few > float(profile(float(epsilon))):
                return True
    return False


def family_bound(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    family: Callable[[float], Profile],
    epsilon: Callable[[float], float],
    strengths: tuple[float, float],
    assumes: str,
    delta: float = 1e-5,
    confidence: float = 0.95,
    threshold: float | None = None,
    name: str = "family-curve",
    source: str = "Nasr et al. 2023, for any family with a profile",
) -> LowerBound:
    """Lower bound on epsilon for a protocol of a known family and unknown parameter.

    Args:
        scores_without: scores [n0] of the trials without the record.
        scores_with: scores [n1] of the trials with it.
        family: the privacy profile (epsilon to an upper bound on delta) for every value of the
            parameter, growing with it.
        epsilon: what to report for a value of the parameter, at `delta`; rounded down.
        strengths: the smallest and largest value to consider.
        assumes: what has to be true for the family to contain the protocol.
        delta: in (0, 1), for the search of a threshold.
        confidence: in (0, 1).
        threshold: fixed in advance; without it the even trials choose one for the odd.
        name: of the estimator, in the result.
        source: of the family.

    Returns:
        The epsilon of the largest value refuted; 0 if not even the smallest is.

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> noise = np.random.default_rng(0).normal(size=(2, 500))
        >>> profiles = lambda mu: GaussianMechanism(mu).delta
        >>> epsilons = lambda mu: GaussianMechanism(mu).epsilon(1e-5)
        >>> without, added = noise[0], noise[1] + 2.0
        >>> found = family_bound(without, added, profiles, epsilons, (0.1, 5.0), "Gaussian")
        >>> round(found.epsilon, 1)  # of 10.1
        6.1
    """
    checks.interval("delta", delta, 0.0, 1.0)
    check_confidence(confidence)
    low, high = strengths
    checks.interval("strengths", low, 0.0, high)
    scores, alpha = Scores.of(scores_without, scores_with), 1.0 - confidence
    rule: ThresholdRule = Split() if threshold is None else FixedThreshold(threshold)
    found = rule.choose(scores, ClopperPearson(), delta, alpha)
    assert found.false_positives is not None
    assert found.false_negatives is not None
    fp = float(upper_limit(found.false_positives, found.trials_without, alpha / 2.0))
    fn = float(upper_limit(found.false_negatives, found.trials_with, alpha / 2.0))
    value = 0.0
    if refutes(family(low), fp, fn):
        while high / low > 1.0 + 1e-3:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if refutes(family(middle), fp, fn) else (low, middle)
        value = max(epsilon(low), 0.0)
    claim = Claim(
        Kind.BOUND, source, assumptions=(Assumption.INDEPENDENT_TRIALS,), about=(assumes,)
    )
    return LowerBound(
        name=name,
        rule=rule.name,
        epsilon=value,
        confidence=confidence,
        claim=claim,
        verdict=claim.validity(facts_as_told(Fixed(1))),
        threshold=found.threshold,
        false_positives=found.false_positives,
        false_negatives=found.false_negatives,
        trials_without=found.trials_without,
        trials_with=found.trials_with,
    )


@dataclass(frozen=True, kw_only=True)
class _CurveOfMu(ThresholdEstimator, TradeOffStatistic):
    """An output whose law is known but for mu, at a threshold fixed in advance.

    What it does without the record is then known, and the false negatives alone bound mu: their
    rate falls as mu grows. Scores are the released x, in standard deviations: N(b mu, 1) in one
    run.

    Attributes:
        rule: the threshold.
    """

    rule: FixedThreshold

    @abstractmethod
    def rate_below(self, mu: float) -> float:
        """P[output <= threshold] with the record."""

    @abstractmethod
    def attained(self, mu: float, delta: float) -> float:
        """The epsilon of the output at mu > 0, rounded down."""

    def lower_limit(
        self, counts: ErrorCounts, delta: float, alpha: float, limit: Limit = upper_limit
    ) -> Array:
        return self.from_limits(
            np.ones(len(counts.false_negatives)),
            limit(counts.false_negatives, counts.trials_with, alpha),
            delta,
        )

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        return np.array([self._refuted(float(fn)) for fn in np.asarray(fn_upper)])

    def _refuted(self, fn_upper: float) -> float:
        """The largest mu whose rate below the threshold is above the limit."""
        if self.rate_below(0.0) <= fn_upper:
            return 0.0
        return safe_root(lambda mu: fn_upper - self.rate_below(mu), 0.0, 40.0, 1e-9)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return 0.0 if limit <= 0.0 or delta <= 0.0 else self.attained(limit, delta)

    def expected(self, mu: float, trials: int, alpha: float) -> float:
        """The bound on mu if with the record the output comes as often as expected."""
        count = np.array([round(trials * self.rate_below(mu))])
        return self._refuted(float(upper_limit(count, trials, alpha)[0]))


@dataclass(frozen=True)
class WorstOrderCurve(_CurveOfMu):
    """The tuned output under a split order; the parameter is mu.

    The order prefers x > top, the larger the better, and below it the smaller x. The output falls
    below t < top if no run is above top and one is below t.

    Attributes:
        repetitions: law of K, also as text.
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
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))
        object.__setattr__(self, "top", checks.interval("top", self.top))
        super().__post_init__()

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
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
        beaten_or_below = self.repetitions.phi_survival(np.minimum(above + below, 1.0))
        return float(beaten_or_below - self.repetitions.phi_survival(above))

    def attained(self, mu: float, delta: float) -> float:
        from audit.upper_bounds import TunedOrder

        return TunedOrder(mu, self.repetitions, SplitOrder(self.top)).epsilon(delta)


@dataclass(frozen=True)
class AcceptedTailsCurve(_CurveOfMu):
    """What is released where a run is repeated until it is in one of two tails.

    Attributes:
        low: below it a run is accepted, in standard deviations.
        high: above it a run is accepted.
        stop: chance to stop after a run that is not, 0 where one goes on; to release nothing is a
            score of minus infinity.
        rule: the threshold.

    Example:
        >>> from audit.lower_bounds import FixedThreshold
        >>> AcceptedTailsCurve(-2.0, 2.0, rule=FixedThreshold(1.0)).name
        'accepted-tails-curve'
    """

    low: float
    high: float
    stop: float = 0.0
    name: ClassVar[str] = "accepted-tails-curve"

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project",
            protocols=(UntilAccepted, RandomStopping),
            assumptions=(Assumption.INDEPENDENT_TRIALS, Assumption.GAUSSIAN_STATISTIC),
            about=(f"accepted below {self.low:g} and above {self.high:g}",),
        )

    def rate_below(self, mu: float) -> float:
        from audit.upper_bounds import AcceptedTails

        tails = AcceptedTails(max(mu, 1e-9), self.low, self.high, self.stop)
        return float(tails.rate_below(self.rule.threshold, mu))

    def attained(self, mu: float, delta: float) -> float:
        from audit.upper_bounds import AcceptedTails

        return AcceptedTails(mu, self.low, self.high, self.stop).epsilon(delta)
