"""Loops of arrays with and without a mistake: numpy, JAX, optax and jax_privacy.

All of them were written before the test of array loops was run on any. Where a public report
describes the mistake, it is named.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import toeplitz

import audit
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control

CLASSES, WIDTH, STEPS, RATE, SIGMA, CLIP = loops.CLASSES, 8, 8, 0.25, 1.0, 1.0


# --- numpy ---


def probabilities(scores: Any) -> Any:
    each = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return each / each.sum(axis=-1, keepdims=True)


def each_gradient(params: Any, x: Any, y: Any) -> dict[str, Any]:
    """Every record's own gradient of the cross-entropy, one [n, ...] per array."""
    slopes = probabilities(x @ params["w"] + params["b"]) - np.eye(CLASSES)[y]
    return {"w": np.einsum("ni,nj->nij", x, slopes), "b": slopes}


def one_gradient(params: Any, x: Any, y: Any) -> dict[str, Any]:
    each = each_gradient(params, np.asarray(x, float)[None], np.asarray(y)[None])
    return {name: values[0] for name, values in each.items()}


def norms(each: dict[str, Any]) -> Any:
    return np.sqrt(sum(np.square(g).sum(tuple(range(1, g.ndim))) for g in each.values()))


def scaled(each: dict[str, Any], factors: Any) -> dict[str, Any]:
    shaped = {n: factors.reshape(-1, *[1] * (g.ndim - 1)) for n, g in each.items()}
    return {name: (g * shaped[name]).sum(0) for name, g in each.items()}


def clipped_sum(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    return scaled(each, np.minimum(1.0, state.clip / np.maximum(norms(each), 1e-12)))


def poisson(state: Any) -> Any:
    return np.flatnonzero(state.random.random(len(state.x)) < state.rate)


def gaussian(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    deviation = state.sigma * state.clip
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def no_change(state: Any, value: Any) -> Any:
    return value


def stated(state: Any) -> None:
    state.watch.account(noise_multiplier=state.sigma, sampling_rate=state.rate, steps=state.steps)


def zeros(state: Any) -> dict[str, Any]:
    return {"w": np.zeros((WIDTH, CLASSES)), "b": np.zeros(CLASSES)}


@dataclass
class State:
    """Variables of one run."""

    x: Any
    y: Any
    random: Any
    seed: int
    watch: Any
    clip: float
    sigma: float
    rate: float
    steps: int
    step: int = 0
    params: Any = None
    memory: Any = None


@dataclass(frozen=True)
class NumpyLoop:
    """DP-SGD in numpy, with parts that can be exchanged."""

    batch: Callable[[Any], Any] = poisson
    total: Callable[[Any, Any], Any] = clipped_sum
    noise: Callable[[Any, Any], Any] = gaussian
    after: Callable[[Any, Any], Any] = no_change
    update: Callable[[Any, Any], Any] = no_change
    account: Callable[[Any], None] = stated
    start: Callable[[Any], Any] = zeros
    prepare: Callable[[Any, Any], Any] = no_change
    result: Callable[[Any], Any] = lambda state: state.params
    clip: float = CLIP
    sigma: float = SIGMA
    rate: float = RATE
    steps: int = STEPS

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x, y = records.features.astype(float), records.labels
        random = np.random.default_rng(seed)
        state = State(x, y, random, seed, watch, self.clip, self.sigma, self.rate, self.steps)
        self.account(state)
        state.params = self.start(state)
        for state.step in range(self.steps):
            chosen = self.batch(state)
            if chosen is None:
                continue
            features = self.prepare(state, state.x[chosen])
            total = self.total(state, each_gradient(state.params, features, state.y[chosen]))
            noisy = self.after(state, self.noise(state, total))
            noisy = watch.step(noisy, state.params, gradient=one_gradient)
            noisy = self.update(state, noisy)
            expected = max(self.rate * 24, 1.0)
            state.params = {n: p - noisy[n] / expected for n, p in state.params.items()}
        return self.result(state)


def full_batch(state: Any) -> Any:
    return np.arange(len(state.x))


def shuffled(state: Any) -> Any:
    """Batches of a fixed size from a permutation, accounted as Poisson samples."""
    size = int(state.rate * len(state.x))
    per_epoch = len(state.x) // max(size, 1)
    if state.step % per_epoch == 0:
        state.memory = state.random.permutation(len(state.x))
    first = size * (state.step % per_epoch)
    return state.memory[first : first + size]


def twice_the_rate(state: Any) -> Any:
    return np.flatnonzero(state.random.random(len(state.x)) < 2 * state.rate)


def skip_empty(state: Any) -> Any:
    chosen = poisson(state)
    return chosen if len(chosen) else None


def whole_microbatches(state: Any) -> Any:
    """The last incomplete microbatch of 4 records is dropped."""
    chosen = poisson(state)
    return chosen[: len(chosen) // 4 * 4]


def mean_clipped(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """The mean gradient of the batch is clipped, then multiplied by the batch size."""
    count = max(len(each["b"]), 1)
    mean = {n: g.sum(0, keepdims=True) / count for n, g in each.items()}
    return {n: count * v for n, v in clipped_sum(state, mean).items()}


def microbatches_of_four(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """The sum of four records is clipped to four times C."""
    count = len(each["b"])
    groups = [np.arange(i, min(i + 4, count)) for i in range(0, count, 4)]
    sums = {n: np.array([g[k].sum(0) for k in groups]) for n, g in each.items()}
    if not groups:
        return clipped_sum(state, each)
    factors = np.minimum(1.0, 4 * state.clip / np.maximum(norms(sums), 1e-12))
    return scaled(sums, factors)


def by_layer(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    return {n: clipped_sum(state, {n: g})[n] for n, g in each.items()}


def by_norm_of_weights(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """The norm leaves out the bias."""
    own = norms({"w": each["w"]})
    return scaled(each, np.minimum(1.0, state.clip / np.maximum(own, 1e-12)))


def by_largest_norm(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """All records are divided by the largest norm of the batch."""
    largest = norms(each).max(initial=1e-12)
    return scaled(each, np.full(len(each["b"]), min(1.0, state.clip / largest)))


def class_weights(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """Weights by the number of records of each class, after clipping."""
    counts = np.bincount(state.y, minlength=CLASSES)
    weights = len(state.y) / (CLASSES * np.maximum(counts, 1))
    return {n: v * weights.mean() for n, v in clipped_sum(state, each).items()}


def momentum_of_sums(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """Momentum is taken of sums without noise."""
    total = clipped_sum(state, each)
    if state.memory is not None:
        total = {n: v + 0.9 * state.memory[n] for n, v in total.items()}
    state.memory = total
    return total


def without_c(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    return {n: v + state.sigma * state.random.normal(size=v.shape) for n, v in total.items()}


def root_of_sigma(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    """The variance is taken for the standard deviation."""
    deviation = math.sqrt(state.sigma * state.clip)
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def divided_twice(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    size = state.rate * 24
    deviation = state.sigma * state.clip / size
    return {n: (v / size) + deviation / size * state.random.normal(size=v.shape)
            for n, v in total.items()}  # fmt: skip


def seeded_again(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(state.seed)
    return {n: v + state.sigma * state.clip * random.normal(size=v.shape)
            for n, v in total.items()}  # fmt: skip


def not_the_bias(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    return {**gaussian(state, total), "b": total["b"]}


def one_number(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    return {n: v + state.sigma * state.clip * state.random.normal() for n, v in total.items()}


def one_step_per_epoch(state: Any) -> None:
    """Epochs are recorded and not steps."""
    epochs = max(int(state.steps * state.rate), 1)
    state.watch.account(noise_multiplier=state.sigma, sampling_rate=state.rate, steps=epochs)


def standardised(state: Any, x: Any) -> Any:
    """Features are standardised by the mean and scale of all records."""
    return (x - state.x.mean(0)) / (state.x.std(0) + 1e-6)


def loss_of_records(state: Any) -> Any:
    own = probabilities(state.x @ state.params["w"] + state.params["b"])
    loss = -np.log(own[np.arange(len(state.y)), state.y]).mean()
    return {**state.params, "loss": loss}


def random_start(state: Any) -> Any:
    params = {"w": state.random.normal(size=(WIDTH, CLASSES)), "b": np.zeros(CLASSES)}
    return state.watch.start(params)


def momentum_of_noisy(state: Any, noisy: Any) -> Any:
    state.memory = (
        noisy if state.memory is None else {n: v + 0.9 * state.memory[n] for n, v in noisy.items()}
    )
    return state.memory


def growing_noise(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    deviation = (1.0 + 0.25 * state.step) * state.clip
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def growing_account(state: Any) -> None:
    for step in range(state.steps):
        state.watch.account(noise_multiplier=1.0 + 0.25 * step, sampling_rate=state.rate, steps=1)


def falling_noise(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    deviation = state.sigma * 0.9**state.step * state.clip
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def root_two(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    """Two layers that are clipped to C each have together a norm of at most C times root 2."""
    deviation = state.sigma * state.clip * math.sqrt(2.0)
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def adaptive_clip(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """The next threshold follows a noisy count of clipped gradients, which is declared."""
    total = clipped_sum(state, each)
    count = float((norms(each) > state.clip).sum()) + 10.0 * state.random.normal()
    share = state.watch.release(count) / (state.rate * 24)
    state.memory = state.clip
    state.clip *= math.exp(-0.1 * (0.5 - share))
    return total


def noise_of_old_clip(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    deviation = state.sigma * state.memory
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def silent_adaptive_clip(state: Any, each: dict[str, Any]) -> dict[str, Any]:
    """The next threshold is the median of this batch's norms, without noise."""
    total = clipped_sum(state, each)
    state.memory = state.clip
    if len(each["b"]):
        state.clip = float(np.median(norms(each)))
    return total


# --- JAX ---


def loss(params: Any, x: Any, y: Any) -> Any:
    scores = x @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y)


def loss_of_batch(params: Any, x: Any, y: Any) -> Any:
    return loss(params, x, y).sum()


@jax.jit
def jax_gradients(params: Any, x: Any, y: Any) -> Any:
    return jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)


@jax.jit
def jax_gradient(params: Any, x: Any, y: Any) -> Any:
    return jax.grad(loss)(params, jnp.asarray(x, jnp.float32), y)


@jax.jit
def jax_clipped(each: Any, mask: Any, clip: Any) -> Any:
    norm = jax.vmap(optax.global_norm)(each)
    factors = mask * jnp.minimum(1.0, clip / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), each)


def jax_start() -> Any:
    return {"w": jnp.zeros((WIDTH, CLASSES)), "b": jnp.zeros(CLASSES)}


def jax_noise(key: Any, total: Any, deviation: float) -> Any:
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        v + deviation * jax.random.normal(k, v.shape) for k, v in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def same_key(key: Any, total: Any, deviation: float) -> Any:
    """One key for every array: what is drawn for the bias begins the noise of the weights."""
    return jax.tree.map(lambda v: v + deviation * jax.random.normal(key, v.shape), total)


def bfloat_noise(key: Any, total: Any, deviation: float) -> Any:
    """Noise in bfloat16 is added to a sum in float32."""
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        v + (deviation * jax.random.normal(k, v.shape, jnp.bfloat16)).astype(v.dtype)
        for k, v in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def jax_loop(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    noise: Any = jax_noise,
    key_of: Callable[[Any, int], Any] = jax.random.fold_in,
    constant: bool = False,
    batch_key: bool = True,
    raw_bias: bool = False,
    dtype: Any = None,
) -> Any:
    """DP-SGD in JAX with padded batches: a mask says which records are in a batch."""
    key = jax.random.key(0 if constant else seed)
    batches, noises = jax.random.split(key)
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = jax_start()
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        chosen = batches if batch_key else noises
        mask = jax.random.bernoulli(jax.random.fold_in(chosen, step), RATE, (len(y),))
        total = jax_clipped(jax_gradients(params, x, y), mask, CLIP)
        noisy = noise(key_of(noises, step), total, SIGMA * CLIP)
        if dtype is not None:
            noisy = jax.tree.map(lambda v: v.astype(dtype), noisy)
        noisy = watch.step(noisy, params, gradient=jax_gradient)
        if raw_bias:
            noisy = {**noisy, "b": total["b"]}
        params = jax.tree.map(lambda p, g: p - 0.2 * g.astype(p.dtype), params, noisy)
    return params


def _scanned(noise_key: Callable[[Any, Any], Any], noise: Any = jax_noise) -> Any:
    """A loop in `lax.scan`, whose steps are declared by `audit.step`."""

    @jax.jit
    def train(x: Any, y: Any, seed: Any) -> Any:
        batches, noises = jax.random.split(jax.random.key(seed))

        def body(params: Any, step: Any) -> Any:
            mask = jax.random.bernoulli(jax.random.fold_in(batches, step), RATE, (len(y),))
            each = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
            total = jax_clipped(each, mask, CLIP)
            noisy = audit.step(noise(noise_key(noises, step), total, SIGMA * CLIP), params)
            return jax.tree.map(lambda p, g: p - 0.2 * g, params, noisy), None

        params, _ = jax.lax.scan(body, jax_start(), jnp.arange(STEPS))
        return params

    def loop(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
        return train(records.features, records.labels, np.uint32(seed))

    return loop


# --- optax ---


def optax_loop(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    key: Any = None,
    noise_multiplier: float = 2.0,
    optimizer: Any = None,
) -> Any:
    """`differentially_private_aggregate` of optax on full batches."""
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    aggregate = optax.contrib.differentially_private_aggregate(
        l2_norm_clip=CLIP, noise_multiplier=noise_multiplier, key=seed if key is None else key
    )
    after = optimizer or optax.sgd(0.5)
    params = jax_start()
    first, second = aggregate.init(params), after.init(params)
    watch.account(noise_multiplier=2.0, steps=STEPS)
    for _ in range(STEPS):
        noisy, first = aggregate.update(jax_gradients(params, x, y), first)
        noisy = watch.step(noisy, params, gradient=jax_gradient)
        updates, second = after.update(noisy, second, params)
        params = optax.apply_updates(params, updates)
    return params


def optax_mean_clipped(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`clip_by_global_norm` on the mean gradient, and noise for the mean of clipped gradients."""
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    clip, params = optax.clip_by_global_norm(CLIP), jax_start()
    state = clip.init(params)
    watch.account(noise_multiplier=2.0, steps=STEPS)
    for step in range(STEPS):
        mean = jax.tree.map(lambda g: g.mean(0), jax_gradients(params, x, y))
        clipped, state = clip.update(mean, state)
        noisy = jax_noise(jax.random.key(seed + step), clipped, 2.0 * CLIP / len(y))
        noisy = watch.step(noisy, params, gradient=jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, noisy)
    return params


# --- jax_privacy ---


def jax_privacy_loop(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    clip: float = 1.0,
    deviation: Callable[[Any], float] = lambda function: 2.0 * function.sensitivity(),
    normalize_by: float = 1.0,
) -> Any:
    """`clipped_grad` and `gaussian_privatizer` on full batches."""
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    gradient = jax_privacy.clipped_grad(
        loss_of_batch, l2_clip_norm=clip, batch_argnums=(1, 2), normalize_by=normalize_by
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=deviation(gradient), prng_key=jax.random.key(seed)
    )
    params = jax_start()
    state = privatizer.init(params)
    watch.account(noise_multiplier=2.0, steps=STEPS)
    for _ in range(STEPS):
        noisy, state = privatizer.update(gradient(params, x, y), state)
        noisy = watch.step(noisy, params, gradient=jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.02 * normalize_by * g, params, noisy)
    return params


BAND = 3


def banded(records: Any, candidate: Any, seed: int, watch: Any, participations: int = 3) -> Any:
    """Banded matrix factorization, three epochs of fixed batches, `encoder=`."""
    steps, batches = 9, 3
    coefficients = toeplitz.optimal_max_error_strategy_coefs(BAND)
    encoder = np.asarray(toeplitz.materialize_lower_triangular(coefficients, n=steps), float)
    squared = toeplitz.minsep_sensitivity_squared(
        coefficients, min_sep=batches, max_participations=participations, n=steps
    )
    privatizer = noise_addition.matrix_factorization_privatizer(
        toeplitz.inverse_as_streaming_matrix(coefficients),
        stddev=2.0 * CLIP * float(squared) ** 0.5,
        prng_key=jax.random.key(seed),
    )
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = jax_start()
    state = privatizer.init(params)
    watch.account(noise_multiplier=2.0, steps=1)
    for step in range(steps):
        mask = jnp.arange(len(y)) % batches == step % batches
        total = jax_clipped(jax_gradients(params, x, y), mask, CLIP)
        noisy, state = privatizer.update(total, state)
        noisy = watch.step(noisy, params, encoder=encoder)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, noisy)
    return params


def _key(seed: Any, step: Any) -> Any:
    return seed


FULL = {"batch": full_batch, "rate": 1.0, "sigma": 3.0}

ARRAYS_CORRECT: dict[str, Control] = {
    "numpy, Poisson": Control(NumpyLoop()),
    "numpy, full batches": Control(NumpyLoop(**FULL)),
    "numpy, random start": Control(NumpyLoop(start=random_start)),
    "numpy, momentum of noisy sums": Control(NumpyLoop(update=momentum_of_noisy)),
    "numpy, growing noise that is accounted": Control(
        NumpyLoop(noise=growing_noise, account=growing_account)
    ),
    "numpy, layers clipped to C, noise for both": Control(
        NumpyLoop(total=by_layer, noise=root_two)
    ),
    "numpy, adaptive threshold with a declared count": Control(
        NumpyLoop(total=adaptive_clip, noise=noise_of_old_clip)
    ),
    "JAX, padded batches": Control(jax_loop),
    "JAX, released in bfloat16": Control(partial(jax_loop, dtype=jnp.bfloat16)),
    "JAX, lax.scan": Control(_scanned(jax.random.fold_in)),
    "optax, full batches": Control(optax_loop, relation="zero-out"),
    "optax, Adam after the noise": Control(
        partial(optax_loop, optimizer=optax.adam(0.05)), relation="zero-out"
    ),
    "jax_privacy, full batches": Control(jax_privacy_loop),
    "jax_privacy, normalised by a constant": Control(
        partial(jax_privacy_loop, clip=2.0, normalize_by=8.0)
    ),
    "jax_privacy, banded matrix factorization": Control(banded),
}

ARRAYS: dict[str, Control] = {
    "numpy, mean gradient clipped": Control(
        NumpyLoop(total=mean_clipped), source="https://github.com/tensorflow/privacy/issues/135"
    ),
    "numpy, microbatches clipped to four times C": Control(
        NumpyLoop(total=microbatches_of_four),
        source="https://github.com/tensorflow/privacy/issues/46",
    ),
    "numpy, incomplete microbatches dropped": Control(NumpyLoop(batch=whole_microbatches)),
    "numpy, each layer clipped to C": Control(NumpyLoop(total=by_layer)),
    "numpy, norm without the bias": Control(NumpyLoop(total=by_norm_of_weights)),
    "numpy, divided by the largest norm": Control(NumpyLoop(total=by_largest_norm)),
    "numpy, class weights of the records": Control(NumpyLoop(total=class_weights)),
    "numpy, momentum of sums without noise": Control(NumpyLoop(total=momentum_of_sums)),
    "numpy, noise without C": Control(NumpyLoop(noise=without_c, clip=2.0)),
    "numpy, variance taken for the deviation": Control(NumpyLoop(noise=root_of_sigma, sigma=2.0)),
    "numpy, noise divided twice": Control(
        NumpyLoop(noise=divided_twice), source="https://github.com/meta-pytorch/opacus/issues/753"
    ),
    "numpy, generator seeded in each step": Control(NumpyLoop(noise=seeded_again)),
    "numpy, no noise in the bias": Control(NumpyLoop(noise=not_the_bias)),
    "numpy, one number for all coordinates": Control(NumpyLoop(noise=one_number)),
    "numpy, falling noise": Control(NumpyLoop(noise=falling_noise)),
    "numpy, shuffled batches": Control(
        NumpyLoop(batch=shuffled),
        source="https://github.com/lxuechen/private-transformers/issues/7",
    ),
    "numpy, twice the accounted rate": Control(NumpyLoop(batch=twice_the_rate)),
    "numpy, empty batches skipped": Control(NumpyLoop(batch=skip_empty, rate=0.1)),
    "numpy, epochs accounted as steps": Control(NumpyLoop(account=one_step_per_epoch)),
    "numpy, features standardised by the records": Control(NumpyLoop(prepare=standardised)),
    "numpy, loss of the records returned": Control(NumpyLoop(result=loss_of_records)),
    "numpy, threshold by a median without noise": Control(
        NumpyLoop(total=silent_adaptive_clip, noise=noise_of_old_clip)
    ),
    "JAX, one key for all arrays": Control(
        partial(jax_loop, noise=same_key), source="https://github.com/jax-ml/jax/pull/3646"
    ),
    "JAX, one key for all steps": Control(partial(jax_loop, key_of=_key)),
    "JAX, constant key": Control(partial(jax_loop, constant=True)),
    "JAX, noise in bfloat16": Control(partial(jax_loop, noise=bfloat_noise)),
    "JAX, bias updated without noise": Control(partial(jax_loop, raw_bias=True)),
    "JAX, lax.scan with one key": Control(_scanned(_key)),
    "JAX, lax.scan, key of every second step": Control(
        _scanned(lambda key, step: jax.random.fold_in(key, step // 2))
    ),
    "optax, constant key": Control(partial(optax_loop, key=0), relation="zero-out"),
    "optax, noise multiplier over the batch size": Control(
        partial(optax_loop, noise_multiplier=2.0 / 24), relation="zero-out"
    ),
    "optax, mean gradient clipped": Control(optax_mean_clipped, relation="zero-out"),
    "jax_privacy, noise for a threshold of 1": Control(
        partial(jax_privacy_loop, clip=2.0, deviation=lambda function: 2.0)
    ),
    "jax_privacy, noise of the mean divided again": Control(
        partial(
            jax_privacy_loop,
            normalize_by=24.0,
            deviation=lambda function: 2.0 * function.sensitivity() / 24.0,
        )
    ),
    "jax_privacy, banded, one participation of three": Control(partial(banded, participations=1)),
}
