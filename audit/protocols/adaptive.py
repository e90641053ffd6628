"""Adaptive search: the density of the next candidate depends on the earlier runs."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import RandomRuns


@dataclass(frozen=True)
class Adaptive(RandomRuns):
    """K runs, each with a candidate from a density between low and high times the prior.

    The densities may depend on the earlier runs but not on K, which is drawn first. The best run is
    released. Ties are broken by an independent random number of each run, or by a fixed order of
    candidates and outputs, but not by the order of the runs. Source: Wang et al. 2023 (DP-HyPO,
    framework 1).

    Attributes:
        repetitions: the distribution of K, as an object or as text.
        low: c in (0, 1], the smallest ratio of a density to the prior.
        high: C >= 1, the largest ratio.

    Example:
        >>> search = Adaptive("tnb:0,0.1", low=0.75, high=1.33)
        >>> search.spec
        'adaptive:0.75,1.33/tnb:0,0.1'
    """

    low: float
    high: float

    name: ClassVar[str] = "adaptive"
    assumption: ClassVar[str] = (
        "K runs, each candidate from a density within [c, C] times the prior, by the runs before "
        "it and not by K; ties broken at random or by candidate and output, not by order of arrival"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        low = checks.interval("low", self.low, 0.0, 1.0, closed_high=True)
        high = checks.interval("high", self.high, 1.0, 1e6, closed_low=True, closed_high=True)
        checks.store_validated(self, low=low, high=high)

    @property
    def spec(self) -> str:
        return f"adaptive:{self.low!r},{self.high!r}/{self.repetitions.spec}"
