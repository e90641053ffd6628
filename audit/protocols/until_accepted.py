"""Repetition until a run is accepted: with equal noise, with random stops, or with less noise."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols.base import Case, Protocol, SimulatedTunings, Statement
from audit.repetitions import Repetitions

RUNS_UNTIL = "the first accepted run ends the tuning"
REVEALS_REJECTIONS = "the run time becomes known, because it reveals how many runs were rejected"
# If a series of rejections has less than this probability, the claimed acceptance is wrong.
_IMPLAUSIBLE = 1e-15

_MAX_STEPS = 100


class RepeatedRuns(Protocol):
    """A protocol that repeats independent runs until one is accepted, which it releases.

    Example:
        >>> UntilAccepted(0.1).stopping_probability, UntilAccepted(0.1).accepted_share
        (0.0, 0.1)
    """

    is_sequential: ClassVar[bool] = True
    ends_with_accepted: ClassVar[bool] = True

    @property
    @abstractmethod
    def accepted_share(self) -> float:
        """The probability that a run is accepted, at which simulated tunings aim."""

    @property
    @abstractmethod
    def stopping_probability(self) -> float:
        """The probability of stopping without a result after a rejected run."""

    @property
    def may_never_end(self) -> bool:
        return True


@dataclass(frozen=True)
class UntilAccepted(RepeatedRuns):
    """Repeats runs until the output is accepted, and releases that output.

    Sources: conditional sampling (Papernot & Steinke 2022, proposition 15); Liu & Talwar 2019.

    Attributes:
        acceptance: a lower bound on the probability that one run is accepted, which must hold on
            every data set, in (0, 1].

    Example:
        >>> UntilAccepted(0.1).spec
        'until:0.1'
    """

    acceptance: float

    name: ClassVar[str] = "until"
    assumption: ClassVar[str] = (
        "independent runs until one is accepted; on any data set, a run is accepted with at least "
        "the stated probability"
    )
    release: ClassVar[str] = "only the accepted run is released"
    parameters: ClassVar[str] = "ACCEPTANCE"

    def __post_init__(self) -> None:
        checks.validate(self, "acceptance", checks.interval, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        return f"until:{self.acceptance!r}"

    @property
    def accepted_share(self) -> float:
        return self.acceptance

    @property
    def stopping_probability(self) -> float:
        return 0.0

    @property
    def expected_work(self) -> float:
        return 1.0 / self.acceptance

    def expected_quantile(self) -> float | None:
        # The released run is uniform among the accepted ones.
        return 1.0 - self.acceptance / 2.0

    @classmethod
    def cases(cls, runs: float) -> list[Case]:
        acceptance = float(f"{1 / runs:.3g}")
        return [Case("repeat until one is accepted", cls(acceptance))]

    @cached_property
    def statement(self) -> Statement:
        chance = format_exact(self.acceptance)
        return Statement(
            "The tuning trains until a run is good enough, and releases that run. A run is "
            f"good enough with probability at least {chance}.",
            runs=RUNS_UNTIL,
            acceptance=f"on any data set, a run is accepted with probability at least {chance}",
            void_if=(REVEALS_REJECTIONS,),
        )

    def simulate(self, tunings: SimulatedTunings) -> list[Any]:
        log_rejection = math.log1p(-min(self.acceptance, 1.0 - _IMPLAUSIBLE))
        max_runs = math.ceil(math.log(_IMPLAUSIBLE) / log_rejection)
        every_view = tunings.first_accepted(np.full(tunings.count, max_runs))
        for winners in every_view:
            if (winners.chosen < 0).any():
                raise InvalidInput(
                    "acceptance must be a lower bound on the probability that a run is accepted, "
                    f"got {self.acceptance!r}, but none of {int(winners.runs.max())} runs was "
                    "accepted"
                )
        return every_view


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
