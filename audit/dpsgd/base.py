"""The contract between the game and an engine: runs in, outcomes out.

A *run* is one run of DP-SGD (Xiang et al. 2024, eq. 1). The game draws the number of runs of every
trial first, flattens all runs to runs, and hands them to an engine in packs, whatever trial they
belong to. Nothing of a trajectory is kept: proxies and scores accumulate as the steps go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from threat_models import ThreatModel


@dataclass(frozen=True)
class RunBatch:
    """A pack of R independent runs of DP-SGD.

    Attributes:
        included: [R] bool, whether the canary is in the run's data set (X' rather than X).
        candidate: [R] int, the index of the run's hyper-parameter candidate in Omega.
        seeds: [R] uint64, the seed of each run's own random stream. A run's noise depends on its
            seed alone, never on its place in the pack.
        records: [R, n] bool, the training records of the run's data set; None: all, in every run.

    Example:
        >>> import numpy as np
        >>> included, seeds = np.array([True, False]), np.arange(2, dtype=np.uint64)
        >>> runs = RunBatch(included, np.zeros(2, np.int64), seeds)
        >>> len(runs), len(runs.at(runs.included))
        (2, 1)
    """

    included: NDArray[np.bool_]
    candidate: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    records: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Number of runs."""
        return len(self.seeds)

    def at(self, rows: slice | NDArray[np.bool_]) -> "RunBatch":
        """Some of the runs, in their order."""
        records = None if self.records is None else self.records[rows]
        return RunBatch(self.included[rows], self.candidate[rows], self.seeds[rows], records)


@dataclass(frozen=True)
class RunOutcomes:
    """What is kept of R runs.

    Attributes:
        lambda_a: [R] float64, the paper's base proxy (1/N) sum_i <p_i^z, p_i> / C^2 (eq. 10).
        lambda_c: [R] float64, the proxy for sampled batches, 1/2 + (sigma^2 / N) L with the
            log-likelihood ratio L = sum_i log(1 - tau + tau exp((2 x_i - c_i^2) / (2 sigma^2))) of
            x_i = <p_i^z, p_i> / C^2 and c_i = |p_i^z| / C. By Neyman & Pearson no other tells more
            of one run on an empty training set. At sampling rate 1 lambda_a stands for it, which it
            is where every c_i is 1.
        scores: [R] float64, the threat model's score g(y), higher is better.
        finite: [R] bool, False where the run diverged (weights or score not finite). Such a run's
            score is minus infinity and its proxies 0.

    Example:
        >>> RunOutcomes.empty(3).scores.shape
        (3,)
    """

    lambda_a: NDArray[np.float64]
    lambda_c: NDArray[np.float64]
    scores: NDArray[np.float64]
    finite: NDArray[np.bool_]

    @classmethod
    def empty(cls, size: int) -> "RunOutcomes":
        """Room for `size` runs."""
        return cls(np.empty(size), np.empty(size), np.empty(size), np.empty(size, np.bool_))

    def put(self, rows: slice | NDArray[np.bool_], part: "RunOutcomes") -> None:
        """Writes the outcomes of some of the runs."""
        for name, values in vars(part).items():
            getattr(self, name)[rows] = values


class Engine(Protocol):
    """Runs packs of runs for one threat model at one noise level.

    Example:
        >>> from audit.dpsgd import DpSgdSettings, make_engine
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate, etcv
        >>> model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), 10)
        >>> engine: Engine = make_engine("reduced", model, DpSgdSettings(20, 5.0, (1.0,), (0.1,)))
        >>> engine.name
        'reduced'
    """

    name: str

    def run(self, runs: RunBatch) -> RunOutcomes:
        """Runs every run from the first step to the last.

        Args:
            runs: the pack; any length.

        Returns:
            One outcome per run, in the order of the pack.
        """
        ...


@runtime_checkable
class SharingEngine(Engine, Protocol):
    """An engine whose runs serve several threat models.

    Example:
        >>> [name for name in ("run", "run_shared") if hasattr(SharingEngine, name)]
        ['run', 'run_shared']
    """

    def run_shared(
        self, runs: RunBatch, threat_models: Sequence[ThreatModel]
    ) -> Sequence[RunOutcomes]:
        """Runs every run once for all threat models that its data set is the same for.

        A run without the canary is run once; a run with it once for every canary, from the same
        seed.

        Args:
            runs: the pack; any length.
            threat_models: any number, with the training set of this engine's own.

        Returns:
            For each threat model what `run` of an engine of its own would return, rounding apart;
            outcomes of different threat models are dependent.
        """
        ...
