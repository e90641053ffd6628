"""Repetition until a run is accepted or the tuning stops at random."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from audit import checks
from audit.numerics import format_exact
from audit.protocols.base import SimulatedTunings, Statement
from audit.protocols.until_accepted import REVEALS_REJECTIONS, RUNS_UNTIL, RepeatedRuns


@dataclass(frozen=True)
class RandomStopping(RepeatedRuns):
    """Repeats runs until the output is accepted; after each rejection, stops with a probability.

    After a stop, nothing is released. The acceptance probability need not be known. Source: after
    algorithm 2 of Liu & Talwar 2019.

    Attributes:
        stop: probability of stopping after a rejected run, in (0, 1].

    Example:
        >>> RandomStopping(0.1).spec
        'stopping:0.1'
    """

    stop: float

    name: ClassVar[str] = "stopping"
    assumption: ClassVar[str] = (
        "independent runs until one is accepted; after each rejected run, the tuning stops with a "
        "fixed probability"
    )
    release: ClassVar[str] = "only the accepted run is released, or that there was none"
    parameters: ClassVar[str] = "STOP"

    def __post_init__(self) -> None:
        checks.validate(self, "stop", checks.interval, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        return f"stopping:{self.stop!r}"

    @property
    def accepted_share(self) -> float:
        return self.stop  # simulated tunings only; the guarantee needs no acceptance

    @property
    def stopping_probability(self) -> float:
        return self.stop

    @property
    def expected_work(self) -> float:
        return 1.0 / self.stop

    @cached_property
    def statement(self) -> Statement:
        chance = format_exact(self.stop)
        return Statement(
            "The tuning trains until a run is good enough, and releases that run. After each "
            f"other run it gives up with probability {chance}, and releases nothing.",
            runs=f"{RUNS_UNTIL}, and after each rejected run it ends without a result with "
            f"probability {chance}",
            void_if=(REVEALS_REJECTIONS,),
        )

    def gives_up(self, index: int, rng: np.random.Generator) -> bool:
        return bool(rng.random() < self.stop)

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        return tunings.first_accepted(tunings.rng.geometric(self.stop, tunings.count))
