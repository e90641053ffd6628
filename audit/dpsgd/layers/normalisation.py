"""`nn.LayerNorm` and `nn.GroupNorm`: a function without parameters, then a gain and a bias."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd.layers.base import Layer, describes
from audit.dpsgd.layers.functions import Function
from audit.dpsgd.parameters import ExplicitGradients, Parameters, RecordGradients


@dataclass(frozen=True)
class Gain(Layer):
    """Gain * x + bias, per channel or on the last dimensions of a record."""

    has_bias: bool
    per_channel: bool

    @property
    def parameters(self) -> int:
        return 1 + self.has_bias

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        gain = self._spread(theta[0], x)
        y = x * gain
        return (y + self._spread(theta[1], x) if self.has_bias else y), x

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """The gradient of the input; per-record gradients sum over positions."""
        terms = [delta * saved, delta] if self.has_bias else [delta * saved]
        shape = theta[0].shape[1:]
        if self.per_channel:
            gradients = [term.flatten(3).sum(3) if term.dim() > 3 else term for term in terms]
        else:
            lead = delta.shape[:2]
            gradients = [term.reshape(*lead, -1, *shape).sum(2) for term in terms]
        back = delta * self._spread(theta[0], delta) if need_input else None
        return back, ExplicitGradients(gradients)

    def _spread(self, parameter: Tensor, x: Tensor) -> Tensor:
        """The parameter, [R, ...], reshaped to broadcast with [R, m, ...]."""
        if self.per_channel:
            return parameter.view(len(parameter), 1, -1, *[1] * (x.dim() - 3))
        ones = [1] * (x.dim() - parameter.dim())
        return parameter.view(len(parameter), *ones, *parameter.shape[1:])


@describes(nn.LayerNorm)
def _layer_norm(module: nn.LayerNorm) -> list[Layer]:
    normalise = Function(
        lambda x: functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    )
    return [normalise, *_gain(module, per_channel=False)]


@describes(nn.GroupNorm)
def _group_norm(module: nn.GroupNorm) -> list[Layer]:
    normalise = Function(
        lambda x: functional.group_norm(x.flatten(0, 1), module.num_groups, eps=module.eps).view(
            x.shape
        )
    )
    return [normalise, *_gain(module, per_channel=True)]


def _gain(module: nn.LayerNorm | nn.GroupNorm, per_channel: bool) -> list[Layer]:
    if not list(module.parameters()):
        return []
    return [Gain(module.bias is not None, per_channel)]
