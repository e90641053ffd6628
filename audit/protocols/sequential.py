"""Candidates that are chosen by looking at results."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from audit import checks
from audit.protocols.base import USES_RESULTS, Case, Protocol, whole_runs
from audit.repetitions import MAX_RUNS


@dataclass(frozen=True)
class Sequential(Protocol):
    """A fixed number of runs, each with a candidate that may depend on all earlier results.

    Every optimiser that looks at results is of this kind: TPE, Bayesian optimisation, evolution,
    and tuning by hand. The number of runs and the budget of each are fixed beforehand.

    Attributes:
        runs: the number of runs.

    Example:
        >>> Sequential(20).spec
        'sequential:20'
    """

    runs: int

    name: ClassVar[str] = "sequential"
    assumption: ClassVar[str] = (
        "the number of runs and the budget of each are fixed beforehand, and each candidate may "
        "depend on the results of earlier runs in any way (TPE, Bayesian optimisation, by hand)"
    )
    release: ClassVar[str] = "all runs may be released"
    parameters: ClassVar[str] = "RUNS"
    other_names: ClassVar[tuple[str, ...]] = ("tpe", "manual", "bayesian")
    candidates_are: ClassVar[Literal["drawn", "listed", "chosen"]] = "chosen"
    is_sequential: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.validate(self, "runs", checks.integer, 1, MAX_RUNS)

    @property
    def spec(self) -> str:
        return f"sequential:{self.runs}"

    @classmethod
    def cases(cls, runs: float) -> list[Case]:
        return [Case("chosen by results (TPE, by hand)", cls(whole_runs(runs)), USES_RESULTS)]

    @property
    def mean_runs(self) -> float:
        return float(self.runs)
