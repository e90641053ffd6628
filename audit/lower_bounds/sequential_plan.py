"""Looking at a game more than once, to stop when it has proved enough."""

import math
from dataclasses import dataclass

from audit import checks


@dataclass(frozen=True)
class SequentialPlan:
    """One of several looks at a game that goes on until a look proves enough.

    The errors of all looks add up to the error of the game, so whoever stops at the first look that
    proves enough, or at any other, has a bound that holds with the confidence of the game: 1/J of
    the error for each of J planned looks; without a plan, 6 / (pi j)^2 for the j-th.

    Attributes:
        planned: J, the number of looks at most; None without a plan.
        number: which look this is, counted from 1; with a plan all are alike.
    """

    planned: int | None = None
    number: int = 1

    def __post_init__(self) -> None:
        if self.planned is not None:
            object.__setattr__(self, "planned", checks.integer("planned", self.planned, 1))
        number = checks.integer("number", self.number, 1, self.planned)
        object.__setattr__(self, "number", number)

    @property
    def share(self) -> float:
        """The share of the error that this look may spend."""
        if self.planned is not None:
            return 1.0 / self.planned
        return 6.0 / (math.pi * self.number) ** 2


def as_looks(looks: "SequentialPlan | int | None") -> SequentialPlan:
    """Looks as a user gives them: a number is one of planned looks, nothing is a single one."""
    if isinstance(looks, SequentialPlan):
        return looks
    return SequentialPlan(planned=1 if looks is None else looks)


def doubling(trials: int, first: int = 500) -> tuple[int, ...]:
    """Numbers of trials at which to look, ascending: `trials`, and halves of it down to `first`.

    Args:
        trials: when the game ends at the latest.
        first: no look before so many trials.

    Example:
        >>> doubling(10_000, first=1_000)
        (1250, 2500, 5000, 10000)
    """
    checks.integer("trials", trials, 1)
    checks.integer("first", first, 1)
    sizes = [trials]
    while sizes[-1] >= 2 * first:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))
