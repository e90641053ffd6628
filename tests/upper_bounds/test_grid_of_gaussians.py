"""The cost of a grid on Gaussian bases, against all orders that proceed from both ends."""

import itertools
import math
import sys
from typing import Any

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
    solve_epsilon,
)
from audit.protocols import Grid
from audit.repetitions import Binomial, Fixed
from audit.upper_bounds import grid_tight
from audit.upper_bounds.grid_tight import _BINS as BINS
from audit.upper_bounds.grid_tight import _bins, by_chance, kinds_delta, kinds_epsilon
from audit.upper_bounds.registry import find
from audit.upper_bounds.tight import TightCurve

DELTA = 1e-5


def most_of_three(candidates: Any, epsilon: Any, inclusion: Any = 1.0) -> Any:
    """The largest delta of three candidates over all orders that use their cells from both ends.

    A cell at the end with the evidence against the record counts as a win, a cell at the other end
    as a loss. The choice of the next candidate may depend on all used cells. The remaining gain
    depends only on the remaining cells of each candidate, so it follows by backward induction.

    Args:
        candidates: for each candidate, the probabilities [n] of its cells without and with the
            record, those with the strongest evidence against the record first.
        epsilon: the epsilon at which delta is computed.
        inclusion: probability that a candidate is run.
    """
    n = len(candidates[0][0])
    states = [(a, gone - a) for gone in range(n, -1, -1) for a in range(gone + 1)]
    place = {state: k for k, state in enumerate(states)}
    ends = [
        slice(start, start + n - i + 1)
        for i, start in enumerate(np.cumsum([0, *range(n + 1, 1, -1)]))
    ]
    lefts = [
        1.0 - inclusion + inclusion * np.array([[x[a : n - b].sum() for a, b in states] for x in c])
        for c in candidates
    ]
    # Without remaining cells, the gain is zero.
    won = np.array([place.get((a + 1, b), place[a, b]) for a, b in states])
    lost = np.array([place.get((a, b + 1), place[a, b]) for a, b in states])
    cells = [
        inclusion * np.array([[x[a] if a + b < n else 0.0 for a, b in states] for x in c])
        for c in candidates
    ]
    weight = np.array([1.0, -math.exp(epsilon)])
    most = np.zeros((len(states),) * 3)
    every = np.arange(len(states))
    for at in itertools.product(ends, repeat=3):  # these states have the same number of used cells
        found = []
        for moved in range(3):
            chances = [(cells if k == moved else lefts)[k][:, part] for k, part in enumerate(at)]
            gain = np.einsum("s,si,sj,sk->ijk", weight, *chances)
            after = [
                most[np.ix_(*((on if k == moved else every)[part] for k, part in enumerate(at)))]
                for on in (won, lost)
            ]
            found.append(np.maximum(gain + after[0], after[1]))
        most[at] = np.maximum.reduce(found)
    return float(most[-1, -1, -1])


def gaussian_cells(mu: Any, n: Any) -> Any:
    edges = np.concatenate([[-np.inf], np.linspace(-2.3, 2.3 + mu, n - 1), [np.inf]])
    return np.diff(stats.norm.cdf(edges)), np.diff(stats.norm.cdf(edges - mu))


def leak_of_greedy_order(kinds: Any, epsilon: Any, cells: Any = 1000) -> Any:
    """The leakage of one order of the cells of candidates of several kinds.

    The next cell is the lowest cell of the kind for which it is the strongest evidence against the
    record, relative to the remaining mass, or the highest cell of the kind for which it is the
    strongest evidence for the record. The lowest cells count as wins if this increases the leakage.
    All other cells count as losses.
    """
    edges = [
        np.concatenate([[-np.inf], np.linspace(-7.0, 7.0 + mu, cells - 1), [np.inf]])
        for mu, _ in kinds
    ]

    def masses(k: Any, low: Any, high: Any) -> Any:
        (mu, _), flip = kinds[k], edges[k][low] > 0.0
        at = [-edges[k][high], -edges[k][low]] if flip else [edges[k][low], edges[k][high]]
        shift = -mu if flip else mu
        return np.diff(stats.norm.cdf(at))[0], np.diff(stats.norm.cdf(np.subtract(at, shift)))[0]

    def difference() -> Any:
        return math.prod(p**n for (p, _), (_, n) in zip(left, kinds, strict=True)) - math.exp(
            epsilon
        ) * math.prod(q**n for (_, q), (_, n) in zip(left, kinds, strict=True))

    low, high = [0] * len(kinds), [cells] * len(kinds)
    left = [masses(k, 0, cells) for k in range(len(kinds))]
    gained, now = 0.0, difference()
    while all(b - a > 1 for a, b in zip(low, high, strict=True)):
        ratio = [q / p for p, q in left]
        lowest, highest = (
            [np.divide(*masses(k, a, a + 1)[::-1]) / ratio[k] for k, a in enumerate(at)]
            for at in (low, [b - 1 for b in high])
        )
        i, j = int(np.argmin(lowest)), int(np.argmax(highest))
        together = math.prod(r**n for r, (_, n) in zip(ratio, kinds, strict=True))
        wins = math.exp(epsilon) * together * lowest[i] * highest[j] < 1.0
        if wins:
            low[i] += 1
        else:
            high[j] -= 1
        k = i if wins else j
        left[k] = masses(k, low[k], high[k])
        before, now = now, difference()
        gained += max(before - now, 0.0) if wins else 0.0
    return gained


def test_orders_of_three_candidates_of_two_outputs() -> None:
    # The largest of all 720 orders of a grid, where draws of one distribution leak 0.1887.
    p, q = np.array([0.5606, 0.4394]), np.array([0.1694, 0.8306])
    assert most_of_three([(p, q)] * 3, 1.0) == pytest.approx(0.3096, abs=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.2), (1.0, 1.0), (1.5, 0.3), (2.0, 4.0)])
def test_no_order_of_three_gaussian_candidates_leaks_more(mu: float, epsilon: float) -> None:
    (pair,) = GaussianMechanism(mu).pairs
    coarse, fine = (most_of_three([gaussian_cells(mu, n)] * 3, epsilon) for n in (5, 8))
    bound = TightCurve.at(pair, Fixed(3), fine).delta(epsilon)
    # Cells reveal less than the output itself; the difference decreases with their number.
    assert coarse < fine <= bound
    assert bound - fine < 0.5 * (bound - coarse)
    assert fine > 0.9 * bound


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 1.0), (0.3, 0.2)])
def test_no_order_leaks_more_where_candidates_are_left_out_by_chance(
    mu: float, epsilon: float
) -> None:
    cells, inclusion = [gaussian_cells(mu, 6)] * 3, 0.6
    leak = most_of_three(cells, epsilon, inclusion)
    assert leak < most_of_three(cells, epsilon)
    spec = f"grid:3,{inclusion}"
    assert grid_tight(GaussianMechanism(mu), spec, leak).epsilon > epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "inclusion", "epsilon"), [(1.0, 0.6, 1.0), (0.5, 0.95, 0.1), (2.0, 0.5, 3.0)]
)
def test_two_candidates_left_out_by_chance_cost_the_tight_bound_of_binomial_draws(
    mu: float, inclusion: float, epsilon: float
) -> None:
    base, law = GaussianMechanism(mu), Binomial(2, inclusion)
    (pair,) = base.pairs
    none = [np.zeros(8)] * 2  # The third candidate never wins and contributes only a factor.

    def leak(n: int) -> float:
        cells = [np.pad(side, (0, 8 - n)) for side in gaussian_cells(mu, n)]
        return most_of_three([cells, cells, none], epsilon, inclusion) / (1.0 - inclusion)

    coarse, fine = leak(5), leak(8)
    bound = TightCurve.at(pair, law, fine).delta(epsilon)
    assert coarse < fine <= bound
    assert bound - fine < 0.5 * (bound - coarse)
    found = grid_tight(base, Grid(2, inclusion), DELTA)
    assert found.epsilon == upper_bounds.tight(base, law, DELTA).epsilon


def test_each_number_of_candidates_has_its_region_curve_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    module = sys.modules["audit.upper_bounds.tight"]
    real = module.region_curve
    monkeypatch.setattr(module, "region_curve", lambda *key: made.append(key) or real(*key))
    ((pair,), protocol) = GaussianMechanism(0.3).pairs, Grid(3, 0.5)
    found = by_chance(pair, protocol, DELTA)
    assert math.isfinite(found)
    assert len(made) == len(set(made)) == len(_bins(protocol, DELTA, BINS)[0])


@pytest.mark.slow
def test_few_candidates_left_out_by_chance_cost_the_mean_over_how_many_are_run() -> None:
    (pair,) = GaussianMechanism(0.8).pairs
    found = by_chance(pair, Grid(4, 0.6), DELTA)
    mean = sum(
        stats.binom.pmf(k, 4, 0.6) * TightCurve.at(pair, Fixed(k), DELTA).delta(found)
        for k in range(1, 5)
    )
    assert mean == pytest.approx(DELTA, rel=2e-3)


@pytest.mark.parametrize(("count", "chance"), [(4, 0.6), (1000, 0.02), (200, 0.5), (10**6, 1e-3)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_bins_hold_all_chances_of_how_many_are_run(count: int, chance: float, delta: float) -> None:
    runs, chances, beyond = _bins(Grid(count, chance), delta, BINS)
    law = stats.binom(count, chance)
    assert sum(chances) + law.pmf(0) + beyond == pytest.approx(1.0, abs=1e-12)
    assert beyond == pytest.approx(law.sf(runs[-1]), rel=1e-9, abs=1e-300)
    assert beyond <= 0.02 * delta * (1.0 + 1e-9)
    before = 0
    for most, share in zip(runs, chances, strict=True):
        assert share == pytest.approx(law.sf(before) - law.sf(most), rel=1e-9)
        before = most


@pytest.mark.slow
def test_the_bound_is_below_the_grid_bound_if_many_of_many_candidates_are_run() -> None:
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


@pytest.mark.thorough
@pytest.mark.parametrize("mu", [0.01, 0.5, 3.0])
def test_two_candidates_cost_their_composition_and_one_costs_one_run(mu: float) -> None:
    base = GaussianMechanism(mu)
    composed = GaussianMechanism(math.sqrt(2.0) * mu).epsilon(DELTA)
    found = grid_tight(base, "grid:2", DELTA)
    assert composed <= found.epsilon <= composed * (1.0 + 2e-4)
    assert found.attains <= composed
    assert grid_tight(base, "grid:1", DELTA).epsilon == pytest.approx(base.epsilon(DELTA), rel=1e-8)


@pytest.mark.thorough
def test_the_bound_equals_that_of_independent_draws_and_is_the_smallest() -> None:
    for base in (GaussianMechanism(0.25), DpSgd(70.0, 300)):
        found = grid_tight(base, "grid:12", DELTA)
        assert found.epsilon == upper_bounds.tight(base, "fixed:12", DELTA).epsilon
        assert found.attains == pytest.approx(found.epsilon, rel=2e-4)
        assert upper_bounds.tuning_cost(base, "grid:12", DELTA) == found


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("kinds", "epsilon", "least"),
    [
        (((0.24721, 10),), 2.72, 0.99),
        (((0.5, 5), (0.25, 5)), 4.8, 0.6),
        (((0.25, 2), (0.1, 50)), 1.95, 0.55),
        (((1.0, 3), (0.5, 7)), 9.5, 0.6),
        (((0.5, 2), (0.4, 2), (0.3, 2), (0.2, 2), (0.1, 2)), 4.0, 0.3),
    ],
)
def test_an_order_of_candidates_of_different_noise_nearly_attains_the_bound(
    kinds: Any, epsilon: float, least: float
) -> None:
    bound = kinds_delta(kinds, epsilon)
    assert least * bound < leak_of_greedy_order(kinds, epsilon) <= bound


@pytest.mark.thin(9)
@pytest.mark.parametrize(
    "kinds", [((1.0, 1), (0.5, 2)), ((0.6, 2), (0.3, 1)), ((2.0, 1), (1.0, 1), (0.5, 1))]
)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_no_order_of_three_candidates_of_different_noise_leaks_more(
    kinds: Any, epsilon: float
) -> None:
    mus = [mu for mu, count in kinds for _ in range(count)]
    leak = most_of_three([gaussian_cells(mu, 8) for mu in mus], epsilon)
    assert leak <= kinds_delta(kinds, epsilon)
    if leak > 0.0:
        cost = upper_bounds.tuning_cost(
            Candidates(tuple(map(GaussianMechanism, mus))), "grid:3", leak
        )
        assert cost.epsilon > epsilon


@pytest.mark.parametrize("kinds", [[(0.5, 1), (0.5, 1)], [(1.0, 1), (0.2, 1)]])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_two_candidates_leak_at_most_their_composition(
    kinds: list[tuple[float, int]], epsilon: float
) -> None:
    # The largest leakage of two candidates is their composition: the order may release both.
    composed = GaussianMechanism(math.hypot(*(mu for mu, _ in kinds))).delta(epsilon)
    assert composed <= kinds_delta(kinds, epsilon)


@pytest.mark.thorough
@pytest.mark.parametrize(("mu", "count"), [(0.24721, 10), (1.0, 3), (0.1, 100)])
def test_equal_candidates_cost_the_tight_bound_of_as_many_draws(mu: float, count: int) -> None:
    epsilon = upper_bounds.tight(GaussianMechanism(mu), f"fixed:{count}", DELTA).epsilon
    assert kinds_delta([(mu, count)], epsilon) == pytest.approx(DELTA, rel=5e-3)


@pytest.mark.slow
def test_candidates_of_different_noise_cost_less_than_as_many_of_the_least_private() -> None:
    quiet, loud = GaussianMechanism(0.25), GaussianMechanism(0.5)
    base = Candidates((loud,) * 5 + (quiet,) * 5)
    rows = {row.name: row.epsilon for row in upper_bounds.all_upper_bounds(base, "grid:10", DELTA)}
    # An order of these candidates attains 4.85.
    assert 4.85 < rows["grid-tight"] < 4.98
    assert rows["grid-tight"] < 0.95 * rows["grid"]
    assert rows["grid-tight"] < 0.95 * rows["composition"]
    assert rows["grid-tight"] < 0.8 * grid_tight(loud, "grid:10", DELTA).epsilon
    assert "candidates of equal noise" in grid_tight(base, "grid:10", DELTA).source


@pytest.mark.slow
def test_merged_kinds_count_as_the_least_private() -> None:
    kinds = [(0.25, 20), (0.2499, 20), (0.05, 1)]
    found = kinds_epsilon(kinds, DELTA)
    assert found < solve_epsilon(lambda epsilon: kinds_delta(kinds, epsilon), DELTA) * 0.999
    at_most = upper_bounds.tight(GaussianMechanism(0.25), "fixed:41", DELTA).epsilon
    assert found <= at_most * (1.0 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mus", [(0.5, 1e-9), (1e-6, 1e-7), (8.0, 2.0), (30.0, 0.1)])
def test_extreme_kinds_never_cost_more_than_the_least_private(mus: tuple[float, float]) -> None:
    base = Candidates(tuple(map(GaussianMechanism, mus)))
    found = grid_tight(base, "grid:2", DELTA)
    worst = grid_tight(GaussianMechanism(max(mus)), "grid:2", DELTA)
    assert GaussianMechanism(max(mus)).epsilon(DELTA) <= found.epsilon <= worst.epsilon


@pytest.mark.thorough
def test_kinds_of_small_mu_are_distinguished() -> None:
    # At epsilon 1 every height underflows; the bound is then not 1.
    assert kinds_delta([(0.02, 1), (0.01, 2)], 1.0) < 1e-100
    base = Candidates((GaussianMechanism(0.02), GaussianMechanism(0.01), GaussianMechanism(0.01)))
    composed = GaussianMechanism(math.hypot(0.02, 0.01, 0.01)).epsilon(DELTA)
    worst = grid_tight(GaussianMechanism(0.02), "grid:3", DELTA)
    assert composed <= grid_tight(base, "grid:3", DELTA).epsilon < 0.8 * worst.epsilon


def test_candidates_left_out_by_chance_count_as_the_least_private() -> None:
    quiet, loud = GaussianMechanism(0.2), GaussianMechanism(0.6)
    found = grid_tight(Candidates((quiet, loud, quiet)), "grid:3,0.5", DELTA)
    assert found.epsilon == grid_tight(loud, "grid:3,0.5", DELTA).epsilon
    assert found.attains == 0.0


@pytest.mark.parametrize(
    ("base", "protocol", "words"),
    [
        (LaplaceMechanism(2.0), "grid:4", "must be Gaussian"),
        (DpSgd(4.0, 300, 0.02), "grid:4", "must be Gaussian"),
        (Mixture((GaussianMechanism(0.1),), (0.5,)), "grid:4", "must be Gaussian"),
        (Candidates((GaussianMechanism(0.1), LaplaceMechanism(2.0))), "grid:2", "must be Gaussian"),
        (GaussianMechanism(0.1), "fixed:4", "a fixed list of candidates"),
    ],
)
def test_unsupported_grids_have_a_reason(base: Any, protocol: str, words: str) -> None:
    found = grid_tight(base, protocol, DELTA)
    assert not found.applies
    assert words in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("mu", [1e-4, 30.0])
@pytest.mark.parametrize("candidates", [3, 10**6])
def test_extremes_are_finite_and_below_the_grid_bound(mu: float, candidates: int) -> None:
    base, protocol = GaussianMechanism(mu), f"grid:{candidates}"
    loose = find("grid", Grid).function(base, protocol, 1e-8).epsilon
    found = grid_tight(base, protocol, 1e-8)
    assert found.attains <= loose
    # For a small mu, the grid bound has a finer discretisation.
    assert 0.0 < found.epsilon <= loose * (1.01 if mu < 1.0 else 1.0 + 1e-4)
