"""Releases of a few noisy values for the list `ninth_turn`."""

from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.training_loops import loops
from benchmarks.training_loops.eighth_mechanisms import EPSILON_OF_TWO, SIGMA
from benchmarks.training_loops.mechanisms import clipped_rows
from benchmarks.training_loops.seventh_mechanisms import EPSILON, feature

WIDTH, ROWS, BUCKETS, CLUSTERS = 3, 4, 8, 6
CUTS = np.array([-0.5, 0.0, 0.5, 1.0, 1.5])

# --- mistakes, some with a correct setting ---


def regression_with_intercept(
    records: Any, candidate: Any, seed: int, watch: Any, *, clipped_last: bool
) -> Any:
    """Least squares by noisy moments X'X and X'y, with a column of ones and y in [-1, 1].

    If rows are clipped to norm 1 before the ones are appended, it leaks under every relation: rows
    have norms up to sqrt(2), so that a record adds up to 2 to X'X. If they are clipped after it,
    the function is correct.
    """
    random = np.random.default_rng(seed)
    watch.claim(EPSILON_OF_TWO)
    x, ones = records.features[:, :WIDTH].astype(float), np.ones((len(records.labels), 1))
    if clipped_last:
        x = clipped_rows(np.concatenate([x, ones], 1))
    else:
        x = np.concatenate([clipped_rows(x), ones], 1)
    y = np.clip(records.labels - 1.0, -1.0, 1.0)
    noise = np.triu(random.normal(0, SIGMA, (WIDTH + 1, WIDTH + 1)))
    moments = x.T @ x + noise + np.triu(noise, 1).T
    moments = watch.release(moments, noise_multiplier=SIGMA)
    products = x.T @ y + random.normal(0, SIGMA, WIDTH + 1)
    products = watch.release(products, noise_multiplier=SIGMA)
    return np.linalg.solve(moments + 40.0 * np.eye(WIDTH + 1), products)


def count_sketch(records: Any, candidate: Any, seed: int, watch: Any, *, sensitivity: float) -> Any:
    """A count sketch: each record adds 1 or -1 to a bucket in each of four rows.

    Noise for one row leaks under every relation: the L1 norm of a record is 4. Noise for four is
    correct under add-remove.
    """
    random, public = np.random.default_rng(seed), np.random.default_rng(31)
    watch.claim(1.0)
    buckets, signs = public.integers(0, BUCKETS, (ROWS, 60)), public.choice([-1, 1], (ROWS, 60))
    items = np.minimum(((feature(records, 0, 3.0) + 3.0) * 10).astype(int), 59)
    sketch = np.zeros((ROWS, BUCKETS))
    for row in range(ROWS):
        np.add.at(sketch[row], buckets[row, items], signs[row, items])
    return watch.release(sketch + random.laplace(0, sensitivity, sketch.shape), epsilon=1.0)


def laplace_by_inverse(
    records: Any, candidate: Any, seed: int, watch: Any, *, factor: float
) -> Any:
    """Sums of three features, with Laplace noise from uniform numbers by the inverse of its CDF.

    With log(1 - |u|) in place of log(1 - 2 |u|), it leaks under every relation: no noise is larger
    than 0.7 times its scale. With the factor 2 the function is correct under add-remove.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    sums = np.array([feature(records, k, 1.0).sum() for k in range(WIDTH)])
    u = random.uniform(-0.5, 0.5, WIDTH)
    noise = -3.0 * np.sign(u) * np.log(np.maximum(1.0 - factor * np.abs(u), 1e-300))
    return watch.release(sums + noise, epsilon=1.0)


def best_cut(records: Any, candidate: Any, seed: int, watch: Any, *, exact: bool) -> Any:
    """The best of five public cuts by noisy numbers of right records, and its accuracy.

    With the exact accuracy of the chosen cut, it leaks under every relation. With its noisy number
    the function is correct under add-remove: a record adds 1 to at most five numbers.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    right = (feature(records, 0, 3.0)[:, None] > CUTS) == (records.labels == 0)[:, None]
    counts = right.sum(0).astype(float)
    noisy = watch.release(counts + random.laplace(0, len(CUTS), len(CUTS)), epsilon=1.0)
    best = int(np.argmax(noisy))
    return {"cut": CUTS[best], "accuracy": (counts if exact else noisy)[best] / 60.0}


def correlation(
    records: Any, candidate: Any, seed: int, watch: Any, *, exact_deviations: bool
) -> Any:
    """The correlation of two features around 0, with values in [-2, 2].

    With exact deviations in the divisor, it leaks under every relation. With three noisy moments
    the function is correct under add-remove: a record adds up to 4 to each.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    a, b = feature(records, 0, 2.0), feature(records, 1, 2.0)
    if exact_deviations:
        product = watch.release(a @ b + random.laplace(0, 4.0), epsilon=1.0)
        return product / np.sqrt(max(a @ a, 1e-9) * max(b @ b, 1e-9))
    moments = np.array([a @ b, a @ a, b @ b]) + random.laplace(0, 12.0, 3)
    product, first, second = watch.release(moments, epsilon=1.0)
    return product / np.sqrt(max(first, 1.0) * max(second, 1.0))


# --- mistakes ---


def copula(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Synthetic rows by a Gaussian copula: a noisy correlation and the margins of the records.

    Leaks under every relation: the margins are exact quantiles.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    a, b = feature(records, 0, 2.0), feature(records, 1, 2.0)
    total = watch.release(a @ b + random.laplace(0, 4.0), epsilon=1.0)
    share = float(np.clip(total / 60.0, -0.9, 0.9))
    normal = random.multivariate_normal([0.0, 0.0], [[1.0, share], [share, 1.0]], 40)
    ranks = np.vectorize(NormalDist().cdf)(normal)
    return np.stack([np.quantile(a, ranks[:, 0]), np.quantile(b, ranks[:, 1])], 1)


def absolute_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Counts of classes plus the absolute value of Laplace noise, so that none is too small.

    Leaks under every relation: a released number below the count with the record proves that the
    record is not there.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = np.bincount(records.labels, minlength=loops.CLASSES).astype(float)
    noisy = counts + np.abs(random.laplace(0, 1.0, len(counts)))
    return watch.release(noisy, epsilon=1.0)


def concordant_pairs(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Kendall's correlation: the number of concordant pairs, with noise for one pair.

    Leaks under every relation: a record is in 59 pairs.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    a, b = feature(records, 0, 3.0), feature(records, 1, 3.0)
    signs = np.sign(a[:, None] - a[None]) * np.sign(b[:, None] - b[None])
    concordant = np.triu(signs > 0, 1).sum()
    noisy = watch.release(concordant + random.laplace(), epsilon=1.0)
    return 2.0 * noisy / (60 * 59 / 2) - 1.0


def nearest(points: Any, centres: Any) -> Any:
    return np.square(points[:, None] - centres[None]).sum(2).argmin(1)


def starts() -> Any:
    angles = 2 * np.pi * np.arange(CLUSTERS) / CLUSTERS
    return 0.5 * np.stack([np.cos(angles), np.sin(angles)], 1)


def exact_k_means(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """k-means without noise, then noise for the counts and sums of the clusters.

    Leaks under every relation: the noise is scaled for fixed clusters, but a record moves centres,
    and other records change their cluster.
    """
    random = np.random.default_rng(seed)
    watch.claim(EPSILON)
    points = clipped_rows(records.features[:, 3:5].astype(float))
    centres = starts()
    for _ in range(15):
        groups = nearest(points, centres)
        for k in range(CLUSTERS):
            if (groups == k).any():
                centres[k] = points[groups == k].mean(0)
    members = np.eye(CLUSTERS)[nearest(points, centres)]
    table = members.T @ np.concatenate([np.ones((len(points), 1)), points], 1)
    # A record adds 1 to a count and a vector of norm 1 to a sum.
    table = table + random.normal(0, SIGMA * 2**0.5, table.shape)
    table = watch.release(table, noise_multiplier=SIGMA)
    return table[:, 1:] / np.maximum(table[:, :1], 1.0)


# --- correct ---


def k_means_of_histogram(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct under add-remove: k-means of the bins of a noisy histogram of two features."""
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    edges = np.linspace(-3.0, 3.0, 7)
    a, b = feature(records, 0, 3.0), feature(records, 1, 3.0)
    counts = np.histogram2d(a, b, [edges, edges])[0]
    noisy = watch.release(counts + random.laplace(0, 1.0, counts.shape), epsilon=1.0)
    middles = (edges[1:] + edges[:-1]) / 2
    points = np.stack(np.meshgrid(middles, middles, indexing="ij"), 2).reshape(-1, 2)
    weights, centres = np.maximum(noisy, 0.0).ravel(), 3.0 * starts()
    for _ in range(10):
        groups = nearest(points, centres)
        for k in range(CLUSTERS):
            own = weights * (groups == k)
            if own.sum() > 0:
                centres[k] = own @ points / own.sum()
    return centres


def rows_of_noisy_table(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct under add-remove: 100 synthetic rows from the noisy counts of a joint table."""
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    cells = (records.features[:, :2] > 0).astype(int) @ [2, 1] * loops.CLASSES + records.labels
    counts = np.bincount(cells, minlength=4 * loops.CLASSES).astype(float)
    noisy = watch.release(counts + random.laplace(0, 1.0, len(counts)), epsilon=1.0)
    shares = np.maximum(noisy, 0.0) + 1e-3
    drawn = random.choice(len(shares), 100, p=shares / shares.sum())
    return np.stack([drawn // loops.CLASSES, drawn % loops.CLASSES], 1)
