"""Layers without parameters: functions differentiated by autograd, ReLU and Flatten."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from audit.dpsgd.layers.base import Layer, describes
from audit.dpsgd.parameters import Parameters, RecordGradients
from audit.dpsgd.program import Program


@dataclass(frozen=True)
class Function(Layer):
    """A function of [R, m, ...] that treats every record independently."""

    function: Callable[[Tensor], Tensor]

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.function(x)
        return y.detach(), (x, y)

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        if not need_input:
            return None, None
        x, y = saved
        return torch.autograd.grad(y, x, delta)[0], None


@dataclass(frozen=True)
class Relu(Layer):
    """`nn.ReLU`."""

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        y = torch.relu(x)
        return y, y

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        return torch.ops.aten.threshold_backward(delta, saved, 0), None

    def compile(self, program: Program) -> None:
        """Adds a row that works in place, forward and backward."""
        if program.is_at_records:
            raise NotImplementedError("Relu as the first layer of a compiled network")
        program.add("relu", program.size)


@describes(nn.ReLU)
def _relu(module: nn.ReLU) -> list[Layer]:
    return [Relu()]


@describes(
    nn.Tanh, nn.GELU, nn.Sigmoid, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity
)  # fmt: skip
def _pointwise(module: nn.Module) -> list[Layer]:
    if getattr(module, "inplace", False):
        raise NotImplementedError(f"{type(module).__name__} in place")
    return [Function(module)]


def _rows(x: Tensor) -> Tensor:
    return x.flatten(2)


@dataclass(frozen=True)
class Flatten(Function):
    """Flattens every record."""

    function: Callable[[Tensor], Tensor] = _rows

    def compile(self, program: Program) -> None:
        """Adds nothing: the next layer's weights use the layout of the feature map."""
        program.is_flat = True


@describes(nn.Flatten)
def _flatten(module: nn.Flatten) -> list[Layer]:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise NotImplementedError("Flatten of only some dimensions")
    return [Flatten()]
