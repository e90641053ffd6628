"""The interface of tuning protocols."""

from abc import ABC, abstractmethod
from typing import ClassVar


class Protocol(ABC):
    """A tuning protocol: how the runs are made and which are released, without data or noise.

    Attributes:
        name: the name of the protocol in texts, such as `grid` in `grid:100,0.5`.
        assumption: the condition on a tuning under which theorems about this protocol apply.
        release: what is released, in words.

    Example:
        >>> from audit.protocols import Grid
        >>> Grid(20).name, Grid(20).assumption.split(",")[0]
        ('grid', 'a fixed list of candidates')
    """

    name: ClassVar[str]
    assumption: ClassVar[str]
    release: ClassVar[str] = "only the best run is released"

    @property
    @abstractmethod
    def spec(self) -> str:
        """The protocol as text; `parse_protocol(protocol.spec) == protocol`."""

    @property
    def mean_runs(self) -> float | None:
        """Expected number of runs without a final run; None if it depends on the data."""
        return None

    def __str__(self) -> str:
        return self.spec
