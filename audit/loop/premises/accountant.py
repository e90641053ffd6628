"""Compares the accountant's history with the steps, and a claimed epsilon with its cost."""

import contextlib
import warnings
from dataclasses import replace

from audit.errors import AuditError
from audit.loop.findings import Finding
from audit.loop.premises.experiment import Check
from audit.loop.premises.verdicts import explain
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.optimizer_hooks import run_of

# A claim is rounded to a few digits, and another accountant has another numerical error.
_RELATIVE_SLACK, _SLACK = 0.01, 0.01


def compare_accountant(check: Check, first: Trace, claim: float | None) -> None:
    """Compares the accountant's history with the steps of the optimizer."""
    verdicts = check.verdicts
    if first.history is None:
        if first.claimed is None and claim is None:
            verdicts.cannot_test("no accountant and no claim was given", ("accountant",))
        return
    verdicts.tested.append("accountant")
    verdicts.findings += _unrecorded_steps(first)
    recorded = sum(steps for _, _, steps in first.history)
    if recorded > len(first.steps):
        verdicts.notes.append(
            f"the accountant recorded {recorded} steps and the optimizer took {len(first.steps)}: "
            "the claim is larger than necessary, or covers further releases, which were not "
            "tested"
        )


def compare_seeds(check: Check, first: Trace) -> None:
    """Reports noise or batches that repeat the numbers of another generator.

    Args:
        check: the check, which collects what is found.
        first: a run on the records.
    """
    if first.repeats:
        check.verdicts.findings.append(explain("seed of another generator", drawn=first.repeats))


def compare_all_accountants(check: Check) -> None:
    """Reports steps that the accountant of some complete run did not record."""
    run, verdicts = check.runs.least_recorded, check.verdicts
    if run is None or run.unrecorded <= 0 or "accountant" not in verdicts.tested:
        return
    if not any(finding.premise == "accountant" for finding in verdicts.findings):
        (finding,) = _unrecorded_steps(run)
        cause = "Whether a step is recorded depends on the records or on the seed."
        verdicts.findings.append(replace(finding, cause=f"{cause} Otherwise: {finding.cause}"))


def compare_claim_with_accountant(
    check: Check, first: Trace, claim: float | None, delta: float
) -> None:
    """Reports a claim below the epsilon of the steps that the accountant recorded.

    The smaller of two numbers counts: the accountant's epsilon, and the tight cost of the recorded
    steps. So a claim by a tighter accountant than the function's is not reported.

    Args:
        check: the check, which collects what is found.
        first: a complete run on the records.
        claim: the epsilon that the caller states; None takes that of the function.
        delta: delta of the claim.
    """
    claim = first.claimed if claim is None else claim
    if claim is None or first.accountant is None or not first.history:
        return
    cost = recorded_cost(first, delta)
    if cost is not None and cost > (1 + _RELATIVE_SLACK) * claim + _SLACK:
        numbers = {"claim": claim, "cost": cost, "delta": delta, "steps": _steps(first)}
        check.verdicts.findings.append(explain("claim below the accountant", **numbers))


def recorded_cost(trace: Trace, delta: float) -> float | None:
    """Epsilon of the recorded steps at this delta; None where neither number can be computed."""
    costs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns about the range of Renyi orders
        try:
            costs.append(float(trace.accountant.get_epsilon(delta=delta)))
        except Exception:  # of the user's accountant
            costs = []
        with contextlib.suppress(AuditError):  # steps without noise
            costs.append(float(run_of(trace.history or ()).epsilon(delta)))
    return min(costs, default=None)


def _steps(trace: Trace) -> int:
    return sum(steps for _, _, steps in trace.history or ())


def _unrecorded_steps(trace: Trace) -> list[Finding]:
    """Steps that the accountant's history lacks, or states with more noise."""
    history = trace.history or ()
    recorded, seen = sum(steps for _, _, steps in history), len(trace.steps)
    if recorded < seen:
        return [explain("too few steps", recorded=recorded, steps=seen)]
    if recorded == seen and trace.opacus:
        expanded = [sigma for sigma, _, steps in history for _ in range(steps)]
        for number, (step, sigma) in enumerate(zip(trace.steps, expanded, strict=True), 1):
            of_optimizer = step.noise_multiplier
            if of_optimizer is not None and sigma > of_optimizer * (1 + 1e-6):
                return [
                    explain("noise multiplier", step=number, recorded=sigma, optimizer=of_optimizer)
                ]
    return []
