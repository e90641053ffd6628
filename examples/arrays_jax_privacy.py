"""Does a loop with jax_privacy do what its accounting assumes? A correct loop, and a broken copy.

Run it: `python examples/arrays_jax_privacy.py`.
"""

from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import noise_addition

import audit

CLASSES, STEPS, NOISE = 3, 4, 3.0
_labels = np.arange(16) % CLASSES
_features = np.random.default_rng(0).normal(size=(16, 5)) + 2 * np.eye(CLASSES, 5)[_labels]
DATA = (_features.astype(np.float32), _labels)


def loss(weights: Any, x: Any, y: Any) -> Any:
    """Cross-entropy of a batch, summed."""
    return optax.softmax_cross_entropy_with_integer_labels(x @ weights, y).sum()


CLIPPED = jax_privacy.clipped_grad(loss, l2_clip_norm=2.0, batch_argnums=(1, 2))
GRADIENTS = jax.jit(lambda weights, x, y: CLIPPED(weights, x, y))


def train(records: Any, candidate: Any, seed: int, watch: Any, forgotten: bool = False) -> Any:
    """Full batches; the noise is scaled to the sensitivity of the clipped sum."""
    deviation = NOISE * (1.0 if forgotten else CLIPPED.sensitivity())
    privatizer = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=jax.random.key(seed))
    weights = jnp.zeros((5, CLASSES))
    state = privatizer.init(weights)
    event = dp_accounting.GaussianDpEvent(NOISE)
    watch.account(dp_accounting.SelfComposedDpEvent(event, STEPS))
    for _ in range(STEPS):
        total = GRADIENTS(weights, records.features, records.labels)
        noisy, state = privatizer.update(total, state)
        noisy = watch.step(noisy, weights)
        weights = weights - 0.05 * noisy
    return weights


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise is that of the threshold 1, and the threshold is 2."""
    return train(records, candidate, seed, watch, forgotten=True)


if __name__ == "__main__":
    for function in (train, broken):
        print(f"{function.__name__}: {audit.check(function, DATA, trials=200)}\n")
