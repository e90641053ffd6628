"""Safe roots, hulls and rounded numbers, against brute force and on random functions."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import numerics


@given(
    root=st.floats(-50.0, 50.0),
    power=st.sampled_from([0.2, 1.0, 3.0, 9.0]),
    scale=st.floats(1e-9, 1e9),
    backwards=st.booleans(),
    kind=st.sampled_from(["smooth", "steps", "infinite", "truth"]),
)
def test_safe_root_is_before_the_root_and_close_to_it(
    root: Any, power: Any, scale: Any, backwards: Any, kind: Any
) -> None:
    sign = -1.0 if backwards else 1.0

    def excess(x: float) -> float | bool:
        beyond = sign * (x - root)
        if kind == "truth":
            return beyond > 0.0
        if kind == "steps":
            return scale * math.ceil(beyond * 8.0)
        if kind == "infinite":
            return math.inf if beyond > 1e-3 else scale * beyond
        return math.copysign(scale * abs(beyond) ** power, beyond)

    start, end = root - sign * 37.0, root + sign * 91.0
    found = numerics.safe_root(excess, start, end, 1e-9)
    assert not excess(found) > 0.0
    assert excess(found + sign * 1.1e-9) > 0.0 or abs(root - found) <= 1.2e-9


def test_smooth_roots_take_few_evaluations() -> None:
    # 37 for halving from 100 to 1e-9; brentq takes about ten.
    for function in (math.expm1, lambda x: x**3 + x, lambda x: math.log1p(x / 51.0) - 0.01):
        evaluated: list[Any] = []

        def excess(x: Any, function: Any = function, evaluated: Any = evaluated) -> Any:
            evaluated.append(x)
            return function(x)

        found = numerics.safe_root(excess, -50.0, 50.0, 1e-9)
        assert function(found) <= 0.0 < function(found + 2e-9)
        assert len(evaluated) <= 24


def test_safe_root_returns_an_end_before_the_root() -> None:
    assert numerics.safe_root(lambda x: -1.0, 0.0, 7.0, 1e-9) == 7.0
    assert numerics.safe_root(lambda x: False, 7.0, 0.0, 1e-9) == 0.0


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_last_integer(root: Any, more: Any) -> None:
    assert int(numerics.last_integer(lambda n: n <= root, -1, root + more)) == root


def test_bisect_intervals() -> None:
    roots = np.array([0.1, 0.5, 0.9])
    before, beyond = numerics.bisect_intervals(lambda x: x <= roots, np.zeros(3), 1.0, 64)
    assert np.all((before <= roots) & (roots < beyond) & (beyond - before < 1e-15))
    integers = numerics.last_integer(lambda n: n**2 <= np.array([3, 4, 5]), 0, 100)
    assert integers.tolist() == [1, 2, 2]


@given(root=st.floats(-9.0, 9.0), guess=st.floats(-10.0, 10.0), backwards=st.booleans())
def test_bracket_near_encloses_the_root(root: Any, guess: Any, backwards: Any) -> None:
    sign = -1.0 if backwards else 1.0

    def excess(x: Any) -> Any:
        return sign * (x - root)

    before, beyond = numerics.bracket_root(excess, guess, 1e-3, -10.0 * sign, 10.0 * sign)
    assert excess(before) <= 0.0 < excess(beyond)
    assert abs(beyond - before) <= 1.001e-3 + 4.0 * abs(guess - root)
    assert numerics.bracket_root(lambda x: -1.0, guess, 1e-3, -10.0, 10.0) == (10.0, 10.0)
    assert numerics.bracket_root(lambda x: 1.0, guess, 1e-3, -10.0, 10.0) == (-10.0, -10.0)


def test_double_until() -> None:
    assert numerics.double_until(lambda x: x > 5.0, 1.0, 1e9) == (4.0, 8.0)
    assert numerics.double_until(lambda x: x > 0.5, 1.0, 1e9) == (0.0, 1.0)
    assert numerics.double_until(lambda x: False, 1.0, 100.0) == (64.0, math.inf)


@given(st.floats(1e-300, 1e300), st.booleans(), st.integers(1, 9), st.booleans())
def test_format_rounded_rounds_to_the_given_side(
    value: Any, up: Any, digits: Any, negative: Any
) -> None:
    value = -value if negative else value
    text = float(numerics.format_rounded(value, up, digits))
    assert text >= value if up else text <= value
    assert abs(text - value) <= abs(value) * 10.0 ** (1 - digits) * 1.0001
    assert numerics.format_rounded(0.0, up) == "0"


@given(st.integers(0, 2**32 - 1))
def test_the_hull_is_below_all_points_and_touches_them(seed: Any) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random(60), rng.random(60) ** 3
    hull = numerics.lower_hull(a, np.log(b))
    x, y = a[hull], b[hull]
    slopes = np.diff(np.append(0.0, y)) / np.diff(np.append(0.0, x))
    assert np.all(np.diff(slopes) > 0)
    at = np.interp(a, np.append(0.0, x), np.append(0.0, y))
    assert np.all(at <= b + 1e-12)
    assert set(zip(x, y, strict=True)) <= set(zip(a, b, strict=True))


def test_logarithms_of_differences() -> None:
    x, y = np.log([1.0, 1e-300, 1.0, 5.0]), np.log([0.25, 0.5e-300, 1.0 - 2.0**-50, 5.0])
    expected = [math.log(0.75), math.log(0.5e-300), -50 * math.log(2.0), -math.inf]
    np.testing.assert_allclose(numerics.log_subtract(x, y), expected, rtol=1e-2)
    share = np.array([1e-300, 1e-20, 0.5, 1.0 - 1e-16])
    rest = np.array([1.0, 1.0, 0.5, 1.1e-16])
    np.testing.assert_allclose(
        numerics.log_complement(share, rest), [-1e-300, -1e-20, math.log(0.5), math.log(1.1e-16)]
    )


def test_best_alpha_finds_the_closed_form() -> None:
    alpha, value = numerics.best_alpha(lambda a: 0.02 * a + 3.0 / (a - 1.0))
    assert alpha - 1.0 == pytest.approx(math.sqrt(150.0), rel=1e-3)
    assert value == pytest.approx(0.02 + 2.0 * math.sqrt(0.06), rel=1e-9)


@given(st.floats(1e-320, 1e300), st.integers(1, 6), st.booleans())
def test_format_places_rounds_to_the_given_side(value: Any, places: Any, up: Any) -> None:
    text = float(numerics.format_places(value, up, places))
    assert text >= value if up else text <= value
    assert text > 0.0  # a positive bound is never rounded to 0
    assert float(numerics.format_exact(value)) == value


def test_the_hull_of_convex_points_needs_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.linspace(0.01, 1.0, 500)
    expected = numerics.convex_chain(np.append(0.0, a), np.append(0.0, a**2))[1:] - 1
    monkeypatch.delattr(numerics, "convex_chain")
    np.testing.assert_array_equal(numerics.lower_hull(a, 2.0 * np.log(a)), expected)


def test_the_hull_of_numbers_that_underflow() -> None:
    # Every point is below the lines through all others that enclose it.
    a = np.array([0.1, 0.2, 0.3, 0.35, 0.4, 1.0])
    log_b = np.array([-1e6, -9e5, -9.5e5, -np.inf, -5e4, 0.0])
    np.testing.assert_array_equal(numerics.lower_hull(a, log_b), [3, 4, 5])
    np.testing.assert_array_equal(numerics.lower_hull(a, log_b - 1e7), [3, 4, 5])
    np.testing.assert_array_equal(numerics.lower_hull(a[:3], log_b[:3]), [0, 2])


def test_the_hull_of_jagged_points_equals_that_of_a_chain() -> None:
    # Thousands of points of which few are vertices: most are dropped one by one.
    random = np.random.default_rng(5)
    x = np.sort(random.uniform(0.0, 1.0, 4000))
    for roughness in (1e-9, 1e-3, 1.0):
        y = (x - 0.3) ** 2 + roughness * random.exponential(size=len(x))
        expected: list[int] = []
        for k in range(len(x)):
            while len(expected) > 1:
                i, j = expected[-2:]
                if (y[j] - y[i]) * (x[k] - x[j]) < (y[k] - y[j]) * (x[j] - x[i]):
                    break
                expected.pop()
            expected.append(k)
        np.testing.assert_array_equal(numerics.convex_chain(x, y), expected)
