"""What a check reports: findings, tested premises, notes, and which statistical findings stand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from audit.loop.explanations import explain, explain_test
from audit.loop.finding_kinds import EXPLAINED_BY_RANDOM_GRADIENTS, KINDS
from audit.loop.findings import Finding
from audit.loop.premises.noise import TestResult

FAMILY_ERROR = 1e-5
"""Probability that a statistical test of one check reports a correct loop, over all its tests."""
SHORTFALL = 0.01
"""A shortfall of the noise that is smaller than this is not reported."""
_POWER = 0.8
_OF_COUPLED_RUNS = ("contribution", "noise", "batches", "released numbers")
Words = Callable[[TestResult], Finding]
"""Puts a significant test into words."""


def two_sample_p_value(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """An upper bound on the p-value of the test of Kolmogorov and Smirnov for samples of one size.

    With n values in each sample, the largest one-sided distance of the empirical distribution
    functions is at least h/n with probability C(2n, n+h) / C(2n, n) (Gnedenko & Korolyuk 1951, by
    reflection of paths). Twice that bounds the two-sided p-value. Equal values only lower the
    distance, so that the bound also holds for whole numbers.

    Args:
        ours: the first sample.
        theirs: the second sample; of a longer sample, the first values are compared.

    Example:
        >>> two_sample_p_value([1, 2, 3], [4, 5, 6])
        0.1
        >>> two_sample_p_value([1, 2, 3], [1, 2, 3])
        1.0
    """
    n = min(len(ours), len(theirs))
    if n == 0:
        return 1.0
    our_values, their_values = (
        np.sort(np.asarray(values[:n], dtype=float)) for values in (ours, theirs)
    )
    all_values = np.concatenate([our_values, their_values])
    above = np.searchsorted(our_values, all_values, side="right")
    below = np.searchsorted(their_values, all_values, side="right")
    h = int(np.abs(above - below).max())
    return min(1.0, 2 * math.comb(2 * n, n + h) / math.comb(2 * n, n))


@dataclass
class Verdicts:
    """What the tests of one check report, in the order in which they ran.

    Only the tests write here, and no test reads what another reported, but where one mistake would
    be reported twice.

    Attributes:
        findings: broken premises.
        tested: names of the premises that were tested.
        untested: the reason for each premise that was not tested.
        notes: further remarks for the user.
        measured: measured numbers by name.
        random_gradients: whether a record's own gradient differs between runs.

    Example:
        >>> verdicts = Verdicts()
        >>> verdicts.collect(TestResult(0.4, "correlated steps", {}))
        >>> verdicts.judge()
        >>> verdicts.findings
        []
    """

    findings: list[Finding] = field(default_factory=list)
    tested: list[str] = field(default_factory=list)
    untested: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    random_gradients: bool = False
    _evidence: list[tuple[TestResult, Words]] = field(default_factory=list)
    _scale: tuple[float, int] | None = None

    def of_later_steps(self) -> "Verdicts":
        """Verdicts on further steps: the same findings, but their own reasons and measurements."""
        return replace(self, untested={}, measured={}, random_gradients=False, _scale=None)

    def has(self, kind: str) -> bool:
        """Whether a finding of this kind was reported."""
        return any(finding.kind == kind for finding in self.findings)

    def report_steps(self, one: int, other: int) -> None:
        """Reports once that the number of steps depends on the record."""
        if not self.has("number of steps"):
            self.findings.append(explain("number of steps", one=one, other=other))

    def cannot_test(self, reason: str, premises: Sequence[str] = _OF_COUPLED_RUNS) -> None:
        """Notes why some premises are not tested."""
        self.untested |= dict.fromkeys(premises, reason)

    def withdraw(self, findings: Sequence[Finding], reason: str) -> None:
        """Withdraws findings that may have a harmless cause, and the verdict on their premises."""
        withdrawn = {"contribution", *(finding.premise for finding in findings)}
        self.findings[:] = [finding for finding in self.findings if finding not in findings]
        self.tested[:] = [premise for premise in self.tested if premise not in withdrawn]
        self.cannot_test(reason, sorted(withdrawn))

    def collect(self, *tests: TestResult, words: Words = explain_test) -> None:
        """Keeps statistical tests, and the function that words a finding if one is significant."""
        self._evidence += [(test, words) for test in tests]

    def scale_was_tested(self, degrees: float, coordinates: int) -> None:
        """Notes the test of the noise's scale, whose power depends on the number of all tests.

        Args:
            degrees: degrees of freedom of the test, over all steps and tensors.
            coordinates: number of steps and tensors for which each kind of test is made.
        """
        self._scale = degrees, coordinates

    def judge(self) -> None:
        """Reports the statistical findings that survive the correction for many tests, by rank."""
        if not self._evidence:
            return
        # Some tests are collected only if their numbers look suspicious. So a kind that was not
        # collected counts as a test, too: it might have been.
        not_collected = len(KINDS.keys() - {test.kind for test, _ in self._evidence})
        if self._scale is not None:
            degrees, coordinates = self._scale
            tests = sum(test.kind != "size" for test, _ in self._evidence) + 1 + not_collected
            self.measured["detectable noise scale"] = detectable_scale(degrees, tests * coordinates)
        significant_findings: dict[str, Finding] = {}
        # Holm's method holds for dependent tests, so that no test has to know the others.
        p_values = [test.p_value for test, _ in self._evidence] + [1.0] * not_collected
        for index in significant(p_values, FAMILY_ERROR):
            test, words = self._evidence[index]
            if test.matters and test.kind not in significant_findings:
                significant_findings[test.kind] = words(test)
        self._add(self._unexplained(significant_findings))
        # Other mistakes affect the number of records.
        self.findings.sort(key=lambda finding: finding.rank)

    def _unexplained(self, by_kind: dict[str, Finding]) -> dict[str, Finding]:
        """The statistical findings that no other finding explains."""
        # Findings about single declared values are no kinds of their own, and explain no other.
        explained = {kind for cause in by_kind if cause in KINDS for kind in KINDS[cause].explains}
        if self.random_gradients and "size" in by_kind:
            explained |= set(EXPLAINED_BY_RANDOM_GRADIENTS)
        if self.has("number of steps"):
            explained.add("number of steps")
        unexplained = {kind: finding for kind, finding in by_kind.items() if kind not in explained}
        if len(unexplained) + len(self.findings) > 1:
            unexplained.pop("one more record", None)  # it assumes noise and batches as accounted
        return unexplained

    def _add(self, by_kind: dict[str, Finding]) -> None:
        """Adds statistical findings; the one that may cause the others comes first."""
        factors = [
            float(finding.numbers["factor"])
            for finding in self.findings
            if "factor" in finding.numbers
        ]
        cause = None
        if "influence" in by_kind:
            cause = by_kind.pop("influence")
        elif factors and "size" in by_kind:
            # A contribution that varies by a factor between batches does not explain a larger one.
            if _shortfall(by_kind["size"]) > max(factors):
                cause = by_kind.pop("size")
            else:
                by_kind["size"] = _explained(by_kind["size"])
        all_findings = [*self.findings, *by_kind.values()]
        self.findings[:] = (
            all_findings
            if cause is None
            else [cause, *(_explained(finding) for finding in all_findings)]
        )


def _shortfall(finding: Finding) -> float:
    """How many times the noise is smaller than accounted for."""
    effective, accounted = (
        float(finding.numbers[f"{name} noise multiplier"]) for name in ("effective", "accounted")
    )
    return accounted / max(effective, 1e-300)


def _explained(finding: Finding) -> Finding:
    return replace(
        finding, cause=f"An earlier finding may explain this. Otherwise: {finding.cause}"
    )


def detectable_scale(degrees: float, tests: int) -> float:
    """The largest scale of the noise that its test reports with 80 % probability.

    Args:
        degrees: degrees of freedom of the sum of squares.
        tests: number of tests that share the error `FAMILY_ERROR`.

    Returns:
        A share of the required scale.

    Example:
        >>> round(detectable_scale(10_000.0, 500), 3)
        0.956
    """
    usual = stats.chi2.ppf(_POWER, degrees)
    significant_at = float(np.sqrt(stats.chi2.ppf(FAMILY_ERROR / tests, degrees) / usual))
    return min(significant_at, (1 - SHORTFALL) * float(np.sqrt(degrees / usual)))


def significant(p_values: Sequence[float], alpha: float) -> list[int]:
    """Places of the p-values that Holm's method rejects, in ascending order of the p-values.

    Args:
        p_values: p-values of the tests, which may be dependent.
        alpha: the probability that any true hypothesis is rejected.

    Example:
        >>> significant([0.04, 0.5, 0.01], 0.05)
        [2]
    """
    order = np.argsort(p_values, kind="stable")
    # Holm's method rejects ascending p-values as long as the k-th of m is at most alpha / (m - k).
    limits = alpha / np.arange(len(p_values), 0, -1)
    accepted = np.flatnonzero(np.asarray(p_values)[order] > limits)
    return [int(place) for place in order[: accepted[0] if len(accepted) else len(order)]]
