"""Per-record gradients in R runs, as factors where possible.

A layer's backward pass returns per-record gradients in a form from which norms and weighted sums
can be computed without storing [R, m, parameters] (book-keeping: Bu et al. 2023, "Differentially
private optimization on large model at small cost").
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from audit.dpsgd.parameters import Parameters, flat, shaped
from audit.dpsgd.products import affine


class RecordGradients(Protocol):
    """The gradients of m records in R runs with respect to one layer's parameters."""

    @property
    def parameters(self) -> int:
        """The number of parameter tensors of the layer."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared l2 norms, [R, m]."""
        ...

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """sum_j factors[:, j] * gradient_j for factors [R, m]; one [R, ...] per parameter."""
        ...

    def inner(self, vectors: Parameters) -> Tensor:
        """<gradient, vectors> for a single record, [R]; vectors are one [R, size] per parameter."""
        ...

    def add_to(self, vectors: Parameters, factors: Tensor) -> None:
        """Adds factors [R, 1] * gradient of a single record to vectors [R, size], in place."""
        ...


@dataclass
class OuterProducts:
    """Gradients delta_j x_j^T of a weight, and delta_j of a bias."""

    delta: Tensor  # [R, m, outputs]
    x: Tensor  # [R, m, inputs], or [m, inputs] if all runs share it
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

    def inner(self, vectors: Parameters) -> Tensor:
        """delta^T V x, without forming delta x^T."""
        matrix = vectors[0].view(len(vectors[0]), self.delta.shape[2], -1)
        x = self.x if self.x.dim() == 3 else self.x.expand(len(matrix), 1, -1)
        product = x @ matrix.transpose(1, 2)
        if self.has_bias:
            product = product + vectors[1][:, None]
        return (product * self.delta).sum((1, 2))

    def add_to(self, vectors: Parameters, factors: Tensor) -> None:
        """Adds a rank-one product."""
        delta = self.delta[:, 0] * factors
        vectors[0].view(*delta.shape, -1).addcmul_(delta[:, :, None], self.x)
        if self.has_bias:
            vectors[1].add_(delta)


@dataclass
class ExplicitGradients:
    """Gradients stored explicitly, for layers with few parameters."""

    gradients: Parameters  # each [R, m, ...]

    @property
    def parameters(self) -> int:
        """One per gradient."""
        return len(self.gradients)

    def squared_norms(self) -> Tensor:
        """Sums of squares."""
        return sum(
            (torch.linalg.vector_norm(g.flatten(2), dim=2).square() for g in self.gradients),
            start=torch.zeros((), dtype=self.gradients[0].dtype, device=self.gradients[0].device),
        )

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """The weighted sum, by one matrix product per run."""
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
class KernelGradients(ExplicitGradients):
    """Gradients of a convolution, the first [R, m, outputs, kh * kw * c]."""

    shape: tuple[int, ...]  # of the kernels, [outputs, c, kh, kw]

    def weighted_sum(self, factors: Tensor) -> Parameters:
        """The sums of `ExplicitGradients`, with the kernels as [R, outputs, c, kh, kw]."""
        first, *others = super().weighted_sum(factors)
        return [shaped(first.flatten(1), self.shape), *others]


def squared_norms(gradients: list[RecordGradients]) -> Tensor:
    """|gradient|^2 of every record over all layers, [R, m]."""
    return torch.stack([g.squared_norms() for g in gradients]).sum(0)


def clip_factors(squared: Tensor, clip: Tensor) -> Tensor:
    """min(1, clip / norm) of every record, [R, m], from squared norms and thresholds [R]."""
    return squared.sqrt().reciprocal_().mul_(clip[:, None]).clamp_(max=1.0)


class ClippedRecord:
    """The clipped gradient of one record, such as the canary, in R runs.

    Args:
        gradients: the unclipped gradients of one record, m = 1.
        factors: clipping factors, [R, 1].
        squared_norm: squared norm of the clipped gradient, [R].

    Attributes:
        squared_norm: see the argument.
    """

    def __init__(
        self, gradients: Sequence[RecordGradients], factors: Tensor, squared_norm: Tensor
    ) -> None:
        self._gradients = gradients
        self._factors = factors
        self.squared_norm = squared_norm

    def add_to(self, vectors: Parameters, weights: Tensor) -> None:
        """Adds weights [R, 1] times the gradient to vectors, one [R, size] per parameter."""
        for gradients, own in self._with(vectors):
            gradients.add_to(own, weights * self._factors)

    def inner(self, vectors: Parameters) -> Tensor:
        """<gradient, vectors>, [R]."""
        parts = [gradients.inner(own) for gradients, own in self._with(vectors)]
        return torch.stack(parts).sum(0) * self._factors[:, 0]

    def _with(self, vectors: Parameters) -> Iterator[tuple[RecordGradients, Parameters]]:
        at = 0
        for gradients in self._gradients:
            yield gradients, vectors[at : at + gradients.parameters]
            at += gradients.parameters


class DiracGradient:
    """The gradient (C, 0, ..., 0) in R runs, with the methods of `ClippedRecord`."""

    def __init__(self, clip: Tensor) -> None:
        self._clip = clip
        self.squared_norm = clip.square()

    def add_to(self, vectors: Parameters, weights: Tensor) -> None:
        """See `ClippedRecord.add_to`."""
        vectors[0][:, 0] += self._clip * weights[:, 0]

    def inner(self, vectors: Parameters) -> Tensor:
        """See `ClippedRecord.inner`."""
        return self._clip * vectors[0][:, 0]
