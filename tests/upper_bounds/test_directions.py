"""Which data set has the record: costs do not depend on how an unknown direction is written."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_protocol_costs import leak_of_grid, random_law

from audit import protocols, upper_bounds
from audit.accounting import (
    Candidates,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LossDistribution,
    Mixture,
    WorstOf,
    mechanism_from_dict,
    mechanism_to_dict,
)

DELTA = 0.01
LOUD = [0.999, 0.001], [0.9, 0.1]
OTHER = [0.7, 0.3], [0.55, 0.45]


def epsilon_of(profile: Any, delta: Any) -> Any:
    """The least epsilon >= 0 at which a falling profile is at most delta, by halving."""
    low, high = 0.0, 40.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if profile(middle) <= delta else (middle, high)
    return high


def profile_of(p: Any, q: Any) -> Any:
    return lambda epsilon: float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def product(laws: Any) -> Any:
    found = np.ones(1)
    for law in laws:
        found = np.outer(found, law).ravel()
    return found


def both_ways(laws: Any) -> Any:
    return [laws, laws[::-1]]


@pytest.mark.slow
@pytest.mark.parametrize(("p", "q"), both_ways(LOUD))
def test_known_values_of_a_mechanism_of_unknown_direction(p: list[float], q: list[float]) -> None:
    base = DiscreteMechanism(p, q)
    assert upper_bounds.tuning_cost(base, "subset:0.1/fixed:1", DELTA).epsilon == pytest.approx(
        4.3833, abs=1e-4
    )
    both = Composition((DpSgd(0.6, 1, 0.1), base))
    assert both.epsilon(1e-3) == pytest.approx(5.541, abs=1e-3)
    losses, masses = np.log(np.array(p) / np.array(q)), np.array(p)
    order = np.argsort(losses)
    alone = LossDistribution(losses[order], masses[order])
    assert alone.epsilon(DELTA) == pytest.approx(4.4998, abs=1e-4)


@pytest.mark.thorough
def test_a_stated_direction_has_its_own_cost() -> None:
    (p, q), protocol = LOUD, "subset:0.1/fixed:1"
    found = [
        upper_bounds.tuning_cost(DiscreteMechanism(*laws, directed=True), protocol, DELTA).epsilon
        for laws in both_ways((p, q))
    ]
    assert found == pytest.approx([2.2063, 4.3833], abs=1e-4)
    step = DpSgd(0.6, 1, 0.1)
    found = [
        Composition((step, DiscreteMechanism(*laws, directed=True))).epsilon(1e-3)
        for laws in both_ways((p, q))
    ]
    assert found == pytest.approx([4.680, 5.541], abs=1e-3)


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "protocol",
    [
        "tnb:0,0.1",
        "fixed:3",
        "grid:3",
        "grid:3,0.5",
        "adaptive:0.8,1.2/fixed:3",
        "subset:0.3/fixed:2",
        "subset:0.3,all/tnb:1,0.5",
        "until:0.3",
        "stopping:0.3",
        "ptr:0.1,0.001,0.001/fixed:2",
    ],
)
def test_every_cost_is_invariant_under_exchanging_both_data_sets(protocol: str) -> None:
    several = [DiscreteMechanism(*laws) for laws in both_ways(LOUD)]
    rows = [
        {row.name: row.epsilon for row in upper_bounds.all_upper_bounds(one, protocol, 0.02)}
        for one in several
    ]
    assert any(value is not None for value in rows[0].values())
    for name, value in rows[0].items():
        if value is None:
            assert rows[1][name] is None, name
        else:
            assert rows[1][name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.slow
@pytest.mark.thin(6)
@pytest.mark.parametrize(
    "combine",
    [
        lambda one, two: (Composition((one, two, one)), "until:0.5"),
        lambda one, two: (Composition((DpSgd(0.8, 1, 0.2), one, two)), "until:0.5"),
        lambda one, two: (Candidates((one, two)), "grid:2"),
        lambda one, two: (Candidates((one, two)), "grid:2,0.7"),
        lambda one, two: (Mixture((one, two), (0.3, 0.6)), "until:0.5"),
        lambda one, two: (WorstOf((one, two)), "until:0.5"),
        lambda one, two: (Composition((Mixture((one,), (0.5,)), two)), "subset:0.2/fixed:1"),
    ],
)
def test_every_cost_of_several_is_invariant_under_exchanging_any_of_them(
    combine: Callable[..., Any],
) -> None:
    found = []
    for first in both_ways(LOUD):
        base, protocol = combine(DiscreteMechanism(*first), DiscreteMechanism(*OTHER))
        for one in (base, mechanism_from_dict(mechanism_to_dict(base))):
            found.append(upper_bounds.tuning_cost(one, protocol, 0.02).epsilon)
    assert found == pytest.approx([found[0]] * 4, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_composition_costs_as_much_as_its_worst_directions(count: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(3):
        pairs = [(random_law(rng, 2), random_law(rng, 2)) for _ in range(count)]
        worst = max(
            epsilon_of(profile_of(*(product(side) for side in zip(*chosen, strict=True))), DELTA)
            for chosen in itertools.product(*map(both_ways, pairs))
        )
        found = Composition(tuple(DiscreteMechanism(*pair) for pair in pairs))
        # With six, the pair of the profile represents both directions: safe, and less sharp.
        most = 1.001 if count < 5 else 1.2
        assert worst * (1.0 - 1e-9) <= found.epsilon(DELTA) <= most * worst
        assert found.pairs[0].profile(worst * (1.0 - 1e-6)) >= DELTA * (1.0 - 1e-9)


def test_a_random_choice_costs_as_much_as_its_worst_directions() -> None:
    chances = 0.5, 0.3
    worst = max(
        epsilon_of(
            lambda epsilon, chosen=chosen: sum(
                chance * profile_of(np.array(p), np.array(q))(epsilon)
                for chance, (p, q) in zip(chances, chosen, strict=True)
            ),
            DELTA,
        )
        for chosen in itertools.product(both_ways(LOUD), both_ways(OTHER))
    )
    base = Mixture((DiscreteMechanism(*LOUD), DiscreteMechanism(*OTHER)), chances)
    assert base.epsilon(DELTA) == pytest.approx(worst, rel=1e-9)
    assert base.pairs[0].profile(worst) >= DELTA * (1.0 - 1e-9)


@pytest.mark.slow
def test_no_order_of_a_grid_leaks_more_in_any_directions() -> None:
    rng = np.random.default_rng(8)
    for _ in range(4):
        pairs = [(random_law(rng, 2), random_law(rng, 2)) for _ in range(3)]
        base = Candidates(tuple(DiscreteMechanism(*pair) for pair in pairs))
        leak, epsilon = 0.0, float(rng.uniform(0.2, 1.5))
        for chosen in itertools.product(*map(both_ways, pairs)):
            laws, laws_with = (list(side) for side in zip(*chosen, strict=True))
            leak = max(leak, leak_of_grid(laws, laws_with, epsilon))
        if leak < 1e-6:
            continue
        for row in upper_bounds.all_upper_bounds(base, protocols.Grid(3), leak * (1.0 - 1e-9)):
            if row.applies:
                assert row.epsilon >= epsilon * (1.0 - 1e-6), row.name


def test_symmetric_and_directed_mechanisms_are_combined_once() -> None:
    gaussian, sampled = GaussianMechanism(0.5), DpSgd(1.0, 10, 0.1)
    assert len(Composition((gaussian, sampled, sampled)).pairs) == 2
    assert Composition((gaussian, sampled)).is_directed
    assert not DiscreteMechanism(*LOUD).is_directed
    assert len(Composition((gaussian, DiscreteMechanism(*LOUD))).pairs) == 2
