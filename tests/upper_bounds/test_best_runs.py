"""The best m of K runs: known values, every order of small cases, and special cases."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit import protocols, repetitions, upper_bounds
from audit.accounting import (
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    largest_epsilon,
)
from audit.protocols import BestRuns
from audit.upper_bounds.best_folds import FoldCurve
from audit.upper_bounds.best_runs import log_derivative
from audit.upper_bounds.ratio_lattice import chords

DELTA = 1e-5


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("mu", "law", "values"),
    [
        (0.24721, "tnb:0,0.01", (1.449, 2.545, 3.630, 5.799, 11.25)),
        (0.24721, "tnb:1,0.05", (1.560, 2.464, 3.327, 5.014, 9.168)),
        (0.24721, "fixed:10", (3.010, 3.344, 3.588, 3.883, 3.299)),
        (1.0, "tnb:1,0.05", (7.026, 11.21, 15.20, 23.01, 42.23)),
    ],
)
def test_known_values(mu: float, law: str, values: tuple[float, ...]) -> None:
    for m, value in zip((1, 2, 3, 5, 10), values, strict=True):
        found = upper_bounds.best_runs(GaussianMechanism(mu), f"best:{m}/{law}", DELTA)
        assert found.epsilon == pytest.approx(value, rel=5e-4)
        assert 0.0 <= found.error < 1e-4 * found.epsilon


@pytest.mark.parametrize(
    "law", ["tnb:0,0.1", "tnb:2.5,0.2", "poisson:3", "binomial:6,0.4", "fixed:5", "two-point:0.3,7"]
)
@pytest.mark.parametrize("order", [1, 2, 4])
def test_derivatives_are_sums_over_k(law: str, order: int) -> None:
    law, k = repetitions.parse_repetitions(law), np.arange(400)
    falling = np.prod([k - i for i in range(order)], axis=0).astype(float)
    for x in (0.0, 0.3, 0.9, 1.0):
        terms = law.pmf(k) * falling * x ** np.maximum(k - order, 0.0)
        with np.errstate(divide="ignore"):
            found = np.exp(log_derivative(law, order, np.log(x)))
        assert found == pytest.approx(terms.sum(), rel=1e-9)


def released(law: Any, order: Any, chances: Any, m: Any) -> Any:
    """Probabilities of the released outputs, the best m in order, by enumeration of all runs."""
    rank = {y: at for at, y in enumerate(order)}
    found: dict[Any, Any] = {}
    for k, chance in enumerate(chances):
        for runs in itertools.product(range(len(law)), repeat=k):
            best = tuple(sorted(runs, key=rank.__getitem__)[:m])
            found[best] = found.get(best, 0.0) + chance * math.prod(law[y] for y in runs)
    return found


@pytest.mark.thorough
@pytest.mark.thin(3)
@pytest.mark.parametrize("spec", ["fixed:3", "binomial:4,0.6", "two-point:0.3,4"])
def test_no_order_of_small_cases_exceeds_the_bound(spec: str) -> None:
    rng, law = np.random.default_rng(5), repetitions.parse_repetitions(spec)
    chances = law.pmf(np.arange(5))
    largest = 0.0
    for case in range(6):
        size, m = 2 + case % 2, 1 + case % 3
        p, q = rng.dirichlet(np.full(size, 0.8), 2) * 0.98 + 0.02 / size
        epsilon = float(rng.uniform(0.1, 1.0))
        leak = 0.0
        for order in itertools.permutations(range(size)):
            one, other = (released(side, order, chances, m) for side in (p, q))
            for a, b in ((one, other), (other, one)):
                gains = (a[key] - math.exp(epsilon) * b[key] for key in a)
                leak = max(leak, sum(max(gain, 0.0) for gain in gains))
        if leak < 1e-6:
            continue
        base, protocol = DiscreteMechanism(p, q), f"best:{m}/{spec}"
        for row in upper_bounds.all_upper_bounds(base, protocol, leak * (1.0 - 1e-9)):
            assert row.epsilon >= epsilon * (1.0 - 1e-6), (row.name, case)
            largest = max(largest, epsilon / row.epsilon)
    assert largest > 0.6


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("mu", "spec", "attained", "value"),
    [
        # The direct maximum over a fine grid of folds, of which none is an upper bound, and the
        # value of the bound.
        (0.24721, "best:3/tnb:0,0.01", 3.527, 3.542),
        (0.24721, "best:5/tnb:0,0.01", 5.223, 5.249),
        (0.24721, "best:2/fixed:10", 3.159, 3.172),
        (0.24721, "best:3/fixed:10", 3.256, 3.271),
        (0.24721, "best:3/tnb:1,0.05", 3.250, 3.262),
        (1.0, "best:3/tnb:1,0.05", 15.10, 15.18),
    ],
)
def test_known_values_by_folds(mu: float, spec: str, attained: float, value: float) -> None:
    row = upper_bounds.best_folds(GaussianMechanism(mu), spec, DELTA)
    assert attained < row.epsilon < value
    assert row.epsilon - row.error < value
    assert 0.0 <= row.error < 2e-3 * row.epsilon


def largest_fold(p: Any, q: Any, law: Any, m: int, t: float, shares: Any) -> float:
    """The largest gain of m - 1 runs over folds of outputs sorted by q/p, by enumeration."""
    largest = 0.0
    k = np.arange(60)
    falling = law.pmf(k) * np.prod([k - i for i in range(m)], axis=0)
    for u, v in shares:
        places = np.arange(len(p))
        part = np.clip(u - places, 0, 1) + np.clip(v - (len(p) - 1 - places), 0, 1)
        weights, weights_with = p * np.minimum(part, 1.0), q * np.minimum(part, 1.0)
        a, b = (
            float(falling @ (1.0 - side.sum()) ** np.maximum(k - m, 0.0))
            for side in (weights, weights_with)
        )
        gain = sum(
            max(
                a * math.prod(weights[i] for i in runs)
                - t * b * math.prod(weights_with[i] for i in runs),
                0.0,
            )
            for runs in itertools.product(range(len(p)), repeat=m - 1)
        )
        largest = max(largest, gain / math.factorial(m - 1))
    return largest


@pytest.mark.thorough
@pytest.mark.parametrize(("spec", "m"), [("fixed:5", 2), ("binomial:8,0.6", 3), ("tnb:1,0.3", 3)])
def test_no_fold_of_a_small_base_gains_more_than_the_squares_allow(spec: str, m: int) -> None:
    """4,500 folds with random shares of two outputs; those at whole outputs are attained."""
    rng, law = np.random.default_rng(m), repetitions.parse_repetitions(spec)
    closest = 0.0
    for _ in range(3):
        # Ratios on the lattice, so that it makes nothing larger.
        r = np.exp(0.4 * np.arange(-2, 3))
        p = rng.dirichlet(np.ones(5)) * 0.5 + 0.1
        p[[0, 1]] *= (p[3:] @ (r[3:] - 1.0)) / (p[:2] @ (1.0 - r[:2]))
        p /= p.sum()
        q = p * r
        curve = FoldCurve(DiscreteMechanism(p, q).pairs[0], law, m, 1.0, 1e-5)
        u = rng.uniform(0.0, 5.0, 500)
        folds = np.stack([u, rng.uniform(0.0, 5.0 - u)], axis=1)
        whole = [(i, j) for i in range(6) for j in range(6 - i)]
        upper = curve._values.upper
        for place in range(0, len(curve._t), len(curve._t) // 3):
            t, bound = float(curve._t[place]), float(upper[place])
            gain = largest_fold(p, q, law, m, t, [*folds[place % 5 :: 5], *whole])
            assert gain <= bound * (1.0 + 1e-12)
            if bound > 1e-4:
                closest = max(closest, gain / bound)
    assert closest > 0.97


def front(law: Any, scores: Any, chances: Any, most: int) -> Any:
    """Probabilities of the first runs on the Pareto front, in the order of their scores."""
    found: dict[Any, float] = {}
    for k, chance in enumerate(chances):
        for runs in itertools.product(range(len(law)), repeat=k):
            kept = [
                y for y in runs if not any(z != y and all(scores[z] >= scores[y]) for z in runs)
            ]
            kept = tuple(sorted(kept, key=lambda y: tuple(-scores[y]))[:most])
            found[kept] = found.get(kept, 0.0) + chance * math.prod(law[y] for y in runs)
    return found


@pytest.mark.thin(6)
@pytest.mark.parametrize("spec", ["fixed:3", "binomial:4,0.6"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_scores_of_small_cases_exceed_the_bound_of_a_pareto_front(spec: str, most: int) -> None:
    rng, law = np.random.default_rng(7 * most), repetitions.parse_repetitions(spec)
    chances = law.pmf(np.arange(5))
    largest, several = 0.0, 0
    for _ in range(12):
        p, q = rng.dirichlet(np.full(3, 0.8), 2) * 0.98 + 0.02 / 3
        epsilon = float(rng.uniform(0.1, 1.0))
        scores = rng.permutation(9)[:3]
        scores = np.stack([scores // 3, scores % 3], axis=1)  # distinct pairs of three values
        one, other = (front(side, scores, chances, most) for side in (p, q))
        several += any(len(set(key)) > 1 for key in one)
        leak = max(
            sum(max(a[key] - math.exp(epsilon) * b[key], 0.0) for key in a)
            for a, b in ((one, other), (other, one))
        )
        if leak < 1e-6:
            continue
        base, protocol = DiscreteMechanism(p, q), f"pareto:{most}/{spec}"
        for row in upper_bounds.all_upper_bounds(base, protocol, leak * (1.0 - 1e-9)):
            assert row.epsilon >= epsilon * (1.0 - 1e-6), row.name
            largest = max(largest, epsilon / row.epsilon)
    assert largest > 0.5
    assert several > 2 or most == 1


def test_a_front_of_one_run_is_random_search_and_larger_fronts_cost_more() -> None:
    base = GaussianMechanism(0.24721)
    costs = [upper_bounds.pareto_front(base, f"pareto:{m}/tnb:0,0.01", DELTA) for m in (1, 2, 3)]
    region = upper_bounds.region(base, "tnb:0,0.01", DELTA)
    assert costs[0].epsilon == pytest.approx(region.epsilon, rel=1e-9)
    for m, found in enumerate(costs, start=1):
        best = upper_bounds.best_runs(base, f"best:{m}/tnb:0,0.01", DELTA).epsilon
        assert best * (1.0 - 1e-9) <= found.epsilon < 1.02 * best
        assert found.error < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "base", [GaussianMechanism(0.4), LaplaceMechanism(5.0), DpSgd(1.0, 20, 0.1)]
)
def test_one_run_is_the_region_bound_and_all_runs_are_their_composition(base: Any) -> None:
    for law in ("tnb:0,0.1", "poisson:4"):
        one = upper_bounds.best_runs(base, f"best:1/{law}", DELTA).epsilon
        assert one == pytest.approx(upper_bounds.region(base, law, DELTA).epsilon, rel=1e-9)
    rows = upper_bounds.all_upper_bounds(base, "best:3/fixed:3", DELTA)
    costs = {row.name: row.epsilon for row in rows}
    assert costs["best-runs"] == pytest.approx(costs["composition"], rel=2e-4)
    # A fold of all outputs has each tuple once for each member as the worst one.
    three_times = upper_bounds.find("composition", BestRuns).function(
        base, "best:3/fixed:3", DELTA / 3.0
    )
    reach, three = costs["best-runs"], repetitions.parse_repetitions("fixed:3")
    curves = [FoldCurve(pair, three, 3, reach, DELTA) for pair in base.pairs]
    by_folds = largest_epsilon([curve.delta for curve in curves], DELTA)
    # The largest loss of a Laplace base is not on the lattice.
    slack = 1.09 if isinstance(base, LaplaceMechanism) else 1.01
    assert three_times.epsilon * (1.0 - 1e-6) <= by_folds < slack * three_times.epsilon
    # The bound by derivatives of phi is smaller in both directions, and then it counts.
    assert costs["best-folds"] == reach
    # There are never five runs, so all are released.
    rows = {
        row.name: row.epsilon
        for row in upper_bounds.all_upper_bounds(base, "best:5/fixed:3", DELTA)
    }
    assert rows["best-runs"] == pytest.approx(costs["composition"], rel=2e-4)  # type: ignore[call-overload]


def test_in_each_direction_the_smaller_bound_counts() -> None:
    # With the record, the losses of a small sampling rate are small, but far ones on the lattice of
    # folds are possible.
    base, protocol = DpSgd(0.8, 1000, 0.001), "best:5/tnb:0,0.01"
    assert upper_bounds.tuning_cost(base, protocol, DELTA).epsilon == pytest.approx(
        1.5448, abs=1e-4
    )
    assert upper_bounds.best_runs(base, protocol, DELTA).epsilon > 3.0


def test_the_cost_is_the_smaller_bound_and_gaps_have_reasons() -> None:
    base = GaussianMechanism(0.24721)
    assert upper_bounds.tuning_cost(base, "best:10/fixed:11", DELTA).name == "composition"
    assert upper_bounds.tuning_cost(base, "best:2/tnb:0,0.01", DELTA).name == "best-runs"
    assert upper_bounds.tuning_cost(base, "best:3/tnb:0,0.01", DELTA).name == "best-folds"
    cut = upper_bounds.best_runs(base, "best:2/tnb:0,0.01@50", DELTA)
    assert not cut.applies
    assert "closed form" in cut.reason
    huge = upper_bounds.best_runs(base, "best:100/tnb:1,1e-9", DELTA)
    assert not huge.applies
    assert "must be below" in huge.reason
    with pytest.raises(ValueError, match=r"released must be a whole number in \[1, 100\], got 0$"):
        protocols.parse_protocol("best:0/fixed:3")
    with pytest.raises(ValueError, match="RELEASED"):
        protocols.parse_protocol("best/fixed:3")


@pytest.mark.slow
def test_fixed_numbers_of_runs_are_composed_at_every_delta() -> None:
    # Three runs of 0.25 are one Gaussian mechanism of 0.25 sqrt(3).
    for delta in (1e-13, 1e-18, 1e-30):
        known = GaussianMechanism(0.25 * math.sqrt(3.0)).epsilon(delta)
        for spec in ("adaptive:0.5,2/fixed:3", "best:3/fixed:3"):
            found = upper_bounds.tuning_cost(GaussianMechanism(0.25), spec, delta).epsilon
            assert found == pytest.approx(known, rel=1e-8)


def test_a_fine_lattice_only_makes_the_bound_smaller() -> None:
    curve = FoldCurve(
        GaussianMechanism(0.25).pairs[0], repetitions.parse_repetitions("tnb:0,0.01"), 3, 3.6, 1e-5
    )
    coarse = replace(curve, levels=4)  # computes no fine lattice
    assert curve.finer is not None
    assert coarse.finer is None
    for epsilon in (2.5, 3.0, 3.5):
        assert curve.delta(epsilon) <= curve.finer.delta(epsilon)
        assert 0.9 * coarse.delta(epsilon) <= curve.delta(epsilon) <= coarse.delta(epsilon)
        assert curve.lower.delta(epsilon) <= curve.delta(epsilon)


def test_chords_to_the_largest_value_leave_out_points_above_them() -> None:
    """A point above the chord from the value at 0 to a later point only made the bound larger."""
    pair = GaussianMechanism(1.0).pairs[0]
    t, psi = np.array([0.1, 1.0, 10.0]), np.array([0.5, 0.2, 0.01])
    above = psi + np.array([0.45, 0.0, 0.0])
    without, with_point = (chords(pair, x, y, 1.0) for x, y in ((t[1:], psi[1:]), (t, above)))
    for epsilon in (0.0, 1.0, 2.0):
        assert with_point.delta(epsilon) == pytest.approx(without.delta(epsilon), rel=1e-12)
