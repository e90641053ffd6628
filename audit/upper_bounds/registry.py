"""Where every upper bound is found: by name, by protocol, in the order of tables.

A bound registers itself with what it claims. Tables, comparisons, pictures and the documentation
find it here, so a new bound touches one file: its own.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit import checks, protocols
from audit.accounting import Mechanism, Unreachable, parse_mechanism
from audit.claims import Claim, Kind
from audit.numerics import format_rounded
from audit.protocols import Protocol, RandomSearch
from audit.repetitions import Repetitions
from audit.upper_bounds.result import NotApplicable, UpperBound

Tuning = str | Repetitions | Protocol
"""A protocol, or a law of K, which means random search; either as text, too."""


@dataclass(frozen=True)
class BoundValue:
    """What the body of a bound finds.

    Attributes:
        epsilon: rounded to the safe side.
        error: how far rounding and discretisation may have moved it.
        source: of the theorem used, where it depends on the setting.
        about: what a reader must know of it besides the claim.
        attains: an epsilon that some score was found to attain on the way.
    """

    epsilon: float
    error: float = 0.0
    source: str | None = None
    about: tuple[str, ...] = ()
    attains: float = 0.0


Body = Callable[[Mechanism, Any, float], BoundValue]
Bound = Callable[[Mechanism, Tuning, float], UpperBound]


@dataclass(frozen=True)
class Entry:
    """A registered bound.

    Attributes:
        name: in tables and settings.
        function: from (base, protocol, delta) to an answer.
        claim: what its values need to be true.
        protocol: the protocol it speaks of.
        place: where its row stands; the loosest kind first.
        is_special: whether tables leave it out where it does not apply.
        title: what pictures call it; empty where they leave it out.
    """

    name: str
    function: Bound
    claim: Claim
    protocol: type[Protocol]
    place: float
    is_special: bool
    title: str


_ENTRIES: dict[tuple[type[Protocol], str], Entry] = {}


# What an order attains is known to that, where the losses of many steps were composed on a grid.
_COMPOSED = 1e-6


def bound(
    name: str,
    place: float,
    source: str,
    *,
    kind: Kind = Kind.BOUND,
    needs: tuple[Any, ...] = (),
    about: tuple[str, ...] = (),
    protocol: type[Protocol] = RandomSearch,
    is_special: bool = False,
    title: str = "",
) -> Callable[[Body], Bound]:
    """Registers a bound.

    The decorated function takes (base, repetitions, delta) for random search, else (base, protocol,
    delta), and returns a `Value` or raises `NotApplicable`. What users call takes a protocol or a
    law of K, as object or text, and answers with an `UpperBound`, also where it does not apply.

    Args:
        name: in tables and settings, once for every protocol.
        place: where its row stands among those of its protocol; the loosest kind first.
        source: paper and theorem.
        kind: what its values are.
        needs: conditions besides the protocol.
        about: what a reader must know besides.
        protocol: the protocol it speaks of.
        is_special: whether tables leave it out where it does not apply.
        title: what pictures call it.
    """
    claim = Claim(kind, source, (protocol,), needs, about, is_upper=True)

    def register(body: Body) -> Bound:
        @functools.wraps(body)
        def answer(base: Mechanism, repetitions: Tuning, delta: float) -> UpperBound:
            base, delta = parse_mechanism(base), checks.interval("delta", delta, 0.0, 1.0)
            asked = protocols.parse_protocol(repetitions)
            try:
                if not isinstance(asked, protocol):
                    raise NotApplicable(f"it needs {protocol.assumption}, got {asked.spec}")
                argument = asked.repetitions if isinstance(asked, RandomSearch) else asked
                found = body(base, argument, delta)
            except NotApplicable as error:
                return UpperBound(name, None, claim, reason=str(error))
            if math.isnan(found.epsilon):
                return UpperBound(name, None, claim, reason="its numbers fail here")
            exact = replace(
                claim, source=found.source or claim.source, about=claim.about + found.about
            )
            attains = found.epsilon if kind is Kind.ATTAINED else found.attains
            return UpperBound(name, found.epsilon, exact, found.error, attains=attains)

        if (protocol, name) in _ENTRIES:
            raise ValueError(f"bound names must be used once, got {name!r} again")
        _ENTRIES[protocol, name] = Entry(name, answer, claim, protocol, place, is_special, title)
        return answer

    return register


def entries(protocol: type[Protocol] = RandomSearch) -> list[Entry]:
    """The bounds that speak of a protocol, in the order of their rows.

    Example:
        >>> from audit.protocols import Grid
        >>> [entry.name for entry in entries(Grid)]
        ['composition', 'grid', 'grid-gaussian', 'grid-tight']
    """
    found = [entry for entry in _ENTRIES.values() if entry.protocol is protocol]
    return sorted(found, key=lambda entry: (entry.is_special, entry.place))


def find(name: str, protocol: type[Protocol] = RandomSearch) -> Entry:
    """A bound by name, in any case.

    Raises:
        ValueError: the protocol has no such bound.
    """
    names = [entry.name for entry in entries(protocol)]
    return _ENTRIES[protocol, checks.one_of("bound", name, names)]


def all_upper_bounds(base: Mechanism, repetitions: Tuning, delta: float) -> list[UpperBound]:
    """Every bound that speaks of the protocol, the loosest kind first.

    Args:
        base: the base mechanism.
        repetitions: the protocol, or the law of K of a random search; either as text, too.
        delta: in (0, 1).

    Raises:
        ValueError: delta is not in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> rows = all_upper_bounds(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5)
        >>> [row.name for row in rows if row.epsilon is not None and row.epsilon < 1.45]
        ['reduced-renyi', 'reduced-exact', 'worst-order', 'region', 'tight']
    """
    base, delta = parse_mechanism(base), checks.interval("delta", delta, 0.0, 1.0)
    asked = protocols.parse_protocol(repetitions)
    asked_of = entries(type(asked))
    rows = without_contradictions([row(entry, base, asked, delta) for entry in asked_of])
    known = zip(asked_of, rows, strict=True)
    return [found for entry, found in known if found.epsilon is not None or not entry.is_special]


def row(entry: Entry, base: Mechanism, protocol: Protocol, delta: float) -> UpperBound:
    """One bound, with a reason in place of a value where it has none."""
    return answered(entry.name, entry.claim, lambda: entry.function(base, protocol, delta))


def answered(name: str, claim: Claim, answer: Callable[[], UpperBound]) -> UpperBound:
    """A row of a table, with a reason in place of a value where there is none.

    No row takes the others with it: one whose numbers overflow at extreme parameters says so.

    Args:
        name: of the row.
        claim: what its value would claim.
        answer: finds it.
    """
    try:
        with np.errstate(all="ignore"):  # what comes out is judged, not the way there
            return answer()
    except Unreachable as error:
        reason = str(error)
    except (ArithmeticError, MemoryError, ValueError, IndexError) as error:
        reason = f"its numbers fail here: {' '.join(str(error).split()) or type(error).__name__}"
    return UpperBound(name, None, claim, reason=reason)


def without_contradictions(rows: list[UpperBound]) -> list[UpperBound]:
    """The rows, less bounds for any score that are below what some score was seen to attain.

    None should be. Where parameters are so extreme that a bound's numbers fail, it is not to be
    believed, and its row says so.
    """
    attained = max((one.attains for one in rows), default=0.0)
    least = attained * (1.0 - _COMPOSED)
    reason = (
        f"its numbers fail here: it came out below {format_rounded(attained, up=False, digits=6)}, "
        "which an attack attains"
    )
    return [
        replace(one, epsilon=None, reason=reason)
        if one.epsilon is not None and one.claim.any_score and one.epsilon < least
        else one
        for one in rows
    ]


def tuning_cost(base: Mechanism, repetitions: Tuning, delta: float) -> UpperBound:
    """What the tuning costs: the smallest bound that holds for any score, for any protocol.

    Args:
        base: the base mechanism.
        repetitions: the protocol, or the law of K of a random search; either as text, too.
        delta: in (0, 1).

    Raises:
        Unreachable: no bound reaches delta; the message says why not.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(tuning_cost(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 4)
        1.4488
    """
    base, delta = parse_mechanism(base), checks.interval("delta", delta, 0.0, 1.0)
    asked = protocols.parse_protocol(repetitions)
    known = entries(type(asked))
    rows = [row(entry, base, asked, delta) for entry in known if entry.claim.any_score]
    if not any(one.attains for one in rows):  # else what an attack attains came with a bound
        attained = (entry for entry in known if entry.claim.kind is Kind.ATTAINED)
        rows += [row(entry, base, asked, delta) for entry in attained]
    rows = without_contradictions(rows)
    found = smallest(rows)
    if found is None:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in rows[:1])
        raise Unreachable(
            f"delta must be one that some bound for {asked.spec} reaches, got {delta!r} ({reasons})"
        )
    return found


def smallest(rows: Sequence[UpperBound]) -> UpperBound | None:
    """Of some rows the smallest bound on a tuning that holds for any score; None if none does.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import region, renyi
        >>> rows = [bound(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5) for bound in (renyi, region)]
        >>> smallest(rows).name
        'region'
    """
    known = [
        (found.epsilon, place, found)
        for place, found in enumerate(rows)
        if found.epsilon is not None and found.claim.any_score
    ]
    return min(known)[2] if known else None


tightest = tuning_cost
"""`cost` under its first name."""
