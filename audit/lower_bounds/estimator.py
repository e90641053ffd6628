"""The interface of the estimators, and `ClopperPearson`, which assumes only differential privacy.

An estimator turns the scores of a finished audit into a lower bound.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.claims import Assumption, Claim, Facts, Kind, Validity, facts_of_tuning
from audit.errors import InvalidInput
from audit.lower_bounds.scores import (
    DEFAULT_RULE,
    Scores,
    SequentialPlan,
    Statistic,
    ThresholdRule,
    as_plan,
)
from audit.numerics import QUANTILE_ACCURACY, FloatArray, format_places
from audit.protocols import Protocol, RandomSearch
from audit.repetitions import Fixed


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon, with its assumptions and the counts behind it.

    Attributes:
        name: the estimator, for instance "clopper-pearson".
        rule: how the threshold was chosen, for instance "split".
        epsilon: the bound, at least 0; rounding errors can only make it smaller.
        confidence: probability, before the audit, that the bound does not exceed the true epsilon.
        claim: the assumptions of the bound.
        verdict: whether the bound is valid for this audit.
        threshold: the threshold behind the bound, on the scale of the scores; None if there is no
            single threshold, or no score to place it at.
        direction: "higher" if scores above the threshold indicate the record, else "lower".
        false_positives: trials without the record on the side that indicates it.
        false_negatives: trials with the record on the other side.
        trials_without: number of trials without the record that were counted.
        trials_with: number of trials with the record that were counted.

    Example:
        >>> from audit.lower_bounds import lower_bound
        >>> bound = lower_bound(out_scores=range(500), in_scores=range(400, 900), delta=1e-5)
        >>> print(str(bound).partition(": ")[0])
        epsilon >= 4.612 with 0.95 confidence by scan (valid)
    """

    name: str
    rule: str
    epsilon: float
    confidence: float
    claim: Claim
    verdict: Validity
    threshold: float | None = None
    direction: str = "higher"
    false_positives: int | None = None
    false_negatives: int | None = None
    trials_without: int = 0
    trials_with: int = 0

    def __str__(self) -> str:
        epsilon = format_places(self.epsilon, up=False)
        return (
            f"epsilon >= {epsilon} with {self.confidence:g} confidence by {self.name} "
            f"({self.label}): {self.assumes}"
        )

    @property
    def key(self) -> str:
        """Estimator and rule as one word, unique in `all_lower_bounds`."""
        return f"{self.name}:{self.rule}"

    @property
    def valid(self) -> bool:
        """Whether the confidence holds for this audit, as far as the known facts show."""
        return self.verdict.valid

    @property
    def label(self) -> str:
        """Status of the bound in a few words, such as "valid" or "uncorrected"."""
        return self.verdict.label

    @property
    def assumes(self) -> str:
        """The assumptions, in one line."""
        return self.claim.words

    @property
    def source(self) -> str:
        """Paper and theorem."""
        return self.claim.source

    def as_dict(self) -> dict[str, Any]:
        """Every field and property as a plain value, by name: one row of a table."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        del row["claim"], row["verdict"]
        properties = ("key", "valid", "label", "assumes", "source")
        return {**row, **{name: getattr(self, name) for name in properties}}


DIRECTIONS = ("higher", "lower", "both")
# The recursions omit tails of 1e-10 and add them to the error.
_MIN_ALPHA = 1e-9
_NOT_TUNED = RandomSearch(Fixed(1))


def default_facts(protocol: Protocol = _NOT_TUNED) -> Facts:
    """The facts of an audit if only its protocol is given: all other assumptions count as true."""
    assumptions = [
        assumption for assumption in Assumption if assumption is not Assumption.NOT_TUNED
    ]
    return facts_of_tuning(protocol, *assumptions)


def check_confidence(confidence: float) -> float:
    """Returns the confidence; refuses one outside (0, 1) or too close to 1 for the arithmetic."""
    confidence = checks.interval("confidence", confidence, 0.0, 1.0)
    if 1.0 - confidence < _MIN_ALPHA:
        raise InvalidInput(
            f"confidence must be at most 1 - {_MIN_ALPHA:g}, the limit of the arithmetic, got "
            f"{confidence!r}"
        )
    return confidence


class Estimator(ABC):
    """A method that computes a lower bound on epsilon; equal estimators give equal bounds.

    Attributes:
        name: part of the key of a bound.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import Scan
        >>> scan: Estimator = Scan()
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(scan(out_scores=scores, in_scores=scores + 2.0, delta=1e-5).epsilon, 2)
        4.45
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def rule_name(self) -> str:
        """How thresholds are chosen, in one word."""

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """The assumptions of the bound."""

    @abstractmethod
    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        """The lower bound with error alpha, if high scores indicate the record."""

    def result(
        self,
        epsilon: float,
        scores: Scores,
        alpha: float,
        threshold: float | None = None,
        errors: tuple[int, int] | None = None,
    ) -> LowerBound:
        """A lower bound with error alpha, with the numbers of false positives and negatives."""
        fp, fn = (None, None) if errors is None else errors
        return LowerBound(
            name=self.name,
            rule=self.rule_name,
            epsilon=epsilon,
            confidence=1.0 - alpha,
            claim=self.claim,
            verdict=self.claim.validity(default_facts()),
            threshold=threshold,
            false_positives=fp,
            false_negatives=fn,
            trials_without=len(scores.out_scores),
            trials_with=len(scores.in_scores),
        )

    @property
    def key(self) -> str:
        """Name and rule as one word, the key of this estimator's bounds."""
        return f"{self.name}:{self.rule_name}"

    @property
    def mirrored(self) -> "Estimator":
        """The estimator for negated scores."""
        return self

    def __call__(
        self,
        out_scores: ArrayLike,
        in_scores: ArrayLike,
        delta: float = 1e-5,
        confidence: float = 0.95,
        direction: str = "higher",
        known: Facts | None = None,
        plan: SequentialPlan | int | None = None,
    ) -> LowerBound:
        """The lower bound that these scores prove.

        Args:
            out_scores: scores [n0] of the trials without the record.
            in_scores: scores [n1] of the trials with the record.
            delta: in [0, 1).
            confidence: in (0, 1).
            direction: "higher" if high scores indicate the record, "lower" if low scores do,
                "both" to test both directions with half of the error each.
            known: the known facts about the audit; without them all assumptions count as true.
            plan: the plan, if the audit is analysed more than once; an integer is the number of
                planned analyses.

        Raises:
            InvalidInput: a parameter is out of its range, or a score is NaN.
        """
        scores = Scores.of(out_scores, in_scores)
        return self.bound(scores, delta, confidence, direction, known, plan)

    def bound(
        self,
        scores: Scores,
        delta: float,
        confidence: float,
        direction: str = "higher",
        known: Facts | None = None,
        plan: SequentialPlan | int | None = None,
    ) -> LowerBound:
        """The same for validated scores, so that several estimators share their sorted arrays."""
        delta = checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
        confidence = check_confidence(confidence)
        direction = checks.one_of("direction", direction, DIRECTIONS)
        ways = [way for way in ("higher", "lower") if direction in (way, "both")]
        # Bonferroni's inequality over the planned analyses and the directions.
        alpha = (1.0 - float(confidence)) * as_plan(plan).share / len(ways)
        candidates = []
        for way in ways:
            if way == "higher":
                candidates.append(self.find(scores, float(delta), alpha))
            else:
                mirrored = self.mirrored.find(scores.mirrored, float(delta), alpha)
                threshold = None if mirrored.threshold is None else -mirrored.threshold
                candidates.append(replace(mirrored, threshold=threshold, direction=way))
        best = max(candidates, key=lambda bound: bound.epsilon)
        verdict = best.verdict if known is None else best.claim.validity(known)
        return replace(best, confidence=float(confidence), verdict=verdict)


@dataclass(frozen=True, kw_only=True)
class ThresholdEstimator(Estimator, Statistic):
    """A statistic of the counts at a threshold, with the rule that chooses the threshold."""

    rule: ThresholdRule = DEFAULT_RULE

    @property
    @abstractmethod
    def statistic_claim(self) -> Claim:
        """The assumptions of the statistic under any rule."""

    @abstractmethod
    def epsilon_at(self, limit: float, delta: float) -> float:
        """The epsilon of a value of the statistic's parameter, rounded down; at least 0."""

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

    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        limit, threshold, counted = self.rule.choose(scores, self, delta, alpha)
        errors = None
        if threshold is not None:
            at = np.array([threshold])
            errors = int(counted.false_positives(at)[0]), int(counted.false_negatives(at)[0])
        return self.result(self.epsilon_at(limit, delta), counted, alpha, threshold, errors)


def epsilon_from_limits(fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
    """max(log((1-delta-FP)/FN), log((1-delta-FN)/FP), 0) (Xiang, Wang & Wang 2024, equation 4)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # Privacy bounds the event "score > t" by 1 - FN <= e^eps FP + delta, and its complement by
        # 1 - FP <= e^eps FN + delta.
        by_fn = np.log(np.maximum(1.0 - delta - fp_upper, 0.0)) - np.log(fn_upper)
        by_fp = np.log(np.maximum(1.0 - delta - fn_upper, 0.0)) - np.log(fp_upper)
    return np.maximum(np.nan_to_num(np.maximum(by_fn, by_fp), nan=0.0), 0.0)


@dataclass(frozen=True)
class ClopperPearson(ThresholdEstimator):
    """Lower bound for any mechanism, by exact limits of both error rates.

    Example:
        >>> out_scores, in_scores = range(100), range(90, 190)
        >>> round(ClopperPearson()(out_scores, in_scores).epsilon, 2)
        2.36
    """

    name: ClassVar[str] = "clopper-pearson"

    statistic_claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "Clopper & Pearson 1934; Xiang, Wang & Wang 2024, eq. 4",
        assumptions=(Assumption.INDEPENDENT_TRIALS,),
    )

    def from_limits(self, fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
        return epsilon_from_limits(fp_upper, fn_upper, delta)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit * (1.0 - QUANTILE_ACCURACY), 0.0)
