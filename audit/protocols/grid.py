"""Grid search: every candidate of a list is trained at most once."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import Protocol
from audit.repetitions import MAX_RUNS


@dataclass(frozen=True)
class Grid(Protocol):
    """Every candidate of a fixed list is trained, or each with some chance; the best is released.

    The score may depend on the candidate as well as on the output, and the index of the winner is
    released. Candidates are distinct, whereas independent draws may repeat.

    Attributes:
        candidates: length of the list.
        inclusion: probability that a candidate is trained at all, independently, in (0, 1].

    Example:
        >>> Grid(20, 0.5).spec, Grid(20, 0.5).mean_runs
        ('grid:20,0.5', 10.0)
    """

    candidates: int
    inclusion: float = 1.0

    name: ClassVar[str] = "grid"
    assumption: ClassVar[str] = "a fixed list of candidates, each run once or independently not"

    def __post_init__(self) -> None:
        candidates = checks.integer("candidates", self.candidates, 1, MAX_RUNS)
        inclusion = checks.interval("inclusion", self.inclusion, 0.0, 1.0, closed_high=True)
        checks.store_validated(self, candidates=candidates, inclusion=inclusion)

    @property
    def spec(self) -> str:
        inclusion = "" if self.inclusion == 1.0 else f",{self.inclusion!r}"
        return f"grid:{self.candidates}{inclusion}"

    @property
    def mean_runs(self) -> float:
        return self.candidates * self.inclusion
