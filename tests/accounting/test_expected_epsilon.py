"""Searches for an epsilon that evaluate an expected one first."""

import math
from collections.abc import Callable

import pytest

from audit.accounting import largest_epsilon, solve_epsilon
from audit.accounting.conversion import expected_epsilon, expecting
from audit.errors import DeltaUnreachable


def smooth(epsilon: float) -> float:
    return math.exp(-2.0 * epsilon)


def stepped(epsilon: float) -> float:
    return 1e-3 if epsilon < 1.5 else 1e-6


@pytest.mark.parametrize("profile", [smooth, stepped])
@pytest.mark.parametrize("ratio", [0.0, 1e-3, 0.999, 1.0 - 1e-8, 1.0, 1.0 + 1e-8, 1.001, 1e6])
def test_an_expectation_changes_no_result(profile: Callable[[float], float], ratio: float) -> None:
    epsilon = solve_epsilon(profile, 1e-4)
    with expecting(ratio * epsilon):
        found = solve_epsilon(profile, 1e-4)
        assert largest_epsilon([smooth, profile], 1e-4) >= found * (1.0 - 1e-9)
    assert profile(found) <= 1e-4
    assert found == pytest.approx(epsilon, rel=3e-10)
    assert expected_epsilon() is None


def test_the_largest_of_several_is_expected() -> None:
    profiles = [lambda epsilon, rate=rate: math.exp(-rate * epsilon) for rate in (2.0, 3.0, 1.0)]
    epsilon = largest_epsilon(profiles, 1e-4)
    for ratio in (0.4, 1.0, 1.3):
        with expecting(ratio * epsilon):
            assert largest_epsilon(profiles, 1e-4) == pytest.approx(epsilon, rel=3e-10)


def test_a_delta_that_is_not_reached_is_refused_whatever_is_expected() -> None:
    with expecting(3.0), pytest.raises(DeltaUnreachable, match="no epsilon removes"):
        solve_epsilon(lambda epsilon: 1e-3, 1e-4)


@pytest.mark.parametrize("factor", [1.0, 1.5, 1e3])
@pytest.mark.parametrize("expected", [None, 4.605170186, 1.0])
def test_larger_profiles_change_no_result(factor: float, expected: float | None) -> None:
    evaluated: list[float] = []

    def slow(epsilon: float) -> float:
        evaluated.append(epsilon)
        return math.exp(-3.0 * epsilon)

    profiles = [lambda epsilon: math.exp(-2.0 * epsilon), slow]
    larger = [
        [lambda epsilon: factor * math.exp(-2.0 * epsilon)],
        [lambda epsilon: math.inf, lambda epsilon: factor * math.exp(-3.0 * epsilon)],
    ]
    with expecting(expected or 0.0):
        assert largest_epsilon(profiles, 1e-4, larger) == pytest.approx(math.log(100.0), rel=3e-10)
    # The other profile is known to be at most delta where its larger one is.
    assert bool(evaluated) == (factor == 1e3)
