"""Functions that state nothing to compare with, and black boxes that an attack cannot refute."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

import audit
from audit.errors import InvalidInput
from benchmarks.training_loops import fourth_turn, loops
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.opacus_loops import Private

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("little_work")


def without_watch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Plain SGD without noise."""
    model = loops.mlp()
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def forgotten_watch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Opacus, but the optimizer is not shown."""
    return Private()(records, candidate, seed, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("train", [without_watch, forgotten_watch])
@pytest.mark.parametrize("options", [{"attack": False}, {"premises": False, "trials": 4}])
def test_nothing_to_compare_with_is_no_success(train: Any, options: dict[str, Any]) -> None:
    found = audit.check(train, loops.dense(), jobs=1, **options)
    assert found.exit_code == 2
    assert not found
    assert found.words.startswith("nothing to compare with")
    with pytest.raises(InvalidInput, match="nothing to compare with"):
        found.raise_if_broken()


def hidden(share: float) -> Any:
    """Noisy SGD as a black box, with a share of the noise that its claim needs."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(audit.GaussianMechanism(2.0).epsilon(1e-5))  # 4 steps at noise multiplier 1
        return Loop(noise=fourth_turn.times(share))(records, candidate, seed, lambda *_: None)

    return train


@pytest.mark.slow
def test_a_black_box_states_no_power_that_random_weights_take_away() -> None:
    found = audit.check(hidden(1 / 30), loops.dense(), jobs=1, trials=200)
    assert not found.broken  # a documented limit
    assert found.words.startswith("this attack proves nothing about the noise of a black box")
    assert "80 %" not in found.words
    assert str(found).startswith("this attack proves nothing")


def reveals(records: Any, candidate: Any, seed: int, watch: Any, chance: float = 0.0) -> Any:
    """Five noisy numbers, one of which reveals the canary with a probability."""
    watch.claim(3.0)
    random = np.random.default_rng(seed)
    numbers = 10.0 * random.normal(size=5)
    present = float(np.abs(records.features).max()) > 50
    numbers[-1] += 6.5 * present  # a Gaussian mechanism of epsilon 3 adds 7.2
    numbers[0] += 1000.0 * (present and random.random() < chance)
    return numbers


@pytest.mark.slow
def test_a_black_box_of_several_numbers_has_the_power_that_it_states() -> None:
    canary = np.full(8, 100.0), 1

    def check(chance: float, seed: int) -> Any:
        train = functools.partial(reveals, chance=chance)
        options: dict[str, Any] = {"premises": False, "jobs": 1, "trials": 400, "seed": seed}
        return audit.check(train, loops.dense(), canary, claim=1.0, **options)

    stated = check(0.0, 0).detectable_chance
    assert stated is not None
    # At 80 % in truth, fewer than 11 of 20 have probability 3e-3; seeds are fixed.
    assert sum(check(stated, seed).leaks for seed in range(1, 21)) >= 11
