"""Further loops and scripts after public threads, most of them from November 2026.

All of them were written before the test was run on any. `benchmarks.training_scripts` runs the
scripts.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from benchmarks.training_loops import arrays, loops
from benchmarks.training_loops.arrays import CLASSES, CLIP, RATE, SIGMA, STEPS, WIDTH, NumpyLoop
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.mechanisms import EPSILON

_MICROBATCH, _EXPECTED = 4, 6.0

# --- torch ---


def left_over(state: Any, each: list[Any]) -> list[Any]:
    """Whole microbatches are summed; the incomplete one is added to the sum of the next step."""
    complete = len(each[0]) // _MICROBATCH * _MICROBATCH
    total = loops.clipped_sum(state, [g[:complete] for g in each])
    waiting = state.__dict__.get("waiting")
    state.waiting = loops.clipped_sum(state, [g[complete:] for g in each])
    return total if waiting is None else [a + b for a, b in zip(total, waiting, strict=True)]


def of_the_mean_loss(state: Any, x: Any, y: Any) -> list[Any]:
    """The loss is a mean over the batch, and its gradients are clipped as they are."""
    return [g / max(len(y), 1) for g in loops.each_gradient(state, x, y)]


def with_raw_features(state: Any) -> None:
    """The first layer is unfrozen after two steps, and learns without clipping and noise."""
    if state.step < 2 or not len(state.taken):
        return
    layer = next(m for m in state.model.modules() if isinstance(m, nn.Linear))
    layer.weight.requires_grad_(True)
    loss = nn.functional.cross_entropy(state.model(state.x[state.taken]), state.y[state.taken])
    (gradient,) = torch.autograd.grad(loss, [layer.weight])
    layer.weight.requires_grad_(False)
    with torch.no_grad():
        layer.weight -= 0.1 * gradient


def frozen_features() -> nn.Module:
    """An MLP whose first layer is frozen."""
    model = loops.mlp()
    next(m for m in model.modules() if isinstance(m, nn.Linear)).requires_grad_(False)
    return model


@cache
def sigma_at(delta: float) -> float:
    """The noise multiplier for epsilon 3."""
    from opacus.accountants.utils import get_noise_multiplier

    sigma: float = get_noise_multiplier(
        target_epsilon=3.0, target_delta=delta, sample_rate=0.25, steps=6, accountant="rdp"
    )
    return sigma


def calibrated_at(records: Any, candidate: Any, seed: int, watch: Any, delta: float) -> Any:
    """The noise is calibrated for epsilon 3 at one delta, and claimed at 1e-5."""
    sigma = sigma_at(delta)
    watch.claim(3.0)
    return Loop(sampling_rate=0.25, steps=6, noise_multiplier=sigma)(records, None, seed, watch)


def averaged_first(state: Any, total: list[Any]) -> list[Any]:
    """Noise of standard deviation sigma C / B is added to the sum divided by a public B."""
    size = _EXPECTED
    deviation = state.noise_multiplier * state.clip / size
    return [torch.normal(g / size, deviation) for g in total]


# --- numpy ---


def local_weights(state: Any, each: dict[str, Any], whole: bool) -> dict[str, Any]:
    """Each record takes a local step; its weights, or their change, are clipped and summed.

    Args:
        state: variables of the run.
        each: gradients of the records.
        whole: whether the norm of the change is clipped, and not each weight.
    """
    change = {n: -0.5 * g for n, g in each.items()}
    if whole:
        return arrays.clipped_sum(state, change)
    weights = {n: state.params[n] + g for n, g in change.items()}
    return {n: np.clip(w, -state.clip, state.clip).sum(0) for n, w in weights.items()}


def to_mean_of_weights(state: Any, noisy: dict[str, Any]) -> dict[str, Any]:
    """The step that makes the weights the noisy mean of the local ones."""
    return {n: _EXPECTED * state.params[n] - v for n, v in noisy.items()}


def counted_sum(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    state.memory = len(each["b"])
    return arrays.clipped_sum(state, each)


def noise_of_clients(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    """Each record of the batch adds its share of the noise, as if the batch had the mean size."""
    deviation = state.sigma * state.clip * (state.memory / _EXPECTED) ** 0.5
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def largest_coordinates(state: Any, noisy: dict[str, Any]) -> dict[str, Any]:
    """Half of the noisy coordinates, those of largest absolute value, are used."""
    limit = np.median(np.abs(np.concatenate([v.ravel() for v in noisy.values()])))
    return {n: np.where(np.abs(v) >= limit, v, 0.0) for n, v in noisy.items()}


# --- JAX ---


def with_penalty(params: Any, x: Any, y: Any) -> Any:
    """A record's loss, which includes a penalty on the weights."""
    scores = x @ params["w"] + params["b"]
    penalty = 0.05 * sum(jnp.vdot(v, v) for v in jax.tree.leaves(params))
    return -jax.nn.log_softmax(scores)[y] + penalty


_PENALISED = jax.jit(jax.vmap(jax.grad(with_penalty), in_axes=(None, 0, 0)))


def jax_epochs(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    key_of_epoch: bool = False,
    gradients: Any = arrays.jax_gradients,
) -> Any:
    """DP-SGD in JAX; the key of the noise is that of the epoch or of the step."""
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jnp.asarray(records.features, jnp.float32), jnp.asarray(records.labels)
    params = {"w": jnp.zeros((WIDTH, CLASSES)), "b": jnp.zeros(CLASSES)}
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    per_epoch = int(1 / RATE)
    for step in range(STEPS):
        mask = jax.random.bernoulli(jax.random.fold_in(batches, step), RATE, (len(y),))
        total = arrays.jax_clipped(gradients(params, x, y), mask, CLIP)
        number = step // per_epoch if key_of_epoch else step
        noisy = arrays.jax_noise(jax.random.fold_in(noises, number), total, SIGMA * CLIP)
        noisy = watch.step(noisy, params)
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, noisy)
    return params


# --- mechanisms ---


def described(
    records: Any, candidate: Any, seed: int, watch: Any, exact: bool = True
) -> dict[str, Any]:
    """Noisy counts in public bins, and a description that holds the range of the feature."""
    values = records.features[:, 0].astype(float)
    counts, _ = np.histogram(np.clip(values, -2, 2), 5, (-2, 2))
    noise = np.random.default_rng(seed).laplace(0, 1 / EPSILON, 5)
    noisy = watch.release(counts + noise, epsilon=EPSILON)
    bounds = (float(values.min()), float(values.max())) if exact else (-2.0, 2.0)
    return {"counts": noisy, "description": {"feature": {"bounds": bounds}}}


PUBLIC_THREADS: dict[str, Control] = {
    "incomplete microbatch joins the next step": Control(
        Loop(total=left_over, sampling_rate=0.25, steps=8),
        source="https://github.com/meta-pytorch/opacus/pull/16",
    ),
    "gradients of the mean loss clipped": Control(
        Loop(gradients=of_the_mean_loss, sampling_rate=0.25, steps=6, clip=0.1)
    ),
    "layer unfrozen later, without noise": Control(
        Loop(model=frozen_features, after=with_raw_features, sampling_rate=0.25, steps=6)
    ),
    "noise calibrated at another delta": Control(
        partial(calibrated_at, delta=1e-2),
        source="https://github.com/lxuechen/private-transformers/issues/8",
    ),
    "numpy, local weights clipped one by one": Control(
        NumpyLoop(total=partial(local_weights, whole=False), update=to_mean_of_weights),
        source="https://github.com/KanishJebaMathewM/Truxify/pull/3858",
    ),
    "numpy, each drawn client adds its share of the noise": Control(
        NumpyLoop(total=counted_sum, noise=noise_of_clients),
        source="https://github.com/flwrlabs/flower/issues/1892",
    ),
    "JAX, one key of the noise per epoch": Control(partial(jax_epochs, key_of_epoch=True)),
    "exact range in the description of the data": Control(
        described, source="https://github.com/google/dpsynth/issues/34"
    ),
}

PUBLIC_THREADS_CORRECT: dict[str, Control] = {
    "noise added to the average, Poisson": Control(
        Loop(noise=averaged_first, divisor=1.0, sampling_rate=0.25, steps=6),
        source="https://github.com/dayu11/Differentially-Private-Deep-Learning/issues/3",
    ),
    "numpy, change of local weights clipped as a whole": Control(
        NumpyLoop(total=partial(local_weights, whole=True))
    ),
    "numpy, largest noisy coordinates used": Control(NumpyLoop(update=largest_coordinates)),
    "JAX, penalty in the loss of each record": Control(partial(jax_epochs, gradients=_PENALISED)),
    "public range in the description of the data": Control(partial(described, exact=False)),
}
