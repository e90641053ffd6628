"""Tests of the noise: its scale, and whether it is independent and Gaussian.

Runs with other seeds, forced outputs and equal records release k_t c_t + noise at step t. The
number k_t of records in the batch is known exactly from coupled runs, and c_t is the contribution
of one record. Regression on k_t leaves the noise, with known degrees of freedom. Coordinates that
are the same public number in all runs of a step release nothing, and no test uses them.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize, special, stats

from audit.numerics import FloatArray

# Below this share of the gradient's spacing in floating point, a spread is rounding.
ROUNDINGS = 16
_MIN_KURTOSIS_NUMBERS = 4000
_MIN_KURTOSIS = 0.2
# Distance between distribution functions: that of noise rounded to a seventh of its scale.
_MIN_DISTANCE = 0.03
# Share of the variance of a run's noise that the regression must leave.
_MIN_KEPT = 0.01
MIN_CORRELATION = 0.05
"""Smaller correlations of the noise are not reported."""

_MAX_LAG = 8
_MAX_TENSOR_PAIRS, _MAX_TENSOR_LAG = 60, 2
# The test of the rank compares this number of rows, and reports an excess above this ratio.
_MAX_ROWS, _MIN_RATIO = 400, 1.1
# The test of the grain compares this number of coordinates and runs.
_MAX_GRAINS, _MAX_GRAIN_RUNS = 2000, 64
# Largest covariance that is tested, in coordinates, and the smallest number of lengths compared.
_MAX_FLAT, _MIN_LENGTHS = 400, 6
# Level at which scales of coordinates count as different, and error probability of `lower_limit`.
_MAYBE_UNEQUAL, _ERROR_OF_LIMIT = 1e-6, 1e-9
_SMALLEST_ERROR = 1e-290  # quantiles of smaller ones are inaccurate
# A contribution of this many thresholds is not reported, and such a relative difference of scales.
_MAX_SLOPE, _UNEQUAL = 1.05, 0.2
# Beyond this number of degrees of freedom, an estimated scale counts as known.
_MANY_DEGREES = 2000
# Degrees of freedom of the noise of a step below which its scale is too uncertain for a slope.
_MIN_SLOPE_DEGREES = 30
# Smaller p-values of a step are replaced by this one, which is safe.
_SMALLEST_P_VALUE = 1e-300
# Values beyond these numbers of standard deviations are counted.
_LIMITS = (1.5, 2.0, 2.5, 2.8, 3.1, 3.4, 3.7, 4.0, 4.4)


@dataclass(frozen=True)
class Noise:
    """The noise of R runs.

    Attributes:
        residuals: [R, T, D], residuals of the regression, scaled to the variance of the noise.
        residual_share: [R, T], share of a run's variance that the regression leaves; 0 for the only
            run whose batch has another size than all others.
        degrees: [T], degrees of freedom per coordinate.
        squares: [T, tensors], sums of squares before that scaling.
        sizes: [tensors], numbers of coordinates.
        silent: [T, tensors], whether nothing but rounding is left of a tensor that is not public.
        live: [T, D], coordinates that are not public; the residuals of all others are 0.
    """

    residuals: FloatArray
    residual_share: FloatArray
    degrees: NDArray[np.int64]
    squares: FloatArray
    sizes: NDArray[np.int64]
    silent: NDArray[np.bool_]
    live: NDArray[np.bool_]

    @property
    def live_sizes(self) -> NDArray[np.int64]:
        """[T, tensors], numbers of coordinates that are not public."""
        starts = np.cumsum([0, *self.sizes[:-1]])
        return np.add.reduceat(self.live.astype(np.int64), starts, axis=1)

    @property
    def widths(self) -> NDArray[np.int64]:
        """[T], numbers of coordinates that are not public."""
        widths: NDArray[np.int64] = self.live.sum(axis=1)
        return widths

    @property
    def loud(self) -> NDArray[np.bool_]:
        """[T], whether every tensor of a step has noise, where it is not public."""
        loud: NDArray[np.bool_] = np.asarray(~self.silent.any(axis=1) & self.live.any(axis=1))
        return loud

    @property
    def informative(self) -> NDArray[np.bool_]:
        """[R, T], whether the regression leaves noise in a run."""
        informative: NDArray[np.bool_] = self.residual_share > _MIN_KEPT
        return informative

    @property
    def scales(self) -> FloatArray:
        """[T], standard deviation of a coordinate."""
        count = self.degrees * self.widths
        scales: FloatArray = np.sqrt(self.squares.sum(1) / np.maximum(count, 1))
        return scales

    @property
    def scales_by_tensor(self) -> FloatArray:
        """[T, tensors], standard deviation of a coordinate of each tensor."""
        count = self.degrees[:, None] * self.live_sizes
        scales: FloatArray = np.sqrt(self.squares / np.maximum(count, 1))
        return scales

    @property
    def units(self) -> FloatArray:
        """[T, D], the standard deviation of each coordinate; 1 for public coordinates."""
        return np.where(self.live, np.repeat(self.scales_by_tensor, self.sizes, axis=1), 1.0)


@dataclass(frozen=True)
class TestResult:
    """Result of a test of the noise or of the batches, which may refute its hypothesis.

    Attributes:
        p_value: p-value of the test.
        kind: name of the test, as in `audit.loop.premises.verdicts`.
        numbers: the numbers of its message.
        matters: whether the effect is large enough to be reported; a test counts in the correction
            for many tests in any case.
    """

    p_value: float
    kind: str
    numbers: Mapping[str, float | int | str]
    matters: bool = True


def estimate_noise(
    gradients: FloatArray,
    counts: FloatArray | None,
    slices: Sequence[slice],
    epsilon_of_type: float,
    live: NDArray[np.bool_] | None = None,
) -> Noise:
    """Residuals of released gradients after regressing out the batch sizes.

    Args:
        gradients: [R, T, D], of runs with other seeds on equal records.
        counts: [R, T], numbers proportional to the batch sizes, or None where they are unknown.
        slices: the coordinates of every tensor.
        epsilon_of_type: spacing of the floating-point type.
        live: [T, D], coordinates that are not public; None for all.

    Example:
        >>> drawn = np.random.default_rng(0).normal(size=(40, 3, 50))
        >>> noise = estimate_noise(drawn, None, [slice(0, 50)], 1e-7)
        >>> bool(np.all(abs(noise.scales - 1) < 0.1)), noise.degrees.tolist()
        (True, [39, 39, 39])
    """
    runs, steps, _ = gradients.shape
    residuals = np.zeros_like(gradients)
    left_over = np.zeros((runs, steps))
    squares = np.zeros((steps, len(slices)))
    silent = np.zeros((steps, len(slices)), np.bool_)
    degrees = np.zeros(steps, np.int64)
    live = np.ones(gradients.shape[1:], np.bool_) if live is None else live
    for t in range(steps):
        columns = [np.ones(runs)]
        if counts is not None and np.ptp(counts[:, t]) > 1e-6 * max(np.abs(counts[:, t]).max(), 1):
            columns.append(counts[:, t])
        basis, _ = np.linalg.qr(np.stack(columns, 1))
        degrees[t] = runs - basis.shape[1]
        values = gradients[:, t]
        residual = np.where(live[t], values - basis @ (basis.T @ values), 0.0)
        # Rounding can leave a little less than 0 for a run that the regression fits exactly.
        left_over[:, t] = np.maximum(1.0 - np.square(basis).sum(1), 0.0)
        # The regression leaves this share of the variance of the noise in each run.
        residuals[:, t] = residual / np.sqrt(np.maximum(left_over[:, t], _MIN_KEPT))[:, None]
        for index, coordinates in enumerate(slices):
            squares[t, index] = np.square(residual[:, coordinates]).sum()
            size = np.abs(values[:, coordinates]).max(initial=0.0)
            spread = np.abs(residual[:, coordinates]).max(initial=0.0)
            is_silent = spread <= ROUNDINGS * epsilon_of_type * size
            silent[t, index] = is_silent and live[t, coordinates].any()
    sizes = np.array([interval.stop - interval.start for interval in slices])
    return Noise(residuals, left_over, degrees, squares, sizes, silent, live)


def has_unequal_coordinates(noise: Noise) -> bool:
    """Whether the coordinates of some tensor may have noise of different scales.

    This is Bartlett's test of equal variances. Noise with heavy tails fails it, too, so that its
    result is only a reason to make further runs.
    """
    total = degrees = 0.0
    starts = np.cumsum([0, *noise.sizes])
    for t, degrees_of_one in enumerate(noise.degrees.tolist()):
        for first, end, silent in zip(starts[:-1], starts[1:], noise.silent[t], strict=True):
            columns = np.flatnonzero(noise.live[t, first:end]) + first
            variances = np.square(noise.residuals[:, t, columns]).mean(axis=0)
            if silent or degrees_of_one < 2 or len(columns) < 2 or variances.min() <= 0:
                continue
            count = len(columns)
            excess = count * math.log(variances.mean()) - float(np.log(variances).sum())
            total += degrees_of_one * excess / (1 + (count + 1) / (3 * count * degrees_of_one))
            degrees += count - 1
    return degrees > 0 and float(stats.chi2.sf(total, degrees)) < _MAYBE_UNEQUAL


def inverse_variances(gradients: FloatArray) -> FloatArray:
    """Estimates [T, D] of 1 / variance of the noise of each coordinate, without bias.

    Whatever is added to Gaussian noise can only make them smaller: given that, a sample variance is
    the variance of the noise times a noncentral chi-square, which is stochastically larger than a
    central one.

    Args:
        gradients: [R, T, D], released in more than 3 runs with other seeds.

    Example:
        >>> drawn = np.random.default_rng(0).normal(size=(200, 1, 50))
        >>> bool(abs(inverse_variances(drawn).mean() - 1.0) < 0.05)
        True
    """
    degrees = len(gradients) - 1
    variances = gradients.var(axis=0, ddof=1)
    inverse = (1.0 - 2.0 / degrees) / np.where(variances > 0, variances, 1.0)
    return np.where(variances > 0, inverse, 0.0)


def lower_limit(terms: FloatArray, runs: int, sets: float = 1.0) -> float:
    """Lower confidence limit of a sum over coordinates whose weights are `inverse_variances`.

    If one coordinate has everything, the limit exceeds the sum with probability 1e-9, exactly. The
    logarithm of a mean of independent 1 / chi-square has the standard error of one times the root
    of the sum of squared shares, and lighter tails. The shares are estimates: where few coordinates
    are far too large, they have most of the sum, and the limit is that of a few.

    Args:
        terms: [D], the terms of the sum, which must not be negative.
        runs: the number of runs of the estimates.
        sets: the number of sets of terms from which this one was chosen for its large estimates.

    Example:
        >>> round(lower_limit(np.array([1.0]), 129), 3), round(lower_limit(np.ones(100), 129), 1)
        (0.428, 91.9)
    """
    total, degrees = float(terms.sum()), runs - 1
    if total <= 0:
        return 0.0
    error = max(_ERROR_OF_LIMIT / sets, _SMALLEST_ERROR)
    error_of_one = math.log((degrees - 2) / float(stats.chi2.ppf(error, degrees)))
    return total * math.exp(-error_of_one * math.sqrt(float(np.square(terms / total).sum())))


def independence(
    noise: Noise,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    between_steps: bool,
    min_correlation: float = MIN_CORRELATION,
) -> Iterator[TestResult]:
    """Tests whether the noise is independent between steps, tensors and coordinates.

    Args:
        noise: the noise of all runs.
        names: names of the tensors.
        shapes: shapes of the tensors.
        between_steps: whether noise must be independent between steps.
        min_correlation: correlations up to this one are not reported.
    """
    steps = np.flatnonzero(noise.loud)
    scales = noise.scales
    unit = (noise.residuals / np.where(scales > 0, scales, 1.0)[None, :, None])[:, steps]
    runs = unit.shape[0]
    if not len(steps):
        return
    share = float(np.mean(noise.degrees[steps])) / runs if len(steps) else 1.0
    if between_steps:
        for lag in range(1, min(_MAX_LAG, len(steps) - 1) + 1):
            place = {int(step): i for i, step in enumerate(steps)}
            pairs = [(i, place[a + lag]) for a, i in place.items() if a + lag in place]
            if pairs:
                first = np.concatenate([unit[:, a].ravel() for a, _ in pairs])
                second = np.concatenate([unit[:, b].ravel() for _, b in pairs])
                yield from _correlated(first, second, share, "steps", {"lag": lag}, min_correlation)
        yield from _most_correlated_steps(unit, steps, share, min_correlation)
        yield from _shared_by_steps(unit, noise.widths[steps], share, min_correlation)
    ends = np.cumsum([0, *noise.sizes])
    for index, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        tensor = unit[:, :, ends[index] : ends[index + 1]].reshape(*unit.shape[:2], *shape)
        for axis, length in enumerate(shape):
            if length > 1:
                moved = np.moveaxis(tensor, axis + 2, -1)
                yield from _correlated(
                    moved[..., 1:].ravel(),
                    moved[..., :-1].ravel(),
                    share,
                    "coordinates",
                    {"tensor": name, "axis": axis},
                    min_correlation,
                )
        flat = tensor.reshape(*unit.shape[:2], -1)
        live = noise.live[steps, ends[index] : ends[index + 1]]
        yield from _repeated(flat, live, share, name, min_correlation)
    lags = range(-_MAX_TENSOR_LAG, _MAX_TENSOR_LAG + 1) if between_steps else (0,)
    for i, j in itertools.islice(itertools.combinations(range(len(names)), 2), _MAX_TENSOR_PAIRS):
        width = min(noise.sizes[i], noise.sizes[j])
        for lag in lags:
            if abs(lag) >= len(steps):
                continue
            earlier = slice(max(-lag, 0), len(steps) - max(lag, 0))
            later = slice(max(lag, 0), len(steps) - max(-lag, 0))
            when = f" {abs(lag)} step(s) {'later' if lag > 0 else 'earlier'}" if lag else ""
            yield from _correlated(
                unit[:, earlier, ends[i] : ends[i] + width].ravel(),
                unit[:, later, ends[j] : ends[j] + width].ravel(),
                share,
                "tensors",
                {"first": names[i], "second": names[j], "lag": lag, "when": when},
                min_correlation,
            )


def _repeated(
    unit: FloatArray, live: NDArray[np.bool_], share: float, name: str, min_correlation: float
) -> Iterator[TestResult]:
    """Tests whether the noise of a tensor repeats itself, at the distance that correlates most."""
    runs, steps, width = unit.shape
    if width < 3:
        return
    length = fft.next_fast_len(2 * width, real=True)
    power = np.zeros(length // 2 + 1)
    for t in range(steps):
        power += np.square(np.abs(fft.rfft(unit[:, t], length, axis=1))).sum(0)
    products = fft.irfft(power, length)[:width]
    of_live = np.square(np.abs(fft.rfft(np.float64(live), length, axis=1))).sum(0)
    pairs = runs * np.rint(fft.irfft(of_live, length)[:width])
    degrees = share * pairs - 2
    lags = np.flatnonzero(degrees[1:] >= 20) + 1
    if products[0] <= 0 or not len(lags):
        return
    correlations = np.abs(products[lags] / pairs[lags]) / (products[0] / pairs[0])
    capped = np.minimum(correlations, 1 - 1e-12)
    statistics = capped * np.sqrt(degrees[lags] / (1 - capped**2))
    best = int(np.argmax(statistics))
    # Two-sided, and by Bonferroni's inequality over the distances, of which the data chose one.
    p_value = min(1.0, 2 * len(lags) * float(stats.t.sf(statistics[best], degrees[lags[best]])))
    correlation = float(correlations[best])
    numbers: dict[str, float | int | str] = {
        "tensor": name,
        "lag": int(lags[best]),
        "correlation": correlation,
    }
    yield TestResult(p_value, "repeated", numbers, correlation > min_correlation)


def _shared_by_steps(
    unit: FloatArray, widths: NDArray[np.int64], share: float, min_correlation: float
) -> Iterator[TestResult]:
    """Tests whether the sums, or the sizes, of the noise of different steps of a run are alike.

    Noise that is drawn once and permuted, or taken from a small pool, has no correlation between
    coordinates of two steps, but its sum and its size repeat.
    """
    runs, steps, _ = unit.shape
    if steps < 2 or runs < 2:
        return
    with np.errstate(divide="ignore"):
        # The normal score of a chi-square number is normal.
        sizes = stats.norm.ppf(stats.chi2.cdf(np.square(unit).sum(2), widths))
    limit = stats.norm.isf(1e-300)
    for name, values in (("sum", unit.sum(2) / np.sqrt(widths)), ("size", sizes)):
        x = np.clip(values, -limit, limit)
        x = x - x.mean(axis=0)
        # One-way analysis of variance, whose groups are the runs: independent steps give an F
        # statistic.
        between = steps * np.square(x.mean(axis=1)).sum()
        within = np.square(x - x.mean(axis=1, keepdims=True)).sum()
        free = max(share * runs, 1.0), max(share * runs * (steps - 1), 1.0)
        ratio = (between / free[0]) / max(within / free[1], 1e-300)
        correlation = float((ratio - 1.0) / (ratio - 1.0 + steps))
        p_value = float(stats.f.sf(ratio, *free))
        numbers: dict[str, float | int | str] = {"of": name, "correlation": correlation}
        yield TestResult(p_value, "shared noise", numbers, correlation > min_correlation)


def _most_correlated_steps(
    unit: FloatArray, steps: NDArray[np.int64], share: float, min_correlation: float
) -> Iterator[TestResult]:
    """Pearson's test of the two steps that correlate most, with Bonferroni's correction."""
    rows = unit.transpose(1, 0, 2).reshape(len(steps), -1)
    if len(steps) < 2 or rows.shape[1] * share < 22:
        return
    norms = np.linalg.norm(rows, axis=1)
    products = np.abs(np.triu(rows @ rows.T, 1)) / np.maximum(np.outer(norms, norms), 1e-300)
    row, other_row = np.unravel_index(np.argmax(products), products.shape)
    pairs = len(steps) * (len(steps) - 1) / 2
    for test in _correlated(
        rows[row],
        rows[other_row],
        share,
        "steps",
        {"lag": int(steps[other_row] - steps[row])},
        min_correlation,
    ):
        yield replace(test, p_value=min(1.0, pairs * test.p_value))


def _correlated(
    first: FloatArray,
    second: FloatArray,
    share: float,
    kind: str,
    numbers: Mapping[str, float | int | str],
    min_correlation: float,
) -> Iterator[TestResult]:
    """The test of Pearson's correlation, if there are at least 20 degrees of freedom.

    The noise of public coordinates is 0, and they are left out.
    """
    used = (first != 0) & (second != 0)
    if not used.all():
        first, second = first[used], second[used]
    norm = np.linalg.norm(first) * np.linalg.norm(second)
    degrees = len(first) * share - 2
    if norm == 0 or degrees < 20:
        return
    correlation = float(first @ second / norm)
    capped = min(abs(correlation), 1 - 1e-12)
    statistic = capped * np.sqrt(degrees / (1 - capped**2))
    p_value = float(2 * stats.t.sf(statistic, degrees))
    matters = abs(correlation) > min_correlation
    yield TestResult(p_value, kind, {**numbers, "correlation": correlation}, matters)


def scale_by_batch(noise: Noise, counts: FloatArray) -> Iterator[TestResult]:
    """Tests whether the size of the noise follows the size of the batch, by their correlation.

    Args:
        noise: the noise of all runs.
        counts: [R, T], numbers proportional to the batch sizes within each step.
    """
    sizes, batches = [], []
    for t in np.flatnonzero(noise.loud & (np.ptp(counts, axis=0) > 0)):
        width = noise.widths[t]
        used = noise.residual_share[:, t] > 0.5
        if used.any() and np.ptp(counts[used, t]) > 0:
            squares = np.square(noise.residuals[used, t]).sum(1)
            standardised = squares / squares.mean() * width
            limit = stats.norm.isf(1e-300)
            sizes.append(
                np.clip(stats.norm.ppf(stats.chi2.cdf(standardised, width)), -limit, limit)
            )
            batches.append(counts[used, t] / np.std(counts[used, t]))
    if sizes:
        all_sizes, all_batches = (
            np.concatenate([v - v.mean() for v in values]) for values in (sizes, batches)
        )
        share = 1.0 - len(sizes) / len(all_sizes)
        yield from _correlated(all_sizes, all_batches, share, "scale by batch", {}, 0.3)


def noise_again(gradients: FloatArray, noise: Noise) -> Iterator[TestResult]:
    """Tests whether two runs with different seeds have the same noise in a step.

    The squared distance of two runs is at least that of their noise.
    """
    runs, steps, _ = gradients.shape
    units, p_values, shares = noise.units, [], []
    for t in np.flatnonzero(noise.loud & (noise.degrees > 0)):
        width = noise.widths[t]
        unit = (gradients[:, t] - gradients[:, t].mean(axis=0)) * noise.live[t] / units[t]
        squares = np.square(unit).sum(1)
        distances = squares[:, None] + squares[None, :] - 2 * unit @ unit.T
        np.fill_diagonal(distances, np.inf)
        # Half of the squared distance of two runs is noncentral chi-square, and so stochastically
        # at least a central one.
        nearest = max(float(distances.min()) / 2, 0.0)
        p_values.append(float(stats.chi2.cdf(nearest, width)))
        shares.append(math.sqrt(nearest / width))
    if p_values:
        pairs = steps * runs * (runs - 1) / 2
        share = shares[int(np.argmin(p_values))]
        p_value = min(1.0, pairs * min(p_values))
        yield TestResult(p_value, "runs", {"share": share}, share < 0.5)


def noise_from_weights(noise: Noise, initial: FloatArray) -> Iterator[TestResult]:
    """Tests whether the noise repeats the numbers from which a run drew its initial weights.

    If a key or a seed serves twice, normal weights and the noise are the same numbers up to a
    factor, perhaps some places apart. Given the weights, the sum of products with independent unit
    noise is normal, and its variance is the weights' sum of squares.

    Args:
        noise: the noise of R runs.
        initial: [R', d], the weights that the first R' <= R runs drew themselves; the released
            gradients do not depend on them, because the test has set other weights.
    """
    # Buffers may hold infinity, as a mask of attention does.
    finite = np.where(np.isfinite(initial).all(axis=0), initial, 0.0)
    weights = finite - finite.mean(axis=0)
    if len(weights) < 2 or not np.any(weights):
        return
    weights /= np.abs(weights).max()
    units = noise.units
    usable = np.flatnonzero(noise.loud & (noise.degrees > 0))
    width, count = noise.residuals.shape[2], weights.shape[1]
    length = fft.next_fast_len(width + count - 1, real=True)
    spectrum = fft.rfft(weights, length, axis=1).conj()
    # Sums of squared weights that meet a number of the noise, by lag.
    meeting = fft.rfft(np.square(weights).sum(0), length).conj()
    variances = fft.irfft(meeting * fft.rfft(np.ones(width), length), length)
    variances *= len(noise.residuals) / max(int(noise.degrees.min()), 1)
    enough = variances > 1e-9 * variances.max()
    largest, at, lag_at = 0.0, 0, 0
    for t in usable:
        unit = noise.residuals[: len(weights), t] / units[t]
        products = fft.irfft((spectrum * fft.rfft(unit, length, axis=1)).sum(0), length)
        scores = np.abs(products[enough]) / np.sqrt(variances[enough])
        if scores.max() > largest:
            lag = int(np.flatnonzero(enough)[scores.argmax()])
            largest, at, lag_at = float(scores.max()), int(t), lag
    if largest > 0:
        # Bonferroni's inequality over steps and lags.
        p_value = min(1.0, 2 * len(usable) * length * float(stats.norm.sf(largest)))
        lag = lag_at - length if lag_at >= width else lag_at
        share = largest / math.sqrt(len(weights) * min(width, count))
        numbers = {"step": at + 1, "lag": abs(lag), "correlation": min(share, 1.0)}
        yield TestResult(p_value, "numbers of the weights", numbers)


def grain_of_noise(
    of_quiet: FloatArray, of_canary: FloatArray, noise: Noise, spacing: float
) -> Iterator[TestResult]:
    """Tests whether the noise takes few values, so that low digits of the sum remain visible.

    Runs with different seeds then agree in a coordinate more often than rounding explains. If the
    sum is rounded to the same values before the noise is added, as for discrete Gaussian noise,
    runs on other records agree with them equally often, and nothing is reported.

    Args:
        of_quiet: [R, T, D], released gradients, as for `estimate_noise`.
        of_canary: [R', T, D], released gradients of runs with the same seeds on other records.
        noise: the noise of `of_quiet`.
        spacing: relative spacing of the floating-point type.
    """
    silent = np.repeat(noise.silent, noise.sizes, axis=1) | ~noise.live
    scales = noise.units
    slack = 2 * spacing * np.maximum(np.abs(of_quiet).max(axis=0), np.abs(of_canary).max(axis=0))
    apart = np.median(np.abs(of_canary - of_quiet[: len(of_canary)]), axis=0)
    usable = ~silent & (of_quiet.std(axis=0) > 0.5 * scales) & (apart > 100 * slack)
    steps, places = np.nonzero(usable)
    if not len(steps):
        return
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), _MAX_GRAINS)).astype(int)
    steps, places = steps[chosen], places[chosen]
    near, scale = slack[steps, places], scales[steps, places]
    ours, theirs = (
        of_quiet[:_MAX_GRAIN_RUNS, steps, places],
        of_canary[:_MAX_GRAIN_RUNS, steps, places],
    )
    seen = across = pairs = pairs_across = 0
    for lag in range(1, len(ours)):
        later = ours[lag:]
        equal = np.abs(later - ours[:-lag]) <= near
        seen, pairs = seen + int(equal.sum()), pairs + len(equal)
        equal = np.abs(later[: len(theirs)] - theirs[: len(later)]) <= near
        across, pairs_across = across + int(equal.sum()), pairs_across + len(equal)
    # The density of the difference of two normal numbers is at most 1 / (2 sqrt(pi) scale).
    expected = pairs * float((near / scale).sum()) / math.sqrt(math.pi)
    numbers = {"seen": seen, "pairs": pairs * len(near)}
    matters = seen * pairs_across > 4 * across * pairs
    yield TestResult(float(stats.poisson.sf(seen - 1, expected)), "grain", numbers, matters)


def noise_along(
    gradients: FloatArray,
    counts: FloatArray | None,
    directions: FloatArray,
    noise: Noise,
    required: FloatArray,
) -> Iterator[TestResult]:
    """Tests whether the noise is smaller along some directions than it must be.

    Noise that is orthogonal to the update hides nothing of it, but its scale is nearly unchanged.

    Args:
        gradients: [R, T, D], as for `estimate_noise`.
        counts: [R, T], as for `estimate_noise`.
        directions: [T, D], unit vectors, or 0 at steps without a direction; 0 at public
            coordinates.
        noise: the noise of these gradients.
        required: [T, tensors], standard deviations that the noise must have.
    """
    along = np.einsum("rtd,td->rt", gradients, directions * noise.live)[..., None]
    along_noise = estimate_noise(along, counts, [slice(0, 1)], 0.0)
    scales = np.repeat(required, noise.sizes, axis=1)
    expected = np.square(scales * directions).sum(1)
    used = (expected > 0) & noise.loud
    if used.any():
        # With at least the required noise, this is stochastically at least chi-square.
        total = float((along_noise.squares[used, 0] / expected[used]).sum())
        degrees = float(along_noise.degrees[used].sum())
        ratio = math.sqrt(total / max(degrees, 1.0))
        p_value = float(stats.chi2.cdf(total, degrees))
        yield TestResult(p_value, "direction", {"ratio": ratio}, ratio < 0.8)


def rank_of_noise(
    gradients: FloatArray,
    counts: FloatArray | None,
    slices: Sequence[slice],
    spacing: float,
    live: NDArray[np.bool_] | None = None,
) -> Iterator[TestResult]:
    """Tests whether the noise is larger in some directions, the same in both halves of the runs.

    The noise of the first half gives directions and weights. The squared length of independent
    noise of the second half along them is a weighted sum of chi-square variables, whose upper tail
    is bounded by Chernoff's inequality.
    """
    half = len(gradients) // 2
    halves = [
        estimate_noise(x, None if counts is None else counts[half_range], slices, spacing, live)
        for half_range in (slice(0, half), slice(half, 2 * half))
        for x in [gradients[half_range]]
    ]
    if half < 2 or any(
        not half_noise.loud.all() or (half_noise.degrees < 1).any() for half_noise in halves
    ):
        return
    rows, degrees = [], [int(half_noise.degrees.sum()) for half_noise in halves]
    for half_noise in halves:
        unit_residuals = half_noise.residuals / half_noise.units
        left_over = np.sqrt(np.maximum(half_noise.residual_share, _MIN_KEPT))[:, :, None]
        rows.append((unit_residuals * left_over).reshape(-1, unit_residuals.shape[2])[:_MAX_ROWS])
    used = len(rows[1]) / (half * len(halves[1].degrees))
    weights = np.linalg.eigvalsh(rows[0] @ rows[0].T).clip(min=0.0)
    total, free = float(np.square(rows[1] @ rows[0].T).sum()), used * degrees[1]
    ratio = total / (free * float(weights.sum()))

    def log_bound(t: float) -> float:
        return float(-t * total - 0.5 * free * np.log1p(-2 * t * weights).sum())

    # Chernoff's bound holds for each t, so the best t may be searched.
    optimum = optimize.minimize_scalar(
        log_bound, bounds=(0.0, 0.5 * (1 - 1e-9) / weights.max()), method="bounded"
    )
    p_value = math.exp(min(optimum.fun, 0.0))
    yield TestResult(p_value, "rank", {"ratio": ratio}, ratio > _MIN_RATIO)


def flat_noise(noise: Noise) -> Iterator[TestResult]:
    """Tests whether some linear combination of coordinates has little or no noise.

    The smallest singular value of m rows of d independent Gaussian numbers is less than
    sqrt(m) - sqrt(d) - t with probability at most exp(-t^2 / 2) (Davidson & Szarek 2001). Steps
    with the same public coordinates are tested together.
    """
    tested = np.flatnonzero(noise.loud & (noise.widths <= _MAX_FLAT))
    masks, group_of_step = np.unique(noise.live[tested], axis=0, return_inverse=True)
    for group, mask in enumerate(masks):
        steps = tested[group_of_step.ravel() == group]
        width, degrees = int(mask.sum()), int(noise.degrees[steps].sum())
        if degrees < 2 * width:
            continue
        rows = noise.residuals[:, steps] / noise.units[steps]
        rows = rows * np.sqrt(noise.residual_share[:, steps, None])
        rows = rows[..., mask].reshape(-1, width)
        smallest = math.sqrt(max(float(np.linalg.eigvalsh(rows.T @ rows)[0]), 0.0))
        expected = math.sqrt(degrees) - math.sqrt(width)
        p_value = math.exp(-(max(expected - smallest, 0.0) ** 2) / 2)
        ratio = smallest / math.sqrt(degrees)
        yield TestResult(p_value, "flat", {"ratio": ratio}, smallest < 0.5 * expected)


def length_of_noise(noise: Noise) -> Iterator[TestResult]:
    """Tests whether the lengths of the noise vary less than those of Gaussian noise."""
    scores = []
    units, widths = noise.units, noise.widths
    for t in np.flatnonzero(noise.loud & (noise.degrees >= _MIN_LENGTHS)):
        squares = np.square(noise.residuals[noise.informative[:, t], t] / units[t]).sum(1)
        scores.append(stats.norm.ppf(np.clip(stats.chi2.cdf(squares, widths[t]), 1e-12, 1 - 1e-12)))
    if scores:
        total = sum(
            float(np.square(scores_of_step - scores_of_step.mean()).sum())
            for scores_of_step in scores
        )
        degrees = sum(len(scores_of_step) - 2 for scores_of_step in scores)
        ratio = total / degrees
        yield TestResult(
            float(stats.chi2.cdf(total, degrees)), "length", {"ratio": ratio}, ratio < 0.5
        )


def one_more_record(
    gradients: FloatArray, counts: FloatArray, noise: Noise, sigmas: FloatArray
) -> Iterator[TestResult]:
    """Tests whether one more record in a batch changes a step by more than the noise allows.

    An exchange of records does not show what every record adds alike, such as weight decay. The
    slope of the regression on the batch size does. If one record adds at most `_MAX_SLOPE` C, the
    squared slope of a step in units of the noise has nearly a noncentral F distribution. Given the
    steps before, the p-value of a step is valid, so Fisher's method combines them.

    Args:
        gradients: [R, T, D], of runs with other seeds on equal records.
        counts: [R, T], the batch sizes; NaN where unknown.
        noise: the noise of these runs.
        sigmas: [T], accounted noise multipliers.
    """
    p_values, slopes = [], []
    usable = noise.loud & (np.ptp(counts, axis=0) > 0) & (sigmas > 0)
    usable &= noise.degrees * noise.widths >= _MIN_SLOPE_DEGREES
    for t in np.flatnonzero(usable):
        width, of_tensors = int(noise.widths[t]), noise.scales_by_tensor[t]
        of_tensors = of_tensors[noise.live_sizes[t] > 0]
        if np.abs(of_tensors / noise.scales[t] - 1).max() > _UNEQUAL:
            return
        degrees = float(noise.degrees[t] * width)
        x = counts[:, t] - counts[:, t].mean()
        # The inverse of a variance of m degrees of freedom is m / (m - 2) times too large on
        # average.
        squares, variance = float(x @ x), float(noise.scales[t]) ** 2 * degrees / (degrees - 2)
        slope = float(np.square(x @ gradients[:, t] / squares).sum())
        # The noncentrality if a record adds `_MAX_SLOPE` C. The tail grows with it.
        allowed = squares * (_MAX_SLOPE / sigmas[t]) ** 2
        statistic = slope * squares / (float(noise.scales[t]) ** 2 * width)
        p_values.append(float(stats.ncf.sf(statistic, width, degrees, allowed)))
        slopes.append((slope / variance - width / squares) * sigmas[t] ** 2)
    if slopes:
        logs = np.log(np.clip(p_values, _SMALLEST_P_VALUE, 1.0))
        p_value = float(stats.chi2.sf(-2.0 * logs.sum(), 2 * len(logs)))
        ratio = math.sqrt(max(float(np.mean(slopes)), 0.0))
        yield TestResult(p_value, "one more record", {"ratio": ratio}, ratio > _MAX_SLOPE)


def batches_in_noise(noise: Noise, inclusions: Sequence[NDArray[np.bool_]]) -> Iterator[TestResult]:
    """Tests whether a coordinate of the noise depends on whether a record is in a batch.

    A shared random key may relate the inclusion to the noise or to its absolute value, so both are
    tested. A generator whose state is restored after the noise draws the next batch from the same
    numbers, so that the noise is also compared with the batch of the next step.

    Args:
        noise: the noise of all runs.
        inclusions: one array [R, T] per record; R may be smaller than the number of runs.
    """
    scales = np.where(noise.scales > 0, noise.scales, 1.0)
    unit = noise.residuals / scales[None, :, None]
    # The normal score of the absolute value of a Gaussian number is Gaussian.
    sizes = stats.norm.ppf(np.clip(stats.chi2.cdf(np.square(unit), 1), 1e-12, 1 - 1e-12))
    share = float(np.mean(noise.degrees)) / len(unit)
    lags = range(min(2, unit.shape[1]))
    # Bonferroni's inequality over records, lags, coordinates, and noise or its absolute value.
    tests = 2 * len(lags) * len(inclusions) * unit.shape[2]
    for included, lag, values in itertools.product(inclusions, lags, (unit, sizes)):
        later = included[:, lag:]
        correlation = _largest_correlation(later, values[: len(later), : later.shape[1]])
        degrees = share * later.size - 2
        if degrees < 20 or correlation == 0.0:
            continue
        capped = min(correlation, 1 - 1e-12)
        p_value = 2 * stats.t.sf(capped * np.sqrt(degrees / (1 - capped**2)), degrees)
        numbers = {"correlation": correlation}
        yield TestResult(min(1.0, tests * float(p_value)), "batch", numbers, correlation > 0.3)


def _largest_correlation(included: NDArray[np.bool_], values: FloatArray) -> float:
    """The largest absolute correlation of inclusions [R, T] with a coordinate of values [R, T, D].

    Means of a step are subtracted, so that steps of unequal means do not correlate.
    """
    x = included - included.mean(axis=0)
    centered = values - values.mean(axis=0)
    norms = np.linalg.norm(x) * np.linalg.norm(centered, axis=(0, 1))
    products = np.abs(np.tensordot(x, centered, 2))
    return float(np.max(products / np.where(norms > 0, norms, np.inf), initial=0.0))


def shape_of_noise(noise: Noise, first_step: int = 0) -> Iterator[TestResult]:
    """Tests whether the noise is Gaussian, and has the same scale in all runs of a step."""
    scales = noise.scales_by_tensor
    for t in range(len(noise.degrees)):
        if not noise.loud[t] or noise.degrees[t] < 2:
            continue
        # Compares the scale of each run with that of the others, with Bonferroni's correction.
        width = int(noise.widths[t])
        per_run = np.square(noise.residuals[noise.informative[:, t], t]).sum(1)
        runs = len(per_run)
        if runs < 3 or per_run.min() <= 0:
            continue
        of_other_runs = (per_run.sum() - per_run) / (runs - 1)
        bound = stats.f(width, width * (int(noise.degrees[t]) - 1))
        tails = np.minimum(bound.sf(per_run / of_other_runs), bound.cdf(per_run / of_other_runs))
        p_value = min(1.0, 2 * runs * float(tails.min()))
        smallest, largest = (float(np.sqrt(v / width)) for v in (per_run.min(), per_run.max()))
        number = first_step + t + 1
        numbers: dict[str, float | int | str] = {"step": number, "least": smallest, "most": largest}
        yield TestResult(p_value, "scale of runs", numbers, largest > 1.1 * smallest)
    ends, sizes = np.cumsum([0, *noise.sizes]), noise.live_sizes
    # The degrees of freedom of each scale, and the residuals over it.
    standardized = [
        (float(noise.degrees[t] * sizes[t, i]), (of_tensor[:, is_live] / scales[t, i]).ravel())
        for t in range(len(noise.degrees))
        for i in range(len(noise.sizes))
        if not noise.silent[t, i] and scales[t, i] > 0 and noise.degrees[t] * sizes[t, i] > 1
        for columns in [slice(ends[i], ends[i + 1])]
        for of_tensor in [noise.residuals[noise.informative[:, t], t, columns]]
        for is_live in [noise.live[t, columns]]
    ]
    if not standardized:
        return
    values = np.concatenate([_normal_scores(*group) for group in standardized])
    if len(values) < _MIN_KURTOSIS_NUMBERS:
        return
    # Residuals of few runs depend on one another, so they count as fewer numbers.
    share = float(noise.degrees.mean()) / len(noise.residuals)
    excess = float(stats.kurtosis(values))
    z = stats.kurtosistest(values).statistic * np.sqrt(share)
    matters = abs(excess) > _MIN_KURTOSIS
    yield TestResult(
        float(2 * stats.norm.sf(abs(z))), "distribution", {"kurtosis": excess}, matters
    )
    distance = float(stats.ks_1samp(values, stats.norm.cdf, method="asymp").statistic)
    p_value = float(stats.kstwobign.sf(np.sqrt(share * len(values)) * distance))
    matters = distance > _MIN_DISTANCE
    yield TestResult(p_value, "distance", {"distance": distance}, matters)
    degrees, groups = zip(*standardized, strict=True)
    yield from _tails(degrees, groups)


def _normal_scores(degrees: float, values: FloatArray) -> FloatArray:
    """Numbers with a normal distribution from residuals over an estimated scale.

    A residual over a scale of m degrees of freedom, which includes it, is t sqrt(m / (m - 1 + t^2))
    with Student's t of m - 1 degrees. For few of them it has a smaller kurtosis than a normal one.
    """
    if degrees > _MANY_DEGREES:
        return values
    shares = np.minimum(np.square(values) / degrees, 1 - 1e-12)
    t = np.sqrt(shares * (degrees - 1) / (1 - shares))
    scores: FloatArray = -np.sign(values) * special.ndtri(special.stdtr(degrees - 1, -t))
    return scores


def _tails(degrees: Sequence[float], groups: Sequence[FloatArray]) -> Iterator[TestResult]:
    """Tests whether large values are too rare, as those of truncated noise are.

    The squares of a group with an estimated scale, over its degrees of freedom, have a beta
    distribution, so the expected number of large values is exact.
    """
    magnitudes = np.sort(np.abs(np.concatenate(groups)))
    best: tuple[float, float, int, float] | None = None
    for limit in _LIMITS:
        rates = [stats.beta.sf(min(limit**2 / m, 1.0), 0.5, (m - 1) / 2) for m in degrees]
        expected = float(np.dot(rates, [len(group) for group in groups]))
        seen = len(magnitudes) - int(np.searchsorted(magnitudes, limit, side="right"))
        p_value = float(stats.binom.cdf(seen, len(magnitudes), expected / len(magnitudes)))
        if best is None or p_value < best[0]:
            best = p_value, limit, seen, expected
    if best is not None:
        p_value, limit, seen, expected = best
        numbers: dict[str, float | int | str] = {
            "limit": limit,
            "seen": seen,
            "expected": expected,
            "numbers": len(magnitudes),
        }
        yield TestResult(min(1.0, len(_LIMITS) * p_value), "tails", numbers, seen < expected / 2)


def scale_p_value(squares: float, degrees: float, required: float) -> float:
    """Probability of a sum of squares this small if the noise has the required scale."""
    if required <= 0:
        return 1.0
    return float(stats.chi2.cdf(squares / required**2, degrees))
