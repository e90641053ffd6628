"""A schedule of decreasing noise, until a run is accepted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols.base import Protocol, Statement
from audit.protocols.until_accepted import RUNS_UNTIL
from audit.repetitions import Repetitions

_MAX_STEPS = 100


@dataclass(frozen=True)
class BudgetSchedule(Protocol):
    """One run for each step of a schedule of noise, until one is accepted and released.

    In step i, all noise is `noise[i]` times that of the base mechanism. Decreasing factors mean
    increasing budgets. If no run is accepted, nothing is released. Source: the setting of Ghazi et
    al. 2025 (arXiv 2508.15183).

    Attributes:
        noise: factors [n] of the noise in each step, > 0, in order; from 1 to 100 steps.

    Example:
        >>> BudgetSchedule((4, 2, 1)).spec
        'schedule:4.0,2.0,1.0'
    """

    noise: tuple[float, ...]

    name: ClassVar[str] = "schedule"
    assumption: ClassVar[str] = (
        "a fixed schedule of noise with one run for each step, until one is accepted by a rule "
        "that depends on this run alone"
    )
    release: ClassVar[str] = "only the accepted run and its step are released"
    parameters: ClassVar[str] = "FACTOR,FACTOR,..."
    is_sequential: ClassVar[bool] = True
    ends_with_accepted: ClassVar[bool] = True
    releases_step: ClassVar[bool] = True  # its bound covers the step

    def __post_init__(self) -> None:
        noise = tuple(checks.interval("noise", factor, 0.0) for factor in self.noise)
        if not 1 <= len(noise) <= _MAX_STEPS:
            raise InvalidInput(f"noise must have 1 to {_MAX_STEPS} factors, got {len(noise)}")
        checks.store_validated(self, noise=noise)

    @classmethod
    def from_words(cls, words: Sequence[str], repetitions: Repetitions | None) -> Self:
        return cls(tuple(cls._read_numbers(words, 1, math.inf)))

    @property
    def spec(self) -> str:
        return f"schedule:{','.join(map(repr, self.noise))}"

    @cached_property
    def statement(self) -> Statement:
        factors = ", ".join(map(format_exact, self.noise))
        return Statement(
            f"The tuning trains one run for each of {len(self.noise)} steps, with {factors} times "
            "the noise of the base mechanism, until a run is good enough, and releases that "
            "run with its step. If none is, it releases nothing.",
            claimed="the accepted run of this tuning, and its step,",
            released="the output of the accepted run, its step, its candidate and its score, "
            "or that there was none",
            secret="",
            runs="each step has one run, with the stated multiple of the noise of the base "
            f"mechanism; {RUNS_UNTIL}, which has no result if every step is rejected",
            acceptance="whether a run is accepted depends on its output, its score and public "
            "records alone",
            score_noise=f"{Statement.score_noise}, scaled as that of training in every step",
        )

    def noise_factor(self, index: int) -> float:
        # A rehearsal may have more runs than the schedule has steps.
        return self.noise[min(index, len(self.noise) - 1)]

    def gives_up(self, index: int, rng: np.random.Generator) -> bool:
        return index + 1 >= len(self.noise)
