"""Loops without a mistake, about which the test must report no finding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opacus.optimizers import AdaClipDPOptimizer
from opacus.optimizers.perlayeroptimizer import DPPerLayerOptimizer
from torch import nn

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import Loop, LoraTransformer, Lstm, convnet, normalised
from benchmarks.training_loops.opacus_loops import OpacusLoop, Private, halves


@dataclass(frozen=True)
class Control:
    """A training function and its data.

    Attributes:
        train: the function.
        data: makes the records.
        source: address of a public report of the mistake, or empty.
        relation: neighbouring relation; None is the default of `audit.check`.
        expected: a word of the finding about a broken loop.
    """

    train: Any
    data: Any = loops.dense
    source: str = ""
    relation: str | None = None
    expected: str = ""


def _schedule(state: Any) -> None:
    """The noise grows, and the accountant records it."""
    state.noise_multiplier = 1.0 + 0.2 * state.step


def _clip_schedule(state: Any) -> None:
    """The threshold falls, and the noise with it."""
    state.clip = 0.5 * 0.8**state.step


def _average(state: Any) -> None:
    """An exponential average of released weights."""
    now = torch.cat([p.detach().flatten() for p in state.parameters])
    before = state.__dict__.get("average", now)
    state.average = 0.9 * before + 0.1 * now


def _augmented(state: Any, x: Any, y: Any) -> list[Any]:
    """Gradients of two noisy copies of a record, averaged before clipping."""
    one = loops.each_gradient(state, x + 0.1 * torch.randn_like(x), y)
    two = loops.each_gradient(state, x + 0.1 * torch.randn_like(x), y)
    return [(a + b) / 2 for a, b in zip(one, two, strict=True)]


def _momentum_by_hand(state: Any) -> None:
    """Adds momentum of the released gradients to the step of the optimizer."""
    before = state.__dict__.get("velocity", [torch.zeros_like(p) for p in state.parameters])
    state.velocity = [0.5 * v + p.grad for v, p in zip(before, state.parameters, strict=True)]
    with torch.no_grad():
        for p, v in zip(state.parameters, before, strict=True):
            p -= 0.1 * 0.5 * v


def _by_generator(state: Any, total: list[Any]) -> list[Any]:
    """A generator of the loop's own, made once from the run's seed."""
    if "generator" not in state.__dict__:
        state.generator = torch.Generator().manual_seed(state.seed)
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape, generator=state.generator) for g in total]


def _by_numpy(state: Any, total: list[Any]) -> list[Any]:
    """Noise by numpy, from the run's seed."""
    if "random" not in state.__dict__:
        state.random = np.random.default_rng(state.seed)
    scale = state.noise_multiplier * state.clip
    drawn = [state.random.normal(0.0, scale, g.shape).astype(np.float32) for g in total]
    return [g + torch.from_numpy(z) for g, z in zip(total, drawn, strict=True)]


def _each_layer(state: Any, each: list[Any]) -> list[Any]:
    """Every tensor is clipped to a threshold of its own."""
    found = []
    for g, clip in zip(each, (0.4, 0.05, 0.3, 0.1), strict=True):
        factor = (clip / g.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)
        found.append(torch.einsum("i,i...->...", factor, g))
    return found


def _noise_of_each_layer(state: Any, total: list[Any]) -> list[Any]:
    """Noise in proportion to the threshold of each of the four tensors."""
    scales = [2 * state.noise_multiplier * clip for clip in (0.4, 0.05, 0.3, 0.1)]
    return [g + s * torch.randn_like(g) for g, s in zip(total, scales, strict=True)]


def noisy_quantile(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The threshold follows a noisy share of clipped records, which is declared."""
    state = {"clip": 0.5}

    def total(run: Any, each: list[Any]) -> list[Any]:
        run.clip = state["clip"]
        share = (loops.norms(each) < run.clip).float().sum() + 5.0 * torch.randn(())
        released = watch.release(share / len(run.y))
        summed = loops.clipped_sum(run, each)
        state["clip"] = float(run.clip * torch.exp(-0.2 * (released - 0.5)))
        return summed

    def history(loop: Loop, run: Any) -> list[Any]:
        return [(1.0, 1.0, loop.steps), (5.0, 1.0, loop.steps)]

    return Loop(total=total, history=history, divide=lambda run, taken: 10.0)(
        records, candidate, seed, watch
    )


def dropout_mlp() -> nn.Module:
    """An MLP with dropout."""
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, loops.CLASSES))


def _adam(parameters: Any, lr: float) -> Any:
    return torch.optim.Adam(parameters, lr=lr)


def _momentum(parameters: Any, lr: float) -> Any:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)


def _adamw(parameters: Any, lr: float) -> Any:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1)


def noisy_sum(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The Gaussian mechanism on a clipped sum: a black box."""
    watch.claim(accounting.GaussianMechanism(0.5).epsilon(1e-5))
    x = records.features.reshape(len(records), -1).astype(float)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return x.sum(0) + 2.0 * np.random.default_rng(seed).normal(size=x.shape[1])


def noisy_count(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The Laplace mechanism on a count: a black box."""
    watch.claim(1.0)
    return float((records.labels == 0).sum() + np.random.default_rng(seed).laplace())


def noisy_largest(records: Any, candidate: Any, seed: int, watch: Any) -> int:
    """Report noisy max of the label counts: a black box that releases a whole number."""
    watch.claim(1.0)
    counts = np.bincount(records.labels, minlength=3)
    noise = np.random.default_rng(seed).exponential(2.0, size=len(counts))
    return int(np.argmax(counts + noise))


def noisy_perceptron(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Class means with Gaussian noise, as an estimator: a black box."""
    from sklearn.neighbors import NearestCentroid

    watch.claim(2 * accounting.GaussianMechanism(1.0).epsilon(1e-5))
    random = np.random.default_rng(seed)
    x = records.features.reshape(len(records), -1).astype(float)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    centers = np.stack([x[records.labels == c].sum(0) for c in range(3)]) / 8
    centers += random.normal(size=centers.shape) / 8
    model = NearestCentroid()
    model.centroids_, model.classes_ = centers, np.arange(3)
    model.n_features_in_ = x.shape[1]
    return _CentroidScores(centers)


class _CentroidScores:
    """Scores of classes by distance to released centers."""

    def __init__(self, centers: Any) -> None:
        self.centers_, self.classes_ = centers, np.arange(len(centers))

    def decision_function(self, features: Any) -> Any:
        """Minus the distances, [n, classes]."""
        x = np.asarray(features, float).reshape(len(features), -1)
        return -np.linalg.norm(x[:, None] - self.centers_[None], axis=2)


class _Frequencies(nn.Module):
    """Learns the frequencies of the classes alone, so records of one class contribute alike."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(loops.CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def _in_public_range(state: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Leaves out records with values beyond a public limit."""
    kept = x.abs().amax(dim=1) < 8
    return x[kept], y[kept]


CORRECT: dict[str, Control] = {
    "MLP, full batches": Control(Loop()),
    "MLP, Poisson": Control(Loop(steps=8, sampling_rate=0.3)),
    "ConvNet, Poisson": Control(Loop(model=convnet, steps=6, sampling_rate=0.4), loops.images),
    "label frequencies, Poisson": Control(Loop(model=_Frequencies, steps=6, sampling_rate=0.4)),
    "values out of a public range left out": Control(
        Loop(prepare=_in_public_range, steps=8, sampling_rate=0.3)
    ),
    "LSTM, full batches": Control(Loop(model=Lstm, steps=3), loops.tokens),
    "LSTM, Poisson": Control(Loop(model=Lstm, steps=6, sampling_rate=0.4), loops.tokens),
    "LayerNorm, Adam": Control(Loop(model=normalised, optimizer=_adam)),
    "LoRA, Poisson, AdamW": Control(
        Loop(model=LoraTransformer, steps=6, sampling_rate=0.4, optimizer=_adamw), loops.tokens
    ),
    "momentum in the optimizer": Control(Loop(optimizer=_momentum)),
    "momentum by hand, of noisy gradients": Control(Loop(after=_momentum_by_hand)),
    "noise schedule that is accounted": Control(Loop(before=_schedule, steps=6)),
    "clipping schedule, noise follows": Control(
        Loop(before=_clip_schedule, sampling_rate=0.5, steps=6)
    ),
    "closure": Control(Loop(closure=True)),
    "averaged weights": Control(
        Loop(after=_average, result=lambda s, x, y: {"model": s.model, "average": s.average})
    ),
    "augmentation before clipping": Control(Loop(gradients=_augmented)),
    "generator of the loop": Control(Loop(noise=_by_generator, sampling_rate=0.4, steps=6)),
    "noise by numpy": Control(Loop(noise=_by_numpy)),
    "thresholds and noise for each layer": Control(
        Loop(total=_each_layer, noise=_noise_of_each_layer)
    ),
    "threshold by a noisy quantile": Control(noisy_quantile),
    "dropout": Control(Loop(model=dropout_mlp, sampling_rate=0.5, steps=6)),
    "much noise": Control(Loop(noise_multiplier=20.0)),
    "little noise": Control(Loop(noise_multiplier=0.3, steps=2)),
    "Opacus, full batches": Control(OpacusLoop()),
    "Opacus, Poisson": Control(OpacusLoop(sampling_rate=0.3, steps=8)),
    "Opacus, per layer": Control(
        OpacusLoop(
            optimizer_class=DPPerLayerOptimizer, options={"max_grad_norm": [0.3, 0.2, 0.4, 0.1]}
        )
    ),
    "Opacus, adaptive": Control(
        OpacusLoop(
            optimizer_class=AdaClipDPOptimizer,
            options={
                "target_unclipped_quantile": 0.5,
                "clipbound_learning_rate": 0.2,
                "max_clipbound": 2.0,
                "min_clipbound": 0.1,
                "unclipped_num_std": 2.0,
            },
        )
    ),
    "Opacus, accumulated batches": Control(
        OpacusLoop(steps=4, accumulate=2, divisor=10, recorded_rate=0.5, loader=halves)
    ),
    "Opacus, BatchMemoryManager": Control(OpacusLoop(sampling_rate=0.5, steps=6, physical=4)),
    "make_private": Control(Private(), relation="zero-out"),
    "make_private, ghost clipping": Control(
        Private(options={"grad_sample_mode": "ghost"}), relation="zero-out"
    ),
    "make_private, functorch": Control(
        Private(options={"grad_sample_mode": "functorch"}), relation="zero-out"
    ),
    "make_private, Adam, ConvNet": Control(
        Private(model=convnet, inner=torch.optim.Adam), loops.images, relation="zero-out"
    ),
    "Gaussian mechanism (black box)": Control(noisy_sum),
    "Laplace mechanism (black box)": Control(noisy_count),
    "report noisy max (black box)": Control(noisy_largest),
    "noisy class means (black box)": Control(noisy_perceptron),
}
