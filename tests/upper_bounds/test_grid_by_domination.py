"""Grids on bases that a Gaussian mechanism dominates up to a small probability."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import special
from test_protocol_costs import leak_of_grid

from audit import upper_bounds
from audit.accounting import (
    ApproximateDp,
    Candidates,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    PureDp,
)
from audit.accounting.pairs import gaussian_profile
from audit.upper_bounds import dominating_mu, grid_gaussian

DELTA = 1e-5


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "candidates", "value"),
    [
        (4.0, 0.2, 500, 5, 12.70),
        (4.0, 0.2, 500, 20, 25.23),
        (4.0, 0.2, 500, 100, 52.05),
        pytest.param(2.0, 0.05, 2000, 20, 27.25, marks=pytest.mark.slow),
        (2.0, 0.05, 2000, 100, 57.10),
        pytest.param(1.1, 0.01, 2000, 100, 16.37, marks=pytest.mark.slow),
        pytest.param(1.1, 0.01, 2000, 20, 9.22, marks=pytest.mark.slow),
        pytest.param(1.0, 0.01, 3000, 100, 27.34, marks=pytest.mark.slow),
    ],
)
def test_known_values(noise: float, rate: float, steps: int, candidates: int, value: float) -> None:
    base, grid = DpSgd(noise, steps, rate), f"grid:{candidates}"
    found = grid_gaussian(base, grid, DELTA)
    assert found.epsilon == pytest.approx(value, rel=4e-3)
    assert found.epsilon
    assert upper_bounds.tuning_cost(base, grid, DELTA).epsilon == found.epsilon


@pytest.mark.parametrize("d", [1e-3, 1e-9])
@pytest.mark.parametrize(
    "base",
    [
        DpSgd(4.0, 500, 0.2),
        DpSgd(1.0, 100, 0.01),
        DpSgd(2.0, 50, 0.1, "replace-one"),
        DiscreteMechanism([0.5, 0.3, 0.2], [0.3, 0.3, 0.4]),
        PureDp(0.7),
    ],
)
def test_the_gaussian_dominates_and_hardly_a_smaller_one_does(base: Any, d: float) -> None:
    mu = dominating_mu(base.pairs, d)
    epsilons = np.concatenate([np.linspace(0.0, 2.0, 5001), np.linspace(2.0, 60.0, 5001)])

    def is_kept(mu: Any) -> Any:
        right = (1.0 - d) * gaussian_profile(epsilons, mu) + d
        return bool(np.all(base.delta(epsilons) <= right))

    assert is_kept(mu)
    assert not is_kept(mu * 0.995)


def test_a_pair_that_reveals_everything_with_a_chance_is_its_own() -> None:
    # (epsilon, delta)-DP with epsilon near 0: only the full leak is left.
    base = ApproximateDp(1e-9, 1e-8)
    assert dominating_mu(base.pairs, 1.01e-8) < 2e-9
    found = grid_gaussian(base, "grid:10", 1e-6)
    assert found.epsilon < 1e-5
    # Ten such runs reveal everything with a larger probability than delta, at any epsilon.
    for delta_0 in (1e-6, 3e-7, 1.1e-7):
        assert not grid_gaussian(ApproximateDp(1e-9, delta_0), "grid:10", 1e-6).applies
    with pytest.raises(upper_bounds.NotApplicable, match="larger probability"):
        dominating_mu(ApproximateDp(0.5, 1e-6).pairs, 1e-7)


def cells_of(mu: Any, d: Any, edges: Any) -> Any:
    """Probabilities of cells of N(0, 1) and N(mu, 1); with chance d, the output reveals which."""
    laws = [np.diff(special.ndtr(edges - at)) * (1.0 - d) for at in (0.0, mu)]
    return np.append(laws[0], [d, 0.0]), np.append(laws[1], [0.0, d])


@pytest.mark.parametrize("candidates", [2, 3])
def test_no_order_of_candidates_that_may_reveal_everything_leaks_more(candidates: int) -> None:
    mu, d, epsilon = 0.9, 1e-2, 0.8
    edges = (
        np.array([-np.inf, 0.45, np.inf])
        if candidates == 3
        else np.array([-np.inf, 0.0, 0.9, np.inf])
    )
    p, q = cells_of(mu, d, edges)
    leak = leak_of_grid([p] * candidates, [q] * candidates, epsilon)
    base = DiscreteMechanism(p, q)
    found = grid_gaussian(base, f"grid:{candidates}", leak)
    assert found.epsilon >= epsilon
    # A full leak of one candidate of several is seen: delta is at least its chance.
    assert leak > 1.0 - (1.0 - d) ** candidates
    assert math.isfinite(found.epsilon)


def test_it_leaves_gaussian_bases_to_the_sharper_bound() -> None:
    found = grid_gaussian(GaussianMechanism(0.3), "grid:5", DELTA)
    assert not found.applies
    assert "grid-tight is sharper" in found.reason
    mixed = Candidates((DpSgd(4.0, 500, 0.2), GaussianMechanism(0.1)))
    alone = grid_gaussian(DpSgd(4.0, 500, 0.2), "grid:2", DELTA).epsilon
    assert grid_gaussian(mixed, "grid:2", DELTA).epsilon == pytest.approx(alone, rel=1e-9)


def test_candidates_left_out_by_chance_cost_less() -> None:
    base = DpSgd(4.0, 500, 0.2)
    half, every = (grid_gaussian(base, f"grid:{spec}", DELTA).epsilon for spec in ("20,0.5", "20"))
    assert half < every
