"""Report noisy max."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from audit import checks
from audit.protocols.base import Protocol
from audit.repetitions import MAX_RUNS, Repetitions


@dataclass(frozen=True)
class NoisyMax(Protocol):
    """Adds noise to m values of sensitivity 1 and releases the index of the largest.

    The base is one noisy value: a Gaussian or Laplace mechanism of sensitivity 1. Source: Koskela,
    Redberg & Wang 2024, section 3.

    Attributes:
        candidates: m, the number of values.
        monotone: whether all values change in the same direction between neighbours.
        rounds: number of adaptive repetitions; the values may depend on earlier outputs.
    """

    candidates: int
    monotone: bool = False
    rounds: int = 1

    name: ClassVar[str] = "noisy-max"
    assumption: ClassVar[str] = "the index of the largest of several noisy values of sensitivity 1"
    release: ClassVar[str] = "only the index is released"
    parameters: ClassVar[str] = "CANDIDATES[,ROUNDS][,monotone]"
    candidates_are: ClassVar[Literal["drawn", "listed", "chosen"]] = "listed"

    def __post_init__(self) -> None:
        checks.validate(self, "candidates", checks.integer, 1, MAX_RUNS)
        checks.validate(self, "monotone", checks.flag)
        checks.validate(self, "rounds", checks.integer, 1, 10**6)

    @classmethod
    def from_words(cls, words: Sequence[str], repetitions: Repetitions | None) -> Self:
        is_monotone = words[-1:] == ["monotone"]
        candidates, *rounds = cls._read_numbers(words[:-1] if is_monotone else words, 1, 2)
        return cls(candidates, is_monotone, *rounds)

    @property
    def spec(self) -> str:
        monotone = ",monotone" if self.monotone else ""
        rounds = f",{self.rounds}" if self.rounds > 1 else ""
        return f"noisy-max:{self.candidates}{rounds}{monotone}"

    @property
    def mean_runs(self) -> float:
        return float(self.candidates * self.rounds)
