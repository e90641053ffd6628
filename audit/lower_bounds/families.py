"""Estimators for families of mechanisms with one unknown parameter.

They report the largest value of the parameter that the counts refute, which means that the upper
limits of both error rates violate its privacy profile. A profile that is only an upper bound on the
true one is harder to refute, so the result remains valid.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.clopper_pearson import ClopperPearson
from audit.lower_bounds.estimator import LowerBound, ThresholdEstimator, default_facts
from audit.lower_bounds.rules import ErrorCounts, FixedThreshold, Split, ThresholdRule, upper_limit
from audit.numerics import FloatArray, safe_root
from audit.orders import SplitOrder
from audit.protocols import RandomSearch
from audit.repetitions import Repetitions, parse_repetitions

Profile = Callable[[float], float | FloatArray]

# Values of epsilon at which a profile is compared with the limits. More values refute more.
_PROFILE_POINTS = 24
_STRENGTH_TOLERANCE = 1e-3
_MU_TOLERANCE = 1e-9
_MAX_MU = 40.0


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
