"""The differential test of loops that train on a GPU; a fake GPU detects tensors on the CPU."""

import contextlib
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from opacus.accountants import RDPAccountant

from audit.own_training.premises import check_premises
from audit.own_training.records import TrainingSet
from benchmarks.training_loops import loops

STEPS = 2


def loop_on(device: str, noisy_biases: bool) -> Any:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x = torch.from_numpy(records.features).to(device)
        y = torch.from_numpy(records.labels).to(device)
        model = loops.mlp().to(device)
        optimizer, accountant = torch.optim.Adam(model.parameters()), RDPAccountant()
        watch(optimizer, model, accountant)
        state = loops.State(model=model, clip=0.5)
        for _ in range(STEPS):
            total = loops.clipped_sum(state, loops.each_gradient(state, x, y))
            for parameter, gradient in zip(model.parameters(), total, strict=True):
                noise = torch.randn_like(gradient) * 0.5
                if gradient.dim() > 1 or noisy_biases:
                    gradient += noise
                parameter.grad = gradient / 10
            optimizer.step()
            accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        return model

    return train


@pytest.mark.slow
@pytest.mark.parametrize("noisy_biases", [False, True])
def test_loops_on_a_gpu_have_the_findings_of_the_cpu(
    noisy_biases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports, records = [], TrainingSet.of(loops.dense())
    for device in ("cpu", "cuda"):
        with FakeCuda(monkeypatch) if device == "cuda" else contextlib.nullcontext() as gpu:
            reports.append(check_premises(loop_on(device, noisy_biases), records).report)
    assert gpu is not None
    assert gpu.counts["launches"] > 1000
    assert str(reports[0]) == str(reports[1])
    assert reports[0].broken == (not noisy_biases)
    if not noisy_biases:
        assert "`0.bias`, `2.bias` receive no noise" in str(reports[0])
