"""What a grid costs on a Gaussian base, against every order that goes from both ends."""

import math

import numpy as np
import pytest
from scipy import stats

from audit import upper_bounds
from audit.accounting import (
    Candidates,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mixture,
)
from audit.protocols import Grid
from audit.repetitions import Fixed
from audit.upper_bounds import grid_tight
from audit.upper_bounds.grid_of_gaussians import _bins, by_chance
from audit.upper_bounds.registry import find
from audit.upper_bounds.tight import TightCurve

DELTA = 1e-5


def most_of_three(p, q, epsilon, inclusion=1.0):
    """The largest delta of three candidates, of the orders that go through each from both ends.

    From the end that speaks most against the record each cell is won with, from the other lost
    with; whose turn it is may depend on all that has gone. What is still to be gained depends on
    what is left of each alone, so this is an induction from the end.

    Args:
        p: probabilities [n] of cells without the record, those that speak most against it first.
        q: with it.
        epsilon: at which delta is asked.
        inclusion: chance of each candidate to be run.
    """
    n = len(p)
    states = [(a, gone - a) for gone in range(n, -1, -1) for a in range(gone + 1)]
    place = {state: k for k, state in enumerate(states)}
    ends = [
        slice(start, start + n - i + 1)
        for i, start in enumerate(np.cumsum([0, *range(n + 1, 1, -1)]))
    ]
    left = np.array([[law[a : n - b].sum() for a, b in states] for law in (p, q)])
    left = 1.0 - inclusion + inclusion * left
    # Where nothing is left there is nothing to gain, and no way on.
    won = np.array([place.get((a + 1, b), place[a, b]) for a, b in states])
    lost = np.array([place.get((a, b + 1), place[a, b]) for a, b in states])
    cell = inclusion * np.array(
        [[law[a] if a + b < n else 0.0 for a, b in states] for law in (p, q)]
    )
    weight = np.array([1.0, -math.exp(epsilon)])
    most = np.zeros((len(states),) * 3)
    for i, j in np.ndindex(most.shape[:2]):
        for end in ends:
            gains = [
                np.einsum("s,s,sk->k", weight * cell[:, i], left[:, j], left[:, end]),
                np.einsum("s,s,sk->k", weight * cell[:, j], left[:, i], left[:, end]),
                np.einsum("s,s,sk->k", weight * left[:, i], left[:, j], cell[:, end]),
            ]
            after = [
                (most[won[i], j, end], most[lost[i], j, end]),
                (most[i, won[j], end], most[i, lost[j], end]),
                (most[i, j, won[end]], most[i, j, lost[end]]),
            ]
            each = [np.maximum(g + w, r) for g, (w, r) in zip(gains, after, strict=True)]
            most[i, j, end] = np.maximum.reduce(each)
    return float(most[-1, -1, -1])


def gaussian_cells(mu, n):
    edges = np.concatenate([[-np.inf], np.linspace(-2.3, 2.3 + mu, n - 1), [np.inf]])
    return np.diff(stats.norm.cdf(edges)), np.diff(stats.norm.cdf(edges - mu))


def test_orders_of_three_candidates_of_two_outputs():
    # The largest of all 720 orders of a grid, where draws of one distribution leak 0.1887.
    p, q = np.array([0.5606, 0.4394]), np.array([0.1694, 0.8306])
    assert most_of_three(p, q, 1.0) == pytest.approx(0.3096, abs=1e-4)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.2), (1.0, 1.0), (1.5, 0.3), (2.0, 4.0)])
def test_no_order_of_three_gaussian_candidates_leaks_more(mu, epsilon):
    (pair,) = GaussianMechanism(mu).pairs
    coarse, fine = (most_of_three(*gaussian_cells(mu, n), epsilon) for n in (5, 8))
    bound = TightCurve.at(pair, Fixed(3), fine).delta(epsilon)
    # Cells reveal less than the output itself; with more cells, less is lost.
    assert coarse < fine <= bound
    assert bound - fine < 0.5 * (bound - coarse)
    assert fine > 0.9 * bound


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 1.0), (0.3, 0.2)])
def test_no_order_leaks_more_where_candidates_are_left_out_by_chance(mu, epsilon):
    cells, inclusion = gaussian_cells(mu, 6), 0.6
    leak = most_of_three(*cells, epsilon, inclusion)
    assert leak < most_of_three(*cells, epsilon)
    spec = f"grid:3,{inclusion}"
    assert grid_tight(GaussianMechanism(mu), spec, leak).epsilon > epsilon


def test_few_candidates_left_out_by_chance_cost_the_mean_over_how_many_are_run():
    (pair,) = GaussianMechanism(0.8).pairs
    found = by_chance(pair, Grid(4, 0.6), DELTA)
    mean = sum(
        stats.binom.pmf(k, 4, 0.6) * TightCurve.at(pair, Fixed(k), DELTA).delta(found)
        for k in range(1, 5)
    )
    assert mean == pytest.approx(DELTA, rel=2e-3)


@pytest.mark.parametrize(("count", "chance"), [(4, 0.6), (1000, 0.02), (200, 0.5), (10**6, 1e-3)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_bins_hold_all_chances_of_how_many_are_run(count, chance, delta):
    runs, chances, beyond = _bins(Grid(count, chance), delta)
    law = stats.binom(count, chance)
    assert sum(chances) + law.pmf(0) + beyond == pytest.approx(1.0, abs=1e-12)
    assert beyond == pytest.approx(law.sf(runs[-1]), rel=1e-9, abs=1e-300)
    assert beyond <= 0.02 * delta * (1.0 + 1e-9)
    before = 0
    for most, share in zip(runs, chances, strict=True):
        assert share == pytest.approx(law.sf(before) - law.sf(most), rel=1e-9)
        before = most


def test_where_many_of_many_are_run_it_is_below_the_grid_bound():
    base = GaussianMechanism(0.25)
    found = {
        row.name: row.epsilon for row in upper_bounds.all_upper_bounds(base, "grid:200,0.5", DELTA)
    }
    assert upper_bounds.tight(base, "binomial:200,0.5", DELTA).attains < found["grid-tight"]
    assert found["grid-tight"] < 0.95 * found["grid"]
    assert grid_tight(base, "grid:5,1e-9", DELTA).epsilon == 0.0
    sources = [grid_tight(base, spec, DELTA).claim.source for spec in ("grid:5", "grid:5,0.5")]
    assert "as many independent draws" in sources[0]
    assert "mean of the tight bounds" in sources[1]


@pytest.mark.parametrize("mu", [0.01, 0.5, 3.0])
def test_two_candidates_are_their_composition_and_one_is_one(mu):
    base = GaussianMechanism(mu)
    composed = GaussianMechanism(math.sqrt(2.0) * mu).epsilon(DELTA)
    found = grid_tight(base, "grid:2", DELTA)
    assert composed <= found.epsilon <= composed * (1.0 + 2e-4)
    assert found.attains <= composed
    assert grid_tight(base, "grid:1", DELTA).epsilon == pytest.approx(base.epsilon(DELTA), rel=1e-8)


def test_it_is_what_draws_of_one_law_cost_and_the_smallest_for_any_score():
    for base in (GaussianMechanism(0.25), DpSgd(70.0, 300)):
        found = grid_tight(base, "grid:12", DELTA)
        assert found.epsilon == upper_bounds.tight(base, "fixed:12", DELTA).epsilon
        assert found.attains == pytest.approx(found.epsilon, rel=2e-4)
        assert upper_bounds.tuning_cost(base, "grid:12", DELTA) == found


def test_candidates_count_as_the_loudest():
    quiet, loud = GaussianMechanism(0.2), GaussianMechanism(0.6)
    found = grid_tight(Candidates((quiet, loud, quiet)), "grid:3", DELTA)
    assert found.epsilon == grid_tight(loud, "grid:3", DELTA).epsilon
    assert found.attains == 0.0


@pytest.mark.parametrize(
    ("base", "protocol", "words"),
    [
        (LaplaceMechanism(2.0), "grid:4", "Gaussian base"),
        (DpSgd(4.0, 300, 0.02), "grid:4", "Gaussian base"),
        (Mixture((GaussianMechanism(0.1),), (0.5,)), "grid:4", "Gaussian base"),
        (Candidates((GaussianMechanism(0.1), LaplaceMechanism(2.0))), "grid:2", "Gaussian base"),
        (GaussianMechanism(0.1), "fixed:4", "a fixed list of candidates"),
    ],
)
def test_it_says_where_it_says_nothing(base, protocol, words):
    found = grid_tight(base, protocol, DELTA)
    assert not found.applies
    assert words in found.reason


@pytest.mark.parametrize("mu", [1e-4, 30.0])
@pytest.mark.parametrize("candidates", [3, 10**6])
def test_extremes_are_finite_and_below_the_grid_bound(mu, candidates):
    base, protocol = GaussianMechanism(mu), f"grid:{candidates}"
    loose = find("grid", Grid).function(base, protocol, 1e-8).epsilon
    assert 0.0 < grid_tight(base, protocol, 1e-8).epsilon <= loose * (1.0 + 1e-6)
