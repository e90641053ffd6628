"""Loops of numpy, JAX, optax and jax_privacy for the list `ninth_turn`."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax

from benchmarks.training_loops import arrays
from benchmarks.training_loops.arrays import CLASSES, CLIP, RATE, SIGMA, STEPS, WIDTH
from benchmarks.training_loops.seventh_arrays import EXPECTED, SHAPE, SIZE, cut, row_of, rows_of

FACTORS, COMPONENTS = 2, 3

# --- numpy, mistakes and their correct counterparts ---


def boosted_stumps(records: Any, candidate: Any, seed: int, watch: Any, *, limit: float) -> Any:
    """Boosted stumps with public cuts: noisy sums of residuals and counts of two leaves.

    A record adds its residual and 1 to one leaf, and the noise is scaled for residuals in [-1, 1].
    If later residuals are not clipped to these limits, it leaks under every relation. If they are,
    the loop is correct.
    """
    random = np.random.default_rng(seed)
    x, target = records.features.astype(float), np.where(records.labels == 0, 1.0, -1.0)
    predicted, trees = np.zeros(len(x)), np.zeros((STEPS, 2))
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        residuals = np.clip(target - predicted, -limit, limit)
        leaves = np.eye(2)[(x[:, step % WIDTH] > 0).astype(int)]
        table = leaves.T @ np.stack([residuals, np.ones(len(x))], 1)
        table = table + SIGMA * math.sqrt(2.0) * random.normal(size=(2, 2))
        table = watch.step(table, trees)
        trees = trees.copy()
        trees[step] = np.clip(table[:, 0] / np.maximum(table[:, 1], 5.0), -1.0, 1.0)
        predicted = predicted + leaves @ trees[step]
    return trees


def moves(records: Any) -> tuple[Any, Any]:
    """Three numbers at a first and three at a second time."""
    x = records.features.astype(float)
    return x[:, :3], x[:, 3:6]


def slopes_of_moves(w: Any, first: Any, second: Any) -> Any:
    """Gradients of the squared errors when each time is predicted from the other, [n, 3, 3]."""
    forward, backward = first @ w - second, second @ w - first
    return first[:, :, None] * forward[:, None] + second[:, :, None] * backward[:, None]


def slope_of_move(w: Any, x: Any, y: Any) -> Any:
    x = np.asarray(x, float)[None]
    return slopes_of_moves(w, x[:, :3], x[:, 3:6])[0]


def autoregression(records: Any, candidate: Any, seed: int, watch: Any, *, order: Any) -> Any:
    """A matrix that predicts one time from the other; the gradient of a record is a matrix.

    `np.linalg.norm(g, 2, axis=(1, 2))` is the largest singular value. With it, the loop leaks under
    every relation: a gradient of rank 2 keeps a norm of up to sqrt(2) C. With the Frobenius norm it
    is correct.
    """
    random = np.random.default_rng(seed)
    first, second = moves(records)
    w = np.zeros((3, 3))
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        slopes = slopes_of_moves(w, first, second)
        norms = np.linalg.norm(slopes, order, axis=(1, 2))
        total = (slopes * np.minimum(1.0, CLIP / np.maximum(norms, 1e-12))[:, None, None]).sum(0)
        noisy = watch.step(
            total + SIGMA * CLIP * random.normal(size=(3, 3)), w, gradient=slope_of_move
        )
        w = w - noisy / 60.0
    return w


# --- numpy, mistakes ---


def factors_of_users(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Matrix factorisation: private factors of items, and the factors of all users.

    Leaks under every relation: the items learn from noisy gradients, but the factors of a user are
    a least squares fit to this user's own row, and are returned.
    """
    random = np.random.default_rng(seed)
    rows = np.clip(records.features.astype(float), -3.0, 3.0)
    items = np.random.default_rng(33).normal(size=(WIDTH, FACTORS))

    def users_of(v: Any) -> Any:
        return np.linalg.solve(v.T @ v + 0.1 * np.eye(FACTORS), v.T @ rows.T).T

    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        users = users_of(items)
        errors = users @ items.T - rows
        slopes = (errors[:, :, None] * users[:, None]).reshape(len(rows), -1)
        total = cut(slopes).sum(0) + SIGMA * CLIP * random.normal(size=WIDTH * FACTORS)
        noisy = watch.step(total.reshape(WIDTH, FACTORS), items)
        items = items - noisy / 30.0
    return {"items": items, "users": users_of(items)}


def frank_wolfe(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Frank-Wolfe in an L1 ball: the coordinate with the largest exact slope, its slope with noise.

    Leaks under every relation: the choice of the coordinate has no noise.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    w = np.zeros(SIZE)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        total = cut(rows_of(w.reshape(SHAPE), x, y)).sum(0)
        chosen = int(np.abs(total).argmax())
        noisy = np.zeros(SIZE)
        noisy[chosen] = total[chosen] + SIGMA * CLIP * random.normal()
        noisy = watch.step(noisy, w)
        w = w + 2.0 / (step + 2.0) * (-3.0 * np.sign(noisy) - w)
    return w


def rate_by_largest_eigenvalue(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Gradient descent with the step size 1 / L, where L follows from X'X.

    Leaks under every relation: the largest eigenvalue has no noise.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    smoothness = np.linalg.eigvalsh(x.T @ x)[-1] / 4.0 + 1.0
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        total = cut(rows_of(w, x, y)).sum(0) + SIGMA * CLIP * random.normal(size=SIZE)
        noisy = watch.step(total.reshape(SHAPE), w, gradient=row_of)
        w = w - noisy / smoothness
    return w


def rates_by_visits(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Q-learning of a table, where each cell has a rate of one over its number of visits.

    Leaks under every relation: the temporal differences have noise, the numbers of visits have not.
    """
    random = np.random.default_rng(seed)
    x, actions = records.features.astype(float), records.labels
    states = (x[:, :2] > 0).astype(int) @ [2, 1]
    later = (x[:, 3:5] > 0).astype(int) @ [2, 1]
    rewards = np.clip(x[:, 2], -1.0, 1.0)
    table, visits = np.zeros((4, CLASSES)), np.zeros((4, CLASSES))
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for _ in range(STEPS):
        chosen = random.random(len(x)) < RATE
        cells = (states[chosen], actions[chosen])
        differences = rewards[chosen] + 0.5 * table[later[chosen]].max(1) - table[cells]
        total = np.zeros_like(table)
        np.add.at(total, cells, np.clip(differences, -CLIP, CLIP))
        np.add.at(visits, cells, 1.0)
        noisy = watch.step(total + SIGMA * CLIP * random.normal(size=table.shape), table)
        table = table + noisy / (visits + 5.0)
    return table


def weights_over_their_mean(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Survey weights of the records, divided by their mean over the batch, multiply the gradients.

    Leaks under every relation: the weighted gradient of a record is clipped, but a record with a
    large weight makes those of all others small.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    weights = 1.0 + np.abs(x[:, 7])
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for _ in range(STEPS):
        chosen = random.random(len(x)) < RATE
        own = weights[chosen] / max(weights[chosen].sum() / max(chosen.sum(), 1), 1e-9)
        total = cut(own[:, None] * rows_of(w, x[chosen], y[chosen])).sum(0)
        noisy = (total + SIGMA * CLIP * random.normal(size=SIZE)).reshape(SHAPE)
        noisy = watch.step(noisy, w)
        w = w - noisy / EXPECTED
    return w


# --- JAX and jax_privacy, mistakes ---


def numpy_noise_in_jit(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise is drawn by numpy in a compiled function.

    Leaks under every relation: numpy draws once, when the function is traced, so that all steps
    have the same noise.
    """
    random = np.random.default_rng(seed)
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()

    @jax.jit
    def noisy_sum(params: Any) -> Any:
        total = arrays.jax_clipped(arrays.jax_gradients(params, x, y), jnp.ones(len(y)), CLIP)
        return jax.tree.map(lambda v: v + SIGMA * CLIP * random.normal(size=v.shape), total)

    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        noisy = watch.step(noisy_sum(params), params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - g / 60.0, params, noisy)
    return params


@jax.jit
def clipped_and_losses(params: Any, x: Any, y: Any) -> Any:
    gradient = jax_privacy.clipped_grad(
        arrays.loss_of_batch, l2_clip_norm=CLIP, batch_argnums=(1, 2), return_values=True
    )
    return gradient(params, x, y)


def returned_losses_logged(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """jax_privacy returns the losses of the records, and their means are kept in a log.

    Leaks under every relation: the log is returned, and it has no noise.
    """
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params, log = arrays.jax_start(), []
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        total, further = clipped_and_losses(params, x, y)
        log.append(float(further.values.sum()) / 60.0)
        key = jax.random.fold_in(jax.random.key(seed), step)
        noisy = arrays.jax_noise(key, total, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        params = jax.tree.map(lambda p, g: p - g / 60.0, params, noisy)
    return {"params": params, "losses": log}


# --- correct ---


def mixture_by_noisy_moments(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the EM algorithm for a Gaussian mixture, by noisy shares and sums of each component.

    Shares of a record have a norm of at most 1, and so has its point; their products have one, too.
    """
    random = np.random.default_rng(seed)
    points = records.features[:, :2].astype(float)
    points = cut(points)
    means, weights = np.array([[0.5, 0.0], [-0.3, 0.4], [-0.3, -0.4]]), np.full(COMPONENTS, 1 / 3)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        distances = np.square(points[:, None] - means[None]).sum(2)
        shares = arrays.probabilities(np.log(weights) - 4.0 * distances)
        table = shares.T @ np.concatenate([np.ones((len(points), 1)), points], 1)
        table = table + SIGMA * math.sqrt(2.0) * random.normal(size=table.shape)
        table = watch.step(table, {"means": means, "weights": weights})
        counts = np.maximum(table[:, 0], 4.0)
        means, weights = np.clip(table[:, 1:] / counts[:, None], -1.0, 1.0), counts / counts.sum()
    return {"means": means, "weights": weights}


def oja(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the first principal direction by Oja's rule on Poisson samples."""
    random = np.random.default_rng(seed)
    x = records.features.astype(float)
    direction = np.full(WIDTH, 1.0 / math.sqrt(WIDTH))
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for _ in range(STEPS):
        batch = x[random.random(len(x)) < RATE]
        total = cut(batch * (batch @ direction)[:, None]).sum(0)
        noisy = watch.step(total + SIGMA * CLIP * random.normal(size=WIDTH), direction)
        direction = direction + noisy / EXPECTED
        direction = direction / np.linalg.norm(direction)
    return direction


def loss_after_own_step(w: Any, x: Any, y: Any) -> Any:
    """Loss of the last four features after a step on the first four of the same record."""

    def loss(weights: Any, features: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(features @ weights, y)

    return loss(w - 0.2 * jax.grad(loss)(w, x[:4]), x[4:])


@jax.jit
def clipped_meta_sum(w: Any, x: Any, y: Any, mask: Any) -> Any:
    slopes = jax.vmap(jax.grad(loss_after_own_step), (None, 0, 0))(w, x, y)
    return arrays.jax_clipped(slopes, mask, CLIP)


def adapted_by_own_step(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: MAML in which each record adapts the weights by its own features alone."""
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    w = jnp.zeros((4, CLASSES))
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        mask = jax.random.bernoulli(jax.random.fold_in(batches, step), RATE, (len(y),))
        noise = jax.random.normal(jax.random.fold_in(noises, step), w.shape)
        noisy = watch.step(clipped_meta_sum(w, x, y, mask) + SIGMA * CLIP * noise, w)
        w = w - noisy / EXPECTED
    return w


def schedule_free(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: optax's schedule-free SGD of noisy gradients; its averaged weights are returned."""
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    optimizer = optax.contrib.schedule_free_sgd(1.0, warmup_steps=2)
    state = optimizer.init(params)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        total = arrays.jax_clipped(arrays.jax_gradients(params, x, y), jnp.ones(len(y)), CLIP)
        key = jax.random.fold_in(jax.random.key(seed), step)
        noisy = arrays.jax_noise(key, total, SIGMA * CLIP)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        scaled = jax.tree.map(lambda g: g / 60.0, noisy)
        updates, state = optimizer.update(scaled, state, params)
        params = optax.apply_updates(params, updates)
    return optax.contrib.schedule_free_eval_params(state, params)
