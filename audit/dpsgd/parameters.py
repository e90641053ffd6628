"""Parameters of R stacked models, and gradients of them for every record.

Parameters are tensors [R, ...] or vectors [R, size]. A layer's backward pass returns per-record
gradients in a form from which norms and weighted sums can be computed without storing
[R, m, parameters] (book-keeping: Bu et al. 2023, "Differentially private optimization on large
model at small cost").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd.products import affine

Parameters = list[Tensor]
# Vectors u [R, rows] and v, [R, columns] or [1, columns]; the product of a run is u v^T.
OuterProduct = tuple[Tensor, Tensor]


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


class RecordGradients(Protocol):
    """The gradients of m records in R runs with respect to one layer's parameters."""

    def squared_norms(self) -> Tensor:
        """Squared l2 norms, [R, m]."""
        ...

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """sum_j factors[:, j] * gradient_j for factors [R, m]; one [R, ...] per parameter."""
        ...

    def outer_products(self, factors: Tensor) -> list[OuterProduct]:
        """The gradient of a single record times factors [R, 1], one product per parameter."""
        ...


@dataclass
class OuterProducts:
    """Gradients delta_j x_j^T of a weight, and delta_j of a bias."""

    delta: Tensor  # [R, m, outputs]
    x: Tensor  # [R, m, inputs], or [m, inputs] if all runs share it
    has_bias: bool

    def squared_norms(self) -> Tensor:
        """|delta|^2 (|x|^2 + 1)."""
        sizes = self.x.square().sum(-1) + float(self.has_bias)
        return self.delta.square().sum(-1) * sizes

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """The weighted sum, by one matrix product if all runs share the input."""
        delta = self.delta * factors[..., None]
        runs, records, outputs = delta.shape
        if self.x.dim() == 3:
            weight = delta.transpose(1, 2) @ self.x
        elif records == 1:
            weight = delta.reshape(runs, outputs, 1) * self.x
        else:
            rows = delta.transpose(0, 1).reshape(records, runs * outputs)
            weight = affine(rows.T, self.x.T).view(runs, outputs, -1)
        return [weight, delta.sum(1)] if self.has_bias else [weight]

    def outer_products(self, factors: Tensor) -> list[OuterProduct]:
        delta = self.delta[:, 0]
        weight = (delta * factors, self.x[:, 0] if self.x.dim() == 3 else self.x)
        return [weight, (factors, delta)] if self.has_bias else [weight]


@dataclass
class ExplicitGradients:
    """Gradients stored explicitly, for layers with few parameters."""

    gradients: Parameters  # each [R, m, ...]

    def squared_norms(self) -> Tensor:
        return sum(
            (torch.linalg.vector_norm(g.flatten(2), dim=2).square() for g in self.gradients),
            start=torch.zeros((), dtype=self.gradients[0].dtype, device=self.gradients[0].device),
        )

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """The weighted sum, by one matrix product per run."""
        return [
            (factors[:, None] @ g.flatten(2)).view(len(g), *g.shape[2:]) for g in self.gradients
        ]

    def outer_products(self, factors: Tensor) -> list[OuterProduct]:
        return [(factors, flat(g[:, 0])) for g in self.gradients]


@dataclass
class KernelGradients(ExplicitGradients):
    """Gradients of a convolution, the first [R, m, outputs, kh * kw * c]."""

    shape: tuple[int, ...]  # of the kernels, [outputs, c, kh, kw]

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """The sums of `ExplicitGradients`, with the kernels as [R, outputs, c, kh, kw]."""
        kernel, *biases = super().weighted_sum(factors)
        return [shaped(kernel.flatten(1), self.shape), *biases]


def squared_norms(gradients: list[RecordGradients]) -> Tensor:
    """|gradient|^2 of every record over all layers, [R, m]."""
    return torch.stack([g.squared_norms() for g in gradients]).sum(0)


def clip_factors(squared: Tensor, clip: Tensor) -> Tensor:
    """min(1, clip / norm) of every record, [R, m], from squared norms and thresholds [R]."""
    return squared.sqrt().reciprocal_().mul_(clip[:, None]).clamp_(max=1.0)


class ClippedRecord:
    """The clipped gradient of one record, such as the canary, in R runs, as outer products.

    Made of the unclipped gradients (m = 1), clipping factors, [R, 1], and the squared norm of the
    clipped gradient, [R].
    """

    def __init__(
        self, gradients: Sequence[RecordGradients], factors: Tensor, squared_norm: Tensor
    ) -> None:
        self.outer_products = [pair for g in gradients for pair in g.outer_products(factors)]
        self.squared_norm = squared_norm

    def add_to(self, vectors: Parameters, weights: Tensor) -> None:
        """Adds weights [R, 1] times the gradient to vectors, one [R, size] per parameter."""
        for vector, (left, right) in zip(vectors, self.outer_products, strict=True):
            matrix = vector.view(*left.shape, -1)
            matrix.addcmul_((weights * left)[:, :, None], right[:, None])

    def inner_products(self, vectors: Parameters) -> Tensor:
        """<gradient, vectors>, [R]."""
        parts = []
        for vector, (left, right) in zip(vectors, self.outer_products, strict=True):
            matrix = vector.view(*left.shape, -1)
            product = right[:, None].expand(len(matrix), 1, -1) @ matrix.transpose(1, 2)
            parts.append((product[:, 0] * left).sum(1))
        return torch.stack(parts).sum(0)


class DiracGradient:
    """The gradient (C, 0, ..., 0) in R runs, with the methods of `ClippedRecord`."""

    def __init__(self, clip: Tensor) -> None:
        self._clip = clip
        self.squared_norm = clip.square()

    def add_to(self, vectors: Parameters, weights: Tensor) -> None:
        vectors[0][:, 0] += self._clip * weights[:, 0]

    def inner_products(self, vectors: Parameters) -> Tensor:
        return self._clip * vectors[0][:, 0]
