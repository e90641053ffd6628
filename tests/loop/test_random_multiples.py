"""A record's contribution that is a random multiple is not taken for one divided by the batch."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import RDPAccountant
from premise_reports import report

from audit.loop.premises.batches import batches_of, is_random_at_equal_sizes, poisson_tests
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.seventh_torch import RATE, SIGMA, drawn
from benchmarks.training_loops.sixth_torch import sixty
from benchmarks.training_loops.tenth_torch import preferences

N, PART = 60, 4


def weighted(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    divided: str = "",
    scale: float = 0.3,
    is_late: bool = False,
) -> Any:
    """Logistic regression whose loss has a random weight that each run draws, and does not release.

    Its gradients are clipped to 1, before a weight of at most 1 if it is late. A mistake divides
    their sum, or the noisy sum, by the size of the batch, or takes the means of parts of the batch,
    of which the last one may be incomplete.
    """
    x = torch.tensor(records.features[:, :6]) * scale
    signs = 2.0 * torch.tensor(records.labels > 0).float() - 1.0
    drawn_weight = float(torch.rand(()))
    weight = 3.0 if is_late else 0.3 + drawn_weight
    model = torch.nn.Linear(6, 1, bias=False)
    optimizer, accountant = torch.optim.SGD(model.parameters(), lr=0.1), RDPAccountant()
    watch(optimizer, model, accountant)
    for _ in range(6):
        taken = drawn(len(x))
        with torch.no_grad():
            margins = signs[taken] * model(x[taken])[:, 0]
            gradients = -weight * (signs[taken] * torch.sigmoid(-margins))[:, None] * x[taken]
            gradients *= (1.0 / gradients.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0)
            if is_late:
                gradients *= drawn_weight
            total = gradients.sum(0)
            if divided == "batch":
                total *= RATE * N / max(len(taken), 1)
            elif divided == "parts":
                parts = gradients.split(PART)
                total = sum((part.mean(0) for part in parts), torch.zeros(6))
        noisy = total + SIGMA * torch.randn(6)
        divisor = max(len(taken), 1) if divided == "noisy sum" else RATE * N
        model.weight.grad = noisy[None] / divisor
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("train", [preferences, weighted, partial(weighted, is_late=True)])
def test_a_random_weight_of_a_run_is_no_division(train: Any, seed: int) -> None:
    premises = report(Control(train, sixty), seed=seed)
    assert not premises.findings, str(premises)
    assert {"contribution", "noise", "batches"} <= {*premises.tested}


def test_a_division_is_found_within_runs_of_random_weights() -> None:
    train = partial(weighted, divided="noisy sum", is_late=True)
    findings = report(Control(train, sixty)).findings
    assert any("rank correlation" in finding.message for finding in findings)


@pytest.mark.parametrize(("divided", "scale"), [("batch", 0.3), ("batch", 0.01), ("parts", 0.3)])
def test_a_division_is_found_next_to_a_random_weight(divided: str, scale: float) -> None:
    premises = report(Control(partial(weighted, divided=divided, scale=scale), sixty))
    assert premises.findings, str(premises)
    assert premises.findings[0].premise == "contribution"


@pytest.mark.parametrize(
    ("length", "is_random"),
    [
        (lambda sizes, random: random.uniform(0.2, 1.0, sizes.shape), True),
        (lambda sizes, random: np.minimum(random.uniform(0.9, 9.0, sizes.shape), 1.0), True),
        (lambda sizes, random: 1.0 / sizes, False),
        (lambda sizes, random: np.minimum(12.0 / sizes, 1.0), False),
        (lambda sizes, random: 1.0 / random.integers(1, 4, sizes.shape), False),
        (lambda sizes, random: np.where(random.random(sizes.shape) < 0.2, 0.5, 1.0), False),
    ],
)
def test_lengths_at_equal_sizes(length: Any, is_random: bool) -> None:
    random = np.random.default_rng(0)
    sizes = random.binomial(24, 0.4, (80, 6)).clip(1).astype(float)
    lengths = length(sizes, random)
    single = np.where(random.random(sizes.shape) < 0.4, lengths, 0.0)[:, :, None]
    whole = (sizes * lengths)[:, :, None]
    batches = batches_of(0.0 * whole, whole, single, np.zeros(6))
    assert is_random_at_equal_sizes(whole, single, batches) is is_random


def test_contributions_of_either_direction_are_no_batch_sizes() -> None:
    random = np.random.default_rng(0)
    sizes = random.binomial(24, 0.4, (40, 3)).astype(float)
    included = random.random(sizes.shape) < 0.4
    turned, unknown = sizes * [1.0, -1.0, 1.0], sizes * [1.0, np.nan, 1.0]
    assert [*poisson_tests(turned, included, 24, [0.4] * 3)] == [
        *poisson_tests(unknown, included, 24, [0.4] * 3)
    ]
