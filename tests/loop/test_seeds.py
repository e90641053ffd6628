"""Generators with one seed: noise or batches that repeat numbers that are drawn elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from premise_reports import report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from audit.loop import TrainingSet
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


def test_noise_from_the_seed_of_the_initial_weights_is_found() -> None:
    found = [finding.kind for finding in report(_loop(True, _seeded)).findings]
    assert "seed of another generator" in found


def test_the_bit_that_marks_the_seed_of_a_run_changes_no_number() -> None:
    from audit.loop.runs.training_runs import SEEDED_BY_TEST

    for seed in (0, 7, 2**32 - 1):
        numbers = [torch.rand(9, generator=_seeded(s)) for s in (seed, seed | SEEDED_BY_TEST)]
        assert torch.equal(*numbers)
