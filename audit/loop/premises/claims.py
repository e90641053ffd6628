"""Compares a claimed epsilon with the cost that the accountant recorded."""

import contextlib
import warnings

from audit.errors import AuditError
from audit.loop.explanations import explain
from audit.loop.premises.experiment import Check
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.opacus_objects import run_of

# A claim is rounded to a few digits, and another accountant has another numerical error.
_RELATIVE_SLACK, _SLACK = 0.01, 0.01


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
