"""A random number of distinct candidates of a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from audit import checks
from audit.protocols.base import SimulatedTunings, Statement
from audit.protocols.random_search import RandomRuns
from audit.repetitions import MAX_RUNS

_MAX_TERMS = 10**6


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
