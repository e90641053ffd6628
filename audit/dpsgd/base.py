"""The contract between the game and an engine: lanes in, outcomes out.

A *lane* is one run of DP-SGD (Xiang et al. 2024, eq. 1). The game draws the number of runs of every
trial first, flattens all runs to lanes, and hands them to an engine in packs, whatever trial they
belong to. Nothing of a trajectory is kept: proxies and scores accumulate as the steps go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from threat_models import ThreatModel


@dataclass(frozen=True)
class Lanes:
    """A pack of R independent runs of DP-SGD.

    Attributes:
        included: [R] bool, whether the canary is in the lane's data set (X' rather than X).
        candidate: [R] int, the index of the lane's hyper-parameter candidate in Omega.
        seeds: [R] uint64, the seed of each lane's own random stream. A lane's noise depends on its
            seed alone, never on its place in the pack.
        records: [R, n] bool, the training records of the lane's data set; None: all, in every lane.

    Example:
        >>> import numpy as np
        >>> included, seeds = np.array([True, False]), np.arange(2, dtype=np.uint64)
        >>> lanes = Lanes(included, np.zeros(2, np.int64), seeds)
        >>> len(lanes), len(lanes.at(lanes.included))
        (2, 1)
    """

    included: NDArray[np.bool_]
    candidate: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    records: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Number of lanes."""
        return len(self.seeds)

    def at(self, rows: slice | NDArray[np.bool_]) -> "Lanes":
        """Some of the lanes, in their order."""
        records = None if self.records is None else self.records[rows]
        return Lanes(self.included[rows], self.candidate[rows], self.seeds[rows], records)


@dataclass(frozen=True)
class LaneOutcomes:
    """What is kept of R runs.

    Attributes:
        lambda_a: [R] float64, the paper's base proxy (1/N) sum_i <p_i^z, p_i> / C^2 (eq. 10).
        lambda_c: [R] float64, the proxy for sampled batches, 1/2 + (sigma^2 / N) L with the
            log-likelihood ratio L = sum_i log(1 - tau + tau exp((2 x_i - c_i^2) / (2 sigma^2))) of
            x_i = <p_i^z, p_i> / C^2 and c_i = |p_i^z| / C. By Neyman & Pearson no other tells more
            of one run on an empty training set. At sampling rate 1 lambda_a stands for it, which it
            is where every c_i is 1.
        lambda_known: [R] float64, lambda_c of an adversary who knows the training records and
            subtracts their clipped gradients from every p_i. At sampling rate 1 it is
            1/2 + (sigma^2 / N) L with L = sum_i (2 x_i - c_i^2) / (2 sigma^2), the log-likelihood
            ratio of all released steps. At smaller rates it is lambda_c.
        lambda_start: [R] float64, the proxy of an adversary who sees the final weights only:
            <p_1^z, w_0 - w_N> / (lr N C^2), with the canary's clipped gradient p_1^z at w_0. With
            the Dirac canary and without momentum it is lambda_a.
        lambda_end: [R] float64, the same with the canary's clipped gradient at w_N.
        scores: [R] float64, the threat model's score g(y), higher is better.
        finite: [R] bool, False where the run diverged (weights or score not finite). Such a lane's
            score is minus infinity and its proxies 0.

    Example:
        >>> LaneOutcomes.empty(3).scores.shape
        (3,)
    """

    lambda_a: NDArray[np.float64]
    lambda_c: NDArray[np.float64]
    lambda_known: NDArray[np.float64]
    lambda_start: NDArray[np.float64]
    lambda_end: NDArray[np.float64]
    scores: NDArray[np.float64]
    finite: NDArray[np.bool_]

    @classmethod
    def empty(cls, size: int) -> "LaneOutcomes":
        """Room for `size` lanes."""
        numbers = {each.name: np.full(size, np.nan) for each in fields(cls)}
        return cls(**numbers | {"finite": np.zeros(size, np.bool_)})

    def put(self, rows: slice | NDArray[np.bool_], part: "LaneOutcomes") -> None:
        """Writes the outcomes of some of the lanes."""
        for name, values in vars(part).items():
            getattr(self, name)[rows] = values


class Engine(Protocol):
    """Runs packs of lanes for one threat model at one noise level.

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

    def run(self, lanes: Lanes) -> LaneOutcomes:
        """Runs every lane from the first step to the last.

        Args:
            lanes: the pack; any length.

        Returns:
            One outcome per lane, in the order of the pack.
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
        self, lanes: Lanes, threat_models: Sequence[ThreatModel]
    ) -> Sequence[LaneOutcomes]:
        """Runs every lane once for all threat models that its data set is the same for.

        A lane without the canary is run once; a lane with it once for every canary, from the same
        seed.

        Args:
            lanes: the pack; any length.
            threat_models: any number, with the training set of this engine's own.

        Returns:
            For each threat model what `run` of an engine of its own would return, rounding apart;
            outcomes of different threat models are dependent.
        """
        ...
