"""Lower bounds above an upper bound, and whether chance explains them.

Each valid lower bound exceeds the true epsilon in up to a share alpha = 1 - confidence of audits. A
report compares m of them with the smallest valid upper bound: every valid lower bound from all
games, at every budget. So some lower bound may exceed the upper bound in up to m alpha of audits
although nothing is wrong. A contradiction is therefore announced only if the lower bound still
exceeds the upper bound when it is computed with the error alpha / m. By Bonferroni's inequality,
and however the bounds depend on each other, a report of a correct mechanism announces any
contradiction with probability at most m (alpha / m) = alpha.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from audit.report.results import Contradiction, LowerResult, UpperResult

Lower = Mapping[str, Mapping[str, LowerResult]]
"""Lower bounds by proxy, then by key."""


def find(
    lower: Lower,
    upper: Mapping[str, UpperResult],
    confidence: float,
    budgets: int,
    recompute: Callable[[str, float], Mapping[str, float]],
) -> Iterator[Contradiction]:
    """The valid lower bounds above the smallest valid upper bound at one budget.

    Args:
        lower: the lower bounds at this budget.
        upper: the upper bounds at this budget, by name.
        confidence: of each lower bound on its own.
        budgets: number of budgets in the report, each with as many lower bounds.
        recompute: from a proxy and a larger confidence to the lower bounds from all games, by key.
    """
    valid = [
        (proxy, key, bound.epsilon)
        for proxy, bounds in lower.items()
        for key, bound in bounds.items()
        if bound.valid
    ]
    known = [
        (bound.epsilon, bound.name)
        for bound in upper.values()
        if bound.valid and bound.epsilon is not None
    ]
    if not known:
        return
    value, name = min(known)
    compared = len(valid) * budgets
    corrected = cache(lambda proxy: recompute(proxy, 1.0 - (1.0 - confidence) / compared))
    for proxy, key, epsilon in valid:
        if epsilon > value:
            beyond_chance = corrected(proxy).get(key, 0.0) > value
            yield Contradiction(key, proxy, epsilon, name, value, beyond_chance, compared)
