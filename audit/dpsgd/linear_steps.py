"""Training steps on at most one record, for networks of Linear layers and ReLU, by `_noise.c`.

torch needs a call per layer and step, which takes as long as the arithmetic if there is only one
record. The extension takes one run at a time through all layers and many steps, within the cache,
and updates each weight as soon as its noise is drawn. Its sums have a fixed order, so that every
processor computes the same bits, and a run does not depend on the others.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd import noise
from audit.dpsgd.layers import Network
from audit.dpsgd.layers.functions import Flatten, Relu
from audit.dpsgd.layers.linear import Linear
from audit.dpsgd.parameters import Parameters

# Normal numbers per call, a fraction of a second: signals are handled between calls.
_NUMBERS_AT_ONCE = 1 << 26
_STEPS_AT_ONCE = 1 << 14  # so that few tensors are in memory


def linear_layers(network: Network) -> list[tuple[Linear, bool]]:
    """The Linear layers of a network, and whether ReLU follows each.

    NotImplementedError if the network has other layers with parameters or functions after its first
    Linear layer, or does not end with a Linear layer.
    """
    layers: list[tuple[Linear, bool]] = []
    for layer in (network.first_layer, *network.after):
        if isinstance(layer, Linear):
            layers.append((layer, False))
        elif isinstance(layer, Relu) and layers:
            layers[-1] = layers[-1][0], True
        elif not isinstance(layer, Flatten):
            raise NotImplementedError(f"{type(layer).__name__} in a network of Linear layers")
    if not layers or layers[-1][1]:
        raise NotImplementedError("a network that does not end with Linear")
    return layers


class LinearSteps:
    """Steps of DP-SGD on at most one record; NotImplementedError for other networks and devices.

    `x` is the prepared record, [1, inputs], and `label` its class, [1].
    """

    def __init__(self, network: Network, x: Tensor, label: Tensor) -> None:
        self._layers = linear_layers(network)
        if x.dim() != 2 or not noise.can_descend(x):
            raise NotImplementedError("a compiled step for such records, or on such a device")
        # The extension does not check sizes. torch reports those that do not fit.
        inputs = [x.shape[1], *(layer.outputs for layer, _ in self._layers)]
        fits = inputs[:-1] == [layer.inputs for layer, _ in self._layers]
        if not fits or not 0 <= int(label) < inputs[-1]:
            raise NotImplementedError("a record or a layer of another size, or an unknown label")
        self._record = x.contiguous()
        self._label = int(label)

    def __call__(
        self,
        state: Parameters,
        taken: Iterator[Tensor],
        clip: Tensor,
        descent: Tensor,
        seeds: NDArray[np.uint64],
        scales: NDArray[np.float32],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Trains R runs: p = noise + gradient where the record is taken, w += descent * p.

        `state` has the weights w, one contiguous [R, size] per parameter, and `taken` yields, for
        every step, the runs whose batch contains the record, [R] of 0 and 1. `clip` has the
        clipping norms, `descent` the negative learning rates, and `scales` the standard deviations
        of the noise, [R] each. Yields for every step <p, gradient>, the first coordinate of p, and
        |gradient|^2, [R] each.
        """
        table = self._table(state)
        numbers = sum(w.numel() for w in state)
        steps_at_once = min(max(1, _NUMBERS_AT_ONCE // numbers), _STEPS_AT_ONCE)
        # The extension receives addresses only, so these arrays must stay referenced.
        seeds, scales = np.ascontiguousarray(seeds), np.ascontiguousarray(scales)
        clip, descent = clip.contiguous(), descent.contiguous()
        step = 0
        while factors := list(itertools.islice(taken, steps_at_once)):
            weights = torch.stack(factors).to(clip)
            outcomes = torch.empty(3, *weights.shape)
            noise.extension().train(
                (table.ctypes.data, len(table), self._record.data_ptr(), self._label),
                (seeds.ctypes.data, len(seeds), noise.NOISE_STREAM, step, len(weights)),
                (clip.data_ptr(), scales.ctypes.data, descent.data_ptr(), weights.data_ptr()),
                tuple(outcome.data_ptr() for outcome in outcomes),
            )
            yield from zip(*outcomes, strict=True)
            step += len(weights)

    def _table(self, state: Parameters) -> NDArray[np.uint64]:
        """The rows of the struct `linear` in `_noise.c`."""
        addresses = iter(w.data_ptr() for w in state)
        return np.array(
            [
                (next(addresses), next(addresses) if layer.has_bias else 0,
                 layer.inputs, layer.outputs, has_relu)
                for layer, has_relu in self._layers
            ],
            np.uint64,
        )  # fmt: skip
