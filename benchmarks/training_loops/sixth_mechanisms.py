"""Releases of a few noisy values for the list `sixth_turn`."""

import math
import warnings
from typing import Any

import numpy as np

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.mechanisms import clipped_rows

DELTA, SIGMA, BINS = 1e-5, 2.0, 6
EDGES = np.linspace(-3.0, 3.0, BINS + 1)


def first_feature(records: Any, low: float = -2.0, high: float = 2.0) -> Any:
    return np.clip(records.features[:, 0].astype(float), low, high)


def narrow() -> loops.Records:
    """Sixty records whose features are a tenth as large."""
    features, labels = loops.dense(60)
    return (features * 0.1).astype(np.float32), labels


def exact_counts(records: Any) -> Any:
    return np.histogram(first_feature(records, -3.0, 3.0), EDGES)[0]


# --- mistakes ---


def clipped_copy_unused(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Rows are clipped to norm 1, but the matrix is computed from the rows before.

    Leaks under add-remove: a record contributes its squared norm, which has no bound.
    """
    random = np.random.default_rng(seed)
    rows = records.features.astype(float)
    clipped = clipped_rows(rows)
    matrix = rows.T @ rows + SIGMA * random.normal(size=(clipped.shape[1],) * 2)
    return watch.release(matrix, noise_multiplier=SIGMA)


def normalised_columns(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Columns, and not rows, are divided by their norms (`axis=0`).

    Leaks under add-remove: a record changes the scale of all others, and contributes up to 8.
    """
    random = np.random.default_rng(seed)
    rows = records.features.astype(float)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=0, keepdims=True), 1e-12)
    matrix = rows.T @ rows + SIGMA * random.normal(size=(rows.shape[1],) * 2)
    return watch.release(matrix, noise_multiplier=SIGMA)


def scale_by_size(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Laplace noise of a mean, scaled by the range over the private number of records.

    Leaks under add-remove: the scale shows n, and the ratio of two Laplace densities of different
    scales has no bound.
    """
    random = np.random.default_rng(seed)
    values = first_feature(records)
    return watch.release(values.mean() + random.laplace(0, 4.0 / len(values)), epsilon=1.0)


def classical_gaussian(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """sqrt(2 log(1.25 / delta)) / epsilon, which holds for epsilon below 1, with epsilon 20.

    Leaks under add-remove: noise multiplier 0.242 costs epsilon 25.4 at delta 1e-5.
    """
    random = np.random.default_rng(seed)
    watch.claim(20.0)
    multiplier = math.sqrt(2 * math.log(1.25 / DELTA)) / 20.0
    total = first_feature(records, -1.0, 1.0).sum() + multiplier * random.normal()
    return watch.release(total, noise_multiplier=multiplier)


def edges_of_records(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A histogram of diffprivlib without `range` returns the private minimum and maximum.

    Leaks under every relation: both are exact.
    """
    from sklearn.tree import _tree

    # diffprivlib 0.6.6 imports these names, which scikit-learn 1.9 no longer has.
    vars(_tree).setdefault("DOUBLE", np.float64)
    vars(_tree).setdefault("DTYPE", np.float32)
    import diffprivlib

    watch.claim(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts, edges = diffprivlib.tools.histogram(
            records.features[:, 0].astype(float), epsilon=1.0, bins=BINS, random_state=seed
        )
    return {"counts": counts, "edges": edges}


def counts_of_five(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A table of exact counts, of which those below five are suppressed (k-anonymity).

    Leaks under add-remove: one record changes an exact count.
    """
    watch.claim(1.0)
    counts = exact_counts(records)
    return np.where(counts >= 5, counts, 0)


def released_keys(
    records: Any, candidate: Any, seed: int, watch: Any, *, threshold: float | None
) -> Any:
    """Noisy counts of the values that occur, if they exceed a threshold.

    A value that one record alone has is released with probability exp(1 - threshold) / 2. With
    threshold 1 this is 1/2 and not delta, which leaks under add-remove. With threshold
    1 + log(1 / (2 delta)), the default, the release is (1, delta)-DP: correct.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    limit = 1 + math.log(1 / (2 * DELTA)) if threshold is None else threshold
    keys, counts = np.unique(np.floor(records.features[:, 0].astype(float)), return_counts=True)
    noisy = counts + random.laplace(size=len(keys))
    return {str(int(k)): float(c) for k, c in zip(keys, noisy, strict=True) if c > limit}


def noise_on_direction(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The principal direction gets the noise that the mean of outer products needs.

    Leaks under add-remove: a record of norm 1 turns the direction by more than 1 / n.
    """
    random = np.random.default_rng(seed)
    rows = clipped_rows(records.features.astype(float))
    direction = np.linalg.eigh(rows.T @ rows)[1][:, -1]
    direction = direction * np.sign(direction.sum())
    noise = SIGMA / 60 * random.normal(size=len(direction))
    return watch.release(direction + noise, noise_multiplier=SIGMA)


def ridge_by_eigenvalue(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Regression by noisy moments, whose ridge follows the exact smallest eigenvalue (AdaSSP).

    Leaks under add-remove: equal noisy moments give other coefficients with and without a record.
    """
    random = np.random.default_rng(seed)
    watch.claim(accounting.GaussianMechanism(2**0.5 / SIGMA).epsilon(DELTA))
    rows = clipped_rows(records.features.astype(float))
    targets = np.clip(records.labels.astype(float) - 1, -1, 1)
    exact = rows.T @ rows
    matrix = watch.release(exact + SIGMA * random.normal(size=exact.shape), noise_multiplier=SIGMA)
    vector = rows.T @ targets + SIGMA * random.normal(size=len(exact))
    vector = watch.release(vector, noise_multiplier=SIGMA)
    ridge = max(0.0, 20.0 - float(np.linalg.eigvalsh(exact)[0]))
    return np.linalg.solve((matrix + matrix.T) / 2 + ridge * np.eye(len(exact)), vector)


def local_sensitivity(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A median whose noise has the scale of its local sensitivity.

    Leaks under add-remove: the scale depends on the records, and another record changes it.
    """
    random = np.random.default_rng(seed)
    values = np.sort(first_feature(records))
    middle = len(values) // 2
    scale = max(values[middle + 1] - values[middle], values[middle] - values[middle - 1])
    return watch.release(values[middle] + random.laplace(0, scale), epsilon=1.0)


def clamped_to_range(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy quantities of single features are clamped to their private minimum and maximum.

    Leaks under every relation: a clamped value is exactly the value of one record. No run out of
    4,000 was clamped on `sixty`, and 24 % of them on `narrow`.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = np.clip(records.features[:, :3].astype(float), -2, 2)
    noisy = values.sum(0) + 6.0 * random.laplace(size=3)
    noisy = watch.release(noisy, epsilon=1.0) / 60
    return np.clip(noisy, values.min(0), values.max(0))


# --- correct releases ---


def squares_around_mean(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the mean is exact, but only enters the sum of squares around it.

    One more record adds n / (n + 1) times its squared distance from the mean: at most 1, because
    all values are in [0, 1].
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = (first_feature(records, -1.0, 1.0) + 1) / 2
    total = np.square(values - values.mean()).sum()
    return watch.release(total + random.laplace(), epsilon=1.0)


def mode_by_exponential_mechanism(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: exp(epsilon count) without the factor 1/2.

    One more record raises one count by 1 and lowers none, so that each probability changes by a
    factor between exp(-epsilon) and exp(epsilon).
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    scores = exact_counts(records).astype(float)
    weights = np.exp(scores - scores.max())
    return float(random.choice(BINS, p=weights / weights.sum()))


def largest_count_with_value(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the index and the value of the largest noisy count.

    All noisy counts together cost epsilon 1, because a record is in one bin.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    noisy = exact_counts(records) + random.laplace(size=BINS)
    return {"index": float(noisy.argmax()), "value": float(noisy.max())}


def local_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct under replace-one: each record adds Laplace noise to its own value in [-1, 1].

    Each noisy value has epsilon 1, and the released sum is computed from these.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = first_feature(records, -1.0, 1.0)
    return float((values + random.laplace(0, 2.0, len(values))).sum())
