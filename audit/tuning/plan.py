"""The plan of a study: every random draw, as a function of one secret key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from audit.accounting import DpSgd, Mechanism, scale_noise
from audit.certificate.conditions import Private
from audit.checks import kind_of
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.protocols.base import Point
from audit.tuning.checkpoints import ResumeRules
from audit.tuning.journal import Record
from audit.tuning.outcome import Part, Trial
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
    resume_rules: ResumeRules = field(default_factory=ResumeRules)

    def shortened(self, steps: int) -> "Plan":
        """The plan of a rehearsal whose runs have at most this many steps."""

        def base_of(candidate: Mapping[str, Any]) -> Mechanism:
            base = self.base_of(candidate)
            if not isinstance(base, DpSgd):
                raise InvalidInput(
                    f"steps must not be given if the base is not DP-SGD, got {kind_of(base)}"
                )
            return replace(base, steps=min(steps, base.steps))

        return replace(self, base_of=base_of)

    def runs(self, key: int) -> Sequence[int] | None:
        """The indices of all runs; None if the outputs of the runs decide how many there are."""
        return self.protocol.draw_runs(Draws(key, _RUNS))

    def point(self, key: int, index: int, before: Sequence[Record] = ()) -> Point:
        """The candidate of a run, as a point of the space."""
        rng = Draws(key, _CANDIDATE, index)
        return self.protocol.next_candidate(self.space, rng, index, before)

    def trial(self, key: int, index: int, point: Point) -> Trial:
        """The trial that `train` is called with."""
        candidate = self.space.at(point)
        seed = secret_integer(64, key, _SEED, index) >> 1
        record_subset = None
        if self.protocol.part_of_records is not None:
            rate, final = self.protocol.part_of_records
            coins = secret_integer(256, key, _PART)
            record_subset = Part(coins, rate, final if index == FINAL else None)
        base = scale_noise(self.base_of(candidate), self.protocol.noise_factor(index))
        constant = self.expected_batch_size
        trial = Trial(candidate, base, seed, record_subset, constant, device=self.device)
        trial.checkpoints.rules = self.resume_rules
        return trial

    def noise(self, key: int, index: int) -> float:
        """The noise that is added to the score of a run."""
        if self.private is None:
            return 0.0
        std = self.private.noise_std * self.protocol.noise_factor(index)
        return float(Draws(key, _SCORE, index).normal(0.0, std))

    def stops(self, key: int, index: int) -> bool:
        """Whether the tuning ends without a result after this rejected run."""
        return self.protocol.gives_up(index, Draws(key, _STOP, index))

    def rank(self, key: int, record: Record) -> tuple[float, float, int]:
        """Sort key of a run that can win.

        Of equal scores the first run wins, in whatever order the runs end. In an adaptive search,
        whose bounds do not cover ties broken by order, the key decides at random.
        """
        assert record.score is not None
        is_adaptive = self.protocol.is_adaptive
        tie = float(Draws(key, _TIE, record.index).random()) if is_adaptive else 0.0
        return record.score, tie, -record.index
