"""Protocols parsed from text."""

import math
from collections.abc import Callable
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.numbers_from_text import read_number
from audit.protocols.base import Protocol
from audit.protocols.distinct_candidates import DistinctCandidates
from audit.protocols.fixed_candidates import Grid, NoisyMax
from audit.protocols.random_runs import (
    Adaptive,
    BestRuns,
    ParetoFront,
    ProposeTestRelease,
    RandomSearch,
    Subset,
)
from audit.protocols.sequential import Sequential
from audit.protocols.until import BudgetSchedule, RandomStopping, UntilAccepted
from audit.repetitions import FAMILIES, Repetitions, parse_repetitions

DEFAULT_REPETITIONS = "tnb:0,0.01"
"""The default distribution of K, from the experiments of the papers."""

_FORMATS: dict[str, tuple[Callable[..., Protocol], float, float, str]] = {
    "search": (RandomSearch, 0, 0, "none; the distribution of K follows after a slash"),
    "adaptive": (Adaptive, 2, 2, "LOW,HIGH"),
    "subset": (Subset, 1, 1, "RATE or RATE,rest|all"),
    "ptr": (ProposeTestRelease, 3, 3, "EPSILON,DELTA,FAILURE"),
    "best": (BestRuns, 1, 1, "RELEASED"),
    "pareto": (ParetoFront, 1, 1, "MOST"),
    "distinct": (DistinctCandidates, 1, 1, "CANDIDATES"),
    "grid": (Grid, 1, 2, "CANDIDATES or CANDIDATES,INCLUSION"),
    "until": (UntilAccepted, 1, 1, "ACCEPTANCE"),
    "stopping": (RandomStopping, 1, 1, "STOP"),
    "schedule": (lambda *noise: BudgetSchedule(noise), 1, math.inf, "FACTOR,FACTOR,..."),
    "sequential": (Sequential, 1, 1, "RUNS"),
    "noisy-max": (NoisyMax, 1, 2, "CANDIDATES[,ROUNDS][,monotone]"),
}
"""Constructor, smallest and largest number of numeric parameters, and the parameters in words."""

_OTHER_NAMES = {"tpe": "sequential", "manual": "sequential", "bayesian": "sequential"}
"""Names under which people know a protocol."""

_WITH_REPETITIONS = ("search", "adaptive", "subset", "ptr", "best", "pareto", "distinct")


def parse_protocol(
    spec: "str | Repetitions | Protocol", repetitions: "str | Repetitions | None" = None
) -> Protocol:
    """Parses a protocol.

    Args:
        spec: `search`, `grid:CANDIDATES[,INCLUSION]`, `adaptive:LOW,HIGH`,
            `subset:RATE[,rest|all]`, `until:ACCEPTANCE`, `stopping:STOP`,
            `schedule:FACTOR,FACTOR,...`, `noisy-max:CANDIDATES[,ROUNDS][,monotone]`,
            `ptr:EPSILON,DELTA,FAILURE`, `best:RELEASED`, `pareto:MOST`, `distinct:CANDIDATES`,
            or `sequential:RUNS` (also `tpe:RUNS` and `manual:RUNS`) for candidates that depend on
            results. A distribution of K
            follows after a slash, as in `adaptive:0.75,1.33/tnb:0,0.01`. A distribution of K alone,
            as an object or as text, means random search. A protocol object is returned unchanged.
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
    if not slash and name.strip().lower() in FAMILIES:
        return RandomSearch(parse_repetitions(text))
    # The distributions of K are named in the error only.
    known = _FORMATS if slash else [*_FORMATS, *FAMILIES]
    name = _OTHER_NAMES.get(name.strip().lower(), name)
    name = checks.one_of("protocol", name.strip().lower(), known)
    if name not in _WITH_REPETITIONS and (slash or repetitions is not None):
        raise InvalidInput(
            f"repetitions must not be given with protocol {name}, which has no random K, got "
            f"{tail or repetitions}"
        )
    if slash and repetitions is not None:
        raise InvalidInput(f"repetitions must be given once, got {tail!r} and {repetitions}")
    distribution = parse_repetitions(
        tail if slash else repetitions if repetitions is not None else DEFAULT_REPETITIONS
    )
    words = [word.strip() for word in parameters.split(",")] if parameters else []
    try:
        return _protocol(name, words, distribution)
    except ValueError as error:
        raise InvalidInput(f"protocol {' '.join(text.split())}: {error}") from error


def _protocol(name: str, words: list[str], distribution: Repetitions) -> Protocol:
    make, least, most, what = _FORMATS[name]
    options: dict[str, object] = {}
    if name == "noisy-max" and words[-1:] == ["monotone"]:
        words, options = words[:-1], {"monotone": True}
    if name == "subset" and len(words) == 2:
        words, options = words[:1], {"final": words[1]}
    values: list[Any] = list(words)  # as text, which the protocol reads as whole numbers or not
    try:
        for word in words:
            read_number(word)
    except ValueError:
        values = []
    if not least <= len(values) <= most or len(values) != len(words):
        raise InvalidInput(
            f"parameters must be {what}, got {' '.join(','.join(words).split()) or 'none'}"
        )
    if name == "noisy-max" and len(values) == 2:
        options["rounds"] = values.pop()
    return make(*([distribution] if name in _WITH_REPETITIONS else []), *values, **options)
