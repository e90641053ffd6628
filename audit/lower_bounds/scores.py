"""What an estimator gets: the scores of a finished audit, a plan of analyses, and a rule.

With a `SequentialPlan`, an audit can be analysed more than once, so that it can stop early. A rule
chooses the threshold: it takes the scores and a statistic, and returns the lower limit of the
statistic's parameter that is proved there. The limit holds with error alpha for every rule except
`MaximumOverGrid`. Rules are frozen dataclasses; equal rules choose equal thresholds. They need
upper limits of an error rate from a count, which are defined here, too.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import QUANTILE_ACCURACY, FloatArray, IntArray
from audit.repetitions import Fixed, Repetitions, parse_repetitions

# Limits of all counts are tabulated up to this number of trials.
_MAX_TABLE_TRIALS = 4096
# Expected counts below this overflow the beta quantile. Raising them only raises the limit.
_MIN_POSITIVE_COUNT = 1e-9
_GRID_SIZE = 200
_SINGLE_RUN = Fixed(1)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the trials in their order; high scores indicate the record. NaN is refused."""

    out_scores: FloatArray
    in_scores: FloatArray

    @classmethod
    def of(cls, out_scores: ArrayLike, in_scores: ArrayLike) -> "Scores":
        """Scores from user input, which must be lists of numbers without NaN."""
        return cls(checked("out_scores", out_scores), checked("in_scores", in_scores))

    @cached_property
    def sorted_out(self) -> FloatArray:
        """Scores without the record, ascending."""
        return np.sort(self.out_scores)

    @cached_property
    def sorted_in(self) -> FloatArray:
        """Scores with the record, ascending."""
        return np.sort(self.in_scores)

    @property
    def mirrored(self) -> "Scores":
        """The negated scores, for an adversary who expects low scores with the record."""
        return Scores(-self.out_scores, -self.in_scores)

    @cached_property
    def even_and_odd(self) -> tuple["Scores", "Scores"]:
        """The trials at even and at odd positions of each side."""
        return (
            Scores(self.out_scores[0::2], self.in_scores[0::2]),
            Scores(self.out_scores[1::2], self.in_scores[1::2]),
        )

    def false_positives(self, thresholds: FloatArray) -> IntArray:
        """Number of scores without the record above each threshold."""
        below = np.searchsorted(self.sorted_out, thresholds, side="right")
        return np.asarray(len(self.out_scores) - below, dtype=np.int64)

    def false_negatives(self, thresholds: FloatArray) -> IntArray:
        """Number of scores with the record at or below each threshold."""
        return np.asarray(np.searchsorted(self.sorted_in, thresholds, side="right"), dtype=np.int64)


def checked(name: str, scores: ArrayLike) -> FloatArray:
    """Scores [n] as an array of floats. An error starts with `name`."""
    try:
        if _is_text(scores):
            raise TypeError("text")
        values = checks.to_floats(scores)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{name} must be a list of numbers, got {checks.one_line(scores)}"
        ) from error
    except OverflowError as error:
        raise InvalidInput(
            f"{name} must be numbers that a float can hold, got larger ones"
        ) from error
    if values.ndim != 1:
        raise InvalidInput(f"{name} must have one dimension, got shape {values.shape}")
    missing = int(np.count_nonzero(np.isnan(values)))
    if missing:
        raise InvalidInput(f"{name} must not be NaN, got {missing} NaN among {len(values)} scores")
    return values


def checked_nonempty(name: str, scores: ArrayLike) -> FloatArray:
    """Scores [n], n > 0, as an array of floats. An error starts with `name`."""
    values = checked(name, scores)
    if not len(values):
        raise InvalidInput(f"{name} must have at least one score, got none")
    return values


def _is_text(scores: ArrayLike) -> bool:
    """Whether scores are text or bytes, of which numpy would make numbers."""
    if isinstance(scores, bytes | bytearray | memoryview):
        return True
    array = np.asarray(scores)
    if array.dtype.kind in "SUV":
        return True
    return array.dtype == object and any(isinstance(item, str | bytes) for item in array.flat)


def checked_canaries(
    name: str, scores: ArrayLike, included: ArrayLike
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Scores [m] of the canaries of one run, and whether each was included, [m]."""
    values, coins = checked(name, scores), np.asarray(included)
    if coins.shape != values.shape or coins.dtype != np.bool_:
        raise InvalidInput(
            f"included must be one true or false per score, got {coins.dtype} of shape "
            f"{coins.shape} for {values.shape}"
        )
    return values, coins


@dataclass(frozen=True)
class SequentialPlan:
    """One of several analyses of an audit that grows until an analysis proves enough.

    The errors of all analyses add up to the error of the audit. So the bound holds with the
    confidence of the audit, whichever analysis the audit stops at. With J planned analyses each
    one spends 1/J of the error. Without a plan, the j-th spends the share 6 / (pi j)^2.

    Attributes:
        planned: J, the largest number of analyses; None without a plan.
        number: the number j of this analysis, counted from 1; irrelevant with a plan.

    Example:
        >>> SequentialPlan(planned=5).share, round(SequentialPlan(number=2).share, 3)
        (0.2, 0.152)
    """

    planned: int | None = None
    number: int = 1

    def __post_init__(self) -> None:
        if self.planned is not None:
            checks.validate(self, "planned", checks.integer, 1)
        checks.validate(self, "number", checks.integer, 1, self.planned)

    @property
    def share(self) -> float:
        """The share of the error that this analysis may spend."""
        if self.planned is not None:
            return 1.0 / self.planned
        return 6.0 / (math.pi * self.number) ** 2


def as_plan(plan: SequentialPlan | int | None) -> SequentialPlan:
    """The plan that a user gives: an integer is a number of planned analyses, None is one."""
    if isinstance(plan, SequentialPlan):
        return plan
    return SequentialPlan(planned=1 if plan is None else checks.integer("plan", plan, 1))


def doubling_sizes(trials: int, first: int = 500) -> tuple[int, ...]:
    """Numbers of trials at which to analyse, ascending: `trials`, its half, and so on to `first`.

    Args:
        trials: the number of trials after which the audit ends in any case.
        first: the smallest number of trials for an analysis.

    Example:
        >>> doubling_sizes(10_000, first=1_000)
        (1250, 2500, 5000, 10000)
    """
    trials = checks.integer("trials", trials, 1)
    first = checks.integer("first", first, 1)
    sizes = [trials]
    while sizes[-1] >= 2 * first:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


Limit = tuple[float, float | None, Scores]
"""A limit of a parameter, the threshold behind it (if there is one), and the scores it is from."""


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """Counts [n] of errors above (false positives) and below thresholds, and numbers of trials."""

    false_positives: FloatArray | NDArray[np.int64]
    false_negatives: FloatArray | NDArray[np.int64]
    trials_without: int
    trials_with: int


class Statistic(ABC):
    """A map from the counts of both errors to the lower limit of one parameter, such as mu.

    The parameter is that of a family of trade-off curves, which describe the pairs of error rates
    that a mechanism can have. Subclasses are frozen and hashable, because results are cached.
    """

    @abstractmethod
    def from_limits(self, fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
        """The parameter that each pair of upper limits [n] proves."""

    def lower_limit(self, counts: ErrorCounts, delta: float, alpha: float) -> FloatArray:
        """The parameter [n] proved by limits of both rates with error alpha / 2 each."""
        # By Bonferroni's inequality, both limits hold with probability at least 1 - alpha.
        return self.from_limits(
            upper_limit(counts.false_positives, counts.trials_without, alpha / 2.0),
            upper_limit(counts.false_negatives, counts.trials_with, alpha / 2.0),
            delta,
        )


class ThresholdRule(ABC):
    """A way to choose the threshold.

    Attributes:
        name: part of the key of a bound.
        words: what the rule does, in one line.
        corrected: whether the limit accounts for the choice of the threshold.

    Example:
        >>> from audit.lower_bounds import Split
        >>> isinstance(Split(), ThresholdRule)
        True
    """

    name: ClassVar[str]
    words: ClassVar[str]
    corrected: ClassVar[bool] = True

    @property
    def mirrored(self) -> "ThresholdRule":
        """The rule for negated scores."""
        return self

    @abstractmethod
    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Limit:
        """The limit that is proved with error alpha, and the threshold and the scores behind it."""


@dataclass(frozen=True)
class FixedThreshold(ThresholdRule):
    """One threshold that was fixed before the audit.

    Attributes:
        threshold: scores above it indicate the record.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(ClopperPearson(rule=FixedThreshold(1.5))(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.98
    """

    threshold: float
    name: ClassVar[str] = "fixed"
    words: ClassVar[str] = "threshold fixed in advance"

    def __post_init__(self) -> None:
        checks.validate(self, "threshold", checks.interval)

    @property
    def mirrored(self) -> "FixedThreshold":
        return FixedThreshold(-self.threshold)

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Limit:
        return _best_threshold(np.array([self.threshold]), scores, statistic, delta, alpha)


@dataclass(frozen=True)
class ThresholdFromTheory(ThresholdRule):
    """The threshold with the largest bound at the expected counts, fixed before the audit.

    For standardised scores, N(b mu, 1) in a single run, and the best of K. A threshold that was
    fixed in advance gives a valid bound in any case. If the expectation is wrong, the bound is
    only smaller.

    Attributes:
        mu: expected distance of the means in standard deviations.
        repetitions: distribution of K; text is parsed.

    Example:
        >>> rule = ThresholdFromTheory(mu=1.0)
        >>> rule.mu, rule.repetitions.spec
        (1.0, 'fixed:1')
    """

    mu: float
    repetitions: Repetitions = _SINGLE_RUN
    name: ClassVar[str] = "fixed"
    words: ClassVar[str] = "threshold fixed in advance"

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))
        checks.validate(self, "mu", checks.interval, 0.0, 1e4)

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Limit:
        n0, n1 = len(scores.out_scores), len(scores.in_scores)
        best = best_expected_threshold(self.mu, self.repetitions, n0, n1, statistic, delta, alpha)
        return _best_threshold(np.array([best]), scores, statistic, delta, alpha)


@dataclass(frozen=True)
class Split(ThresholdRule):
    """The best threshold on the even trials, evaluated on the odd trials.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(ClopperPearson(rule=Split())(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.28
    """

    name: ClassVar[str] = "split"
    words: ClassVar[str] = "threshold chosen on the even trials and tested on the odd trials"

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Limit:
        even, odd = scores.even_and_odd
        # The odd trials are independent of the even ones, so the threshold counts as fixed in
        # advance.
        _, threshold, _ = _best_threshold(_grid_of_thresholds(even), even, statistic, delta, alpha)
        assert threshold is not None
        return _best_threshold(np.array([threshold]), odd, statistic, delta, alpha)


@dataclass(frozen=True)
class MaximumOverGrid(ThresholdRule):
    """The best threshold of a grid on the same trials, as in the papers: the bound is too large.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> ClopperPearson(rule=MaximumOverGrid())(scores, scores + 2.0, 1e-5).label
        'uncorrected'
    """

    name: ClassVar[str] = "max-grid"
    words: ClassVar[str] = "best threshold of a grid on the same trials, without correction"
    corrected: ClassVar[bool] = False

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Limit:
        return _best_threshold(_grid_of_thresholds(scores), scores, statistic, delta, alpha)


DEFAULT_RULE: ThresholdRule = Split()
"""The default rule of an estimator: it is valid and fast."""


@lru_cache(maxsize=256)
def best_expected_threshold(
    mu: float,
    repetitions: Repetitions,
    trials_without: int,
    trials_with: int,
    statistic: Statistic,
    delta: float,
    alpha: float,
) -> float:
    """The threshold with the largest limit at the expected counts of the best of K Gaussian draws.

    It is in standard deviations from the mean without the record, as is mu, the expected distance
    of the means. Alpha is the total error.
    """
    low, high, best = -9.0, 9.0 + mu, 0.0
    for _ in range(3):
        thresholds = np.linspace(low, high, 101)
        fp, _, fn, _ = best_of_gaussian_rates(thresholds, mu, repetitions)
        expected = ErrorCounts(fp * trials_without, fn * trials_with, trials_without, trials_with)
        peak = int(np.argmax(statistic.lower_limit(expected, delta, alpha)))
        best = float(thresholds[peak])
        low, high = thresholds[max(peak - 1, 0)], thresholds[min(peak + 1, len(thresholds) - 1)]
    return best


def best_of_gaussian_rates(
    thresholds: FloatArray, mu: float, repetitions: Repetitions
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """FP, 1 - FP, FN and 1 - FN [n] of the best of K draws at thresholds in standard deviations."""
    log_out, log_in = special.log_ndtr(thresholds), special.log_ndtr(thresholds - mu)
    return (
        repetitions.one_minus_phi_at(log_out),
        np.exp(repetitions.log_phi_at(log_out)),
        np.exp(repetitions.log_phi_at(log_in)),
        repetitions.one_minus_phi_at(log_in),
    )


def _best_threshold(
    thresholds: FloatArray, scores: Scores, statistic: Statistic, delta: float, alpha: float
) -> Limit:
    """The largest limit of several thresholds [n], each with error alpha."""
    counts = ErrorCounts(
        scores.false_positives(thresholds),
        scores.false_negatives(thresholds),
        len(scores.out_scores),
        len(scores.in_scores),
    )
    limits = statistic.lower_limit(counts, delta, alpha)
    best = int(np.argmax(limits))
    return float(limits[best]), float(thresholds[best]), scores


def _grid_of_thresholds(scores: Scores) -> FloatArray:
    """200 evenly spaced thresholds over the finite scores, as in the papers."""
    ends = [
        side[np.isfinite(side)][[0, -1]]
        for side in (scores.sorted_out, scores.sorted_in)
        if np.isfinite(side).any()
    ]
    if not ends:
        return np.zeros(1)
    # Halves avoid an overflow of the range of scores near the largest float.
    halves = np.concatenate(ends) / 2.0
    return np.asarray(2.0 * np.linspace(halves.min(), halves.max(), _GRID_SIZE))


def upper_limit(count: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper-Pearson upper limit of a rate, exact for one threshold, rounded up.

    Expected counts [n] may be fractions, and alpha is at most 0.5. Without trials the limit is 1.
    Source: Clopper & Pearson 1934; statsmodels' `proportion_confint` computes the same quantile.
    """
    count = np.asarray(count)
    if count.dtype.kind == "i" and 0 < trials <= _MAX_TABLE_TRIALS:
        return _table_of_limits(trials, alpha)[count]
    return _clopper_pearson(count, trials, alpha)


@lru_cache(maxsize=256)
def _table_of_limits(trials: int, alpha: float) -> FloatArray:
    return _clopper_pearson(np.arange(trials + 1), trials, alpha)


def _clopper_pearson(count: ArrayLike, trials: int, alpha: float) -> FloatArray:
    count = np.asarray(count, dtype=np.float64)
    if trials == 0:
        return np.ones_like(count)
    tiny = (count > 0) & (count < _MIN_POSITIVE_COUNT)
    count = np.where(tiny, _MIN_POSITIVE_COUNT, count)
    below = count < trials
    shape, other_shape = count[below] + 1.0, trials - count[below]
    quantile = special.betainccinv(shape, other_shape, alpha) * (1.0 + QUANTILE_ACCURACY)
    # For more than 1e5 trials, the relative error of the quantile reaches 1e-10. Its tail is
    # accurate, and -log(tail) is a convex function of the limit that starts at 0.
    tail = special.betaincc(shape, other_shape, np.minimum(quantile, 1.0))
    short = tail > alpha
    quantile[short] *= np.log(alpha) / np.log(tail[short]) * (1.0 + QUANTILE_ACCURACY)
    limit = np.ones_like(count)
    limit[below] = np.minimum(quantile, 1.0)
    return limit
