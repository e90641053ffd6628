"""Clipped sums of convolutional networks on a CPU, compiled (`_convolutional.c`).

torch takes each layer through memory for many records at once; here a few records at a time go
through all layers while what they need stays in cache. Only where the extension was built (a C
compiler was there) and the processor has AVX2 or AVX-512; elsewhere torch's own operations do the
same.
"""

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from audit.dpsgd.layers import Network
from audit.dpsgd.layers.convolution import Convolution
from audit.dpsgd.layers.linear import Linear
from audit.dpsgd.parameters import Parameters, flat, shaped
from audit.dpsgd.program import Program


def _extension(capability: str) -> Any:
    """The extension for a processor, in torch's words; None where there is none."""
    names = {"AVX512": "_convolutional_avx512", "AVX2": "_convolutional_avx2"}
    try:
        return importlib.import_module(f"audit.dpsgd.{names[capability]}")
    except (KeyError, ImportError):
        return None


_convolutional = _extension(torch.backends.cpu.get_cpu_capability())


def is_available() -> bool:
    """Whether the extension was built and this processor can run it."""
    return _convolutional is not None


def program_of(network: Network, record_shape: tuple[int, ...]) -> Program:
    """The program of a network from a convolution to a Linear layer.

    Args:
        network: the model.
        record_shape: [channels, height, width].

    Raises:
        NotImplementedError: a network that the extension does not know.
    """
    if len(record_shape) != 3:
        raise NotImplementedError(f"records of shape {record_shape}")
    layers = (*network.before, network.first, *network.after)
    last = layers[-1]
    if not isinstance(layers[0], Convolution) or not isinstance(last, Linear):
        raise NotImplementedError("a network that does not go from Conv2d to Linear")
    program = Program(record_shape, last.outputs, int(_convolutional.RECORDS))
    for layer in layers:
        layer.compile(program)
    return program


class CompiledSums:
    """Clipped sums over a fixed set of records; see `gradients.ClippedSums`.

    Args:
        network: the model.
        features: [n, c, h, w] records.
        labels: [n] classes.

    Raises:
        NotImplementedError: a network that the extension does not know.
    """

    def __init__(self, network: Network, features: Tensor, labels: Tensor) -> None:
        self._program = program_of(network, tuple(features.shape[1:]))
        self._layers, self._offsets, self._classes = self._program.table()
        self._boxes, self._packed = self._program.packing()
        self._records = self._program.prepare(features)
        self._labels = labels.contiguous()

    def __call__(
        self, theta: Parameters, clip: Tensor, taken: Tensor | None, chunk_floats: int
    ) -> Parameters:
        """As of `gradients.ClippedSums`; a chunk is always a few records."""
        return self.with_squared_norms(theta, clip, taken)[0]

    def with_squared_norms(
        self, theta: Parameters, clip: Tensor, taken: Tensor | None = None
    ) -> tuple[Parameters, Tensor]:
        """The sums, one [R, ...] per parameter, and the squared norm of all, [R]."""
        # Kept by name until the call is over: the extension only has their addresses.
        given = [flat(p).contiguous() for p in theta]
        totals = [torch.empty_like(p) for p in given]
        addresses = np.array([[p.data_ptr() for p in part] for part in (given, totals)], np.uint64)
        clip = clip.to(given[0]).contiguous()
        squares = torch.empty_like(clip)
        chosen = torch.empty(0) if taken is None else taken.contiguous()
        labels = self._labels
        _convolutional.clipped_sums(
            (self._layers.ctypes.data, len(self._layers), self._offsets.ctypes.data, self._classes),
            (self._records.data_ptr(), labels.data_ptr(), len(labels), chosen.data_ptr()),
            (self._boxes.ctypes.data, len(self._boxes), self._packed),
            (
                len(clip),
                addresses[0].ctypes.data,
                clip.data_ptr(),
                addresses[1].ctypes.data,
                squares.data_ptr(),
            ),
        )
        sums = [shaped(total, p.shape[1:]) for total, p in zip(totals, theta, strict=True)]
        return sums, squares
