"""Loops by Opacus, each of whose parts can be exchanged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.training_loops.loops import mlp


def _padded(shape: Any) -> Any:
    """A collate function that accepts empty batches."""
    from torch.utils.data import default_collate

    x_shape, y_type, x_type = shape

    def collate(batch: list[Any]) -> Any:
        if batch:
            return default_collate(batch)
        return torch.zeros(0, *x_shape, dtype=x_type), torch.zeros(0, dtype=y_type)

    return collate


@dataclass(frozen=True)
class OpacusLoop:
    """DP-SGD from parts of Opacus with public constants, so that nothing depends on n.

    Attributes:
        model: builds the model.
        steps, noise_multiplier, clip, sampling_rate, divisor, rate: as in `Loop`.
        optimizer_class: class of the private optimizer.
        options: further arguments of the private optimizer.
        recorded: the noise multiplier that the accountant records, if it differs.
        recorded_rate: the sampling rate that the accountant records, if it differs.
        loader: makes the batches of one pass, given (dataset, rate, steps).
        inner: the optimizer that the private one wraps.
        accumulate: number of batches per step.
        physical: largest number of records at a time, by Opacus's BatchMemoryManager.
        after: called after each step with (model, optimizer, step).
        result: returns the release, given (model, x, y).
        declared: the reduction of the loss that the model's wrapper assumes; the loss is a mean.
    """

    model: Callable[[], nn.Module] = mlp
    steps: int = 4
    noise_multiplier: float = 1.0
    clip: float = 0.5
    sampling_rate: float = 1.0
    divisor: int = 10
    rate: float = 0.1
    optimizer_class: type[DPOptimizer] = DPOptimizer
    options: dict[str, Any] = field(default_factory=dict)
    recorded: float | None = None
    recorded_rate: float | None = None
    inner: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    accumulate: int = 1
    physical: int = 0
    attach: bool = True
    before: Callable[..., None] | None = None
    after: Callable[..., None] | None = None
    result: Callable[..., Any] | None = None
    loader: Callable[..., Any] | None = None
    declared: str = "mean"

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains, as `audit.check` calls it."""
        model = GradSampleModule(self.model(), loss_reduction=self.declared)
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.optimizer_class(
            self.inner(parameters, lr=self.rate),
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.divisor,
            **{"max_grad_norm": self.clip, **self.options},
        )
        accountant = RDPAccountant()
        rate = self.sampling_rate if self.recorded_rate is None else self.recorded_rate
        if self.attach and self.recorded is None:
            optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
        watch(optimizer, model, accountant)
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        data = TensorDataset(x, y)
        loader = (self.loader or _poisson)(data, self.sampling_rate, self.steps)
        if self.physical:
            with BatchMemoryManager(
                data_loader=loader,
                max_physical_batch_size=self.physical,
                optimizer=optimizer,
            ) as memory_safe:
                self._train(model, optimizer, memory_safe)
        else:
            self._train(model, optimizer, loader)
        if self.recorded is not None:
            accountant.history = [(self.recorded, rate, self.steps)]
        return model if self.result is None else self.result(model, x, y)

    def _train(self, model: Any, optimizer: Any, loader: Any) -> None:
        optimizer.zero_grad()
        for step, (x, y) in enumerate(loader):
            if len(y):
                functional.cross_entropy(model(x), y).backward()
            else:
                for p in optimizer.params:
                    p.grad_sample = torch.zeros(0, *p.shape)
            if (step + 1) % self.accumulate:
                continue
            if self.before is not None:
                self.before(model, optimizer, step)
            optimizer.step()
            if self.after is not None:
                self.after(model, optimizer, step)
            optimizer.zero_grad()


def _poisson(data: TensorDataset, rate: float, steps: int) -> Any:
    """Poisson samples at a public rate; every record at rate 1."""
    collate = _padded((data.tensors[0].shape[1:], data.tensors[1].dtype, data.tensors[0].dtype))
    if rate == 1.0:
        every = [list(range(len(data)))] * steps
        return DataLoader(data, batch_sampler=every, collate_fn=collate)
    sampler = UniformWithReplacementSampler(num_samples=len(data), sample_rate=rate, steps=steps)
    return DataLoader(data, batch_sampler=sampler, collate_fn=collate)


def shuffled(data: TensorDataset, rate: float, steps: int) -> Any:
    """Batches of a fixed size, shuffled in every pass."""
    size = max(round(rate * len(data)), 1)
    made: list[list[int]] = []
    while len(made) < steps:
        order = torch.randperm(len(data)).tolist()
        made += [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    return DataLoader(data, batch_sampler=made[:steps])


def halves(data: TensorDataset, rate: float, steps: int) -> Any:
    """Every record once in two batches."""
    every = list(range(len(data)))
    return DataLoader(data, batch_sampler=[every[0::2], every[1::2]] * steps)


def weighted(data: TensorDataset, rate: float, steps: int) -> Any:
    """Records of rare classes are drawn more often (a WeightedRandomSampler)."""
    labels = data.tensors[1]
    weights = 1.0 / torch.bincount(labels)[labels].double()
    size = max(round(rate * len(data)), 1)
    made = [torch.multinomial(weights, size).tolist() for _ in range(steps)]
    return DataLoader(data, batch_sampler=made)


@dataclass(frozen=True)
class Private:
    """`PrivacyEngine.make_private` as in Opacus's tutorials.

    Attributes:
        model: builds the model.
        epochs: number of passes.
        batch_size: batch size of the loader.
        options: further arguments of make_private.
        physical: as in `OpacusLoop`.
    """

    model: Callable[[], nn.Module] = mlp
    epochs: int = 2
    batch_size: int = 8
    noise_multiplier: float = 1.0
    clip: float | list[float] = 0.5
    options: dict[str, Any] = field(default_factory=dict)
    physical: int = 0
    fixed: bool = False
    inner: Callable[..., torch.optim.Optimizer] = torch.optim.SGD

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains, as `audit.check` calls it."""
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        model = self.model()
        optimizer = self.inner(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=self.batch_size, shuffle=True)
        criterion = nn.CrossEntropyLoss()
        engine = PrivacyEngine()
        made = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.clip,
            **({"criterion": criterion} | self.options),
        )
        if self.options.get("grad_sample_mode") == "ghost":
            model, optimizer, criterion, loader = made
        else:
            model, optimizer, loader = made
        if self.fixed:
            optimizer.expected_batch_size = self.batch_size
        watch(optimizer, model, engine)
        for _ in range(self.epochs):
            if self.physical:
                with BatchMemoryManager(
                    data_loader=loader,
                    max_physical_batch_size=self.physical,
                    optimizer=optimizer,
                ) as memory_safe:
                    self._train(model, optimizer, memory_safe, criterion)
            else:
                self._train(model, optimizer, loader, criterion)
        return model

    def _train(self, model: Any, optimizer: Any, loader: Any, criterion: Any) -> None:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
