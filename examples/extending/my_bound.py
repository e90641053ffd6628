"""Your own upper bound: one function, registered with its claim."""

import pytest

from audit import upper_bounds
from audit.accounting import Composition, GaussianMechanism
from audit.repetitions import Fixed
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.result import NotApplicable


# 5 is the place of its row in tables, which start with the loosest kind of bound.
@bound("all-composed", 5, "composition: the best run is one of all K runs", about=("any base",))
def all_composed(base, repetitions, delta):
    """The epsilon of releasing all K runs."""
    if not isinstance(repetitions, Fixed):
        raise NotApplicable("K must be fixed")
    return BoundValue(Composition((base,) * repetitions.k).epsilon(delta))


def test_against_a_closed_form():
    found = all_composed(GaussianMechanism(0.3), "fixed:4", 1e-5)
    # Four Gaussian mechanisms with mu = 0.3 compose to one with mu = 0.6.
    assert found.epsilon == pytest.approx(GaussianMechanism(0.6).epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("protocol", ["fixed:1", "fixed:3", "fixed:10"])
def test_never_below_the_epsilon_of_an_attack(protocol):
    base = GaussianMechanism(0.5)
    attained = upper_bounds.worst_order(base, protocol, 1e-5).epsilon
    assert all_composed(base, protocol, 1e-5).epsilon >= attained


def test_tables_contain_it_and_state_why_it_does_not_apply():
    rows = {
        row.name: row
        for row in upper_bounds.all_upper_bounds(GaussianMechanism(0.5), "tnb:0,.1", 1e-5)
    }
    assert rows["all-composed"].epsilon is None
    assert rows["all-composed"].reason == "K must be fixed"
