"""The interface between the game and an engine: a batch of runs in, one outcome per run out.

A *run* is one training by DP-SGD (Xiang et al. 2024, eq. 1). The game first draws the number of
runs of every trial, then passes the runs of all trials to an engine as batches. Engines store no
trajectories: they accumulate proxies and scores step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from threat_models import Observation, ThreatModel


@dataclass(frozen=True)
class RunBatch:
    """A batch of R independent runs of DP-SGD.

    Attributes:
        included: [R] bool, whether the canary is in the run's data set (X' rather than X).
        candidate: [R] int, the index of the run's candidate in `DpSgdSettings.candidates`.
        seeds: [R] uint64, the seed of each run's random stream. A run's noise depends only on its
            seed, not on its position in the batch.
        records: [R, n] bool, the training records in each run's data set; None means all records
            in every run.

    Example:
        >>> import numpy as np
        >>> included, seeds = np.array([True, False]), np.arange(2, dtype=np.uint64)
        >>> batch = RunBatch(included, np.zeros(2, np.int64), seeds)
        >>> len(batch), len(batch.at(batch.included))
        (2, 1)
    """

    included: NDArray[np.bool_]
    candidate: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    records: NDArray[np.bool_] | None = None

    @classmethod
    def drawn(
        cls,
        included: NDArray[np.bool_],
        candidate: NDArray[np.int64],
        rng: np.random.Generator,
        records: NDArray[np.bool_] | None = None,
    ) -> "RunBatch":
        """A batch with new seeds."""
        seeds = rng.integers(0, 2**64, len(candidate), dtype=np.uint64)
        return cls(included, candidate, seeds, records)

    def __len__(self) -> int:
        return len(self.seeds)

    def at(self, rows: slice | NDArray[np.bool_]) -> "RunBatch":
        """The selected runs, in the same order."""
        records = None if self.records is None else self.records[rows]
        return RunBatch(self.included[rows], self.candidate[rows], self.seeds[rows], records)


@dataclass(frozen=True)
class RunOutcomes:
    """The outcomes of R runs.

    Attributes:
        lambda_a: [R] float64, the paper's base proxy (1/N) sum_i <p_i^z, p_i> / C^2 (eq. 10).
        lambda_c: [R] float64, the proxy for sampled batches, 1/2 + (sigma^2 / N) L with the
            log-likelihood ratio L = sum_i log(1 - tau + tau exp((2 x_i - c_i^2) / (2 sigma^2))) of
            x_i = <p_i^z, p_i> / C^2 and c_i = |p_i^z| / C. By the Neyman-Pearson lemma it is the
            most powerful statistic of one run on an empty training set. At sampling rate 1 it is
            set to lambda_a, which equals it if every c_i is 1.
        lambda_known: [R] float64, lambda_c if the adversary has the training records and
            subtracts their clipped gradients from every p_i. At sampling rate 1 it is
            1/2 + (sigma^2 / N) L with L = sum_i (2 x_i - c_i^2) / (2 sigma^2), the log-likelihood
            ratio of all released steps. At smaller rates it is lambda_c.
        lambda_start: [R] float64, the proxy of an adversary who sees the final weights only:
            <p_1^z, w_0 - w_N> / (lr N C^2), with the canary's clipped gradient p_1^z at w_0. With
            the Dirac canary and without momentum it is lambda_a.
        lambda_end: [R] float64, the same with the canary's clipped gradient at w_N.
        scores: [R] float64, the threat model's score g(y); higher is better.
        finite: [R] bool, False if the run diverged (weights or score not finite). A diverged run
            has score minus infinity and proxies 0.

    Example:
        >>> RunOutcomes.empty(3).scores.shape
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
    def empty(cls, size: int) -> "RunOutcomes":
        """Arrays of NaN for `size` runs."""
        numbers = {field.name: np.full(size, np.nan) for field in fields(cls)}
        return cls(**numbers | {"finite": np.zeros(size, np.bool_)})

    @classmethod
    def of_models(
        cls,
        threat_model: ThreatModel,
        observation: Observation,
        finite: NDArray[np.bool_],
        **proxies: NDArray[np.float64],
    ) -> "RunOutcomes":
        """The outcomes of R trained models under one threat model.

        `finite`, [R], says whether the final weights are finite. `proxies` are those of the threat
        model's canary, by name, [R] each.

        Raises:
            InvalidInput: the score does not give one number per run.
        """
        values = np.asarray(threat_model.score(observation), dtype=np.float64)
        if values.shape != finite.shape:
            raise InvalidInput(
                f"score {threat_model.score.name} must give one number per run, "
                f"[{len(finite)}], got shape {list(values.shape)}"
            )
        is_finite = finite & np.isfinite(proxies["lambda_a"]) & np.isfinite(values)
        of_kept = {
            name: np.where(is_finite, values_of_proxy, 0.0)
            for name, values_of_proxy in proxies.items()
        }
        return cls(**of_kept, scores=np.where(is_finite, values, -np.inf), finite=is_finite)

    def put(self, rows: slice | NDArray[np.bool_], part: "RunOutcomes") -> None:
        """Writes the outcomes of the selected runs."""
        for name, values in vars(part).items():
            getattr(self, name)[rows] = values


class Engine(Protocol):
    """Trains batches of runs for one threat model at one noise level.

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
    parameters: int
    """Number of parameters that a run trains."""

    def run(self, batch: RunBatch) -> RunOutcomes:
        """One outcome per run of a batch of any length, in its order."""
        ...


@runtime_checkable
class SharingEngine(Engine, Protocol):
    """An engine that can evaluate the same runs under several threat models.

    Example:
        >>> from audit.dpsgd import DpSgdSettings, make_engine
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate, etcv
        >>> model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), 10)
        >>> settings = DpSgdSettings(20, 5.0, (1.0,), (0.1,))
        >>> isinstance(make_engine("batched", model, settings), SharingEngine)
        True
    """

    def run_shared(
        self, batch: RunBatch, threat_models: Sequence[ThreatModel]
    ) -> Sequence[RunOutcomes]:
        """Outcomes of the same runs under each threat model.

        A run without the canary is trained once. A run with it is trained once per canary, from the
        same seed.

        Args:
            batch: a batch of any length.
            threat_models: threat models with the training set of this engine.

        Returns:
            For each threat model the outcomes that `run` of a separate engine would return, up to
            rounding. Outcomes under different threat models are dependent.
        """
        ...
