"""The texts of the findings: the observation, its likely cause, and a fix."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.loop.finding_kinds import ALL_STEPS, CARRIED, KINDS, OTHERS_CHANGE
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


def divided_by_batch(spread: float, others_change: bool) -> Finding:
    """One record's contribution differs between batches."""
    finding = explain("divided by the batch", factor=1 + spread)
    drawn = f"{OTHERS_CHANGE}, or which of them are drawn (weights by label, loss or norm)."
    cause = drawn if others_change else finding.cause
    if abs(spread - round(spread)) < _WHOLE:
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
