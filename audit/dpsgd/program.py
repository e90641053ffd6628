"""The table of layers that the compiled convolutions run, and its packed parameters."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from audit.dpsgd.parameters import Parameters, shaped

_VECTOR = 16
_KINDS = {"affine": 0, "relu": 1, "max_pool": 2, "pad": 3}
_FIELDS = (
    "kind", "in_size", "out_size", "is_linear", "positions", "rows", "run", "stride", "outputs",
    "weight", "bias", "transposed", "offsets", "height", "width", "channels", "out_height",
    "out_width", "kernel_height", "kernel_width", "stride_height", "stride_width", "top", "left",
)  # fmt: skip
"""The layer struct of `_convolutional.c`, in its order."""


class Picture(NamedTuple):
    """What lies between two layers, as packed: channels last, in whole vectors."""

    height: int
    width: int
    channels: int


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
    def weight_size(self) -> int:
        """Packed numbers of the weight."""
        return self.shape[2] * self.shape[3] * self.channels * self.outputs

    @property
    def size(self) -> int:
        """Packed numbers of the weight and, if any, the bias."""
        return self.weight_size + self.has_bias * self.outputs

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
        weight = packed[:, : self.weight_size].view(-1, height, width, self.channels, self.outputs)
        weight = weight[..., :channels, :outputs]
        if len(shape) == 5:
            weight = shaped(weight.permute(0, 4, 1, 2, 3).flatten(1), shape[1:])
        else:
            weight = weight.permute(0, 4, 3, 1, 2).reshape(shape)
        bias = packed[:, self.weight_size :][:, :outputs]
        return [weight, bias] if self.has_bias else [weight]


class Program:
    """The table of layers that the extension runs; layers add themselves (`Layer.compile`).

    Args:
        record_shape: [channels, height, width].
        classes: outputs of the last layer.
        records_together: how many go through the layers side by side.

    Attributes:
        layers: rows of the table so far.
        picture: what the last of them gives, as packed.
        channels: of the picture, without what fills its vectors.
        is_flat: whether a Flatten has come.
    """

    def __init__(
        self, record_shape: tuple[int, int, int], classes: int, records_together: int
    ) -> None:
        self.layers: list[dict[str, int]] = []
        self.channels = record_shape[0]
        self.picture = Picture(record_shape[1], record_shape[2], self.channels)
        self.is_flat = False
        self._first_padding = (0, 0, 0, 0)
        self._offsets: list[int] = []
        self._weights: list[_Weights] = []
        self._parameters = self._transposed = 0
        self._classes, self.records_together = classes, records_together

    @property
    def size(self) -> int:
        """Numbers of the picture."""
        return self.picture.height * self.picture.width * self.picture.channels

    def add(self, kind: str, out_size: int, **fields: int) -> None:
        """Adds a row to the table."""
        row = dict.fromkeys(_FIELDS, 0) | fields
        row |= {"kind": _KINDS[kind], "in_size": self.size, "out_size": out_size}
        self.layers.append(row)

    def add_picture(self, kind: str, height: int, width: int, **fields: int) -> None:
        """Adds a layer without weights that gives a picture of another size."""
        after = Picture(height, width, self.picture.channels)
        sizes = self.picture._asdict() | {"out_height": height, "out_width": width}
        self.add(kind, after.height * after.width * after.channels, **sizes, **fields)
        self.picture = after

    def pad(self, padding: tuple[int, int, int, int]) -> None:
        """Zeros to the left, right, top and bottom; those of records are written once."""
        left, right, top, bottom = padding
        height, width = self.picture.height + top + bottom, self.picture.width + left + right
        if not self.layers:
            self._first_padding = padding
            self.picture = Picture(height, width, self.picture.channels)
        elif any(padding):
            self.add_picture("pad", height, width, top=top, left=left)

    def add_affine(
        self,
        shape: tuple[int, int, int, int],
        has_bias: bool,
        starts: list[int],
        positions: tuple[int, int],
        **fields: int,
    ) -> None:
        """Adds a layer of weights.

        Args:
            shape: as of `_Weights`.
            has_bias: whether there is one.
            starts: where the input of each position begins.
            positions: height and width of the output.
            **fields: of the row.
        """
        outputs = -(-shape[0] // _VECTOR) * _VECTOR
        weights = _Weights(shape, self.picture.channels, outputs, has_bias)
        after = Picture(*positions, outputs)
        self.add(
            "affine",
            after.height * after.width * outputs,
            **fields,
            positions=after.height * after.width,
            outputs=outputs,
            weight=self._parameters,
            bias=self._parameters + weights.weight_size if has_bias else -1,
            transposed=self._transposed,
            offsets=len(self._offsets),
        )
        self._weights.append(weights)
        self._offsets += starts
        self._parameters += weights.size
        self._transposed += weights.weight_size
        self.picture, self.channels = after, shape[0]

    def prepare(self, features: Tensor) -> Tensor:
        """Records [n, c, h, w] as the extension reads them, channels last."""
        return functional.pad(features, self._first_padding).permute(0, 2, 3, 1).contiguous()

    def table(self) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
        """The rows, the positions' beginnings that they refer to, and the number of classes."""
        rows = [[row[name] for name in _FIELDS] for row in self.layers]
        offsets = np.array(self._offsets, dtype=np.int32)
        return np.array(rows, dtype=np.int32), offsets, self._classes

    def pack(self, theta: Parameters) -> tuple[Tensor, Tensor]:
        """Parameters as [R, size], and the weights once more with the outputs first."""
        packed: list[Tensor] = []
        transposed: list[Tensor] = []
        at = 0
        for weights in self._weights:
            parts = weights.pack(theta[at], theta[at + 1] if weights.has_bias else None)
            packed.append(parts[0])
            transposed.append(parts[1])
            at += 1 + weights.has_bias
        return torch.cat(packed, 1), torch.cat(transposed, 1)

    def unpack(self, packed: Tensor, like: Parameters) -> Parameters:
        """The inverse of `pack`, in the shapes of `like`."""
        found: Parameters = []
        sizes = [weights.size for weights in self._weights]
        for weights, part in zip(self._weights, torch.split(packed, sizes, 1), strict=True):
            found += weights.unpack(part, like[len(found)].shape)
        return found
