"""Estimators that only the study uses: sequential analyses, and those of other projects."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

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
        bounds = []
        for number, size in enumerate(sizes, 1):
            plan = SequentialPlan(len(sizes) if self.planned else None, number)
            first = Scores(scores.out_scores[:size], scores.in_scores[:size])
            bounds.append(Scan().find(first, delta, plan.share * alpha))
        return replace(max(bounds, key=lambda bound: bound.epsilon), rule=self.rule_name)


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


class PrivacyGuard(Estimator):
    """The empirical epsilon of PrivacyGuard (Meta), with Clopper-Pearson intervals.

    It is the largest value over all thresholds of the same scores, each with two-sided intervals of
    95 %, whatever the confidence asked for. Nothing corrects for the choice of the threshold, so it
    is not a bound at a stated confidence.

    Attributes:
        results: the class `privacy_guard.analysis.mia.mia_results.MIAResults`.
    """

    name: ClassVar[str] = "PrivacyGuard"

    def __init__(self, results: Callable[..., Any]) -> None:
        self.results = results

    @property
    def rule_name(self) -> str:
        return "max over thresholds"

    @property
    def claim(self) -> Claim:
        return Claim(Kind.UNCORRECTED, "PrivacyGuard", assumptions=(Assumption.INDEPENDENT_TRIALS,))

    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        import torch

        sides = (torch.from_numpy(side.copy()) for side in (scores.in_scores, scores.out_scores))
        with np.errstate(all="ignore"):  # it takes logarithms of negative numbers for its log file
            _, _, epsilon = self.results(*sides).compute_acc_auc_ci_epsilon(delta)
        return self.result(max(float(epsilon), 0.0), scores, alpha)


def estimators_of_others() -> list[Estimator]:
    """The estimators of jax_privacy and PrivacyGuard, of those that are installed."""
    estimators: list[Estimator] = []
    with contextlib.suppress(ImportError):
        from jax_privacy import auditing

        estimators += [JaxPrivacy(auditing, rule) for rule in ("bonferroni", "split")]
    with contextlib.suppress(ImportError):
        from privacy_guard.analysis.mia.mia_results import MIAResults

        estimators.append(PrivacyGuard(MIAResults))
    return estimators
