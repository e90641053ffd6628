"""Protocols parsed from text."""

from collections.abc import Callable

from audit import checks
from audit import repetitions as laws
from audit.errors import InvalidInput
from audit.protocols.adaptive import Adaptive
from audit.protocols.base import Protocol
from audit.protocols.best_runs import BestRuns, ParetoFront
from audit.protocols.grid import Grid
from audit.protocols.noisy_max import NoisyMax
from audit.protocols.propose_test_release import ProposeTestRelease
from audit.protocols.random_search import RandomSearch
from audit.protocols.schedule import BudgetSchedule
from audit.protocols.subset import Subset
from audit.protocols.until import RandomStopping, UntilAccepted
from audit.repetitions import Repetitions

DEFAULT_REPETITIONS = "tnb:0,0.01"
"""The default distribution of K, from the experiments of the papers."""

_WITH_REPETITIONS = ("search", "adaptive", "subset", "ptr", "best", "pareto")
_PROTOCOLS = (*_WITH_REPETITIONS, "grid", "until", "stopping", "schedule", "noisy-max")


def parse_protocol(
    spec: "str | Repetitions | Protocol", repetitions: "str | Repetitions | None" = None
) -> Protocol:
    """Parses a protocol.

    Args:
        spec: `search`, `grid:CANDIDATES[,INCLUSION]`, `adaptive:LOW,HIGH`,
            `subset:RATE[,rest|all]`, `until:ACCEPTANCE`, `stopping:STOP`,
            `schedule:FACTOR,FACTOR,...`, `noisy-max:CANDIDATES[,ROUNDS][,monotone]`,
            `ptr:EPSILON,DELTA,FAILURE`, `best:RELEASED` or `pareto:MOST`. A distribution of K
            follows after a slash, as in `adaptive:0.75,1.33/tnb:0,0.01`. A distribution of K alone,
            as an object or as text, means random search. A protocol object is returned unchanged.
        repetitions: the distribution of K if the text does not name one.

    Raises:
        InvalidInput: an unknown protocol, a wrong number of parameters, one out of its range, or a
            distribution of K for a protocol without one.

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
    text = str(spec).strip()
    head, slash, tail = text.partition("/")
    name, _, parameters = head.partition(":")
    if not slash and name.strip().lower() in laws.FAMILIES:
        return RandomSearch(laws.parse_repetitions(text))
    name = checks.one_of("protocol", name.strip().lower(), _PROTOCOLS)
    if name not in _WITH_REPETITIONS and (slash or repetitions is not None):
        raise InvalidInput(
            f"repetitions must not be given with protocol {name}, which has no random K, got "
            f"{tail or repetitions}"
        )
    if slash and repetitions is not None:
        raise InvalidInput(f"repetitions must be given once, got {tail!r} and {repetitions}")
    law = laws.parse_repetitions(
        tail if slash else repetitions if repetitions is not None else DEFAULT_REPETITIONS
    )
    words = [word.strip() for word in parameters.split(",")] if parameters else []
    try:
        return _READERS[name](words, law)
    except ValueError as error:
        raise InvalidInput(f"protocol {' '.join(text.split())}: {error}") from error


def _numbers(words: list[str], least: int, most: int, what: str) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if not least <= len(values) <= most or len(values) != len(words):
        raise InvalidInput(
            f"parameters must be {what}, got {' '.join(','.join(words).split()) or 'none'}"
        )
    return values


def _search(words: list[str], law: Repetitions) -> Protocol:
    _numbers(words, 0, 0, "none; the distribution of K follows after a slash")
    return RandomSearch(law)


def _grid(words: list[str], law: Repetitions) -> Protocol:
    values = _numbers(words, 1, 2, "CANDIDATES or CANDIDATES,INCLUSION")
    return Grid(checks.integer("candidates", values[0], 1), *values[1:])


def _adaptive(words: list[str], law: Repetitions) -> Protocol:
    return Adaptive(law, *_numbers(words, 2, 2, "LOW,HIGH"))


def _subset(words: list[str], law: Repetitions) -> Protocol:
    rate = _numbers(words[:1], 1, 1, "RATE or RATE,rest|all")
    if len(words) > 2:
        raise InvalidInput(f"parameters must be RATE or RATE,rest|all, got {','.join(words)}")
    return Subset(law, rate[0], *words[1:])


def _until(words: list[str], law: Repetitions) -> Protocol:
    return UntilAccepted(*_numbers(words, 1, 1, "ACCEPTANCE"))


def _stopping(words: list[str], law: Repetitions) -> Protocol:
    return RandomStopping(*_numbers(words, 1, 1, "STOP"))


def _schedule(words: list[str], law: Repetitions) -> Protocol:
    return BudgetSchedule(tuple(_numbers(words, 1, len(words), "FACTOR,FACTOR,...")))


def _noisy_max(words: list[str], law: Repetitions) -> Protocol:
    monotone = words[-1:] == ["monotone"]
    kept = words[:-1] if monotone else words
    values = _numbers(kept, 1, 2, "CANDIDATES[,ROUNDS][,monotone]")
    rounds = checks.integer("rounds", values[1], 1) if len(values) > 1 else 1
    return NoisyMax(checks.integer("candidates", values[0], 1), monotone, rounds)


def _ptr(words: list[str], law: Repetitions) -> Protocol:
    return ProposeTestRelease(law, *_numbers(words, 3, 3, "EPSILON,DELTA,FAILURE"))


def _best(words: list[str], law: Repetitions) -> Protocol:
    (released,) = _numbers(words, 1, 1, "RELEASED")
    return BestRuns(law, checks.integer("released", released, 1))


def _pareto(words: list[str], law: Repetitions) -> Protocol:
    (most,) = _numbers(words, 1, 1, "MOST")
    return ParetoFront(law, checks.integer("most", most, 1))


_READERS: dict[str, Callable[[list[str], Repetitions], Protocol]] = {
    "search": _search,
    "grid": _grid,
    "adaptive": _adaptive,
    "subset": _subset,
    "until": _until,
    "stopping": _stopping,
    "schedule": _schedule,
    "noisy-max": _noisy_max,
    "ptr": _ptr,
    "best": _best,
    "pareto": _pareto,
}
