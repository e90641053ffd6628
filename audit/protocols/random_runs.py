"""Protocols that draw K, the number of runs."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import Protocol
from audit.repetitions import Repetitions, parse_repetitions

_MAX_RELEASED = 100
_FINALS = ("rest", "all")


@dataclass(frozen=True)
class RandomRuns(Protocol):
    """A protocol that draws K, the number of runs."""

    repetitions: Repetitions  # the distribution of K; text is parsed

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))

    @property
    def mean_runs(self) -> float:
        return self.repetitions.mean


@dataclass(frozen=True)
class RandomSearch(RandomRuns):
    """K independent runs, each with a candidate drawn from the same prior; the best is released.

    Sources: Liu & Talwar 2019, Papernot & Steinke 2022; algorithm 2 of Xiang, Wang & Wang 2024.

    Attributes:
        repetitions: the distribution of K; text is parsed.

    Example:
        >>> RandomSearch("geometric:0.1").mean_runs
        10.0
    """

    name: ClassVar[str] = "search"
    assumption: ClassVar[str] = "K independent runs, each candidate drawn independently"

    @property
    def spec(self) -> str:
        return self.repetitions.spec


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

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "released", checks.integer, 1, _MAX_RELEASED)

    @property
    def spec(self) -> str:
        return f"best:{self.released}/{self.repetitions.spec}"


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

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "most", checks.integer, 1, _MAX_RELEASED)

    @property
    def spec(self) -> str:
        return f"pareto:{self.most}/{self.repetitions.spec}"


@dataclass(frozen=True)
class Adaptive(RandomRuns):
    """K runs, each with a candidate from a density between low and high times the prior.

    The densities may depend on the earlier runs but not on K, which is drawn first. The best run is
    released. Ties are broken by an independent random number of each run, or by a fixed order of
    candidates and outputs, but not by the order of the runs. Source: Wang et al. 2023 (DP-HyPO,
    framework 1).

    Attributes:
        repetitions: the distribution of K; text is parsed.
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
        "K runs; the density of each candidate is within [c, C] times the prior and may depend on "
        "earlier runs but not on K; ties are broken at random or by candidate and output, not by "
        "order of arrival"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "low", checks.interval, 0.0, 1.0, closed_high=True)
        checks.validate(self, "high", checks.interval, 1.0, 1e6, closed_low=True, closed_high=True)

    @property
    def spec(self) -> str:
        return f"adaptive:{self.low!r},{self.high!r}/{self.repetitions.spec}"


@dataclass(frozen=True)
class Subset(RandomRuns):
    """Random search on a Poisson subset of the records, then one run on the rest or on all.

    The chosen candidate and the final run are both released. Source: Koskela & Kulkarni 2023.

    Attributes:
        repetitions: the distribution of K of the tuning; text is parsed.
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
    release: ClassVar[str] = "only the chosen candidate and the final run are released"

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = checks.interval, 0.0, 1.0
        checks.validate(self, "sampling_rate", *limits, closed_low=True, closed_high=True)
        checks.validate(self, "final", checks.one_of, _FINALS)

    @property
    def spec(self) -> str:
        final = "" if self.final == "rest" else f",{self.final}"
        return f"subset:{self.sampling_rate!r}{final}/{self.repetitions.spec}"


@dataclass(frozen=True)
class ProposeTestRelease(RandomRuns):
    """Random search over runs that release an output only if a private test passes.

    The base is the mechanism that runs if the test passes. Sources: Koskela, Redberg & Wang 2024,
    theorem 6.1; Redberg et al. 2023.

    Attributes:
        repetitions: the distribution of K; text is parsed.
        test_epsilon: epsilon of the test, >= 0.
        test_delta: delta of the test, in [0, 1).
        failure: probability that the test passes wrongly, in [0, 1).

    Example:
        >>> ProposeTestRelease("tnb:0,0.1", 1.0, 1e-6, 1e-7).spec
        'ptr:1.0,1e-06,1e-07/tnb:0,0.1'
    """

    test_epsilon: float
    test_delta: float
    failure: float

    name: ClassVar[str] = "ptr"
    assumption: ClassVar[str] = "K independent runs, each of which tests before its release"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, high in (("test_epsilon", 1e6), ("test_delta", 1.0), ("failure", 1.0)):
            checks.validate(self, name, checks.interval, 0.0, high, closed_low=True)

    @property
    def spec(self) -> str:
        numbers = f"{self.test_epsilon!r},{self.test_delta!r},{self.failure!r}"
        return f"ptr:{numbers}/{self.repetitions.spec}"
