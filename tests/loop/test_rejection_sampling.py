"""A correct loop whose number of random draws depends on the record."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from benchmarks.training_loops import loops

pytestmark = [pytest.mark.usefixtures("little_work"), pytest.mark.thorough]


def augmented(record: Tensor) -> Tensor:
    """The record with noise that is drawn until the first feature is positive."""
    noisy = record + 0.5 * torch.randn_like(record)
    for _ in range(50):
        if noisy[0] > 0:
            break
        noisy = record + 0.5 * torch.randn_like(record)
    return noisy


def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    torch.manual_seed(seed)
    model = loops.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(optimizer, model)
    x, y = torch.as_tensor(records.features), torch.as_tensor(records.labels)
    for _ in range(6):
        total = [torch.zeros_like(p) for p in model.parameters()]
        batch = torch.rand(len(x)) < 0.25
        for record, label in zip(x[batch], y[batch], strict=True):
            model.zero_grad()
            nn.functional.cross_entropy(model(augmented(record)[None]), label[None]).backward()
            gradient = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            norm = torch.stack([g.square().sum() for g in gradient]).sum().sqrt()
            for tensor, g in zip(total, gradient, strict=True):
                tensor += g / norm.clamp(min=1.0)
        for p, tensor in zip(model.parameters(), total, strict=True):
            p.grad = (tensor + torch.randn_like(tensor)) / 6
        optimizer.step()
    watch.account(noise_multiplier=1.0, sampling_rate=0.25, steps=6)
    return model


def test_rejection_sampling_is_not_accused_and_noise_and_batches_are_stated_as_untested() -> None:
    report = check_premises(train, TrainingSet.of(loops.dense())).report
    assert not report.broken, str(report)
    assert "not tested: noise, batches" in str(report)
    assert "rejection sampling" in str(report)
