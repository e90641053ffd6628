"""Bounds from every run of every trial, not only from the winners.

A harness that plays the game sees all K runs. Runs are independent draws of the base mechanism, so
their rates are known far better than the winners', and the law of K lifts them: the best of K runs
scores above t with probability 1 - phi(1 - s) if one run does with probability s.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, special

from audit import checks, numerics
from audit import repetitions as laws
from audit.claims import Assumption, Claim, Facts, Kind
from audit.lower_bounds.counting import GaussianFamily, epsilon_from_limits
from audit.lower_bounds.estimator import ThresholdEstimator, check_confidence, facts_as_told
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.rules import FixedThreshold, TradeOffStatistic
from audit.lower_bounds.scores import checked
from audit.numerics import QUANTILE_ACCURACY
from audit.protocols import RandomSearch
from audit.repetitions import Fixed, Repetitions

Array = NDArray[np.float64]

# Chance of a deal that needs more runs than there are, and the rounding of its sum.
_TOO_LONG, _ALLOWANCE = 1e-5, 1e-9


@dataclass(frozen=True)
class PooledClopperPearson(ThresholdEstimator, TradeOffStatistic):
    """Limits for one run, lifted to the best of K; nothing else is assumed of the base.

    The probability that the best of K scores above t is 1 - phi(1 - s), s that of one run, so exact
    limits of s are limits of it. The scores are those of single runs.

    Attributes:
        repetitions: law of K, also as text.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import Bonferroni
        >>> from audit.repetitions import Fixed
        >>> runs = np.random.default_rng(0).normal(size=(2, 1000))
        >>> found = PooledClopperPearson(Fixed(2), rule=Bonferroni())(runs[0], runs[1] + 2.0, 1e-5)
        >>> found.epsilon > 1.0
        True
    """

    repetitions: Repetitions
    name: ClassVar[str] = "pooled"

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))
        super().__post_init__()

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project; limits of Clopper & Pearson 1934",
            protocols=(RandomSearch,),
            assumptions=(Assumption.INDEPENDENT_TRIALS, Assumption.RELEASED_SCORE),
        )

    def from_limits(self, fp_upper: Array, fn_upper: Array, delta: float) -> Array:
        # FP grows with the rate of one run and so does FN = phi(FN of one run).
        fp = self.repetitions.phi_survival(fp_upper) * (1.0 + QUANTILE_ACCURACY)
        fn = self.repetitions.phi(fn_upper) * (1.0 + QUANTILE_ACCURACY)
        return epsilon_from_limits(np.minimum(fp, 1.0), fn, delta)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit * (1.0 - QUANTILE_ACCURACY), 0.0)


@dataclass(frozen=True)
class PooledGaussianCurve(GaussianFamily):
    """The Gaussian curve of one run, and the best of K runs at that mu.

    Attributes:
        repetitions: law of K, also as text.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import RankSum
        >>> from audit.repetitions import Fixed
        >>> runs = np.random.default_rng(0).normal(size=(2, 1000))
        >>> found = PooledGaussianCurve(Fixed(2), rule=RankSum())(runs[0], runs[1] + 1.0, 1e-5)
        >>> found.epsilon > 1.0
        True
    """

    repetitions: Repetitions
    name: ClassVar[str] = "pooled-gaussian-curve"

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))
        super().__post_init__()

    @property
    def scored(self) -> Repetitions:
        return Fixed(1)

    @property
    def played(self) -> Repetitions:
        return self.repetitions

    @property
    def statistic_claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project; the curve is that of Nasr et al. 2023",
            protocols=(RandomSearch,),
            assumptions=(
                Assumption.INDEPENDENT_TRIALS,
                Assumption.RELEASED_SCORE,
                Assumption.GAUSSIAN_STATISTIC,
                Assumption.MONOTONE_SCORE,
            ),
        )


def selected_rate_limit(
    scores: ArrayLike, hits: ArrayLike, repetitions: Repetitions, alpha: float
) -> float:
    """Upper limit of the chance that the run with the best of K scores is a hit, for any score.

    For a released statistic that is no function of the score. Imagine the R runs dealt at random
    into n groups of sizes K_1, K_2, ..., drawn from the law: each group's winner is a hit with the
    wanted chance p, independently. Let p_hat be the mean over all ways to deal, of the share of
    winners that are hits; a deal that needs more than R runs counts as all hits. By Jensen's
    inequality P[p_hat <= x] <= exp(-n KL(x, p)) for x < p, as for a single deal (Hoeffding 1963,
    section 5). The run of rank i wins a group of size k with probability C(i-1, k-1) / C(R, k), at
    most (k/R) ((i-1)/(R-1))^(k-1); so p_hat is at most the mean of phi'((i-1)/(R-1)) over hits, and
    the chance of too long a deal. The limit holds with any number of runs.

    How far it goes: n is a little below R / E[K], and the inequality costs what half of the groups
    would. So winners of that many trials prove as much, and the runs of trials add nothing to their
    winners if nothing is known of the score; if the released statistic is the score, "pooled" adds
    much.

    Args:
        scores: of R pooled runs, the larger the better; among equal ones hits count as better.
        hits: whether the released statistic of each run lies in the event, [R].
        repetitions: law of K.
        alpha: error of the one-sided limit.
    """
    checks.interval("alpha", alpha, 0.0, 1.0)
    score = checked("scores", scores)
    hit = np.asarray(hits, dtype=bool)
    if hit.shape != score.shape:
        raise ValueError(f"hits must have one entry per score, got {hit.shape} for {score.shape}")
    runs = len(score)
    groups, too_long = _groups(runs, repetitions)
    if groups == 0:
        return 1.0
    beaten = np.flatnonzero(hit[np.lexsort((hit, score))]) / max(runs - 1, 1)
    share = float(repetitions.phi_prime(beaten).sum()) / runs * (1.0 + 1e-9) + too_long
    if share >= 1.0:
        return 1.0
    room = -math.log(alpha) / groups

    def missed(rate: float) -> float:
        divergence = special.rel_entr(share, rate) + special.rel_entr(1.0 - share, 1.0 - rate)
        return room - float(divergence)

    # From the safe side, 1, down to where the inequality no longer refutes.
    return numerics.safe_root(missed, 1.0 - 1e-15, share, 1e-9, relative=1e-6)


@lru_cache(maxsize=64)
def _groups(runs: int, repetitions: Repetitions) -> tuple[int, float]:
    """The most groups that so many runs can be dealt into, and the chance that they are too few."""
    if runs == 0:
        return 0, 1.0
    # Sums beyond eight times the runs wrap around: their chance is far below the allowance.
    length = fft.next_fast_len(8 * runs + 8, real=True)
    law = fft.rfft(repetitions.pmf(np.arange(runs + 1)), length)

    def too_long(groups: int) -> float:
        enough = float(
            fft.irfft(numerics.product_of_powers([(law, groups)]), length)[: runs + 1].sum()
        )
        return max(1.0 - enough, 0.0) + _ALLOWANCE

    def missed(groups: float) -> float:
        return math.log(too_long(int(groups)) / _TOO_LONG)

    # A sum takes a transform of all runs; a hundredth of the groups is below what can be seen.
    most = min(max(int(2.0 * runs / max(repetitions.mean, 1e-300)), 1) + 1, 2 * runs + 2)
    groups = int(numerics.safe_root(missed, 0.0, most, 1.0, relative=0.01))
    return groups, too_long(groups) if groups else 1.0


def selected_bound(
    scores_without: ArrayLike,
    released_without: ArrayLike,
    scores_with: ArrayLike,
    released_with: ArrayLike,
    repetitions: Repetitions | str,
    threshold: float,
    delta: float = 1e-5,
    confidence: float = 0.95,
    known: Facts | None = None,
) -> LowerBound:
    """Lower bound on the epsilon of a tuning from all its runs, whatever the score.

    The event is that a run is released and its statistic is above the threshold; its chance, and
    that of the rest, is had from the ranks of all runs (`selected_rate_limit`).

    Args:
        scores_without: by which the best is chosen, of runs without the record, [r0].
        released_without: what is released of each, [r0].
        scores_with: of runs with the record, [r1].
        released_with: what is released of each, [r1].
        repetitions: law of K, also as text.
        threshold: fixed in advance, on the scale of what is released.
        delta: in [0, 1).
        confidence: in (0, 1).
        known: what is true of the game; without it what the claim needs is taken as true.

    Raises:
        ValueError: a parameter is out of its range, or a number is NaN.

    Example:
        >>> import numpy as np
        >>> released = np.random.default_rng(0).normal(size=(2, 2000)) + [[0.0], [2.0]]
        >>> score = np.random.default_rng(1).normal(size=(2, 2000))
        >>> without, added = (score[0], released[0]), (score[1], released[1])
        >>> found = selected_bound(*without, *added, "fixed:2", threshold=2.0)
        >>> found.epsilon > 1.0
        True
    """
    law = laws.parse_repetitions(repetitions)
    checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    check_confidence(confidence)
    rule = FixedThreshold(threshold)
    alpha = 1.0 - float(confidence)
    released = (
        checked("released_without", released_without),
        checked("released_with", released_with),
    )
    high = released[0] > rule.threshold
    low = released[1] <= rule.threshold
    fp = selected_rate_limit(scores_without, high, law, alpha / 2.0)
    fn = selected_rate_limit(scores_with, low, law, alpha / 2.0) + law.probability_of_none
    limits = np.array([fp]), np.array([min(fn, 1.0)])
    epsilon = float(epsilon_from_limits(*limits, delta)[0]) * (1.0 - QUANTILE_ACCURACY)
    claim = Claim(
        Kind.BOUND,
        "this project; inequality of Hoeffding 1963, section 5",
        protocols=(RandomSearch,),
        assumptions=(Assumption.INDEPENDENT_TRIALS,),
        about=("any score", rule.words),
    )
    return LowerBound(
        name="pooled-any-score",
        rule=rule.name,
        epsilon=epsilon,
        confidence=float(confidence),
        claim=claim,
        verdict=claim.validity(facts_as_told(law) if known is None else known),
        threshold=rule.threshold,
        false_positives=int(high.sum()),
        false_negatives=int(low.sum()),
        trials_without=len(high),
        trials_with=len(low),
    )
