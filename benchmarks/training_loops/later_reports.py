"""Further loops with and without a mistake, most of them after public reports.

All of them were written before the test was run on any.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks.training_loops import arrays, loops
from benchmarks.training_loops.arrays import CLIP, RATE, SIGMA, STEPS, NumpyLoop
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.mechanisms import EPSILON

# --- torch ---


def mean_gradient_left(state: Any, each: list[Any]) -> list[Any]:
    """`backward` leaves the mean gradient in `p.grad`, to which the clipped sum is added."""
    clipped = loops.clipped_sum(state, each)
    return [g + h.mean(0) if len(h) else g for g, h in zip(clipped, each, strict=True)]


def with_generator_state(state: Any, x: Any, y: Any) -> Any:
    """The checkpoint holds the state of torch's generator, from which its numbers follow."""
    return {"model": state.model.state_dict(), "generator": torch.get_rng_state()}


def scaled_loss(state: Any, x: Any, y: Any) -> list[Any]:
    """The loss is multiplied by 128, and each gradient divided by it before clipping."""
    return [g * 128.0 / 128.0 for g in loops.each_gradient(state, x, y)]


def mixed_up(state: Any, x: Any, y: Any) -> list[Any]:
    """Mixup: each record is averaged with another one of its batch."""
    if len(y):
        x = 0.7 * x + 0.3 * x[torch.randperm(len(y))]
    return loops.each_gradient(state, x, y)


def augmented_by_noise(state: Any, x: Any, y: Any) -> list[Any]:
    """Features are mixed with a public record, drawn independently for each record."""
    public = torch.eye(8)[torch.randint(8, (len(y),))]
    return loops.each_gradient(state, 0.7 * x + 0.3 * public, y)


# --- numpy ---


def some_coordinates(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    """Noise is added at indices that are drawn with replacement, so that some get none."""
    noisy = {}
    for name, value in total.items():
        flat = value.ravel().copy()
        taken = state.random.integers(flat.size, size=flat.size)
        flat[taken] += state.sigma * state.clip * state.random.normal(size=flat.size)
        noisy[name] = flat.reshape(value.shape)
    return noisy


def drawn_ahead(state: Any, total: dict[str, Any], length: int) -> dict[str, Any]:
    """Noise comes from an array that is drawn before the first step, and used in turn."""
    if state.memory is None:
        shapes = {name: (length, *v.shape) for name, v in total.items()}
        state.memory = {name: state.random.normal(size=shape) for name, shape in shapes.items()}
    place = state.step % length
    deviation = state.sigma * state.clip
    return {name: v + deviation * state.memory[name][place] for name, v in total.items()}


def larger_factor(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """The factor is max(1, C / norm): short gradients are lengthened, long ones kept."""
    factors = np.maximum(1.0, state.clip / np.maximum(arrays.norms(each), 1e-12))
    return arrays.scaled(each, factors)


# --- JAX ---


def squared_norm(each: Any, mask: Any, clip: Any) -> Any:
    """Gradients are multiplied by min(1, C / norm^2), which suffices for C of at least 1 only."""
    square = jax.vmap(lambda g: sum(jnp.vdot(v, v) for v in jax.tree.leaves(g)))(each)
    factors = mask * jnp.minimum(1.0, clip / jnp.maximum(square, 1e-12))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), each)


squared_norm = jax.jit(squared_norm)


def shards(key: Any, total: Any, deviation: float, share: float) -> Any:
    """Each of four devices adds its share of the noise, with a key of its own."""
    for part in jax.random.split(key, 4):
        total = arrays.jax_noise(part, total, deviation * share)
    return total


def jax_steps(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    clipped: Any = arrays.jax_clipped,
    noise: Any = arrays.jax_noise,
    clip: float = CLIP,
    microbatches: str = "",
    returned_key: bool = False,
) -> Any:
    """DP-SGD in JAX, whose batches are made of two microbatches or of one."""
    key = jax.random.key(seed)
    batches, noises = jax.random.split(key)
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        first, second = jax.random.split(jax.random.fold_in(batches, step))
        mask = jax.random.bernoulli(first, RATE, (len(y),))
        gradients = arrays.jax_gradients(params, x, y)
        if microbatches == "one batch":
            side = jax.random.bernoulli(second, 0.5, (len(y),))
            masks = [mask & side, mask & ~side]
        elif microbatches == "two batches":
            masks = [mask, jax.random.bernoulli(second, RATE, (len(y),))]
        else:
            masks = [mask]
        sums = [clipped(gradients, m, clip) for m in masks]
        total = jax.tree.map(lambda *parts: sum(parts), *sums)
        noisy = noise(jax.random.fold_in(noises, step), total, SIGMA * clip)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, noisy)
    return {"params": params, "key": noises} if returned_key else params


# --- mechanisms ---


def ages(records: Any, candidate: Any, seed: int, watch: Any, largest: int | None = None) -> Any:
    """Noisy counts of whole numbers up to a largest one; None takes it from the records."""
    random = np.random.default_rng(seed)
    values = np.clip(np.round(np.abs(records.features[:, 0])), 0, 1e4).astype(int)
    size = (int(values.max()) if largest is None else largest) + 1
    counts = np.bincount(np.minimum(values, size - 1), minlength=size)
    noisy = counts + random.laplace(0, 1 / EPSILON, size)
    return watch.release(noisy, epsilon=EPSILON)


def by_category(
    records: Any, candidate: Any, seed: int, watch: Any, categories: Any = None
) -> dict[str, float]:
    """A noisy sum for each category; None takes the categories that occur."""
    random = np.random.default_rng(seed)
    values = np.clip(records.features[:, 0].astype(float), -1, 1)
    places = np.clip(np.round(records.features[:, 1]), -50, 50).astype(int)
    names = np.unique(places) if categories is None else categories
    sums = np.array([values[places == name].sum() for name in names])
    noisy = watch.release(sums + random.laplace(0, 1 / EPSILON, len(names)), epsilon=EPSILON)
    return {str(name): float(v) for name, v in zip(names, noisy, strict=True)}


LATER_REPORTS: dict[str, Control] = {
    "mean gradient left next to the clipped sum, Poisson": Control(
        Loop(total=mean_gradient_left, sampling_rate=0.25, steps=6),
        source="https://github.com/dayu11/Differentially-Private-Deep-Learning/issues/7",
    ),
    "state of torch's generator in the checkpoint": Control(Loop(result=with_generator_state)),
    "mixup in the batch": Control(Loop(gradients=mixed_up)),
    "numpy, noise at indices drawn with replacement": Control(
        NumpyLoop(noise=some_coordinates), source="https://github.com/NVIDIA/NVFlare/issues/343"
    ),
    "numpy, three noises used in turn": Control(NumpyLoop(noise=partial(drawn_ahead, length=3))),
    "numpy, larger of 1 and C over the norm": Control(NumpyLoop(total=larger_factor)),
    "JAX, norm without its root, C = 0.25": Control(
        partial(jax_steps, clipped=squared_norm, clip=0.25)
    ),
    "JAX, two Poisson batches in a step, rate of one": Control(
        partial(jax_steps, microbatches="two batches")
    ),
    "JAX, key of the noise returned": Control(partial(jax_steps, returned_key=True)),
    "JAX, a quarter of the noise from each of four devices": Control(
        partial(jax_steps, noise=partial(shards, share=0.25)),
        source="https://github.com/google-deepmind/optax/issues/148",
    ),
    "counts up to the largest value": Control(
        ages, source="https://github.com/sassoftware/dpmm/issues/18"
    ),
    "sums of the categories that occur": Control(
        by_category, source="https://github.com/alan-turing-institute/reprosyn/issues/38"
    ),
}

LATER_REPORTS_CORRECT: dict[str, Control] = {
    "loss scaled for float16, Poisson": Control(
        Loop(gradients=scaled_loss, sampling_rate=0.25, steps=6)
    ),
    "mixup with public records": Control(Loop(gradients=augmented_by_noise)),
    "numpy, noise drawn ahead for all steps": Control(
        NumpyLoop(noise=partial(drawn_ahead, length=STEPS))
    ),
    "JAX, one Poisson batch in two microbatches": Control(
        partial(jax_steps, microbatches="one batch")
    ),
    "JAX, half of the noise from each of four devices": Control(
        partial(jax_steps, noise=partial(shards, share=0.5))
    ),
    "counts up to a public value": Control(partial(ages, largest=5)),
    "sums of public categories": Control(partial(by_category, categories=range(-3, 4))),
}
