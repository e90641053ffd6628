"""Loops of numpy, JAX and optax for the list `sixth_turn`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

from benchmarks.training_loops import arrays
from benchmarks.training_loops.arrays import CLASSES, CLIP, STEPS, WIDTH

SIZE, SKETCH, GRID, ROWS = WIDTH * CLASSES + CLASSES, 9, 0.05, 128
ORDER, DELTA, FULL_STEPS, SIGMA = 2.0, 1e-5, 8, 2.0


def flat(gradients: dict[str, Any]) -> Any:
    """Gradients of the records as rows, [n, 27]."""
    return np.concatenate([gradients["w"].reshape(len(gradients["b"]), -1), gradients["b"]], 1)


def unflat(vector: Any) -> dict[str, Any]:
    return {"w": vector[:-CLASSES].reshape(WIDTH, CLASSES), "b": vector[-CLASSES:]}


def clipped_rows(state: Any, gradients: dict[str, Any]) -> Any:
    rows = flat(gradients)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, state.clip / np.maximum(lengths, 1e-12))


# --- numpy ---


def median_times_size(state: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """The median of each coordinate, times the batch size, replaces the sum (robust aggregation).

    Leaks under add-remove: one record moves a median to the next value, and the batch size
    multiplies the move.
    """
    rows = clipped_rows(state, gradients)
    return unflat(len(rows) * np.median(rows, axis=0) if len(rows) else np.zeros(SIZE))


JOHNSON = np.random.default_rng(7).normal(size=(SKETCH, SIZE)) / np.sqrt(SKETCH)
ORTHONORMAL = np.linalg.qr(np.random.default_rng(7).normal(size=(SIZE, SKETCH)))[0].T


def johnson_sketch(state: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """A public projection that keeps lengths on average, but stretches some by a factor of 2.35.

    Leaks under add-remove: the noise has the scale C, but a sketch can have norm 2.35 C.
    """
    return {"sketch": JOHNSON @ clipped_rows(state, gradients).sum(0)}


def orthonormal_sketch(state: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """Correct: rows are orthonormal, so that no clipped gradient becomes longer than C."""
    return {"sketch": ORTHONORMAL @ clipped_rows(state, gradients).sum(0)}


def from_johnson(state: Any, noisy: dict[str, Any]) -> dict[str, Any]:
    return unflat(JOHNSON.T @ noisy["sketch"])


def from_orthonormal(state: Any, noisy: dict[str, Any]) -> dict[str, Any]:
    return unflat(ORTHONORMAL.T @ noisy["sketch"])


def one_shard(state: Any) -> Any:
    """A random quarter of the positions, of which each record is drawn with four times the rate.

    Each record is drawn with the accounted rate, but not independently. Leaks under add-remove:
    the other records show the quarter, so that the steps of this quarter have four times the rate.
    """
    shard = state.random.integers(4)
    n = len(state.x)
    return np.flatnonzero((np.arange(n) % 4 == shard) & (state.random.random(n) < 4 * state.rate))


def renyi_as_epsilon(state: Any) -> None:
    """The Renyi divergence of order 2 is claimed as epsilon, without the term for delta.

    Leaks under every relation: 8 steps of multiplier 2 cost epsilon 6.57 at delta 1e-5, not 2.
    """
    state.watch.account(noise_multiplier=SIGMA, steps=FULL_STEPS)
    state.watch.claim(
        float(compute_rdp(q=1.0, noise_multiplier=SIGMA, steps=FULL_STEPS, orders=ORDER))
    )


def renyi_converted(state: Any) -> None:
    """Correct: the claim is the converted Renyi divergence, at the best order."""
    state.watch.account(noise_multiplier=SIGMA, steps=FULL_STEPS)
    orders = [1 + x / 10 for x in range(1, 200)]
    renyi = compute_rdp(q=1.0, noise_multiplier=SIGMA, steps=FULL_STEPS, orders=orders)
    state.watch.claim(float(get_privacy_spent(orders=orders, rdp=renyi, delta=DELTA)[0]))


def rounded_records(state: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """Correct: each clipped record is rounded at random to a grid of width 0.05.

    A record contributes at most C + 0.05 sqrt(27), for which `noise_of_rounded` is scaled.
    """
    rows = clipped_rows(state, gradients) / GRID
    return unflat(GRID * np.floor(rows + state.random.random(rows.shape)).sum(0))


def noise_of_rounded(state: Any, total: dict[str, Any]) -> dict[str, Any]:
    deviation = state.sigma * (state.clip + GRID * np.sqrt(SIZE))
    return {n: v + deviation * state.random.normal(size=v.shape) for n, v in total.items()}


def shards_in_turn(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct under zero-out: each record is in two of eight steps, whose positions are public.

    With the identity as encoder, all steps are one Gaussian mechanism of sensitivity sqrt(2) C.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    state = arrays.State(x, y, random, seed, watch, CLIP, 1.0, 1.0, STEPS)
    params = arrays.zeros(state)
    watch.account(noise_multiplier=1.0, steps=1)
    for step in range(STEPS):
        chosen = np.arange(len(x)) % 4 == step % 4
        total = arrays.clipped_sum(state, arrays.each_gradient(params, x[chosen], y[chosen]))
        noisy = {n: v + np.sqrt(2) * CLIP * random.normal(size=v.shape) for n, v in total.items()}
        noisy = watch.step(noisy, params, encoder=np.eye(STEPS))
        params = {n: p - noisy[n] / 20 for n, p in params.items()}
    return params


# --- JAX and optax ---


def clipped_by_weights(gradient: Any, weights: Any) -> Any:
    """Each unit's gradient is cut to a tenth of the norm of its weights."""

    def cut(g: Any, w: Any) -> Any:
        limit = 0.1 * jnp.maximum(jnp.linalg.norm(w, axis=0), 1e-3)
        return g * jnp.minimum(1.0, limit / jnp.maximum(jnp.linalg.norm(g, axis=0), 1e-12))

    return jax.tree.map(cut, gradient, weights)


def adaptive_unit_clipping(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Adaptive gradient clipping by 0.1, which is taken for a threshold of norm 0.1.

    Leaks under add-remove: a record contributes up to 0.1 times the norm of all weights, here
    0.1 * 5, and the noise is scaled for 0.1.
    """
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    first, key = jax.random.split(jax.random.key(seed))
    params = {"w": jax.random.normal(first, (WIDTH, CLASSES)), "b": jnp.zeros(CLASSES)}
    params = watch.start(params)
    watch.account(noise_multiplier=1.0, steps=STEPS)
    for step in range(STEPS):
        gradients = arrays.jax_gradients(params, x, y)
        cut = jax.vmap(clipped_by_weights, (0, None))(gradients, params)
        total = jax.tree.map(lambda g: g.sum(0), cut)
        noisy = arrays.jax_noise(jax.random.fold_in(key, step), total, 0.1)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, noisy)
    return params


def gradients_of_halves(params: Any, x: Any, y: Any) -> list[Any]:
    """Gradients of the first and the second half of 128 rows; rows without a record have zero."""
    n = len(y)
    padded_x = jnp.zeros((ROWS, WIDTH)).at[:n].set(x)
    padded_y = jnp.zeros(ROWS, int).at[:n].set(y)
    mask = jnp.arange(ROWS) < n
    gradients = arrays.jax_gradients(params, padded_x, padded_y)
    masked = jax.tree.map(lambda g: g * mask.reshape(-1, *[1] * (g.ndim - 1)), gradients)
    return [jax.tree.map(lambda g: g[0::2], masked), jax.tree.map(lambda g: g[1::2], masked)]


def private_steps(key: Any) -> optax.MultiSteps:
    """A private aggregation of the mean of two trees of gradients."""
    return optax.MultiSteps(optax.contrib.differentially_private_aggregate(CLIP, SIGMA, key=key), 2)


# The key is part of the state, so that one compiled function serves all seeds.
update_private_steps = jax.jit(private_steps(0).update)
_averaged_steps = optax.MultiSteps(optax.sgd(0.5), 2)
averaged_steps = optax.GradientTransformation(_averaged_steps.init, jax.jit(_averaged_steps.update))


def accumulated_before_aggregation(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`optax.MultiSteps` around the private aggregation averages two records, then clips.

    Leaks under add-remove: the clipped mean of two records can turn round if one is removed, by
    2 C, and the noise is scaled for C.
    """
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    stacked = jax.tree.map(lambda p: jnp.zeros((ROWS // 2, *p.shape)), params)
    state = private_steps(seed).init(stacked)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        for half in gradients_of_halves(params, x, y):
            noisy, state = update_private_steps(half, state, stacked)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, noisy)
    return params


def aggregated_in_groups(
    records: Any, candidate: Any, seed: int, watch: Any, *, noise_multiplier: float
) -> Any:
    """A private aggregation for each group of `optax.multi_transform`, whose norms are separate.

    A record contributes C to each of two groups, hence sqrt(2) C. Noise multiplier 2 leaks under
    add-remove. Noise multiplier 2 sqrt(2) is correct.
    """
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    groups = {
        name: optax.contrib.differentially_private_aggregate(
            CLIP, noise_multiplier, key=jax.random.fold_in(jax.random.key(seed), number)
        )
        for number, name in enumerate(["weight", "bias"])
    }
    aggregate = optax.multi_transform(groups, {"w": "weight", "b": "bias"})
    params = arrays.jax_start()
    state = aggregate.init(params)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        noisy, state = aggregate.update(arrays.jax_gradients(params, x, y), state)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, noisy)
    return params
