"""The layer table of the compiled extension, and the layout of its packed parameters."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_VECTOR = 16
_KINDS = {"affine": 0, "relu": 1, "max_pool": 2, "pad": 3}
_FIELDS = (
    "kind", "in_size", "out_size", "is_linear", "positions", "rows", "run", "stride", "outputs",
    "weight", "bias", "offsets", "height", "width", "channels", "out_height",
    "out_width", "kernel_height", "kernel_width", "stride_height", "stride_width", "top", "left",
)  # fmt: skip
"""The fields of the layer struct in `_convolutional.c`, in order."""


def _round_up(numbers: int) -> int:
    """The smallest multiple of the vector size that is at least `numbers`."""
    return -(-numbers // _VECTOR) * _VECTOR


class FeatureMap(NamedTuple):
    """The packed activations between two layers: channels last, padded to whole vectors."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class _Weights:
    """The layout of a layer's parameters among the packed ones.

    `shape` is (outputs, channels, kernel height, kernel width); for a Linear layer after a feature
    map, (outputs, channels, height, width) of that map. `channels` are packed inputs per position
    and `outputs` packed outputs, both with padding.
    """

    shape: tuple[int, int, int, int]
    channels: int
    outputs: int
    has_bias: bool
    is_linear: bool

    @property
    def weight_size(self) -> int:
        """The number of packed numbers of the weight."""
        return self.shape[2] * self.shape[3] * self.channels * self.outputs

    @property
    def size(self) -> int:
        """The number of packed numbers of the weight and the bias, if any."""
        return self.weight_size + self.has_bias * self.outputs

    def boxes(self, packed: int) -> list[list[int]]:
        """Values of the box struct in `_convolutional.c`: for the weight and the bias, if any."""
        outputs, channels, height, width = self.shape
        area, line = height * width, self.channels * self.outputs
        size = channels * area
        # Rows, columns, sheets; strides of rows and sheets; strides of packed columns and sheets.
        if self.is_linear and area > 1:
            # In a Linear layer's flat weight the positions are the last dimension.
            box = [outputs, area, channels, size, area, line, self.outputs]
        elif channels < self.channels:
            box = [outputs, channels, area, size, channels, self.outputs, line]
        else:
            box = [outputs, size, 1, size, 0, self.outputs, 0]
        boxes = [[packed, *box]]
        if self.has_bias:
            boxes.append([packed + self.weight_size, outputs, 1, 1, 1, 0, 0, 0])
        return boxes


class Program:
    """The layer table that the extension runs; layers add themselves (`Layer.compile`).

    `record_shape` is [channels, height, width]. `classes` is the number of outputs of the last
    layer, and `records_together` that of records that go through the layers together. With
    `is_inner`, the input is another layer's output, [outputs, 1, 1]. While layers are added,
    `feature_map` is the packed output of the last one, and `channels` its channels without padding.
    """

    def __init__(
        self,
        record_shape: tuple[int, int, int],
        classes: int,
        records_together: int,
        is_inner: bool = False,
    ) -> None:
        self.layers: list[dict[str, int]] = []
        self.channels, height, width = record_shape
        packed = _round_up(self.channels) if is_inner else self.channels
        self.feature_map = FeatureMap(height, width, packed)
        self.is_flat = self._is_inner = is_inner
        self._first_padding = (0, 0, 0, 0)
        self._offsets: list[int] = []
        self._weights: list[_Weights] = []
        self._parameters = 0
        self._classes, self.records_together = classes, records_together

    @property
    def is_at_records(self) -> bool:
        """Whether the next layer reads the records, which are not padded to whole vectors."""
        return not self.layers and not self._is_inner

    @property
    def size(self) -> int:
        """The number of floats in the feature map."""
        return self.feature_map.height * self.feature_map.width * self.feature_map.channels

    def add(self, kind: str, out_size: int, **fields: int) -> None:
        """Adds a row to the table."""
        row = dict.fromkeys(_FIELDS, 0) | fields
        row |= {"kind": _KINDS[kind], "in_size": self.size, "out_size": out_size}
        self.layers.append(row)

    def add_resizing(self, kind: str, height: int, width: int, **fields: int) -> None:
        """Adds a layer without weights that changes the size of the feature map."""
        after = FeatureMap(height, width, self.feature_map.channels)
        sizes = self.feature_map._asdict() | {"out_height": height, "out_width": width}
        self.add(kind, after.height * after.width * after.channels, **sizes, **fields)
        self.feature_map = after

    def pad(self, padding: tuple[int, int, int, int]) -> None:
        """Pads with zeros to the left, right, top and bottom; records are padded only once."""
        left, right, top, bottom = padding
        before = self.feature_map
        height, width = before.height + top + bottom, before.width + left + right
        if not self.layers:
            self._first_padding = padding
            self.feature_map = FeatureMap(height, width, before.channels)
        elif any(padding):
            self.add_resizing("pad", height, width, top=top, left=left)

    def add_affine(
        self,
        shape: tuple[int, int, int, int],
        has_bias: bool,
        starts: list[int],
        positions: tuple[int, int],
        **fields: int,
    ) -> None:
        """Adds a layer with weights of a shape as in `_Weights`, and with other fields of its row.

        `starts` has the offset of the first input for each of the `positions` (height and width) of
        the output.
        """
        outputs = _round_up(shape[0])
        is_linear = bool(fields.get("is_linear"))
        weights = _Weights(shape, self.feature_map.channels, outputs, has_bias, is_linear)
        after = FeatureMap(*positions, outputs)
        self.add(
            "affine",
            after.height * after.width * outputs,
            **fields,
            positions=after.height * after.width,
            outputs=outputs,
            weight=self._parameters,
            bias=self._parameters + weights.weight_size if has_bias else -1,
            offsets=len(self._offsets),
        )
        self._weights.append(weights)
        self._offsets += starts
        self._parameters += weights.size
        self.feature_map, self.channels = after, shape[0]

    def prepare(self, features: Tensor) -> Tensor:
        """Records [n, c, h, w] in the extension's layout: padded, channels last."""
        return functional.pad(features, self._first_padding).permute(0, 2, 3, 1).contiguous()

    def table(self) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
        """The rows, the input offsets that they refer to, and the number of classes."""
        rows = [[row[name] for name in _FIELDS] for row in self.layers]
        offsets = np.array(self._offsets, dtype=np.int32)
        return np.array(rows, dtype=np.int32), offsets, self._classes

    def packing(self) -> tuple[NDArray[np.int32], int]:
        """A box for every parameter, and the number of packed numbers."""
        boxes: list[list[int]] = []
        packed = 0
        for weights in self._weights:
            boxes += weights.boxes(packed)
            packed += weights.size
        return np.array(boxes, dtype=np.int32), packed
