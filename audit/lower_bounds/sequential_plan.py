"""Plans to analyse an audit more than once, so that it can stop early."""

import math
from dataclasses import dataclass

from audit import checks


@dataclass(frozen=True)
class SequentialPlan:
    """One of several analyses of an audit that grows until an analysis proves enough.

    The errors of all analyses add up to the error of the audit. So the bound holds with the
    confidence of the audit, whichever analysis the audit stops at. With J planned analyses each
    one spends 1/J of the error. Without a plan, the j-th spends the share 6 / (pi j)^2.

    Attributes:
        planned: J, the largest number of analyses; None without a plan.
        number: the number j of this analysis, counted from 1; irrelevant with a plan.

    Example:
        >>> SequentialPlan(planned=5).share, round(SequentialPlan(number=2).share, 3)
        (0.2, 0.152)
    """

    planned: int | None = None
    number: int = 1

    def __post_init__(self) -> None:
        if self.planned is not None:
            checks.validate(self, "planned", checks.integer, 1)
        checks.validate(self, "number", checks.integer, 1, self.planned)

    @property
    def share(self) -> float:
        """The share of the error that this analysis may spend."""
        if self.planned is not None:
            return 1.0 / self.planned
        return 6.0 / (math.pi * self.number) ** 2


def as_plan(plan: SequentialPlan | int | None) -> SequentialPlan:
    """The plan that a user gives: an integer is a number of planned analyses, None is one."""
    if isinstance(plan, SequentialPlan):
        return plan
    return SequentialPlan(planned=1 if plan is None else checks.integer("plan", plan, 1))


def doubling_sizes(trials: int, first: int = 500) -> tuple[int, ...]:
    """Numbers of trials at which to analyse, ascending: `trials`, its half, and so on to `first`.

    Args:
        trials: the number of trials after which the audit ends in any case.
        first: the smallest number of trials for an analysis.

    Example:
        >>> doubling_sizes(10_000, first=1_000)
        (1250, 2500, 5000, 10000)
    """
    trials = checks.integer("trials", trials, 1)
    first = checks.integer("first", first, 1)
    sizes = [trials]
    while sizes[-1] >= 2 * first:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))
