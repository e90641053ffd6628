"""Random search on a part of the records, then one final run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from audit import checks
from audit.numerics import format_exact
from audit.protocols.base import THROUGH, SimulatedTunings, Statement
from audit.protocols.random_search import RandomRuns
from audit.repetitions import Repetitions

_FINALS = ("rest", "all")


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
        checks.validate(self, "final", checks.one_of, _FINALS)

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
