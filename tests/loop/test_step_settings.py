"""Clipping thresholds and noise multipliers that depend on a record.

The values of coupled runs are compared exactly, so that no correct loop is accused by chance.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from benchmarks.training_loops import loops

pytestmark = pytest.mark.usefixtures("little_work")


def with_setting(change: Callable[[Any, Tensor], None]) -> Callable[..., Any]:
    """A loop that changes its optimizer before each step, given the loss of the batch."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        data = TensorDataset(torch.from_numpy(records.features), torch.from_numpy(records.labels))
        module, engine = loops.mlp(), PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        watch(optimizer, model, engine)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                change(optimizer, loss.detach())
                optimizer.step()
        return model

    return train


def threshold_by_loss(optimizer: Any, loss: Tensor) -> None:
    optimizer.max_grad_norm = 0.5 + float(torch.sigmoid(loss)) if loss.isfinite() else 1.0


def noise_by_loss(optimizer: Any, loss: Tensor) -> None:
    optimizer.noise_multiplier = 1.0 + (min(float(loss), 5.0) / 10 if loss.isfinite() else 0.0)


def by_schedule(optimizer: Any, loss: Tensor) -> None:
    optimizer.max_grad_norm *= 0.98
    optimizer.noise_multiplier *= 1.01


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (threshold_by_loss, "clipping threshold"),
        pytest.param(noise_by_loss, "noise multiplier", marks=pytest.mark.thorough),
    ],
)
def test_settings_that_follow_the_loss_are_found(change: Any, name: str) -> None:
    report = check_premises(with_setting(change), TrainingSet.of(loops.dense())).report
    messages = [finding.message for finding in report.findings if finding.kind == "step setting"]
    assert len(messages) == 1, str(report)
    assert name in messages[0]


@pytest.mark.thorough
def test_schedules_are_not_accused() -> None:
    report = check_premises(with_setting(by_schedule), TrainingSet.of(loops.dense())).report
    assert not report.broken, str(report)
