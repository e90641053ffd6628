"""An upper bound of one's own: one function, registered with what it claims."""

import pytest

from audit import upper_bounds
from audit.accounting import Composition, GaussianMechanism
from audit.repetitions import Fixed
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.result import NotApplicable


# 5 is its row: the loosest kind of bound comes first.
@bound("all-composed", 5, "all K runs released, and the best is one of them", about=("any base",))
def all_composed(base, repetitions, delta):
    """epsilon of K runs, one after the other."""
    if not isinstance(repetitions, Fixed):
        raise NotApplicable("K must be fixed")
    return BoundValue(Composition((base,) * repetitions.k).epsilon(delta))


def test_against_a_closed_form():
    found = all_composed(GaussianMechanism(0.3), "fixed:4", 1e-5)
    # Four Gaussians of mu = 0.3 are one of mu = 0.6.
    assert found.epsilon == pytest.approx(GaussianMechanism(0.6).epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("law", ["fixed:1", "fixed:3", "fixed:10"])
def test_never_below_what_an_attack_attains(law):
    base = GaussianMechanism(0.5)
    attained = upper_bounds.worst_order(base, law, 1e-5).epsilon
    assert all_composed(base, law, 1e-5).epsilon >= attained


def test_tables_find_it_and_say_where_it_does_not_apply():
    rows = {
        row.name: row
        for row in upper_bounds.all_upper_bounds(GaussianMechanism(0.5), "tnb:0,.1", 1e-5)
    }
    assert rows["all-composed"].epsilon is None
    assert rows["all-composed"].reason == "K must be fixed"
