"""Networks as lists of layers: the interface of a layer, the conversion of a module, and all kinds.

A layer is created from an `nn.Module`. It provides both forms of its gradients: torch operations on
R runs (`Layer.forward`, `Layer.backward`) and a row in the table of the compiled extension
(`Layer.compile`). Each kind is registered with `@describes`.

Activations are [R, m, ...]: R runs, m records, any strides. The input of the first layer is the
same in every run and has no run dimension, [m, ...], so that one matrix product serves all runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd.parameters import (
    ExplicitGradients,
    KernelGradients,
    OuterProducts,
    Parameters,
    RecordGradients,
    flat,
)
from audit.dpsgd.products import affines, shared_affine
from audit.dpsgd.program import Program

Description = Callable[[Any], "list[Layer]"]
_Describe = TypeVar("_Describe", bound=Description)
_DESCRIPTIONS: dict[type[nn.Module], Description] = {}


class Layer(ABC):
    """One layer of R stacked models."""

    @property
    def parameters(self) -> int:
        """The number of parameter tensors."""
        return 0

    @abstractmethod
    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The output, [R, m, ...], and the values that `backward` needs."""

    @abstractmethod
    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """The gradient of the input and the per-record gradients, given that of the output."""

    def compile(self, program: Program) -> None:
        """Adds the layer to a compiled program; NotImplementedError if it has no such layer."""
        raise NotImplementedError(f"{type(self).__name__} in a compiled network")


class FirstLayer(Layer):
    """A layer whose input may be the records, which are the same in every run and step."""

    def prepare(self, features: Tensor) -> Tensor:
        """Records [m, ...] after the computations that all runs and steps share."""
        return features

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """`forward` for prepared records: shared, [m, ...], or per run, [R, m, ...]."""
        return self.forward(theta, x)


def describes(*kinds: type[nn.Module]) -> Callable[[_Describe], _Describe]:
    """Decorator that registers a function from a module to its layers.

    The function raises NotImplementedError for options that the layers do not support.
    """

    def register(describe: _Describe) -> _Describe:
        _DESCRIPTIONS.update(dict.fromkeys(kinds, describe))
        return describe

    return register


@dataclass(frozen=True)
class Network:
    """The layers before the first one with parameters (one module each), that one, and the rest."""

    before: tuple[Layer, ...]
    first_layer: FirstLayer
    after: tuple[Layer, ...]


def parse_network(model: nn.Module) -> Network:
    """The layers of a sequential model; NotImplementedError if unknown or if they share weights."""
    layers = [layer for module in sequence(model) for layer in _layers_of(module)]
    if sum(layer.parameters for layer in layers) != len(list(model.parameters())):
        raise NotImplementedError("parameters that several layers share")
    at = next((i for i, layer in enumerate(layers) if layer.parameters), 0)
    first_layer = layers[at] if layers else None
    if not isinstance(first_layer, FirstLayer):
        raise NotImplementedError(
            f"{type(first_layer).__name__} as the first layer with parameters"
        )
    return Network(tuple(layers[:at]), first_layer, tuple(layers[at + 1 :]))


def sequence(model: nn.Module) -> list[nn.Module]:
    """The modules of a nested `nn.Sequential`, in order; any other model as a single module."""
    if type(model) is nn.Sequential:
        return [part for child in model for part in sequence(child)]
    return [model]


def _layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module from torch.nn; subclasses defined elsewhere may compute anything."""
    name = type(module).__name__
    if not type(module).__module__.startswith("torch.nn.modules."):
        raise NotImplementedError(f"{name}, which is not from torch.nn")
    if any(not p.requires_grad for p in module.parameters()):
        raise NotImplementedError(f"{name} with parameters that are not trained")
    for kind in type(module).__mro__:
        if kind in _DESCRIPTIONS:
            return _DESCRIPTIONS[kind](module)
    raise NotImplementedError(name)


@dataclass(frozen=True)
class Linear(FirstLayer):
    """X W^T + b on [m, inputs]."""

    inputs: int
    outputs: int
    has_bias: bool

    @property
    def parameters(self) -> int:
        return 1 + self.has_bias

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        if x.dim() > 3:
            raise NotImplementedError("Linear on more than one position per record")
        weight, bias = theta[0], theta[1] if self.has_bias else None
        if x.dim() == 2:
            return shared_affine(x, weight, bias), x
        return affines(x, weight, bias), x

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        back = delta @ theta[0] if need_input else None
        return back, OuterProducts(delta, saved, self.has_bias)

    def compile(self, program: Program) -> None:
        """Adds a row with one position that spans all inputs; records act as positions."""
        feature_map = program.feature_map
        shape = (self.outputs, program.channels, feature_map.height, feature_map.width)
        if not program.is_flat or program.is_at_records:
            raise NotImplementedError("Linear before Flatten or as the first layer")
        if self.inputs != shape[1] * shape[2] * shape[3]:
            raise NotImplementedError("a Linear layer whose inputs are not the feature map")
        program.add_affine(
            shape,
            self.has_bias,
            starts=[record * program.size for record in range(program.records_together)],
            positions=(1, 1),
            is_linear=1,
            rows=1,
            run=program.size,
        )


@describes(nn.Linear)
def _linear(module: nn.Linear) -> list[Layer]:
    return [Linear(module.in_features, module.out_features, module.bias is not None)]


@dataclass(frozen=True)
class Convolution(FirstLayer):
    """A convolution as a matrix product over patches, with explicit per-record gradients.

    These are small compared with the activations, and cheaper than norms from the patches' Gram
    matrices. Sizes are vertical and horizontal. `padding` has the zeros to the left, right, top and
    bottom; "same" padding may be asymmetric.
    """

    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    has_bias: bool

    @property
    def parameters(self) -> int:
        return 1 + self.has_bias

    def prepare(self, features: Tensor) -> Tensor:
        """The patches of [m, c, h, w], as [m, height, width, kh * kw * c]."""
        return self._patches(features).contiguous()

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        y, (patches, weight, _) = self.forward_prepared(theta, self._patches(x))
        return y, (patches, weight, tuple(x.shape))

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        weight, bias = flat(theta[0]), theta[1] if self.has_bias else None
        weight = weight.view(*theta[0].shape[:2], -1)  # [R, outputs, kh * kw * c]
        if x.dim() == 4:
            y = shared_affine(x.flatten(0, 2), weight, bias)
        else:
            y = affines(x.flatten(1, 3), weight, bias)
        y = y.view(len(y), *x.shape[-4:-1], -1).permute(0, 1, 4, 2, 3)
        return y, (x, weight, ())

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        patches, weight, shape = saved
        runs, records, outputs = delta.shape[:3]
        size = patches.shape[-1]
        rows = delta.flatten(3).transpose(2, 3)  # [R, m, positions, outputs]
        if patches.dim() == 4:
            by_record = rows.permute(1, 0, 3, 2).reshape(records, runs * outputs, -1)
            gradient = affines(by_record, patches.flatten(1, 2).transpose(1, 2))
            gradient = gradient.view(records, runs, outputs, size).transpose(0, 1)
        else:
            gradient = rows.transpose(2, 3) @ patches.reshape(runs, records, -1, size)
        gradients = [gradient, rows.sum(2)] if self.has_bias else [gradient]
        back = None
        if need_input:
            columns = rows.reshape(runs, -1, outputs) @ weight
            back = self._scatter(columns.view(*patches.shape), shape)
        return back, KernelGradients(gradients, theta[0].shape[1:])

    def _patches(self, x: Tensor) -> Tensor:
        """The patches of [..., c, h, w], as [..., height, width, kh * kw * c]."""
        x = functional.pad(x, self.padding) if any(self.padding) else x
        (kh, kw), (sh, sw) = self.kernel, self.stride
        *lead, channels, h, w = x.shape
        height, width = self._output(h, w)
        *outer, c_step, h_step, w_step = x.stride()
        windows = x.as_strided(
            (*lead, height, width, kh, kw, channels),
            (*outer, sh * h_step, sw * w_step, h_step, w_step, c_step),
        )
        return windows.reshape(*lead, height, width, kh * kw * channels)

    def _output(self, height: int, width: int) -> tuple[int, int]:
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return (height - kh) // sh + 1, (width - kw) // sw + 1

    def _scatter(self, columns: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The adjoint of `_patches`.

        The kernel is split into parts of the size of the stride. The patches of one part do not
        overlap, so that each part needs one addition.
        """
        (kh, kw), (sh, sw) = self.kernel, self.stride
        runs, records, channels, h, w = shape
        left, _, top, _ = self.padding
        height, width = columns.shape[2:4]
        columns = columns.view(runs, records, height, width, kh, kw, channels)
        rows = max(h + top, sh * (height + (kh - 1) // sh))
        across = max(w + left, sw * (width + (kw - 1) // sw))
        back = columns.new_zeros(runs, records, rows, across, channels)
        for i in range(0, kh, sh):
            for j in range(0, kw, sw):
                part = columns[:, :, :, :, i : i + sh, j : j + sw]
                tiles = back[:, :, i : i + sh * height, j : j + sw * width]
                tiles = tiles.view(runs, records, height, sh, width, sw, channels).transpose(3, 4)
                tiles[:, :, :, :, : part.shape[4], : part.shape[5]].add_(part)
        return back[:, :, top : top + h, left : left + w].permute(0, 1, 4, 2, 3)

    def compile(self, program: Program) -> None:
        """Adds a row with one position per kernel placement, and one span of inputs per row."""
        if program.is_flat:
            raise NotImplementedError("Convolution after Flatten")
        program.pad(self.padding)
        feature_map = program.feature_map
        (kh, kw), (sh, sw) = self.kernel, self.stride
        height, width = self._output(feature_map.height, feature_map.width)
        line = feature_map.width * feature_map.channels
        program.add_affine(
            (self.outputs, program.channels, kh, kw),
            self.has_bias,
            starts=[
                y * sh * line + x * sw * feature_map.channels
                for y in range(height)
                for x in range(width)
            ],
            positions=(height, width),
            rows=kh,
            run=kw * feature_map.channels,
            stride=line,
        )


@describes(nn.Conv2d)
def _convolution(module: nn.Conv2d) -> list[Layer]:
    if module.groups != 1 or module.dilation != (1, 1) or module.padding_mode != "zeros":
        raise NotImplementedError("a convolution with groups, dilation or nonzero padding")
    left, right, top, bottom = module._reversed_padding_repeated_twice
    (kh, kw), (sh, sw) = module.kernel_size, module.stride
    return [
        Convolution(
            module.out_channels,
            (kh, kw),
            (sh, sw),
            (left, right, top, bottom),
            module.bias is not None,
        )
    ]


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
