"""The registry of upper bounds: every bound by name and protocol, in the order of tables.

A bound registers itself together with its claim. Tables, comparisons, figures and the documentation
read the registry, so a new bound changes one file: its own.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit import checks
from audit.accounting import DeltaUnreachable, Mechanism, parse_mechanism
from audit.accounting.conversion import LARGEST_EPSILON
from audit.claims import Claim, Kind
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import format_rounded
from audit.protocols import Protocol, RandomSearch, parse_protocol
from audit.repetitions import Repetitions
from audit.upper_bounds.result import UpperBound
from audit.upper_bounds.statement import statement_of_tuning

ProtocolLike = str | Repetitions | Protocol
"""A protocol, or a distribution of K, which means random search; as an object or as text."""


@dataclass(frozen=True)
class BoundValue:
    """The result of the body of a bound."""

    epsilon: float  # rounded to the safe side
    error: float = 0.0  # largest effect of rounding and discretisation on epsilon
    source: str | None = None  # the theorem that was used, if it depends on the setting
    about: tuple[str, ...] = ()  # further remarks for the reader
    attains: float = 0.0  # an epsilon that some score is known to attain; 0 if none is known


Body = Callable[[Mechanism, Any, float], BoundValue]
Exceeds = Callable[[Mechanism, Any, float, float], bool]
Bound = Callable[[Mechanism, ProtocolLike, float], UpperBound]
"""The type of every bound: a function of (base, protocol, delta)."""


@dataclass(frozen=True)
class Entry:
    """A registered bound."""

    name: str  # name in tables and settings
    # computes the value; it takes the distribution of K for random search, else the protocol
    body: Body
    function: Bound  # the public function; it accepts text for the base and the protocol
    claim: Claim  # the assumptions of its values
    protocol: type[Protocol]  # the protocol that it applies to
    place: float  # position of its row in tables; the loosest bounds come first
    is_special: bool  # whether tables omit its row if it does not apply
    title: str  # its name in figures; empty if figures leave it out
    # a quick test that is true only if the value is above an epsilon, or hardly below it
    exceeds: Exceeds | None = None
    # whether it is computed after all others, if its quick test leaves it a chance to be smallest
    deferred: bool = False

    def is_above(self, epsilon: float, base: Mechanism, protocol: Protocol, delta: float) -> bool:
        """Whether a quick test shows that the bound does not gain, for parsed arguments."""
        try:
            with np.errstate(all="ignore"):
                return self.exceeds is not None and self.exceeds(base, protocol, delta, epsilon)
        except (NotApplicable, DeltaUnreachable, *_FAILURES):
            return False

    def evaluate(self, base: Mechanism, protocol: Protocol, delta: float) -> UpperBound:
        """The bound for parsed arguments; it has a reason if it does not apply."""
        try:
            if not isinstance(protocol, self.protocol):
                raise NotApplicable(f"it requires {self.protocol.assumption}, got {protocol.spec}")
            argument = protocol.repetitions if isinstance(protocol, RandomSearch) else protocol
            found = self.body(base, argument, delta)
        except NotApplicable as error:
            return UpperBound(self.name, math.inf, self.claim, reason=str(error))
        if not found.epsilon <= LARGEST_EPSILON:
            reason = _FAILED if math.isnan(found.epsilon) else "no epsilon reaches delta"
            return UpperBound(self.name, math.inf, self.claim, reason=reason)
        claim = replace(
            self.claim,
            source=found.source or self.claim.source,
            about=self.claim.about + found.about,
        )
        attains = found.epsilon if claim.kind is Kind.ATTAINED else found.attains
        return UpperBound(self.name, found.epsilon, claim, found.error, attains=attains)


_ENTRIES: dict[tuple[type[Protocol], str], Entry] = {}

_FAILED = "its computation failed numerically"
_FAILURES = (ArithmeticError, MemoryError, ValueError, IndexError)

# Relative accuracy of an attained epsilon if the losses of many steps are composed on a grid.
_COMPOSED_ACCURACY = 1e-6
# Relative distance of a bound from an attained epsilon below which no other bound is computed.
_EXACT = 1.1e-5


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
    exceeds: Exceeds | None = None,
    deferred: bool = False,
) -> Callable[[Body], Bound]:
    """Registers a bound.

    The decorated function takes (base, repetitions, delta) for random search, else (base, protocol,
    delta), and returns a `BoundValue` or raises `NotApplicable`. The function that users call takes
    a protocol or a distribution of K, as an object or as text. It returns an `UpperBound` even if
    the bound does not apply. Each name is used once for a protocol. The arguments are those of the
    `Entry` and of its `Claim`; `needs` are the assumptions other than the protocol.
    """
    claim = Claim(kind, source, (protocol,), needs, about, is_upper=True)

    def register(body: Body) -> Bound:
        @functools.wraps(body)
        def function(base: Mechanism, protocol: ProtocolLike, delta: float) -> UpperBound:
            return entry.evaluate(*_parse(base, protocol, delta))

        if (protocol, name) in _ENTRIES:
            raise InvalidInput(f"bound names must be used once, got {name!r} again")
        function.__doc__ = _with_arguments(body.__doc__ or "", protocol)
        entry = Entry(
            name, body, function, claim, protocol, place, is_special, title, exceeds, deferred
        )
        _ENTRIES[protocol, name] = entry
        return function

    return register


_ARGUMENTS = """
Args:
    base: the base mechanism.
    {}, as an object or as text.
    delta: in (0, 1).
"""


def _with_arguments(doc: str, protocol: type[Protocol]) -> str:
    """The docstring of a bound, with the arguments that all bounds share."""
    text, example, code = inspect.cleandoc(doc).partition("\nExample:")
    search = protocol is RandomSearch
    argument = "repetitions: the distribution of K" if search else "protocol: the protocol"
    return f"{text.rstrip()}\n{_ARGUMENTS.format(argument)}{example}{code}"


def _parse(
    base: Mechanism, protocol: ProtocolLike, delta: float
) -> tuple[Mechanism, Protocol, float]:
    """The arguments of a public bound as validated objects."""
    return (
        parse_mechanism(base),
        parse_protocol(protocol),
        checks.interval("delta", delta, 0.0, 1.0),
    )


def entries(protocol: type[Protocol] = RandomSearch) -> list[Entry]:
    """The bounds for a protocol, in the order of their rows.

    Example:
        >>> from audit.protocols import Grid
        >>> [entry.name for entry in entries(Grid)]
        ['composition', 'grid', 'grid-levels', 'grid-log-concave', 'grid-tight']
    """
    found = [entry for entry in _ENTRIES.values() if entry.protocol is protocol]
    return sorted(found, key=lambda entry: (entry.is_special, entry.place))


def find(name: str, protocol: type[Protocol] = RandomSearch) -> Entry:
    """A bound by its name, in upper or lower case.

    Raises:
        InvalidInput: the protocol has no bound of this name.

    Example:
        >>> find("TIGHT").name
        'tight'
    """
    names = [entry.name for entry in entries(protocol)]
    return _ENTRIES[protocol, checks.one_of("bound", name, names)]


def all_upper_bounds(base: Mechanism, protocol: ProtocolLike, delta: float) -> list[UpperBound]:
    """Every bound for the protocol, the loosest kind first.

    Args:
        base: the base mechanism.
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        delta: in (0, 1).

    Raises:
        InvalidInput: delta is not in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> rows = all_upper_bounds(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5)
        >>> [row.name for row in rows if row.epsilon < 1.45]
        ['reduced-renyi', 'reduced-exact', 'worst-order', 'region', 'tight']
    """
    base, protocol, delta = _parse(base, protocol, delta)
    bounds = entries(type(protocol))
    rows = without_contradictions([row(entry, base, protocol, delta) for entry in bounds])
    return [
        found
        for entry, found in zip(bounds, rows, strict=True)
        if found.applies or not entry.is_special
    ]


def row(entry: Entry, base: Mechanism, protocol: Protocol, delta: float) -> UpperBound:
    """One bound, for parsed arguments; a failure becomes the reason of the row."""
    return answered(entry.name, entry.claim, lambda: entry.evaluate(base, protocol, delta))


def answered(name: str, claim: Claim, answer: Callable[[], UpperBound]) -> UpperBound:
    """The row that `answer` returns, or a row with the reason of its failure."""
    try:
        with np.errstate(all="ignore"):  # only the result is checked
            return answer()
    except DeltaUnreachable as error:
        reason = str(error)
    except _FAILURES as error:
        reason = f"{_FAILED}: {' '.join(str(error).split()) or type(error).__name__}"
    return UpperBound(name, math.inf, claim, reason=reason)


def without_contradictions(rows: list[UpperBound]) -> list[UpperBound]:
    """The rows; a bound below an epsilon that some score attains is replaced by a reason.

    This happens only at extreme parameters, at which the computation of a bound fails numerically.
    """
    attained = max((one.attains for one in rows), default=0.0)
    least = attained * (1.0 - _COMPOSED_ACCURACY)
    reason = (
        f"{_FAILED}: the value is below {format_rounded(attained, up=False, digits=6)}, which an "
        "attack attains"
    )
    return [
        replace(one, epsilon=math.inf, reason=reason)
        if one.claim.any_score and one.epsilon < least
        else one
        for one in rows
    ]


def tuning_cost(base: Mechanism, protocol: ProtocolLike, delta: float) -> UpperBound:
    """The cost of a tuning: the smallest bound that holds for every score.

    Args:
        base: the base mechanism.
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        delta: in (0, 1).

    Raises:
        DeltaUnreachable: no bound reaches delta; the message gives the reason.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(tuning_cost(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 4)
        1.4488
    """
    base, protocol, delta = _parse(base, protocol, delta)
    bounds = entries(type(protocol))
    valid = [entry for entry in bounds if entry.claim.any_score]
    computed: dict[str, UpperBound] = {}
    rows: list[UpperBound] = []
    for entry in sorted(reversed(valid), key=lambda entry: entry.deferred):  # sharpest first
        so_far = smallest(without_contradictions(rows))
        if so_far is not None and entry.is_above(so_far.epsilon, base, protocol, delta):
            continue
        found = computed[entry.name] = row(entry, base, protocol, delta)
        rows = [computed[one.name] for one in valid if one.name in computed]
        is_exact = found.epsilon <= (1.0 + _EXACT) * found.attains
        if is_exact and not isinstance(protocol, RandomSearch):  # whose simplest equal is named
            break
    if not any(one.attains for one in rows):  # otherwise a bound found an attained epsilon already
        attained = [entry for entry in bounds if entry.claim.kind is Kind.ATTAINED]
        rows += [row(entry, base, protocol, delta) for entry in attained]
    rows = without_contradictions(rows)
    best = smallest(rows)
    if best is None:
        general = [one for entry, one in zip(valid, rows, strict=False) if not entry.is_special]
        # A bound that applies says which deltas it reaches; the others only why they do not apply.
        about_delta = {one.reason: one for one in general if one.reason.startswith("delta must")}
        reasons = [f"{one.name}: {one.reason}" for one in about_delta.values() or general[-1:]]
        raise DeltaUnreachable(
            f"delta must be one that some bound for {protocol.spec} reaches, got "
            f"{checks.one_line(delta)} ({'; '.join(reasons)})"
        )
    return replace(best, statement=statement_of_tuning(best.epsilon, delta, base, protocol))


def smallest(rows: Sequence[UpperBound]) -> UpperBound | None:
    """The smallest of some bounds that holds for every score; None if there is none.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import region
        >>> from audit.upper_bounds.published import renyi
        >>> rows = [bound(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5) for bound in (renyi, region)]
        >>> smallest(rows).name
        'region'
    """
    known = [
        (found.epsilon, place, found)
        for place, found in enumerate(rows)
        if found.applies and found.claim.any_score
    ]
    return min(known)[2] if known else None
