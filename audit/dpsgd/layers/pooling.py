"""Pooling: `nn.MaxPool2d` and average pooling."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from audit.dpsgd.layers.base import Layer, describes
from audit.dpsgd.layers.functions import Function
from audit.dpsgd.parameters import Parameters, RecordGradients
from audit.dpsgd.program import Program


@dataclass(frozen=True)
class MaxPool(Layer):
    """`nn.MaxPool2d`, which is several times faster if channels are last in memory.

    The fields are the arguments of torch's operator, in its order.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The maximum of every window; saves its position."""
        runs, channels = len(x), x.shape[2]
        # After a shared first layer, runs and channels are adjacent in memory. Pooling one image
        # with runs * channels channels avoids a copy.
        is_joined = x.stride(2) == 1 and x.stride(0) == channels
        x = _channels_last(x, is_joined)
        y, index = torch.ops.aten.max_pool2d_with_indices(x, *vars(self).values())
        return _runs_first(y, runs, is_joined), (x, index, is_joined)

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        x, index, is_joined = saved
        runs = len(delta)
        delta = _channels_last(delta, is_joined)
        back = torch.ops.aten.max_pool2d_with_indices_backward(
            delta, x, *vars(self).values(), index
        )
        return _runs_first(back, runs, is_joined), None

    def compile(self, program: Program) -> None:
        """Adds a row for windows that lie inside the feature map."""
        if program.is_at_records or program.is_flat:
            raise NotImplementedError("MaxPool as the first layer or after Flatten")
        if self.padding != (0, 0) or self.dilation != (1, 1) or self.ceil_mode:
            raise NotImplementedError("a pooling with padding, dilation or ceil_mode")
        feature_map = program.feature_map
        program.add_resizing(
            "max_pool",
            (feature_map.height - self.kernel[0]) // self.stride[0] + 1,
            (feature_map.width - self.kernel[1]) // self.stride[1] + 1,
            kernel_height=self.kernel[0],
            kernel_width=self.kernel[1],
            stride_height=self.stride[0],
            stride_width=self.stride[1],
        )


def _channels_last(x: Tensor, is_joined: bool) -> Tensor:
    """[R, m, c, h, w] as [m, R * c, h, w] where joined, else [R * m, c, h, w], channels last."""
    x = x.permute(1, 3, 4, 0, 2) if is_joined else x.permute(0, 1, 3, 4, 2)
    height, width = (x.shape[1], x.shape[2]) if is_joined else (x.shape[2], x.shape[3])
    across = x.shape[3] * x.shape[4] if is_joined else x.shape[4]
    # Reshaping to rows first gives even a single image the strides that torch recognises as
    # channels last.
    return x.reshape(-1, width, across).view(-1, height, width, across).permute(0, 3, 1, 2)


def _runs_first(x: Tensor, runs: int, is_joined: bool) -> Tensor:
    if is_joined:
        return x.view(len(x), runs, -1, *x.shape[2:]).transpose(0, 1)
    return x.view(runs, -1, *x.shape[1:])


def _pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    height, width = size if isinstance(size, tuple) else (size, size)
    return height, width


@describes(nn.MaxPool2d)
def _max_pool(module: nn.MaxPool2d) -> list[Layer]:
    if module.return_indices:
        raise NotImplementedError("MaxPool2d with return_indices")
    sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
    kernel, stride, padding, dilation = (_pair(size) for size in sizes)
    return [MaxPool(kernel, stride, padding, dilation, module.ceil_mode)]


@describes(nn.AvgPool2d, nn.AdaptiveAvgPool2d)
def _mean(module: nn.Module) -> list[Layer]:
    return [Function(lambda x: module(x.flatten(0, 1)).unflatten(0, x.shape[:2]))]
