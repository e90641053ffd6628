"""Functions without a training loop that declare noisy values, with and without a mistake.

All of them were written before the test of declared values was run on any.
"""

from functools import partial
from typing import Any

import numpy as np

from benchmarks.training_loops.correct import Control

BINS, WIDTH, EPSILON, SIGMA = 6, 3, 0.8, 2.0


def clipped_rows(x: Any, radius: float = 1.0) -> Any:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.minimum(1.0, radius / np.maximum(norm, 1e-12))


def histogram(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    scale: float = 1.0,
    bounds: Any = (-3.0, 3.0),
    law: str = "laplace",
    shared: bool = False,
    empty: bool = True,
) -> Any:
    """Counts of one feature in bins."""
    random = np.random.default_rng(seed)
    values = records.features[:, 0].astype(float)
    low, high = (values.min(), values.max()) if bounds is None else bounds
    counts, _ = np.histogram(np.clip(values, low, high), BINS, (low, max(high, low + 1e-9)))
    size = 1 if shared else BINS
    if law == "laplace":
        noise = random.laplace(0, scale / EPSILON, size)
    elif law == "geometric":
        p = 1 - np.exp(-EPSILON / scale)
        noise = random.geometric(p, size) - random.geometric(p, size)
    else:
        noise = random.normal(0, scale / EPSILON, size)
    noisy = counts + noise
    if not empty:
        noisy = np.where(counts > 0, noisy, 0.0)
    return watch.release(noisy, epsilon=EPSILON)


def mean(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    bounds: Any = (-2.0, 2.0),
    exact_count: bool = False,
    claim: float = 2 * EPSILON,
) -> Any:
    """A noisy sum over a noisy count."""
    random = np.random.default_rng(seed)
    values = records.features[:, 0].astype(float)
    low, high = (values.min(), values.max()) if bounds is None else bounds
    limit = max(abs(low), abs(high))
    watch.claim(claim)
    total = np.clip(values, low, high).sum() + random.laplace(0, limit / EPSILON)
    total = watch.release(total, epsilon=EPSILON)
    if exact_count:
        return total / len(values)
    count = watch.release(len(values) + random.laplace(0, 1 / EPSILON), epsilon=EPSILON)
    return total / max(count, 1.0)


def moments(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    clip: bool = True,
    symmetric: bool = True,
    half: bool = False,
) -> Any:
    """Least squares by noisy moments: one Gaussian release of X'X and X'y."""
    random = np.random.default_rng(seed)
    x = records.features[:, :WIDTH].astype(float)
    x = clipped_rows(x) if clip else x / np.abs(x).max()
    y = np.clip(records.labels - 1.0, -1, 1)
    noise = random.normal(0, SIGMA * 2**0.5 * (0.5 if half else 1.0), (WIDTH, WIDTH))
    if symmetric:
        noise = np.triu(noise) + np.triu(noise, 1).T
    covariance = x.T @ x + noise
    moment = x.T @ y + random.normal(0, SIGMA * 2**0.5 * (0.5 if half else 1.0), WIDTH)
    covariance, moment = watch.release((covariance, moment), noise_multiplier=SIGMA)
    return np.linalg.lstsq(covariance, moment, rcond=None)[0]


def k_means(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    rounds: int = 3,
    noisy_counts: bool = True,
    private_start: bool = False,
    clip: bool = True,
) -> Any:
    """Lloyd's iterations with noisy sums and noisy counts."""
    random = np.random.default_rng(seed)
    x = records.features[:, :WIDTH].astype(float)
    x = clipped_rows(x) if clip else x
    centres = np.eye(WIDTH) if not private_start else x[:WIDTH].copy()
    for _ in range(rounds):
        own = np.argmin(np.square(x[:, None] - centres[None]).sum(2), axis=1)
        members = np.eye(WIDTH)[own]
        sums = watch.release(
            members.T @ x + random.normal(0, SIGMA, (WIDTH, WIDTH)), noise_multiplier=SIGMA
        )
        counts = members.sum(0)
        if noisy_counts:
            counts = watch.release(counts + random.normal(0, SIGMA, WIDTH), noise_multiplier=SIGMA)
        centres = sums / np.maximum(counts, 1.0)[:, None]
    return centres


def components(records: Any, candidate: Any, seed: int, watch: Any, centred: bool = False) -> Any:
    """The first principal component of a noisy covariance."""
    random = np.random.default_rng(seed)
    x = clipped_rows(records.features[:, :WIDTH].astype(float))
    if centred:
        x = x - x.mean(axis=0)
    noise = np.triu(random.normal(0, SIGMA, (WIDTH, WIDTH)))
    covariance = x.T @ x + noise + np.triu(noise, 1).T
    covariance = watch.release(covariance, noise_multiplier=SIGMA)
    return np.linalg.eigh(covariance)[1][:, -1]


def by_group(records: Any, candidate: Any, seed: int, watch: Any, claim: float = EPSILON) -> Any:
    """One count per class: each record is in one of them, so that they cost EPSILON in all."""
    random = np.random.default_rng(seed)
    watch.claim(claim)
    counts = [int((records.labels == c).sum()) for c in range(3)]
    return [watch.release(c + random.laplace(0, 1 / EPSILON), epsilon=EPSILON) for c in counts]


def by_library(
    records: Any, candidate: Any, seed: int, watch: Any, sensitivity: float = 4.0
) -> Any:
    """Sums of squares of bounded features by the Laplace mechanism of diffprivlib."""
    from sklearn.tree import _tree

    # diffprivlib 0.6.6 imports these names, which scikit-learn 1.9 no longer has.
    vars(_tree).setdefault("DOUBLE", np.float64)
    vars(_tree).setdefault("DTYPE", np.float32)
    from diffprivlib.mechanisms import Laplace

    random = np.random.RandomState(seed)
    squares = np.square(np.clip(records.features[:, :2].astype(float), 0.0, 2.0)).sum(0)
    noise = Laplace(epsilon=EPSILON, sensitivity=sensitivity, random_state=random)
    return [watch.release(noise.randomise(float(each)), epsilon=EPSILON) for each in squares]


def constant_seed(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    noise = np.random.default_rng(42).laplace(0, 1 / EPSILON)
    return watch.release(len(records.labels) + noise, epsilon=EPSILON)


MECHANISMS_CORRECT: dict[str, Control] = {
    "histogram, Laplace": Control(histogram),
    "histogram, geometric": Control(partial(histogram, law="geometric")),
    "mean of noisy sum and count": Control(mean),
    "least squares by moments": Control(moments),
    "least squares, noise that is not symmetric": Control(partial(moments, symmetric=False)),
    "k-means": Control(k_means),
    "principal component": Control(components),
    "counts of disjoint groups": Control(by_group),
    "diffprivlib": Control(by_library),
}

MECHANISMS: dict[str, Control] = {
    "histogram, half the scale": Control(partial(histogram, scale=0.5)),
    "histogram, range of the records": Control(partial(histogram, bounds=None)),
    "histogram, Gaussian noise for epsilon": Control(partial(histogram, law="normal")),
    "histogram, one draw for all bins": Control(partial(histogram, shared=True)),
    "histogram, no noise in empty bins": Control(partial(histogram, empty=False)),
    "mean, bounds of the records": Control(partial(mean, bounds=None)),
    "mean, exact count": Control(partial(mean, exact_count=True)),
    "mean, claim of one value for two": Control(partial(mean, claim=EPSILON)),
    "least squares, records not clipped": Control(partial(moments, clip=False)),
    "least squares, half the noise": Control(partial(moments, half=True)),
    "k-means, exact counts": Control(partial(k_means, noisy_counts=False)),
    "k-means, starts at records": Control(partial(k_means, private_start=True)),
    "k-means, records not clipped": Control(partial(k_means, clip=False)),
    "principal component, centred by the records": Control(partial(components, centred=True)),
    "diffprivlib, sensitivity of the lower bound": Control(
        partial(by_library, sensitivity=0.5),
        source="https://github.com/IBM/differential-privacy-library/issues/105",
    ),
    "counts of groups, constant seed": Control(constant_seed),
}
