"""Search through a fixed list of candidates: all of them, or a random number of distinct ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from audit import checks
from audit.numerics import format_exact
from audit.protocols.base import (
    Case,
    Protocol,
    SimulatedTunings,
    Statement,
    whole_runs,
)
from audit.protocols.random_search import RandomRuns
from audit.repetitions import MAX_RUNS, Binomial, Fixed, Repetitions

_MAX_TERMS = 10**6


@dataclass(frozen=True)
class Grid(Protocol):
    """Trains all candidates of a fixed list, or each with some probability; releases the best.

    The score may depend on the candidate as well as on the output, and the index of the winner is
    released. Candidates are distinct, whereas independent draws may repeat one.

    Attributes:
        candidates: length of the list.
        inclusion: probability that a candidate is trained, independently of others, in (0, 1].

    Example:
        >>> Grid(20, 0.5).spec, Grid(20, 0.5).mean_runs
        ('grid:20,0.5', 10.0)
    """

    candidates: int
    inclusion: float = 1.0

    name: ClassVar[str] = "grid"
    assumption: ClassVar[str] = (
        "a fixed list of candidates, each run once, or each included independently with a fixed "
        "probability"
    )
    parameters: ClassVar[str] = "CANDIDATES or CANDIDATES,INCLUSION"
    candidates_are: ClassVar[Literal["drawn", "listed", "chosen"]] = "listed"

    def __post_init__(self) -> None:
        checks.validate(self, "candidates", checks.integer, 1, MAX_RUNS)
        checks.validate(self, "inclusion", checks.interval, 0.0, 1.0, closed_high=True)

    @classmethod
    def _number_of_parameters(cls) -> tuple[int, int]:
        return 1, 2

    @property
    def spec(self) -> str:
        inclusion = "" if self.inclusion == 1.0 else f",{self.inclusion!r}"
        return f"grid:{self.candidates}{inclusion}"

    @property
    def mean_runs(self) -> float:
        return self.candidates * self.inclusion

    @property
    def list_length(self) -> int | None:
        return self.candidates

    @property
    def runs_distribution(self) -> Repetitions:
        if self.inclusion == 1.0:
            return Fixed(self.candidates)
        return Binomial(self.candidates, self.inclusion)

    def expected_quantile(self) -> float | None:
        # The candidates of the list are compared with as many independent draws.
        return self.runs_distribution.expected_quantile()

    @classmethod
    def cases(cls, runs: float) -> list[Case]:
        count, chosen = whole_runs(runs), "from a list fixed beforehand"
        return [
            Case("grid, every point once", cls(count), chosen),
            Case("grid, every point with chance 1/2", cls(2 * count, 0.5), chosen),
        ]

    @cached_property
    def statement(self) -> Statement:
        once = "each of them once"
        if self.inclusion < 1.0:
            once = f"each of them with probability {format_exact(self.inclusion)}"
        return Statement(
            f"The tuning has a fixed list of {self.candidates} candidates, trains {once}, and "
            "releases the best run.",
            candidates="the list of candidates is fixed, and each is run once, or with a fixed "
            "probability",
            runs="the candidates to run are drawn before the first run, and no run is left out",
        )

    def draw_runs(self, rng: np.random.Generator) -> Sequence[int] | None:
        drawn = rng.random(self.candidates) < self.inclusion
        return [int(index) for index in np.flatnonzero(drawn)]

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        return tunings.best_of_list(
            tunings.rng.random((tunings.count, self.candidates)) < self.inclusion
        )


@dataclass(frozen=True)
class DistinctCandidates(RandomRuns):
    """Draws K, then min(K, m) distinct candidates of a list of m, and releases the best run.

    The candidates are drawn without replacement, uniformly. Source: the code of Mohapatra et al.
    2022 (AAAI), which trains min(K, m) different candidates.

    Attributes:
        repetitions: the distribution of K; text is parsed.
        candidates: m, the length of the list.

    Example:
        >>> DistinctCandidates("poisson:5", candidates=20).spec
        'distinct:20/poisson:5'
    """

    candidates: int

    name: ClassVar[str] = "distinct"
    assumption: ClassVar[str] = (
        "K is drawn first, then min(K, m) distinct candidates of a fixed list of m, each run once"
    )
    parameters: ClassVar[str] = "CANDIDATES"
    # Distinct candidates are not independent, so each run counts as the least private candidate.
    candidates_are: ClassVar[Literal["drawn", "listed", "chosen"]] = "chosen"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "candidates", checks.integer, 1, MAX_RUNS)

    @property
    def spec(self) -> str:
        return f"distinct:{self.candidates}/{self.repetitions.spec}"

    @property
    def list_length(self) -> int | None:
        return self.candidates

    @property
    def mean_runs(self) -> float:
        # E[min(K, m)] is the sum of P[K >= k] over k = 1, ..., m, and at most E[K] and m.
        if self.candidates > _MAX_TERMS:
            return self.repetitions.mean
        below = np.cumsum(self.repetitions.pmf(np.arange(self.candidates)))
        return min(float(np.sum(np.clip(1.0 - below, 0.0, 1.0))), self.repetitions.mean)

    @cached_property
    def statement(self) -> Statement:
        return Statement(
            f"The tuning has a fixed list of {self.candidates} candidates. It draws "
            f"{self.runs_in_words}, trains as many different candidates (at most all of them), "
            "each once, and releases the best run.",
            candidates="the list of candidates is fixed, and the candidates to run are drawn "
            "without replacement, all with the same probability",
        )

    def draw_runs(self, rng: np.random.Generator) -> Sequence[int] | None:
        count = min(int(self.repetitions.sample(rng, 1)[0]), self.candidates)
        # The candidates of the smallest of m uniform numbers are a uniformly random set.
        return sorted(int(index) for index in np.argsort(rng.random(self.candidates))[:count])

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        runs = self.repetitions.sample(tunings.rng, tunings.count)
        # Ranks of m uniform numbers: those below K are a uniformly random set.
        order = tunings.rng.random((tunings.count, self.candidates)).argsort(axis=1)
        ranks = order.argsort(axis=1)
        return tunings.best_of_list(ranks < np.minimum(runs, self.candidates)[:, None])
