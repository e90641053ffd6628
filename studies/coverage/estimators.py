"""Estimators that only the study uses: sequential analyses, and the bounds of jax_privacy."""

from dataclasses import replace
from types import ModuleType
from typing import ClassVar

from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds import Estimator, LowerBound, Scan, SequentialPlan, doubling_sizes
from audit.lower_bounds.scores import Scores

# The first analysis of a growing audit uses one in _FIRST_ANALYSIS of its trials.
_FIRST_ANALYSIS = 4


class LargestOverAnalyses(Estimator):
    """The largest bound over all analyses of a growing audit.

    It exceeds the true epsilon at least as often as the bound of any rule that stops the audit.

    Attributes:
        planned: whether the number of analyses is known in advance.
    """

    name: ClassVar[str] = "scan"

    def __init__(self, planned: bool) -> None:
        self.planned = planned

    @property
    def rule_name(self) -> str:
        return "planned analyses" if self.planned else "unplanned analyses"

    @property
    def claim(self) -> Claim:
        return Scan().claim

    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        trials = len(scores.out_scores)
        sizes = doubling_sizes(trials, max(trials // _FIRST_ANALYSIS, 1))
        found = []
        for number, size in enumerate(sizes, 1):
            plan = SequentialPlan(len(sizes) if self.planned else None, number)
            first = Scores(scores.out_scores[:size], scores.in_scores[:size])
            found.append(Scan().find(first, delta, plan.share * alpha))
        return replace(max(found, key=lambda bound: bound.epsilon), rule=self.rule_name)


class JaxPrivacy(Estimator):
    """A bound of jax_privacy, with both error ratios of each threshold.

    Attributes:
        auditing: the module `jax_privacy.auditing`.
        rule: "bonferroni" or "split".
    """

    name: ClassVar[str] = "jax_privacy"

    def __init__(self, auditing: ModuleType, rule: str) -> None:
        self.auditing, self.rule = auditing, rule

    @property
    def rule_name(self) -> str:
        return self.rule

    @property
    def claim(self) -> Claim:
        return Claim(Kind.BOUND, "jax_privacy", assumptions=(Assumption.INDEPENDENT_TRIALS,))

    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        auditor = self.auditing.CanaryScoreAuditor(scores.in_scores, scores.out_scores)
        bonferroni = self.rule == "bonferroni"
        strategy = self.auditing.Bonferroni() if bonferroni else self.auditing.Split(seed=0)
        epsilon = auditor.epsilon_clopper_pearson(
            alpha, delta, one_sided=False, threshold_strategy=strategy
        )
        return self.result(float(epsilon), scores, alpha)


def jax_privacy_estimators() -> list[Estimator]:
    """The estimators of jax_privacy; none if it is not installed."""
    try:
        from jax_privacy import auditing
    except ImportError:
        return []
    return [JaxPrivacy(auditing, rule) for rule in ("bonferroni", "split")]
