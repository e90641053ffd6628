"""Costs at deltas other than that of a certificate: valid, near the bounds, and not forgeable."""

from dataclasses import replace
from typing import Any

import pytest

from audit.accounting import (
    ApproximateDp,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PureDp,
)
from audit.certificate.numbers import DELTAS, PrivacyPoint, compute, derived
from audit.certificate.verification import _proof, with_stated_costs
from audit.claims import Kind
from audit.protocols import parse_protocol
from audit.upper_bounds import TuningCosts, costs_of, tight, worst_order
from audit.upper_bounds.registry import entries

DELTA = 1e-5
# Protocol, base, and the largest ratio of a quick value and its bound at deltas of at most 0.01.
SETTINGS: list[tuple[str, Mechanism, float]] = [
    ("tnb:0,0.01", GaussianMechanism(0.25), 1.005),
    ("fixed:10", PureDp(0.3), 1.02),
    ("grid:10", GaussianMechanism(0.25), 1.01),
    ("grid:10,0.5", GaussianMechanism(0.25), 1.05),
    ("grid:10", LaplaceMechanism(3.0), 1.05),
    ("distinct:5/poisson:5", GaussianMechanism(0.25), 1.05),
    ("until:0.1", PureDp(0.3), 1.005),
    ("stopping:0.1", GaussianMechanism(0.25), 1.005),
    ("subset:0.3/tnb:1,0.1", GaussianMechanism(0.25), 1.005),
    ("best:2/poisson:6", GaussianMechanism(0.25), 1.005),
    ("pareto:2/poisson:6", GaussianMechanism(0.25), 1.005),
    ("adaptive:0.75,1.33/fixed:3", GaussianMechanism(0.25), 1.06),
]


@pytest.mark.slow
@pytest.mark.thin(7)
@pytest.mark.parametrize(("spec", "base", "ratio"), SETTINGS)
def test_quick_values_are_at_least_what_the_smallest_bound_proves(
    spec: str, base: Mechanism, ratio: float
) -> None:
    protocol = parse_protocol(spec)
    certified = costs_of(base, protocol, DELTA)
    names = [bound.name for bound in certified.within(1.01)]
    for delta in (0.3, 1e-3, 1e-9):
        costs = costs_of(base, protocol, delta)
        value = certified.epsilon_at(delta, names)
        # The quick value may come from another cut of a curve than the bound.
        assert value >= costs.smallest.epsilon * (1.0 - 2e-3)
        if delta < 0.01:
            least = min(costs.within(1.0, names), key=lambda bound: bound.epsilon).epsilon
            assert value <= ratio * least
        if protocol.search_repetitions is not None:
            attained = worst_order(base, protocol.search_repetitions, delta)
            assert not attained.applies or value >= attained.epsilon


@pytest.mark.parametrize(
    ("spec", "base"),
    [("grid:5,0.5", GaussianMechanism(0.25)), ("until:0.2", PureDp(0.3)), ("grid:5", PureDp(0.3))],
)
def test_the_smallest_quick_bound_is_valid_and_leaves_out_slow_ones(
    spec: str, base: Mechanism
) -> None:
    costs, others = (TuningCosts(base, parse_protocol(spec), DELTA) for _ in range(2))
    quick = costs.smallest_quickly
    assert "grid-levels" not in costs._computed
    # No bound is below a value that an attack attains.
    assert quick.epsilon >= max((bound.epsilon for bound in others.attained), default=0.0)
    assert others.smallest.epsilon * (1.0 - 2e-3) <= quick.epsilon
    assert quick.epsilon <= 1.1 * others.smallest.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tnb:0,0.01", "poisson:10", "fixed:20"])
def test_quick_values_on_sampled_batches(spec: str) -> None:
    base = DpSgd(1.0, 300, 0.01)
    certified = costs_of(base, parse_protocol(spec), DELTA)
    names = [bound.name for bound in certified.within(1.01)]
    for delta in (0.01, 1e-8):
        value, bound = certified.epsilon_at(delta, names), tight(base, spec, delta)
        assert bound.epsilon - bound.error <= value <= 1.02 * bound.epsilon


def of_earlier_version(base: Mechanism, spec: str) -> tuple[Any, ...]:
    """The numbers of a certificate whose costs are bounds at every delta, as they were before."""
    protocol = parse_protocol(spec)
    numbers = compute(base, protocol, DELTA)
    points = []
    for delta in sorted({*DELTAS, DELTA}, reverse=True):
        bounds = costs_of(base, protocol, delta).within(1.0, numbers.bounds)
        points.append(PrivacyPoint(delta, bounds[0].epsilon))
    return numbers, replace(numbers, **derived(tuple(points), DELTA)), (base, protocol, DELTA)


@pytest.mark.parametrize(
    ("base", "spec"),
    [
        pytest.param(GaussianMechanism(0.25), "tnb:0,0.05", marks=pytest.mark.slow),
        (GaussianMechanism(0.25), "until:0.2"),
        pytest.param(ApproximateDp(0.3, 1e-9), "distinct:5/poisson:5", marks=pytest.mark.slow),
        pytest.param(PureDp(0.3), "grid:5", marks=pytest.mark.slow),
    ],
)
def test_certificates_of_earlier_versions_are_correct(base: Mechanism, spec: str) -> None:
    numbers, earlier, tuning = of_earlier_version(base, spec)
    assert earlier.profile != numbers.profile
    proved = with_stated_costs(earlier, *tuning)
    assert proved is not None
    assert proved.numbers.profile == earlier.profile
    assert with_stated_costs(numbers, *tuning) is not None


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("base", "spec"),
    [
        (GaussianMechanism(0.25), "tnb:0,0.05"),
        (GaussianMechanism(0.25), "distinct:5/poisson:5"),
        (GaussianMechanism(0.25), "adaptive:0.75,1.33/fixed:3"),
        (PureDp(0.3), "until:0.2"),
    ],
)
def test_a_smaller_cost_at_any_delta_is_refused(base: Mechanism, spec: str) -> None:
    tuning = base, parse_protocol(spec), DELTA
    numbers = compute(*tuning)
    assert with_stated_costs(numbers, *tuning) is not None
    points = list(numbers.profile)
    for place in (8, len(points) // 2, len(points) - 1):
        forged = list(points)
        forged[place] = replace(points[place], epsilon=0.9 * points[place].epsilon)
        assert points[place].epsilon > 0.0
        changed = replace(numbers, **derived(tuple(forged), DELTA))
        assert with_stated_costs(changed, *tuning) is None


@pytest.mark.slow
def test_a_slow_bound_proves_its_own_costs() -> None:
    base, protocol, names = DpSgd(1.0, 100, 0.05), parse_protocol("grid:3"), ("grid-levels",)
    certified = costs_of(base, protocol, DELTA)
    assert certified.quick_names(names) == ()
    (bound,) = costs_of(base, protocol, 1e-3).within(1.0, names)
    # Other bounds are smaller, but they do not make the stated cost weaker than today's.
    assert _proof(PrivacyPoint(1e-3, bound.epsilon), certified, names) == bound.epsilon


def test_every_attained_value_has_a_quick_one() -> None:
    # Otherwise every other delta of a certificate takes as long as its own.
    for entry in entries():
        assert entry.claim.kind is not Kind.ATTAINED or entry.at_other_delta is not None
