"""The differential test of loops that train on a GPU; a fake GPU detects tensors on the CPU.

`test_runs_on_a_gpu_are_coupled` needs a real GPU and is skipped without one.
"""

import contextlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from opacus.accountants import RDPAccountant

from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.records import TrainingSet
from audit.user_code import global_seed, seeded_generators
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


def test_a_gpu_is_seeded_before_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the first run, which starts CUDA, draws other noise than its repetition.
    seeds: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    with seeded_generators(global_seed(7)):
        assert seeds == [torch.initial_seed()]


_FIRST_CHECK = """
import numpy as np
import torch
from benchmarks.training_loops import loops
from test_on_gpu import loop_on
import audit

for noisy_biases in (True, False):
    report = audit.check(loop_on("cuda", noisy_biases), loops.dense(), trials=16, jobs=1)
    assert report.broken == (not noisy_biases), report
    assert "cannot be coupled" not in str(report), report
    assert ("`0.bias`, `2.bias` receive no noise" in str(report)) == (not noisy_biases), report
"""


@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no GPU")
def test_runs_on_a_gpu_are_coupled() -> None:
    # In a new process, whose first run starts CUDA.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _FIRST_CHECK]
    subprocess.run(command, check=True, timeout=300, env=environment)
