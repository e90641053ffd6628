"""Random search, and what all protocols with a random number of runs share."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from audit import checks
from audit.protocols.base import Case, Protocol, SimulatedTunings, Statement, whole_runs
from audit.repetitions import (
    Fixed,
    Poisson,
    Repetitions,
    TruncatedNegativeBinomial,
    parse_repetitions,
)

MAX_RELEASED = 100
"""Largest number of runs that a protocol may release."""


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
