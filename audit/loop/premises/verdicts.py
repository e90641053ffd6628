"""What a check reports: findings in words, tested premises, notes, and which findings stand."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from audit.loop.finding_kinds import (
    ALL_STEPS,
    CARRIED,
    EXPLAINED_BY_RANDOM_GRADIENTS,
    KINDS,
    OTHERS_CHANGE,
)
from audit.loop.findings import Finding
from audit.loop.premises.noise import TestResult

_MAX_NAMES = 4
# Relative rounding of a contribution that is a whole multiple of another.
_WHOLE = 1e-3
_ALLOWED = {
    "depends on n": "{what}",
    "scaled by n": "For every seed, {names} changes by a power of {n}/{less} when a record of "
    "zeros is removed",
}


def explain(kind: str, **numbers: Any) -> Finding:
    """The finding of a kind, with its numbers."""
    described = KINDS[kind]
    message = described.observation.format(**numbers)
    return Finding(described.premise, message, described.cause, described.fix, numbers, kind)


def explain_test(evidence: TestResult, others_change: bool = False) -> Finding:
    """The finding of a statistical test."""
    finding = explain(evidence.kind, **evidence.numbers)
    if not others_change:
        return finding
    why = "a statistic over records enters their gradients, or which of them are drawn or kept "
    cause = f"{OTHERS_CHANGE}: {why}depends on their values. Otherwise: {finding.cause}"
    return replace(finding, cause=cause)


def influence(evidence: TestResult, others_change: bool, carried: bool = False) -> Finding:
    """A record changes steps whose batch does not hold it, or it is drawn too often.

    Args:
        evidence: the test.
        others_change: whether the record changes what other records contribute.
        carried: whether a changed step is more likely after another changed step.
    """
    finding = explain_test(evidence)
    if carried:
        return replace(finding, cause=CARRIED)
    everywhere = others_change or evidence.numbers["hits"] == evidence.numbers["tries"]
    return replace(finding, cause=ALL_STEPS) if everywhere else finding


def listed(names: Iterable[str], verb: str = "") -> str:
    """A few names in backticks, how many more there are, and a verb (without the s of one)."""
    all_names = list(names)
    shown = ", ".join(f"`{name}`" for name in all_names[:_MAX_NAMES])
    hidden = len(all_names) - _MAX_NAMES
    shown = f"{shown} and {hidden} more" if hidden > 0 else shown
    if not verb:
        return shown
    ending = "s" if len(all_names) == 1 and verb != "are" else ""
    return f"{shown} {'is' if verb == 'are' and len(all_names) == 1 else verb + ending}"


def no_noise(runs: int, fixed: bool) -> Finding:
    """No released gradient depends on the seed."""
    finding = explain("no noise", runs=runs)
    cause = "There is noise, but it is drawn from a generator with a constant seed."
    return replace(finding, cause=cause) if fixed else finding


def steps_without_noise(steps: Sequence[int], count: int) -> Finding:
    """Some steps release no noise."""
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return explain("steps without noise", steps=len(steps), of=count, shown=shown, first=steps[0])


def is_whole(spread: float) -> bool:
    """Whether the longest contribution is a whole multiple of the shortest one."""
    return abs(spread - round(spread)) < _WHOLE


def divided_by_batch(spread: float, others_change: bool) -> Finding:
    """One record's contribution differs between batches."""
    finding = explain("divided by the batch", factor=1 + spread)
    drawn = f"{OTHERS_CHANGE}, or which of them are drawn (weights by label, loss or norm)."
    cause = drawn if others_change else finding.cause
    if is_whole(spread):
        repeated = "A record is in a batch several times (drawn with replacement, or copied)."
        cause = f"{repeated} Otherwise: {cause}"
    return replace(finding, cause=cause)


def weights_outside(step: int, settings: bool, within: bool) -> Finding:
    """The weights depend on the record although all gradients were forced.

    Args:
        step: the first step, from 0, before which they depend on it.
        settings: whether the optimizer's settings depend on the record too.
        within: whether the weights differ right after the optimizer's step.
    """
    if step == 0:
        return explain("first weights")
    if settings:
        cause = (
            "The learning rate, or another setting of the optimizer, depends on the records: a "
            "schedule reads a loss or a norm that has no noise."
        )
    elif within:
        cause = (
            "The optimizer's step uses more than p.grad: its own state (second moments, a "
            "preconditioner), or gradients without noise."
        )
    else:
        cause = (
            "Something other than the optimizer's step changes the weights: a second, non-private "
            "update, or a projection or normalization that uses the data."
        )
    return replace(explain("weights", step=step + 1), cause=cause)


def released_outside(differing: Mapping[str, float]) -> Finding:
    """Numbers that depend on the record although all released gradients were forced."""
    subject = "it is" if len(differing) == 1 else "they are"
    finding = replace(
        explain("released", names=listed(differing, "depend"), it=subject), numbers=_few(differing)
    )
    if any("running_" in name or "num_batches" in name for name in differing):
        cause = "Batch normalisation keeps statistics of the records without noise."
        fix = "Use GroupNorm or LayerNorm (opacus.validators.ModuleValidator.fix)."
        return replace(finding, cause=cause, fix=fix)
    return finding


def constant_numbers(leaks: Mapping[str, float], seeds: int) -> Finding:
    """Numbers without noise that differ between neighbouring data sets."""
    finding = explain("constant", names=listed(leaks, "are"), seeds=seeds)
    return replace(finding, numbers=_few(leaks))


def _few(gaps: Mapping[str, float]) -> dict[str, float]:
    return dict(list(gaps.items())[:_MAX_NAMES])


def depends_on_n(
    high: int, low: int, upper: Mapping[str, Any], lower: Mapping[str, Any], ratio: float | None
) -> Finding:
    """Normaliser, rate, noise or steps that depend on the number of records.

    Args:
        high: a number of records.
        low: a smaller one.
        upper: "divisor", "steps", "rates" and "sigmas" with `high` records.
        lower: with `low` records.
        ratio: contributions with `low` records over those with `high`; None if unknown.
    """
    differences = []
    if upper["divisor"] is not None and upper["divisor"] != lower["divisor"]:
        differences.append(
            f"gradients are divided by {upper['divisor']:g} for {high} records and by "
            f"{lower['divisor']:g} for {low}"
        )
    elif ratio is not None and abs(ratio - 1) > 1e-4:
        as_n = abs(ratio / (high / low) - 1) < 2e-3
        differences.append(
            f"gradients are divided by {high} for {high} records and by {low} for {low}"
            if as_n
            else f"gradients are {_digits(ratio)} times as large for {low} records as for {high}"
        )
    for key, name in (("rates", "sampling rate"), ("sigmas", "noise multiplier")):
        if upper[key] != lower[key]:
            values, values_below = (
                ", ".join(f"{v:.4g}" for v in s[key]) or "none" for s in (upper, lower)
            )
            differences.append(
                f"the accounted {name} is {values} for {high} records and {values_below} for {low}"
            )
    if None not in (upper["steps"], lower["steps"]) and upper["steps"] != lower["steps"]:
        differences.append(
            f"there are {upper['steps']} steps for {high} records and {lower['steps']} for {low}"
        )
    sentence = "; ".join(differences)
    return explain(
        "depends on n",
        what=f"{sentence[:1].upper()}{sentence[1:]}",
        high=high,
        low=low,
        ratio=math.nan if ratio is None else ratio,
    )


def _digits(ratio: float) -> str:
    """A ratio with as many digits as show that it is not 1."""
    for digits in range(4, 10):
        text = f"{ratio:.{digits}g}"
        if float(text) != 1.0 and abs(float(text) - ratio) < 0.1 * abs(ratio - 1):
            break
    return text


def allowed(finding: Finding, relation: str) -> str:
    """A note for a finding about the number of records, where that number is public."""
    observation = _ALLOWED[finding.kind].format(**finding.numbers)
    return f"{observation}: allowed under {relation}, where the number of records is public"


FAMILY_ERROR = 1e-5
"""Probability that a statistical test of one check reports a correct loop, over all its tests."""
SHORTFALL = 0.01
"""A shortfall of the noise that is smaller than this is not reported."""
_POWER = 0.8
# No records that are drawn several times make a contribution this many times too large.
_NOT_BY_DRAWING, _ESTIMATED = 100.0, 1.05
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
        elif "size" in by_kind:
            # A contribution that varies by a factor between batches does not explain a larger one,
            # nor do records that are drawn several times explain one that is very much too large.
            # The shortfall is estimated.
            if _shortfall(by_kind["size"]) > _ESTIMATED * max(factors, default=_NOT_BY_DRAWING):
                cause = by_kind.pop("size")
            elif factors:
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
