"""Grids on bases whose privacy loss almost has a log-concave density."""

from collections.abc import Callable

import numpy as np
import pytest
from test_grid_of_gaussians import most_of_three
from test_protocol_costs import leak_of_grid

from audit import upper_bounds
from audit.accounting import (
    Candidates,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PureDp,
)
from audit.accounting.pairs import DiscretePair
from audit.numerics import FloatArray
from audit.protocols import Grid
from audit.repetitions import Fixed
from audit.upper_bounds import grid_log_concave, log_concave_pair, tight
from audit.upper_bounds.grid_tight import _dominating, _epsilon, _on_lattice
from audit.upper_bounds.tight import TightCurve

DELTA = 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "candidates", "value"),
    [
        (4.0, 0.2, 500, 5, 12.49),
        pytest.param(4.0, 0.2, 500, 20, 24.51, marks=pytest.mark.slow),
        pytest.param(4.0, 0.2, 500, 100, 50.10, marks=pytest.mark.slow),
        pytest.param(2.0, 0.05, 2000, 20, 26.20, marks=pytest.mark.slow),
        pytest.param(2.0, 0.05, 2000, 100, 54.19, marks=pytest.mark.slow),
        pytest.param(1.1, 0.01, 2000, 100, 14.63, marks=pytest.mark.slow),
        (1.1, 0.01, 2000, 20, 8.31),
        pytest.param(1.0, 0.01, 3000, 100, 24.03, marks=pytest.mark.slow),
    ],
)
def test_a_grid_costs_as_much_as_independent_draws(
    noise: float, rate: float, steps: int, candidates: int, value: float
) -> None:
    base, grid = DpSgd(noise, steps, rate), f"grid:{candidates}"
    found = grid_log_concave(base, grid, DELTA).epsilon
    assert found == pytest.approx(value, abs=0.006)
    draws = tight(base, f"fixed:{candidates}", DELTA).epsilon
    assert draws <= found <= 1.001 * draws
    assert upper_bounds.tuning_cost(base, grid, DELTA).epsilon == found


@pytest.mark.thin(7)
@pytest.mark.parametrize("left_tail", [0.0, 1e-7])
@pytest.mark.parametrize("spent", [1e-3, 1e-9])
@pytest.mark.parametrize(
    "base",
    [
        DpSgd(4.0, 500, 0.2),
        DpSgd(1.0, 100, 0.01),
        DpSgd(2.0, 50, 0.1, "replace-one"),
        DpSgd(0.8, 1000, 0.001),  # the body of its loss is not log-concave
        Composition((LaplaceMechanism(20.0),) * 50),
        PureDp(3.0),
        GaussianMechanism(0.5),
    ],
    ids=lambda base: base.description[:40],
)
def test_the_pair_dominates_and_is_log_concave(
    base: Mechanism, spent: float, left_tail: float
) -> None:
    epsilons = np.linspace(-8.0, 8.0, 4001)
    for pair in base.pairs:
        density, beyond = _dominating(_on_lattice(pair), spent, left_tail)
        slopes = np.diff(density.log) / density.widths
        assert np.all(np.diff(slopes) <= 1e-9 * (1.0 + np.abs(slopes[1:])))
        assert density.masses.sum() + beyond == pytest.approx(1.0, abs=1e-11)
        found = log_concave_pair(pair, spent, left_tail)
        for one in (found, found.mirrored):
            assert np.exp(one.pmf.log_mass).sum() + one.pmf.p_only == pytest.approx(1.0, abs=1e-9)
        assert np.all(found.profile(epsilons) >= pair.profile(epsilons) * (1.0 - 1e-9))


def outputs_of(
    log_density: Callable[[FloatArray], FloatArray], reveals: float
) -> tuple[FloatArray, FloatArray]:
    """P and P' [n] of outputs with this log density of the loss; two more reveal the data set."""
    loss = np.linspace(-3.0, 3.0, 4001)
    p = np.exp(log_density(loss))
    p *= (1.0 - reveals) / p.sum()
    # Any constant may be added to the loss: it changes the rate at which P' falls.
    shift = np.log((p * np.exp(-loss)).sum()) - np.log1p(-2.0 * reveals)
    q = p * np.exp(-loss - shift)
    return np.concatenate([[reveals], p[::-1], [0.0]]), np.concatenate(
        [[0.0], q[::-1], [2.0 * reveals]]
    )


def in_cells(p: FloatArray, q: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """P and P' of n cells of about the same probability, those with the largest losses first."""
    place = np.minimum((n * (np.cumsum(p) - 0.5 * p)).astype(int), n - 1)
    return np.bincount(place, p, n), np.bincount(place, q, n)  # type: ignore[return-value]


LOG_CONCAVE: dict[str, Callable[[FloatArray], FloatArray]] = {
    "skewed to the right": lambda x: -x - np.exp(-x),
    "skewed to the left": lambda x: x - np.exp(x),
    "Laplace": lambda x: -2.0 * np.abs(x),
    "uniform": lambda x: 0.0 * x,
    "exponential": lambda x: -1.5 * x,
}


@pytest.mark.thin(5)
@pytest.mark.parametrize("reveals", [0.0, 1e-2])
@pytest.mark.parametrize("shape", LOG_CONCAVE)
def test_no_order_leaks_more_where_the_loss_is_log_concave(shape: str, reveals: float) -> None:
    p, q = outputs_of(LOG_CONCAVE[shape], reveals)
    curve = TightCurve.at(DiscretePair(p, q), Fixed(3), 0.1)
    for epsilon in (0.5, 1.5):
        attained = most_of_three([in_cells(p, q, 9)] * 3, epsilon)
        assert 0.5 * curve.delta(epsilon) <= attained <= curve.delta(epsilon)


def test_a_loss_with_two_modes_leaks_more_than_draws_but_at_most_the_bound() -> None:
    p, q = [0.5606, 0.4394], [0.1694, 0.8306]
    attained = leak_of_grid([p] * 3, [q] * 3, 1.0)
    assert attained > 1.6 * TightCurve.at(DiscretePair(p, q), Fixed(3), 0.1).delta(1.0)
    pair = log_concave_pair(DiscretePair(p, q), 1e-9)
    assert TightCurve.at(pair, Fixed(3), 0.1).delta(1.0) >= attained


@pytest.mark.slow
def test_the_larger_direction_counts_in_either_order() -> None:
    costs = {pair: _epsilon(pair, Grid(5), DELTA, 0.0) for pair in DpSgd(4.0, 500, 0.2).pairs}
    (larger, most), (smaller, least) = sorted(costs.items(), key=lambda one: -one[1])
    assert most > least
    assert _epsilon(larger, Grid(5), DELTA, least) == most
    assert _epsilon(smaller, Grid(5), DELTA, most) == most


@pytest.mark.slow
def test_bases_without_a_density_are_not_supported() -> None:
    for base, reason in (
        (GaussianMechanism(0.3), "grid-tight is simpler"),
        (DiscreteMechanism([0.5, 0.3, 0.2], [0.3, 0.3, 0.4]), "which data set of the pair"),
        (PureDp(600.0), "a grid resolves"),
    ):
        found = grid_log_concave(base, "grid:5", DELTA)
        assert not found.applies
        assert reason in found.reason


@pytest.mark.slow
def test_candidates_with_more_noise_cost_no_more() -> None:
    alone = grid_log_concave(DpSgd(4.0, 500, 0.2), "grid:2", DELTA).epsilon
    mixed = Candidates((DpSgd(4.0, 500, 0.2), DpSgd(5.0, 400, 0.2)))
    assert grid_log_concave(mixed, "grid:2", DELTA).epsilon == pytest.approx(alone, rel=1e-9)


_REVEALING = DiscreteMechanism(*outputs_of(lambda x: -x * x, 1.5e-6), directed=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "spec", "count"),
    # In the second case, the chance that a bin reveals the data set exceeds the bin's share.
    [(DpSgd(4.0, 500, 0.2), "grid:6,0.5", 6), (_REVEALING, "grid:4,0.8", 4)],
)
def test_candidates_left_out_by_chance_cost_less(base: Mechanism, spec: str, count: int) -> None:
    every = grid_log_concave(base, f"grid:{count}", DELTA).epsilon
    assert grid_log_concave(base, spec, DELTA).epsilon < every
