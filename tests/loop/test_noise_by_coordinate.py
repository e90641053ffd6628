"""Noise whose scale differs between coordinates, and contributions where no noise is seen alone.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from premise_reports import broken_premises
from scipy import stats
from torch import nn
from torch.nn import functional

from audit.loop import TrainingSet
from audit.loop.premises import size_of_noise
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
    assert broken_premises(train) == ([] if in_units else ["noise"])


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


@pytest.mark.parametrize("runs", [32, 64, 128])
def test_the_limit_of_one_coordinate_has_its_level(runs: int) -> None:
    degrees = runs - 1
    at_level = degrees / stats.chi2.ppf(1e-9, degrees)  # the variance is this many times too small
    estimate = (1 - 2 / degrees) * at_level
    assert lower_limit(np.array([estimate]), runs) == pytest.approx(1.0)
    assert lower_limit(np.array([0.99 * estimate]), runs) < 1.0


@pytest.mark.parametrize("runs", [32, 64, 128])
@pytest.mark.parametrize(("coordinates", "games"), [(1, 100_000), (10, 30_000), (1000, 500)])
@pytest.mark.parametrize("is_spread", [True, False])
def test_no_direction_exceeds_the_true_value(
    runs: int, coordinates: int, games: int, is_spread: bool
) -> None:
    rng = np.random.default_rng([runs, coordinates])
    degrees = runs - 1
    squares = np.ones(coordinates) if is_spread else np.square(rng.standard_cauchy(coordinates))
    squares /= squares.sum()
    weights = (degrees - 2) / rng.chisquare(degrees, size=(games, coordinates))
    limits = [lower_limit(squares * weight, runs) for weight in weights]
    assert max(limits) <= 1.0
    if is_spread and coordinates == 1000:
        assert min(limits) > 0.85  # and the limit is near


def test_weights_are_estimated_without_bias() -> None:
    rng = np.random.default_rng(0)
    scales = np.array([0.1, 1.0, 7.0])
    drawn = scales * rng.normal(size=(32, 20_000, 3))
    mean = inverse_variances(drawn).mean(axis=0)
    assert mean == pytest.approx(scales**-2.0, rel=0.02)


@pytest.mark.parametrize("steps", [1, 5])
def test_records_of_other_coordinates_have_a_limit_in_common(steps: int) -> None:
    # Two records of each coordinate differ by 2 units of its noise. The limit of one pair alone is
    # 0.51 with one step; that of all pairs is nearer, and exceeds 1 in none of 300 data sets.
    rng, runs, coordinates = np.random.default_rng(steps), 64, 20
    units = rng.uniform(0.5, 2.0, size=coordinates)
    canaries: Any = SimpleNamespace(
        traces=[
            SimpleNamespace(gradients=np.tile(sign * row, (steps, 1)))
            for row in np.diag(units)
            for sign in (1.0, -1.0)
        ]
    )
    limits = []
    for _ in range(300):
        weights = inverse_variances(units * rng.normal(size=(runs, steps, coordinates)))
        limits.append(size_of_noise._in_units_of_coordinates(canaries, weights, runs).max())
    assert 0.75 < min(limits) < max(limits) < 1.0


def test_a_limit_in_common_holds_where_the_largest_of_many_pairs_are_chosen() -> None:
    # Of 160 pairs, a quarter with the largest estimates has 1.25 times the true mean.
    rng, runs, coordinates = np.random.default_rng(0), 64, 160
    rows = np.concatenate([np.eye(coordinates), -np.eye(coordinates)])
    canaries: Any = SimpleNamespace(traces=[SimpleNamespace(gradients=row[None]) for row in rows])
    limits = []
    for _ in range(20):
        weights = inverse_variances(rng.normal(size=(runs, 1, coordinates)))
        limits.append(size_of_noise._in_units_of_coordinates(canaries, weights, runs).max())
    assert 0.9 < min(limits) < max(limits) < 1.0


class _Experiment:
    """Runs on any data release noise of standard deviation `scale` in every coordinate."""

    steps, first_step, sampled = 1, 0, False
    records = (0, 1)
    accounted = SimpleNamespace(sigma=lambda _: 1.0)

    def __init__(self, coordinates: int, scale: float) -> None:
        self._rng, self._shape, self._scale = np.random.default_rng(0), (1, coordinates), scale
        self.collected: list[Any] = []
        self.verdicts = SimpleNamespace(
            has=lambda _: False,
            collect=lambda *tests, words: self.collected.extend(map(words, tests)),
        )

    def coupled(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(gradients=self._scale * self._rng.normal(size=self._shape))

    def with_canary(self, _: Any) -> Any:
        return self.records

    def seed_of(self, number: int) -> int:
        return number

    def ended_early(self, _: Any) -> bool:
        return False

    def work_left(self, _: float) -> bool:
        return True


@pytest.mark.parametrize("coordinates", [1, 100, 5000])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_the_total_spread_accuses_too_little_noise_alone(
    coordinates: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_of_noise, "draw_alike", lambda *_: True)
    monkeypatch.setattr(size_of_noise, "copies", lambda *_: (0, 0))
    # Two records change the sum by opposite vectors of norm 1.
    contribution = np.full((1, coordinates), coordinates**-0.5)
    canaries = SimpleNamespace(
        comparable=None,
        pool=[None],
        traces=[SimpleNamespace(gradients=sign * contribution) for sign in (-1.0, 1.0)],
    )
    experiment = _Experiment(coordinates, scale)
    size_of_noise._compare_with_total_spread(experiment, canaries)  # type: ignore[arg-type]
    assert bool(experiment.collected) == (scale < 1.0)
