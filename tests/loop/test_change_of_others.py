"""Records that change what other records contribute to a step of Opacus.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from benchmarks.training_loops import loops, sixth_torch

pytestmark = [pytest.mark.usefixtures("little_work"), pytest.mark.thorough]


def weighted(
    share_of: Callable[[Tensor], float], dropout: float = 0.0, clip: float = 0.5
) -> Callable[..., Any]:
    """A loop that weights the loss of a class by its share."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        data = TensorDataset(torch.from_numpy(records.features), torch.from_numpy(records.labels))
        module = nn.Sequential(*loops.mlp(), nn.Dropout(dropout))
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=8, shuffle=True),
            noise_multiplier=1.0,
            max_grad_norm=clip,
        )
        watch(optimizer, model, engine)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                losses = nn.functional.cross_entropy(model(x), y, reduction="none")
                share = share_of(y)
                (losses * torch.where(y == 0, 1 - share, share)).mean().backward()
                optimizer.step()
        return model

    return train


def share_of_batch(y: Tensor) -> float:
    return float((y == 0).double().mean().clamp(0.1, 0.9)) if len(y) else 0.5


@pytest.mark.full_work
@pytest.mark.parametrize(
    "clip", [5.0, *(pytest.param(clip, marks=pytest.mark.slow) for clip in (0.5, 2.0))]
)
def test_weights_of_classes_by_the_batch_are_found(clip: float) -> None:
    # With the largest threshold, no exchange changes a step by 2 C, but an absence by more than C.
    found = check_premises(weighted(share_of_batch, clip=clip), TrainingSet.of(loops.dense()))
    kinds = [finding.kind for finding in found.report.findings]
    assert kinds == ["others", "size"], str(found.report)
    # It exchanged two records with the same clipped gradient, which shows nothing.
    assert "orders its records" not in str(found.report)


@pytest.mark.slow
def test_a_function_that_sorts_its_records_is_not_accused() -> None:
    # An exchanged record moves the others to other batches.
    def train(records: Any, *others: Any) -> Any:
        order = np.argsort(records.labels, kind="stable")
        sorted_records = TrainingSet(records.features[order], records.labels[order])
        return weighted(lambda y: 0.3)(sorted_records, *others)

    found = check_premises(train, TrainingSet.of(loops.dense()))
    assert not found.report.broken, str(found.report)
    assert "orders its records" in str(found.report)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_public_weights_of_classes_are_not_accused(dropout: float) -> None:
    found = check_premises(weighted(lambda y: 0.3, dropout), TrainingSet.of(loops.dense()))
    assert not found.report.broken, str(found.report)


@pytest.mark.full_work
def test_a_softmax_over_the_batch_is_found_although_equal_records_have_no_gradient() -> None:
    """Copies of one record show neither noise nor batches."""
    records = TrainingSet.of(sixth_torch.sixty())
    report = check_premises(sixth_torch.softmax_over_records, records).report
    assert [finding.kind for finding in report.findings] == ["others"], str(report)
    assert "noise" not in report.tested


@pytest.mark.full_work
def test_rows_of_an_embedding_that_a_forward_pass_rescales_are_found() -> None:
    """Weights depend on the words of a batch; records with other labels and equal words do not."""
    records = TrainingSet.of(sixth_torch.words())
    report = check_premises(sixth_torch.max_norm_of_rows, records).report
    assert [finding.kind for finding in report.findings] == ["weights"], str(report)
