"""Groups of an audit's settings: each module takes the group it needs, not all settings.

Fields without a description have the names and meanings of the fields of `AuditConfig`.
"""

from dataclasses import dataclass
from pathlib import Path

from audit.protocols import Protocol


@dataclass(frozen=True)
class Evaluation:
    """How the lower bound to report is computed, and when an audit may stop early.

    `proxy` is the statistic of this bound. It is computed after the numbers of trials in `looks`.
    """

    delta: float
    confidence: float
    proxy: str
    looks: tuple[int, ...]
    stop_at: float


@dataclass(frozen=True)
class Place:
    """Where an audit runs, and where its results are written. No result depends on it."""

    out: Path
    jobs: int
    devices: tuple[str, ...]
    backend: str
    scheduler: str

    @property
    def device_kind(self) -> str:
        """Kind of all devices: cpu or cuda."""
        return self.devices[0].split(":")[0]

    @property
    def workers(self) -> int:
        """Number of processes that play: `jobs`, but at least one per device."""
        return max(self.jobs, len(self.devices))


@dataclass(frozen=True)
class Workload:
    """The size of an audit, and the limits beyond which it is refused."""

    budgets: int
    repeats: int
    trials: int
    views: int
    protocol: Protocol
    steps: int
    records: int
    model: str
    place: Place
    max_runs: float
    max_hours: float
    max_budgets: int

    @property
    def total_trials(self) -> int:
        """Number of trials of the whole audit."""
        return self.budgets * self.repeats * self.trials

    @property
    def runs_per_trial(self) -> float:
        """Expected runs of one trial; the largest expectation if it depends on the data."""
        return self.protocol.expected_work

    @property
    def expected_runs(self) -> float:
        """Expected runs of the whole audit."""
        return self.total_trials * self.runs_per_trial
