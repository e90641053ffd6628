"""Other ways to take a step of DP-SGD, each as people use it: full batches, one run at a time.

None keeps proxies or scores, which the engines do as they go.
"""

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable

import torch
from opacus.grad_sample import (
    GradSampleModule,
    GradSampleModuleExpandedWeights,
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

PEERS = ("opacus", "weights", "ghost", "fastdp", "sgd")
"""Opacus by hooks, which is its default; by expanded weights; by ghost clipping; book-keeping by
fastDP; no privacy."""
PRIVATE = PEERS[:4]

Step = Callable[[], None]
_OPTIONS = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "expected_batch_size": None,
    "loss_reduction": "sum",
}


def why_missing(peer: str) -> str | None:
    """Why a peer cannot be measured here; None where it can."""
    if peer == "fastdp" and importlib.util.find_spec("fastDP") is None:
        return "fastDP is not installed (github.com/awslabs/fast-differential-privacy)"
    return None


def step(peer: str, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """One step of training on all of the records.

    Args:
        peer: one of PEERS.
        model: trained in place.
        x: [n, ...] records.
        y: [n] classes.

    Raises:
        ImportError: fastDP where it is not installed.
    """
    # Without a gradient by the input, torch warns of what Opacus's hooks see: harmless.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    trained: nn.Module = model
    optimizer: torch.optim.Optimizer = plain
    if peer == "opacus":
        trained = GradSampleModule(model, loss_reduction="sum")
        optimizer = DPOptimizer(plain, **_OPTIONS)
    elif peer == "weights":
        trained = GradSampleModuleExpandedWeights(model, loss_reduction="sum")
        optimizer = DPOptimizer(plain, **_OPTIONS)
    elif peer == "ghost":
        trained = GradSampleModuleFastGradientClipping(
            model, loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(plain, **_OPTIONS)
        criterion = DPLossFastGradientClipping(trained, optimizer, criterion, "sum")
    elif peer == "fastdp":
        from fastDP import PrivacyEngine

        warnings.filterwarnings("ignore", message="Using a non-full backward hook")
        with contextlib.redirect_stdout(io.StringIO()):
            engine = PrivacyEngine(
                model, batch_size=len(x), sample_size=len(x), num_steps=1, noise_multiplier=1.0,
                max_grad_norm=1.0, clipping_mode="MixOpt", clipping_fn="Abadi",
                loss_reduction="sum",
            )  # fmt: skip
        engine.attach(optimizer)

    def take() -> None:
        optimizer.zero_grad()
        criterion(trained(x), y).backward()
        optimizer.step()

    return take
