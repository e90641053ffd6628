"""Groups of an audit's settings: each module takes the group it needs, not all settings."""

from dataclasses import dataclass
from pathlib import Path

from audit.protocols import Protocol, RandomStopping, Subset, UntilAccepted


@dataclass(frozen=True)
class Attack:
    """What is attacked, and by whom.

    Attributes:
        threat: name of the threat model.
        canary: name of the canary.
        score: name of the score, or empty for the paper's.
        dataset: name of the data set.
        data_root: folder of the data sets, or empty for the default.
        canary_index: index of the record that serves as input canary.
        train_size: largest number of training records.
        validation_size: largest number of validation records.
    """

    threat: str
    canary: str
    score: str
    dataset: str
    data_root: str
    canary_index: int
    train_size: int
    validation_size: int


@dataclass(frozen=True)
class Evaluation:
    """How the lower bound to report is computed, and when an audit may stop early.

    Attributes:
        delta: delta of every epsilon.
        confidence: confidence of each lower bound.
        proxy: the statistic of the bound to report.
        looks: numbers of trials after which the bound is computed, ascending.
        stop_at: a sufficient lower bound; 0 if all trials are played.
    """

    delta: float
    confidence: float
    proxy: str
    looks: tuple[int, ...]
    stop_at: float


@dataclass(frozen=True)
class Place:
    """Where an audit runs, and where its results go. Nothing of it changes a result.

    Attributes:
        out: folder of the results.
        jobs: number of worker processes.
        devices: devices of the workers, all of one kind.
        backend: joblib backend.
        scheduler: address of a cluster, or empty for a local one.
    """

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
    """How much an audit plays, and the limits beyond which it is refused.

    Attributes:
        budgets: number of budgets eps_B.
        repeats: number of repeats at each budget.
        trials: number of trials of each repeat.
        views: number of views that the runs serve.
        protocol: how the best run is chosen.
        steps: steps of one run.
        records: training records of one run.
        model: name of the model.
        device_kind: cpu or cuda.
        workers: number of processes.
        max_runs: largest number of expected runs.
        max_hours: largest number of expected processor hours.
        max_budgets: largest number of budgets.
    """

    budgets: int
    repeats: int
    trials: int
    views: int
    protocol: Protocol
    steps: int
    records: int
    model: str
    device_kind: str
    workers: int
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
        match self.protocol:
            case UntilAccepted(acceptance):
                return 1.0 / acceptance
            case RandomStopping(stop):
                return 1.0 / stop
            case Subset(repetitions):
                return repetitions.mean + 1.0
            case protocol:
                return protocol.mean_runs or 0.0

    @property
    def expected_runs(self) -> float:
        """Expected runs of the whole audit."""
        return self.total_trials * self.runs_per_trial
