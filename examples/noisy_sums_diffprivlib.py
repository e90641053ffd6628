"""Do sums by diffprivlib have the noise that they need? A correct function, and a broken copy.

Run it: `python examples/noisy_sums_diffprivlib.py`.
"""

from typing import Any

import numpy as np
from diffprivlib.mechanisms import Laplace

import audit

EPSILON, LOW, HIGH = 0.5, 0.0, 10.0
DATA = (np.random.default_rng(0).uniform(LOW, HIGH, size=(30, 2)), np.zeros(30, int))


def squares(records: Any, candidate: Any, seed: int, watch: Any, bound: float = HIGH) -> Any:
    """Sums of squares of two bounded features."""
    random = np.random.RandomState(seed)
    watch.claim(2 * EPSILON)
    mechanism = Laplace(epsilon=EPSILON, sensitivity=bound**2, random_state=random)
    sums = np.square(np.clip(records.features, LOW, HIGH)).sum(axis=0)
    return [watch.release(mechanism.randomise(float(each)), epsilon=EPSILON) for each in sums]


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The sensitivity is taken of half the range."""
    return squares(records, candidate, seed, watch, bound=HIGH / 2)


if __name__ == "__main__":
    for function in (squares, broken):
        print(f"{function.__name__}: {audit.check(function, DATA, trials=200)}\n")
