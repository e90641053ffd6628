"""Describes protocols in words, for readers who do not know their notation."""

from audit.numerics import format_exact
from audit.protocols import (
    Adaptive,
    BestRuns,
    BudgetSchedule,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.repetitions import (
    Binomial,
    Fixed,
    Poisson,
    Repetitions,
    Truncated,
    TruncatedNegativeBinomial,
    TwoPoint,
)


def in_words(protocol: Protocol) -> str:
    """A protocol as sentences.

    Example:
        >>> from audit import protocols
        >>> print(in_words(protocols.parse_protocol("fixed:5")))
        The tuning trains exactly 5 runs, each with a candidate drawn anew, and releases the best.
    """
    if isinstance(protocol, RandomSearch):
        drawn = "each with a candidate drawn anew"
        return f"The tuning trains {_runs(protocol.repetitions)}, {drawn}, and releases the best."
    if isinstance(protocol, BestRuns):
        return (
            f"The tuning trains {_runs(protocol.repetitions)}, each with a candidate drawn anew, "
            f"and releases the best {protocol.released}, or all if there are fewer."
        )
    if isinstance(protocol, Adaptive):
        return (
            f"The tuning trains {_runs(protocol.repetitions)}. Earlier runs may change the "
            "probability density of the next candidate to between "
            f"{format_exact(protocol.low)} and {format_exact(protocol.high)} times the prior. It "
            "releases the best run."
        )
    if isinstance(protocol, Grid):
        once = "each of them once"
        if protocol.inclusion < 1.0:
            once = f"each of them with probability {format_exact(protocol.inclusion)}"
        return (
            f"The tuning has a fixed list of {protocol.candidates} candidates, trains {once}, "
            "and releases the best run."
        )
    if isinstance(protocol, Subset):
        rest = "all records" if protocol.final == "all" else "all other records"
        return (
            f"The tuning trains {_runs(protocol.repetitions)} on a random part of the records "
            f"({format_exact(protocol.sampling_rate)} of them on average), each with a candidate "
            f"drawn anew. It trains the best candidate once more on {rest}, and releases that run."
        )
    if isinstance(protocol, UntilAccepted):
        return (
            "The tuning trains until a run is good enough, and releases that run. A run is good "
            f"enough with probability at least {format_exact(protocol.acceptance)}."
        )
    if isinstance(protocol, RandomStopping):
        return (
            "The tuning trains until a run is good enough, and releases that run. After each other "
            f"run it gives up with probability {format_exact(protocol.stop)}, and releases nothing."
        )
    if isinstance(protocol, BudgetSchedule):
        factors = ", ".join(map(format_exact, protocol.noise))
        return (
            f"The tuning trains one run for each of {len(protocol.noise)} steps, with {factors} "
            "times the noise of the base mechanism, until a run is good enough, and releases that "
            "run with its step. If none is, it releases nothing."
        )
    return f"The tuning follows {protocol.spec}: {protocol.assumption}."


def _runs(repetitions: Repetitions) -> str:
    if isinstance(repetitions, Fixed):
        return "exactly 1 run" if repetitions.k == 1 else f"exactly {repetitions.k} runs"
    drawn = f"drawn from {_distribution(repetitions)}; {repetitions.mean:.4g} on average"
    return f"a random, secret number of runs ({drawn})"


def _distribution(k: Repetitions) -> str:
    if isinstance(k, Truncated):
        return f"{_distribution(k.distribution)}, given that there are at most {k.most} runs"
    if isinstance(k, Poisson):
        return f"the Poisson distribution with mean {format_exact(k.mu)}"
    if isinstance(k, Binomial):
        return f"the binomial distribution of {k.n} trials with probability {format_exact(k.p)}"
    if isinstance(k, TwoPoint):
        return f"two values, 1 with probability {format_exact(k.s)} and {k.L} otherwise"
    if isinstance(k, TruncatedNegativeBinomial):
        shape, rate = format_exact(k.eta), format_exact(k.gamma)
        if k.eta == 1.0:
            return f"the geometric distribution with stopping probability {rate}"
        if k.eta == 0.0:
            return f"the logarithmic distribution with parameter gamma = {rate}"
        return (
            "the negative binomial distribution without 0, with shape eta = "
            f"{shape} and parameter gamma = {rate}"
        )
    return k.spec
