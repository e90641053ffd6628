"""Sums of clipped per-record gradients of R stacked models."""

import contextlib
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from audit.dpsgd import compiled
from audit.dpsgd.compiled import CompiledSums, CompiledTail
from audit.dpsgd.layers import Layer, Network, parse_network
from audit.dpsgd.parameters import (
    ClippedRecord,
    ExplicitGradients,
    Parameters,
    RecordGradients,
    clip_factors,
    squared_norms,
)
from audit.dpsgd.products import rounded_operands
from audit.dpsgd.settings import FLOAT32, Precision
from audit.errors import InvalidInput

# Two float32 computations of the same logits differ by less than this.
_LOGITS_RTOL, _LOGITS_ATOL = 1e-4, 1e-5


class StackedModel(Protocol):
    """R models of one architecture; their parameters are a list of [R, ...]."""

    record_floats: int
    """Approximate number of floats that the gradient of one record of one run needs in memory."""

    def prepare(self, features: Tensor) -> Tensor:
        """Records [m, ...] after the computations that all steps and runs share."""
        ...

    def logits(self, theta: Parameters, x: Tensor) -> Tensor:
        """Logits [R, m, classes] of prepared records: shared, [m, ...], or per run, [R, m, ...]."""
        ...

    def gradients(self, theta: Parameters, x: Tensor, labels: Tensor) -> list[RecordGradients]:
        """Per-record gradients of the cross-entropy, in the order of the parameters, each [R, ...].

        The prepared records x are [m, ...] or [R, m, ...], and the labels [m] or [R, m].
        """
        ...


def stacked(model: nn.Module, record_shape: tuple[int, ...]) -> StackedModel:
    """The fastest stacked form of a model: book-keeping if all layers are known, else vmap."""
    theta = [p.detach()[None] for p in model.parameters()]
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, *record_shape, generator=generator).to(theta[0])
    try:
        known = BookkeepingModel(parse_network(model), theta, x)
    except NotImplementedError:
        return VmapModel(model, record_shape)
    return known if _has_logits_of(known, model, theta, x) else VmapModel(model, record_shape)


@torch.no_grad()
def _has_logits_of(known: StackedModel, model: nn.Module, theta: Parameters, x: Tensor) -> bool:
    """Whether both compute the same logits: a hook may have changed a layer's computation."""
    logits = known.logits(theta, known.prepare(x))[0]
    return torch.allclose(logits, model(x), rtol=_LOGITS_RTOL, atol=_LOGITS_ATOL)


class BookkeepingModel:
    """A stacked sequence of known layers, which must accept records like x; see `layers`."""

    def __init__(self, network: Network, theta: Parameters, x: Tensor) -> None:
        self.network = network
        self.record_floats = self._floats_of(theta, x)

    @torch.no_grad()
    def _floats_of(self, theta: Parameters, x: Tensor) -> int:
        """Floats of activations and kernel gradients, without the first input, which runs share."""
        y, tape = self._forward(theta, self.prepare(x))
        floats = y[0, 0].numel()
        for i, (_, parameters, saved) in enumerate(tape):
            tensors = saved if isinstance(saved, tuple) else (saved,)
            if i > 0:
                floats += sum(t[0].numel() for t in tensors if isinstance(t, Tensor))
            floats += sum(p[0].numel() for p in parameters if p.dim() == 5)
        return floats

    def prepare(self, features: Tensor) -> Tensor:
        """Applies the layers before the first parameters, then prepares for the first layer."""
        for layer in self.network.before:
            features = layer.forward([], features[None])[0][0]
        return self.network.first_layer.prepare(features)

    def logits(self, theta: Parameters, x: Tensor) -> Tensor:
        return self._forward(theta, x)[0]

    def _forward(
        self, theta: Parameters, x: Tensor
    ) -> tuple[Tensor, list[tuple[Layer, Parameters, Any]]]:
        first_layer = self.network.first_layer
        at = first_layer.parameters
        y, saved = first_layer.forward_prepared(theta[:at], x)
        tape: list[tuple[Layer, Parameters, Any]] = [(first_layer, theta[:at], saved)]
        for layer in self.network.after:
            of_layer = theta[at : at + layer.parameters]
            at += layer.parameters
            y, saved = layer.forward(of_layer, y)
            tape.append((layer, of_layer, saved))
        return y, tape

    def gradients(self, theta: Parameters, x: Tensor, labels: Tensor) -> list[RecordGradients]:
        y, tape = self._forward(theta, x)
        # The gradient of the cross-entropy with respect to the logits. The transposed layout is
        # faster: torch's softmax is slow on short rows.
        delta = y.transpose(1, 2).contiguous().softmax(1).transpose(1, 2)
        index = labels.expand(delta.shape[:2])[..., None]
        delta.scatter_add_(-1, index, delta.new_full((), -1.0).expand(index.shape))
        by_layer: list[RecordGradients] = []
        for i, (layer, of_layer, saved) in reversed(list(enumerate(tape))):
            back, gradients = layer.backward(of_layer, saved, delta, need_input=i > 0)
            if gradients is not None:
                by_layer.append(gradients)
            if back is not None:
                delta = back
        return by_layer[::-1]


class VmapModel:
    """Any module under `torch.func.vmap`: slower than book-keeping, and needs more memory."""

    def __init__(self, model: nn.Module, record_shape: tuple[int, ...]) -> None:
        self._model = model
        self._record_dims = len(record_shape)
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._fixed = dict(model.named_buffers())
        self._fixed |= {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        # The explicit gradient, and as much again for the autograd graph.
        self.record_floats = 2 * sum(p.numel() for p in model.parameters())
        theta = [p.detach()[None] for p in model.parameters() if p.requires_grad]
        try:
            x = theta[0].new_zeros(1, *record_shape)
            self.logits(theta, x)
            self.gradients(theta, x, x.new_zeros(1, dtype=torch.long))
        except RuntimeError as error:
            raise InvalidInput(
                "model must work under torch.func.vmap, which computes per-record gradients, "
                f"got {type(model).__name__}: {str(error).splitlines()[0]}"
            ) from error

    def prepare(self, features: Tensor) -> Tensor:
        return features

    def logits(self, theta: Parameters, x: Tensor) -> Tensor:
        by_run = 0 if x.dim() > self._record_dims + 1 else None
        y: Tensor = vmap(self._apply, in_dims=(0, by_run))(theta, x)
        return y

    def gradients(self, theta: Parameters, x: Tensor, labels: Tensor) -> list[RecordGradients]:
        by_run = 0 if x.dim() > self._record_dims + 1 else None
        of_records = vmap(grad(self._loss), in_dims=(None, 0, 0))
        of_runs = vmap(of_records, in_dims=(0, by_run, by_run))
        return [ExplicitGradients(of_runs(theta, x, labels))]

    def _apply(self, theta: Parameters, x: Tensor) -> Tensor:
        named = dict(zip(self._names, theta, strict=True)) | self._fixed
        y: Tensor = functional_call(self._model, named, (x,))
        return y

    def _loss(self, theta: Parameters, x: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(self._apply(theta, x[None]), label[None])


def clipped_sums(
    model: StackedModel, features: Tensor, labels: Tensor, precision: Precision = FLOAT32
) -> "ClippedSums | CompiledSums":
    """The fastest implementation of clipped sums over a training set: compiled if possible."""
    tail = None
    is_plain = features.dtype == torch.float32 and precision.significand_bits is None
    is_plain = is_plain and features.device.type == "cpu"
    if is_plain and isinstance(model, BookkeepingModel) and compiled.is_available():
        try:
            return CompiledSums(model.network, features, labels)
        except NotImplementedError:
            with contextlib.suppress(NotImplementedError):
                tail = CompiledTail(model.network, model.prepare(features))
    return ClippedSums(model, features, labels, precision, tail)


class ClippedSums:
    """Clipped sums over a fixed set of records, in chunks.

    With rounded operands (`precision`), norms are clipped to slightly less than C, so that every
    record contributes at most C to the sum (`Precision.product_error`). `tail` computes sums over
    whole chunks instead of the model; it is for float32 only.
    """

    # Above this size, reading prepared records takes as long as preparing them again.
    _MAX_PREPARED_BYTES = 2**24

    def __init__(
        self,
        model: StackedModel,
        features: Tensor,
        labels: Tensor,
        precision: Precision = FLOAT32,
        tail: CompiledTail | None = None,
    ) -> None:
        self._model = model
        self._tail = tail
        self._labels = labels
        self._precision = precision
        prepared = model.prepare(features[:1])
        size = prepared.numel() * prepared.element_size() * len(features)
        self._is_prepared = size <= self._MAX_PREPARED_BYTES
        self._records = model.prepare(features) if self._is_prepared else features

    def __call__(
        self, theta: Parameters, clip: Tensor, taken: Tensor | None, chunk_floats: int
    ) -> Parameters:
        """The sums of R runs, one [R, ...] per parameter.

        `clip` is C of every run, [R]. `taken`, [R, n], is True for the records of each run's batch;
        None takes all. A chunk of [R, m] records needs at most `chunk_floats` floats.
        """
        runs = len(theta[0])
        index, weights, size = None, None, len(self._labels)
        if taken is not None:
            # Batch sizes differ between runs: smaller batches are padded with records of weight 0.
            size = int(taken.sum(1).max())
            order = taken.to(torch.uint8).sort(dim=1, descending=True, stable=True)
            index, weights = order.indices[:, :size], order.values[:, :size].to(theta[0].dtype)
        total: Parameters | None = None
        chunk = max(1, chunk_floats // (runs * self._model.record_floats))
        for start in range(0, size, chunk):
            part = slice(start, start + chunk)
            rows: slice | Tensor = part if index is None else index[:, part]
            x, labels = self._take(rows), self._labels[rows]
            if self._tail is not None and index is None:
                sums = self._tail.sums(theta, clip, x, labels, part)
            else:
                sums = self._sums(
                    theta, clip, x, labels, None if weights is None else weights[:, part]
                )
            total = sums if total is None else [t.add_(s) for t, s in zip(total, sums, strict=True)]
        return [torch.zeros_like(p) for p in theta] if total is None else total

    def _sums(
        self, theta: Parameters, clip: Tensor, x: Tensor, labels: Tensor, weights: Tensor | None
    ) -> Parameters:
        """The sums of R runs over one chunk; see `__call__`."""
        with rounded_operands(self._precision, clip.device):
            gradients = self._model.gradients(theta, x, labels)
            factors = clip_factors(squared_norms(gradients), self._bound(clip))
            if weights is not None:
                factors *= weights
            return [s for g in gradients for s in g.weighted_sum(factors)]

    def single_record(self, theta: Parameters, clip: Tensor) -> ClippedRecord:
        """The clipped gradient if there is only one record; `clip` is C of every run, [R]."""
        rows = slice(0, 1)
        with rounded_operands(self._precision, clip.device):
            gradients = self._model.gradients(theta, self._take(rows), self._labels[rows])
        squared = squared_norms(gradients)
        factors = clip_factors(squared, self._bound(clip))
        return ClippedRecord(gradients, factors, (squared * factors.square())[:, 0])

    def _bound(self, clip: Tensor) -> Tensor:
        """The clipping norms, [R], that keep every record's contribution within `clip`."""
        return clip / (1 + self._precision.product_error)

    def _take(self, rows: slice | Tensor) -> Tensor:
        """The prepared records at a slice, [m, ...], or at an index, [R, m, ...]."""
        records = self._records[rows]
        if self._is_prepared:
            return records
        if isinstance(rows, slice):
            return self._model.prepare(records)
        prepared = self._model.prepare(records.flatten(0, 1))
        return prepared.view(*rows.shape, *prepared.shape[1:])
