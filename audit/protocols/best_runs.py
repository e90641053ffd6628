"""Random search that releases several of its best runs, by one score or by two."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import RandomRuns

_MAX_RELEASED = 100


@dataclass(frozen=True)
class BestRuns(RandomRuns):
    """K independent runs, each candidate drawn anew; the best m are released, in order or as a set.

    If there are fewer than m runs, all of them are released.

    Attributes:
        repetitions: the distribution of K, as an object or as text.
        released: m, how many runs are released, from 1 to 100.

    Example:
        >>> BestRuns("tnb:0,0.1", released=3).spec
        'best:3/tnb:0,0.1'
    """

    released: int

    name: ClassVar[str] = "best"
    assumption: ClassVar[str] = (
        "K independent runs, each candidate drawn anew, of which the best m are released"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        released = checks.integer("released", self.released, 1, _MAX_RELEASED)
        object.__setattr__(self, "released", released)

    @property
    def spec(self) -> str:
        return f"best:{self.released}/{self.repetitions.spec}"


@dataclass(frozen=True)
class ParetoFront(RandomRuns):
    """K independent runs, each candidate drawn anew; those that none exceeds in both scores.

    A run is on the front if no other run is at least as good in both scores and better in one.
    If more than m runs are on the front, the m of them with the best first scores are released;
    runs of equal first scores are ordered by the second.

    Attributes:
        repetitions: the distribution of K, as an object or as text.
        most: m, the largest number of runs that are released, from 1 to 100.

    Example:
        >>> ParetoFront("tnb:0,0.1", most=3).spec
        'pareto:3/tnb:0,0.1'
    """

    most: int

    name: ClassVar[str] = "pareto"
    assumption: ClassVar[str] = (
        "K independent runs, each candidate drawn anew, of which those on the Pareto front are "
        "released, at most m"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        most = checks.integer("most", self.most, 1, _MAX_RELEASED)
        object.__setattr__(self, "most", most)

    @property
    def spec(self) -> str:
        return f"pareto:{self.most}/{self.repetitions.spec}"
