"""Random search: draw K, train K independently drawn candidates, release the best."""

from dataclasses import dataclass
from typing import ClassVar

from audit.protocols.base import RandomRuns


@dataclass(frozen=True)
class RandomSearch(RandomRuns):
    """K independent runs, each with a candidate drawn from the same prior; the best is released.

    Sources: Liu & Talwar 2019, Papernot & Steinke 2022; algorithm 2 of Xiang, Wang & Wang 2024.

    Attributes:
        repetitions: the distribution of K, as an object or as text.

    Example:
        >>> RandomSearch("geometric:0.1").mean_runs
        10.0
    """

    name: ClassVar[str] = "search"
    assumption: ClassVar[str] = "K independent runs, each candidate drawn anew"

    @property
    def spec(self) -> str:
        return self.repetitions.spec
