"""Repetition until a run is accepted."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import Protocol


@dataclass(frozen=True)
class UntilAccepted(Protocol):
    """Repeats runs until the output is accepted, and releases that output.

    Sources: conditional sampling (Papernot & Steinke 2022, proposition 15); Liu & Talwar 2019.

    Attributes:
        acceptance: a lower limit, on every data set, of the probability that one run is accepted,
            in (0, 1].

    Example:
        >>> UntilAccepted(0.1).spec
        'until:0.1'
    """

    acceptance: float

    name: ClassVar[str] = "until"
    assumption: ClassVar[str] = (
        "independent runs until one is accepted, of at least the stated chance on any data set"
    )

    def __post_init__(self) -> None:
        acceptance = checks.interval("acceptance", self.acceptance, 0.0, 1.0, closed_high=True)
        object.__setattr__(self, "acceptance", acceptance)

    @property
    def spec(self) -> str:
        return f"until:{self.acceptance!r}"


@dataclass(frozen=True)
class RandomStopping(Protocol):
    """Repeats runs until the output is accepted; after each rejection, stops with some chance.

    After a stop, nothing is released. No lower limit of the acceptance is needed. Source: after
    algorithm 2 of Liu & Talwar 2019.

    Attributes:
        stop: probability of giving up after a rejected run, in (0, 1].

    Example:
        >>> RandomStopping(0.1).spec
        'stopping:0.1'
    """

    stop: float

    name: ClassVar[str] = "stopping"
    assumption: ClassVar[str] = (
        "independent runs until one is accepted, each other one followed by a stop of fixed chance"
    )

    def __post_init__(self) -> None:
        stop = checks.interval("stop", self.stop, 0.0, 1.0, closed_high=True)
        object.__setattr__(self, "stop", stop)

    @property
    def spec(self) -> str:
        return f"stopping:{self.stop!r}"
