"""Declared values whose noise is that of another released number.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.shared_noise import Numbers, shared_noise
from benchmarks.training_loops import loops
from benchmarks.training_loops.seventh_torch import (
    RATE,
    SIGMA,
    clipped,
    drawn,
    give,
    of_records,
    summed,
    tensors,
    watched,
    with_noise,
)

pytestmark = pytest.mark.thorough
DATA = TrainingSet(np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 3)
Train = Callable[..., Any]


def of_arrays(noise_of_share: str) -> Train:
    """A loop of arrays that declares a noisy share before each step, without the size of its noise.

    Args:
        noise_of_share: "own" noise; "reused", of the gradient's second number; or "copy", which
            declares the noisy number itself.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator = np.random.default_rng(seed)
        x = np.asarray(records.features, dtype=float)
        params = np.zeros(x.shape[1])
        # Both numbers of a step cost as much as one release with noise multiplier SIGMA.
        watch.account(noise_multiplier=SIGMA, sampling_rate=0.5, steps=5)
        for _ in range(5):
            batch = generator.random(len(x)) < 0.5
            rows = x[batch] - params
            is_short = np.linalg.norm(rows, axis=1) < 2.0
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
            noise, further = generator.normal(size=len(params)), generator.normal()
            noisy = rows.sum(axis=0) + 1.1 * SIGMA * noise
            share = (is_short - 0.5).sum() + 4 * (further if noise_of_share == "own" else noise[1])
            share = watch.release(float(noisy[1] if noise_of_share == "copy" else share))
            noisy = watch.step(noisy, params)
            params = params + 0.01 * noisy * (1.0 if share > 0 else 0.5)
        return params

    return train


def of_torch(one_seed: bool) -> Train:
    """A loop of torch that declares a noisy count in each step."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x, y = tensors(records)
        model = loops.mlp()
        optimizer, accountant = watched(watch, model)
        for step in range(4):
            taken = drawn(len(y))
            total = summed(clipped(of_records(model, x[taken], y[taken])))
            noise_of_count = torch.Generator().manual_seed(1000 * seed + step)
            # As many numbers as the first weight has: torch draws few numbers in another way.
            count = len(taken) + 5 * torch.randn(48, generator=noise_of_count)[0].item()
            watch.release(count)
            if one_seed:
                state = torch.get_rng_state()
                torch.manual_seed(1000 * seed + step)
            give(model, with_noise(total))
            if one_seed:
                torch.set_rng_state(state)
            optimizer.step()
            accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
        return model

    return train


def of_two_values(same_noise: bool) -> Train:
    """Two declared values; the noise of the first one has no stated size."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator = np.random.default_rng(seed)
        watch.claim(4.0)
        noise, other = generator.laplace(size=2)
        mean = np.clip(records.features[:, 0], -1, 1).sum() + noise
        mean = watch.release(float(mean))
        count = (records.labels == 0).sum() + 2 * (noise if same_noise else other)
        return mean, watch.release(float(count), epsilon=0.5)

    return train


def found(train: Train, data: TrainingSet) -> bool:
    report = check_premises(train, data).report
    kinds = [finding.kind for finding in report.findings]
    assert set(kinds) <= {"same noise"}, report.findings
    return "same noise" in kinds


@pytest.mark.parametrize(
    ("noise", "is_broken"), [("own", False), ("reused", True), ("copy", False)]
)
def test_noise_of_a_share_and_of_a_step_of_arrays(noise: str, is_broken: bool) -> None:
    assert found(of_arrays(noise), DATA) == is_broken


@pytest.mark.parametrize("one_seed", [True, False])
def test_noise_of_a_count_and_of_a_step_of_torch(one_seed: bool) -> None:
    assert found(of_torch(one_seed), TrainingSet(*loops.dense(40))) == one_seed


@pytest.mark.parametrize("same_noise", [True, False])
def test_noise_of_two_declared_values(same_noise: bool) -> None:
    assert found(of_two_values(same_noise), DATA) == same_noise


def test_p_values_of_independent_numbers_are_valid() -> None:
    generator = np.random.default_rng(2)
    for runs in (8, 12, 40):
        for _ in range(50):
            numbers = [
                Numbers(generator.normal(size=(runs, d)), generator.normal(size=(3, d)), str)
                for d in (4, 300)
            ]
            (test,) = shared_noise(numbers[0], numbers[1:])
            assert test.p_value > 1e-3 or not test.matters
