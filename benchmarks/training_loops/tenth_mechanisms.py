"""Releases of a few noisy values for the list `tenth_turn`."""

import math
from typing import Any

import numpy as np

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import CLASSES
from benchmarks.training_loops.mechanisms import clipped_rows
from benchmarks.training_loops.seventh_mechanisms import feature

SIGMA, PENALTY, WIDTH = 2.0, 10.0, 4
EPSILON_OF_ONE = accounting.GaussianMechanism(1 / SIGMA).epsilon(1e-5)
# The outer bins are rare.
BINS = np.array([-math.inf, -2.5, 0.0, 2.5, math.inf])


def sixty_texts() -> loops.Records:
    """Five words of a vocabulary of 400 for each of 60 records, so that many words are unique."""
    random = np.random.default_rng(104)
    return random.integers(0, 400, size=(60, 5)), np.arange(60) % CLASSES


# --- mistakes, most with a correct setting ---


def distinct_words(records: Any, candidate: Any, seed: int, watch: Any, *, words: int) -> Any:
    """The number of distinct words in all texts of five words.

    Noise for one word leaks under every relation: a text may have five words that no other one has.
    Noise for five is correct under add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    distinct = np.unique(np.asarray(records.features).astype(np.int64))
    return watch.release(float(len(distinct)) + random.laplace(0, float(words)), epsilon=1.0)


def two_sided_geometric(
    records: Any, candidate: Any, seed: int, watch: Any, *, success: float
) -> Any:
    """Counts of classes with the difference of two geometric numbers, for epsilon 0.5.

    With success probability 0.5 (epsilon itself), it leaks under every relation: the cost is
    log(2) = 0.69. With 1 - exp(-0.5) = 0.39 the function is correct under add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(0.5)
    counts = np.bincount(records.labels, minlength=CLASSES)
    noise = random.geometric(success, CLASSES) - random.geometric(success, CLASSES)
    return watch.release(counts + noise, epsilon=0.5)


def sum_of_groups(records: Any, candidate: Any, seed: int, watch: Any, *, values: bool) -> Any:
    """Sums of a value in each class, in [-60, 60], with noise for a value in [-1, 1].

    If the sums are clamped in place of the values, it leaks under every relation: a value is not
    bounded, and may move a sum from one limit to the other. If the values are clamped too, the
    function is correct under add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    amounts = feature(records, 4, 1.0 if values else math.inf)
    sums = np.clip(np.eye(CLASSES)[records.labels].T @ amounts, -60.0, 60.0)
    return watch.release(sums + random.laplace(0, 1.0, CLASSES), epsilon=1.0)


def chi_square(records: Any, candidate: Any, seed: int, watch: Any, *, of_counts: bool) -> Any:
    """A test of independence between the class and four bins of a feature, two of them rare.

    Noise for 1 on the statistic leaks under every relation: the first record of a rare bin adds 2
    to it. The statistic of noisy counts is correct under add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = np.digitize(records.features[:, 5].astype(float), BINS[1:-1])
    table = np.zeros((CLASSES, len(BINS) - 1))
    np.add.at(table, (records.labels, values), 1.0)

    def statistic(counts: Any) -> float:
        total = max(float(counts.sum()), 1.0)
        expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / total
        return float((np.square(counts - expected) / np.maximum(expected, 1e-9)).sum())

    if of_counts:
        noisy = watch.release(table + random.laplace(0, 1.0, table.shape), epsilon=1.0)
        return statistic(np.maximum(noisy, 0.5))
    return watch.release(statistic(table) + random.laplace(), epsilon=1.0)


def ridge_in_ball(moments: Any, products: Any) -> Any:
    """Weights of norm at most 1 with the least penalised squared error."""
    lowest, highest = 0.0, 1e9
    for _ in range(80):
        middle = 0.0 if lowest == highest else math.sqrt((lowest + 1e-9) * highest)
        weights = np.linalg.solve(moments + (PENALTY + middle) * np.eye(WIDTH), products)
        if np.linalg.norm(weights) > 1.0:
            lowest = middle
        else:
            highest = middle
    return np.linalg.solve(moments + (PENALTY + highest) * np.eye(WIDTH), products)


def output_perturbation(
    records: Any, candidate: Any, seed: int, watch: Any, *, targets_clipped: bool
) -> Any:
    """Ridge regression in the unit ball, with noise on the weights.

    The rows have norms of at most 1. If targets are in [-1, 1], gradients have norms of at most 2,
    a record moves the weights by at most 2 over the penalty, and the function is correct under
    add-remove. If targets are not clipped, it leaks under every relation: a large target moves the
    weights across the ball.
    """
    random = np.random.default_rng(seed)
    watch.claim(EPSILON_OF_ONE)
    x = clipped_rows(records.features[:, :WIDTH].astype(float))
    targets = feature(records, 6, 1.0 if targets_clipped else math.inf)
    weights = ridge_in_ball(x.T @ x, x.T @ targets)
    noise = random.normal(0, SIGMA * 2.0 / PENALTY, WIDTH)
    return watch.release(weights + noise, noise_multiplier=SIGMA)


# --- mistakes ---


def inverted_scale(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Sums of two features, with Laplace noise of scale epsilon over sensitivity.

    Leaks under every relation: the scale must be the sensitivity over epsilon, which is 16 times as
    large.
    """
    random, epsilon, sensitivity = np.random.default_rng(seed), 0.5, 2.0
    watch.claim(epsilon)
    sums = np.array([feature(records, k, 1.0).sum() for k in (3, 7)])
    return watch.release(sums + random.laplace(0, epsilon / sensitivity, 2), epsilon=epsilon)


def most_related_pair(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Synthetic data: the noisy table of signs of the two features with the largest covariance.

    Leaks under every relation: the choice of the features has no noise.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    x = records.features[:, 3:7].astype(float)
    products = np.abs(np.triu(x.T @ x, 1))
    first, second = np.unravel_index(int(products.argmax()), products.shape)
    cells = (x[:, first] > 0) * 2 + (x[:, second] > 0)
    counts = np.bincount(cells.astype(int), minlength=4) + random.laplace(0, 1.0, 4)
    noisy = watch.release(counts, epsilon=1.0)
    return {"features": np.array([first, second]), "table": np.maximum(noisy, 0.0)}


# --- correct ---


def random_features(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct under add-remove: class means in a kernel space, by random Fourier features.

    The features are pairs of a cosine and a sine of the same public projection, so that the vector
    of a record has norm 1. A record adds it to the sum of its class alone.
    """
    random, public = np.random.default_rng(seed), np.random.default_rng(103)
    watch.claim(EPSILON_OF_ONE)
    angles = records.features.astype(float) @ public.normal(size=(8, 6))
    waves = np.concatenate([np.cos(angles), np.sin(angles)], 1) / math.sqrt(6.0)
    sums = np.eye(CLASSES)[records.labels].T @ waves
    noisy = watch.release(sums + random.normal(0, SIGMA, sums.shape), noise_multiplier=SIGMA)
    return noisy / 20.0
