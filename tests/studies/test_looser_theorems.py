"""Theorems that only the papers' figures use: they are above the bounds that are reported."""

import numpy as np
import pytest

from audit.accounting import DiscreteMechanism, GaussianMechanism
from audit.protocols import NoisyMax
from audit.upper_bounds.published import conditional_curve, noisy_max
from studies.papers.distributions import cost_ratio
from studies.papers.koskela_redberg_wang import noisy_max_closed_form, noisy_max_renyi
from studies.papers.papernot_steinke import corollary_16


@pytest.mark.parametrize("chance", [0.05, 0.4, 1.0])
def test_proposition_15_is_at_most_corollary_16(chance: float) -> None:
    base, orders = DiscreteMechanism([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]), np.array([1.5, 2, 3, 10.0])
    proposition, corollary = (curve(base, chance) for curve in (conditional_curve, corollary_16))
    assert np.all(proposition(orders) <= corollary(orders) + 1e-12)


@pytest.mark.parametrize("queries", [10, 1000])
def test_noisy_max_by_profiles_is_below_the_closed_form_and_the_renyi_bound(queries: int) -> None:
    by_profile = noisy_max(GaussianMechanism(0.25), NoisyMax(queries), 1e-6).epsilon
    assert by_profile < noisy_max_renyi(queries, 4.0, 1e-6)
    assert by_profile < noisy_max_closed_form(queries, 4.0, 1e-6)


def test_twenty_runs_on_a_tenth_and_a_final_run_cost_as_much_as_three_instead_of_twenty() -> None:
    assert cost_ratio(20.0, 0.1) == pytest.approx(20.0 / 3.0)
