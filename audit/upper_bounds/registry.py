"""The registry of upper bounds: every bound by name and protocol, in the order of tables.

A bound registers itself together with its claim. Tables, comparisons, figures and the documentation
read the registry, so a new bound changes one file: its own.
The result of a bound, a number with its assumptions and its source, is defined here, too.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from audit import checks
from audit.accounting import DeltaUnreachable, Mechanism, parse_mechanism
from audit.accounting.conversion import LARGEST_EPSILON
from audit.claims import Claim, Kind
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import format_places
from audit.protocols import Protocol, RandomSearch, parse_protocol
from audit.repetitions import Repetitions

FAILURE_TOO_LIKELY = (
    "delta must be above the probability that one of the K runs fails, about E[K] delta_base"
)
"""Why bounds through pure DP do not apply to a base with a large delta of its own."""
ProtocolLike = str | Repetitions | Protocol
"""A protocol, or a distribution of K, which means random search; as an object or as text."""
Exceeds = Callable[[Mechanism, Any, float, float], bool]
FAILED = "its computation failed numerically"
_FAILURES = (ArithmeticError, MemoryError, ValueError, IndexError)
_ARGUMENTS = """
Args:
    base: the base mechanism.
    {}, as an object or as text.
    delta: in (0, 1).
"""


@dataclass(frozen=True)
class UpperBound:
    """An upper bound on the cost of a tuning, or the reason why it does not apply.

    Attributes:
        name: the bound's name.
        epsilon: the value, rounded to the safe side; infinite if the bound does not apply.
        claim: the kind of the number, its assumptions and its source.
        error: the exact value of the bound lies in [epsilon - error, epsilon] (for an attained
            value, in [epsilon, epsilon + error]).
        reason: the reason why the bound does not apply; empty if it applies.
        attains: an epsilon that some score is known to attain; 0 if none is known.
        statement: the cost as one sentence with all its premises, as `tuning_cost` states it;
            empty for a single bound of a table.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import region
        >>> str(region(GaussianMechanism(0.25), "fixed:10", 1e-5)).split("; ")[0]
        'epsilon <= 3.048 by region: any score'
    """

    name: str
    epsilon: float
    claim: Claim
    error: float = 0.0
    reason: str = ""
    attains: float = 0.0
    statement: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        if not self.applies:
            return f"{self.name} {self.assumes}"
        if self.statement:
            return f"{self.statement} (Bound: {self.name}.)"
        sign = "about" if self.approximate else ">=" if self.attained else "<="
        epsilon = format_places(self.epsilon, up=not self.attained)
        return f"epsilon {sign} {epsilon} by {self.name}: {self.assumes}"

    @property
    def applies(self) -> bool:
        """Whether the bound applies and has a value."""
        return not self.reason

    @property
    def assumes(self) -> str:
        """The assumptions of the value in one line, or the reason why the bound does not apply."""
        return f"does not apply: {self.reason}" if self.reason else self.claim.words

    @property
    def source(self) -> str:
        """The paper and theorem."""
        return self.claim.source

    @property
    def attained(self) -> bool:
        """Whether the value is attained by an attack, and so is not an upper bound."""
        return self.claim.kind is Kind.ATTAINED

    @property
    def approximate(self) -> bool:
        """Whether the value is an approximation, and so is not a bound."""
        return self.claim.kind is Kind.APPROXIMATION

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values, for json and tables."""
        row: dict[str, Any] = {
            "name": self.name,
            "epsilon": self.epsilon if self.applies else None,
            "assumes": self.claim.words,
            "source": self.source,
            "error": self.error,
            "attained": self.attained,
            "approximate": self.approximate,
        }
        return row | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True)
class BoundValue:
    """The result of the body of a bound."""

    epsilon: float  # rounded to the safe side
    error: float = 0.0  # largest effect of rounding and discretisation on epsilon
    source: str | None = None  # the theorem that was used, if it depends on the setting
    about: tuple[str, ...] = ()  # further remarks for the reader
    attains: float = 0.0  # an epsilon that some score is known to attain; 0 if none is known


Body = Callable[[Mechanism, Any, float], BoundValue]


AtOtherDelta = Callable[[Mechanism, Any, float, float], BoundValue]


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
    is_quick: bool = False  # whether it is fast and at most slightly above the smallest bound
    preview: Body | None = None  # a faster computation, whose value is at least that of the bound
    # a quick value at a delta, at least that of the bound and close to it; the last argument is the
    # delta of a certificate, whose computations it may share
    at_other_delta: AtOtherDelta | None = None

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
            value = self.body(base, argument, delta)
        except NotApplicable as error:
            return UpperBound(self.name, math.inf, self.claim, reason=str(error))
        if not value.epsilon <= LARGEST_EPSILON:
            reason = FAILED if math.isnan(value.epsilon) else "no epsilon reaches delta"
            return UpperBound(self.name, math.inf, self.claim, reason=reason)
        claim = replace(
            self.claim,
            source=value.source or self.claim.source,
            about=self.claim.about + value.about,
        )
        attains = value.epsilon if claim.kind is Kind.ATTAINED else value.attains
        return UpperBound(self.name, value.epsilon, claim, value.error, attains=attains)


_ENTRIES: dict[tuple[type[Protocol], str], Entry] = {}


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
    is_quick: bool = False,
    preview: Body | None = None,
    at_other_delta: AtOtherDelta | None = None,
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
            return entry.evaluate(*parsed_arguments(base, protocol, delta))

        if (protocol, name) in _ENTRIES:
            raise InvalidInput(f"bound names must be used once, got {name!r} again")
        function.__doc__ = _with_arguments(body.__doc__ or "", protocol)
        entry = Entry(
            name,
            body,
            function,
            claim,
            protocol,
            place,
            is_special,
            title,
            exceeds,
            deferred,
            is_quick,
            preview,
            at_other_delta,
        )
        _ENTRIES[protocol, name] = entry
        return function

    return register


def _with_arguments(doc: str, protocol: type[Protocol]) -> str:
    """The docstring of a bound, with the arguments that all bounds share."""
    text, example, code = inspect.cleandoc(doc).partition("\nExample:")
    search = protocol is RandomSearch
    argument = "repetitions: the distribution of K" if search else "protocol: the protocol"
    return f"{text.rstrip()}\n{_ARGUMENTS.format(argument)}{example}{code}"


def parsed_arguments(
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
    of_protocol = [entry for entry in _ENTRIES.values() if entry.protocol is protocol]
    return sorted(of_protocol, key=lambda entry: (entry.is_special, entry.place))


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
        reason = f"{FAILED}: {' '.join(str(error).split()) or type(error).__name__}"
    return UpperBound(name, math.inf, claim, reason=reason)
