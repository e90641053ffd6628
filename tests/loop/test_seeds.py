"""Generators with one seed: noise or batches that repeat numbers that are drawn elsewhere."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from premise_reports import report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from audit.loop import TrainingSet
from audit.loop.premises.noise import estimate_noise, noise_from_weights
from audit.loop.runs.coupled_runs import CoupledRuns
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control

pytestmark = pytest.mark.filterwarnings(
    "ignore:Secure RNG turned off", "ignore:Full backward hook", "ignore:Optimal order"
)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _drawn(seed: int) -> torch.Generator:
    return _seeded(int(torch.randint(2**62, ())))


def _loop(
    seeds_torch: bool,
    noise: Callable[[int], torch.Generator | None],
    batches: Callable[[int], torch.Generator | None] = lambda seed: None,
) -> Control:
    """A loop by Opacus with Poisson batches, whose generators are made from the run's seed."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> nn.Module:
        if seeds_torch:
            torch.manual_seed(seed)
        model = loops.mlp()
        data = TensorDataset(
            torch.from_numpy(records.features).float(), torch.from_numpy(records.labels)
        )
        engine = PrivacyEngine(accountant="rdp")
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=6, generator=batches(seed)),
            noise_multiplier=1.0,
            max_grad_norm=0.5,
            noise_generator=noise(seed),
        )
        watch(optimizer, private, engine)
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(features), labels).backward()
            optimizer.step()
        return private

    return Control(train)


@pytest.mark.parametrize(
    ("control", "repeats"),
    [
        (_loop(True, _seeded), "noise"),
        (_loop(True, lambda seed: None, _seeded), "batches"),
        (_loop(False, _seeded, _seeded), "noise"),
        # Without torch.manual_seed, the global generator has another seed than the run.
        (_loop(False, _seeded), ""),
        (_loop(True, _drawn), ""),
        (_loop(True, _drawn, _drawn), ""),
        (_loop(True, lambda seed: _seeded(seed + 1)), ""),
        (_loop(True, lambda seed: None), ""),
        (_loop(False, lambda seed: None, _seeded), ""),
    ],
)
def test_generators_with_one_seed_are_seen(control: Control, repeats: str) -> None:
    records = TrainingSet.of(control.data())
    assert CoupledRuns(control.train, None).run(records, 7).repeats == repeats


class _Unbound:
    """An object like a proxy, whose attributes cannot be read yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a context")


def test_variables_whose_attributes_raise_are_no_loaders() -> None:
    control = _loop(True, lambda seed: None, _seeded)

    def train(*arguments: Any) -> Any:
        proxy = _Unbound()
        return control.train(*arguments), proxy

    records = TrainingSet.of(control.data())
    assert CoupledRuns(train, None).run(records, 7).repeats == "batches"


@pytest.mark.slow
def test_noise_from_the_seed_of_the_initial_weights_is_found() -> None:
    found = [finding.kind for finding in report(_loop(True, _seeded)).findings]
    assert "seed of another generator" in found


@pytest.mark.parametrize("lag", [-7, 0, 12])
def test_noise_from_the_numbers_of_the_weights_is_found_at_any_place(lag: int) -> None:
    rng = np.random.default_rng(20 + lag)
    numbers = rng.normal(size=(12, 100))
    noise = 0.3 * rng.normal(size=(12, 4, 60))
    noise[:, 2] = 0.3 * numbers[:, 20 + lag : 80 + lag]
    (test,) = noise_from_weights(
        estimate_noise(noise, None, [slice(0, 25), slice(25, 60)], 1e-12),
        0.05 * numbers[:8, 20:70] + 1.0,
    )
    assert test.p_value < 1e-20
    assert (test.numbers["step"], test.numbers["lag"]) == (3, abs(lag))


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_infinite_and_huge_initial_numbers_hide_no_repeated_noise(factor: float) -> None:
    # A mask of attention is a buffer that holds -inf.
    rng = np.random.default_rng(22)
    numbers = rng.normal(size=(8, 3, 40))
    noise = estimate_noise(numbers, None, [slice(0, 40)], 1e-12)
    initial = factor * np.where(np.arange(40) % 4 == 0, -np.inf, numbers[:, 1])
    (test,) = noise_from_weights(noise, initial)
    assert test.p_value < 1e-10
    assert (test.numbers["step"], test.numbers["lag"]) == (2, 0)
    assert list(noise_from_weights(noise, np.full((8, 40), np.nan))) == []


def test_noise_that_is_independent_of_the_weights_is_not_accused() -> None:
    # 200 tests: the least p-value is below 1e-5 with probability at most 0.002.
    rng = np.random.default_rng(21)
    p_values = []
    for _ in range(200):
        noise = estimate_noise(rng.normal(size=(8, 3, 12)), None, [slice(0, 12)], 1e-12)
        weights = rng.standard_t(2, size=(8, 7))
        p_values += [test.p_value for test in noise_from_weights(noise, weights)]
    assert len(p_values) == 200
    assert min(p_values) > 1e-5
    same = noise_from_weights(noise, np.ones((8, 7)))
    assert list(same) == []


def _arrays(records: Any, candidate: Any, seed: int, watch: Any, own: bool = False) -> Any:
    """DP-SGD in numpy, whose initial weights and noise come from generators of one seed."""
    generator = np.random.default_rng(seed)
    params = watch.start(0.1 * generator.normal(size=4))
    watch.account(noise_multiplier=1.0, sampling_rate=1.0, steps=3)
    if not own:
        generator = np.random.default_rng(seed)
    for _ in range(3):
        each = records.features[:, :4] * (records.features[:, :4] @ params)[:, None]
        each /= np.maximum(1.0, np.linalg.norm(each, axis=1, keepdims=True))
        noisy = watch.step(each.sum(0) + generator.normal(size=4), params)
        params = params - 0.1 * noisy
    return params


def test_one_seed_for_initial_weights_and_noise_is_found_in_loops_of_arrays() -> None:
    (finding,) = report(Control(_arrays)).findings
    assert finding.kind == "numbers of the weights"
    assert not report(Control(partial(_arrays, own=True))).broken


class _NormalLayer(nn.Linear):
    """A layer whose initial weights are all normal, as those of an embedding."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)


def _normal_layer() -> nn.Module:
    return _NormalLayer(8, 3)


def _seeded_model(records: Any, candidate: Any, seed: int, watch: Any, again: bool) -> Any:
    """A loop whose model is made from the run's seed, which may be set again before the noise."""
    torch.manual_seed(seed)
    set_again = (lambda state: torch.manual_seed(state.seed)) if again else loops.nothing
    return loops.Loop(model=_normal_layer, start=set_again, steps=3)(records, None, seed, watch)


@pytest.mark.slow
def test_torch_seeded_again_after_the_initial_weights_is_found() -> None:
    kinds = [found.kind for found in report(Control(partial(_seeded_model, again=True))).findings]
    assert kinds == ["numbers of the weights"]
    assert not report(Control(partial(_seeded_model, again=False))).broken
    # Weights that are drawn before the function seeds torch have numbers of their own.
    seeds = loops.Loop(model=_normal_layer, start=lambda s: torch.manual_seed(s.seed), steps=3)
    assert not report(Control(seeds)).broken
