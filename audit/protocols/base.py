"""What every protocol tells of itself."""

from abc import ABC, abstractmethod
from typing import ClassVar


class Protocol(ABC):
    """A way of choosing a best run: a plain description, without data, score or noise.

    Attributes:
        name: what texts call the protocol, `grid` in `grid:100,0.5`.
        assumption: what must be true of a tuning for a theorem about this protocol to speak of it.

    Example:
        >>> from audit.protocols import Grid
        >>> print(Grid(20), "-", Grid(20).assumption)
        grid:20 - a fixed list of candidates, each run once or independently not
    """

    name: ClassVar[str]
    assumption: ClassVar[str]

    @property
    @abstractmethod
    def spec(self) -> str:
        """The protocol as text; `parse(protocol.spec) == protocol`."""

    @property
    @abstractmethod
    def mean_runs(self) -> float | None:
        """Expected number of runs, a final one not counted; None where it depends on the data."""

    def __str__(self) -> str:
        return self.spec
