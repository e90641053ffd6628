"""The white box: compares every released gradient with the canary's own gradient.

Before every step of the optimizer it takes the canary's gradient z_i at the current weights,
clipped as the optimizer clips, and the released gradient p_i, and accumulates the proxies of
`audit.dpsgd.RunOutcomes` from their inner products. Where the canary is a gradient itself
(Dirac), it inserts it too.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from audit.errors import InvalidInput
from audit.loop.runs.optimizer_hooks import StepThreshold, hooks_of_steps
from audit.loop.runs.readings import reason_of
from audit.loop.runs.records import TrainingSet
from audit.numerics import FloatArray
from audit.opacus_objects import divisor_of, history_of, step_counter_of

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]

# Opacus adds this to every norm that it clips by.
_NORM_OFFSET = 1e-6
# Number of canaries whose gradients are in memory at the same time.
_CANARIES_AT_ONCE = 64
# Longer runs are divided into this number of stretches of steps.
_STRETCHES = 128


def cross_entropy(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """The sum of the records' cross-entropies, or of squared errors for real targets."""
    output = model(features)
    if labels.is_floating_point():
        return (output.flatten() - labels.flatten()).square().sum()
    if output[0].numel() == 1:
        return nn.functional.binary_cross_entropy_with_logits(
            output.flatten(), labels.to(output.dtype), reduction="sum"
        )
    return nn.functional.cross_entropy(output, labels, reduction="sum")


@dataclass(frozen=True)
class WhiteBoxTrace:
    """Record of the white box of one run with m canaries.

    Attributes:
        steps: N, the number of released gradients.
        lambda_a: [m], the mean over the steps of <z_i, p_i> / C_i^2.
        lambda_c: [m], the same for sampled batches; see `audit.dpsgd.RunOutcomes`.
        details: [f], with one canary: the range of the products over the steps; their sum and, of
            Opacus, the mean square of p_i, for every tensor of parameters; their sum for every
            stretch of steps.
    """

    steps: int
    lambda_a: FloatArray
    lambda_c: FloatArray
    details: FloatArray


class WhiteBox:
    """Hooks on an optimizer, which record a `trace`.

    Args:
        optimizer: Opacus's with any clipping, or any of torch that releases p.grad.
        canaries: the records whose gradients are taken, [m, ...]; None for Dirac canaries.
        included: [m] bool, which are in the data.
        loss: summed loss of the model on records; None takes `cross_entropy`.
        seed: seed of the batches that contain Dirac canaries.

    Attributes:
        model: found at its first forward pass, or given.
        accountant: the function's own, or None.
        record_gradient: for a loop of arrays, returns one record's gradient by its features and
            label; None where the gradient is taken of the model.
        failure: the reason why the canaries' gradients could not be taken; empty if they were.

    Raises:
        InvalidInput: Dirac canaries with an optimizer that is not Opacus's.
    """

    def __init__(
        self,
        optimizer: Any,
        canaries: TrainingSet | None,
        included: NDArray[np.bool_],
        loss: Loss | None,
        seed: int,
    ) -> None:
        self.model: nn.Module | None = None
        self.accountant: Any = None
        self.record_gradient: Any = None
        self.failure = ""
        self._optimizer = optimizer
        self._canaries = canaries
        self._included = included
        self._loss = loss or cross_entropy
        self._batches = np.random.default_rng([seed, 1])
        self._products: list[FloatArray] = []  # [m], <z_i, p_i> / C_i^2 of every step
        self._squares: list[FloatArray] = []  # [m], |z_i|^2 / C_i^2
        self._noises: list[tuple[float, float]] = []  # sigma and tau of every step
        self._by_tensor: list[FloatArray] = []  # [tensors], the products of the first canary
        self._energies: list[FloatArray] = []  # [tensors], mean square of p_i / C_i
        self._updated: set[tuple[int, ...]] = set()  # the parameters of each kind of step
        self._threshold = StepThreshold(optimizer)
        released = getattr(optimizer, "original_optimizer", optimizer)
        self._hooks = hooks_of_steps(released, self._before_step)
        if canaries is None:
            self._insert_gradients()
            return
        trained = {id(parameter) for parameter in self._parameters()}

        def find(module: nn.Module, _: Any) -> None:
            # The outermost module with all parameters is called first.
            if self.model is None and trained <= {id(p) for p in module.parameters()}:
                self.model = module

        self._hooks.append(nn.modules.module.register_module_forward_pre_hook(find))

    def close(self) -> None:
        """Removes all hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def trace(self) -> WhiteBoxTrace | None:
        """The record of the run; None if no step was watched."""
        if self.failure or not self._products:
            return None
        products, squares = np.array(self._products), np.array(self._squares)
        steps = len(products)
        lambda_a = products.mean(0)
        noise, rate = np.array(self._noises).T
        lambda_c = lambda_a
        if np.all(noise > 0) and np.all(rate > 0) and np.any(rate < 1):
            precision = (0.5 / noise**2)[:, None]
            with np.errstate(divide="ignore"):
                missed = np.log1p(-rate)[:, None]
            taken = np.log(rate)[:, None] + precision * (2 * products - squares)
            log_ratio = np.logaddexp(missed, taken).sum(0)
            lambda_c = 0.5 + log_ratio / (2 * precision.sum())
        details = np.empty(0)
        if len(lambda_a) == 1:
            of_canary = products[:, 0]
            stretches = np.array_split(of_canary, min(steps, _STRETCHES))
            details = np.array([np.ptp(of_canary), *(stretch.sum() for stretch in stretches)])
            if len(self._updated) == 1:
                energies = np.sum(self._energies, axis=0).reshape(-1) / steps
                details = np.concatenate([details, np.sum(self._by_tensor, axis=0), energies])
        return WhiteBoxTrace(steps, lambda_a, lambda_c, details)

    def _parameters(self) -> list[Tensor]:
        groups = self._optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def _sampling_rate(self) -> float:
        history = history_of(self.accountant)
        return history[-1][1] if history else 1.0

    def _insert_gradients(self) -> None:
        """Adds Dirac canaries to the sum of clipped gradients, before the noise."""
        optimizer = self._optimizer
        if not hasattr(optimizer, "add_noise"):
            raise InvalidInput(
                f"optimizer must be Opacus's for a Dirac canary, got {type(optimizer).__name__}"
            )
        add_noise = optimizer.add_noise

        def add_canaries_and_noise() -> None:
            rate = self._rate_of_hook()
            taken = self._included
            if rate < 1:
                taken = taken & (self._batches.random(len(taken)) < rate)
            for place, clip in self._coordinates(np.flatnonzero(taken), "summed_grad"):
                place += clip
            add_noise()

        optimizer.add_noise = add_canaries_and_noise

    def _rate_of_hook(self) -> float:
        """The sampling rate before the first step was accounted for."""
        rate = step_counter_of(self._optimizer).sampling_rate
        return self._sampling_rate() if rate is None else rate

    def _coordinates(self, which: NDArray[np.int64], of: str) -> Iterator[tuple[Tensor, float]]:
        """The coordinates of Dirac canaries in the flat parameters, and their C."""
        start, parameters = 0, self._parameters()
        for index, parameter in enumerate(parameters):
            clip = self._threshold.value
            clip = clip[index] if isinstance(clip, list) else clip
            assert clip is not None
            values = getattr(parameter, of).view(-1)
            for canary in which[(which >= start) & (which < start + len(values))]:
                yield values[canary - start], clip
            start += len(values)
        if len(which) and which[-1] >= start:
            raise InvalidInput(f"canaries must be at most one per parameter, got {which[-1] + 1}")

    @torch.no_grad()
    def _before_step(self) -> None:
        if self.failure:
            return
        optimizer = self._optimizer
        divisor = divisor_of(optimizer)
        parameters = self._parameters()
        released = []
        for parameter in parameters:
            if parameter.grad is None:
                raise InvalidInput("optimizer must have a gradient for every parameter, got none")
            released.append(parameter.grad * divisor)
        flat = self._threshold.norm
        unit = 1.0 if flat is None else flat * flat
        if self._canaries is None:
            products, squares = self._dirac_products(divisor, unit)
            by_tensor = np.zeros(0)
        else:
            try:
                products_of_tensors, sizes = self._record_products(parameters, released)
            except Exception as error:  # of the user's model or loss
                self.failure = reason_of(error)
                return
            products, squares = products_of_tensors.sum(1) / unit, sizes / unit
            by_tensor = products_of_tensors[0] / unit
        self._products.append(products)
        self._squares.append(squares)
        self._by_tensor.append(by_tensor)
        self._updated.add(tuple(id(parameter) for parameter in parameters))
        if flat is not None:
            # Without C, a division by the number of records would show that number.
            squares_of_sums = [float(p.square().mean(dtype=torch.float64)) for p in released]
            self._energies.append(np.array(squares_of_sums) / unit)
        noise = float(getattr(optimizer, "noise_multiplier", 0.0))
        self._noises.append((noise, self._sampling_rate()))
        self._threshold.start_step()

    def _dirac_products(self, divisor: float, unit: float) -> tuple[FloatArray, FloatArray]:
        canary_indices = np.arange(len(self._included))
        terms = [
            (float(p) * divisor * c, c * c) for p, c in self._coordinates(canary_indices, "grad")
        ]
        products, squares = np.array(terms).T / unit
        return products, squares

    def _record_products(
        self, parameters: list[Tensor], released: list[Tensor]
    ) -> tuple[FloatArray, FloatArray]:
        """<z, p> of every canary and tensor, [m, tensors], and |z|^2, [m]."""
        assert self._canaries is not None
        if hasattr(self._optimizer, "leaf_names"):
            return self._array_products(parameters, released)
        if self.model is None:
            raise InvalidInput("watch was not given the model: watch(optimizer, model, accountant)")
        like = parameters[0]
        features = torch.from_numpy(self._canaries.features).to(like.device)
        if features.is_floating_point():
            features = features.to(like.dtype)
        labels = torch.from_numpy(self._canaries.labels).to(like.device)
        if labels.is_floating_point():
            labels = labels.to(like.dtype)
        products, squares = [], []
        with undisturbed(self.model):
            for start in range(0, len(labels), _CANARIES_AT_ONCE):
                block = slice(start, start + _CANARIES_AT_ONCE)
                gradients = self._gradients(parameters, features[block], labels[block])
                factors, norms = self._factors(gradients)
                inner = [
                    (g * p).flatten(1).sum(1) for g, p in zip(gradients, released, strict=True)
                ]
                products.append(torch.stack(inner, 1).double() * factors)
                squares.append((norms * factors).square().sum(1))
        return torch.cat(products).cpu().numpy(), torch.cat(squares).cpu().numpy()

    def _array_products(
        self, parameters: list[Tensor], released: list[Tensor]
    ) -> tuple[FloatArray, FloatArray]:
        """The same for a loop of arrays, which states the gradient of a record."""
        assert self._canaries is not None
        if self.record_gradient is None:
            raise InvalidInput(
                "the gradient of a record is unknown: watch.step(noisy, params, gradient=...)"
            )
        records = zip(self._canaries.features, self._canaries.labels, strict=True)
        gradients = [self.record_gradient(x, y) for x, y in records]
        shapes = [tuple(p.shape) for p in parameters]
        if any(
            [g.shape for g in gradients_of_record] != shapes for gradients_of_record in gradients
        ):
            raise InvalidInput(
                f"gradient must return arrays of the shapes {shapes} of the released value"
            )
        columns = [torch.from_numpy(np.stack(column)) for column in zip(*gradients, strict=True)]
        factors, norms = self._factors(columns)
        inner = [(g * p.double()).flatten(1).sum(1) for g, p in zip(columns, released, strict=True)]
        products = torch.stack(inner, 1) * factors
        return products.numpy(), (norms * factors).square().sum(1).numpy()

    def _gradients(
        self, parameters: list[Tensor], features: Tensor, labels: Tensor
    ) -> list[Tensor]:
        """Every record's own gradient: one [m, ...] per tensor of parameters."""
        assert self.model is not None
        gradients_of_records = []
        for x, y in zip(features, labels, strict=True):
            with torch.enable_grad():
                loss = self._loss(self.model, x[None], y[None])
                gradients_of_records.append(
                    torch.autograd.grad(loss, parameters, allow_unused=True)
                )
        return [
            torch.stack([torch.zeros_like(p) if g is None else g for g in column])
            for p, column in zip(parameters, zip(*gradients_of_records, strict=True), strict=True)
        ]

    def _factors(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Clipping factors of every tensor of every gradient, and the norms before clipping."""
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients], 1).double()
        threshold = self._threshold.value
        if threshold is None:
            norm = norms.norm(dim=1, keepdim=True)
            return (1.0 / norm.clamp(min=1e-30)).expand_as(norms), norms
        if isinstance(threshold, list):
            clip = torch.tensor(threshold, dtype=norms.dtype, device=norms.device)
            return (clip / (norms + _NORM_OFFSET)).clamp(max=1.0), norms
        norm = norms.norm(dim=1, keepdim=True)
        return (threshold / (norm + _NORM_OFFSET)).clamp(max=1.0).expand_as(norms), norms


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Sets evaluation mode without Opacus's hooks; restores both and torch's generator on exit."""
    training = [module for module in model.modules() if module.training]
    hooks = [module for module in model.modules() if hasattr(module, "disable_hooks")]
    enabled = [module for module in hooks if getattr(module, "hooks_enabled", False)]
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=list(devices)), warnings.catch_warnings():
        # Harmless: torch warns about Opacus's hooks if no gradient by the input is computed.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        try:
            for module in training:
                module.training = False
            for module in enabled:
                module.disable_hooks()
            yield
        finally:
            for module in training:
                module.training = True
            for module in enabled:
                module.enable_hooks()
