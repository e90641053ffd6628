"""Protocols with a fixed list of candidates."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import Protocol
from audit.repetitions import MAX_RUNS, Binomial, Fixed, Repetitions


@dataclass(frozen=True)
class Grid(Protocol):
    """Trains all candidates of a fixed list, or each with some probability; releases the best.

    The score may depend on the candidate as well as on the output, and the index of the winner is
    released. Candidates are distinct, whereas independent draws may repeat one.

    Attributes:
        candidates: length of the list.
        inclusion: probability that a candidate is trained, independently of others, in (0, 1].

    Example:
        >>> Grid(20, 0.5).spec, Grid(20, 0.5).mean_runs
        ('grid:20,0.5', 10.0)
    """

    candidates: int
    inclusion: float = 1.0

    name: ClassVar[str] = "grid"
    assumption: ClassVar[str] = (
        "a fixed list of candidates, each run once, or each included independently with a fixed "
        "probability"
    )

    def __post_init__(self) -> None:
        checks.validate(self, "candidates", checks.integer, 1, MAX_RUNS)
        checks.validate(self, "inclusion", checks.interval, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        inclusion = "" if self.inclusion == 1.0 else f",{self.inclusion!r}"
        return f"grid:{self.candidates}{inclusion}"

    @property
    def mean_runs(self) -> float:
        return self.candidates * self.inclusion

    @property
    def runs_distribution(self) -> Repetitions:
        """Distribution of the number of candidates that are trained."""
        if self.inclusion == 1.0:
            return Fixed(self.candidates)
        return Binomial(self.candidates, self.inclusion)


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

    def __post_init__(self) -> None:
        checks.validate(self, "candidates", checks.integer, 1, MAX_RUNS)
        checks.validate(self, "monotone", checks.flag)
        checks.validate(self, "rounds", checks.integer, 1, 10**6)

    @property
    def spec(self) -> str:
        monotone = ",monotone" if self.monotone else ""
        rounds = f",{self.rounds}" if self.rounds > 1 else ""
        return f"noisy-max:{self.candidates}{rounds}{monotone}"

    @property
    def mean_runs(self) -> float:
        return float(self.candidates * self.rounds)
