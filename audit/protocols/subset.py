"""Tuning on a random subset of the records."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import RandomRuns

FINALS = ("rest", "all")


@dataclass(frozen=True)
class Subset(RandomRuns):
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

    sampling_rate: float
    final: str = "rest"

    name: ClassVar[str] = "subset"
    assumption: ClassVar[str] = (
        "K independent runs on a Poisson subset of the records, then one final run"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = checks.interval(
            "sampling_rate", self.sampling_rate, 0.0, 1.0, closed_low=True, closed_high=True
        )
        final = checks.one_of("final", self.final, FINALS)
        checks.store_validated(self, sampling_rate=rate, final=final)

    @property
    def spec(self) -> str:
        final = "" if self.final == "rest" else f",{self.final}"
        return f"subset:{self.sampling_rate!r}{final}/{self.repetitions.spec}"
