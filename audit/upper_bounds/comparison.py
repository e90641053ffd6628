"""Comparison of protocols at the same expected number of runs."""

from dataclasses import dataclass

from audit import checks
from audit.accounting import DeltaUnreachable, Mechanism
from audit.protocols import Adaptive, Grid, Protocol, RandomSearch
from audit.repetitions import Fixed, Poisson, TruncatedNegativeBinomial
from audit.upper_bounds.registry import tuning_cost

MAX_COMPARED = (2.0, 1e6)
"""The smallest and the largest number of runs that can be compared."""

# Range of an adaptive density relative to the prior, as in the figures of DP-HyPO.
_DENSITY_RANGE = (0.75, 1.33)


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


def protocols_with(runs: float) -> dict[str, Protocol]:
    """Protocols with a given expected number of runs, by title; rounded to a whole K if needed."""
    runs = checks.interval("runs", runs, *MAX_COMPARED, closed_low=True, closed_high=True)
    logarithmic = TruncatedNegativeBinomial(0.0, 0.5).with_mean(runs)
    count = round(runs)
    return {
        "random search, logarithmic K": RandomSearch(logarithmic),
        "random search, geometric K": RandomSearch(
            TruncatedNegativeBinomial(1.0, 0.5).with_mean(runs)
        ),
        "random search, Poisson K": RandomSearch(Poisson(runs)),
        "random search, fixed K": RandomSearch(Fixed(count)),
        "grid, every point once": Grid(count),
        "grid, every point with chance 1/2": Grid(2 * count, 0.5),
        "adaptive within [{:g}, {:g}], logarithmic K".format(*_DENSITY_RANGE): Adaptive(
            logarithmic, *_DENSITY_RANGE
        ),
    }


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
    rows = [_compared(base, title, one, delta) for title, one in protocols_with(runs).items()]
    return sorted(rows, key=lambda row: float("inf") if row.epsilon is None else row.epsilon)


def _compared(base: Mechanism, title: str, protocol: Protocol, delta: float) -> ComparedProtocol:
    quantile = None
    if isinstance(protocol, RandomSearch):
        quantile = protocol.repetitions.expected_quantile()
    try:
        found = tuning_cost(base, protocol, delta)
    except DeltaUnreachable as error:
        return ComparedProtocol(title, protocol, None, str(error), quantile)
    return ComparedProtocol(title, protocol, found.epsilon, found.name, quantile)
