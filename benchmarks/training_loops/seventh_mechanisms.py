"""Releases of a few noisy values for the list `seventh_turn`."""

from typing import Any

import numpy as np

from benchmarks.training_loops import loops
from benchmarks.training_loops.mechanisms import clipped_rows

SIGMA, DAYS, WINDOW, CENTRES = 2.0, 8, 3, 8


def feature(records: Any, column: int, limit: float) -> Any:
    return np.clip(records.features[:, column].astype(float), -limit, limit)


# --- mistakes ---


def by_exact_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy counts of public classes, in the order of the exact counts (`most_common`).

    Leaks under every relation: the order of the released keys is that of the counts without noise.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = {k: int((records.labels == k).sum()) for k in range(loops.CLASSES)}
    ordered = sorted(counts, key=lambda k: -counts[k])
    noisy = {f"class {k}": counts[k] + random.laplace() for k in ordered}
    return watch.release(noisy, epsilon=1.0)


def conditional_tables(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Counts of a joint table get the noise 2 / (n epsilon) that frequencies would need.

    Leaks under every relation: a record changes a count by 1, and the scale is 1/30. It also
    depends on n.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    cells = (records.features[:, :2] > 0).astype(int) @ [2, 1] * loops.CLASSES + records.labels
    counts = np.bincount(cells, minlength=4 * loops.CLASSES).astype(float)
    counts += random.laplace(0, 2.0 / (len(cells) * 1.0), len(counts))
    counts = np.clip(watch.release(counts, epsilon=1.0), 1e-6, None)
    table = counts.reshape(4, loops.CLASSES)
    return table / table.sum(1, keepdims=True)


def search_without_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A median by ten halvings of [-3, 3], whose result gets noise for the last interval.

    Leaks under add-remove: a record moves the median by the distance to the next value, which is
    several times the width 0.006 of the last interval.
    """
    random = np.random.default_rng(seed)
    values = feature(records, 0, 3.0)
    low, high = -3.0, 3.0
    for _ in range(10):
        middle = (low + high) / 2
        if (values <= middle).sum() < len(values) / 2:
            low = middle
        else:
            high = middle
    return watch.release(low + random.laplace(0, high - low), epsilon=1.0)


def squares_around_noisy_mean(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Values in [-1, 1] are squared around a noisy mean, and the noise assumes squares below 1.

    Leaks under add-remove: a record at -1 adds (1 + m)^2, which is 1.64 for the mean m of 0.28.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.5)
    values = feature(records, 0, 1.0)
    count = watch.release(len(values) + random.laplace(0, 2.0), epsilon=0.5)
    total = watch.release(values.sum() + random.laplace(0, 2.0), epsilon=0.5)
    mean = float(np.clip(total / max(count, 1.0), -1.0, 1.0))
    squares = np.square(values - mean).sum() + random.laplace(0, 2.0)
    squares = watch.release(squares, epsilon=0.5)
    return {"mean": mean, "variance": squares / max(count, 1.0)}


def empty_clusters_seeded_again(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """k-means with noise, in which a cluster with a small noisy count starts again at a record.

    Leaks under every relation: the released centre is exactly that record. Eight clusters of 60
    records are often empty.
    """
    random, public = np.random.default_rng(seed), np.random.default_rng(3)
    x = clipped_rows(records.features.astype(float))
    centres = clipped_rows(public.normal(size=(CENTRES, x.shape[1])))
    for _ in range(2):
        nearest = np.argmin(np.square(x[:, None] - centres[None]).sum(2), 1)
        members = np.eye(CENTRES)[nearest]
        sums = members.T @ x + SIGMA * random.normal(size=centres.shape)
        sums = watch.release(sums, noise_multiplier=SIGMA)
        counts = members.sum(0) + SIGMA * random.normal(size=CENTRES)
        counts = watch.release(counts, noise_multiplier=SIGMA)
        centres = sums / np.maximum(counts, 1.0)[:, None]
        for k in np.flatnonzero(counts < 1.0):
            centres[k] = x[random.integers(len(x))]
    return centres


def scaled_to_total(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy counts are scaled so that they sum to the exact number of records.

    Leaks under add-remove: the sum of the released counts is n.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = np.histogram(feature(records, 0, 3.0), 6, (-3.0, 3.0))[0]
    noisy = watch.release(counts + random.laplace(size=6), epsilon=1.0)
    noisy = np.clip(noisy, 0.1, None)
    return noisy * len(records.labels) / noisy.sum()


def moving_sums(records: Any, candidate: Any, seed: int, watch: Any, *, sensitivity: float) -> Any:
    """Counts of eight days, summed over windows of three days.

    Noise for sensitivity 1 leaks under add-remove: a record of a day in the middle is in three
    windows. Sensitivity 3 is correct.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    days = np.clip(np.floor(np.nan_to_num(records.features[:, 0]) + 4), 0, DAYS - 1).astype(int)
    daily = np.bincount(days, minlength=DAYS)
    windows = np.convolve(daily, np.ones(WINDOW), "valid")
    return watch.release(windows + random.laplace(0, sensitivity, len(windows)), epsilon=1.0)


def laplace_of_seed(values: Any, scale: float, seed: int) -> Any:
    return values + np.random.default_rng(seed).laplace(0, scale, len(values))


def one_generator_each(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Two vectors get noise from generators that a helper makes from the same seed.

    Leaks under every relation: the noise of the sums is twice that of the counts, so that sums
    minus twice the counts are exact.
    """
    watch.claim(1.0)
    classes = np.eye(loops.CLASSES)[records.labels]
    counts = laplace_of_seed(classes.sum(0), 2.0, seed)
    counts = watch.release(counts, epsilon=0.5)
    sums = laplace_of_seed(classes.T @ feature(records, 1, 2.0), 4.0, seed)
    sums = watch.release(sums, epsilon=0.5)
    return sums / np.maximum(counts, 1.0)


def minimiser(x: Any, y: Any, ridge: Any) -> Any:
    """The minimiser of the logistic losses plus a quadratic penalty, by Newton steps."""
    w = np.zeros(x.shape[1])
    for _ in range(60):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        w = w - np.linalg.solve(hessian, x.T @ (p - y) + ridge * w)
    return w


def intercept_without_penalty(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Output perturbation by the strength of a penalty that leaves out the intercept.

    Leaks under add-remove: the penalty 120 bounds the change of the other coefficients by 1/120,
    and a record moves the intercept by about 0.05.
    """
    random = np.random.default_rng(seed)
    x = clipped_rows(records.features.astype(float))
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    ridge = np.append(np.full(x.shape[1] - 1, 120.0), 1e-6)
    w = minimiser(x, (records.labels == 0).astype(float), ridge)
    return watch.release(w + SIGMA / 120.0 * random.normal(size=len(w)), noise_multiplier=SIGMA)


# --- correct releases ---


def output_perturbation(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a penalty of strength 20 makes the objective strongly convex.

    The gradient of one more logistic loss is at most 1 long on rows of norm at most 1, so that the
    minimiser moves by at most 1/20.
    """
    random = np.random.default_rng(seed)
    x = clipped_rows(records.features.astype(float))
    w = minimiser(x, (records.labels == 0).astype(float), np.full(x.shape[1], 20.0))
    return watch.release(w + SIGMA / 20.0 * random.normal(size=len(w)), noise_multiplier=SIGMA)


def search_with_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a median by eight halvings, each by a noisy difference of counts.

    One more record changes the number of smaller minus that of larger values by 1, and each of the
    eight comparisons costs epsilon 1/8.
    """
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = feature(records, 0, 3.0)
    low, high = -3.0, 3.0
    for _ in range(8):
        middle = (low + high) / 2
        difference = np.sign(values - middle).sum() + random.laplace(0, 8.0)
        if watch.release(difference, epsilon=1 / 8) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def clipped_around_noisy_mean(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: values are clipped to a distance of 1 from a released mean, then summed again."""
    random = np.random.default_rng(seed)
    watch.claim(1.0)
    values = feature(records, 0, 4.0)
    first = watch.release(values.sum() + random.laplace(0, 4.0 / 0.4), epsilon=0.4)
    centre = first / 60.0
    residuals = np.clip(values - centre, -1.0, 1.0).sum() + random.laplace(0, 1.0 / 0.6)
    return centre + watch.release(residuals, epsilon=0.6) / 60.0


def columns_of_unequal_ranges(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: sums of three columns with public limits 1, 2 and 4, and noise in proportion.

    Divided by its limit times sqrt(3), each column contributes at most 1 / sqrt(3), so that all
    three contribute at most 1.
    """
    random = np.random.default_rng(seed)
    limits = np.array([1.0, 2.0, 4.0])
    columns = np.clip(records.features[:, :3].astype(float), -limits, limits)
    noise = SIGMA * np.sqrt(3.0) * limits * random.normal(size=3)
    return watch.release(columns.sum(0) + noise, noise_multiplier=SIGMA) / 60.0
