"""The level bound of grids: known values, brute force over all orders, and a direct evaluation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from audit import repetitions
from audit.accounting import (
    Candidates,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    solve_epsilon,
)
from audit.numerics import FloatArray
from audit.protocols import Grid
from audit.upper_bounds import (
    GridCurve,
    LevelCurve,
    TightCurve,
    all_upper_bounds,
    find,
    grid_levels,
    tuning_cost,
)

DELTA = 1e-5
RARE = DpSgd(0.8, 1000, 0.001)
TWO_OUTPUTS = DiscreteMechanism([0.5606, 0.4394], [0.1694, 0.8306], directed=True)


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("base", "grid", "value"),
    [
        (RARE, "grid:10", 0.714),
        (RARE, "grid:30", 0.900),
        (RARE, "grid:100", 1.312),
        (DpSgd(0.6, 3000, 0.0005), "grid:30", 2.277),
    ],
)
def test_known_values(base: DpSgd, grid: str, value: float) -> None:
    found = tuning_cost(base, grid, DELTA)
    assert found.name == "grid-levels"
    assert found.epsilon == pytest.approx(value, abs=2e-3)
    assert found.epsilon < find("grid", Grid).function(base, grid, DELTA).epsilon
    # With all other candidates at the level, the integral is the tight bound of as many draws.
    draws = f"fixed:{grid.removeprefix('grid:')}"
    assert found.epsilon > tuning_cost(base, draws, DELTA).epsilon * (1.0 - 1e-3)


def leak_of_grid(
    laws: list[FloatArray], laws_with: list[FloatArray], epsilon: float, p: float
) -> float:
    """The largest delta over all orders of (candidate, output), by induction over sets."""
    places = [(i, y) for i, law in enumerate(laws) for y in range(len(law))]

    def chance(side: list[FloatArray], place: tuple[int, int], better: frozenset[Any]) -> float:
        left = [1.0 - p * sum(law[y] for j, y in better if j == i) for i, law in enumerate(side)]
        i, y = place
        return float(p * side[i][y] * math.prod(left[j] for j in range(len(side)) if j != i))

    best: dict[frozenset[Any], float] = {frozenset(): 0.0}
    for size in range(len(places)):
        for chosen in itertools.combinations(places, size):
            better = frozenset(chosen)
            for place in set(places) - better:
                gain = chance(laws, place, better) - math.exp(epsilon) * chance(
                    laws_with, place, better
                )
                after = better | {place}
                best[after] = max(best.get(after, 0.0), best[better] + max(gain, 0.0))
    return best[frozenset(places)]


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize("inclusion", [1.0, 0.6])
def test_no_order_leaks_more_than_the_level_bound(inclusion: float) -> None:
    rng = np.random.default_rng(24)
    ratios = []
    for case in range(24):
        sizes = [(2, 2, 2), (3, 2, 2), (2, 2, 2, 2), (3, 3)][case % 4]
        pairs = [rng.dirichlet(np.full(size, 0.7), 2) * 0.98 + 0.02 / size for size in sizes]
        if case % 3:  # all candidates alike, or two kinds
            pairs = [pairs[0] if size == sizes[0] else pairs[-1] for size in sizes]
        epsilon = float(rng.uniform(0.0, 2.0))
        laws, laws_with = ([pair[side] for pair in pairs] for side in (0, 1))
        leak = leak_of_grid(laws, laws_with, epsilon, inclusion)
        kinds: dict[int, int] = {}
        for pair in pairs:
            kinds[id(pair)] = kinds.get(id(pair), 0) + 1
        distinct = {id(pair): pair for pair in pairs}
        curve = LevelCurve(
            tuple(DiscreteMechanism(*pair).pairs[0] for pair in distinct.values()),
            tuple(kinds.values()),
            inclusion,
            0.01 * max(leak, 1e-6),
        )
        if leak > 1e-6:
            assert curve.delta(epsilon) >= leak * (1.0 - 1e-9), case
            ratios.append(leak / curve.delta(epsilon))
    assert max(ratios) > 0.3  # the bound is not trivial


def direct_level_bound(p: FloatArray, q: FloatArray, epsilon: float) -> tuple[float, float]:
    """Sums below and above the level bound of three candidates with two outputs, over events."""
    f = np.linspace(0.0, 1.0, 401)
    order = np.argsort(-q / p)  # U takes the outputs with the largest ratio first
    upper = np.interp(f, np.append(0.0, np.cumsum(p[order])), np.append(0.0, np.cumsum(q[order])))
    lower = 1.0 - upper[::-1]
    slopes = np.diff(lower) / np.diff(f)
    totals = np.zeros((2, len(slopes)))
    for j, slope in enumerate(slopes):
        for side, x in enumerate((j + 1, j)):
            free = f <= 1.0 - f[x] + 1e-12
            near = 1.0 - f[x] - f[free], 1.0 - lower[x] - upper[free]
            far = 1.0 - f, 1.0 - upper
            for left, right in ((far, far), (near, far), (near, near)):
                gains = np.multiply.outer(left[0], right[0]) - math.exp(epsilon) * slope * (
                    np.multiply.outer(left[1], right[1])
                )
                totals[side, j] += max(float(gains.max()), 0.0)
    below, above = totals.sum(axis=1) * (f[1] - f[0])
    return float(below), float(above)


@pytest.mark.slow
def test_a_direct_evaluation_for_two_outputs() -> None:
    below, above = direct_level_bound(TWO_OUTPUTS.p, TWO_OUTPUTS.q, 1.0)
    assert 0.54 < below < above < 0.57
    pair = TWO_OUTPUTS.pairs[0]
    curve = LevelCurve((pair,), (3,), 1.0, 1e-6)
    # The curve in logarithms is convex only after a hull, which costs 5 % here.
    assert below < curve.refined(1.0).delta(1.0) < 1.06 * above
    assert curve.attained_delta(1.0) < above
    assert curve.delta(1.0) < 0.8 * GridCurve((pair,), (3,), 1.0, 1e-6).delta(1.0)


@pytest.mark.slow
def test_on_a_gaussian_base_the_bound_is_above_the_exact_cost() -> None:
    (pair,) = GaussianMechanism(0.24721).pairs
    exact = TightCurve.at(pair, repetitions.parse_repetitions("fixed:10"), DELTA).epsilon(DELTA)
    curve = LevelCurve((pair,), (10,), 1.0, 0.1 * DELTA).refined(exact)
    product = GridCurve((pair,), (10,), 1.0, 1e-12).delta(exact)
    assert DELTA < curve.delta(exact) < 0.8 * product


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "grid"),
    [
        pytest.param(RARE, "grid:30,0.9", marks=pytest.mark.slow),
        (GaussianMechanism(0.24721), "grid:30,0.9"),
    ],
)
def test_candidates_left_out_by_chance(base: Any, grid: str) -> None:
    found = grid_levels(base, grid, DELTA)
    assert found.epsilon < 0.95 * find("grid", Grid).function(base, grid, DELTA).epsilon
    assert tuning_cost(base, grid, DELTA).epsilon <= found.epsilon
    # All draws that equally many independent runs could be.
    assert found.epsilon > tuning_cost(base, "binomial:30,0.9", DELTA).epsilon * (1.0 - 1e-3)


@pytest.mark.slow
def test_more_levels_only_lower_the_bound_and_points_stay_below_it() -> None:
    for pair in RARE.pairs:
        curve = LevelCurve((pair,), (20,), 1.0, 0.1 * DELTA)
        for epsilon in (0.3, 0.8):
            fine = curve.refined(epsilon).delta(epsilon)
            assert curve.attained_delta(epsilon) < fine < 1.02 * curve.delta(epsilon)
        assert curve.refined(0.8).epsilon(DELTA, 0.7) >= solve_epsilon(
            curve.refined(0.8).delta, DELTA
        ) * (1.0 - 1e-9)


@pytest.mark.slow
def test_candidates_of_one_kind_may_be_given_one_by_one() -> None:
    alike = grid_levels(RARE, "grid:6", DELTA).epsilon
    assert grid_levels(Candidates((RARE,) * 6), "grid:6", DELTA).epsilon == pytest.approx(alike)
    quiet = DpSgd(1.6, 1000, 0.001)
    mixed = grid_levels(Candidates((RARE,) * 3 + (quiet,) * 3), "grid:6", DELTA).epsilon
    assert grid_levels(quiet, "grid:6", DELTA).epsilon < mixed < alike * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "grid", "reason"),
    [
        (RARE, "grid:2", "at most two candidates"),
        (GaussianMechanism(0.3), "grid:5", "grid-tight is simpler"),
        (Candidates(tuple(LaplaceMechanism(5.0 + k) for k in range(20))), "grid:20", "16 kinds"),
    ],
)
def test_where_it_does_not_apply(base: Any, grid: str, reason: str) -> None:
    assert reason in grid_levels(base, grid, DELTA).reason
    assert "grid-levels" not in [row.name for row in all_upper_bounds(base, grid, DELTA)]


@pytest.mark.slow
def test_a_bound_that_cannot_win_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def note(*arguments: Any) -> float:
        called.append(arguments)
        return 0.0

    monkeypatch.setattr(LevelCurve, "epsilon", note)
    assert tuning_cost(DpSgd(1.0, 1000, 0.01), "grid:20", DELTA).name == "grid-log-concave"
    assert not called
