"""The Pareto front of K independent runs."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.random_search import MAX_RELEASED, RandomRuns


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
