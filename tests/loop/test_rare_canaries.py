"""Mistakes that only rare records show: short gradients, records that decide on the use of others.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import warnings

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from premise_reports import report
from torch import Tensor, nn

from audit.loop.premises.forced_releases import _p_value
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.fourth_turn import FOURTH_TURN
from benchmarks.training_loops.further import FURTHER
from benchmarks.training_loops.loops import Loop


def in_public_range(state: object, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves records out by a rule on each of them alone."""
    inside = x.abs().amax(dim=1) < 6.0
    return x[inside], y[inside]


@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("clipped by the squared norm", "size"),
        ("records far from the mean removed, Poisson", "use of others"),
        ("averaged weights weighted by batch sizes", "random released number"),
        ("a batch with a long gradient is skipped, Poisson", "number of steps"),
    ],
)
def test_a_mistake_is_found_with_any_seed(name: str, kind: str, seed: int) -> None:
    found = report((FURTHER | FOURTH_TURN)[name], seed=seed)
    assert kind in [finding.kind for finding in found.findings], str(found)


@pytest.mark.usefixtures("little_work")
def test_a_public_range_decides_on_each_record_alone() -> None:
    found = report(Control(Loop(prepare=in_public_range, sampling_rate=0.3, steps=8)))
    assert not found.broken, str(found)


def test_opacus_counts_padding_in_the_gradient_of_an_embedding() -> None:
    # Torch itself leaves padding out, so that a model seems to ignore it.
    layer = nn.Embedding(5, 2, padding_idx=0)
    texts = torch.tensor([[1, 2, 0, 0], [3, 4, 1, 2]])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook")
        GradSampleModule(layer, loss_reduction="sum")(texts).sum().backward()
    gradient, each = layer.weight.grad, layer.weight.grad_sample
    assert gradient is not None
    assert gradient[0].tolist() == [0.0, 0.0]
    assert each[:, 0].tolist() == [[2.0, 2.0], [0.0, 0.0]]


@pytest.mark.slow
def test_padding_up_to_the_longest_text_is_found_and_a_mask_is_not() -> None:
    fifth = pytest.importorskip(
        "benchmarks.training_loops.fifth_turn", reason="JAX, optax or jax_privacy is not installed"
    )
    broken = fifth.FIFTH_TURN["Opacus, padding_idx of an embedding, cut to the longest text"]
    correct = fifth.FIFTH_TURN_CORRECT["Opacus, mean over tokens, cut to the longest text"]
    assert report(broken).findings[0].kind == "others"
    assert not report(correct).broken


def test_distances_show_another_spread_and_stay_exact() -> None:
    # Samples of one distribution are rejected at .01 with probability at most .02 for both tests:
    # of 400, more than 18 would be an error of probability 1e-3.
    random = np.random.default_rng(0)
    rejected = 0
    for _ in range(400):
        samples = [[random.standard_cauchy(3) for _ in range(16)] for _ in range(2)]
        rejected += _p_value(samples) <= 0.01
    assert rejected <= 18
    wider = [[scale * random.normal(size=4) for _ in range(40)] for scale in (1.0, 4.0)]
    assert _p_value(wider) < 1e-9
