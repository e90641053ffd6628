"""Records that displace others in a Poisson sample of Opacus, which exchanges alone cannot show.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.opacus_objects import left_out_of_samples
from benchmarks.training_loops import loops

slow = pytest.mark.slow


def selecting(select: Callable[[Tensor], Tensor], dropout: float = 0.0) -> Callable[..., Any]:
    """A loop by Opacus that trains a part of each batch, given the losses of its records."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        data = TensorDataset(torch.from_numpy(records.features), torch.from_numpy(records.labels))
        module = nn.Sequential(*loops.mlp(), nn.Dropout(dropout))
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=0.5,
            loss_reduction="sum",
        )
        watch(optimizer, model, engine)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                losses = nn.functional.cross_entropy(model(x), y, reduction="none")
                select(losses).sum().backward()
                optimizer.step()
        return model

    return train


def hardest_four(losses: Tensor) -> Tensor:
    return losses.topk(min(4, len(losses))).values


def above_a_constant(losses: Tensor) -> Tensor:
    return losses * (losses.detach() > 0.5)


def report_of(train: Callable[..., Any]) -> Any:
    return check_premises(train, TrainingSet.of(loops.dense())).report


@pytest.mark.thorough
@pytest.mark.usefixtures("little_work")
def test_records_that_displace_others_are_found() -> None:
    report = report_of(selecting(hardest_four))
    assert "contribution" in [finding.premise for finding in report.findings], str(report)
    assert report.measured["effective noise multiplier"] < 0.85


@pytest.mark.thorough
@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("dropout", [0.0, pytest.param(0.3, marks=slow)])
def test_a_choice_by_the_loss_of_each_record_is_correct(dropout: float) -> None:
    report = report_of(selecting(above_a_constant, dropout))
    assert not report.broken, str(report)


def test_a_record_left_out_changes_no_other_draw() -> None:
    sampler = UniformWithReplacementSampler(num_samples=6, sample_rate=0.5, steps=40)

    def samples(place: int | None) -> list[list[int]]:
        torch.manual_seed(0)
        with left_out_of_samples(place):
            return list(sampler)

    usual = samples(None)
    assert any(5 in indices for indices in usual)
    for place in (-1, 5):
        assert samples(place) == [[i for i in indices if i != 5] for indices in usual]
    assert samples(None) == usual
