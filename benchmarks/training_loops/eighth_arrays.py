"""Loops of numpy, JAX and optax for the list `eighth_turn`."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.training_loops import arrays
from benchmarks.training_loops.arrays import CLASSES, CLIP, RATE, SIGMA, STEPS, WIDTH
from benchmarks.training_loops.seventh_arrays import EXPECTED, SHAPE, SIZE, cut, row_of, rows_of

BLOCK, MEMBERS, DELTA, SCALE = 4, 2, 1e-5, 4.0

# --- numpy, parts of the exchangeable loop ---


def blocks(state: Any) -> Any:
    """Blocks of four neighbouring records are drawn with the rate 1/4.

    Accounted for as Poisson samples, it leaks under every relation: the other records of a block
    show that a record was drawn, so that its steps are not amplified. Accounted for as full
    batches, it is correct under zero-out, because positions are public.
    """
    n = len(state.x)
    is_drawn = state.random.random(-(-n // BLOCK)) < RATE
    return np.flatnonzero(np.repeat(is_drawn, BLOCK)[:n])


def weighted_by_agreement(state: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """Clipped gradients have the weight of their cosine with the mean of the batch.

    Leaks under every relation: each contributes at most C, but a record turns the mean, and with
    it the weights of all others.
    """
    norm = np.maximum(arrays.norms(gradients), 1e-12)
    short = {
        k: g * np.minimum(1.0, state.clip / norm).reshape(-1, *[1] * (g.ndim - 1))
        for k, g in gradients.items()
    }
    rows = np.concatenate([g.reshape(len(norm), -1) for g in short.values()], 1)
    mean = rows.sum(0)
    cosines = rows @ mean / np.maximum(np.linalg.norm(rows, axis=1) * np.linalg.norm(mean), 1e-12)
    return arrays.scaled(short, np.clip(cosines, 0.0, 1.0))


def amplified_by_square(state: Any) -> None:
    """The claim is that of zCDP with the factor q^2 for the sampling.

    Leaks under every relation: zCDP has no such amplification. The claim is 3.64, and 8 steps of
    multiplier 1 and rate 1/4 cost 5.46 at delta 1e-5.
    """
    state.watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    rho = STEPS * RATE**2 / (2 * SIGMA**2)
    state.watch.claim(rho + 2 * math.sqrt(rho * math.log(1 / DELTA)))


# --- numpy ---


def coordinate_descent(
    records: Any, candidate: Any, seed: int, watch: Any, *, exact_curvature: bool
) -> Any:
    """Least squares by coordinates in turn, each slope clipped to C for each record.

    With the exact curvature of the column as divisor, it leaks under every relation: the divisor
    has no noise. With a constant, the loop is correct.
    """
    random = np.random.default_rng(seed)
    x, target = records.features.astype(float), np.where(records.labels == 0, 1.0, -1.0)
    w = np.zeros(WIDTH)
    watch.account(noise_multiplier=SIGMA, steps=2 * WIDTH)
    for step in range(2 * WIDTH):
        column = x[:, step % WIDTH]
        slopes = np.clip(column * (x @ w - target), -CLIP, CLIP)
        noisy = watch.step(slopes.sum(keepdims=True) + SIGMA * CLIP * random.normal(size=1), w)
        curvature = np.square(column).sum() + 1.0 if exact_curvature else 60.0
        w = w.copy()
        w[step % WIDTH] -= noisy[0] / curvature
    return w


def langevin(records: Any, candidate: Any, seed: int, watch: Any, *, counted_scale: float) -> Any:
    """Langevin dynamics: the sum over a batch of 15 is scaled to 60 records, and its noise serves.

    If the scale 4 is not counted in the sensitivity, it leaks under every relation: a record
    contributes 4 C, and the noise is scaled for C. Otherwise the loop is correct.
    """
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    deviation = SIGMA * CLIP * counted_scale
    step_size = 0.2 / deviation**2
    w, samples = np.zeros(SHAPE), []
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for _ in range(STEPS):
        chosen = random.random(len(x)) < RATE
        drift = SCALE * cut(rows_of(w, x[chosen], y[chosen])).sum(0)
        noisy = (drift + deviation * random.normal(size=SIZE)).reshape(SHAPE)
        noisy = watch.step(noisy, w, gradient=row_of)
        w = w - step_size / 2 * (noisy + 0.1 * w)
        samples.append(w)
    return {"last": w, "mean": np.mean(samples[4:], axis=0)}


def median_bandwidth(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Random Fourier features whose bandwidth is the median distance of the records.

    Leaks under every relation: the median has no noise, and it scales the features of all records.
    """
    random, public = np.random.default_rng(seed), np.random.default_rng(17)
    x, y = records.features.astype(float), records.labels
    distances = np.sqrt(np.square(x[:, None] - x[None]).sum(2))
    bandwidth = np.median(distances[np.triu_indices(len(x), 1)]) + 1e-6
    frequencies, phases = public.normal(size=(WIDTH, WIDTH)), public.uniform(0, 2 * np.pi, WIDTH)
    features = np.cos(x @ frequencies / bandwidth + phases)
    w = np.zeros(SHAPE)
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for _ in range(STEPS):
        chosen = random.random(len(x)) < RATE
        total = cut(rows_of(w, features[chosen], y[chosen])).sum(0)
        noisy = (total + SIGMA * CLIP * random.normal(size=SIZE)).reshape(SHAPE)
        noisy = watch.step(noisy, w)
        w = w - noisy / EXPECTED
    return w


def restarted_by_angle(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: Nesterov's momentum restarts if the released gradient opposes the last movement."""
    random = np.random.default_rng(seed)
    x, y = records.features.astype(float), records.labels
    w, ahead, age, restarts = np.zeros(SHAPE), np.zeros(SHAPE), 0, 0
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        total = cut(rows_of(ahead, x, y)).sum(0) + SIGMA * CLIP * random.normal(size=SIZE)
        noisy = watch.step(total.reshape(SHAPE), ahead, gradient=row_of)
        moved = ahead - noisy / 30.0
        if (noisy * (moved - w)).sum() > 0:
            age, restarts = 0, restarts + 1
        age += 1
        ahead = moved + (age - 1) / (age + 2) * (moved - w)
        w = moved
    return {"w": w, "restarts": restarts}


# --- JAX and optax ---


def partial_likelihood(w: Any, i: Any, x: Any, time: Any) -> Any:
    """Term of one record in Cox' partial likelihood: its risk against all that live longer."""
    scores = x @ w
    at_risk = jnp.where(time >= time[i], scores, -jnp.inf)
    return jax.nn.logsumexp(at_risk) - scores[i]


@jax.jit
def clipped_terms(w: Any, x: Any, time: Any) -> Any:
    terms = jax.vmap(jax.grad(partial_likelihood), (None, 0, None, None))
    return arrays.jax_clipped(terms(w, jnp.arange(len(x)), x, time), jnp.ones(len(x)), CLIP)


def cox_terms(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Survival times: the gradient of each record's term of the partial likelihood is clipped.

    Leaks under every relation: a record is in the risk sets of all records with shorter times, so
    that it changes their terms, too.
    """
    key = jax.random.key(seed)
    x, time = jnp.asarray(records.features[:, 1:]), jnp.asarray(records.features[:, 0])
    w = jnp.zeros(WIDTH - 1)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for step in range(STEPS):
        total = clipped_terms(w, x, time)
        noise = SIGMA * CLIP * jax.random.normal(jax.random.fold_in(key, step), w.shape)
        noisy = watch.step(total + noise, w)
        w = w - noisy / 60.0
    return w


@jax.jit
def sums_of_members(params: Any, x: Any, y: Any, mask: Any) -> Any:
    def of_member(weights: Any) -> Any:
        return arrays.jax_clipped(arrays.jax_gradients(weights, x, y), mask, CLIP)

    return jax.vmap(of_member)(params)


def ensemble(records: Any, candidate: Any, seed: int, watch: Any, *, one_key: bool) -> Any:
    """Two models in one `vmap`, each record clipped to C in each, with noise for sqrt(2) C.

    If the members have one key, it leaks under every relation: their noise is equal, and the
    difference of their gradients has none. With two keys the loop is correct.
    """
    batches, noises = jax.random.split(jax.random.key(seed))
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    starts = 0.3 * jax.random.normal(jax.random.key(7), (MEMBERS, WIDTH, CLASSES))
    params = {"w": starts, "b": jnp.zeros((MEMBERS, CLASSES))}
    watch.account(noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS)
    for step in range(STEPS):
        mask = jax.random.bernoulli(jax.random.fold_in(batches, step), RATE, (len(y),))
        total = sums_of_members(params, x, y, mask)
        key = jax.random.fold_in(noises, step)
        keys = jnp.stack([key, key]) if one_key else jax.random.split(key, MEMBERS)
        noisy = jax.vmap(arrays.jax_noise, (0, 0, None))(
            keys, total, SIGMA * CLIP * math.sqrt(MEMBERS)
        )
        noisy = watch.step(noisy, params)
        params = jax.tree.map(lambda p, g: p - g / EXPECTED, params, noisy)
    return params


def noise_of_optax(records: Any, candidate: Any, seed: int, watch: Any, *, gamma: float) -> Any:
    """`optax.add_noise(eta, gamma)` adds the noise to the sum of clipped gradients.

    With the usual gamma 0.55, it leaks under every relation: the variance is eta / t^gamma in step
    t, and the accountant has the first one. With gamma 0 the loop is correct.
    """
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    params = arrays.jax_start()
    noise, optimizer = optax.add_noise((SIGMA * CLIP) ** 2, gamma, seed), optax.adamw(0.05)
    of_noise, of_optimizer = noise.init(params), optimizer.init(params)
    watch.account(noise_multiplier=SIGMA, steps=STEPS)
    for _ in range(STEPS):
        total = arrays.jax_clipped(arrays.jax_gradients(params, x, y), jnp.ones(len(y)), CLIP)
        noisy, of_noise = noise.update(total, of_noise)
        noisy = watch.step(noisy, params, gradient=arrays.jax_gradient)
        updates, of_optimizer = optimizer.update(noisy, of_optimizer, params)
        params = optax.apply_updates(params, updates)
    return params
