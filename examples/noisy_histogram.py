"""Does a noisy histogram have the noise that its epsilon needs? A correct one, and a broken copy.

Run it: `python examples/noisy_histogram.py`.
"""

from typing import Any

import numpy as np

import audit

EPSILON, EDGES = 0.5, np.linspace(0.0, 100.0, 11)
_ages = np.random.default_rng(0).uniform(18, 90, size=(40, 1))
DATA = (_ages, np.zeros(40, int))


def histogram(records: Any, candidate: Any, seed: int, watch: Any, sensitivity: float = 1.0) -> Any:
    """Counts of ages in public bins: one record adds 1 to one of them."""
    random = np.random.default_rng(seed)
    watch.claim(EPSILON)
    counts, _ = np.histogram(np.clip(records.features, EDGES[0], EDGES[-1]), EDGES)
    noisy = counts + random.laplace(0, sensitivity / EPSILON, len(counts))
    noisy = watch.release(noisy, epsilon=EPSILON)
    return np.maximum(noisy, 0.0)


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The sensitivity is divided by the number of bins."""
    return histogram(records, candidate, seed, watch, sensitivity=1.0 / 10)


if __name__ == "__main__":
    for function in (histogram, broken):
        print(f"{function.__name__}: {audit.check(function, DATA, trials=200)}\n")
