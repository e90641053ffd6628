"""The interface of tuning protocols, and the registry of their names.

A protocol is one file. It contains the description and the text form of the protocol, its
sentences, and its dynamics: how many runs there are, which candidate comes next, when the tuning
ends, which runs are released, and how much noise each run has. Studies, simulations, certificates,
comparisons, the calculator and the commands read all of this from the protocol and list no kinds.
Its upper bounds register themselves with `audit.upper_bounds.registry.bound`.

The sentences about a protocol in certificates, reports and tables are part of it.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self
from typing import Protocol as Interface

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.numbers_from_text import read_number
from audit.numerics import FloatArray
from audit.repetitions.base import Repetitions

THROUGH = "through the base mechanism alone"
"""How a run may read private records."""
Point = tuple[float, ...]
"""A candidate as a point of the unit cube, with one coordinate per dimension of the space."""
USES_RESULTS = "with earlier results"
"""How candidates are chosen by an optimiser, or by hand; see `Case.chosen`."""
_OTHER_NAMES: dict[str, str] = {}


@dataclass(frozen=True)
class Statement:
    """The sentences of a certificate about a protocol; the defaults are those of random search.

    Attributes:
        summary: the protocol in sentences.
        claimed: the output that the guarantee covers.
        released: everything that is released.
        secret: the random number that must stay secret, in addition to losing runs.
        candidates: how candidates are chosen.
        runs: how the number of runs is determined.
        acceptance: the condition on accepting a run; empty if no run is accepted or rejected.
        score_noise: who adds the noise of a private score.
        void_if: further events that make the certificate void.
        records: the records that a run reads, by the name of the run.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> print(parse_protocol("fixed:5").statement.summary)
        The tuning trains exactly 5 runs, each with an independent candidate, and releases the best.
    """

    summary: str
    claimed: str = "the best run of this tuning"
    released: str = (
        "the output of the best run, its candidate and its score, or that there was none"
    )
    secret: str = "the number of runs"
    candidates: str = "each candidate is drawn from the prior, independently of earlier runs"
    runs: str = "the number of runs is drawn before the first run, and no run is left out"
    acceptance: str = ""
    score_noise: str = "the study adds the noise of the score"
    void_if: tuple[str, ...] = ()
    records: Mapping[str, str] = field(
        default_factory=lambda: {"one run": f"the private training records, {THROUGH}"}
    )


class CandidateSpace(Interface):
    """The part of a search space that a protocol needs to choose candidates."""

    @property
    def dimensions(self) -> Mapping[str, Any]:
        """The dimensions by name."""
        ...

    def draw(self, rng: np.random.Generator) -> Point:
        """A candidate from the prior."""
        ...

    def points(self) -> list[Point]:
        """All candidates of a finite space, in order."""
        ...

    def features(self, point: Sequence[float]) -> FloatArray:
        """Features of a candidate in [0, 1], for a model of the scores."""
        ...


class FinishedRun(Interface):
    """The part of a finished run on which later candidates may depend."""

    @property
    def point(self) -> Point:
        """The candidate."""
        ...

    @property
    def score(self) -> float | None:
        """The score; None if the run failed."""
        ...


class SimulatedTunings(Interface):
    """T simulated tunings of an audit, which a protocol carries out; see `audit.simulation`."""

    @property
    def rng(self) -> np.random.Generator:
        """The random stream of the tunings."""
        ...

    @property
    def count(self) -> int:
        """T, the number of tunings."""
        ...

    def best_of_draws(self, repetitions: Repetitions) -> list[Any]:
        """Winners of K runs with independent candidates."""
        ...

    def best_of_list(self, is_run: NDArray[np.bool_]) -> list[Any]:
        """Winners among the candidates of a list; `is_run`, [T, n]: which of them are trained."""
        ...

    def best_of_adaptive(self, protocol: Any) -> list[Any]:
        """Winners of K runs whose candidates depend on the earlier runs."""
        ...

    def first_accepted(self, max_runs: NDArray[np.int64]) -> list[Any]:
        """The first accepted run of each tuning, among at most `max_runs`, [T]."""
        ...

    def tuned_on_subset(self, protocol: Any) -> list[Any]:
        """Random search on a part of the records, then one final run."""
        ...


@dataclass(frozen=True)
class Case:
    """One setting of a protocol in comparisons and in the calculator.

    Attributes:
        title: the setting in words.
        protocol: the protocol with about the wanted expected number of runs.
        chosen: how candidates are chosen, in words that continue "candidates are chosen".

    Example:
        >>> from audit.protocols import RandomSearch
        >>> RandomSearch.cases(10)[-1].protocol.spec
        'fixed:10'
    """

    title: str
    protocol: "Protocol"
    chosen: str = "at random"


class Protocol(ABC):
    """A tuning protocol: how the runs are made and which are released, without data or noise.

    A subclass that sets `name` is registered: `parse_protocol`, commands and certificates then know
    it. A subclass implements `spec`. It overrides `statement` if there are certificates for it, the
    dynamics that differ from random search, and `simulate` if an audit can play it.

    Attributes:
        name: the name of the protocol in texts, such as `grid` in `grid:100,0.5`.
        other_names: further names in texts under which people know the protocol.
        assumption: the condition on a tuning under which theorems about this protocol apply.
        release: what is released, in words.
        parameters: the parameters of the text form, in words, for error messages.
        draws_number: whether a distribution of K follows the text form after a slash.
        candidates_are: `drawn` from the prior, independently of each other or with an adaptive
            density; `listed` if a fixed list is trained; or `chosen` if the candidate of some run
            is the result of a choice.
        is_sequential: whether the next run depends on the runs before it.
        is_adaptive: whether candidates depend on earlier runs.
        ends_with_accepted: whether the first accepted run ends the tuning and is released.
        trains_on_subset: whether the tuning reads a random part of the records and a final run
            follows.
        releases_several: whether several runs are released.
        releases_step: whether the index of the released run is released, too. It must not be unless
            a bound covers it: with the index of the run, random search leaks more.

    Example:
        >>> from audit.protocols import Grid
        >>> Grid(20).name, Grid(20).assumption.split(",")[0]
        ('grid', 'a fixed list of candidates')
    """

    name: ClassVar[str]
    other_names: ClassVar[tuple[str, ...]] = ()
    assumption: ClassVar[str]
    release: ClassVar[str] = "only the best run is released"
    parameters: ClassVar[str] = "none"
    draws_number: ClassVar[bool] = False
    candidates_are: ClassVar[Literal["drawn", "listed", "chosen"]] = "drawn"
    is_sequential: ClassVar[bool] = False
    is_adaptive: ClassVar[bool] = False
    ends_with_accepted: ClassVar[bool] = False
    trains_on_subset: ClassVar[bool] = False
    releases_several: ClassVar[bool] = False
    releases_step: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            _register(cls)

    # Description and text form.

    @property
    @abstractmethod
    def spec(self) -> str:
        """The protocol as text; `parse_protocol(protocol.spec) == protocol`."""

    @classmethod
    def from_words(cls, words: Sequence[str], repetitions: Repetitions | None) -> Self:
        """The protocol from the parameters of its text form.

        Args:
            words: the parameters between the colon and the slash.
            repetitions: the distribution of K; None if the protocol draws none.

        Raises:
            InvalidInput: a parameter is missing, superfluous or not a number.
        """
        limits = cls._number_of_parameters()
        values = cls._read_numbers(words, *limits)
        return cls(*([] if repetitions is None else [repetitions]), *values)

    @classmethod
    def _number_of_parameters(cls) -> tuple[int, int]:
        """The smallest and the largest number of parameters: those of the constructor."""
        fields: Any = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        count = len({field.name for field in fields} - {"repetitions"})
        return count, count

    @classmethod
    def _read_numbers(cls, words: Sequence[str], least: int, most: float) -> list[Any]:
        """The numbers as text, which the constructor reads as whole numbers or not."""
        values: list[Any] = list(words)
        try:
            for word in words:
                read_number(word)
        except ValueError:
            values = []
        if not least <= len(values) <= most or len(values) != len(words):
            raise InvalidInput(
                f"parameters must be {cls.parameters}, got "
                f"{' '.join(','.join(words).split()) or 'none'}"
            )
        return values

    @property
    def mean_runs(self) -> float | None:
        """Expected number of runs without a final run; None if it depends on the data."""
        return None

    @property
    def expected_work(self) -> float:
        """Expected number of runs with a final run; the largest one if it depends on the data."""
        return self.mean_runs or 0.0

    @property
    def runs_distribution(self) -> Repetitions | None:
        """The distribution of the number of runs; None if the outputs decide how many there are."""
        return None

    @property
    def search_repetitions(self) -> Repetitions | None:
        """The distribution of K if the protocol is a random search; None for other protocols.

        The papers' theorems and the estimators for a winner of independent draws apply to it.
        """
        return None

    @property
    def similar_search(self) -> Repetitions | None:
        """The distribution of K of a random search that costs about as much, or None.

        A search for noise starts at the answer for it; no result depends on it.
        """
        return self.search_repetitions

    @property
    def part_of_records(self) -> tuple[float, str] | None:
        """The random part of the records that the tuning reads; None if it reads all records.

        The probability that a record belongs to the part, and whether the final run reads the
        `rest` of the records or `all`.
        """
        return None

    @property
    def list_length(self) -> int | None:
        """Number of candidates of the fixed list; None if the protocol has no list."""
        return None

    def expected_quantile(self) -> float | None:
        """Expected quantile of the released candidate among all; None if it is not defined."""
        return None

    @classmethod
    def cases(cls, runs: float) -> list[Case]:
        """Settings with an expected number of runs, which comparisons and the calculator show."""
        return []

    # Sentences.

    @cached_property
    def statement(self) -> Statement:
        """The sentences of certificates about this protocol.

        Raises:
            InvalidInput: there are no certificates for this protocol.
        """
        names = ", ".join(kind.name for kind in all_protocols() if kind.can_be_studied())
        raise InvalidInput(
            f"protocol must be one whose conditions are known ({names}), got {self.spec}"
        )

    @classmethod
    def can_be_studied(cls) -> bool:
        """Whether a `Study` can run the protocol and issue certificates about it."""
        return cls.statement is not Protocol.statement

    # Dynamics of a study.

    def draw_runs(self, rng: np.random.Generator) -> Sequence[int] | None:
        """The indices of all runs, drawn first; None if the outputs decide how many there are."""
        if self.runs_distribution is None:
            return None
        return range(int(self.runs_distribution.sample(rng, 1)[0]))

    def next_candidate(
        self,
        space: CandidateSpace,
        rng: np.random.Generator,
        index: int,
        before: Sequence[FinishedRun],
    ) -> Point:
        """The candidate of the run with an index, from 0, after the runs before it.

        Run i of a fixed list trains its candidate i. Otherwise, the candidate is drawn.
        """
        return space.draw(rng) if self.list_length is None else space.points()[index]

    def noise_factor(self, index: int) -> float:
        """The noise of a run, as a multiple of that of the base mechanism."""
        return 1.0

    def gives_up(self, index: int, rng: np.random.Generator) -> bool:
        """Whether the tuning ends without a result after this rejected run."""
        return False

    @property
    def may_never_end(self) -> bool:
        """Whether the tuning never ends if every run fails."""
        return False

    @property
    def released_runs(self) -> int:
        """Largest number of released runs."""
        return 1

    # Dynamics of an audit.

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        """Winners of simulated tunings, in every view of the runs.

        Raises:
            InvalidInput: an audit cannot play this protocol.
        """
        names = ", ".join(kind.name for kind in all_protocols() if kind.can_be_simulated())
        raise InvalidInput(f"protocol must be one that an audit can play: {names}, got {self.spec}")

    @classmethod
    def can_be_simulated(cls) -> bool:
        """Whether an audit can play the protocol."""
        return cls.simulate is not Protocol.simulate

    @classmethod
    def can_share_runs(cls) -> bool:
        """Whether one set of runs serves several views, because no run depends on a score."""
        return cls.can_be_simulated() and not (cls.is_sequential or cls.trains_on_subset)

    def __str__(self) -> str:
        return self.spec


_REGISTRY: dict[str, type[Protocol]] = {}


def _register(kind: type[Protocol]) -> None:
    registered = _REGISTRY.get(kind.name)
    # A module that is imported again, or `dataclass(slots=True)`, defines the same class twice.
    if registered is not None and registered.__qualname__ != kind.__qualname__:
        raise InvalidInput(
            f"name must be used by one protocol, got {kind.name!r} for {kind.__qualname__} and for "
            f"{registered.__qualname__}"
        )
    _REGISTRY[kind.name] = kind
    _OTHER_NAMES.update(dict.fromkeys(kind.__dict__.get("other_names", ()), kind.name))


def all_protocols() -> list[type[Protocol]]:
    """All registered kinds of protocols: random search, then the others by name.

    Example:
        >>> all_protocols()[0].name
        'search'
    """
    return sorted(_REGISTRY.values(), key=lambda kind: (kind.name != "search", kind.name))


def protocol_named(name: str) -> type[Protocol] | None:
    """The kind of protocols with a name; None if no protocol has it."""
    return _REGISTRY.get(_OTHER_NAMES.get(name, name))


def whole_runs(runs: float) -> int:
    """A wanted number of runs as a whole number."""
    return max(1, math.floor(runs + 0.5))
