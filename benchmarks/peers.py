"""A step of DP-SGD with other libraries in their usual form: full batches, one run at a time.

Unlike the engines, they do not accumulate proxies or scores.
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
"""Opacus with hooks (its default), with expanded weights and with ghost clipping; fastDP with
book-keeping; SGD without privacy."""
PRIVATE = PEERS[:4]

Step = Callable[[], None]
_OPTIONS = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "expected_batch_size": None,
    "loss_reduction": "sum",
}


def why_missing(peer: str) -> str | None:
    """The reason why a library cannot be measured here; None if it can."""
    if peer == "fastdp" and importlib.util.find_spec("fastDP") is None:
        return "fastDP is not installed (github.com/awslabs/fast-differential-privacy)"
    return None


def step(peer: str, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """A function that takes one training step of the model on all records, x [n, ...] and y [n].

    Raises:
        ImportError: fastDP is not installed.
    """
    # torch warns about Opacus's hooks because the input needs no gradient; harmless here.
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
