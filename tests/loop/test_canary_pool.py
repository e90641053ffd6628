"""Canaries that a search finds, compared with known optima."""

import numpy as np
import pytest
import torch
from torch import nn

from audit.loop import TrainingSet
from audit.loop.premises.canary_pool import (
    PoolRecord,
    canary_pool,
    extreme_gradient,
    gradient_of,
    halfway,
    records_of_many_lengths,
)


class Saturating(nn.Module):
    """tanh(w . x), whose gradient by w is (1 - tanh(w . x)^2) x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


def output(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return model(x).sum()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_a_long_gradient_is_found_where_large_records_saturate(seed: int) -> None:
    # A record of norm r that is orthogonal to w has a gradient of norm r, the largest possible.
    # Multiples of the record that the search starts from reach 0.45 / (|w| |cos(x, w)|) at most.
    features = np.random.default_rng(seed).normal(size=4).astype(np.float32)
    model, start = Saturating(), PoolRecord(features, 0, 1.0, "own")
    reachable = 1000 * max(np.linalg.norm(features), 1.0)
    found = extreme_gradient(model, output, start, list(model.parameters()))
    assert found is not None
    length = float(gradient_of(model, output, found, list(model.parameters())).norm())
    assert 100 < length <= np.linalg.norm(found.features) * (1 + 1e-6) <= reachable * (1 + 1e-5)


def test_a_model_that_raises_an_error_has_no_long_gradient() -> None:
    start = PoolRecord(np.ones(5, np.float32), 0, 1.0, "own")
    model = Saturating()
    assert extreme_gradient(model, output, start, list(model.parameters())) is None


@pytest.mark.parametrize("seed", range(2))
def test_a_short_gradient_is_found(seed: int) -> None:
    # A large record along w saturates, and zeros have no gradient.
    features = np.random.default_rng(seed).normal(size=4).astype(np.float32)
    model, start = Saturating(), PoolRecord(features, 0, 1.0, "own")
    parameters = list(model.parameters())
    shortest = extreme_gradient(model, output, start, parameters, longest=False)
    assert shortest is not None
    lengths = [float(gradient_of(model, output, r, parameters).norm()) for r in (shortest, start)]
    assert lengths[0] < 0.02 * lengths[1]


def test_the_largest_contribution_between_two_norms_is_approached() -> None:
    # Clipped by the squared norm, a gradient of norm r contributes min(r, C / r), at most C^(1/2).
    threshold = 0.3
    corners = [PoolRecord(np.array([r]), 0, 1.0, "own") for r in (0.0, 7.0, 900.0)]
    way = records_of_many_lengths(corners, lambda features: float(features[0]))

    def contribution(record: PoolRecord) -> float:
        return min(float(record.features[0]), threshold / max(float(record.features[0]), 1e-9))

    for _ in range(6):
        way.sort(key=lambda record: record.position)
        best = int(np.argmax([contribution(record) for record in way]))
        way += [halfway(way[best], way[i]) for i in (best - 1, best + 1) if 0 <= i < len(way)]
    assert max(map(contribution, way)) == pytest.approx(threshold**0.5, rel=0.01)
    assert len({record.family for record in way}) == 1


@pytest.mark.parametrize("is_first", [False, True])
def test_a_filler_of_short_sequences_stays_at_their_end(is_first: bool) -> None:
    random = np.random.default_rng(0)
    features = random.integers(1, 9, size=(12, 5))
    lengths = random.integers(2, 6, size=12)
    features[np.arange(5) >= lengths[:, None]] = 0
    features = features[:, ::-1] if is_first else features
    pool = canary_pool(TrainingSet(features, np.arange(12) % 2), None)
    texts = np.stack([record.features for record in pool])
    texts = texts[:, ::-1] if is_first else texts
    fills = texts == 0
    assert (fills[:, 1:] >= fills[:, :-1]).all()
    assert fills.any(axis=1).sum() > len(texts) / 4
    # A token between others is none.
    features[0] = [3, 0, 4, 1, 2]
    pool = canary_pool(TrainingSet(features, np.arange(12) % 2), None)
    fills = np.stack([record.features for record in pool]) == 0
    assert not (fills[:, 1:] >= fills[:, :-1]).all()
    assert not (fills[:, 1:] <= fills[:, :-1]).all()
