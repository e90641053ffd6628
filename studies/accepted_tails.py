"""Lower bound for protocols that repeat a run until it lies in one of two tails."""

from dataclasses import dataclass
from typing import ClassVar

from audit.attacks import AcceptedTails
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.families import CurveOfMu
from audit.protocols import RandomStopping, UntilAccepted

# Used instead of mu = 0, at which `AcceptedTails` is not defined.
_MIN_MU = 1e-9


@dataclass(frozen=True)
class AcceptedTailsCurve(CurveOfMu):
    """The output of a protocol that repeats a run until it lies in one of two tails.

    Attributes:
        low: runs below it are accepted, in standard deviations.
        high: runs above it are accepted.
        stop: probability of stopping after a rejected run; an audit scores a protocol that
            released nothing as minus infinity.
        rule: the fixed threshold.

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
        tails = AcceptedTails(max(mu, _MIN_MU), self.low, self.high, self.stop)
        return float(tails.rate_below(self.rule.threshold, mu))

    def exact_epsilon(self, mu: float, delta: float) -> float:
        return AcceptedTails(mu, self.low, self.high, self.stop).epsilon(delta)
