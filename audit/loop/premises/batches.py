"""Exact batch sizes and inclusions from coupled runs, and tests of Poisson sampling.

Let records a and b contribute c_a and c_b to a step. Two coupled runs on n copies of a and on n
copies of b differ by k (c_b - c_a) at a step with k records in its batch. Two runs that differ in
one record differ by c_b - c_a if it is in the batch. The quotient k contains no noise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.loop.premises.noise import TestResult
from audit.numerics import FloatArray

_TOLERANCE = 2e-3
# A contribution has a direction if it is this many times as long as its rounding.
_CLEAR = 40.0
# Batch sizes are tested if their variance over that of Poisson sampling is outside of this range.
_TOO_EVEN, _TOO_UNEVEN = 0.75, 1.5
# Batches hold at most this number of copies of each record.
_MAX_COPIES = 4
# Steps up to this number apart are tested for dependent inclusions.
_MAX_LAG = 16
# Contributions belong to two classes if they are this many times as far apart as equal ones may be.
_APART = 4.0
# With more classes of equal contributions, a record's own gradient is random.
_MAX_CLASSES = 6
# Share of random lengths that may agree by chance.
_MAX_EQUAL = 0.2
# Alternating projections, each on the terms of the steps and of the runs.
_MAX_PROJECTIONS = 30
# Variance of a batch size from which the sum of squares is close to a chi-square distribution.
_MIN_VARIANCE = 3.0


@dataclass(frozen=True)
class Batches:
    """Batches of R runs over T steps.

    Attributes:
        proportional: [R, T], numbers proportional to the batch sizes within each step, or None
            where the differences of the runs are not parallel.
        counts: [R, T], the batch sizes; NaN where the unit of the step is unknown.
        included: [R, T], whether the exchanged record was in the batch.
        units: [R, T], length of the exchanged record's contribution; NaN where it was not in.
        constant: whether the exchanged record adds the same vector in all runs of a step.
        unit_spread: the largest relative spread of `units` between the runs of a step, over the
            steps at which the contributions of all runs are parallel.
    """

    proportional: FloatArray | None
    counts: FloatArray
    included: NDArray[np.bool_]
    units: FloatArray
    unit_spread: float
    constant: bool


def batches_of(
    all_a: FloatArray, all_b: FloatArray, one_b: FloatArray, rounding: FloatArray
) -> Batches:
    """Batch sizes and inclusions.

    Args:
        all_a: [R, T, D], released gradients of runs on n copies of a.
        all_b: [R, T, D], of runs on n copies of b with the same seeds.
        one_b: [R, T, D], of runs on n - 1 copies of a and one of b with the same seeds.
        rounding: [T], lengths that rounding alone may cause.

    Example:
        >>> k = np.array([[2.0, 3.0]])[:, :, None]
        >>> found = batches_of(k * 0.0, k * [[[1.0, 1.0]]], k * 0.0 + [1.0, 1.0], np.zeros(2))
        >>> found.counts.tolist(), found.included.tolist()
        ([[2.0, 3.0]], [[True, True]])
    """
    exchanged, single = all_b - all_a, one_b - all_a
    runs, steps, _ = exchanged.shape
    included, lengths = included_of(single, rounding)
    units = np.where(included, lengths, np.nan)
    proportional = np.zeros((runs, steps))
    counts = np.full((runs, steps), np.nan)
    parallel, constant, spread = True, True, 0.0
    for t in range(steps):
        inside = included[:, t]
        if inside.sum() > 1:
            of_canary = single[inside, t]
            gap = np.linalg.norm(of_canary - of_canary[0], axis=1)
            shortest = lengths[inside, t].min()
            constant &= bool(np.all(gap <= 1e-3 * shortest + 4 * rounding[t]))
            spread = max(spread, _spread_of_lengths(of_canary, rounding[t]))
        sizes = np.linalg.norm(exchanged[:, t], axis=1)
        longest = int(np.argmax(sizes))
        if sizes[longest] <= max(4 * rounding[t], 1e-12):
            continue
        direction = exchanged[longest, t] / sizes[longest]
        proportional[:, t] = exchanged[:, t] @ direction
        off = np.linalg.norm(exchanged[:, t] - proportional[:, t, None] * direction, axis=1)
        slack = _TOLERANCE * sizes[longest] + 4 * rounding[t]
        parallel &= bool(np.all(off <= slack))
        if included[:, t].any():
            unit = float(np.median(lengths[included[:, t], t]))
            counts[:, t] = proportional[:, t] / unit
    whole_numbers = np.abs(counts - np.round(counts)) <= 0.05 + 0.01 * np.abs(counts)
    # Known batches must not be a selection by their size.
    usable = np.all(whole_numbers | np.isnan(counts), axis=0) & parallel
    counts = np.where(usable, np.round(counts), np.nan)
    return Batches(proportional if parallel else None, counts, included, units, spread, constant)


def _spread_of_lengths(contributions: FloatArray, rounding: float) -> float:
    """Ratio of the longest and the shortest contribution, less 1, if all have one direction.

    Contributions that are hardly longer than their rounding have no direction, and are left out.

    Args:
        contributions: [M, D], of one record to one step, in runs with other seeds.
        rounding: length that rounding alone may cause.
    """
    lengths = np.linalg.norm(contributions, axis=1)
    clear = lengths > _CLEAR * rounding
    contributions, lengths = contributions[clear], lengths[clear]
    if len(lengths) < 2:
        return 0.0
    along = contributions @ (contributions[0] / lengths[0])
    aside = lengths**2 - along**2
    if np.any(aside > (1e-3 * lengths + 4 * rounding) ** 2):
        return 0.0
    least, most = lengths.min(), lengths.max()
    return float(most / least - 1 - 8 * rounding / least)


def included_of(single: FloatArray, rounding: FloatArray) -> tuple[NDArray[np.bool_], FloatArray]:
    """Whether an exchanged record was in each batch, and the lengths of its contributions, [R, T].

    Args:
        single: [R, T, D], differences of runs that differ in this record alone.
        rounding: [T], lengths that rounding alone may cause.
    """
    lengths = np.linalg.norm(single, axis=2)
    return lengths > np.maximum(rounding, 1e-12)[None, :], lengths


def dependence_on_size(
    whole: FloatArray, single: FloatArray, batches: Batches, rounding: FloatArray
) -> Iterator[TestResult]:
    """Tests whether the contribution of one record depends on the size of its batch.

    If all records of a batch contribute alike, the difference of runs that differ in all records
    is k times that of runs that differ in one, with k records in the batch. Three tests compare k
    with the contribution: their rank correlation, also within runs, and whether in every step equal
    k come with equal contributions and some other k with another one.

    Args:
        whole: [R, T, D], differences of runs that differ in every record.
        single: [R, T, D], differences of runs that differ in one record.
        batches: the batches.
        rounding: [T], lengths that rounding alone may cause.
    """
    ranks: list[tuple[FloatArray, FloatArray]] = []
    all_sizes = np.full(batches.units.shape, np.nan)
    chances: list[float | None] = []
    least, most = np.inf, 0.0
    for t in range(whole.shape[1]):
        inside = batches.included[:, t]
        lengths, of_canary = batches.units[inside, t], single[inside, t]
        if len(lengths) < 4:
            continue
        sizes = _sizes_of_batches(whole[inside, t], of_canary, lengths)
        if sizes is None:
            return  # each record has a random gradient of its own
        ranks.append((stats.rankdata(sizes), stats.rankdata(lengths)))
        all_sizes[inside, t] = sizes
        classes = _classes_of_equal(of_canary, rounding[t])
        if classes is not None and 1 < classes.max() + 1 <= _MAX_CLASSES:
            chances.append(_chance_of_pure(classes, sizes))
            least, most = min(least, float(lengths.min())), max(most, float(lengths.max()))
    # A random weight of a run scales all of its contributions, and hides their dependence on sizes.
    within_runs = _within_runs(np.where(np.isnan(all_sizes), np.nan, batches.units))
    compared = [~np.isnan(residuals) for residuals in within_runs.T]
    ranks_within_runs = [
        (stats.rankdata(all_sizes[known, t]), stats.rankdata(within_runs[known, t]))
        for t, known in enumerate(compared)
        if known.any()
    ]
    results = [_correlation_with_size(pairs) for pairs in (ranks, ranks_within_runs)]
    correlations = [result for result in results if result is not None]
    if correlations:
        # Bonferroni's inequality over the two.
        clearest = min(correlations, key=lambda result: (not result.matters, result.p_value))
        yield replace(clearest, p_value=min(2.0 * clearest.p_value, 1.0))
    # Batches are drawn independently at each step. So the chance that all steps have one class for
    # equal sizes is the product. One step without ends the suspicion: a product over the others
    # alone would be small by chance.
    pure = [chance for chance in chances if chance is not None]
    if chances:
        p_value = math.prod(pure) if len(pure) == len(chances) else 1.0
        yield TestResult(p_value, "another batch size", {"least": least, "most": most})


def _correlation_with_size(
    ranks: Sequence[tuple[FloatArray, FloatArray]],
) -> TestResult | None:
    """Tests the rank correlation of sizes and contributions in all steps together."""
    total = free = 0.0
    for pair in ranks:
        x, y = (values - values.mean() for values in pair)
        norm = float(np.linalg.norm(x) * np.linalg.norm(y))
        if norm > 0:
            # The variance of a correlation of ranks under permutations is 1 / (m - 1).
            total += float(x @ y) / norm * (len(x) - 1)
            free += len(x) - 1
    if not free:
        return None
    correlation = total / free
    p_value = float(2 * stats.norm.sf(abs(total) / np.sqrt(free)))
    numbers = {"correlation": correlation}
    return TestResult(p_value, "size of the batch", numbers, abs(correlation) > 0.3)


def _within_runs(lengths: FloatArray) -> FloatArray:
    """[R, T], logarithms of lengths less a term of the run and one of the step (least squares).

    Args:
        lengths: [R, T]; NaN where unknown, as the result is in runs with fewer than two.
    """
    residuals = np.log(lengths)
    residuals[np.sum(~np.isnan(residuals), axis=1) < 2] = np.nan
    known = ~np.isnan(residuals)
    for _ in range(_MAX_PROJECTIONS):
        for axis in (0, 1):
            sums = np.where(known, residuals, 0.0).sum(axis=axis, keepdims=True)
            residuals -= sums / np.maximum(known.sum(axis=axis, keepdims=True), 1)
    return residuals


def _sizes_of_batches(
    whole: FloatArray, single: FloatArray, lengths: FloatArray
) -> NDArray[np.intp] | None:
    """[M], how many times the change by one record is in that by all; None if not whole numbers.

    Args:
        whole: [M, D], differences of runs that differ in every record.
        single: [M, D], differences of runs that differ in one record, which is in their batches.
        lengths: [M], norms of the second differences.
    """
    sizes = np.sum(single * whole, axis=1) / lengths**2
    off = np.linalg.norm(whole - sizes[:, None] * single, axis=1)
    alike = off <= 1e-2 * lengths * np.maximum(np.abs(sizes), 1.0)
    is_whole = np.abs(sizes - np.round(sizes)) < 0.1
    return np.round(sizes).astype(int) if np.all(alike & is_whole) else None


def is_random_at_equal_sizes(whole: FloatArray, single: FloatArray, batches: Batches) -> bool:
    """Whether one record contributes a random multiple in batches of one size at the same step.

    All other records are equal. So the batch alone, its size and the place of the record in it,
    explains few different lengths, each of them in many runs. Where lengths below the largest one
    (to which many are clipped) differ from others of their size, and hardly any two of them agree,
    a random number of the run is the reason, such as random weights of a second model.

    Args:
        whole: [R, T, D], differences of runs that differ in every record.
        single: [R, T, D], differences of runs that differ in one record.
        batches: the batches.

    Example:
        >>> lengths = np.array([1.0, 1.0, 0.7, 0.4, 1.0])[:, None, None]  # in batches of three
        >>> batches = batches_of(0 * lengths, 3 * lengths, lengths, np.zeros(1))
        >>> is_random_at_equal_sizes(3 * lengths, lengths, batches)
        True
        >>> lengths[3] = 0.7
        >>> batches = batches_of(0 * lengths, 3 * lengths, lengths, np.zeros(1))
        >>> is_random_at_equal_sizes(3 * lengths, lengths, batches)
        False
    """
    compared = equal = 0
    for t in range(whole.shape[1]):
        inside = batches.included[:, t]
        lengths = batches.units[inside, t]
        if not len(lengths):
            continue
        sizes = _sizes_of_batches(whole[inside, t], single[inside, t], lengths)
        if sizes is None:
            return False
        shorter = lengths < (1.0 - _TOLERANCE) * lengths.max()
        for size in np.unique(sizes[shorter]):
            of_size = np.sort(lengths[(sizes == size) & shorter])
            if np.sum(sizes == size) > 1:
                compared += len(of_size)
                equal += int(np.sum(np.diff(of_size) <= _TOLERANCE * of_size[1:]))
    return compared > 0 and equal <= _MAX_EQUAL * compared


def _classes_of_equal(contributions: FloatArray, rounding: float) -> NDArray[np.intp] | None:
    """[M], a number for each class of equal contributions; None if classes are not clearly apart.

    Args:
        contributions: [M, D], of one record to one step, in runs with other seeds.
        rounding: length that rounding alone may cause.
    """
    shortest = float(np.linalg.norm(contributions, axis=1).min())
    equal = 1e-3 * shortest + 4 * rounding
    classes = np.full(len(contributions), -1)
    for i in range(len(contributions)):
        if classes[i] >= 0:
            continue
        gaps = np.linalg.norm(contributions - contributions[i], axis=1)
        if np.any((gaps > equal) & (gaps <= _APART * equal)):
            return None
        classes[gaps <= equal] = classes.max() + 1
    return classes


def _chance_of_pure(classes: NDArray[np.intp], sizes: NDArray[np.intp]) -> float | None:
    """Probability under a random permutation that equal sizes have one class; None if they do not.

    Args:
        classes: [M], numbers from 0 on.
        sizes: [M], batch sizes.
    """
    groups = [classes[sizes == size] for size in np.unique(sizes)]
    if any(np.any(group != group[0]) for group in groups):
        return None
    # The number of ways to give each group one class, for each remaining content of the classes.
    contents = tuple(np.bincount(classes).tolist())
    ways = {contents: 1}
    for count in map(len, groups):
        later: dict[tuple[int, ...], int] = {}
        for left, number in ways.items():
            for place, members in enumerate(left):
                if members >= count:
                    state = (*left[:place], members - count, *left[place + 1 :])
                    later[state] = later.get(state, 0) + number
        ways = later
    all_ways = math.factorial(len(classes))
    for members in contents:
        all_ways //= math.factorial(members)
    return sum(ways.values()) / all_ways


def poisson_tests(
    counts: FloatArray, included: NDArray[np.bool_], n: int, rates: Sequence[float]
) -> Iterator[TestResult]:
    """Tests of batch sizes and inclusions against Poisson sampling at the accounted rates.

    Args:
        counts: [R, T], NaN where unknown.
        included: [R, T], whether one record was in the batch.
        n: number of records.
        rates: [T], sampling rates that the accountant recorded.
    """
    rate = np.asarray(rates)[None, :] * np.ones_like(counts)
    testable = ~np.isnan(counts) & (rate < 1)
    # Contributions that are many times the unit belong to other records, not to larger batches.
    testable &= ~np.any(np.nan_to_num(counts) > _MAX_COPIES * n, axis=0)
    # No batch size is negative: something else turns the direction of the contributions.
    testable &= ~np.any(np.nan_to_num(counts) < 0, axis=0)
    if testable.any():
        yield from _sizes(_Sizes(counts, testable, included, n, rate))
    sampled = rate < 1
    if sampled.any():
        yield from _inclusions(included, sampled, rate)


def even_inclusions(inclusions: Sequence[NDArray[np.bool_]], rate: float) -> Iterator[TestResult]:
    """Tests whether the number of batches of a run that hold a record varies too little.

    Args:
        inclusions: one array [R, T] per record; the records are drawn independently.
        rate: the sampling rate, the same in all steps.
    """
    steps = inclusions[0].shape[1]
    hits = np.concatenate([inclusions_of_seed.sum(axis=1) for inclusions_of_seed in inclusions])
    measured_rate = float(hits.mean()) / steps  # a wrong rate is another finding
    variance, spread = _variance_of_binomials(steps, measured_rate, len(hits))
    squares = float(np.square(hits - hits.mean()).sum())
    deviation = (squares - (len(hits) - len(inclusions)) * variance) / spread
    ratio = squares / max(len(hits) * variance, 1e-12)
    numbers: dict[str, float | int | str] = {
        "least": int(hits.min()),
        "most": int(hits.max()),
        "steps": steps,
        "ratio": ratio,
    }
    if rate < 1 and len(hits) >= 20 and variance * len(hits) > 10:
        # The lower tail of a sum of squares is lighter than that of a Gaussian.
        p_value = float(stats.norm.cdf(deviation))
        yield TestResult(p_value, "even inclusions", numbers, ratio < 0.6)


def inclusions_by_lag(inclusions: Sequence[NDArray[np.bool_]], rate: float) -> Iterator[TestResult]:
    """Tests whether two batches hold a record together more or less often than others as far apart.

    Pairs of steps that share no step are independent under Poisson sampling, and each of them has
    the record in both batches with the same probability, however far apart they are.

    Args:
        inclusions: one array [R, T] per record; the records are drawn independently.
        rate: the accounted rate, the same in all steps.

    Example:
        >>> drawn = np.tile([True, False], (40, 6))  # in every second batch
        >>> [test] = inclusions_by_lag([drawn], 0.5)
        >>> test.numbers["lag"], round(test.numbers["ratio"], 1), test.p_value < 1e-9
        (1, 0.0, True)
    """
    stacked = np.concatenate(inclusions)
    steps = stacked.shape[1]
    if not 0 < rate < 1 or steps < 3:
        return
    together: list[tuple[int, NDArray[np.bool_]]] = []
    for lag in range(1, min(_MAX_LAG, steps - 1) + 1):
        starts = np.arange(steps - lag)
        for disjoint in (starts[starts // lag % 2 == 0], starts[starts // lag % 2 == 1]):
            if len(disjoint):
                together.append((lag, stacked[:, disjoint] & stacked[:, disjoint + lag]))
    # A wrong rate, or records that are never drawn, are other findings.
    usual = sum(int(both.sum()) for _, both in together) / sum(both.size for _, both in together)
    tests: list[tuple[float, dict[str, float | int | str]]] = []
    for lag, both in together:
        hits, law = int(both.sum()), stats.binom(both.size, usual)
        p_value = 2 * min(float(law.sf(hits - 1)), float(law.cdf(hits)))
        ratio = hits / max(both.size * usual, 1e-12)
        tests.append((p_value, {"lag": lag, "hits": hits, "ratio": ratio}))
    p_value, numbers = min(tests, key=lambda test: test[0])
    # Bonferroni's inequality over lags and sets of pairs.
    p_value = min(1.0, len(tests) * p_value)
    yield TestResult(p_value, "inclusions by lag", numbers, not 0.7 < float(numbers["ratio"]) < 1.4)


def _variance_of_binomials(n: int, probability: float, count: int) -> tuple[float, float]:
    """Variance of a binomial number, and the deviation of the sum of `count` squared distances."""
    probability = min(probability, 1.0)
    variance = n * probability * (1 - probability)
    fourth = variance * (1 + 3 * (n - 2) * probability * (1 - probability))
    return variance, math.sqrt(count * max(fourth - variance**2, 1e-12))


@dataclass(frozen=True)
class _Sizes:
    """Sizes of batches, and what is expected of them.

    Attributes:
        counts: [R, T], sizes; NaN or any value where they are unknown.
        is_known: [R, T], whether a size is known.
        included: [R, T], whether the exchanged record was in the batch.
        n: number of records.
        rate: [R, T], the accounted rates.
        sizes, rates: [B], the known entries.
    """

    counts: FloatArray
    is_known: NDArray[np.bool_]
    included: NDArray[np.bool_]
    n: int
    rate: FloatArray

    @property
    def sizes(self) -> FloatArray:
        return self.counts[self.is_known]

    @property
    def rates(self) -> FloatArray:
        return self.rate[self.is_known]

    @property
    def others(self) -> FloatArray:
        """[B], the known sizes without the exchanged record.

        A size is known only where this record was in some batch of the step, which makes known
        batches larger. Poisson samples of the other records are independent of that.
        """
        return self.sizes - self.included[self.is_known]

    @property
    def rate_of_others(self) -> float:
        """The measured rate at which the records that are not exchanged are drawn."""
        return float(self.others.mean()) / max(self.n - 1, 1)

    @property
    def mean(self) -> float:
        return float(self.sizes.mean())

    @property
    def same_rate(self) -> bool:
        return bool(np.ptp(self.rates) < 1e-12)

    @property
    def rates_of_sizes(self) -> FloatArray:
        """The accounted rates, but at most that of the mean size: a larger one may be accounted."""
        return np.minimum(self.rates, self.mean / self.n)


def _sizes(drawn: _Sizes) -> Iterator[TestResult]:
    n = drawn.n
    numbers: dict[str, float | int | str] = {
        "mean": drawn.mean,
        "expected": float(n * drawn.rates.mean()),
        "batches": len(drawn.sizes),
        "rate": float(drawn.rates.mean()),
        "n": n,
        "least": float(drawn.sizes.min()),
        "most": float(drawn.sizes.max()),
    }
    yield _mean_of_batches(drawn, numbers)
    log_fixed = _log_chance_of_fixed_sizes(drawn)
    if log_fixed < 0:
        is_fixed = np.ptp(drawn.sizes) == 0
        kind = "fixed batches" if is_fixed else "batches without the seed"
        yield TestResult(float(np.exp(log_fixed)), kind, numbers)
    elif len(drawn.sizes) >= 20 and drawn.same_rate and 0 < drawn.mean < n:
        yield from _dispersion(drawn, numbers)
    if drawn.same_rate:
        yield from _gaps(drawn.sizes, numbers)
    # The probability that no batch is larger than the largest one.
    limited = float(np.sum(stats.binom.logcdf(drawn.sizes.max(), n, drawn.rates_of_sizes)))
    yield TestResult(float(np.exp(limited)), "limited batches", numbers)
    yield from _neighbouring_steps(drawn, numbers)
    if not np.any(drawn.sizes == 0):
        # Larger batches than accounted are another finding, and are seldom empty. A batch without
        # the exchanged record is empty if it holds none of the others.
        may_be_empty = ~drawn.included[drawn.is_known]
        rates = np.maximum(drawn.rates[may_be_empty], min(drawn.rate_of_others, 1.0))
        empty = (1 - rates) ** (n - 1)
        p_value = float(np.exp(np.log1p(-np.minimum(empty, 1 - 1e-15)).sum()))
        yield TestResult(p_value, "no empty batch", numbers)


def _mean_of_batches(drawn: _Sizes, numbers: dict[str, float | int | str]) -> TestResult:
    """Tests whether batches are larger than accounted, by the records that are not exchanged."""
    tries, rate = (drawn.n - 1) * len(drawn.others), float(drawn.rates.mean())
    # For unequal rates, the binomial number with the mean rate has the larger upper tail (Hoeffding
    # 1956).
    p_value = float(stats.binom.sf(drawn.others.sum() - 1, tries, rate))
    mean = drawn.rate_of_others * drawn.n
    larger = mean > 1.02 * drawn.n * rate
    return TestResult(p_value, "mean of batches", {**numbers, "mean": mean}, larger)


def _log_chance_of_fixed_sizes(drawn: _Sizes) -> float:
    """Logarithm of the largest probability that all batches of a step have one size.

    It is 0 if the batches of a step differ in size, or if no step has two batches.
    """
    log_p = 0.0
    for t in range(drawn.counts.shape[1]):
        of_step = drawn.counts[drawn.is_known[:, t], t]
        if len(of_step) < 2:
            continue
        if np.ptp(of_step) != 0:
            return 0.0
        rate = min(drawn.rate[0, t], drawn.rate_of_others)
        # Given one batch and the inclusions of the exchanged record, each other batch has its size
        # with at most the probability of the mode.
        top = stats.binom.pmf(int(np.floor(drawn.n * rate)), drawn.n - 1, rate)
        log_p += (len(of_step) - 1) * float(np.log(top))
    return log_p


def _dispersion(drawn: _Sizes, numbers: dict[str, float | int | str]) -> Iterator[TestResult]:
    """Tests whether sizes vary as binomial numbers do, whose variance follows from the mean."""
    squares = np.square(drawn.sizes - drawn.mean)  # a wrong mean is another finding
    expected_variance, spread = _variance_of_binomials(
        drawn.n, drawn.mean / drawn.n, len(drawn.sizes)
    )
    total = len(drawn.sizes) * expected_variance
    deviation = float(squares.sum() - total) / spread
    ratio = float(np.divide(squares.sum(), total))
    numbers["dispersion"] = ratio
    if ratio < _TOO_EVEN:
        # The lower tail of a sum of squares is lighter than that of a Gaussian.
        yield TestResult(float(stats.norm.cdf(deviation)), "fixed batches", numbers)
    elif ratio > _TOO_UNEVEN and expected_variance >= _MIN_VARIANCE:
        # A chi-square distribution with the mean and the variance of the sum of squares.
        free = 2.0 * (total / spread) ** 2
        yield TestResult(float(stats.chi2.sf(free * ratio, free)), "uneven batches", numbers)
    elif ratio > 3 and deviation > 12:
        yield TestResult(1e-9, "uneven batches", numbers)


def _neighbouring_steps(
    drawn: _Sizes, numbers: dict[str, float | int | str]
) -> Iterator[TestResult]:
    """Tests whether the sizes of neighbouring steps of a run are independent."""
    both_known = drawn.is_known[:, 1:] & drawn.is_known[:, :-1]
    if both_known.sum() < 20 or not drawn.same_rate:
        return
    centered = np.where(drawn.is_known, drawn.counts - drawn.mean, 0.0)
    later_sizes, earlier_sizes = centered[:, 1:][both_known], centered[:, :-1][both_known]
    norm = np.linalg.norm(later_sizes) * np.linalg.norm(earlier_sizes)
    if norm <= 0:
        return
    correlation = float(later_sizes @ earlier_sizes / norm)
    size = np.arctanh(min(abs(correlation), 1 - 1e-12)) * np.sqrt(both_known.sum() - 3)
    yield TestResult(
        float(2 * stats.norm.sf(size)),
        "repeated batches",
        {**numbers, "correlation": correlation},
        abs(correlation) > 0.5,
    )


def _gaps(sizes: FloatArray, numbers: dict[str, float | int | str]) -> Iterator[TestResult]:
    """Tests whether a batch size is rarer than a smaller and a larger one.

    The number of records of an independent sample has a single peak, whatever their rates: a sum
    of independent Bernoulli variables has a log-concave distribution (Newton's inequality).
    """
    n = int(numbers["n"])
    seen = np.bincount(sizes.astype(np.int64), minlength=n + 1)
    seen_inside = seen[1:-1]
    less = np.maximum.accumulate(seen)[:-2]
    more = np.maximum.accumulate(seen[::-1])[::-1][2:]
    rarer = np.flatnonzero(seen_inside < np.minimum(less, more))
    if not len(rarer):
        return
    # If a size is not rarer than both, one of the two tests holds its level.
    below, above = (
        stats.binom.cdf(seen_inside, seen_inside + counts, 0.5) for counts in (less, more)
    )
    p_values = np.maximum(below, above)[rarer]
    place = int(rarer[p_values.argmin()])
    size = place + 1
    shown: dict[str, float | int | str] = {
        **numbers,
        "size": size,
        "seen": int(seen_inside[place]),
        "less": int(less[place]),
        "smaller": int(seen[:size].argmax()),
        "more": int(more[place]),
        "larger": size + 1 + int(seen[size + 1 :].argmax()),
    }
    matters = 3 * seen_inside[place] < min(less[place], more[place])
    # The data chose the three sizes, so Bonferroni's inequality counts all triples.
    p_value = min(1.0, math.comb(n + 1, 3) * float(p_values.min()))
    yield TestResult(p_value, "gaps in batches", shown, bool(matters))


def _inclusions(
    included: NDArray[np.bool_], sampled: NDArray[np.bool_], rate: FloatArray
) -> Iterator[TestResult]:
    hits, tries = int(included[sampled].sum()), int(sampled.sum())
    mean_rate = float(rate[sampled].mean())
    numbers: dict[str, float | int | str] = {
        "hits": hits,
        "tries": tries,
        "rate": mean_rate,
        "share in %": 100 * hits / max(tries, 1),
        "rate in %": 100 * mean_rate,
    }
    # For unequal rates, the binomial number with the mean rate has the larger upper tail (Hoeffding
    # 1956).
    yield TestResult(float(stats.binom.sf(hits - 1, tries, mean_rate)), "inclusion rate", numbers)
    runs, steps = included.shape
    if hits and runs > 1 and sampled.all():
        if np.all(included == included[:1]):
            # All R runs agree at a step with probability q^R + (1-q)^R, at most max(q, 1-q)^(R-1).
            log_p = sum((runs - 1) * np.log(max(q, 1 - q)) for q in rate[0])
            yield TestResult(float(np.exp(log_p)), "inclusion without the seed", numbers)
        else:
            per_run = included.sum(1)
            if np.ptp(per_run) == 0 and np.ptp(rate) < 1e-12:
                # Given one run, each other run has its number with at most the probability of the
                # mode.
                top = stats.binom.pmf(int((steps + 1) * mean_rate), steps, mean_rate)
                yield TestResult(
                    float(top ** (runs - 1)),
                    "inclusions of a run",
                    {**numbers, "per run": int(per_run[0]), "steps": steps, "runs": runs},
                )
