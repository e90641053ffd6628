"""Layers of R stacked models, with the gradients of single records kept as factors.

Activations are [R, m, ...]: R lanes, m records, any strides. The input of the first layer is the
same in every lane and has no lane dimension, [m, ...]; its work is then one matrix product for all
lanes. Each layer's `backward` gives per-record gradients in a form that knows their norms and
their weighted sum without ever being written out as [R, m, parameters] (book-keeping: Bu et al.
2023, "Differentially private optimization on large model at small cost").
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd.products import affine, affines

Parameters = list[Tensor]


def flat(parameter: Tensor) -> Tensor:
    """A parameter [R, ...] of R lanes as vectors [R, size].

    Kernels [R, outputs, c, kh, kw] are flattened with the channels last, as patches have them, so
    that nothing is copied where they lie so in memory (`shaped`).
    """
    return (parameter.permute(0, 1, 3, 4, 2) if parameter.dim() == 5 else parameter).flatten(1)


def shaped(vectors: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `flat`, without a copy; `shape` is that of one lane."""
    if len(shape) != 4:
        return vectors.view(len(vectors), *shape)
    outputs, channels, *kernel = shape
    return vectors.view(len(vectors), outputs, *kernel, channels).permute(0, 1, 4, 2, 3)


class RecordGradients(Protocol):
    """The gradients of m records in R lanes with respect to one layer's parameters."""

    @property
    def parameters(self) -> int:
        """How many parameter tensors these are the gradients of."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared l2 norms, [R, m]."""
        ...

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """sum_j factors[:, j] * gradient_j for factors [R, m]; one [R, ...] per parameter."""
        ...

    def inner(self, vectors: Parameters) -> Tensor:
        """<gradient, vectors> of a single record, [R]; vectors are one [R, size] per parameter."""
        ...

    def add_to(self, vectors: Parameters, factors: Tensor) -> None:
        """Adds factors [R, 1] * gradient of a single record to vectors [R, size], in place."""
        ...


class Layer(Protocol):
    """One layer of R stacked models."""

    parameters: int
    """How many parameter tensors it owns."""

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The output [R, m, ...], and what `backward` needs."""
        ...

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """From the loss's gradient by the output: that by the input, and those of the records."""
        ...


@dataclass
class Outer:
    """Gradients delta_j x_j^T of a weight, and delta_j of a bias."""

    delta: Tensor  # [R, m, outputs]
    x: Tensor  # [R, m, inputs], or [m, inputs] where all lanes share it
    has_bias: bool

    @property
    def parameters(self) -> int:
        """The weight and, if any, the bias."""
        return 1 + self.has_bias

    def squared_norms(self) -> Tensor:
        """|delta|^2 (|x|^2 + 1)."""
        sizes = self.x.square().sum(-1) + float(self.has_bias)
        return self.delta.square().sum(-1) * sizes

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """One matrix product for all lanes where they share the input."""
        delta = self.delta * factors[..., None]
        lanes, records, outputs = delta.shape
        if self.x.dim() == 3:
            weight = delta.transpose(1, 2) @ self.x
        elif records == 1:
            weight = delta.reshape(lanes, outputs, 1) * self.x
        else:
            flat = delta.transpose(0, 1).reshape(records, lanes * outputs)
            weight = affine(flat.T, self.x.T).view(lanes, outputs, -1)
        return [weight, delta.sum(1)] if self.has_bias else [weight]

    def inner(self, vectors: Parameters) -> Tensor:
        """delta^T V x, without writing delta x^T out."""
        matrix = vectors[0].view(len(vectors[0]), self.delta.shape[2], -1)
        x = self.x if self.x.dim() == 3 else self.x.expand(len(matrix), 1, -1)
        product = x @ matrix.transpose(1, 2)
        if self.has_bias:
            product = product + vectors[1][:, None]
        return (product * self.delta).sum((1, 2))

    def add_to(self, vectors: Parameters, factors: Tensor) -> None:
        """A product of rank one."""
        delta = self.delta[:, 0] * factors
        vectors[0].view(*delta.shape, -1).addcmul_(delta[:, :, None], self.x)
        if self.has_bias:
            vectors[1].add_(delta)


@dataclass
class Dense:
    """Gradients written out, for layers with few parameters per record."""

    gradients: Parameters  # each [R, m, ...]

    @property
    def parameters(self) -> int:
        """One for each of the gradients."""
        return len(self.gradients)

    def squared_norms(self) -> Tensor:
        """Sum of squares."""
        return sum(
            (torch.linalg.vector_norm(g.flatten(2), dim=2).square() for g in self.gradients),
            start=torch.zeros((), dtype=self.gradients[0].dtype, device=self.gradients[0].device),
        )

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """A matrix product per lane."""
        return [
            (factors[:, None] @ g.flatten(2)).view(len(g), *g.shape[2:]) for g in self.gradients
        ]

    @cached_property
    def _single(self) -> Parameters:
        """The gradient of a single record, [R, size]."""
        return [flat(g[:, 0]) for g in self.gradients]

    def inner(self, vectors: Parameters) -> Tensor:
        """Sum of products."""
        return torch.stack(
            [torch.linalg.vecdot(v, g) for v, g in zip(vectors, self._single, strict=True)]
        ).sum(0)

    def add_to(self, vectors: Parameters, factors: Tensor) -> None:
        """Scaled addition."""
        for v, g in zip(vectors, self._single, strict=True):
            v.addcmul_(g, factors)


@dataclass
class Kernels(Dense):
    """Gradients of a convolution, the first [R, m, outputs, kh * kw * c]."""

    shape: tuple[int, ...]  # of the kernels, [outputs, c, kh, kw]

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """As for `Dense`, the first as [R, outputs, c, kh, kw]."""
        first, *others = super().weighted_sum(factors)
        return [shaped(first.flatten(1), self.shape), *others]


class Linear:
    """`nn.Linear` on [m, inputs]."""

    def __init__(self, module: nn.Linear) -> None:
        self._has_bias = module.bias is not None
        self.parameters = 1 + self._has_bias

    def prepare(self, features: Tensor) -> Tensor:
        """Identity."""
        return features

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """As `forward`."""
        return self.forward(theta, x)

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """X W^T + b."""
        if x.dim() > 3:
            raise NotImplementedError("Linear on more than one position per record")
        weight, bias = theta[0], theta[1] if self._has_bias else None
        if x.dim() == 2:
            return _shared(x, weight, bias), x
        return affines(x, weight, bias), x

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """Delta W, and the outer products."""
        return (delta @ theta[0] if need_input else None), Outer(delta, saved, self._has_bias)


class Conv2d:
    """`nn.Conv2d` as a matrix product over patches; its record gradients are written out.

    They are small beside the activations, and cheaper than norms by Gram matrices of the patches.
    """

    def __init__(self, module: nn.Conv2d) -> None:
        self._has_bias = module.bias is not None
        self.parameters = 1 + self._has_bias
        self._kernel: tuple[int, ...] = module.kernel_size
        self._stride: tuple[int, ...] = module.stride
        # [left, right, top, bottom], as functional.pad takes them; "same" may be lopsided.
        self._pad = list(module._reversed_padding_repeated_twice)

    def prepare(self, features: Tensor) -> Tensor:
        """Patches of [m, c, h, w] as [m, height, width, kh * kw * c]."""
        return self._patches(features).contiguous()

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """Patches times kernels."""
        y, (patches, weight, _) = self.forward_prepared(theta, self._patches(x))
        return y, (patches, weight, tuple(x.shape))

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """As `forward`, from patches; channels come last in memory."""
        weight, bias = flat(theta[0]), theta[1] if self._has_bias else None
        weight = weight.view(*theta[0].shape[:2], -1)  # [R, outputs, kh * kw * c]
        if x.dim() == 4:
            y = _shared(x.flatten(0, 2), weight, bias)
        else:
            y = affines(x.flatten(1, 3), weight, bias)
        y = y.view(len(y), *x.shape[-4:-1], -1).permute(0, 1, 4, 2, 3)
        return y, (x, weight, ())

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """Delta W scattered back to the input, and the gradients of the kernels."""
        patches, weight, shape = saved
        lanes, records, outputs = delta.shape[:3]
        size = patches.shape[-1]
        rows = delta.flatten(3).transpose(2, 3)  # [R, m, positions, outputs]
        if patches.dim() == 4:
            by_record = rows.permute(1, 0, 3, 2).reshape(records, lanes * outputs, -1)
            gradient = affines(by_record, patches.flatten(1, 2).transpose(1, 2))
            gradient = gradient.view(records, lanes, outputs, size).transpose(0, 1)
        else:
            flat = patches.reshape(lanes, records, -1, size)
            gradient = rows.transpose(2, 3) @ flat
        gradients = [gradient, rows.sum(2)] if self._has_bias else [gradient]
        back = None
        if need_input:
            columns = rows.reshape(lanes, -1, outputs) @ weight
            back = self._scatter(columns.view(*patches.shape), shape)
        return back, Kernels(gradients, theta[0].shape[1:])

    def _patches(self, x: Tensor) -> Tensor:
        """[..., c, h, w] to [..., height, width, kh * kw * c]."""
        x = functional.pad(x, self._pad) if any(self._pad) else x
        (kh, kw), (sh, sw) = self._kernel, self._stride
        *lead, channels, h, w = x.shape
        height, width = (h - kh) // sh + 1, (w - kw) // sw + 1
        *outer, c_step, h_step, w_step = x.stride()
        windows = x.as_strided(
            (*lead, height, width, kh, kw, channels),
            (*outer, sh * h_step, sw * w_step, h_step, w_step, c_step),
        )
        return windows.reshape(*lead, height, width, kh * kw * channels)

    def _scatter(self, columns: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The adjoint of `_patches`.

        Parts of the kernel as large as the stride tile the input without overlap: one addition for
        each part.
        """
        (kh, kw), (sh, sw) = self._kernel, self._stride
        lanes, records, channels, h, w = shape
        left, _, top, _ = self._pad
        height, width = columns.shape[2:4]
        columns = columns.view(lanes, records, height, width, kh, kw, channels)
        rows = max(h + top, sh * (height + (kh - 1) // sh))
        across = max(w + left, sw * (width + (kw - 1) // sw))
        back = columns.new_zeros(lanes, records, rows, across, channels)
        for i in range(0, kh, sh):
            for j in range(0, kw, sw):
                part = columns[:, :, :, :, i : i + sh, j : j + sw]
                tiles = back[:, :, i : i + sh * height, j : j + sw * width]
                tiles = tiles.view(lanes, records, height, sh, width, sw, channels).transpose(3, 4)
                tiles[:, :, :, :, : part.shape[4], : part.shape[5]].add_(part)
        return back[:, :, top : top + h, left : left + w].permute(0, 1, 4, 2, 3)


class Affine:
    """The gain and bias after a normalisation, on the dimensions from `axis` (of a record)."""

    def __init__(self, has_bias: bool, per_channel: bool) -> None:
        self._has_bias = has_bias
        self._per_channel = per_channel
        self.parameters = 1 + has_bias

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """Gain * x + bias."""
        gain = self._spread(theta[0], x)
        y = x * gain
        return (y + self._spread(theta[1], x) if self._has_bias else y), x

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """Sums over the positions that share a parameter."""
        terms = [delta * saved, delta] if self._has_bias else [delta * saved]
        shape = theta[0].shape[1:]
        if self._per_channel:
            gradients = [term.flatten(3).sum(3) if term.dim() > 3 else term for term in terms]
        else:
            lead = delta.shape[:2]
            gradients = [term.reshape(*lead, -1, *shape).sum(2) for term in terms]
        return (delta * self._spread(theta[0], delta) if need_input else None), Dense(gradients)

    def _spread(self, parameter: Tensor, x: Tensor) -> Tensor:
        """[R, ...] made to broadcast with [R, m, ...]."""
        if self._per_channel:
            return parameter.view(len(parameter), 1, -1, *[1] * (x.dim() - 3))
        ones = [1] * (x.dim() - parameter.dim())
        return parameter.view(len(parameter), *ones, *parameter.shape[1:])


class Free:
    """A function without parameters; autograd finds its backward pass."""

    parameters = 0

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def __call__(self, features: Tensor) -> Tensor:
        """The function of [m, ...]."""
        y: Tensor = self._function(features[None])[0]
        return y

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The function of x, and its graph."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self._function(x)
        return y.detach(), (x, y)

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """The function's vector-Jacobian product."""
        if not need_input:
            return None, None
        x, y = saved
        return torch.autograd.grad(y, x, delta)[0], None


class Relu(Free):
    """ReLU, without a graph."""

    def __init__(self) -> None:
        super().__init__(torch.relu)

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """Max(x, 0)."""
        y = torch.relu(x)
        return y, y

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """Delta where the output is positive."""
        return torch.ops.aten.threshold_backward(delta, saved, 0), None


class MaxPool2d(Free):
    """`nn.MaxPool2d`, which is several times faster where channels come last in memory."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        super().__init__(lambda x: module(x.flatten(0, 1)).unflatten(0, x.shape[:2]))
        self._arguments = (
            pair(module.kernel_size),
            pair(module.stride),
            pair(module.padding),
            pair(module.dilation),
            module.ceil_mode,
        )

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The largest of every window; saves where it was."""
        lanes, channels = len(x), x.shape[2]
        # After a first layer that all lanes share, they lie side by side with the channels: pooled
        # as one picture of lanes * channels, nothing is copied.
        is_joined = x.stride(2) == 1 and x.stride(0) == channels
        x = _channels_last(x, is_joined)
        y, index = torch.ops.aten.max_pool2d_with_indices(x, *self._arguments)
        return _lanes_first(y, lanes, is_joined), (x, index, is_joined)

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """Delta at the places of the largest."""
        x, index, is_joined = saved
        lanes = len(delta)
        delta = _channels_last(delta, is_joined)
        back = torch.ops.aten.max_pool2d_with_indices_backward(delta, x, *self._arguments, index)
        return _lanes_first(back, lanes, is_joined), None


def _shared(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b for [m, inputs] that R lanes share: [R, m, outputs], m outermost in memory."""
    y = affine(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return y.view(len(x), *weight.shape[:2]).transpose(0, 1)


def pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    """A size in both directions."""
    return size if isinstance(size, tuple) else (size, size)


def _channels_last(x: Tensor, is_joined: bool) -> Tensor:
    """[R, m, c, h, w] as [m, R * c, h, w] where joined, else [R * m, c, h, w], channels last."""
    x = x.permute(1, 3, 4, 0, 2) if is_joined else x.permute(0, 1, 3, 4, 2)
    height, width = (x.shape[1], x.shape[2]) if is_joined else (x.shape[2], x.shape[3])
    across = x.shape[3] * x.shape[4] if is_joined else x.shape[4]
    # By way of rows, so that even a single picture has the strides that torch takes for channels
    # last.
    return x.reshape(-1, width, across).view(-1, height, width, across).permute(0, 3, 1, 2)


def _lanes_first(x: Tensor, lanes: int, is_joined: bool) -> Tensor:
    """The inverse of `_channels_last`."""
    if is_joined:
        return x.view(len(x), lanes, -1, *x.shape[2:]).transpose(0, 1)
    return x.view(lanes, -1, *x.shape[1:])


_POINTWISE: tuple[type[nn.Module], ...] = (
    nn.Tanh,
    nn.GELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Identity,
)
_POOLS: tuple[type[nn.Module], ...] = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def stack(model: nn.Module) -> list[Layer] | None:
    """The layers of a sequential model; None where book-keeping does not know one of them."""
    layers: list[Layer] = []
    for module in flatten_sequential(model):
        found = _layers_of(module)
        if found is None:
            return None
        layers += found
    return layers


def flatten_sequential(model: nn.Module) -> list[nn.Module]:
    """The modules of nested `nn.Sequential`, in order; the model itself where it is none."""
    if type(model) is nn.Sequential:
        return [part for child in model for part in flatten_sequential(child)]
    return [model]


def _layers_of(module: nn.Module) -> list[Layer] | None:
    known = type(module).__module__.startswith("torch.nn.modules.")
    if not known or any(not p.requires_grad for p in module.parameters()):
        return None
    match module:
        case nn.Linear():
            return [Linear(module)]
        case nn.Conv2d():
            plain = module.groups == 1 and module.dilation == (1, 1)
            return [Conv2d(module)] if plain and module.padding_mode == "zeros" else None
        case nn.ReLU():
            return [Relu()]
        case nn.MaxPool2d() if not module.return_indices:
            return [MaxPool2d(module)]
        case nn.Flatten() if module.start_dim == 1 and module.end_dim == -1:
            return [Free(lambda x: x.flatten(2))]
        case nn.LayerNorm():
            normalise = Free(
                lambda x: functional.layer_norm(x, module.normalized_shape, eps=module.eps)
            )
            return _with_affine(normalise, module, per_channel=False)
        case nn.GroupNorm():
            normalise = Free(
                lambda x: functional.group_norm(
                    x.flatten(0, 1), module.num_groups, eps=module.eps
                ).view(x.shape)
            )
            return _with_affine(normalise, module, per_channel=True)
    if isinstance(module, _POINTWISE) and not getattr(module, "inplace", False):
        return [Free(module)]
    if isinstance(module, _POOLS):
        return [Free(lambda x: module(x.flatten(0, 1)).unflatten(0, x.shape[:2]))]
    return None


def _with_affine(
    normalise: Free, module: nn.LayerNorm | nn.GroupNorm, per_channel: bool
) -> list[Layer]:
    if not list(module.parameters()):
        return [normalise]
    return [normalise, Affine(module.bias is not None, per_channel)]
