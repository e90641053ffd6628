"""Repetition until a run is accepted."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols.base import Case, Protocol, SimulatedTunings, Statement

RUNS_UNTIL = "the first accepted run ends the tuning"
REVEALS_REJECTIONS = "the run time becomes known, because it reveals how many runs were rejected"
# If a series of rejections has less than this probability, the claimed acceptance is wrong.
_IMPLAUSIBLE = 1e-15


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
