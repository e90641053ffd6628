"""Does a DP-SGD loop in numpy do what its accounting assumes? A correct loop, and a broken copy.

Run it: `python examples/arrays_numpy.py`.
"""

from typing import Any

import numpy as np

import audit

CLASSES, STEPS, RATE, NOISE, CLIP = 3, 6, 0.25, 1.0, 1.0
_labels = np.arange(24) % CLASSES
DATA = (np.random.default_rng(0).normal(size=(24, 5)) + 2 * np.eye(CLASSES, 5)[_labels], _labels)


def gradients(weights: Any, x: Any, y: Any) -> Any:
    """Every record's own gradient, [n, 5, classes]."""
    scores = np.exp(x @ weights - (x @ weights).max(axis=1, keepdims=True))
    slopes = scores / scores.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]
    return np.einsum("ni,nj->nij", x, slopes)


def train(records: Any, candidate: Any, seed: int, watch: Any, reused: bool = False) -> Any:
    """An ordinary loop; the test adds `watch.account` and `watch.step`."""
    random = np.random.default_rng(seed)
    weights = np.zeros((5, CLASSES))
    watch.account(noise_multiplier=NOISE, sampling_rate=RATE, steps=STEPS)
    for _ in range(STEPS):
        chosen = random.random(len(records)) < RATE
        each = gradients(weights, records.features[chosen], records.labels[chosen])
        norms = np.sqrt(np.square(each).sum(axis=(1, 2)))
        total = np.tensordot(np.minimum(1, CLIP / np.maximum(norms, 1e-12)), each, 1)
        generator = np.random.default_rng(seed) if reused else random
        noisy = total + NOISE * CLIP * generator.normal(size=weights.shape)
        noisy = watch.step(noisy, weights)
        weights = weights - 0.2 * noisy
    return weights


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The generator of the noise is seeded again in every step."""
    return train(records, candidate, seed, watch, reused=True)


if __name__ == "__main__":
    for function in (train, broken):
        print(f"{function.__name__}: {audit.check(function, DATA, trials=200)}\n")
