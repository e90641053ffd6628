"""A custom upper bound: a function, registered with its name, its row and its assumptions."""

import pytest

from audit import upper_bounds
from audit.accounting import Composition, GaussianMechanism
from audit.errors import NotApplicable
from audit.repetitions import Fixed
from audit.upper_bounds.registry import BoundValue, bound


# 5 is the row in tables; tables list loose kinds of bounds first.
@bound("all-composed", 5, "all K runs released, and the best is one of them", about=("any base",))
def all_composed(base, repetitions, delta):
    """Epsilon of the composition of all K runs."""
    if not isinstance(repetitions, Fixed):
        raise NotApplicable("K must be fixed")
    return BoundValue(Composition((base,) * repetitions.k).epsilon(delta))


def test_against_a_closed_form():
    found = all_composed(GaussianMechanism(0.3), "fixed:4", 1e-5)
    # The composition of four Gaussian mechanisms with mu = 0.3 has mu = 0.6.
    assert found.epsilon == pytest.approx(GaussianMechanism(0.6).epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("protocol", ["fixed:1", "fixed:3", "fixed:10"])
def test_it_is_at_least_the_epsilon_of_an_attack(protocol):
    base = GaussianMechanism(0.5)
    attained = upper_bounds.worst_order(base, protocol, 1e-5).epsilon
    assert all_composed(base, protocol, 1e-5).epsilon >= attained


def test_tables_include_it_with_the_reason_if_it_does_not_apply():
    rows = {
        row.name: row
        for row in upper_bounds.all_upper_bounds(GaussianMechanism(0.5), "tnb:0,.1", 1e-5)
    }
    assert not rows["all-composed"].applies
    assert rows["all-composed"].reason == "K must be fixed"
