"""Coordinates of a step that are the same public number in all runs need no noise.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.noise import (
    estimate_noise,
    flat_noise,
    independence,
    noise_again,
    shape_of_noise,
)
from benchmarks.training_loops import loops
from benchmarks.training_loops.seventh_torch import (
    SIGMA,
    clipped,
    give,
    of_records,
    summed,
    tensors,
    watched,
    with_noise,
)
from benchmarks.training_loops.sixth_torch import sixty

little_work = pytest.mark.usefixtures("little_work")
STEPS, WIDTH = 6, 24
Gradients = dict[str, Tensor]


def in_turn(inactive: Callable[[Any], Gradients], deviation: float = SIGMA * 0.5) -> Any:
    """A loop that trains the first and the second layer in turn.

    Args:
        inactive: the other layer's released gradient, from its clipped sum and weights.
        deviation: standard deviation of the noise of the trained layer.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x, y = tensors(records)
        model = loops.mlp()
        optimizer, accountant = watched(watch, model)
        for step in range(STEPS):
            gradients = of_records(model, x, y)
            names = [k for k in gradients if k.startswith(("0.", "2.")[step % 2])]
            noisy = with_noise(summed(clipped({k: gradients[k] for k in names})), deviation)
            total = summed(clipped(gradients))
            resting = {k: (total[k], p.detach()) for k, p in model.named_parameters()}
            resting = {k: v for k, v in resting.items() if k not in names}
            give(model, {**noisy, **inactive(resting)})
            optimizer.step()
            accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
        return model

    return train


def with_public_masks(deviation: float = SIGMA, without_noise: float = 0.0) -> Callable[..., Any]:
    """A loop of arrays that releases six public coordinates in each step.

    Args:
        deviation: standard deviation of the noise.
        without_noise: factor of the other coordinates, which get no noise.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator, public = np.random.default_rng(seed), np.random.default_rng(7)
        x = records.features.reshape(len(records.features), -1).astype(float)
        y = np.asarray(records.labels, dtype=float)
        params = np.zeros(x.shape[1])
        watch.account(noise_multiplier=SIGMA, sampling_rate=1.0, steps=STEPS)
        for _ in range(STEPS):
            mask = np.zeros(x.shape[1])
            mask[public.permutation(len(mask))[:6]] = 1.0
            rows = (x @ params - y)[:, None] * x
            rows = rows * (mask + without_noise * (1 - mask))
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
            noisy = rows.sum(axis=0) + mask * deviation * generator.normal(size=x.shape[1])
            noisy = watch.step(noisy, params)
            params = params - 0.01 * noisy
        return params

    return train


def wide() -> TrainingSet:
    generator = np.random.default_rng(3)
    return TrainingSet(generator.normal(size=(30, WIDTH)), np.arange(30) % 3)


def zeros(resting: dict[str, tuple[Tensor, Tensor]]) -> Gradients:
    return {k: 0.0 * weights for k, (_, weights) in resting.items()}


def weight_decay(resting: dict[str, tuple[Tensor, Tensor]]) -> Gradients:
    return {k: 0.1 * weights for k, (_, weights) in resting.items()}


def bare_sums(resting: dict[str, tuple[Tensor, Tensor]]) -> Gradients:
    return {k: 0.1 * total for k, (total, _) in resting.items()}


def findings(train: Any, data: Any) -> list[tuple[str, str]]:
    records = data if isinstance(data, TrainingSet) else TrainingSet(*data)
    report = check_premises(train, records).report
    assert "noise" in report.tested, report.untested
    return [(finding.premise, finding.message) for finding in report.findings]


@little_work
@pytest.mark.thorough
@pytest.mark.parametrize("inactive", [zeros, weight_decay])
def test_layers_trained_in_turn_are_correct(inactive: Any) -> None:
    assert not findings(in_turn(inactive), sixty())


@little_work
@pytest.mark.thorough
def test_too_little_noise_of_layers_trained_in_turn_is_found() -> None:
    (_, message), *_ = findings(in_turn(zeros, 0.6 * SIGMA * 0.5), sixty())
    assert "effective noise multiplier" in message


@little_work
@pytest.mark.thorough
def test_a_layer_without_noise_that_a_record_changes_is_found() -> None:
    assert any(premise == "noise" for premise, _ in findings(in_turn(bare_sums), sixty()))


@little_work
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("train", "is_broken"),
    [
        (with_public_masks(), False),
        (with_public_masks(deviation=0.6), True),
        (with_public_masks(without_noise=0.1), True),
    ],
)
def test_public_masks_of_each_step(train: Any, is_broken: bool) -> None:
    assert bool(findings(train, wide())) == is_broken


def test_noise_is_measured_on_coordinates_that_are_not_public() -> None:
    generator = np.random.default_rng(0)
    live = generator.random((5, 60)) < 0.3
    live[:, 40:] = False
    live[2] = False
    slices = [slice(0, 20), slice(20, 40), slice(40, 60)]
    for correlated in (False, True):
        drawn = generator.normal(size=(60, 5, 60))
        if correlated:
            drawn[:, 4] = drawn[:, 3]
        noise = estimate_noise(np.where(live, drawn, 7.0), None, slices, 1e-12, live)
        assert np.all(abs(noise.scales[noise.loud] - 1) < 0.1)
        assert noise.loud.tolist() == [True, True, False, True, True]
        assert not noise.silent.any()
        names, shapes = ["a", "b", "c"], [(20,)] * 3
        tests = [
            *independence(noise, names, shapes, between_steps=True),
            *flat_noise(noise),
            *noise_again(np.where(live, drawn, 7.0), noise),
            *shape_of_noise(noise),
        ]
        p_values = [test.p_value for test in tests if test.matters]
        assert (min(p_values, default=1.0) < 1e-9) == correlated
