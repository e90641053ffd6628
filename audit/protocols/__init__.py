"""Tuning protocols: ways of choosing the best run, and their text form.

A protocol contains no data, score or noise. `audit.upper_bounds` computes its cost, and
`audit.tuning` carries it out.
"""

from audit import checks
from audit.errors import InvalidInput
from audit.protocols.adaptive import Adaptive
from audit.protocols.base import Case, Protocol, Statement, all_protocols, protocol_named
from audit.protocols.grid import DistinctCandidates, Grid
from audit.protocols.noisy_max import NoisyMax
from audit.protocols.random_search import (
    BestRuns,
    ParetoFront,
    ProposeTestRelease,
    RandomSearch,
    Subset,
)
from audit.protocols.sequential import Sequential
from audit.protocols.until_accepted import (
    BudgetSchedule,
    RandomStopping,
    RepeatedRuns,
    UntilAccepted,
)
from audit.repetitions import FAMILIES, Repetitions, parse_repetitions

__all__ = [
    "DEFAULT_REPETITIONS",
    "Adaptive",
    "BestRuns",
    "BudgetSchedule",
    "Case",
    "DistinctCandidates",
    "Grid",
    "NoisyMax",
    "ParetoFront",
    "ProposeTestRelease",
    "Protocol",
    "RandomSearch",
    "RandomStopping",
    "RepeatedRuns",
    "Sequential",
    "Statement",
    "Subset",
    "UntilAccepted",
    "all_protocols",
    "parse_protocol",
]

DEFAULT_REPETITIONS = "tnb:0,0.01"
"""The default distribution of K, from the experiments of the papers."""


def parse_protocol(
    spec: "str | Repetitions | Protocol", repetitions: "str | Repetitions | None" = None
) -> Protocol:
    """Parses a protocol.

    Args:
        spec: `search`, `grid:CANDIDATES[,INCLUSION]`, `adaptive:LOW,HIGH`,
            `subset:RATE[,rest|all]`, `until:ACCEPTANCE`, `stopping:STOP`,
            `schedule:FACTOR,FACTOR,...`, `noisy-max:CANDIDATES[,ROUNDS][,monotone]`,
            `ptr:EPSILON,DELTA,FAILURE`, `best:RELEASED`, `pareto:MOST`,
            `distinct:CANDIDATES`, `sequential:RUNS` (also
            `tpe:RUNS` and `manual:RUNS`) for candidates that depend on results, or the name of
            another protocol that is defined. A distribution of K follows after a slash, as in
            `adaptive:0.75,1.33/tnb:0,0.01`. A distribution of K alone, as an object or as text,
            means random search. A protocol object is returned unchanged.
        repetitions: the distribution of K if the text does not name one.

    Raises:
        InvalidInput: the protocol is unknown, the number of parameters is wrong, a parameter is out
            of its range, or there is a distribution of K for a protocol without one.

    Example:
        >>> parse_protocol("grid:100,0.5").mean_runs
        50.0
        >>> parse_protocol("subset:0.1", "poisson:10")
        Subset(repetitions=Poisson(mu=10.0), sampling_rate=0.1, final='rest')
        >>> parse_protocol("tnb:0,0.01").spec
        'tnb:0,0.01'
    """
    if isinstance(spec, Protocol):
        return spec
    if isinstance(spec, Repetitions):
        return RandomSearch(spec)
    if not isinstance(spec, str):
        raise InvalidInput(
            f"protocol must be a protocol, or one as text, got {checks.one_line(spec)}"
        )
    text = spec.strip()
    head, slash, tail = text.partition("/")
    name, _, parameters = head.partition(":")
    name = name.strip().lower()
    if not slash and name in FAMILIES:
        return RandomSearch(parse_repetitions(text))
    kind = protocol_named(name)
    if kind is None:
        names = [kind.name for kind in all_protocols()]
        # The distributions of K are named in the error only.
        checks.one_of("protocol", name, names if slash else [*names, *FAMILIES])
        raise AssertionError(name)
    if not kind.draws_number and (slash or repetitions is not None):
        raise InvalidInput(
            f"repetitions must not be given with protocol {name}, which has no random K, got "
            f"{tail or repetitions}"
        )
    if slash and repetitions is not None:
        raise InvalidInput(f"repetitions must be given once, got {tail!r} and {repetitions}")
    distribution = None
    if kind.draws_number:
        named = tail if slash else repetitions
        distribution = parse_repetitions(DEFAULT_REPETITIONS if named is None else named)
    words = [word.strip() for word in parameters.split(",")] if parameters else []
    try:
        return kind.from_words(words, distribution)
    except ValueError as error:
        raise InvalidInput(f"protocol {' '.join(text.split())}: {error}") from error
