"""Protocols that repeat runs until one is accepted."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.errors import InvalidInput
from audit.protocols.base import Protocol

_MAX_STEPS = 100


@dataclass(frozen=True)
class UntilAccepted(Protocol):
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

    def __post_init__(self) -> None:
        checks.validate(self, "acceptance", checks.interval, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        return f"until:{self.acceptance!r}"


@dataclass(frozen=True)
class RandomStopping(Protocol):
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

    def __post_init__(self) -> None:
        checks.validate(self, "stop", checks.interval, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        return f"stopping:{self.stop!r}"


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

    def __post_init__(self) -> None:
        noise = tuple(checks.interval("noise", one, 0.0) for one in self.noise)
        if not 1 <= len(noise) <= _MAX_STEPS:
            raise InvalidInput(f"noise must have 1 to {_MAX_STEPS} factors, got {len(noise)}")
        checks.store_validated(self, noise=noise)

    @property
    def spec(self) -> str:
        return f"schedule:{','.join(map(repr, self.noise))}"
