"""Does a loop in JAX and optax do what its accounting assumes? A correct loop, and a broken copy.

The steps are compiled: `audit.step` declares the noisy value from inside of `lax.scan`.
Run it: `python examples/arrays_jax.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import audit

CLASSES, STEPS, NOISE, CLIP = 3, 6, 3.0, 1.0
_labels = np.arange(24) % CLASSES
_features = np.random.default_rng(0).normal(size=(24, 5)) + 2 * np.eye(CLASSES, 5)[_labels]
DATA = (_features.astype(np.float32), _labels)


def loss(weights: Any, x: Any, y: Any) -> Any:
    """Cross-entropy of one record."""
    return optax.softmax_cross_entropy_with_integer_labels(x @ weights, y)


@partial(jax.jit, static_argnames="reused")
def compiled(x: Any, y: Any, seed: Any, reused: bool) -> Any:
    """All steps; it is compiled once for each number of records."""
    optimizer = optax.adam(0.05)
    weights = jnp.zeros((5, CLASSES))

    def body(state: Any, step: Any) -> Any:
        weights, moments = state
        each = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, x, y)
        norms = jnp.sqrt(jnp.square(each).sum((1, 2)))
        total = jnp.tensordot(jnp.minimum(1, CLIP / jnp.maximum(norms, 1e-12)), each, 1)
        key = jax.random.fold_in(jax.random.key(seed), 0 if reused else step)
        noisy = total + NOISE * CLIP * jax.random.normal(key, weights.shape)
        noisy = audit.step(noisy, weights)
        updates, moments = optimizer.update(noisy, moments, weights)
        return (optax.apply_updates(weights, updates), moments), None

    (weights, _), _ = jax.lax.scan(body, (weights, optimizer.init(weights)), jnp.arange(STEPS))
    return weights


def train(records: Any, candidate: Any, seed: int, watch: Any, reused: bool = False) -> Any:
    """Full batches, Adam on noisy sums."""
    watch.account(noise_multiplier=NOISE, steps=STEPS)
    return compiled(records.features, records.labels, np.uint32(seed), reused)


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Every step uses the same key."""
    return train(records, candidate, seed, watch, reused=True)


if __name__ == "__main__":
    for function in (train, broken):
        print(f"{function.__name__}: {audit.check(function, DATA, trials=200)}\n")
