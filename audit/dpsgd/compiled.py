"""Clipped sums on a CPU by a compiled extension (`_convolutional.c`), for ConvNets and MLPs.

torch computes each layer for many records at once, through main memory. The extension takes a few
records at a time through all layers, within the cache. It is used if a C compiler built it and the
processor has AVX2 or AVX-512; otherwise torch's operations compute the same sums.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from audit.dpsgd.extensions import load_extension
from audit.dpsgd.layers import Convolution, Layer, Linear, Network
from audit.dpsgd.parameters import ClippedRecord, ExplicitGradients, Parameters, flat, shaped
from audit.dpsgd.products import affine
from audit.dpsgd.program import Program

# Records of a ConvNet that go through the layers together: few enough to stay in the cache.
_RECORDS_TOGETHER = 4


_convolutional = load_extension("convolutional", torch.backends.cpu.get_cpu_capability())


def is_available() -> bool:
    """Whether the extension was built and this processor can run it."""
    return _convolutional is not None


class _Compiled:
    """A compiled program: calls the extension to compute clipped sums."""

    def __init__(self, program: Program) -> None:
        self._layers, self._offsets, self._classes = program.table()
        self._together = program.records_together
        self._boxes, self._packed = program.packing()

    def sums(
        self,
        theta: Parameters,
        clip: Tensor,
        records: Tensor,
        labels: Tensor,
        taken: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> tuple[Parameters, Tensor]:
        """The sums, one [R, ...] per parameter, and the squared norm of all, [R].

        As in `gradients.ClippedSums`, but the records are prepared by `Program.prepare`. With
        `squares`, they are the outputs of a Linear layer before the program, [n, R, outputs], which
        are overwritten by their clipped gradients. `squares`, [n], is |x|^2 of that layer's input,
        plus 1 if the layer has a bias.
        """
        # The extension receives addresses only, so these tensors must stay referenced.
        flat_theta = [flat(p).contiguous() for p in theta]
        totals = [torch.empty_like(p) for p in flat_theta]
        addresses = np.array(
            [[p.data_ptr() for p in part] for part in (flat_theta, totals)], np.uint64
        )
        clip = clip.to(flat_theta[0]).contiguous()
        norms = torch.empty_like(clip)
        chosen = torch.empty(0) if taken is None else taken.contiguous()
        width, inputs = (0, torch.empty(0)) if squares is None else (records.shape[2], squares)
        _convolutional.clipped_sums(
            (
                self._layers.ctypes.data,
                len(self._layers),
                self._offsets.ctypes.data,
                self._classes,
                self._together,
            ),
            (records.data_ptr(), labels.data_ptr(), len(labels), chosen.data_ptr()),
            (width, inputs.data_ptr()),
            (self._boxes.ctypes.data, len(self._boxes), self._packed),
            (
                len(clip),
                addresses[0].ctypes.data,
                clip.data_ptr(),
                addresses[1].ctypes.data,
                norms.data_ptr(),
            ),
        )
        sums = [shaped(total, p.shape[1:]) for total, p in zip(totals, theta, strict=True)]
        return sums, norms


class CompiledSums:
    """Clipped sums from a convolution to a Linear layer; see `gradients.ClippedSums`."""

    def __init__(self, network: Network, features: Tensor, labels: Tensor) -> None:
        if features.dim() != 4:
            raise NotImplementedError(f"records of shape {tuple(features.shape[1:])}")
        layers = (*network.before, network.first_layer, *network.after)
        if not isinstance(layers[0], Convolution):
            raise NotImplementedError("a network that does not begin with Conv2d")
        channels, height, width = features.shape[1:]
        program = _program((channels, height, width), layers)
        self._compiled = _Compiled(program)
        self._records = program.prepare(features)
        self._labels = labels.contiguous()

    def __call__(
        self, theta: Parameters, clip: Tensor, taken: Tensor | None, chunk_floats: int
    ) -> Parameters:
        return self._compiled.sums(theta, clip, self._records, self._labels, taken)[0]

    def single_record(self, theta: Parameters, clip: Tensor) -> ClippedRecord:
        clipped, squared = self._compiled.sums(theta, clip, self._records, self._labels)
        gradient = ExplicitGradients([flat(g)[:, None] for g in clipped])
        return ClippedRecord([gradient], torch.ones_like(clip)[:, None], squared)


class CompiledTail:
    """Clipped sums of a network of Linear layers and ReLU; all layers but the first are compiled.

    torch computes two products over all runs and prepared records x, [n, inputs]: the first layer's
    outputs, and the sum of the first layer's clipped gradients. Other networks raise
    NotImplementedError.
    """

    def __init__(self, network: Network, x: Tensor) -> None:
        first_layer = network.first_layer
        if not isinstance(first_layer, Linear) or not network.after:
            raise NotImplementedError("a network that does not go from Linear to Linear")
        self._first = first_layer
        self._compiled = _Compiled(
            _program((first_layer.outputs, 1, 1), network.after, is_inner=True)
        )
        self._squares = x.square().sum(1) + float(first_layer.has_bias)

    def sums(
        self, theta: Parameters, clip: Tensor, x: Tensor, labels: Tensor, rows: slice
    ) -> Parameters:
        """The sums of R runs over a chunk x of records, which are at `rows` among all records."""
        at = self._first.parameters
        y, _ = self._first.forward_prepared(theta[:at], x)
        delta = y.transpose(0, 1).contiguous()  # the extension's layout; overwritten
        squares = self._squares[rows]
        after, _ = self._compiled.sums(theta[at:], clip, delta, labels, squares=squares)
        weight = affine(delta.flatten(1).T, x.T).view_as(theta[0])
        return [weight, *([delta.sum(0)] if self._first.has_bias else []), *after]


def _program(
    record_shape: tuple[int, int, int], layers: Sequence[Layer], is_inner: bool = False
) -> Program:
    """The program of layers of which the last is Linear."""
    last_layer = layers[-1]
    if not isinstance(last_layer, Linear):
        raise NotImplementedError("a network that does not end with Linear")
    together = int(_convolutional.RECORDS) if is_inner else _RECORDS_TOGETHER
    program = Program(record_shape, last_layer.outputs, together, is_inner)
    for layer in layers:
        layer.compile(program)
    return program
