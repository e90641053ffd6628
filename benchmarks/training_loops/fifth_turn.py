"""Loops with and without a mistake, written with only the user guide of the test at hand.

All of them were written, and the list was committed, before the test was run on any. The docstring
of each function states why the mistake breaks the guarantee, or why the loop keeps it.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from opacus.grad_sample import register_grad_sampler
from opacus.layers import DPMultiheadAttention
from opacus.schedulers import ExponentialNoise
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from benchmarks.training_loops import arrays, loops
from benchmarks.training_loops.arrays import NumpyLoop
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import CLASSES, VOCABULARY, Loop, make_private

OPACUS = "https://github.com/meta-pytorch/opacus/issues/"
WIDTH, SIZE = 6, 24


def texts() -> loops.Records:
    """Texts of one to six tokens, filled up with token 0, [24, 6]."""
    random = np.random.default_rng(3)
    features = random.integers(1, VOCABULARY, size=(SIZE, WIDTH))
    lengths = random.integers(1, WIDTH + 1, size=SIZE)
    features[np.arange(WIDTH) >= lengths[:, None]] = 0
    return features, np.arange(SIZE) % CLASSES


# --- torch ---


def sum_without_nan(state: Any, each: list[Tensor]) -> list[Tensor]:
    """A record whose gradient is NaN erases the sum of all others: it changes up to n C."""
    return [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in loops.clipped_sum(state, each)]


def records_without_nan(state: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Correct: a gradient that is not finite is zero, and others do not depend on it."""
    each = loops.each_gradient(state, x, y)
    finite = torch.stack([g.flatten(1).isfinite().all(1) for g in each]).all(0)
    return [
        torch.where(finite.view(-1, *[1] * (g.dim() - 1)), g, torch.zeros_like(g)) for g in each
    ]


def layer_thresholds_for_tensors(state: Any, each: list[Tensor]) -> list[Tensor]:
    """C / sqrt(2) for two layers clips four tensors: a record contributes sqrt(2) C."""
    threshold = state.clip / math.sqrt(2)
    total = []
    for g in each:
        factor = (threshold / g.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)
        total.append((factor @ g.flatten(1)).reshape(g.shape[1:]))
    return total


def prune_by_saliency(state: Any) -> None:
    """The released zeros of the weights are computed from all records without noise."""
    loss = functional.cross_entropy(state.model(state.x), state.y)
    slopes = torch.autograd.grad(loss, state.parameters)
    scores = [(p * g).abs().detach() for p, g in zip(state.parameters, slopes, strict=True)]
    median = torch.cat([s.flatten() for s in scores]).median()
    state.masks = [(s > median).float() for s in scores]
    with torch.no_grad():
        for p, mask in zip(state.parameters, state.masks, strict=True):
            p.mul_(mask)


def masked_noise(state: Any, total: list[Tensor]) -> list[Tensor]:
    return [m * g for m, g in zip(state.masks, loops.gaussian(state, total), strict=True)]


def stratified_split(state: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The label of a record decides which others are trained on: more than C without noise."""
    chosen, _ = train_test_split(
        np.arange(len(y)), test_size=1 / 3, stratify=y.numpy(), random_state=state.seed
    )
    return x[np.sort(chosen)], y[np.sort(chosen)]


def warm_up(state: Any) -> None:
    state.warmth = min(1.0, (state.step + 1) / 4)
    for group in state.optimizer.param_groups:
        group["lr"] = 0.1 * state.warmth


def noise_by_learning_rate(state: Any, total: list[Tensor]) -> list[Tensor]:
    """The first steps have a quarter, a half and three quarters of the recorded noise."""
    deviation = state.noise_multiplier * state.clip * state.warmth
    return [g + deviation * torch.randn_like(g) for g in total]


class NextToken(nn.Module):
    """Scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.head = nn.Linear(4, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


def cut_into_blocks(state: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A text shifts the blocks of all later texts, so it changes the gradient of each block."""
    stream = x[x != 0]
    blocks = stream[: len(stream) // WIDTH * WIDTH].view(-1, WIDTH)
    return blocks, torch.zeros(len(blocks), dtype=torch.long)


def next_token_gradients(state: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    weights = {k: p.detach() for k, p in state.model.named_parameters()}

    def loss(parameters: dict[str, Tensor], block: Tensor) -> Tensor:
        scores = torch.func.functional_call(state.model, parameters, (block[:-1],))
        return functional.cross_entropy(scores, block[1:])

    return list(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x).values())


def momentum_by_place(state: Any, each: list[Tensor]) -> list[Tensor]:
    """Momentum before clipping, kept for each place in the batch.

    With full batches a place belongs to one record, so its history is clipped as a whole:
    correct. In Poisson batches, the record of an earlier batch changes a step that it is not in.
    """
    places = len(state.y)
    kept = state.__dict__.get("kept", [torch.zeros(places, *g.shape[1:]) for g in each])
    for velocity, g in zip(kept, each, strict=True):
        velocity[: len(g)] = 0.9 * velocity[: len(g)] + g
    state.kept = kept
    return loops.clipped_sum(
        state, [velocity[: len(g)] for velocity, g in zip(kept, each, strict=True)]
    )


# --- Opacus ---


def opacus_loop(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    *,
    module: Callable[[], nn.Module] = loops.mlp,
    loss: Callable[..., Tensor] = functional.cross_entropy,
    prepare: Callable[[Tensor], Tensor] = lambda x: x,
    epochs: int = 2,
    **options: Any,
) -> Any:
    """The loop of the tutorials; its parts can be exchanged."""
    model, optimizer, loader = make_private(records, watch, module(), **options)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(prepare(x)), y).backward()
            optimizer.step()
    return model


def cycled_batches(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`cycle` keeps the batches of the first epoch: later epochs do not sample again.

    A record of the first batch is in every fourth step, which costs more than new samples.
    """
    model, optimizer, loader = make_private(records, watch, loops.mlp())
    for x, y in itertools.islice(itertools.cycle(loader), 12):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


class AcrossTheBatch(nn.Module):
    """Attention that takes [positions, batch, width], given [batch, positions, width].

    Each record attends to all records of its batch, so it changes their gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(4, 1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 2, 4)
        return self.head(self.attention(x, x, x)[0].mean(1))


class WithinRecords(nn.Module):
    """Correct: the positions of one record attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 2, 4)
        scores = torch.einsum("bid,bjd->bij", self.query(x), self.key(x)) / 2
        return self.head((scores.softmax(-1) @ self.value(x)).mean(1))


CLASS_WEIGHTS = torch.tensor([0.25, 1.0, 4.0])


def mean_by_weights(scores: Tensor, y: Tensor) -> Tensor:
    """Public weights, but their sum over the batch divides every record's gradient."""
    return functional.cross_entropy(scores, y, weight=CLASS_WEIGHTS)


def mean_by_records(scores: Tensor, y: Tensor) -> Tensor:
    """Correct: the weighted losses are divided by the number of records, which Opacus undoes."""
    return functional.cross_entropy(scores, y, weight=CLASS_WEIGHTS, reduction="none").mean()


def broadcast_labels(scores: Tensor, y: Tensor) -> Tensor:
    """[b, 1] against [b] is [b, b]: each record's gradient depends on the labels of the batch."""
    return functional.mse_loss(scores, y.float())


class MeanEmbedding(nn.Module):
    """Mean of the embeddings of all positions, or of the positions that hold a token.

    Attributes:
        counts: "positions", "tokens", or "tokens by a mask". Without the mask padding has no
            embedding, but a gradient: Opacus' gradients of embeddings ignore `padding_idx`.
    """

    def __init__(self, counts: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4, padding_idx=0)
        self.head = nn.Linear(4, CLASSES)
        self.counts = counts

    def forward(self, x: Tensor) -> Tensor:
        embedded, is_token = self.embedding(x), x != 0
        if self.counts == "positions":
            return self.head(embedded.sum(1) / x.shape[1])
        if self.counts == "tokens by a mask":
            embedded = embedded * is_token[:, :, None]
        return self.head(embedded.sum(1) / is_token.sum(1, keepdim=True).clamp(min=1))


def to_longest(x: Tensor) -> Tensor:
    """Cuts a batch to its longest text.

    If the model divides by this length, the longest text scales the gradients of all others. If
    only Opacus computes a gradient for padding, it counts the padding of the longest text.
    """
    return x[:, : max(int((x != 0).sum(1).max()), 1)] if len(x) else x


class Scale(nn.Module):
    """One factor for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@register_grad_sampler(Scale)
def scale_gradients(layer: Scale, activations: list[Tensor], backprops: Tensor) -> Any:
    """Repeats the mean gradient of the batch as everyone's: a record is in all b of them."""
    gradient = (activations[0] * backprops).mean(0)
    return {layer.factor: gradient.expand(len(backprops), -1)}


def pretrained(training: bool) -> nn.Sequential:
    """A public encoder whose weights are frozen."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        )
    for p in encoder.parameters():
        p.requires_grad_(False)
    return encoder.train(training)


def frozen_encoder(records: Any, candidate: Any, seed: int, watch: Any, *, training: bool) -> Any:
    """In train mode its BatchNorm divides by statistics of the batch; in eval mode it is fixed."""
    encoder = pretrained(training)
    head, optimizer, loader = make_private(records, watch, nn.Linear(16, CLASSES), clip=2.0)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                z = encoder(x)
            functional.cross_entropy(head(z), y).backward()
            optimizer.step()
    return head


class Recurrent(nn.Module):
    """A recurrent layer over four positions, and its last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.hidden = nn.Linear(2, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        for t in range(x.shape[1]):
            hidden = torch.tanh(self.inputs(x[:, t]) + self.hidden(hidden))
        return self.head(hidden), hidden


def carried_hidden_state(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Records of the previous batch change the gradients of a batch that they are not in."""
    model, optimizer, loader = make_private(records, watch, Recurrent())
    carried = torch.zeros(0, 4)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            hidden = torch.zeros(len(x), 4)
            common = min(len(x), len(carried))
            hidden[:common] = carried[:common]
            scores, hidden = model(x.reshape(-1, 4, 2), hidden)
            functional.cross_entropy(scores, y).backward()
            optimizer.step()
            carried = hidden.detach()
    return model


def scheduled_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the hook of the accountant records the noise that each step has."""
    model, optimizer, loader = make_private(records, watch, loops.mlp())
    scheduler = ExponentialNoise(optimizer, gamma=0.95)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
    return model


def partly_frozen() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(8, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
    )
    for p in model[0].parameters():
        p.requires_grad_(False)
    return model


def ghost_with_frozen_layer(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the frozen layer does not learn, and ghost norms hold for the mask of the step."""
    model, optimizer, criterion, loader = make_private(
        records,
        watch,
        partly_frozen(),
        optimizer=torch.optim.Adam,
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode="ghost",
    )
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return model


def averaged_with_empty_batches(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: averages of released weights; an empty batch has noise and is a step."""
    module = loops.mlp()
    average = AveragedModel(module, avg_fn=lambda mean, new, count: 0.8 * mean + 0.2 * new)
    model, optimizer, loader = make_private(records, watch, module, batch=2)
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(module)
    return average.module


# --- numpy ---


def deviation_as_mean(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    """`normal(4)` has mean 4 and deviation 1: a quarter of sigma C."""
    deviation = state.sigma * state.clip
    return {n: v + state.random.normal(deviation, size=v.shape) for n, v in total.items()}


def whole_batches_only(state: Any) -> None:
    """Accounts for 24 // 5 steps in each of two epochs; an epoch has five."""
    state.watch.account(
        noise_multiplier=state.sigma, sampling_rate=state.rate, steps=2 * (SIZE // 5)
    )


def matrix_factorization(
    records: Any, candidate: Any, seed: int, watch: Any, *, normalised: bool
) -> Any:
    """One epoch in order, with noise correlated by the inverse of the encoder.

    A record of the first batch moves the encoded sums by C times the norm of the first column,
    which is 1.3. So noise for C is too small, and noise for 1.3 C is correct.
    """
    steps, clip, sigma, per_step = 8, 1.0, 1.0, 3
    coefficients = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, steps))])
    encoder = np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(steps)]
                        for i in range(steps)])  # fmt: skip
    sensitivity = clip * (np.linalg.norm(encoder, axis=0).max() if normalised else 1.0)
    random = np.random.default_rng(seed)
    correlated = np.linalg.solve(encoder, sigma * sensitivity * random.normal(size=(steps, 8)))
    watch.account(noise_multiplier=sigma, sampling_rate=1.0, steps=1)
    params = np.zeros(8)
    for step in range(steps):
        batch = slice(per_step * step, per_step * (step + 1))
        x, y = records.features[batch].astype(float), records.labels[batch]
        each = (x @ params - y)[:, None] * x
        clipped = each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True) / clip, 1.0)
        noisy = watch.step(clipped.sum(0) + correlated[step], params, encoder=encoder)
        params = params - 0.05 * noisy
    return params


def generator_by_step(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: within a run, each step has a generator of its own, of seed plus step."""
    watch.account(noise_multiplier=1.0, sampling_rate=0.25, steps=8)
    params = np.zeros(8)
    for step in range(8):
        random = np.random.default_rng(seed + step)
        chosen = random.random(len(records.features)) < 0.25
        x, y = records.features[chosen].astype(float), records.labels[chosen]
        each = (x @ params - y)[:, None] * x
        clipped = each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1.0)
        noisy = watch.step(clipped.sum(0) + random.normal(size=8), params)
        params = params - 0.05 * noisy
    return params


def clipped_differences(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: each record's change of gradient is clipped to C; the estimate adds noisy sums."""
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    watch.account(noise_multiplier=2.0, sampling_rate=1.0, steps=6)
    params, before, estimate = np.zeros(8), None, np.zeros(8)
    for _ in range(6):
        each = (x @ params - y)[:, None] * x
        if before is not None:
            each = each - (x @ before - y)[:, None] * x
        clipped = each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1.0)
        estimate = estimate + watch.step(clipped.sum(0) + 2.0 * random.normal(size=8), params)
        before, params = params, params - 0.005 * estimate
    return params


# --- JAX ---


def loss_of_labels(params: Any, x: Any, y: Any) -> Any:
    """The cross-entropy of one label, or the mean of several."""
    return -jnp.mean(jax.nn.log_softmax(x @ params["w"] + params["b"])[y])


@jax.jit
def gradients_for_all_labels(params: Any, x: Any, y: Any) -> Any:
    """Labels are not mapped: every record learns the labels of all, so one label changes all."""
    return jax.vmap(jax.grad(loss_of_labels), (None, 0, None))(params, x, y)


def jax_full_batches(
    records: Any, candidate: Any, seed: int, watch: Any, *, gradients: Any = arrays.jax_gradients
) -> Any:
    x, y = jnp.asarray(records.features, jnp.float32), jnp.asarray(records.labels)
    watch.account(noise_multiplier=2.0, sampling_rate=1.0, steps=6)
    params, everyone = arrays.jax_start(), jnp.ones(len(x))
    for key in jax.random.split(jax.random.key(seed), 6):
        total = arrays.jax_clipped(gradients(params, x, y), everyone, 1.0)
        noisy = watch.step(arrays.jax_noise(key, total, 2.0), params)
        params = jax.tree.map(lambda p, g: p - 0.02 * g, params, noisy)
    return params


def cyclic_poisson(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Two random groups take turns, each sampled at twice the rate that is accounted for.

    Anyone who has learned the group from the first steps faces rate 0.5 in half of the steps, which
    costs twice as much as 0.25 in all of them.
    """
    x, y = jnp.asarray(records.features, jnp.float32), jnp.asarray(records.labels)
    watch.account(noise_multiplier=1.0, sampling_rate=0.25, steps=12)
    grouping, *keys = jax.random.split(jax.random.key(seed), 13)
    group = jax.random.bernoulli(grouping, 0.5, (len(x),))
    params = arrays.jax_start()
    for step, key in enumerate(keys):
        sampling, noise = jax.random.split(key)
        drawn = jax.random.bernoulli(sampling, 0.5, (len(x),)) & (group == step % 2)
        total = arrays.jax_clipped(arrays.jax_gradients(params, x, y), drawn.astype(float), 1.0)
        noisy = watch.step(
            arrays.jax_noise(noise, total, 1.0), params, gradient=arrays.jax_gradient
        )
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, noisy)
    return params


def adaptive_threshold(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise of the count is divided by the number of records twice: 1/24 of what is stated."""
    x, y = jnp.asarray(records.features, jnp.float32), jnp.asarray(records.labels)
    watch.account(noise_multiplier=2.0, sampling_rate=1.0, steps=6)
    params, everyone, threshold = arrays.jax_start(), jnp.ones(len(x)), 1.0
    for key in jax.random.split(jax.random.key(seed), 6):
        counting, noise = jax.random.split(key)
        each = arrays.jax_gradients(params, x, y)
        total = arrays.jax_clipped(each, everyone, threshold)
        noisy = watch.step(arrays.jax_noise(noise, total, 2.0 * threshold), params)
        params = jax.tree.map(lambda p, g: p - 0.02 * g, params, noisy)
        below = (jax.vmap(optax.global_norm)(each) <= threshold).sum()
        count = below + 5.0 / SIZE * jax.random.normal(counting)
        count = watch.release(count, noise_multiplier=5.0)
        threshold = float(threshold * jnp.exp(-0.2 * (count / SIZE - 0.5)))
    return params


def two_transformations(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: weights by SGD and biases by Adam, both from one noisy value."""
    x, y = jnp.asarray(records.features, jnp.float32), jnp.asarray(records.labels)
    watch.account(noise_multiplier=1.0, sampling_rate=0.25, steps=8)
    optimizer = optax.multi_transform(
        {"sgd": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(0.05)},
        {"w": "sgd", "b": "adam"},
    )
    params = arrays.jax_start()
    state = optimizer.init(params)
    for key in jax.random.split(jax.random.key(seed), 8):
        sampling, noise = jax.random.split(key)
        mask = jax.random.bernoulli(sampling, 0.25, (len(x),)).astype(float)
        total = arrays.jax_clipped(arrays.jax_gradients(params, x, y), mask, 1.0)
        noisy = watch.step(
            arrays.jax_noise(noise, total, 1.0), params, gradient=arrays.jax_gradient
        )
        updates, state = optimizer.update(jax.tree.map(lambda g: g / 6, noisy), state)
        params = optax.apply_updates(params, updates)
    return params


# --- mechanisms ---

EPSILON = 0.5


def tree_of_counts(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A record is in one node of each of four levels, so the counts cost 4 epsilon."""
    watch.claim(EPSILON)
    edges = np.linspace(-3.0, 3.0, 9)
    counts, _ = np.histogram(np.clip(records.features[:, 0], -3.0, 3.0), edges)
    levels = [counts.reshape(-1, 2**k).sum(1) for k in range(4)]
    nodes = np.concatenate(levels).astype(float)
    noisy = nodes + np.random.default_rng(seed).laplace(scale=1 / EPSILON, size=nodes.shape)
    return watch.release(noisy, epsilon=EPSILON)


def two_categories_each(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Everyone counts in up to two categories, the noise is for one: it costs 2 epsilon."""
    watch.claim(EPSILON)
    visited = records.features > 0
    bounded = visited & (np.cumsum(visited, axis=1) <= 2)
    counts = bounded.sum(0).astype(float)
    noisy = counts + np.random.default_rng(seed).laplace(scale=1 / EPSILON, size=counts.shape)
    return watch.release(noisy, epsilon=EPSILON)


def laplace_for_euclidean_norm(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Rows of Euclidean norm 1 have an L1 norm of up to sqrt(8): it costs 2.8 epsilon."""
    watch.claim(EPSILON)
    x = records.features.astype(float)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    noisy = x.sum(0) + np.random.default_rng(seed).laplace(scale=1 / EPSILON, size=x.shape[1])
    return watch.release(noisy, epsilon=EPSILON)


def covariance_with_averaged_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the mean of a noisy matrix and its transpose is computed from the noisy matrix.

    The matrix of all products has Frobenius norm 1 for a row of norm 1. Numbers off the diagonal
    have less noise, and count half as much in a triangle as in the whole matrix.
    """
    x = records.features[:, :4].astype(float)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    noise = 2.0 * np.random.default_rng(seed).normal(size=(4, 4))
    return watch.release(x.T @ x + (noise + noise.T) / 2, noise_multiplier=2.0)


# --- the lists ---

_POISSON = {"sampling_rate": 0.25, "steps": 6}

FIFTH_TURN: dict[str, Control] = {
    "NaN in the clipped sum replaced by zero": Control(Loop(total=sum_without_nan)),
    "thresholds of layers used for tensors": Control(Loop(total=layer_thresholds_for_tensors)),
    "weights pruned by their saliency on the records": Control(
        Loop(start=prune_by_saliency, noise=masked_noise),
        source="https://github.com/google-deepmind/jax_privacy/pull/290",
    ),
    "split stratified by private labels": Control(Loop(prepare=stratified_split)),
    "noise scaled by the learning rate of a warm-up": Control(
        Loop(before=warm_up, noise=noise_by_learning_rate, steps=6)
    ),
    "texts joined and cut into blocks": Control(
        Loop(model=NextToken, prepare=cut_into_blocks, gradients=next_token_gradients), texts
    ),
    "momentum kept for each place in a Poisson batch": Control(
        Loop(total=momentum_by_place, **_POISSON)
    ),
    "Opacus, batches repeated by itertools.cycle": Control(
        cycled_batches, source="https://github.com/pytorch/pytorch/issues/23900"
    ),
    "Opacus, attention across the batch": Control(
        partial(opacus_loop, module=AcrossTheBatch), source=OPACUS + "650"
    ),
    "Opacus, mean weighted by the classes of the batch": Control(
        partial(opacus_loop, loss=mean_by_weights, clip=2.0),
        source="https://github.com/mathiaszinnen/focal_loss_torch/issues/18",
    ),
    "Opacus, labels broadcast over the batch": Control(
        partial(opacus_loop, module=lambda: nn.Linear(8, 1), loss=broadcast_labels, clip=2.0)
    ),
    "Opacus, mean over the padding of the longest text": Control(
        partial(
            opacus_loop, module=lambda: MeanEmbedding("positions"), prepare=to_longest, clip=2.0
        ),
        texts,
    ),
    "Opacus, padding_idx of an embedding, cut to the longest text": Control(
        partial(opacus_loop, module=lambda: MeanEmbedding("tokens"), prepare=to_longest, clip=2.0),
        texts,
    ),
    "Opacus, gradient sampler that repeats the mean": Control(
        partial(opacus_loop, module=lambda: nn.Sequential(Scale(), nn.Linear(8, CLASSES))),
        source=OPACUS + "239",
    ),
    "Opacus, frozen BatchNorm in train mode": Control(
        partial(frozen_encoder, training=True), loops.images, source=OPACUS + "472"
    ),
    "Opacus, hidden state carried to the next batch": Control(
        carried_hidden_state, source="https://github.com/pytorch/examples/issues/103"
    ),
    "numpy, deviation given as mean": Control(NumpyLoop(noise=deviation_as_mean, clip=4.0)),
    "numpy, incomplete last batch not accounted": Control(
        NumpyLoop(account=whole_batches_only, rate=5 / 24, steps=10),
        source="https://github.com/google-deepmind/jax_privacy/pull/372",
    ),
    "numpy, correlated noise without the norm of the encoder": Control(
        partial(matrix_factorization, normalised=False),
        source="https://github.com/google-deepmind/jax_privacy/pull/338",
        relation="zero-out",
    ),
    "JAX, labels of all records in each loss": Control(
        partial(jax_full_batches, gradients=gradients_for_all_labels)
    ),
    "JAX, cyclic Poisson sampling accounted as Poisson": Control(cyclic_poisson),
    "JAX, adaptive threshold, noise of the count divided twice": Control(
        adaptive_threshold,
        source="https://github.com/google-parfait/tensorflow-federated/issues/2211",
    ),
    "tree of counts, noise for one level": Control(tree_of_counts),
    "two categories each, noise for one": Control(
        two_categories_each, source="https://github.com/OpenMined/PipelineDP/issues/263"
    ),
    "Laplace noise for a Euclidean norm": Control(
        laplace_for_euclidean_norm,
        source="https://github.com/opendp/smartnoise-core/issues/243",
    ),
}

FIFTH_TURN_CORRECT: dict[str, Control] = {
    "gradients that are not finite replaced by zero": Control(Loop(gradients=records_without_nan)),
    "momentum of each record's own gradients, clipped": Control(Loop(total=momentum_by_place)),
    "Opacus, attention within records": Control(partial(opacus_loop, module=WithinRecords)),
    "Opacus, public class weights, mean over records": Control(
        partial(opacus_loop, loss=mean_by_records, clip=2.0)
    ),
    "Opacus, mean over tokens, cut to the longest text": Control(
        partial(
            opacus_loop,
            module=lambda: MeanEmbedding("tokens by a mask"),
            prepare=to_longest,
            clip=2.0,
        ),
        texts,
    ),
    "Opacus, frozen BatchNorm in eval mode": Control(
        partial(frozen_encoder, training=False), loops.images, source=OPACUS + "472"
    ),
    "Opacus, ExponentialNoise": Control(scheduled_noise),
    "Opacus, ghost clipping, frozen layer, dropout, Adam": Control(ghost_with_frozen_layer),
    "Opacus, AveragedModel, empty batches": Control(averaged_with_empty_batches),
    "numpy, correlated noise with the norm of the encoder": Control(
        partial(matrix_factorization, normalised=True), relation="zero-out"
    ),
    "numpy, generator of seed plus step": Control(generator_by_step),
    "numpy, clipped differences of gradients": Control(clipped_differences),
    "optax, two optimizers by multi_transform": Control(two_transformations),
    "covariance with averaged noise": Control(covariance_with_averaged_noise),
}
