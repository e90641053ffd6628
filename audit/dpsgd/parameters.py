"""Parameters of R stacked models, as tensors [R, ...] and as vectors [R, size]."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Parameters = list[Tensor]


def flat(parameter: Tensor) -> Tensor:
    """A parameter [R, ...] of R runs as vectors [R, size].

    Kernels [R, outputs, c, kh, kw] are flattened with the channels last, the order of patches.
    Nothing is copied if they already have this memory layout (see `shaped`).
    """
    return (parameter.permute(0, 1, 3, 4, 2) if parameter.dim() == 5 else parameter).flatten(1)


def shaped(vectors: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `flat`, without a copy; `shape` is that of one run."""
    if len(shape) != 4:
        return vectors.view(len(vectors), *shape)
    outputs, channels, *kernel = shape
    return vectors.view(len(vectors), outputs, *kernel, channels).permute(0, 1, 4, 2, 3)


def to_numpy(tensor: Tensor) -> NDArray[np.float64]:
    """The tensor as a float64 array on the CPU."""
    return tensor.double().cpu().numpy()
