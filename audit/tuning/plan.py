"""The plan of a study: every random draw, as a function of one secret key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.accounting import Mechanism, scale_noise
from audit.certificate.conditions import Private
from audit.protocols import (
    Adaptive,
    BestRuns,
    BudgetSchedule,
    DistinctCandidates,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
)
from audit.tuning.journal import Record
from audit.tuning.outcome import Part, Trial
from audit.tuning.samplers import Point, next_point
from audit.tuning.secret_draws import Draws, secret_integer
from audit.tuning.space import Space

# Every draw has its own stream for every run.
_RUNS, _CANDIDATE, _SEED, _SCORE, _STOP, _PART, _TIE = range(7)

FINAL = 1 << 62
"""Index of the final run of protocols that have one; larger than all other indices."""


@dataclass(frozen=True)
class Plan:
    """The choices of a study before its first run; `base_of` maps candidates to mechanisms."""

    protocol: Protocol
    space: Space
    base_of: Callable[[Mapping[str, Any]], Mechanism]
    private: Private | None = None
    expected_batch_size: float | None = None
    device: str = "cpu"

    def runs(self, key: int) -> Sequence[int] | None:
        """The indices of all runs; None if the outputs of the runs decide how many there are."""
        rng = Draws(key, _RUNS)
        if isinstance(self.protocol, Grid):
            drawn = rng.random(self.protocol.candidates) < self.protocol.inclusion
            return [int(index) for index in np.flatnonzero(drawn)]
        if isinstance(self.protocol, DistinctCandidates):
            length = self.protocol.candidates
            count = min(int(self.protocol.repetitions.sample(rng, 1)[0]), length)
            # The candidates of the smallest of m uniform numbers are a uniformly random set.
            return sorted(int(index) for index in np.argsort(rng.random(length))[:count])
        if isinstance(self.protocol, RandomSearch | Adaptive | Subset | BestRuns):
            return range(int(self.protocol.repetitions.sample(rng, 1)[0]))
        return None

    def point(self, key: int, index: int, before: Sequence[Record] = ()) -> Point:
        """The candidate of a run, as a point of the space."""
        rng = Draws(key, _CANDIDATE, index)
        return next_point(self.protocol, self.space, rng, index, before)

    def trial(self, key: int, index: int, point: Point) -> Trial:
        """The trial that `train` is called with."""
        candidate = self.space.at(point)
        seed = secret_integer(64, key, _SEED, index) >> 1
        part = None
        if isinstance(self.protocol, Subset):
            coins = secret_integer(256, key, _PART)
            final = self.protocol.final if index == FINAL else None
            part = Part(coins, self.protocol.sampling_rate, final)
        base = scale_noise(self.base_of(candidate), self._noise_factor(index))
        constant = self.expected_batch_size
        return Trial(candidate, base, seed, part, constant, device=self.device)

    def noise(self, key: int, index: int) -> float:
        """The noise that is added to the score of a run."""
        if self.private is None:
            return 0.0
        std = self.private.noise_std * self._noise_factor(index)
        return float(Draws(key, _SCORE, index).normal(0.0, std))

    def _noise_factor(self, index: int) -> float:
        """The noise of a run, as a multiple of that of the base mechanism."""
        if not isinstance(self.protocol, BudgetSchedule):
            return 1.0
        # A rehearsal may have more runs than the schedule has steps.
        return self.protocol.noise[min(index, len(self.protocol.noise) - 1)]

    def stops(self, key: int, index: int) -> bool:
        """Whether the tuning ends without a result after this rejected run."""
        if isinstance(self.protocol, BudgetSchedule):
            return index + 1 >= len(self.protocol.noise)
        stop = self.protocol.stop if isinstance(self.protocol, RandomStopping) else 0.0
        return bool(Draws(key, _STOP, index).random() < stop)

    def rank(self, key: int, record: Record) -> tuple[float, float, int]:
        """Sort key of a run that can win.

        Of equal scores the first run wins, in whatever order the runs end. In an adaptive search,
        whose bounds do not cover ties broken by order, the key decides at random.
        """
        assert record.score is not None
        adaptive = isinstance(self.protocol, Adaptive)
        tie = float(Draws(key, _TIE, record.index).random()) if adaptive else 0.0
        return record.score, tie, -record.index
