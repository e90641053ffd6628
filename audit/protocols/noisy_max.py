"""Report noisy max: the best of fixed queries with independent noise."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import Protocol
from audit.repetitions import MAX_RUNS


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
    assumption: ClassVar[str] = "the index of the largest of noisy values of sensitivity 1"

    def __post_init__(self) -> None:
        candidates = checks.integer("candidates", self.candidates, 1, MAX_RUNS)
        rounds = checks.integer("rounds", self.rounds, 1, 10**6)
        checks.store_validated(self, candidates=candidates, rounds=rounds)

    @property
    def spec(self) -> str:
        monotone = ",monotone" if self.monotone else ""
        rounds = f",{self.rounds}" if self.rounds > 1 else ""
        return f"noisy-max:{self.candidates}{rounds}{monotone}"

    @property
    def mean_runs(self) -> float:
        return float(self.candidates * self.rounds)
