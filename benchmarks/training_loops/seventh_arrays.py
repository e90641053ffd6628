"""Loops of numpy, JAX and optax for the list `seventh_turn`."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.training_loops import arrays
from benchmarks.training_loops.arrays import CLASSES, CLIP, RATE, SIGMA, STEPS, WIDTH

SHAPE = (WIDTH + 1, CLASSES)
SIZE = SHAPE[0] * SHAPE[1]
EXPECTED = 15.0
CAPACITY = 40


def with_ones(x: Any) -> Any:
    return np.concatenate([x, np.ones((len(x), 1))], 1)


def rows_of(w: Any, x: Any, y: Any) -> Any:
    """Gradients of the records, [n, 27]; w is [9, 3], with the bias as last row."""
    slopes = arrays.probabilities(with_ones(x) @ w) - np.eye(CLASSES)[y]
    return (with_ones(x)[:, :, None] * slopes[:, None, :]).reshape(-1, SIZE)


def row_of(w: Any, x: Any, y: Any) -> Any:
    return rows_of(w, np.asarray(x, float)[None], np.asarray(y)[None])[0].reshape(SHAPE)


def cut(rows: Any, limit: float = CLIP) -> Any:
    return rows * np.minimum(1.0, limit / np.maximum(np.linalg.norm(rows, axis=1), 1e-12))[:, None]


def losses_of(w: Any, x: Any, y: Any) -> Any:
    scores = with_ones(x) @ w
    scores = scores - scores.max(1, keepdims=True)
    return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]


# --- numpy, mistakes and their correct counterparts ---

COEFFICIENTS = [math.comb(2 * k, k) / 4**k for k in range(STEPS)]
ENCODER = np.array(
    [[COEFFICIENTS[i - j] if i >= j else 0.0 for j in range(STEPS)] for i in range(STEPS)]
)
ONE_PARTICIPATION = float(np.linalg.norm(ENCODER, axis=0).max())
TWO_PARTICIPATIONS = float(max(np.linalg.norm(ENCODER[:, i] + ENCODER[:, i + 4]) for i in range(4)))


def two_epochs(records: Any, candidate: Any, seed: int, watch: Any, *, sensitivity: float) -> Any:
    """Correlated noise (DP-FTRL) in two epochs of four batches: a record takes part twice.

    The noise for one participation leaks under every relation: two columns of the encoder add up
    to a norm 1.58 times as large as that of one. With the norm of both columns it is correct under
    zero-out, because positions are public.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    noise = SIGMA * CLIP * sensitivity * random.normal(size=(STEPS, SIZE))
    correlated = np.linalg.solve(ENCODER, noise)
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, steps=1)
    for step in range(STEPS):
        chosen = np.arange(len(x)) % 4 == step % 4
        total = cut(rows_of(w, x[chosen], y[chosen])).sum(0) + correlated[step]
        noisy = watch.step(total.reshape(SHAPE), w, encoder=ENCODER, gradient=row_of)
        w = w - noisy / EXPECTED
    return w


def golden_rotation(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Each record's uniform number is rotated by the golden ratio and not drawn again.

    Each record is in a step with the accounted rate, but not independently of earlier steps.
    Leaks under add-remove: all 8 steps follow from one number, so that each record is in one to
    three steps, and amplification by sampling does not hold.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    uniform = random.random(len(x))
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        chosen = (uniform + step * (math.sqrt(5) - 1) / 2) % 1.0 < RATE
        total = cut(rows_of(w, x[chosen], y[chosen])).sum(0) + SIGMA * CLIP * random.normal(
            size=SIZE
        )
        noisy = watch.step(total.reshape(SHAPE), w, gradient=row_of)
        w = w - noisy / EXPECTED
    return w


def projected_to_gradient(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Gradients are projected to the singular vectors of their mean (GaLore), then clipped.

    Leaks under every relation: the projection is computed without noise, and it is the same that
    maps the noisy value back to the weights.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        rows = rows_of(w, x, y)
        if step % 4 == 0:
            basis = np.linalg.svd(rows.mean(0).reshape(SHAPE), full_matrices=False)[0][:, :2]
        small = np.einsum("ik,nij->nkj", basis, rows.reshape(-1, *SHAPE)).reshape(len(x), -1)
        total = cut(small).sum(0) + SIGMA * CLIP * random.normal(size=2 * CLASSES)
        noisy = watch.step(total.reshape(2, CLASSES), w)
        w = w - basis @ noisy / 60.0
    return w


def zeroth_order(records: Any, candidate: Any, seed: int, watch: Any, *, directions: int) -> Any:
    """Differences of losses along public directions are clipped to C for each record (DP-ZO).

    With four directions a record contributes up to 2 C, and the noise is scaled for C: leaks under
    every relation. With one direction the loop is correct.
    """
    random, public = np.random.default_rng(seed), np.random.default_rng(11)
    x, y = records.features.astype(float), records.labels
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        along = public.normal(size=(directions, *SHAPE))
        slopes = np.stack(
            [(losses_of(w + 0.01 * u, x, y) - losses_of(w - 0.01 * u, x, y)) / 0.02 for u in along]
        )
        total = np.clip(slopes, -CLIP, CLIP).sum(1) + SIGMA * CLIP * random.normal(size=directions)
        noisy = watch.step(total, w)
        w = w - 0.2 * np.tensordot(noisy, along, 1) / (60.0 * directions)
    return w


def stored_gradients(
    records: Any, candidate: Any, seed: int, watch: Any, *, accounted_rate: float
) -> Any:
    """Clipped gradients of earlier steps are stored for all records, and their sum released (SAG).

    Accounted for at the rate of the updates, it leaks under every relation: a record contributes
    to each step after its first, up to C. Accounted for as full batches, it is correct: what other
    records contribute follows from released weights.
    """
    draws, noises = (np.random.default_rng([seed, part]) for part in (1, 2))
    x, y = records.features.astype(float), records.labels
    stored = np.zeros((len(x), SIZE))
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, sampling_rate=accounted_rate, steps=STEPS)
    for _ in range(STEPS):
        chosen = np.flatnonzero(draws.random(len(x)) < RATE)
        stored[chosen] = cut(rows_of(w, x[chosen], y[chosen]))
        total = stored.sum(0) + SIGMA * CLIP * noises.normal(size=SIZE)
        noisy = watch.step(total.reshape(SHAPE), w, gradient=row_of)
        w = w - noisy / 60.0
    return w


# --- JAX and optax ---


@jax.jit
def clipped_together(gradients: Any) -> Any:
    """`optax.clip_by_global_norm` of the stacked gradients, then their sum."""
    clip = optax.clip_by_global_norm(CLIP)
    together, _ = clip.update(gradients, clip.init(gradients))
    return jax.tree.map(lambda g: g.sum(0), together)


def norm_of_batch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`optax.clip_by_global_norm` gets the stacked gradients of all records as one tree.

    Leaks under every relation: the norm is that of the whole batch, so that a large gradient
    shrinks all others, whose sum is up to sqrt(60) C long.
    """
    key = jax.random.key(seed)
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        total = clipped_together(arrays.jax_gradients(params, x, y))
        noisy = arrays.jax_noise(jax.random.fold_in(key, step), total, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, noisy)
    return params


@jax.jit
def sum_of_padded(params: Any, x: Any, y: Any, key: Any) -> Any:
    """Sum over a Poisson batch whose indices `jnp.nonzero` fills up to 40."""
    mask = jax.random.bernoulli(key, RATE, (len(y),))
    (chosen,) = jnp.nonzero(mask, size=CAPACITY)
    gradients = arrays.jax_gradients(params, x[chosen], y[chosen])
    return arrays.jax_clipped(gradients, jnp.ones(CAPACITY), CLIP)


def filled_with_first(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`jnp.nonzero(mask, size=40)` fills up with index 0, and the filled rows have weight 1.

    Leaks under every relation: the first record is in each batch about 25 times.
    """
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        total = sum_of_padded(params, x, y, jax.random.fold_in(batches, step))
        noisy = arrays.jax_noise(jax.random.fold_in(noises, step), total, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - g / EXPECTED, params, noisy)
    return params


@jax.jit
def long_gradients(gradients: Any, mask: Any, limit: Any) -> Any:
    """Number of gradients at least as long as the threshold, each counted as 1/2 or -1/2."""
    is_short = jax.vmap(optax.global_norm)(gradients) <= limit
    return (mask * (is_short - 0.5)).sum()


def adaptive_threshold(
    records: Any, candidate: Any, seed: int, watch: Any, *, one_key: bool
) -> Any:
    """A threshold by a noisy share of short gradients, whose cost the gradients' noise includes.

    The gradients have the noise multiplier (z^-2 - (2 s)^-2)^(-1/2), so that both cost as much as
    one release with noise multiplier z (Andrew et al. 2021). With one key, the noise of the share
    is also that of the first coordinate: leaks under every relation, because the difference of the
    two released numbers has no noise. With two keys the loop is correct.
    """
    deviation_of_share = 4.0
    multiplier = (SIGMA**-2 - (2 * deviation_of_share) ** -2) ** -0.5
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params, limit = arrays.jax_start(), 1.0
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        of_gradients = of_share = jax.random.fold_in(noises, step)
        if not one_key:
            of_gradients, of_share = jax.random.split(of_gradients)
        mask = jax.random.bernoulli(jax.random.fold_in(batches, step), RATE, (len(y),))
        gradients = arrays.jax_gradients(params, x, y)
        total = arrays.jax_clipped(gradients, mask, limit)
        vector = jnp.concatenate([total["w"].ravel(), total["b"]])
        vector = vector + multiplier * limit * jax.random.normal(of_gradients, vector.shape)
        noisy = {"w": vector[:-CLASSES].reshape(WIDTH, CLASSES), "b": vector[-CLASSES:]}
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        share = long_gradients(gradients, mask, limit)
        share = share + deviation_of_share * jax.random.normal(of_share, ())
        share = float(watch.release(share)) / EXPECTED
        params = jax.tree.map(lambda p, g: p - g / EXPECTED, params, noisy)
        limit = limit * math.exp(-0.2 * share)
    return params


plateau = optax.chain(
    optax.sgd(6.0), optax.contrib.reduce_on_plateau(factor=0.5, patience=1, accumulation_size=1)
)
update_by_loss = jax.jit(plateau.update)
mean_loss = jax.jit(lambda params, x, y: arrays.loss(params, x, y).mean())


def plateau_of_loss(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`optax.contrib.reduce_on_plateau` gets the loss of the private records.

    Leaks under every relation: the scale of the updates follows exact losses, in which one record
    can outweigh all others.
    """
    key = jax.random.key(seed)
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    state = plateau.init(params)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        total = arrays.jax_clipped(arrays.jax_gradients(params, x, y), jnp.ones(len(y)), CLIP)
        noisy = arrays.jax_noise(jax.random.fold_in(key, step), total, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        mean = jax.tree.map(lambda g: g / 60.0, noisy)
        updates, state = update_by_loss(mean, state, params, value=mean_loss(params, x, y))
        params = optax.apply_updates(params, updates)
    return params


@jax.jit
def half_precision_sum(params: Any, x: Any, y: Any, mask: Any) -> Any:
    """Gradients in bfloat16, clipped and summed in float32."""
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    gradients = jax.vmap(jax.grad(arrays.loss), (None, 0, 0))(half, x.astype(jnp.bfloat16), y)
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    return arrays.jax_clipped(gradients, mask, CLIP)


def half_precision(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: gradients in bfloat16 are clipped and summed in float32, with noise in float32."""
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        mask = jax.random.bernoulli(jax.random.fold_in(batches, step), RATE, (len(y),))
        total = half_precision_sum(params, x, y, mask)
        noisy = arrays.jax_noise(jax.random.fold_in(noises, step), total, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - g / EXPECTED, params, noisy)
    return params
