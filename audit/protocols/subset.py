"""Tuning on a random subset of the records."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit import repetitions as laws
from audit.protocols.base import Protocol
from audit.repetitions import Repetitions

FINALS = ("rest", "all")


@dataclass(frozen=True)
class Subset(Protocol):
    """Random search on a Poisson subset of the records, then one run on the rest or on all.

    The chosen candidate and the final run are both released. Source: Koskela & Kulkarni 2023.

    Attributes:
        repetitions: the distribution of K of the tuning, as an object or as text.
        sampling_rate: q in [0, 1], the probability that a record is in the subset, independently.
        final: whether the final run uses the `rest` of the records or `all`.

    Example:
        >>> Subset("tnb:0,0.1", sampling_rate=0.1).spec
        'subset:0.1/tnb:0,0.1'
    """

    repetitions: Repetitions
    sampling_rate: float
    final: str = "rest"

    name: ClassVar[str] = "subset"
    assumption: ClassVar[str] = (
        "K independent runs on a Poisson subset of the records, then one final run"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))
        rate = checks.interval(
            "sampling_rate", self.sampling_rate, 0.0, 1.0, closed_low=True, closed_high=True
        )
        object.__setattr__(self, "sampling_rate", rate)
        object.__setattr__(self, "final", checks.one_of("final", self.final, FINALS))

    @property
    def spec(self) -> str:
        final = "" if self.final == "rest" else f",{self.final}"
        return f"subset:{self.sampling_rate!r}{final}/{self.repetitions.spec}"

    @property
    def mean_runs(self) -> float:
        return self.repetitions.mean
