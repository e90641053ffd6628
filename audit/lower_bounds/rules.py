"""Where to put the threshold, and what looking for it costs.

A rule takes the scores and a statistic and settles on a threshold, with the lower limit of the
statistic's parameter that is proved there. With every rule but `MaximumOverGrid` the limit holds
with error alpha. Rules are frozen; equal ones settle on the same threshold.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit import checks
from audit import repetitions as laws
from audit.lower_bounds.rates import Limit, band_limit, band_ranks, upper_limit
from audit.lower_bounds.scores import Scores
from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]

_GRID_SIZE = 200
# Ratio of neighbouring ranks among those that Bonferroni's inequality is paid for.
_RANK_RATIO = 2.0
_ONE_RUN = Fixed(1)


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """Wrong answers at some thresholds.

    Attributes:
        false_positives: trials without the record above each threshold, [n].
        false_negatives: trials with the record not above each, [n].
        trials_without: number of trials without the record.
        trials_with: number of trials with it.
    """

    false_positives: Array | NDArray[np.int64]
    false_negatives: Array | NDArray[np.int64]
    trials_without: int
    trials_with: int


class Statistic(ABC):
    """A reading of error counts: the lower limit of one parameter, epsilon itself or mu.

    Frozen and hashable: what is computed for one is kept.
    """

    @property
    def for_search(self) -> "Statistic":
        """The statistic to search thresholds by: the same one, unless it is slow."""
        return self

    @abstractmethod
    def lower_limit(self, counts: ErrorCounts, delta: float, alpha: float) -> Array:
        """The lower limit [n] that each threshold on its own proves with error alpha."""


class TradeOffStatistic(Statistic):
    """A statistic that goes by upper limits of the two error rates: a family of trade-off curves.

    A curve says which pairs of error rates a mechanism with a given parameter can have.
    """

    @abstractmethod
    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        """The parameter that each pair of upper limits [n] proves."""

    def lower_limit(
        self, counts: ErrorCounts, delta: float, alpha: float, limit: Limit = upper_limit
    ) -> Array:
        """The parameter proved by both limits at alpha / 2 each."""
        return self.from_limits(
            limit(counts.false_positives, counts.trials_without, alpha / 2.0),
            limit(counts.false_negatives, counts.trials_with, alpha / 2.0),
            delta,
        )


@dataclass(frozen=True)
class Choice:
    """What a rule settled on.

    Attributes:
        threshold: on the scale of the scores; NaN if there is none.
        limit: what is proved there, the lower limit of the statistic's parameter.
        false_positives: counted at the threshold.
        false_negatives: counted at the threshold.
        trials_without: trials without the record that were counted.
        trials_with: trials with the record that were counted.
    """

    threshold: float
    limit: float
    false_positives: int | None
    false_negatives: int | None
    trials_without: int
    trials_with: int


class ThresholdRule(ABC):
    """A way to choose the threshold.

    Attributes:
        name: in keys of bounds.
        words: what it does, in one line.
        corrected: whether its price is paid.
        trade_off_only: whether it needs limits of the error rates, which only a
            `TradeOffStatistic` goes by.

    Example:
        >>> from audit.lower_bounds import Split
        >>> isinstance(Split(), ThresholdRule)
        True
    """

    name: ClassVar[str]
    words: ClassVar[str]
    corrected: ClassVar[bool] = True
    trade_off_only: ClassVar[bool] = False

    @property
    def mirrored(self) -> "ThresholdRule":
        """The rule for the game with all scores negated."""
        return self

    @abstractmethod
    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        """The threshold, and what is proved there with error alpha."""


def count_errors(scores: Scores, thresholds: Array) -> ErrorCounts:
    """The wrong answers at every threshold [n]."""
    return ErrorCounts(
        scores.false_positives(thresholds),
        scores.false_negatives(thresholds),
        len(scores.without),
        len(scores.with_record),
    )


def _largest(thresholds: Array, limits: Array, counts: ErrorCounts) -> Choice:
    best = int(np.argmax(limits))
    return Choice(
        float(thresholds[best]),
        float(limits[best]),
        int(counts.false_positives[best]),
        int(counts.false_negatives[best]),
        counts.trials_without,
        counts.trials_with,
    )


def at_threshold(
    scores: Scores, threshold: float, statistic: Statistic, delta: float, alpha: float
) -> Choice:
    """What one threshold proves that these scores had no part in choosing."""
    at = np.array([threshold])
    counts = count_errors(scores, at)
    return _largest(at, statistic.lower_limit(counts, delta, alpha), counts)


@dataclass(frozen=True)
class FixedThreshold(ThresholdRule):
    """One threshold chosen before the game.

    Attributes:
        threshold: scores above it speak for the record.

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
        object.__setattr__(self, "threshold", checks.interval("threshold", self.threshold))

    @property
    def mirrored(self) -> "FixedThreshold":
        return FixedThreshold(-self.threshold)

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        return at_threshold(scores, self.threshold, statistic, delta, alpha)


@dataclass(frozen=True)
class ThresholdFromTheory(ThresholdRule):
    """The threshold that proves most when counts come out as theory expects, fixed in advance.

    For standardised scores, N(b mu, 1) in one run, best of K. Any threshold fixed in advance gives
    a valid bound; how much it proves depends on whether the expectation was right.

    Attributes:
        mu: expected distance of the means in standard deviations.
        repetitions: law of K, also as text.

    Example:
        >>> rule = ThresholdFromTheory(mu=1.0)
        >>> rule.mu, rule.repetitions.spec
        (1.0, 'fixed:1')
    """

    mu: float
    repetitions: Repetitions = _ONE_RUN
    name: ClassVar[str] = "fixed"
    words: ClassVar[str] = "threshold fixed in advance"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", checks.interval("mu", self.mu, 0.0, 1e4))
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        n0, n1 = len(scores.without), len(scores.with_record)
        at = best_expected_threshold(self.mu, self.repetitions, n0, n1, statistic, delta, alpha)
        return at_threshold(scores, at, statistic, delta, alpha)


@dataclass(frozen=True)
class Split(ThresholdRule):
    """The best threshold of the even trials, judged by the odd ones.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(ClopperPearson(rule=Split())(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.28
    """

    name: ClassVar[str] = "split"
    words: ClassVar[str] = "threshold from the even trials, judged by the odd ones"

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        return _judged(*scores.even_and_odd, statistic, delta, alpha)


@dataclass(frozen=True)
class MultiSplit(ThresholdRule):
    """The median of many random splits, each with error alpha / 2 (Meinshausen et al. 2009).

    On average at most alpha / 2 of the splits' bounds are too large, so by Markov's inequality
    half of them are with probability at most alpha. The splits are the same ones every time.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(ClopperPearson(rule=MultiSplit())(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.09
    """

    name: ClassVar[str] = "multi-split"
    words: ClassVar[str] = "median of random splits at half the error, Meinshausen et al. 2009"

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        found = [
            _judged(search, judge, statistic, delta, alpha / 2.0)
            for search, judge in scores.random_halves
        ]
        return sorted(found, key=lambda choice: choice.limit)[len(found) // 2]


@dataclass(frozen=True)
class MaximumOverGrid(ThresholdRule):
    """The best of a grid, as if it had been the only one, as the papers do: too large.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> ClopperPearson(rule=MaximumOverGrid())(scores, scores + 2.0, 1e-5).label  # the papers'
        'uncorrected'
    """

    name: ClassVar[str] = "max-grid"
    words: ClassVar[str] = "best of a grid on the same trials, not paid for"
    corrected: ClassVar[bool] = False

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        at = grid(scores)
        counts = count_errors(scores, at)
        return _largest(at, statistic.lower_limit(counts, delta, alpha), counts)


@dataclass(frozen=True)
class Bonferroni(ThresholdRule):
    """The best of few thresholds, each paid for.

    The thresholds are scores without the record, of ranks fixed in advance. At the j-th smallest,
    the limit of the false positives is that of its order statistic, Beta(j, n0 - j + 1), which is
    Clopper-Pearson's for n0 - j events; and given the scores without the record, the false
    negatives are binomial. So both limits are exact, ties making them only safer.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(ClopperPearson(rule=Bonferroni())(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.42
    """

    name: ClassVar[str] = "bonferroni"
    words: ClassVar[str] = "thresholds at ranks fixed in advance, each paid for"
    trade_off_only: ClassVar[bool] = True

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        n0, n1 = len(scores.without), len(scores.with_record)
        if n0 == 0:
            return Choice(math.nan, -math.inf, 0, 0, n0, n1)
        ranks = _ranks(n0)
        at = scores.sorted_without[ranks - 1]
        counts = ErrorCounts(n0 - ranks, scores.false_negatives(at), n0, n1)
        return _largest(at, statistic.lower_limit(counts, delta, alpha / len(ranks)), counts)


@dataclass(frozen=True)
class Band(ThresholdRule):
    """The best of all thresholds, by limits that hold at all of them at once.

    The limits change at few ranks only: at a score without the record or just below one with it.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import ClopperPearson
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> round(ClopperPearson(rule=Band())(scores, scores + 2.0, 1e-5).epsilon, 2)
        3.36
    """

    name: ClassVar[str] = "band"
    words: ClassVar[str] = "all thresholds, by a simultaneous band after Berk & Jones 1979"
    trade_off_only: ClassVar[bool] = True

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        assert isinstance(statistic, TradeOffStatistic)
        n0, n1 = len(scores.without), len(scores.with_record)
        if n0 == 0 or n1 == 0:
            return Choice(math.nan, -math.inf, 0, 0, n0, n1)
        below = np.nextafter(scores.sorted_with[n1 - band_ranks(n1)], -np.inf)
        at = np.concatenate([scores.sorted_without[band_ranks(n0) - 1], below])
        counts = count_errors(scores, at)
        return _largest(at, statistic.lower_limit(counts, delta, alpha, limit=band_limit), counts)


DEFAULT_RULE: ThresholdRule = Split()
"""What an estimator goes by if nothing else is said: valid, and quick."""


def grid(scores: Scores) -> Array:
    """200 thresholds, evenly spaced over the finite scores, as the papers search them."""
    ends = [
        side[np.isfinite(side)][[0, -1]]
        for side in (scores.sorted_without, scores.sorted_with)
        if np.isfinite(side).any()
    ]
    if not ends:
        return np.zeros(1)
    # Halves, so that the span of scores near the largest float does not overflow.
    halves = np.concatenate(ends) / 2.0
    return np.asarray(2.0 * np.linspace(halves.min(), halves.max(), _GRID_SIZE))


@lru_cache(maxsize=64)
def _ranks(n: int) -> NDArray[np.int64]:
    """Ranks dense at both ends: 1/2, 1/4, ... of n from either."""
    steps = np.arange(int(math.log(n) / math.log(_RANK_RATIO)) + 1)
    from_end = np.rint(n / 2.0 * _RANK_RATIO**-steps).astype(np.int64)
    ranks = np.unique(np.concatenate([from_end, n - from_end, [n]]))
    return ranks[ranks > 0]


def _judged(
    search: Scores, judge: Scores, statistic: Statistic, delta: float, alpha: float
) -> Choice:
    found = MaximumOverGrid().choose(search, statistic.for_search, delta, alpha)
    return at_threshold(judge, found.threshold, statistic, delta, alpha)


def best_of_gaussian_rates(
    thresholds: Array, mu: float, repetitions: Repetitions
) -> tuple[Array, Array, Array, Array]:
    """FP, 1 - FP, FN, 1 - FN of the best of K at thresholds in standard deviations."""
    without, with_record = special.log_ndtr(thresholds), special.log_ndtr(thresholds - mu)
    return (
        repetitions.one_minus_phi_at(without),
        np.exp(repetitions.log_phi_at(without)),
        np.exp(repetitions.log_phi_at(with_record)),
        repetitions.one_minus_phi_at(with_record),
    )


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
    """The threshold that proves most when the best of K draws come out as expected.

    Args:
        mu: expected distance in standard deviations.
        repetitions: law of K.
        trials_without: planned trials without the record.
        trials_with: planned trials with it.
        statistic: how the counts will be read.
        delta: in [0, 1).
        alpha: total error.

    Returns:
        Threshold in standard deviations from the mean without the record.
    """
    low, high, best = -9.0, 9.0 + mu, 0.0
    for _ in range(3):
        at = np.linspace(low, high, 101)
        fp, _, fn, _ = best_of_gaussian_rates(at, mu, repetitions)
        expected = ErrorCounts(fp * trials_without, fn * trials_with, trials_without, trials_with)
        peak = int(np.argmax(statistic.for_search.lower_limit(expected, delta, alpha)))
        best = float(at[peak])
        low, high = at[max(peak - 1, 0)], at[min(peak + 1, len(at) - 1)]
    return best
