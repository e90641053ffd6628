"""Comparison of protocols at the same expected number of runs."""

from dataclasses import dataclass

from audit import checks
from audit.accounting import DeltaUnreachable, Mechanism
from audit.protocols import Case, Protocol, all_protocols
from audit.upper_bounds.costs import tuning_cost

MAX_COMPARED = (2.0, 1e6)
"""The smallest and the largest number of runs that can be compared."""


@dataclass(frozen=True)
class ComparedProtocol:
    """The cost of one protocol.

    Attributes:
        title: the protocol in words.
        protocol: the protocol.
        epsilon: the smallest bound for any score; None if no bound reaches delta.
        bound: name of this bound, or the reason why there is none.
        expected_quantile: expected quantile of the best candidate; None except for random search.

    Example:
        >>> from audit.protocols import Grid
        >>> ComparedProtocol("a grid", Grid(10), 2.73, "grid-tight", None).epsilon
        2.73
    """

    title: str
    protocol: Protocol
    epsilon: float | None
    bound: str
    expected_quantile: float | None


def cases_with(runs: float) -> list[Case]:
    """The compared protocols with an expected number of runs; rounded to a whole K if needed."""
    runs = checks.interval("runs", runs, *MAX_COMPARED, closed_low=True, closed_high=True)
    return [case for kind in all_protocols() for case in kind.cases(runs)]


def compare_protocols(base: Mechanism, runs: float, delta: float) -> list[ComparedProtocol]:
    """The cost of every protocol at the same expected number of runs, the cheapest first.

    Args:
        base: one run.
        runs: expected number of runs, in [2, 1e6].
        delta: in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> rows = compare_protocols(GaussianMechanism(0.1), 2, 1e-5)
        >>> rows[0].title
        'random search, logarithmic K'
    """
    rows = [_compared(base, case, delta) for case in cases_with(runs)]
    return sorted(rows, key=lambda row: float("inf") if row.epsilon is None else row.epsilon)


def _compared(base: Mechanism, case: Case, delta: float) -> ComparedProtocol:
    title, protocol = case.title, case.protocol
    quantile = None
    if protocol.search_repetitions is not None:
        quantile = protocol.search_repetitions.expected_quantile()
    try:
        cost = tuning_cost(base, protocol, delta)
    except DeltaUnreachable as error:
        return ComparedProtocol(title, protocol, None, str(error), quantile)
    return ComparedProtocol(title, protocol, cost.epsilon, cost.name, quantile)
