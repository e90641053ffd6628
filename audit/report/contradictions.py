"""Lower bounds above an upper bound, and whether chance explains them.

Each valid lower bound exceeds the true epsilon with probability at most alpha = 1 - confidence. A
report compares m of them with the smallest valid upper bound: every valid lower bound from all
trials, at every budget. Even if nothing is wrong, some lower bound may exceed the upper bound with
probability up to m alpha. A contradiction is therefore announced only if the lower bound still
exceeds the upper bound when it is computed with the error alpha / m. By Bonferroni's inequality, a
report of a correct mechanism then announces a contradiction with probability at most alpha, however
the bounds depend on each other.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from audit.report.results import Contradiction, LowerResult, UpperResult

LowerBounds = Mapping[str, Mapping[str, LowerResult]]
"""Lower bounds by proxy, then by key."""


def find(
    lower: LowerBounds,
    upper: Mapping[str, UpperResult],
    confidence: float,
    budgets: int,
    recompute: Callable[[str, float], Mapping[str, float]],
) -> Iterator[Contradiction]:
    """The valid lower bounds above the smallest valid upper bound at one budget.

    Args:
        lower: the lower bounds at this budget.
        upper: the upper bounds at this budget, by name.
        confidence: confidence of each lower bound on its own.
        budgets: number of budgets in the report; all have the same number of lower bounds.
        recompute: maps a proxy and a larger confidence to the lower bounds from all trials, by key.
    """
    valid = [
        (proxy, key, bound.epsilon)
        for proxy, bounds in lower.items()
        for key, bound in bounds.items()
        if bound.valid
    ]
    valid_uppers = [
        (bound.epsilon, bound.name)
        for bound in upper.values()
        if bound.valid and bound.epsilon is not None
    ]
    if not valid_uppers:
        return
    smallest, name = min(valid_uppers)
    compared = len(valid) * budgets
    corrected = cache(lambda proxy: recompute(proxy, 1.0 - (1.0 - confidence) / compared))
    for proxy, key, epsilon in valid:
        if epsilon > smallest:
            beyond_chance = corrected(proxy).get(key, 0.0) > smallest
            yield Contradiction(key, proxy, epsilon, name, smallest, beyond_chance, compared)
