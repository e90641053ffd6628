"""Loops with and without a mistake, after public reports that no other list uses.

All of them were written before the test was run on any.
"""

import math
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.training_loops import arrays, loops
from benchmarks.training_loops.arrays import CLIP, RATE, SIGMA, STEPS, NumpyLoop
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.mechanisms import BINS, EPSILON, WIDTH, clipped_rows

# --- torch ---


def noise_by_each_record(state: Any, total: list[Any]) -> list[Any]:
    """Each record adds noise of sigma C / b, so that the sum has noise of sigma C / sqrt(b)."""
    count = max(len(state.taken), 1)
    deviation = state.noise_multiplier * state.clip / count
    noises = [deviation * torch.randn(count, *g.shape).sum(0) for g in total]
    return [g + noise for g, noise in zip(total, noises, strict=True)]


def noise_times_squared_threshold(state: Any, total: list[Any]) -> list[Any]:
    """The noise is multiplied by C twice."""
    deviation = state.noise_multiplier * state.clip**2
    return [g + deviation * torch.randn_like(g) for g in total]


def ghost(records: Any, candidate: Any, seed: int, watch: Any, threshold: float | None) -> Any:
    """Ghost clipping with one batch; the module may clip to another threshold than the noise's."""
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    model = loops.mlp()
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(y)),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        grad_sample_mode="ghost",
    )
    if threshold is not None:
        model.max_grad_norm = threshold
    watch(optimizer, model)
    watch.claim(20.0)
    for _ in range(4):
        for features, labels in loader:
            optimizer.zero_grad()
            criterion(model(features), labels).backward()
            optimizer.step()
    return model


def with_batch_norm() -> nn.Module:
    """Batch normalisation that uses its running statistics during training."""
    layers = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, loops.CLASSES)
    return nn.Sequential(*layers).eval()


def statistics_after_training(state: Any, x: Any, y: Any) -> Any:
    """The statistics of batch normalisation are computed on the records after the training."""
    state.model.train()
    with torch.no_grad():
        state.model(x)
    return state.model.eval()


def overlapping_halves(state: Any, n: int) -> Any:
    """Two models in turn, on the first and on the last 13 of 24 records."""
    return torch.arange(n)[: n // 2 + 1] if state.step % 2 == 0 else torch.arange(n)[n // 2 - 1 :]


def parallel_composition(loop: Any, state: Any) -> Any:
    return [(1.0, 1.0, loop.steps // 2)]


def advantages(state: Any, x: Any, y: Any) -> list[Any]:
    """Clipped gradients, weighted by a reward that is standardised over the batch."""
    each = loops.each_gradient(state, x, y)
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    reward = x[:, 0]
    weight = (reward - reward.mean()) / (reward.std(correction=0) + 1e-3)
    weight = factor * (weight / 3).clamp(-1, 1)
    return [g * weight.reshape(-1, *[1] * (g.dim() - 1)) for g in each]


def views(state: Any, x: Any, y: Any) -> list[Any]:
    """Four views of each record, each with its own clipped gradient."""
    shifts = [0.1 * i for i in range(4)]
    made = [loops.each_gradient(state, x + shift, y) for shift in shifts]
    return [torch.cat(parts) for parts in zip(*made, strict=True)]


def mean_of_views(state: Any, x: Any, y: Any) -> list[Any]:
    """The mean gradient of four views of each record, which is then clipped."""
    made = [loops.each_gradient(state, x + 0.1 * i, y) for i in range(4)]
    return [torch.stack(parts).mean(0) for parts in zip(*made, strict=True)]


def forked_generator(state: Any, total: list[Any]) -> list[Any]:
    """Noise is drawn from a fork of the generator, whose state does not come back."""
    with torch.random.fork_rng():
        return loops.gaussian(state, total)


def without_doubtful_labels(state: Any, x: Any, y: Any) -> Any:
    """Leaves out records whose label differs from those of their three nearest neighbours."""
    near = torch.cdist(x, x).argsort(dim=1)[:, 1:4]
    agrees = (y[near] == y[:, None]).any(dim=1)
    return x[agrees], y[agrees]


def threshold_by_length(state: Any, each: list[Any]) -> list[Any]:
    """Each record's threshold is C times its norm over the mean norm of the batch."""
    lengths = state.x[state.taken].norm(dim=1)
    own = state.clip * lengths / lengths.mean().clamp(min=1e-9)
    factor = (own / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    return [(factor @ g.flatten(1)).reshape(g.shape[1:]) for g in each]


def automatic(state: Any, each: list[Any]) -> list[Any]:
    """Gradients are scaled to a norm below C: C / (norm + 0.01)."""
    factor = state.clip / (loops.norms(each) + 0.01)
    return [(factor @ g.flatten(1)).reshape(g.shape[1:]) for g in each]


def head_by_least_squares(state: Any, x: Any, y: Any) -> Any:
    """The head is fitted by least squares on the records after the training."""
    with torch.no_grad():
        hidden = state.model[1](state.model[0](x))
        targets = functional.one_hot(y, loops.CLASSES).to(hidden.dtype)
        gram = hidden.T @ hidden + torch.eye(hidden.shape[1])
        state.model[2].weight.copy_(torch.linalg.solve(gram, hidden.T @ targets).T)
    return state.model


# --- numpy ---


def padded_with_the_first(state: Any) -> Any:
    """The last microbatch of four is filled with records of the first one."""
    chosen = arrays.poisson(state)
    missing = -len(chosen) % 4
    return np.concatenate([chosen, chosen[: min(missing, len(chosen))]])


def padded_with_nothing(state: Any, each: Any) -> Any:
    """The last microbatch of four is filled with zeros."""
    missing = -len(each["b"]) % 4
    filled = {n: np.concatenate([g, np.zeros((missing, *g.shape[1:]))]) for n, g in each.items()}
    return arrays.clipped_sum(state, filled)


def weighted_by_counts(state: Any, each: Any) -> Any:
    """Clipped updates of clients, weighted by their number of examples over the mean number."""
    counts = 1.0 + np.abs(state.x[state.memory, 0])
    weights = counts / counts.mean() if len(counts) else counts
    factors = np.minimum(1.0, state.clip / np.maximum(arrays.norms(each), 1e-12))
    return arrays.scaled(each, factors * weights)


def remembered(state: Any) -> Any:
    state.memory = arrays.poisson(state)
    return state.memory


def three_local_steps(state: Any, each: Any) -> Any:
    """The sum of three local steps, each of clipped gradients, and noise for one of them."""
    x, y, params = state.x, state.y, dict(state.params)
    total = {n: np.zeros_like(v) for n, v in params.items()}
    for _ in range(3):
        step = arrays.clipped_sum(state, arrays.each_gradient(params, x, y))
        total = {n: v + step[n] for n, v in total.items()}
        params = {n: v - 0.05 * step[n] for n, v in params.items()}
    return total


def balanced(state: Any) -> Any:
    """Records of rare classes are drawn more often; the mean rate is accounted for."""
    counts = np.bincount(state.y, minlength=3)
    weights = 1.0 / counts[state.y] ** 2
    rates = np.minimum(1.0, state.rate * len(state.y) * weights / weights.sum())
    return np.flatnonzero(state.random.random(len(state.y)) < rates)


def one_uniform(state: Any, total: Any) -> Any:
    """Box and Muller's transform with one uniform number for radius and angle."""
    noisy = {}
    for name, values in total.items():
        u = state.random.random(values.shape)
        noise = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * math.pi * u)
        noisy[name] = values + state.sigma * state.clip * noise
    return noisy


def two_uniforms(state: Any, total: Any) -> Any:
    """Box and Muller's transform."""
    noisy = {}
    for name, values in total.items():
        radius, angle = state.random.random((2, *values.shape))
        noise = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * angle)
        noisy[name] = values + state.sigma * state.clip * noise
    return noisy


# --- mechanisms ---


def squares(records: Any, candidate: Any, seed: int, watch: Any, sensitivity: float) -> Any:
    """A sum of squares of values in [-3, 3]; a record changes it by at most 9."""
    values = np.clip(records.features[:, 0].astype(float), -3, 3)
    noise = np.random.default_rng(seed).laplace(0, sensitivity / EPSILON)
    return watch.release(np.square(values).sum() + noise, epsilon=EPSILON)


def cumulative(records: Any, candidate: Any, seed: int, watch: Any, sensitivity: float) -> Any:
    """Counts below each of several limits; a record is in all of them."""
    values = np.clip(records.features[:, 0].astype(float), -3, 3)
    limits = np.linspace(-2, 3, BINS)
    noise = np.random.default_rng(seed).laplace(0, sensitivity / EPSILON, BINS)
    return watch.release((values[:, None] <= limits).sum(0) + noise, epsilon=EPSILON)


def covariance(records: Any, candidate: Any, seed: int, watch: Any, by_norm: bool) -> Any:
    """X'X of rows that are clipped by their norm, or by their coordinates."""
    x = records.features[:, :WIDTH].astype(float)
    x = clipped_rows(x) if by_norm else np.clip(x, -1, 1)
    noise = np.random.default_rng(seed).normal(0, 2.0, (WIDTH, WIDTH))
    return watch.release(x.T @ x + noise, noise_multiplier=2.0)


# --- JAX ---


def jax_steps(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    total: Any = lambda params, x, y, mask: arrays.jax_clipped(
        arrays.jax_gradients(params, x, y), mask, CLIP
    ),
    noise: Any = arrays.jax_noise,
    masks: Any = lambda key, n: jax.random.bernoulli(key, RATE, (n,)),
) -> Any:
    """DP-SGD in JAX whose sum, noise and batches can be exchanged."""
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jax.numpy.asarray(records.features), jax.numpy.asarray(records.labels)
    params = arrays.jax_start()
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        mask = masks(jax.random.fold_in(batches, step), len(y))
        summed = total(params, x, y, mask)
        noisy = noise(jax.random.fold_in(noises, step), summed, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, noisy)
    return params


def clipped_by_leaf(params: Any, x: Any, y: Any, mask: Any) -> Any:
    """Each array of a record's gradient is clipped to C by itself."""
    each = arrays.jax_gradients(params, x, y)
    return {n: arrays.jax_clipped({n: g}, mask, CLIP)[n] for n, g in each.items()}


def centred_over_all(params: Any, x: Any, y: Any, mask: Any) -> Any:
    """Features are centred over all records, also those that the mask leaves out."""
    centred = x - x.mean(0)
    return arrays.jax_clipped(arrays.jax_gradients(params, centred, y), mask, CLIP)


def uniform_noise(key: Any, total: Any, deviation: float) -> Any:
    """Uniform numbers of the right variance."""
    width = deviation * math.sqrt(3.0)
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.uniform(k, v.shape, minval=-width, maxval=width)
             for k, v in zip(keys, leaves, strict=True)]  # fmt: skip
    return jax.tree.unflatten(structure, [v + d for v, d in zip(leaves, drawn, strict=True)])


def permuted_mask(key: Any, n: int) -> Any:
    """A batch of a fixed size from a permutation, accounted as a Poisson sample."""
    return jax.random.permutation(key, n) < round(RATE * n)


def by_optax(params: Any, x: Any, y: Any, mask: Any) -> Any:
    """Per-example clipping by `optax.per_example_global_norm_clip`."""
    each = arrays.jax_gradients(params, x, y)
    each = jax.tree.map(lambda g: g * mask.reshape(-1, *[1] * (g.ndim - 1)), each)
    leaves, structure = jax.tree.flatten(each)
    summed, _ = optax.per_example_global_norm_clip(leaves, CLIP)
    return jax.tree.unflatten(structure, summed)


FROM_REPORTS: dict[str, Control] = {
    "noise added by each record, divided by the batch": Control(
        Loop(noise=noise_by_each_record), source="https://github.com/tensorflow/privacy/issues/88"
    ),
    "noise multiplied by C twice": Control(
        Loop(noise=noise_times_squared_threshold),
        source="https://github.com/greenelab/SPRINT_gan/issues/5",
    ),
    "ghost clipping to another threshold than the noise's": Control(
        partial(ghost, threshold=1.0),
        source="https://github.com/meta-pytorch/opacus/pull/664",
        relation="zero-out",
    ),
    "BatchNorm statistics computed after the training": Control(
        Loop(model=with_batch_norm, result=statistics_after_training)
    ),
    "two overlapping halves, parallel composition": Control(
        Loop(batch=overlapping_halves, history=parallel_composition, steps=6)
    ),
    "rewards standardised over the batch": Control(
        Loop(gradients=advantages, total=lambda state, each: [g.sum(0) for g in each])
    ),
    "each of four views clipped to C, Poisson": Control(
        Loop(gradients=views, sampling_rate=0.4, steps=6)
    ),
    "noise from a forked generator, Poisson": Control(
        Loop(noise=forked_generator, sampling_rate=0.4, steps=6)
    ),
    "records with doubtful labels left out": Control(Loop(prepare=without_doubtful_labels)),
    "threshold by the norm of the record": Control(Loop(total=threshold_by_length)),
    "head fitted by least squares after the training": Control(Loop(result=head_by_least_squares)),
    "numpy, microbatch filled with records of the first": Control(
        NumpyLoop(batch=padded_with_the_first),
        source="https://github.com/google-deepmind/jax_privacy/pull/223",
    ),
    "numpy, clipped updates weighted by counts": Control(
        NumpyLoop(batch=remembered, total=weighted_by_counts),
        source="https://github.com/VectorInstitute/FL4Health/pull/10",
    ),
    "numpy, three local steps, noise for one": Control(
        NumpyLoop(**arrays.FULL, total=three_local_steps),
        source="https://github.com/Yangfan-Jiang/Federated-Learning-with-Differential-Privacy/issues/3",
    ),
    "numpy, balanced classes, mean rate accounted": Control(NumpyLoop(batch=balanced)),
    "numpy, one uniform number for radius and angle": Control(NumpyLoop(noise=one_uniform)),
    "sum of squares, sensitivity of the values": Control(partial(squares, sensitivity=3.0)),
    "cumulative counts, sensitivity of one count": Control(partial(cumulative, sensitivity=1.0)),
    "covariance of rows clipped by coordinate": Control(partial(covariance, by_norm=False)),
    "JAX, each array clipped to C": Control(
        partial(jax_steps, total=clipped_by_leaf),
        source="https://github.com/google-deepmind/jax_privacy/pull/338",
    ),
    "JAX, features centred over all records": Control(partial(jax_steps, total=centred_over_all)),
    "JAX, uniform noise": Control(partial(jax_steps, noise=uniform_noise)),
    "JAX, permuted mask of a fixed size": Control(partial(jax_steps, masks=permuted_mask)),
}

FROM_REPORTS_CORRECT: dict[str, Control] = {
    "ghost clipping, one batch": Control(partial(ghost, threshold=None), relation="zero-out"),
    "BatchNorm with fixed statistics": Control(Loop(model=with_batch_norm)),
    "mean of four views clipped to C, Poisson": Control(
        Loop(gradients=mean_of_views, sampling_rate=0.4, steps=6)
    ),
    "automatic clipping, Poisson": Control(Loop(total=automatic, sampling_rate=0.4, steps=6)),
    "numpy, microbatch filled with zeros": Control(NumpyLoop(total=padded_with_nothing)),
    "numpy, two uniform numbers for radius and angle": Control(NumpyLoop(noise=two_uniforms)),
    "sum of squares": Control(partial(squares, sensitivity=9.0)),
    "cumulative counts": Control(partial(cumulative, sensitivity=float(BINS))),
    "covariance of rows clipped by norm": Control(partial(covariance, by_norm=True)),
    "JAX, Poisson masks": Control(jax_steps),
    "JAX, clipped by optax": Control(partial(jax_steps, total=by_optax)),
}
