"""The best m of K independent runs."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from audit import checks
from audit.protocols.base import Statement
from audit.protocols.random_search import MAX_RELEASED, RandomRuns


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
