"""Clipped sums of convolutional networks on a CPU, compiled (`_convolutional.c`).

torch takes each layer through memory for many records at once; here a few records at a time go
through all layers while what they need stays in cache. Only where the extension was built (a C
compiler was there) and the processor has AVX2 or AVX-512; elsewhere torch's own operations do the
same.
"""

import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd.layers import Parameters, flatten_sequential, pair, shaped


def _extension(capability: str) -> Any:
    """The extension for a processor, in torch's words; None where there is none."""
    names = {"AVX512": "_convolutional_avx512", "AVX2": "_convolutional_avx2"}
    try:
        return importlib.import_module(f"audit.dpsgd.{names[capability]}")
    except (KeyError, ImportError):
        return None


_convolutional = _extension(torch.backends.cpu.get_cpu_capability())

_VECTOR = 16
_KINDS = {"affine": 0, "relu": 1, "max_pool": 2, "pad": 3}
_FIELDS = (
    "kind", "in_size", "out_size", "is_linear", "positions", "rows", "run", "stride", "outputs",
    "weight", "bias", "transposed", "offsets", "height", "width", "channels", "out_height",
    "out_width", "kernel_height", "kernel_width", "stride_height", "stride_width", "top", "left",
)  # fmt: skip
"""The layer struct of `_convolutional.c`, in its order."""


def is_available() -> bool:
    """Whether the extension was built and this processor can run it."""
    return _convolutional is not None


class CompiledSums:
    """Clipped sums over a fixed set of records; see `gradients.ClippedSums`.

    Args:
        network: the model.
        features: [n, ...] records.
        labels: [n] classes.
    """

    def __init__(self, network: "Network", features: Tensor, labels: Tensor) -> None:
        self._network = network
        self._records = network.prepare(features)
        self._labels = labels

    def __call__(
        self, theta: Parameters, clip: Tensor, taken: Tensor | None, chunk_floats: int
    ) -> Parameters:
        """As of `gradients.ClippedSums`; a chunk is always a few records."""
        return self._network.sums(theta, clip, self._records, self._labels, taken)


@dataclass(frozen=True)
class _Weights:
    """Where a layer's parameters lie among the packed ones.

    Attributes:
        shape: (outputs, channels, kernel height, kernel width), or of a Linear layer after a
            picture (outputs, channels, height, width) of that picture.
        channels: inputs per position as packed, with padding.
        outputs: as packed, with padding.
        has_bias: whether there is one.
    """

    shape: tuple[int, int, int, int]
    channels: int
    outputs: int
    has_bias: bool

    @property
    def size(self) -> int:
        """Packed numbers of the weight."""
        return self.shape[2] * self.shape[3] * self.channels * self.outputs

    def pack(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """[R, ...] parameters as [R, taps * outputs (+ outputs)] and [R, outputs * taps]."""
        lanes = len(weight)
        outputs, channels = self.shape[:2]
        weight = weight.view(lanes, *self.shape).permute(0, 3, 4, 2, 1)
        weight = functional.pad(
            weight, (0, self.outputs - outputs, 0, self.channels - channels)
        ).flatten(1, 3)
        parts = [weight.flatten(1)]
        if bias is not None:
            parts.append(functional.pad(bias, (0, self.outputs - outputs)))
        return torch.cat(parts, 1), weight.transpose(1, 2).flatten(1)

    def unpack(self, packed: Tensor, shape: torch.Size) -> Parameters:
        """The inverse of `pack`; `shape` is that of the weight, [R, ...]."""
        outputs, channels, height, width = self.shape
        weight = packed[:, : self.size].view(-1, height, width, self.channels, self.outputs)
        weight = weight[..., :channels, :outputs]
        if len(shape) == 5:
            weight = shaped(weight.permute(0, 4, 1, 2, 3).flatten(1), shape[1:])
        else:
            weight = weight.permute(0, 4, 3, 1, 2).reshape(shape)
        bias = packed[:, self.size :][:, :outputs]
        return [weight, bias] if self.has_bias else [weight]


class Network:
    """Conv2d, ReLU, MaxPool2d, Flatten and Linear in sequence, as the extension sees them.

    Args:
        model: the network.
        record_shape: [channels, height, width].

    Raises:
        NotImplementedError: a network that it does not know.
    """

    def __init__(self, model: nn.Module, record_shape: tuple[int, ...]) -> None:
        self._rows: list[dict[str, int]] = []
        self._offsets: list[int] = []
        self._weights: list[_Weights] = []
        self._parameters = self._transposed = 0
        if len(record_shape) != 3:
            raise NotImplementedError(f"records of shape {record_shape}")
        channels, self._height, self._width = record_shape
        self._true_channels = self._channels = channels
        self._is_flat = False
        self._first_padding = (0, 0, 0, 0)
        modules = flatten_sequential(model)
        for module in modules:
            self._add(module)
        if not isinstance(modules[0], nn.Conv2d) or not isinstance(modules[-1], nn.Linear):
            raise NotImplementedError("a network that does not go from Conv2d to Linear")
        self._classes = modules[-1].out_features

    def _add(self, module: nn.Module) -> None:
        match module:
            case nn.Conv2d() if not self._is_flat:
                plain = module.groups == 1 and module.dilation == (1, 1)
                if not plain or module.padding_mode != "zeros":
                    raise NotImplementedError("a convolution with groups, dilation or other edges")
                self._convolve(module)
            case nn.ReLU() if self._rows:
                self._push("relu", self._size)
            case nn.MaxPool2d() if self._rows and not self._is_flat and not module.return_indices:
                plain = pair(module.padding) == (0, 0) and pair(module.dilation) == (1, 1)
                if not plain or module.ceil_mode:
                    raise NotImplementedError("a pooling with padding, dilation or ceil_mode")
                self._pool(pair(module.kernel_size), pair(module.stride))
            case nn.Flatten() if (module.start_dim, module.end_dim) == (1, -1):
                self._is_flat = True
            case nn.Linear() if self._is_flat and self._rows:
                self._connect(module)
            case _:
                raise NotImplementedError(type(module).__name__)

    @property
    def _size(self) -> int:
        return self._height * self._width * self._channels

    def _push(self, kind: str, out_size: int, **fields: int) -> None:
        row = dict.fromkeys(_FIELDS, 0) | fields
        row |= {"kind": _KINDS[kind], "in_size": self._size, "out_size": out_size}
        self._rows.append(row)

    def _picture(self, height: int, width: int) -> dict[str, int]:
        return {
            "height": self._height,
            "width": self._width,
            "channels": self._channels,
            "out_height": height,
            "out_width": width,
        }

    def _convolve(self, module: nn.Conv2d) -> None:
        left, right, top, bottom = module._reversed_padding_repeated_twice
        height, width = self._height + top + bottom, self._width + left + right
        if not self._rows:
            self._first_padding = (left, right, top, bottom)
        elif (height, width) != (self._height, self._width):
            size = height * width * self._channels
            self._push("pad", size, top=top, left=left, **self._picture(height, width))
        self._height, self._width = height, width
        (kh, kw), (sh, sw) = module.kernel_size, module.stride
        out_height, out_width = (height - kh) // sh + 1, (width - kw) // sw + 1
        line = width * self._channels
        starts = [
            y * sh * line + x * sw * self._channels
            for y in range(out_height)
            for x in range(out_width)
        ]
        shape = (module.out_channels, self._true_channels, kh, kw)
        self._affine(
            shape,
            module.bias is not None,
            starts,
            is_linear=0,
            positions=len(starts),
            rows=kh,
            run=kw * self._channels,
            stride=line,
        )
        self._true_channels = module.out_channels
        self._height, self._width = out_height, out_width
        self._channels = _whole_vectors(module.out_channels)

    def _pool(self, kernel: tuple[int, ...], stride: tuple[int, ...]) -> None:
        height = (self._height - kernel[0]) // stride[0] + 1
        width = (self._width - kernel[1]) // stride[1] + 1
        self._push(
            "max_pool",
            height * width * self._channels,
            kernel_height=kernel[0],
            kernel_width=kernel[1],
            stride_height=stride[0],
            stride_width=stride[1],
            **self._picture(height, width),
        )
        self._height, self._width = height, width

    def _connect(self, module: nn.Linear) -> None:
        shape = (module.out_features, self._true_channels, self._height, self._width)
        if module.in_features != shape[1] * shape[2] * shape[3]:
            raise NotImplementedError("a Linear layer of another size")
        starts = [record * self._size for record in range(_convolutional.RECORDS)]
        self._affine(
            shape, module.bias is not None, starts, is_linear=1, positions=1, rows=1, run=self._size
        )
        self._height = self._width = 1
        self._true_channels = module.out_features
        self._channels = _whole_vectors(module.out_features)

    def _affine(
        self, shape: tuple[int, int, int, int], has_bias: bool, starts: list[int], **fields: int
    ) -> None:
        outputs = _whole_vectors(shape[0])
        weights = _Weights(shape, self._channels, outputs, has_bias)
        bias = self._parameters + weights.size if has_bias else -1
        self._push(
            "affine",
            fields["positions"] * outputs,
            **fields,
            outputs=outputs,
            weight=self._parameters,
            bias=bias,
            transposed=self._transposed,
            offsets=len(self._offsets),
        )
        self._weights.append(weights)
        self._offsets += starts
        self._parameters += weights.size + has_bias * outputs
        self._transposed += weights.size

    def prepare(self, features: Tensor) -> Tensor:
        """Records [n, c, h, w] as the extension reads them, channels last."""
        return functional.pad(features, self._first_padding).permute(0, 2, 3, 1).contiguous()

    def sums(
        self,
        theta: Parameters,
        clip: Tensor,
        records: Tensor,
        labels: Tensor,
        taken: Tensor | None,
    ) -> Parameters:
        """Sums of clipped gradients of R lanes.

        Args:
            theta: parameters, each [R, ...].
            clip: C of every lane, [R].
            records: [n, ...], from `prepare`.
            labels: [n] classes.
            taken: [R, n] bool, the records of each lane's batch; None takes all.

        Returns:
            One [R, ...] per parameter.
        """
        packed: list[Tensor] = []
        transposed: list[Tensor] = []
        at = 0
        for weights in self._weights:
            bias = theta[at + 1] if weights.has_bias else None
            for parts, part in zip(
                (packed, transposed), weights.pack(theta[at], bias), strict=True
            ):
                parts.append(part)
            at += 1 + weights.has_bias
        flat, back = torch.cat(packed, 1), torch.cat(transposed, 1)
        totals = torch.zeros_like(flat)
        layers, offsets = self._table
        # Kept by name until the call is over: the extension only has their addresses.
        labels, clip = labels.contiguous(), clip.to(flat).contiguous()
        chosen = torch.empty(0) if taken is None else taken.contiguous()
        _convolutional.clipped_sums(
            (layers.ctypes.data, len(layers), offsets.ctypes.data, self._classes),
            (records.data_ptr(), labels.data_ptr(), len(labels), chosen.data_ptr()),
            (len(flat), flat.data_ptr(), flat.shape[1], back.data_ptr(), back.shape[1]),
            (clip.data_ptr(), totals.data_ptr()),
        )
        found: Parameters = []
        for weights, part in zip(self._weights, torch.split(totals, self._sizes, 1), strict=True):
            found += weights.unpack(part, theta[len(found)].shape)
        return found

    @property
    def _sizes(self) -> list[int]:
        return [w.size + w.has_bias * w.outputs for w in self._weights]

    @cached_property
    def _table(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        rows = [[row[name] for name in _FIELDS] for row in self._rows]
        return np.array(rows, dtype=np.int32), np.array(self._offsets, dtype=np.int32)


def _whole_vectors(size: int) -> int:
    return -(-size // _VECTOR) * _VECTOR
