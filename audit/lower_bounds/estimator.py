"""What every estimator is: scores of a finished game in, a lower bound with its claim out."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from numpy.typing import ArrayLike

from audit import checks
from audit.claims import Assumption, Claim, Facts, Kind, facts_of_tuning
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.rules import DEFAULT_RULE, Statistic, ThresholdRule, TradeOffStatistic
from audit.lower_bounds.scores import Scores
from audit.lower_bounds.sequential_plan import SequentialPlan, as_looks
from audit.protocols import RandomSearch
from audit.repetitions import Fixed, Repetitions

DIRECTIONS = ("higher", "lower", "both")
# The recursions leave out tails of 1e-10 and add them to the error.
_SMALLEST_ERROR = 1e-9


@dataclass(frozen=True)
class Finding:
    """What an estimator finds in one direction: epsilon, and the threshold and counts behind it."""

    epsilon: float
    threshold: float | None
    false_positives: int | None
    false_negatives: int | None
    trials_without: int
    trials_with: int


def facts_as_told(repetitions: Repetitions) -> Facts:
    """The facts of a game of which only the law of K is told: the rest is taken as assumed."""
    others = [condition for condition in Assumption if condition is not Assumption.NOT_TUNED]
    return facts_of_tuning(RandomSearch(repetitions), *others)


def check_confidence(confidence: float) -> None:
    """Raises ValueError where a confidence is none, or closer to 1 than the arithmetic goes."""
    checks.interval("confidence", confidence, 0.0, 1.0)
    if 1.0 - confidence < _SMALLEST_ERROR:
        raise ValueError(
            f"confidence must be at most 1 - {_SMALLEST_ERROR:g}, beyond which it is beyond the "
            f"arithmetic, got {confidence!r}"
        )


class Estimator(ABC):
    """A way to a lower bound on epsilon. Frozen: equal estimators give equal bounds.

    Attributes:
        name: in keys of bounds.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import Scan
        >>> scan: Estimator = Scan()
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(scan(scores, scores + 2.0, 1e-5).epsilon, 2)
        4.45
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def rule_name(self) -> str:
        """How thresholds are dealt with, in one word."""

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """What the bound needs to be true."""

    @abstractmethod
    def find(self, scores: Scores, delta: float, alpha: float) -> Finding:
        """The bound with error alpha, if high scores speak for the record."""

    @property
    def key(self) -> str:
        """Name and rule as one word: the key of the bounds it gives."""
        return f"{self.name}:{self.rule_name}"

    @property
    def mirrored(self) -> "Estimator":
        """The estimator for the game with all scores negated."""
        return self

    def __call__(
        self,
        scores_without: ArrayLike,
        scores_with: ArrayLike,
        delta: float = 1e-5,
        confidence: float = 0.95,
        direction: str = "higher",
        known: Facts | None = None,
        looks: SequentialPlan | int | None = None,
    ) -> LowerBound:
        """The lower bound that these scores prove.

        Args:
            scores_without: scores [n0] of the trials without the record.
            scores_with: scores [n1] of the trials with it.
            delta: in [0, 1).
            confidence: in (0, 1).
            direction: "higher" if high scores speak for the record, "lower" if low ones do, "both"
                to look both ways and pay for it.
            known: what is true of the game; without it all that the claim needs is taken as true.
            looks: which look this is of a game that is looked at more than once, or how many such
                looks are planned.

        Raises:
            ValueError: a parameter is out of its range, or a score is NaN.
        """
        scores = Scores.of(scores_without, scores_with)
        return self.bound(scores, delta, confidence, direction, known, looks)

    def bound(
        self,
        scores: Scores,
        delta: float,
        confidence: float,
        direction: str = "higher",
        known: Facts | None = None,
        looks: SequentialPlan | int | None = None,
    ) -> LowerBound:
        """As the call, from scores that are checked already: what is computed of them is kept."""
        checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
        check_confidence(confidence)
        direction = checks.one_of("direction", direction, DIRECTIONS)
        # Looking both ways halves the error of each.
        ways = [way for way in ("higher", "lower") if direction in (way, "both")]
        alpha = (1.0 - float(confidence)) * as_looks(looks).share / len(ways)
        found: list[tuple[Finding, str]] = []
        for way in ways:
            if way == "higher":
                found.append((self.find(scores, float(delta), alpha), way))
            else:
                mirrored = self.mirrored.find(scores.mirrored, float(delta), alpha)
                if mirrored.threshold is not None:
                    mirrored = replace(mirrored, threshold=-mirrored.threshold)
                found.append((mirrored, way))
        best, way = max(found, key=lambda pair: pair[0].epsilon)
        threshold = best.threshold
        return LowerBound(
            name=self.name,
            rule=self.rule_name,
            epsilon=best.epsilon,
            confidence=float(confidence),
            claim=self.claim,
            verdict=self.claim.validity(facts_as_told(Fixed(1)) if known is None else known),
            threshold=None if threshold is None or math.isnan(threshold) else threshold,
            direction=way,
            false_positives=best.false_positives,
            false_negatives=best.false_negatives,
            trials_without=best.trials_without,
            trials_with=best.trials_with,
        )


@dataclass(frozen=True, kw_only=True)
class ThresholdEstimator(Estimator, Statistic):
    """A statistic of the counts at a threshold, and the rule that chooses the threshold.

    Attributes:
        rule: how the threshold is chosen.
    """

    rule: ThresholdRule = DEFAULT_RULE

    def __post_init__(self) -> None:
        if self.rule.trade_off_only and not isinstance(self, TradeOffStatistic):
            raise ValueError(
                f"rule must not go by limits of the error rates for {self.name}, got {self.rule!r}"
            )

    @property
    @abstractmethod
    def statistic_claim(self) -> Claim:
        """What the statistic needs to be true, whatever the rule."""

    @abstractmethod
    def epsilon_at(self, limit: float, delta: float) -> float:
        """The epsilon of that value of the parameter, rounded down; at least 0."""

    @property
    def rule_name(self) -> str:
        return self.rule.name

    @property
    def claim(self) -> Claim:
        claim = self.statistic_claim
        kind = claim.kind
        if kind is Kind.BOUND and not self.rule.corrected:
            kind = Kind.UNCORRECTED
        return replace(claim, kind=kind, about=(*claim.about, self.rule.words))

    @property
    def mirrored(self) -> "Estimator":
        return replace(self, rule=self.rule.mirrored)

    def find(self, scores: Scores, delta: float, alpha: float) -> Finding:
        found = self.rule.choose(scores, self, delta, alpha)
        return Finding(
            self.epsilon_at(found.limit, delta),
            found.threshold,
            found.false_positives,
            found.false_negatives,
            found.trials_without,
            found.trials_with,
        )
