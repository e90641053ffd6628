"""A random number of distinct candidates of a list."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from audit import checks
from audit.protocols.random_runs import RandomRuns
from audit.repetitions import MAX_RUNS


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
        'distinct:20/poisson:5.0'
    """

    candidates: int

    name: ClassVar[str] = "distinct"
    assumption: ClassVar[str] = (
        "K is drawn first, then min(K, m) distinct candidates of a fixed list of m, each run once"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validate(self, "candidates", checks.integer, 1, MAX_RUNS)

    @property
    def spec(self) -> str:
        return f"distinct:{self.candidates}/{self.repetitions.spec}"

    @property
    def mean_runs(self) -> float:
        # E[min(K, m)] is the sum of P[K >= k] over k = 1, ..., m, and at most E[K] and m.
        few = min(self.candidates, 10**6)
        below = np.cumsum(self.repetitions.pmf(np.arange(few)))
        exact = float(np.sum(np.clip(1.0 - below, 0.0, 1.0)))
        return (
            min(exact, self.repetitions.mean) if few == self.candidates else self.repetitions.mean
        )
