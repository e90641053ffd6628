"""Orders of one statistic: preferred values, their probabilities, and the best of K draws."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from audit.orders import FoldedOrder, IncreasingOrder, SplitOrder

ORDERS = [
    IncreasingOrder(),
    SplitOrder(0.4),
    SplitOrder(-np.inf),
    SplitOrder(np.inf),
    FoldedOrder(-0.5, (-3.0, -0.6), (2.5, -0.4)),
]


def winners(order: Any, x: Any) -> Any:
    """The best of every row, the smaller x of equal scores."""
    scores = order.rank(x)
    best = scores == scores.max(axis=1, keepdims=True)
    return np.where(best, x, np.inf).min(axis=1)


def test_which_values_an_order_prefers() -> None:
    x = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])

    def best_to_worst(order: Any) -> Any:
        return x[np.lexsort((x, -order.rank(x)))].tolist()

    assert (
        best_to_worst(IncreasingOrder()) == best_to_worst(SplitOrder(-np.inf)) == [3, 1, 0, -1, -3]
    )
    assert best_to_worst(SplitOrder(0.5)) == [3, 1, -3, -1, 0]
    assert best_to_worst(SplitOrder(np.inf)) == [-3, -1, 0, 1, 3]
    assert best_to_worst(FoldedOrder(-0.5, (-3.0, -0.6), (2.5, -0.4))) == [3, -3, 1, -1, 0]


@pytest.mark.parametrize("order", ORDERS[:4], ids=str)
@pytest.mark.parametrize("mean", [0.0, 1.3])
def test_drawn_winners_are_the_best_of_k_draws(
    order: IncreasingOrder | SplitOrder, mean: float
) -> None:
    # Two samples of 40,000 by Kolmogorov and Smirnov: false alarm 1e-6 each, the seed is fixed.
    rng, k, size = np.random.default_rng(8), 5, 40_000
    played = winners(order, rng.normal(mean, 1.0, (size, k)))
    drawn = order.best(np.full(size, k), mean, rng)
    assert stats.ks_2samp(played, drawn).pvalue > 1e-6


@pytest.mark.parametrize("top", [-np.inf, -0.7, 0.4, np.inf])
def test_probabilities_of_preferred_values(top: float) -> None:
    # Every count within five standard deviations of 200,000 draws.
    rng, size, order = np.random.default_rng(9), 200_000, SplitOrder(top)
    draws = rng.normal(0.8, 1.0, size)
    for x in (-1.5, 0.0, 0.39, 0.41, 2.0):
        above, below = order.tails(x, 0.8)
        better = order.rank(draws) > order.rank(np.array([x]))
        for chance, seen in (
            (above, better & (draws > top)),
            (below, better & (draws <= top)),
        ):
            spread = 5.0 * np.sqrt(chance * (1.0 - chance) / size) + 1e-9
            assert abs(seen.mean() - chance) <= spread


def test_a_trial_without_runs_has_no_statistic() -> None:
    drawn = IncreasingOrder().best(np.array([0, 3]), 0.0, np.random.default_rng(1))
    assert drawn[0] == -np.inf
    assert np.isfinite(drawn[1])
