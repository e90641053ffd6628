"""The residual statistic against the closed form of its distribution."""

import math
import os
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import RDPAccountant

from audit import check
from audit.loop.attack.attack import Attack, _jobs_that_pay
from audit.loop.attack.residuals import Residuals
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import AuditTask
from audit.repetitions import Fixed

STEPS, SIGMA = 12, 4.0
MU = math.sqrt(STEPS) / SIGMA
DATA = TrainingSet(np.random.default_rng(1).normal(size=(150, 6)), np.zeros(150))
CANARY = TrainingSet(np.full((1, 6), 50.0), np.zeros(1))
RATE_ONE = 1.0


def pull(records: Any, candidate: Any, seed: int, watch: Any, rate: float = RATE_ONE) -> Any:
    """Pulls weights towards every record, by at most 1: the records' sum changes at each step."""
    weights = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=0.02)
    accountant = RDPAccountant()
    watch(optimizer, torch.nn.ParameterList([weights]), accountant)
    x = torch.from_numpy(records.features)
    for _ in range(STEPS):
        each = weights.detach() - x
        each = each / each.norm(dim=1, keepdim=True).clamp(min=1.0)
        weights.grad = each.sum(0) + SIGMA * torch.randn(6, dtype=torch.float64)
        accountant.step(noise_multiplier=SIGMA, sample_rate=rate)
        optimizer.step()
    return weights.detach().numpy().copy()


def of(train: Any) -> Residuals | None:
    initial = {"optimizer 0": torch.zeros(6, dtype=torch.float64)}
    return Residuals.of(train, None, DATA, CANARY, initial, 0)


def task(train: Any) -> AuditTask:
    initial = {"optimizer 0": torch.zeros(6, dtype=torch.float64)}
    return AuditTask(train, DATA, CANARY, None, None, 1e-5, initial)


def auc(zeros: np.ndarray, ones: np.ndarray) -> float:
    return float((ones[:, None] > zeros[None]).mean())


def squared_norm(model: Any, features: Any, labels: Any) -> Any:
    (weights,) = model
    return 0.5 * (weights - features).square().sum()


@pytest.mark.slow
def test_it_is_the_likelihood_ratio_of_a_gaussian_mechanism() -> None:
    """N(-mu^2/2, mu^2) without the record and N(mu^2/2, mu^2) with it; 4 standard errors."""
    from dataclasses import replace

    attack = Attack(replace(task(pull), loss=squared_norm), Fixed(1), (None,), 0)
    runs = attack.with_residuals(160, 0.0).play_all(160, 1)
    zeros, ones = (np.array([run.residual[0] for run in runs[side::2]]) for side in (0, 1))
    error = MU * math.sqrt(2 / len(zeros))
    assert abs(ones.mean() - zeros.mean() - MU**2) < 4 * error
    spread = math.sqrt((zeros.var() + ones.var()) / 2)
    assert abs(spread / MU - 1) < 4 / math.sqrt(4 * len(zeros)) + 1 / 32  # 1/32: the offset's noise
    # The mean inner product with the released gradients loses most of it to the other records.
    plain = [np.array([run.lambda_a[0] for run in runs[side::2]]) for side in (0, 1)]
    truth = 0.5 * (1 + math.erf(MU / 2))  # of the mechanism: 0.73
    assert abs(auc(zeros, ones) - truth) < 0.1
    assert auc(*plain) < 0.62


@pytest.mark.slow
def test_check_uses_it_for_full_batches_and_stays_below_the_claim() -> None:
    result = check(pull, DATA, trials=120, loss=squared_norm, relation="zero-out")
    assert "residual" in result.bounds
    assert result
    assert result.bounds[result.shown_by].epsilon <= result.claim
    assert result.shown_by.startswith("residual")


def test_where_it_does_not_apply_it_is_left_out() -> None:
    def sampled(*arguments: Any) -> Any:
        return pull(*arguments, rate=0.5)

    def failing(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        raise ValueError("no training today")

    assert of(pull) is not None
    assert of(sampled) is None
    assert of(failing) is None
    assert Attack(task(pull), Fixed(1), (None,), 0).with_residuals(None, 101.0).residuals is None
    assert Attack(task(pull), Fixed(2), (None,), 0).with_residuals(10, 0.0).residuals is None


def test_a_released_number_reaches_the_runs_that_are_forced() -> None:
    """The threshold that a run released is that of the adversary's runs, too."""
    seen = []

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        def release() -> float:
            value: float = watch.release(float(np.random.default_rng(seed).normal()))
            return value

        weights = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        accountant = RDPAccountant()
        watch(optimizer, accountant)
        seen.append(release())
        weights.grad = len(records) + torch.randn(1)
        accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        optimizer.step()

    initial = {"optimizer 0": torch.zeros(1)}
    residuals = Residuals.of(train, None, DATA, CANARY, initial, 0)
    assert residuals is not None
    recorder = residuals.recorder()
    train(DATA, None, 123, recorder)
    residuals.statistic(recorder.recorded)
    assert seen[-1] == seen[-2] == seen[-3]


def test_it_is_left_out_where_one_generator_draws_batches_and_noise() -> None:
    def with_sampler(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        torch.rand(len(records))  # Poisson sampling at rate 1, by the generator of the noise
        return pull(records, candidate, seed, watch)

    def separate(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        torch.rand(len(records), generator=torch.Generator().manual_seed(seed))
        return pull(records, candidate, seed, watch)

    assert of(with_sampler) is None
    assert of(separate) is not None


@pytest.mark.parametrize(
    ("load", "work", "jobs"),
    [
        (1.0, 1000.0, 2),  # 10 + 500 s by two workers
        (1.0, 15.0, 1),  # 10 + 15 / 2 s by workers
        (6.0, 1000.0, 1),  # no core is idle
    ],
)
def test_workers_start_only_where_they_save_time(
    monkeypatch: pytest.MonkeyPatch, load: float, work: float, jobs: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert _jobs_that_pay(work) == jobs
