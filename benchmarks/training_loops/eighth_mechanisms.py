"""Releases of a few noisy values for the list `eighth_turn`."""

from typing import Any

import numpy as np

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.mechanisms import clipped_rows
from benchmarks.training_loops.seventh_mechanisms import EPSILON, feature

SIGMA, BINS, WIDTH, TREES = 2.0, 12, 3, 4
LOWEST, HIGHEST = 0.01, 2.0
# Two Gaussian releases of noise multiplier sigma are one of multiplier sigma / sqrt(2).
EPSILON_OF_TWO = accounting.GaussianMechanism(2**0.5 / SIGMA).epsilon(1e-5)


def unit(records: Any, column: int) -> Any:
    """A feature scaled from [-3, 3] to [0, 1]."""
    return (feature(records, column, 3.0) + 3.0) / 6.0


# --- mistakes, some with a correct setting ---


def cosine_coefficients(
    records: Any, candidate: Any, seed: int, watch: Any, *, sensitivity: float
) -> Any:
    """Four cosine coefficients of the distribution of a feature, for a smooth density.

    Noise for sensitivity 1 leaks under every relation: each cosine is at most 1, and a record at 0
    adds 1 to all four. Sensitivity 4 is correct under add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    waves = np.cos(np.pi * np.outer(unit(records, 0), np.arange(1, 5)))
    noisy = waves.sum(0) + random.laplace(0, sensitivity, 4)
    return watch.release(noisy, epsilon=1.0) / 60.0


def naive_bayes(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Naive Bayes: sums of three features in [-1, 1] for each class, with noise for one feature.

    Leaks under every relation: the records of classes are disjoint, but each record adds to three
    sums, so that the table costs three times its epsilon.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    classes = np.eye(loops.CLASSES)[records.labels]
    values = np.clip(records.features[:, :WIDTH].astype(float), -1.0, 1.0)
    counts = watch.release(classes.sum(0) + random.laplace(0, 2.0, loops.CLASSES), epsilon=0.5)
    sums = classes.T @ values + random.laplace(0, 2.0, (loops.CLASSES, WIDTH))
    return watch.release(sums, epsilon=0.5) / np.maximum(counts, 1.0)[:, None]


def components_by_exact_variance(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Principal components of a noisy covariance, as many as explain 80 % of the exact variance.

    Leaks under every relation: their number follows from the covariance without noise.
    """
    random = np.random.default_rng(seed)
    watch.claim(EPSILON)
    x = clipped_rows(records.features[:, :WIDTH].astype(float))
    exact = x.T @ x
    noise = np.triu(random.normal(0, SIGMA, (WIDTH, WIDTH)))
    noisy = watch.release(exact + noise + np.triu(noise, 1).T, noise_multiplier=SIGMA)
    shares = np.cumsum(np.linalg.eigvalsh(exact)[::-1])
    number = int(np.searchsorted(shares / max(shares[-1], 1e-12), 0.8)) + 1
    return np.linalg.eigh(noisy)[1][:, ::-1][:, :number]


def largest_bin_by_exact_counts(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The bin with the largest exact count, and its count with noise.

    Leaks under every relation: the choice of the bin has no noise.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = np.histogram(feature(records, 1, 3.0), 6, (-3.0, 3.0))[0]
    largest = int(np.argmax(counts))
    count = watch.release(counts[largest] + random.laplace(), epsilon=1.0)
    return {"bin": largest, "count": count}


def functional_mechanism(
    records: Any, candidate: Any, seed: int, watch: Any, *, sensitivity: float
) -> Any:
    """Coefficients of a quadratic loss, with Laplace noise (functional mechanism).

    With y and d = 3 features in [-1, 1], a record adds y^2, -2 y x and x x', of L1 norm up to
    1 + 2 d + d^2 = 16. Noise for 1 + d + d^2 = 13 leaks under every relation.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    x = np.clip(records.features[:, :WIDTH].astype(float), -1.0, 1.0)
    y = np.clip(records.labels - 1.0, -1.0, 1.0)
    exact = np.concatenate([[y @ y], -2.0 * x.T @ y, (x.T @ x).ravel()])
    noisy = watch.release(exact + random.laplace(0, sensitivity, len(exact)), epsilon=1.0)
    slopes, squares = noisy[1 : 1 + WIDTH], noisy[1 + WIDTH :].reshape(WIDTH, WIDTH)
    return np.linalg.solve((squares + squares.T) / 2 + 100.0 * np.eye(WIDTH), -slopes / 2)


def bagged_trees(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Four random trees on bootstrap samples, with noisy counts in their leaves.

    Leaks under every relation: a record that a sample holds twice or more often counts as often,
    and the noise is scaled for 1.
    """
    random, public = np.random.default_rng(seed), np.random.default_rng(23)
    watch.claim(4.0)
    trees = []
    for _ in range(TREES):
        splits = public.integers(0, 8, 2)
        drawn = random.integers(0, len(records.labels), len(records.labels))
        leaves = (records.features[drawn][:, splits] > 0).astype(int) @ [2, 1]
        cells = np.bincount(leaves * loops.CLASSES + records.labels[drawn], minlength=12)
        noisy = watch.release(cells + random.laplace(size=12), epsilon=1.0)
        trees.append(noisy.reshape(4, loops.CLASSES).argmax(1))
    return np.array(trees)


def mean_of_logarithms(
    records: Any, candidate: Any, seed: int, watch: Any, *, sensitivity: float
) -> Any:
    """A geometric mean of values in [0.01, 2], by the sum of their logarithms.

    Noise for log 2 leaks under every relation: log 0.01 is -4.6. Noise for 4.6 is correct under
    add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = np.clip(np.abs(np.nan_to_num(records.features[:, 2].astype(float))), LOWEST, HIGHEST)
    noisy = np.log(values).sum() + random.laplace(0, sensitivity)
    return float(np.exp(np.clip(watch.release(noisy, epsilon=1.0) / 60.0, -5.0, 1.0)))


def drawn_until_positive(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise of a count is drawn again until the noisy count is not negative.

    Leaks under every relation: the range of the noise shows the count. At count 0, the noise is
    never negative, at count 1 it is so in 39 % of the runs.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = np.histogram(feature(records, 3, 6.0), BINS, (-6.0, 6.0))[0].astype(float)
    noise = random.laplace(size=BINS)
    while (counts + noise < 0).any():
        noise = np.where(counts + noise < 0, random.laplace(size=BINS), noise)
    return watch.release(counts + noise, epsilon=1.0)


def repeated_if_inaccurate(
    records: Any, candidate: Any, seed: int, watch: Any, *, by_exact_error: bool
) -> Any:
    """A sum is released again with less noise if the first noisy sum is not good enough.

    If the exact error decides, it leaks under every relation: whether a second release follows
    shows the size of the first noise. If the noisy sum itself decides, it is correct.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    exact = np.clip(records.features[:, 0].astype(float), 0.0, 1.0).sum()
    first, second = random.laplace(0, 5.0), random.laplace(0, 1.25)
    noisy = float(watch.release(exact + first, epsilon=0.2))
    is_poor = abs(noisy - exact) > 5.0 if by_exact_error else noisy < 35.0
    if is_poor:
        noisy = float(watch.release(exact + second, epsilon=0.8))
    return noisy


# --- correct releases ---


def forest_on_disjoint_parts(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: each record is in one of four random parts, and each tree has a part of its own.

    The parts are disjoint, so that the four tables cost as much as one.
    """
    parts, noises = (np.random.default_rng([seed, k]) for k in (1, 2))
    public = np.random.default_rng(29)
    watch.claim(1.0)
    part = parts.integers(0, TREES, len(records.labels))
    trees = []
    for number in range(TREES):
        splits = public.integers(0, 8, 2)
        leaves = (records.features[part == number][:, splits] > 0).astype(int) @ [2, 1]
        cells = np.bincount(leaves * loops.CLASSES + records.labels[part == number], minlength=12)
        noisy = watch.release(cells + noises.laplace(size=12), epsilon=1.0)
        trees.append(noisy.reshape(4, loops.CLASSES).argmax(1))
    return np.array(trees)


def zoomed_histogram(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the bin with the largest noisy count is divided into five bins of its own."""
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = feature(records, 0, 3.0)
    coarse = np.histogram(values, 5, (-3.0, 3.0))[0] + random.laplace(0, 2.5, 5)
    coarse = watch.release(coarse, epsilon=0.4)
    low = -3.0 + 1.2 * int(np.argmax(coarse))
    edges = np.linspace(low, low + 1.2, 6)
    fine = np.histogram(values, edges)[0] + random.laplace(0, 1 / 0.6, 5)
    fine = watch.release(fine, epsilon=0.6)
    return {"mode": float(edges[int(np.argmax(fine))]), "coarse": coarse, "fine": fine}


def regression_in_released_space(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: rows are projected to two released components, and a moment has noise of its own.

    A row of norm at most 1 adds a matrix of norm at most 1. Its projection is not longer, and the
    label is -1, 0 or 1.
    """
    random = np.random.default_rng(seed)
    watch.claim(EPSILON_OF_TWO)
    x = clipped_rows(records.features[:, :4].astype(float))
    y = np.clip(records.labels - 1.0, -1.0, 1.0)
    noise = np.triu(random.normal(0, SIGMA, (4, 4)))
    noisy = watch.release(x.T @ x + noise + np.triu(noise, 1).T, noise_multiplier=SIGMA)
    values, vectors = np.linalg.eigh(noisy)
    basis = vectors[:, -2:]
    moment = (x @ basis).T @ y + SIGMA * random.normal(size=2)
    moment = watch.release(moment, noise_multiplier=SIGMA)
    return basis @ (moment / np.maximum(values[-2:], 5.0))
