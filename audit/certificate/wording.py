"""All sentences of a certificate that depend on the protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols import (
    Adaptive,
    BestRuns,
    BudgetSchedule,
    DistinctCandidates,
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

PROTOCOLS: tuple[type[Protocol], ...] = (
    RandomSearch,
    Grid,
    DistinctCandidates,
    Adaptive,
    Subset,
    UntilAccepted,
    RandomStopping,
    BestRuns,
    BudgetSchedule,
)
"""Protocols for which certificates are available."""

_RUNS_OF_UNTIL = "the first accepted run ends the tuning"
_THROUGH = "through the base mechanism alone"


@dataclass(frozen=True)
class ProtocolWords:
    """The sentences of a certificate about a protocol; the defaults are those of random search."""

    summary: str  # the protocol in sentences
    claimed: str = "the best run of this tuning"
    released: str = (
        "the output of the best run, its candidate and its score, or that there was none"
    )
    secret: str = "the number of runs"  # must stay secret, in addition to losing runs
    candidates: str = "each candidate is drawn from the prior, independently of earlier runs"
    runs: str = "the number of runs is drawn before the first run, and no run is left out"
    acceptance: str = ""  # the condition on accepting a run
    records: Mapping[str, str] = field(
        default_factory=lambda: {"one run": f"the private training records, {_THROUGH}"}
    )


def describe(protocol: Protocol) -> ProtocolWords:
    """The sentences of a certificate about a protocol.

    Raises:
        InvalidInput: there are no certificates for the protocol.

    Example:
        >>> from audit import protocols
        >>> print(describe(protocols.parse_protocol("fixed:5")).summary)
        The tuning trains exactly 5 runs, each with an independent candidate, and releases the best.
    """
    match protocol:
        case RandomSearch(repetitions):
            return ProtocolWords(
                f"The tuning trains {_runs(repetitions)}, each with an independent candidate, and "
                "releases the best."
            )
        case BestRuns(repetitions, released):
            return ProtocolWords(
                f"The tuning trains {_runs(repetitions)}, each with an independent candidate, and "
                f"releases the best {released}, or all if there are fewer.",
                claimed=f"the best {released} runs of this tuning",
                released=f"the outputs of the best {released} runs, or of all if there are fewer, "
                "their candidates and their scores, in this order",
                secret=f"the number of runs (unless fewer than {released} are released)",
            )
        case Adaptive(repetitions, low, high):
            bounds = f"between {format_exact(low)} and {format_exact(high)} times the prior"
            return ProtocolWords(
                f"The tuning trains {_runs(repetitions)}. Earlier runs may change the probability "
                f"density of the next candidate to {bounds}. It releases the best run.",
                candidates=f"each candidate is drawn from a density {bounds}, which depends on the "
                "earlier runs alone",
            )
        case Grid(candidates, inclusion):
            once = "each of them once"
            if inclusion < 1.0:
                once = f"each of them with probability {format_exact(inclusion)}"
            return ProtocolWords(
                f"The tuning has a fixed list of {candidates} candidates, trains {once}, and "
                "releases the best run.",
                candidates="the list of candidates is fixed, and each is run once, or with a fixed "
                "probability",
                runs="the candidates to run are drawn before the first run, and no run is left out",
            )
        case DistinctCandidates(repetitions, candidates):
            return ProtocolWords(
                f"The tuning has a fixed list of {candidates} candidates. It draws "
                f"{_runs(repetitions)}, trains as many different candidates (at most all of them), "
                "each once, and releases the best run.",
                candidates="the list of candidates is fixed, and the candidates to run are drawn "
                "without replacement, all with the same probability",
            )
        case Subset(repetitions, rate, final):
            return _of_subset(repetitions, format_exact(rate), final == "all")
        case UntilAccepted(acceptance):
            chance = format_exact(acceptance)
            return ProtocolWords(
                "The tuning trains until a run is good enough, and releases that run. A run is "
                f"good enough with probability at least {chance}.",
                runs=_RUNS_OF_UNTIL,
                acceptance=f"on any data set, a run is accepted with probability at least {chance}",
            )
        case RandomStopping(stop):
            chance = format_exact(stop)
            return ProtocolWords(
                "The tuning trains until a run is good enough, and releases that run. After each "
                f"other run it gives up with probability {chance}, and releases nothing.",
                runs=f"{_RUNS_OF_UNTIL}, and after each rejected run it ends without a result with "
                f"probability {chance}",
            )
        case BudgetSchedule(noise):
            factors = ", ".join(map(format_exact, noise))
            return ProtocolWords(
                f"The tuning trains one run for each of {len(noise)} steps, with {factors} times "
                "the noise of the base mechanism, until a run is good enough, and releases that "
                "run with its step. If none is, it releases nothing.",
                claimed="the accepted run of this tuning, and its step,",
                released="the output of the accepted run, its step, its candidate and its score, "
                "or that there was none",
                secret="",
                runs="each step has one run, with the stated multiple of the noise of the base "
                f"mechanism; {_RUNS_OF_UNTIL}, which has no result if every step is rejected",
                acceptance="whether a run is accepted depends on its output, its score and public "
                "records alone",
            )
    names = ", ".join(kind.name for kind in PROTOCOLS)
    raise InvalidInput(f"protocol must be one whose conditions are known ({names}), got {protocol}")


def _of_subset(repetitions: Repetitions, rate: str, on_all: bool) -> ProtocolWords:
    share = f"each with probability {rate}, the same in every run"
    return ProtocolWords(
        f"The tuning trains {_runs(repetitions)} on a random part of the records ({rate} of them "
        "on average), each with an independent candidate. It trains the best candidate once more "
        f"on {'all records' if on_all else 'all other records'}, and releases that run.",
        claimed="the final run of this tuning, and the candidate chosen,",
        released="the output and the score of the final run, and its candidate, or that there was "
        "none",
        runs=f"{ProtocolWords.runs}; then one final run trains the best candidate",
        records={
            "one run of the tuning": f"a random part of the private training records, {share}, "
            f"{_THROUGH}",
            "the final run": f"{'all' if on_all else 'the rest'} of them, {_THROUGH}",
        },
    )


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
