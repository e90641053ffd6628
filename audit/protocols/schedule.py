"""Increasing the budget along a fixed schedule until a run is accepted."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.errors import InvalidInput
from audit.protocols.base import Protocol

_MAX_STEPS = 100


@dataclass(frozen=True)
class BudgetSchedule(Protocol):
    """One run for each step of a schedule of noise, until one is accepted and released.

    In step i, all noise is `noise[i]` times that of the base mechanism. Decreasing factors mean
    increasing budgets. If no run is accepted, nothing is released. Source: the setting of Ghazi et
    al. 2025 (arXiv 2508.15183).

    Attributes:
        noise: [n] the factor of the noise in each step, > 0, in order; from 1 to 100 steps.

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

    def __post_init__(self) -> None:
        noise = tuple(checks.interval("noise", one, 0.0) for one in self.noise)
        if not 1 <= len(noise) <= _MAX_STEPS:
            raise InvalidInput(f"noise must have 1 to {_MAX_STEPS} factors, got {len(noise)}")
        object.__setattr__(self, "noise", noise)

    @property
    def spec(self) -> str:
        return f"schedule:{','.join(map(repr, self.noise))}"
