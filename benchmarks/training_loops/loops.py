"""Data, models and one hand-written DP-SGD loop whose parts can be exchanged."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 3
VOCABULARY = 12
Records = tuple[np.ndarray, np.ndarray]


def dense(size: int = 24) -> Records:
    """Dense features of separable classes, [n, 8]."""
    random = np.random.default_rng(0)
    labels = np.arange(size) % CLASSES
    features = random.normal(size=(size, 8))
    features[:, :CLASSES] += 2.0 * np.eye(CLASSES)[labels]
    return features.astype(np.float32), labels


def images(size: int = 16) -> Records:
    """Small grey images, [n, 1, 6, 6]."""
    random = np.random.default_rng(1)
    labels = np.arange(size) % CLASSES
    features = random.random((size, 1, 6, 6)) * 0.3
    for i, label in enumerate(labels):
        features[i, 0, 2 * label : 2 * label + 2] += 0.7
    return features.astype(np.float32), labels


def tokens(size: int = 16) -> Records:
    """Short sequences of tokens, [n, 5]."""
    random = np.random.default_rng(2)
    labels = np.arange(size) % CLASSES
    features = random.integers(0, VOCABULARY, size=(size, 5))
    features[:, 0] = labels
    return features, labels


# --- models ---


def mlp() -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def convnet() -> nn.Module:
    """One convolution, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)
    )


def normalised() -> nn.Module:
    """An MLP with LayerNorm."""
    return nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, CLASSES))


class Lstm(nn.Module):
    """An embedding, an LSTM written out, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.gates = nn.Linear(8, 16)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        each = self.embedding(x)
        hidden = torch.zeros_like(each[:, 0])
        cell = torch.zeros_like(hidden)
        for t in range(x.shape[1]):
            gates = self.gates(torch.cat([each[:, t], hidden], dim=1))
            i, f, g, o = gates.chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden)


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank adapter."""

    def __init__(self, width: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.lora_a = nn.Linear(width, rank, bias=False)
        self.lora_b = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.lora_b(self.lora_a(x))


class LoraTransformer(nn.Module):
    """One block of attention with adapters on queries and values, and a trainable head."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.embedding.weight.requires_grad_(False)
        self.query, self.value = LoraLinear(width), LoraLinear(width)
        self.key = nn.Linear(width, width)
        for parameter in self.key.parameters():
            parameter.requires_grad_(False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        each = self.embedding(x)
        scores = self.query(each) @ self.key(each).transpose(1, 2) / math.sqrt(each.shape[-1])
        mixed = torch.softmax(scores, dim=-1) @ self.value(each)
        return self.head(self.norm(each + mixed).mean(dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Records]]] = {
    "MLP": (mlp, dense),
    "ConvNet": (convnet, images),
    "LSTM": (Lstm, tokens),
    "LayerNorm": (normalised, dense),
    "LoRA": (LoraTransformer, tokens),
}


# --- the parts of a loop, each as it should be ---

State = SimpleNamespace


def each_gradient(state: State, x: Tensor, y: Tensor) -> list[Tensor]:
    """Every record's own gradient: one [b, ...] per trainable tensor."""
    trained = {k: p for k, p in state.model.named_parameters() if p.requires_grad}
    if not len(y):
        return [torch.zeros(0, *p.shape) for p in trained.values()]
    if {type(module) for module in state.model.modules()} <= _LINEAR | _WITHOUT_MIXING:
        return _gradients_of_layers(state.model, list(trained.values()), x, y)

    def loss(parameters: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        out = torch.func.functional_call(state.model, parameters, (one_x[None],))
        return functional.cross_entropy(out, one_y[None])

    detached = {k: p.detach() for k, p in trained.items()}
    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")(
        detached, x, y
    )
    return [grads[k] for k in trained]


# Layers whose output is linear in their weights, and modules that keep records apart.
_LINEAR = {nn.Linear, nn.Embedding, nn.LayerNorm, nn.Conv2d}
_WITHOUT_MIXING = {
    *(nn.Sequential, nn.Flatten, nn.Tanh, nn.ReLU),
    *(Lstm, LoraLinear, LoraTransformer),
}


def _gradients_of_layers(
    model: nn.Module, trained: list[nn.Parameter], x: Tensor, y: Tensor
) -> list[Tensor]:
    """The same from gradients by the layers' outputs, several times as fast as by vmap."""
    found: dict[Tensor, Tensor | None] = dict.fromkeys(trained)
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((layer, inputs[0].detach(), output))

    layers = [each for each in model.modules() if getattr(each, "weight", None) in found]
    hooks = [each.register_forward_hook(keep) for each in layers]
    loss = functional.cross_entropy(model(x), y, reduction="sum")
    for hook in hooks:
        hook.remove()
    back = torch.autograd.grad(loss, [output for _, _, output in calls])
    for (layer, inputs, _), g in zip(calls, back, strict=True):
        for name, gradient in _products(layer, inputs, g).items():
            if (parameter := getattr(layer, name)) in found:
                before = found[parameter]  # of another call of the layer
                found[parameter] = gradient if before is None else before + gradient
    return list(found.values())


def _products(layer: nn.Module, inputs: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Each record's gradients by weight and bias, given those by the output, [b, ...]."""
    if isinstance(layer, nn.Linear) and g.dim() == 2:
        return {"weight": g[:, :, None] * inputs[:, None], "bias": g}
    if isinstance(layer, nn.Embedding):
        hot = functional.one_hot(inputs, layer.num_embeddings).to(g.dtype)
        return {"weight": torch.einsum("b...v,b...d->bvd", hot, g)}
    if isinstance(layer, nn.Conv2d):
        g = g.flatten(2)
        patches = functional.unfold(inputs, layer.kernel_size, stride=layer.stride)
        weight = (g @ patches.transpose(1, 2)).reshape(len(g), *layer.weight.shape)
        return {"weight": weight, "bias": g.sum(2)}
    g = g.reshape(len(g), -1, g.shape[-1])  # [b, positions, outputs]
    if isinstance(layer, nn.LayerNorm):
        scaled = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        return {"weight": (g * scaled.reshape(g.shape)).sum(1), "bias": g.sum(1)}
    inputs = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    return {"weight": g.transpose(1, 2) @ inputs, "bias": g.sum(1)}


def norms(each: list[Tensor]) -> Tensor:
    """Norms over all tensors, [b]."""
    return torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)


def clipped_sum(state: State, each: list[Tensor]) -> list[Tensor]:
    """Every record's gradient clipped to C, then the sum."""
    factor = (state.clip / norms(each).clamp(min=1e-12)).clamp(max=1.0)
    return [(factor @ g.flatten(1)).reshape(g.shape[1:]) for g in each]


def gaussian(state: State, total: list[Tensor]) -> list[Tensor]:
    """New noise of standard deviation sigma C for every coordinate."""
    return [g + torch.randn_like(g) * state.noise_multiplier * state.clip for g in total]


def momentum(state: State, total: list[Tensor]) -> list[Tensor]:
    """Momentum 0.9 of the given sums, kept from step to step."""
    before = state.__dict__.get("velocity", [torch.zeros_like(g) for g in total])
    state.velocity = [0.9 * v + g for v, g in zip(before, total, strict=True)]
    return state.velocity


def everyone(state: State, n: int) -> Tensor:
    """Full batches."""
    return torch.arange(n)


def poisson(state: State, n: int) -> Tensor:
    """Includes every record independently, with the sampling rate as probability."""
    return torch.nonzero(torch.rand(n) < state.sampling_rate)[:, 0]


def nothing(*_: Any) -> None:
    """No further work."""


@dataclass(frozen=True)
class Loop:
    """DP-SGD without Opacus; the defaults are correct.

    Attributes:
        model: builds the model.
        steps: T.
        noise_multiplier: sigma.
        clip: C.
        sampling_rate: q; below 1 batches are Poisson samples.
        divisor: a public constant.
        rate: learning rate.
        optimizer: builds the optimizer from parameters and learning rate.
        prepare: changes the data, given (state, x, y).
        gradients, total, noise, batch: the parts of a step.
        divide: returns the divisor of the noisy sum.
        before, after: called around each step of the optimizer.
        history: returns the accountant's history, given (loop, state); None records each step.
        result: returns the release, given (state, x, y); None releases the model.
    """

    model: Callable[[], nn.Module] = mlp
    steps: int = 4
    noise_multiplier: float = 1.0
    clip: float = 0.5
    sampling_rate: float = 1.0
    divisor: float = 10.0
    rate: float = 0.1
    optimizer: Callable[..., torch.optim.Optimizer] = lambda p, lr: torch.optim.SGD(p, lr=lr)
    prepare: Callable[..., tuple[Tensor, Tensor]] = lambda state, x, y: (x, y)
    gradients: Callable[..., list[Tensor]] = each_gradient
    total: Callable[..., list[Tensor]] = clipped_sum
    noise: Callable[..., list[Tensor]] = gaussian
    batch: Callable[..., Tensor] | None = None
    divide: Callable[..., float] = lambda state, taken: state.divisor
    start: Callable[..., None] = nothing
    before: Callable[..., None] = nothing
    after: Callable[..., Any] = nothing
    history: Callable[..., list[Any]] | None = None
    result: Callable[..., Any] | None = None
    closure: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains, as `audit.check` calls it."""
        state = State(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            divisor=self.divisor,
            steps=self.steps,
            step=0,
            seed=seed,
            **self.extra,
        )
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        state.model = self.model()
        x, y = self.prepare(state, x, y)
        state.x, state.y = x, y
        parameters = [p for p in state.model.parameters() if p.requires_grad]
        state.parameters = parameters
        optimizer = state.optimizer = self.optimizer(parameters, self.rate)
        accountant = RDPAccountant()
        self.start(state)
        watch(optimizer, state.model, accountant)
        draw = self.batch or (everyone if self.sampling_rate == 1 else poisson)
        for step in range(self.steps):
            state.step = step
            if state.__dict__.get("stop"):
                break

            def compute() -> None:
                taken = draw(state, len(y))
                state.taken = taken
                each = self.gradients(state, x[taken], y[taken])
                state.each = each
                released = self.noise(state, self.total(state, each))
                by = self.divide(state, taken)
                for p, g in zip(parameters, released, strict=True):
                    p.grad = (g / by).detach().clone()

            self.before(state)
            if self.closure:
                optimizer.step(compute)
            else:
                compute()
                optimizer.step()
            accountant.step(noise_multiplier=state.noise_multiplier, sample_rate=self.sampling_rate)
            self.after(state)
        if self.history is not None:
            accountant.history = self.history(self, state)
        return state.model if self.result is None else self.result(state, x, y)


def make_private(
    records: Any,
    watch: Any,
    module: nn.Module,
    *,
    batch: int = 6,
    clip: float = 1.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **options: Any,
) -> Any:
    """What `PrivacyEngine.make_private` returns, watched."""
    data = TensorDataset(torch.from_numpy(records.features), torch.from_numpy(records.labels))
    trained = [p for p in module.parameters() if p.requires_grad]
    engine = PrivacyEngine(accountant="rdp")
    private = engine.make_private(
        module=module,
        optimizer=optimizer(trained, lr=0.1),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=clip,
        **options,
    )
    watch(private[1], private[0], engine.accountant)
    return private
