"""Noise whose scale differs between coordinates, and contributions where no noise is seen alone.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.noise import (
    estimate_noise,
    has_unequal_coordinates,
    inverse_variances,
    lower_limit,
)
from benchmarks.training_loops import eighth_torch
from benchmarks.training_loops.seventh_torch import (
    clipped,
    give,
    summed,
    tensors,
    watched,
    with_noise,
)
from benchmarks.training_loops.sixth_torch import sixty

little_work = pytest.mark.usefixtures("little_work")


def findings(train: Any) -> list[str]:
    report = check_premises(train, TrainingSet.of(sixty())).report
    return [finding.premise for finding in report.findings]


@pytest.mark.parametrize("runs", [8, 128])
@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_equal_noise_of_the_coordinates_is_seen_as_such(runs: int, draw: str) -> None:
    # Each of 200 data sets counts as unequal with probability 1e-6 at most.
    random = np.random.default_rng(0)
    for _ in range(200):
        values = getattr(random, draw)(size=(runs, 3, 60))
        assert not has_unequal_coordinates(estimate_noise(values, None, [slice(0, 60)], 1e-7))


@pytest.mark.parametrize("runs", [8, 128])
def test_other_noise_in_some_coordinates_is_seen(runs: int) -> None:
    values = np.random.default_rng(0).normal(size=(runs, 3, 60))
    values[:, :, ::2] *= 3.0
    assert has_unequal_coordinates(estimate_noise(values, None, [slice(0, 60)], 1e-7))


@pytest.mark.parametrize("coordinates", [1, 5, 200])
@pytest.mark.parametrize("runs", [64, 128])
def test_the_lower_limit_is_below_the_true_sum(runs: int, coordinates: int) -> None:
    # With known noise of scale 1, the sum is the number of coordinates. Each limit exceeds it with
    # probability 1e-7 at most, here in 2,000 data sets of equal terms.
    random, true_sum = np.random.default_rng(0), float(coordinates)
    for _ in range(2000):
        variances = stats.chi2.rvs(runs - 1, size=coordinates, random_state=random) / (runs - 1)
        assert lower_limit((1.0 - 2.0 / (runs - 1)) / variances, runs) < true_sum


@pytest.mark.parametrize("runs", [64, 128])
def test_one_coordinate_has_a_limit_by_the_exact_distribution(runs: int) -> None:
    # The limit, a multiple of the estimate, exceeds 1 where the sample variance is below this one.
    degrees = runs - 1
    variance = lower_limit(np.array([1.0 - 2.0 / degrees]), runs)
    assert stats.chi2.cdf(degrees * variance, degrees) < 1e-8


def test_signals_can_only_lower_the_estimates() -> None:
    random = np.random.default_rng(0)
    noise, signal = random.normal(size=(100, 1, 4000)), random.normal(size=(100, 1, 4000))
    assert inverse_variances(noise).mean() == pytest.approx(1.0, abs=0.02)
    assert inverse_variances(noise + signal).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.thorough
@pytest.mark.full_work
@pytest.mark.parametrize("in_units", [False, True])
def test_noise_in_other_units_than_the_clipping_is_found(in_units: bool) -> None:
    train = partial(eighth_torch.noise_in_units, clipped_in_units=in_units)
    assert findings(train) == ([] if in_units else ["noise"])


def neighbours_in_pairs(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct for zero-out: records 2 i and 2 i + 1 are a pair, whose gradient is clipped to C."""
    x, _ = tensors(records)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer, accountant = watched(watch, model)
    count = len(x) // 2
    both = torch.stack([x[: 2 * count : 2], x[1 : 2 * count : 2]], 1)

    def loss(weights: dict[str, torch.Tensor], pair: torch.Tensor) -> torch.Tensor:
        scores = torch.func.functional_call(model, weights, (pair,))[:, 0]
        return functional.softplus(scores[1] - scores[0])

    for _ in range(6):
        weights = {k: p.detach() for k, p in model.named_parameters()}
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, both)
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(noise_multiplier=1.0, sample_rate=1.0)
    return model


@pytest.mark.thorough
@pytest.mark.full_work
def test_contributions_are_compared_with_the_spread_where_no_noise_is_seen_alone() -> None:
    report = check_premises(eighth_torch.pairs_clipped, TrainingSet.of(sixty())).report
    assert "noise" in report.untested
    assert [finding.premise for finding in report.findings] == ["contribution"]
    assert report.findings[0].numbers["effective noise multiplier"] < 0.5


@little_work
def test_a_correct_loss_of_pairs_is_not_accused() -> None:
    records = TrainingSet.of(sixty())
    report = check_premises(neighbours_in_pairs, records, relation="zero-out").report
    assert report.findings == ()
