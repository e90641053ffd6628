"""The noise, the runs and the distributions of K that a budget allows."""

from typing import Any

import numpy as np
import pytest

from audit import repetitions, upper_bounds
from audit.accounting import DpSgd, GaussianMechanism, LaplaceMechanism

DELTA = 1e-5


@pytest.mark.parametrize(
    ("spec", "mean"),
    [
        ("tnb:0,0.5", 21.5),
        ("tnb:-0.5,0.5", 3.0),
        ("tnb:3,0.5", 1000.0),
        ("geometric:0.5", 1.0),
        ("poisson:1", 0.5),
        ("binomial:50,0.5", 20.0),
        ("fixed:3", 17.0),
        ("two-point:0.5,3", 10.5),
    ],
)
def test_a_family_takes_any_mean(spec: str, mean: float) -> None:
    law = repetitions.parse_repetitions(spec)
    assert law.with_mean(mean).mean == pytest.approx(mean, rel=1e-6)
    cut = repetitions.Truncated(law, 40).with_mean(mean)
    assert cut == repetitions.Truncated(law.with_mean(mean), 40)
    with pytest.raises(ValueError, match="mean must be in"):
        law.with_mean(0.0)


@pytest.mark.thin(6)
@pytest.mark.parametrize("spec", ["poisson:10", "tnb:0,0.01", "fixed:4"])
@pytest.mark.parametrize("target", [8.0, 0.3])
def test_the_smallest_noise_satisfies_the_budget_and_less_does_not(
    spec: str, target: float
) -> None:
    law = repetitions.parse_repetitions(spec)
    mu = upper_bounds.calibrate_mu_for_tuning(law, target_epsilon=target, target_delta=DELTA)
    spent = upper_bounds.tuning_cost(GaussianMechanism(mu), law, DELTA).epsilon
    assert target * (1 - 1e-4) < spent <= target
    noise = upper_bounds.calibrate_noise(law, target_epsilon=target, target_delta=DELTA, steps=100)
    assert noise == pytest.approx(10.0 / mu, rel=1e-9)


def random_setting(rng: Any) -> Any:
    """A random distribution of K, target and delta, in typical ranges."""
    runs = int(np.exp(rng.uniform(np.log(2), np.log(50))))
    spec = [
        f"fixed:{runs}",
        f"poisson:{runs}",
        f"binomial:{2 * runs},0.5",
        f"two-point:0.5,{runs}",
        f"tnb:{rng.choice([-0.5, 0, 1, 3])},{1 / runs:.4g}",
    ][rng.integers(5)]
    target = float(np.exp(rng.uniform(np.log(0.2), np.log(8))))
    return spec, target, float(10.0 ** rng.uniform(-7, -2))


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 21))]
)
def test_the_inverse_agrees_with_the_reported_cost(part: int) -> None:
    # After the first part, three random settings in each, 60 in all.
    rng = np.random.default_rng([23, part])
    settings = [random_setting(rng) for _ in range(3)] if part else [("fixed:7", 1.0, 0.005)]
    for spec, target, delta in settings:
        mu = upper_bounds.calibrate_mu_for_tuning(spec, target_epsilon=target, target_delta=delta)
        spent = upper_bounds.tuning_cost(GaussianMechanism(mu), spec, delta).epsilon
        assert 0.99 * target <= spent <= target, (spec, target, delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "adaptive:0.9,1.1/fixed:5",
        pytest.param("grid:10", marks=pytest.mark.slow),
        pytest.param("until:0.1", marks=pytest.mark.slow),
        pytest.param("subset:0.3,all/fixed:4", marks=pytest.mark.slow),
    ],
)
def test_the_largest_mu_of_a_protocol_is_that_of_its_smallest_bound(spec: str) -> None:
    mu = upper_bounds.calibrate_mu_for_tuning(spec, target_epsilon=0.5, target_delta=DELTA)
    spent, more = (
        upper_bounds.tuning_cost(GaussianMechanism(one), spec, DELTA).epsilon
        for one in (mu, 1.0001 * mu)
    )
    assert 0.5 * (1 - 1e-6) < spent <= 0.5 < more


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["adaptive:0.75,1.33/tnb:0,0.1", "grid:10"])
def test_the_smallest_noise_of_a_protocol_on_sampled_batches(spec: str) -> None:
    noise = upper_bounds.calibrate_noise(
        spec, target_epsilon=2.0, target_delta=DELTA, steps=100, sampling_rate=0.05
    )
    spent, more = (
        upper_bounds.tuning_cost(DpSgd(one, 100, 0.05), spec, DELTA).epsilon
        for one in (noise, noise / 1.0001)
    )
    assert 2.0 * (1 - 1e-5) < spent <= 2.0 < more


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_the_smallest_noise_of_sampled_batches(neighbours: str) -> None:
    law = repetitions.parse_repetitions("tnb:0,0.05")
    noise = upper_bounds.calibrate_noise(
        law,
        target_epsilon=3.0,
        target_delta=DELTA,
        steps=200,
        sampling_rate=0.02,
        neighbours=neighbours,
    )

    def spent(sigma: Any) -> Any:
        return upper_bounds.tuning_cost(DpSgd(sigma, 200, 0.02, neighbours), law, DELTA).epsilon

    assert spent(noise) <= 3.0 < spent(noise * (1 - 1e-4))


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "spec", ["tnb:0,0.5", "tnb:-0.5,0.5", "poisson:1", "fixed:1", "two-point:0.5,3"]
)
@pytest.mark.parametrize("base", [GaussianMechanism(0.3), LaplaceMechanism(5.0)])
def test_the_largest_number_of_runs_satisfies_the_budget(
    spec: str, base: GaussianMechanism | LaplaceMechanism
) -> None:
    law = upper_bounds.calibrate_runs(base, spec, target_epsilon=1.6, target_delta=DELTA)
    assert upper_bounds.tuning_cost(base, law, DELTA).epsilon <= 1.6
    more = law.with_mean(law.mean * 1.01 + (2.0 if law.spec[0] in "ft" else 0.0))
    if law.mean < 9e6:
        assert upper_bounds.tuning_cost(base, more, DELTA).epsilon > 1.6


@pytest.mark.slow
def test_more_runs_by_the_region_bound_than_by_renyi() -> None:
    by_renyi = upper_bounds.calibrate_runs(
        GaussianMechanism(0.3),
        "tnb:0,0.5",
        target_epsilon=1.8,
        target_delta=DELTA,
        bound=upper_bounds.published.renyi,
    )
    by_region = upper_bounds.calibrate_runs(
        GaussianMechanism(0.3), "tnb:0,0.5", target_epsilon=1.8, target_delta=DELTA
    )
    assert by_renyi.mean < by_region.mean


@pytest.mark.slow
def test_the_best_distribution_has_the_highest_quantile_within_the_budget() -> None:
    base = GaussianMechanism(0.3)
    found = upper_bounds.best_repetitions(base, target_epsilon=1.6, target_delta=DELTA)
    quantiles = [one.expected_quantile for one in found]
    assert quantiles == sorted(quantiles, reverse=True)
    families = {one.repetitions.spec.split(",")[0].split(":")[0] for one in found}
    assert families == {"tnb", "poisson"}
    for one in found:
        assert one.expected_quantile == pytest.approx(one.repetitions.expected_quantile())
        assert upper_bounds.tuning_cost(base, one.repetitions, DELTA).epsilon <= 1.6
    with pytest.raises(ValueError, match="target_epsilon must be one that some distribution"):
        upper_bounds.best_repetitions(base, target_epsilon=0.1, target_delta=DELTA)


def test_an_unreachable_budget_is_refused() -> None:
    law = repetitions.parse_repetitions("tnb:0,0.01")
    with pytest.raises(ValueError, match="at least the cost of 1 expected runs"):
        upper_bounds.calibrate_runs(
            GaussianMechanism(1.0), law, target_epsilon=0.1, target_delta=DELTA
        )
    with pytest.raises(ValueError, match="target_epsilon must be in"):
        upper_bounds.calibrate_noise(law, target_epsilon=-1.0, target_delta=DELTA, steps=10)
    with pytest.raises(ValueError, match="does not apply: K must be"):
        upper_bounds.calibrate_mu_for_tuning(
            "fixed:3", target_epsilon=1.0, target_delta=DELTA, bound=upper_bounds.published.renyi
        )


@pytest.mark.parametrize("changed", [{"neighbours": "replace-one"}, {"group_size": 3}])
def test_full_batches_are_refused_if_no_bound_covers_the_neighbours(changed: Any) -> None:
    spec = "subset:0.1/tnb:0,0.1"
    with pytest.raises(ValueError, match=r"neighbours must be add-remove|groups must be of one"):
        upper_bounds.calibrate_noise(
            spec, target_epsilon=2.0, target_delta=DELTA, steps=100, **changed
        )


@pytest.mark.thorough
def test_a_target_is_met_although_the_smallest_bound_ends_within_the_search() -> None:
    # `first-accepted` requires that every mu of the schedule is at least 1e-4.
    spec, delta = "schedule:4,2,1", 5e-7
    mu = upper_bounds.calibrate_mu_for_tuning(spec, target_epsilon=0.01, target_delta=delta)
    spent, more = (
        upper_bounds.tuning_cost(GaussianMechanism(one), spec, delta).epsilon
        for one in (mu, 1.0001 * mu)
    )
    assert 0.01 * (1 - 1e-6) < spent <= 0.01 < more


def test_the_noise_of_full_batches_meets_the_target_to_the_last_digit() -> None:
    spec, delta = "schedule:4,2,1", 3.3074750017128655e-09
    noise = upper_bounds.calibrate_noise(
        spec, target_epsilon=10.0, target_delta=delta, steps=3000, neighbours="replace-one"
    )
    assert (
        upper_bounds.tuning_cost(DpSgd(noise, 3000, 1.0, "replace-one"), spec, delta).epsilon <= 10
    )


@pytest.mark.slow
def test_the_search_for_runs_stays_near_its_guess() -> None:
    # The cost of a fixed K is not monotone for Laplace noise: 13 runs cost 2.53, 1,000 runs 2.05.
    base = LaplaceMechanism(5.0)
    found = upper_bounds.calibrate_runs(base, "fixed:1", target_epsilon=2.5, target_delta=DELTA)
    assert found == repetitions.Fixed(12)
