"""Canaries that a search finds, compared with known optima."""

import numpy as np
import pytest
import torch
from torch import nn

from audit.loop.premises.canary_pool import PoolRecord, extreme_gradient, gradient_of


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
