"""A scan of single runs at all thresholds, lifted to a tuning by the distribution of K.

Suppose that c scores with the record ("ones") are not above the j-th smallest score without it
("zero"). A small c is evidence, expressed as the epsilon at which nominal quantiles of both order
statistics violate privacy of the tuning. The statistic is the largest evidence over a grid of ranks
j, with c + 1 rounded up to a grid as well. For any score it is at most that of a known audit
(proposition 14 of docs/theory.md), whose distribution is simulated (`monte_carlo`). If the error is
too small for the number of simulations, each rank is tested with its own share of the error.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds import monte_carlo
from audit.lower_bounds.estimator import Estimator, LowerBound
from audit.lower_bounds.scores import Scores
from audit.numerics import QUANTILE_ACCURACY, FloatArray, IntArray, safe_log
from audit.protocols import RandomSearch
from audit.repetitions import Repetitions, parse_repetitions

# These constants affect how much the bound proves, but not its validity. Neighbouring ranks differ
# by about half a standard deviation of a count, and at least by this share of the distance to the
# nearer end.
_DEVIATIONS_PER_STEP, _MIN_STEP = 0.5, 0.05
_NOMINAL_ERROR = 0.3


@dataclass(frozen=True)
class PooledScan(Estimator):
    """All runs of a tuning at all thresholds, without an assumption on the base mechanism.

    The protocol must select the largest score, and the released output must determine this score.

    Attributes:
        repetitions: distribution of K; text is parsed.

    Example:
        >>> import numpy as np
        >>> from audit.repetitions import Fixed
        >>> runs = np.random.default_rng(0).normal(size=(2, 1000))
        >>> found = PooledScan(Fixed(2))(runs[0], runs[1] + 2.0, 1e-5)
        >>> found.epsilon > 1.0
        True
    """

    repetitions: Repetitions
    name: ClassVar[str] = "pooled"

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))

    rule_name: ClassVar[str] = "scan"

    claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "this project",
        protocols=(RandomSearch,),
        assumptions=(Assumption.INDEPENDENT_TRIALS, Assumption.RELEASED_SCORE),
        about=(
            "best of all ranks of a grid, corrected by "
            "their joint distribution in simulated audits",
        ),
    )

    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        """The lower bound on the epsilon of the tuning, with error alpha."""
        zeros, ones = scores.sorted_out, scores.sorted_in
        n0, n1 = len(zeros), len(ones)
        if n0 == 0 or n1 == 0:
            return self.result(0.0, scores, alpha, errors=(0, 0))
        ranks, next_ones = _ranks(n0), _ranks(n1)
        counts = np.searchsorted(ones, zeros[ranks - 1], side="right")
        # After the last one there is no next one, and so no evidence.
        at = np.searchsorted(next_ones, counts + 1)
        seen = at < len(next_ones)
        if not seen.any():
            return self.result(0.0, scores, alpha, errors=(0, 0))
        allowed = monte_carlo.max_exceedances(alpha)
        # Without simulations, Bonferroni's inequality over the ranks and both order statistics of
        # each.
        level = _NOMINAL_ERROR * alpha if allowed else 0.5 * alpha / len(ranks)
        evidence = _evidence(self.repetitions, n0, n1, delta, level)
        best_evidence = np.where(
            seen, evidence[np.arange(len(ranks)), np.where(seen, at, 0)], -np.inf
        )
        best = int(np.argmax(best_evidence))
        epsilon = float(best_evidence[best])
        if allowed:
            # Number of ranks of ones, in ascending order, with evidence at least as strong.
            until = np.count_nonzero(evidence >= epsilon, axis=1)
            crossed = _crossing_epsilons(self.repetitions, n0, n1, delta, until)
            # Below this epsilon fewer than `allowed` simulated audits reach the evidence.
            epsilon = float(np.partition(crossed, allowed - 1)[allowed - 1])
        epsilon = max(epsilon * (1.0 - QUANTILE_ACCURACY), 0.0)
        rank = int(ranks[best])
        errors = n0 - rank, int(counts[best])
        return self.result(epsilon, scores, alpha, float(zeros[rank - 1]), errors)


def _evidence(repetitions: Repetitions, n0: int, n1: int, delta: float, level: float) -> FloatArray:
    """The evidence [m0, m1] of each pair of ranks, as an epsilon; decreasing along the ones."""
    zeros, ones = _ranks(n0).astype(np.float64), _ranks(n1).astype(np.float64)
    # Lower quantiles of the zeros, upper quantiles of the ones, each by its smaller tail.
    v = _lifted(
        repetitions,
        special.betaincinv(zeros, n0 + 1.0 - zeros, level)[:, None],
        special.betainccinv(n0 + 1.0 - zeros, zeros, level)[:, None],
    )
    u = _lifted(
        repetitions,
        special.betainccinv(ones, n1 + 1.0 - ones, level),
        special.betaincinv(n1 + 1.0 - ones, ones, level),
    )
    ratios = _ratios(*v, *u, delta)
    # As this falls along the ones, evidence above an epsilon is an event of one fixed rank of ones,
    # whichever rank was observed.
    return safe_log(np.minimum.accumulate(np.maximum(ratios, 0.0), axis=1))


def _crossing_epsilons(
    repetitions: Repetitions, n0: int, n1: int, delta: float, until: IntArray
) -> FloatArray:
    """The epsilon [B] above which each simulated audit has evidence at least as strong.

    `until`, [m0], is for each rank of zeros the number of ranks of ones with such evidence.
    """
    best_zero, beaten_zero = _simulated_order_statistics(n0, repetitions, 0)
    best_one, beaten_one = _simulated_order_statistics(n1, repetitions, 1)
    smallest_ratio = np.full(monte_carlo.SIMULATIONS, np.inf)
    # One pair at a time: the arrays stay in the processor's cache.
    for row in np.flatnonzero(until > 0):
        zero, with_record = (best_zero[row], beaten_zero[row]), until[row] - 1
        np.minimum(
            smallest_ratio,
            _ratios(*zero, best_one[with_record], beaten_one[with_record], delta),
            out=smallest_ratio,
        )
    return safe_log(np.maximum(smallest_ratio, 0.0))


def _ratios(
    v: FloatArray, v_rest: FloatArray, u: FloatArray, u_rest: FloatArray, delta: float
) -> FloatArray:
    """The e^epsilon of a pair from phi(V), 1 - phi(V), phi(U) and 1 - phi(U)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (v - delta) / u, (u_rest - delta) / v_rest
    return np.asarray(np.fmax(low, high))


def _lifted(
    repetitions: Repetitions, below: ArrayLike, above: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """phi and 1 - phi of probabilities given by both tails, accurate in both tails."""
    return repetitions.phi(below), repetitions.phi_survival(above)


@lru_cache(maxsize=8)
def _ranks(n: int) -> IntArray:
    """The tested ranks [m], ascending from 1 to n."""
    from_end = [1.0]
    while from_end[-1] < n / 2.0:
        spread = from_end[-1] ** 0.5
        step = max(_DEVIATIONS_PER_STEP * spread, _MIN_STEP * from_end[-1], 1.0)
        from_end.append(from_end[-1] + step)
    low = np.rint([rank for rank in from_end if rank <= n / 2.0] or [1.0])
    return np.unique(np.concatenate([low, n + 1.0 - low])).astype(np.int64)


@lru_cache(maxsize=4)
def _simulated_order_statistics(
    n: int, repetitions: Repetitions, side: int
) -> tuple[FloatArray, FloatArray]:
    """phi and 1 - phi of the uniform order statistics at the tested ranks, [m, B] each."""
    rng = np.random.default_rng(np.random.SeedSequence([n, side]))
    ranks = _ranks(n)
    # Sums of exponential gaps from both ends are accurate in both tails.
    gaps = np.diff(ranks, prepend=0, append=n + 1).astype(np.float64)
    steps = rng.standard_gamma(gaps[:, None], (len(gaps), monte_carlo.SIMULATIONS))
    below = np.cumsum(steps, axis=0)[:-1]
    above = np.cumsum(steps[::-1], axis=0)[::-1][1:]
    total = below[0] + above[0]
    return _lifted(repetitions, below / total, above / total)
