"""Random search: K independent runs, of which the best, the best m or a Pareto front are released.

Runs may also test before they release, or train on a part of the records, before one final run.
`RandomRuns` is the base class of all protocols with a random number of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from audit import checks
from audit.numerics import format_exact
from audit.protocols.base import THROUGH, Case, Protocol, SimulatedTunings, Statement, whole_runs
from audit.repetitions import (
    Fixed,
    Poisson,
    Repetitions,
    TruncatedNegativeBinomial,
    parse_repetitions,
)

MAX_RELEASED = 100
"""Largest number of runs that a protocol may release."""

_FINAL_RUNS = ("rest", "all")


@dataclass(frozen=True)
class RandomRuns(Protocol):
    """A protocol that draws K, the number of runs."""

    repetitions: Repetitions  # the distribution of K; text is parsed

    draws_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))

    @property
    def mean_runs(self) -> float:
        return self.repetitions.mean

    @property
    def runs_distribution(self) -> Repetitions | None:
        return self.repetitions

    @property
    def runs_in_words(self) -> str:
        """The number of runs, as part of a sentence."""
        if isinstance(self.repetitions, Fixed):
            runs = "run" if self.repetitions.k == 1 else "runs"
            return f"exactly {self.repetitions.k} {runs}"
        drawn = f"drawn from {self.repetitions.words}; {self.repetitions.mean:.4g} on average"
        return f"a random, secret number of runs ({drawn})"


@dataclass(frozen=True)
class RandomSearch(RandomRuns):
    """K independent runs, each with a candidate drawn from the same prior; the best is released.

    Sources: Liu & Talwar 2019, Papernot & Steinke 2022; algorithm 2 of Xiang, Wang & Wang 2024.

    Attributes:
        repetitions: the distribution of K; text is parsed.

    Example:
        >>> RandomSearch("geometric:0.1").mean_runs
        10.0
    """

    name: ClassVar[str] = "search"
    assumption: ClassVar[str] = "K independent runs, each candidate drawn independently"
    parameters: ClassVar[str] = "none; the distribution of K follows after a slash"

    @property
    def spec(self) -> str:
        return self.repetitions.spec

    @property
    def search_repetitions(self) -> Repetitions | None:
        return self.repetitions

    def expected_quantile(self) -> float | None:
        return self.repetitions.expected_quantile()

    @classmethod
    def cases(cls, runs: float) -> list[Case]:
        drawn = {
            "logarithmic": TruncatedNegativeBinomial(0.0, 0.5).with_mean(runs),
            "geometric": TruncatedNegativeBinomial(1.0, 0.5).with_mean(runs),
            "Poisson": Poisson(runs),
        }
        return [
            *(Case(f"random search, {name} K", cls(law)) for name, law in drawn.items()),
            Case("random search, fixed K", cls(Fixed(whole_runs(runs)))),
        ]

    @cached_property
    def statement(self) -> Statement:
        return Statement(
            f"The tuning trains {self.runs_in_words}, each with an independent candidate, and "
            "releases the best."
        )

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        return tunings.best_of_draws(self.repetitions)


@dataclass(frozen=True)
class BestRuns(RandomRuns):
    """K independent runs, of which the best m are released, in order or as a set.

    Each candidate is drawn independently. If there are fewer than m runs, all are released.

    Attributes:
        repetitions: the distribution of K; text is parsed.
        released: m, the number of released runs, from 1 to 100.

    Example:
        >>> BestRuns("tnb:0,0.1", released=3).spec
        'best:3/tnb:0,0.1'
    """

    released: int

    name: ClassVar[str] = "best"
    assumption: ClassVar[str] = (
        "K independent runs, each candidate drawn independently, of which the best m are released"
    )
    release: ClassVar[str] = "only the best m runs are released"
    parameters: ClassVar[str] = "RELEASED"
    releases_several: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "released", checks.integer, 1, MAX_RELEASED)

    @property
    def spec(self) -> str:
        return f"best:{self.released}/{self.repetitions.spec}"

    @property
    def released_runs(self) -> int:
        return self.released

    @cached_property
    def statement(self) -> Statement:
        return Statement(
            f"The tuning trains {self.runs_in_words}, each with an independent candidate, and "
            f"releases the best {self.released}, or all if there are fewer.",
            claimed=f"the best {self.released} runs of this tuning",
            released=f"the outputs of the best {self.released} runs, or of all if there are fewer, "
            "their candidates and their scores, in this order",
            secret=f"the number of runs (unless fewer than {self.released} are released)",
        )


@dataclass(frozen=True)
class ParetoFront(RandomRuns):
    """K independent runs, of which the runs on the Pareto front of two scores are released.

    Each candidate is drawn independently. A run is on the front if no other run is at least as good
    in both scores and better in one. If more than m runs are on the front, the m of them with the
    best first scores are released; runs of equal first scores are ordered by the second.

    Attributes:
        repetitions: the distribution of K; text is parsed.
        most: m, the largest number of released runs, from 1 to 100.

    Example:
        >>> ParetoFront("tnb:0,0.1", most=3).spec
        'pareto:3/tnb:0,0.1'
    """

    most: int

    name: ClassVar[str] = "pareto"
    assumption: ClassVar[str] = (
        "K independent runs, each candidate drawn independently, of which those on the Pareto "
        "front are released, at most m"
    )
    release: ClassVar[str] = "only runs on the Pareto front are released, at most m"
    parameters: ClassVar[str] = "MOST"
    releases_several: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "most", checks.integer, 1, MAX_RELEASED)

    @property
    def spec(self) -> str:
        return f"pareto:{self.most}/{self.repetitions.spec}"

    @property
    def released_runs(self) -> int:
        return self.most


@dataclass(frozen=True)
class ProposeTestRelease(RandomRuns):
    """Random search over runs that release an output only if a private test passes.

    The base is the mechanism that runs if the test passes. Sources: Koskela, Redberg & Wang 2024,
    theorem 6.1; Redberg et al. 2023.

    Attributes:
        repetitions: the distribution of K; text is parsed.
        test_epsilon: epsilon of the test, >= 0.
        test_delta: delta of the test, in [0, 1).
        failure: probability that the test passes wrongly, in [0, 1).

    Example:
        >>> ProposeTestRelease("tnb:0,0.1", 1.0, 1e-6, 1e-7).spec
        'ptr:1.0,1e-06,1e-07/tnb:0,0.1'
    """

    test_epsilon: float
    test_delta: float
    failure: float

    name: ClassVar[str] = "ptr"
    assumption: ClassVar[str] = "K independent runs, each of which tests before its release"
    parameters: ClassVar[str] = "EPSILON,DELTA,FAILURE"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, high in (("test_epsilon", 1e6), ("test_delta", 1.0), ("failure", 1.0)):
            checks.validate(self, name, checks.interval, 0.0, high, closed_low=True)

    @property
    def spec(self) -> str:
        numbers = f"{self.test_epsilon!r},{self.test_delta!r},{self.failure!r}"
        return f"ptr:{numbers}/{self.repetitions.spec}"


@dataclass(frozen=True)
class Subset(RandomRuns):
    """Random search on a Poisson subset of the records, then one run on the rest or on all.

    The chosen candidate and the final run are both released. Source: Koskela & Kulkarni 2023.

    Attributes:
        repetitions: the distribution of K of the tuning; text is parsed.
        sampling_rate: q in [0, 1], the probability that a record is in the subset, independently.
        final: whether the final run uses the `rest` of the records or `all`.

    Example:
        >>> Subset("tnb:0,0.1", sampling_rate=0.1).spec
        'subset:0.1/tnb:0,0.1'
    """

    sampling_rate: float
    final: str = "rest"

    name: ClassVar[str] = "subset"
    assumption: ClassVar[str] = (
        "K independent runs on a Poisson subset of the records, then one final run"
    )
    release: ClassVar[str] = "only the chosen candidate and the final run are released"
    parameters: ClassVar[str] = "RATE or RATE,rest|all"
    candidates_are: ClassVar[Literal["drawn", "listed", "chosen"]] = "chosen"  # of the final run
    trains_on_subset: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = checks.interval, 0.0, 1.0
        checks.validate(self, "sampling_rate", *limits, closed_low=True, closed_high=True)
        checks.validate(self, "final", checks.one_of, _FINAL_RUNS)

    @classmethod
    def from_words(cls, words: Sequence[str], repetitions: Repetitions | None) -> Self:
        assert repetitions is not None
        final = {"final": words[1]} if len(words) == 2 else {}
        (rate,) = cls._read_numbers(words[:1] if final else words, 1, 1)
        return cls(repetitions, rate, **final)

    @property
    def spec(self) -> str:
        final = "" if self.final == "rest" else f",{self.final}"
        return f"subset:{self.sampling_rate!r}{final}/{self.repetitions.spec}"

    @property
    def expected_work(self) -> float:
        return self.mean_runs + 1.0

    @property
    def part_of_records(self) -> tuple[float, str] | None:
        return self.sampling_rate, self.final

    @cached_property
    def statement(self) -> Statement:
        rate = format_exact(self.sampling_rate)
        share = f"each with probability {rate}, the same in every run"
        on_all = self.final == "all"
        return Statement(
            f"The tuning trains {self.runs_in_words} on a random part of the records ({rate} of "
            "them on average), each with an independent candidate. It trains the best candidate "
            f"once more on {'all records' if on_all else 'all other records'}, and releases that "
            "run.",
            claimed="the final run of this tuning, and the candidate chosen,",
            released="the output and the score of the final run, and its candidate, or that there "
            "was none",
            runs=f"{Statement.runs}; then one final run trains the best candidate",
            records={
                "one run of the tuning": f"a random part of the private training records, {share}, "
                f"{THROUGH}",
                "the final run": f"{'all' if on_all else 'the rest'} of them, {THROUGH}",
            },
        )

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        return tunings.tuned_on_subset(self)
