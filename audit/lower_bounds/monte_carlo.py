"""Bounds whose evidence is compared with simulated audits: the rank sum, and a scan of single runs.

Simulate B audits under the null hypothesis. Then p = (1 + number of simulated audits that reach the
observed evidence) / (B + 1) is a p-value, because under the null hypothesis the observed audit is
one more draw (Dwass 1957; Barnard 1963). The simulated audits are the same in every call, and these
particular draws could be favourable by chance. So fewer than alpha (B + 1) audits may reach the
evidence: the largest number whose error is at most alpha for 99 of 100 sets of simulated audits.

The rank sum U uses all pairs of scores and needs no threshold: it counts the pairs in which the
score with the record is strictly larger (Mann & Whitney 1947). For any score it is at most its
value in the audit of the Gaussian base itself, draw by draw (proposition 13 of docs/theory.md). The
largest mu at which P_mu[U >= u] is at most alpha is a lower limit of mu. The distribution of U is
simulated with common random numbers, so that U increases with mu in each simulated audit. Scores
are stored as counts in cells of the Gaussian scale. If alpha is too small for this number of
simulations, Hoeffding's inequality for U-statistics replaces them: U / (n0 n1) is an average of
means of m = min(n0, n1) independent pairs, so that
P_mu[U >= u] <= exp(-m KL(u / (n0 n1), P_mu[larger])) (Hoeffding 1963, section 5).

The pooled scan tests single runs at all thresholds, and the distribution of K lifts its result to a
tuning. Suppose that c scores with the record ("ones") are not above the j-th smallest score without
it ("zero"). A small c is evidence, expressed as the epsilon at which nominal quantiles of both
order statistics violate privacy of the tuning. The statistic is the largest evidence over a grid of
ranks j, with c + 1 rounded up to a grid as well. For any score it is at most that of a known audit
(proposition 14 of docs/theory.md), whose distribution is simulated. If the error is too small for
the number of simulations, each rank is tested with its own share of the error.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks, numerics
from audit.claims import Assumption, Claim, Kind
from audit.errors import InvalidInput
from audit.lower_bounds.estimator import Estimator, LowerBound
from audit.lower_bounds.families import GaussianFamily
from audit.lower_bounds.scores import Limit, Scores, Statistic, ThresholdRule
from audit.numerics import QUANTILE_ACCURACY, FloatArray, IntArray, safe_log
from audit.protocols import RandomSearch
from audit.repetitions import Repetitions, parse_repetitions

SIMULATIONS = 4999
"""B, the number of simulated audits."""

# Share of the sets of simulated audits for which the error must be at most alpha.
_CONFIDENCE_OF_SIMULATIONS = 0.99

# Width of a cell for few and for many scores, and the ends of the scale. P[outside] is below 1e-11.
# A wide cell changes mu by 4e-4 max(mu, 1), a twentieth of its standard deviation at 50,000 scores.
_WIDE_CELL, _NARROW_CELL, _MIN_SCORES_FOR_NARROW = 0.05, 0.02, 50_000
_LOWEST_CELL, _HIGHEST_CELL = -7.0, 9.0
# A pair within a cell of width h has its larger score with the record with probability 1/2 + O(h),
# and mu is interpolated between cells: the error of mu is at most h^2 (mu / 12 + 1 / 20).
_CELL_ALLOWANCE = 0.15
# With fewer pairs a single pair matters, so pairs within a cell count as one.
_MIN_PAIRS_FOR_HALVES = 2_500

# These constants affect how much the bound proves, but not its validity. Neighbouring ranks differ
# by about half a standard deviation of a count, and at least by this share of the distance to the
# nearer end.
_DEVIATIONS_PER_STEP, _MIN_STEP = 0.5, 0.05
_NOMINAL_ERROR_OF_SCAN = 0.3


@lru_cache(maxsize=256)
def max_exceedances(alpha: float) -> int:
    """Number of audits, with the observed one, that may reach the evidence; 0 if alpha is tiny."""
    largest_count = min(math.floor(alpha * (SIMULATIONS + 1)), SIMULATIONS)
    k = np.arange(1.0, largest_count + 1.0)
    # Given the simulated audits, the error of allowing k of them is a draw of Beta(k, B + 1 - k).
    allowed = np.flatnonzero(
        special.betainc(k, SIMULATIONS + 1.0 - k, alpha) >= _CONFIDENCE_OF_SIMULATIONS
    )
    return int(allowed[-1]) + 1 if len(allowed) else 0


@dataclass(frozen=True)
class RankSum(ThresholdRule):
    """The number of concordant pairs instead of a threshold, for curves of Gaussian bases.

    The limit of mu holds for every score that is a postprocessing of a Gaussian base, and for the
    best of K if the same score selects the best run. The curve converts mu to epsilon.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import GaussianCurve
        >>> noise = np.random.default_rng(0).normal(size=(2, 500))
        >>> found = GaussianCurve(rule=RankSum())(noise[0], noise[1] + 0.5, 1e-5)
        >>> round(found.epsilon, 2)  # true value 1.99
        1.36
    """

    name: ClassVar[str] = "rank-sum"
    words: ClassVar[str] = "number of concordant pairs, compared with simulated audits"

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Limit:
        if not isinstance(statistic, GaussianFamily):
            raise InvalidInput(f"rule must have a threshold for {statistic!r}, got {self!r}")
        n0, n1 = len(scores.out_scores), len(scores.in_scores)
        mu = -math.inf
        if n0 > 0 and n1 > 0:
            mu = mu_lower_limit(
                concordant_pairs(scores), n0, n1, statistic.score_repetitions, alpha
            )
        return mu, None, scores


def concordant_pairs(scores: Scores) -> int:
    """U, the number of pairs in which the score with the record is strictly larger."""
    below = np.searchsorted(scores.sorted_out, scores.sorted_in, side="left")
    return int(below.sum())


def mu_lower_limit(pairs: int, n0: int, n1: int, repetitions: Repetitions, alpha: float) -> float:
    """The largest mu, rounded down, at which P[U >= pairs] <= alpha; -inf if there is none >= 0."""
    allowed = max_exceedances(alpha)
    simulated = _simulated_audits(n0, n1, repetitions)
    if allowed == 0:
        return simulated.limit_by_hoeffding(pairs, alpha)
    return simulated.limit(pairs, allowed)


@lru_cache(maxsize=4)
def _simulated_audits(n0: int, n1: int, repetitions: Repetitions) -> "_SimulatedAudits":
    return _SimulatedAudits(n0, n1, repetitions)


class _SimulatedAudits:
    """Simulated audits at mu = 0, as counts in cells; mu shifts the scores with the record."""

    def __init__(self, n0: int, n1: int, repetitions: Repetitions) -> None:
        self.smaller_side, self.out_trials = min(n0, n1), n0
        many = self.smaller_side >= _MIN_SCORES_FOR_NARROW
        self.cell = _NARROW_CELL if many else _WIDE_CELL
        edges = np.arange(_LOWEST_CELL, _HIGHEST_CELL + 0.5 * self.cell, self.cell)
        log_below = special.log_ndtr(edges[1:-1])
        # A trial without a run is below all scores: it has its own cell, without pairs within it.
        none = repetitions.probability_of_none
        below = np.concatenate([[0.0, none], np.exp(repetitions.log_phi_at(log_below)), [1.0]])
        above = np.concatenate([[1.0, 1.0 - none], repetitions.one_minus_phi_at(log_below), [0.0]])
        masses = np.maximum(np.where(above[1:] < 0.5, -np.diff(above), np.diff(below)), 0.0)
        self.masses = masses / masses.sum()
        self.pairs = n0 * n1
        self.tie = 1.0 if self.pairs < _MIN_PAIRS_FOR_HALVES else 0.5
        self.cached: dict[tuple[int, int], float] = {}

    @cached_property
    def _counts(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scores without the record below each cell, and with the record in it, [B, cells] each."""
        rng = np.random.default_rng([self.out_trials, self.pairs])
        zeros = rng.multinomial(self.out_trials, self.masses, size=SIMULATIONS)
        below = np.cumsum(zeros, axis=1) - (1.0 - self.tie) * zeros
        ones = rng.multinomial(self.pairs // self.out_trials, self.masses, size=SIMULATIONS)
        return below[:, 1:].astype(np.float32), ones[:, 1:].astype(np.float32)

    def _largest_pairs(self, shift: int, allowed: int) -> float:
        """The `allowed`-th largest U of the simulated audits at mu = shift * cell."""
        if (shift, allowed) not in self.cached:
            below, ones = self._counts
            stay = ones.shape[1] - shift
            pairs = np.einsum("ij,ij->i", below[:, shift:], ones[:, :stay])
            pairs = pairs + self.out_trials * ones[:, stay:].sum(axis=1, dtype=np.float64)
            self.cached[shift, allowed] = float(np.partition(pairs, -allowed)[-allowed])
        return self.cached[shift, allowed]

    def limit(self, pairs: int, allowed: int) -> float:
        """The largest mu at which fewer than `allowed` simulated audits have as many pairs."""
        # Only pairs within cells make U fractional.
        pairs_at_least = pairs - 0.5
        if self._largest_pairs(0, allowed) >= pairs_at_least:
            return -math.inf

        def refuted(shift: IntArray) -> bool:
            return self._largest_pairs(int(shift), allowed) < pairs_at_least

        # U grows with mu in each simulated audit, so every smaller mu is refuted, too.
        low = int(numerics.last_integer(refuted, 0, len(self.masses) - 2))
        at_low, at_high = self._largest_pairs(low, allowed), self._largest_pairs(low + 1, allowed)
        fraction = (pairs_at_least - at_low) / max(at_high - at_low, 1e-300)
        mu = self.cell * (low + min(fraction, 1.0))
        return mu - _CELL_ALLOWANCE * self.cell**2 * max(mu, 1.0)

    def limit_by_hoeffding(self, pairs: int, alpha: float) -> float:
        """The same by Hoeffding's inequality, rounded down to a multiple of a cell."""
        share, required = pairs / self.pairs, -math.log(alpha) / self.smaller_side
        masses = self.masses[1:]
        beyond = np.cumsum(self.masses[::-1])[::-1][1:]  # P[this cell or above]

        def refuted(shifts: IntArray) -> bool:
            shift = int(shifts)
            # Pairs within a cell count as larger.
            larger = float(self.masses[0] * (1.0 - self.masses[0]))
            larger += float(masses[:shift].sum() * beyond[0])
            larger += float(masses[shift:] @ beyond[: len(masses) - shift])
            smaller = max(1.0 - larger, 1e-300)
            divergence = special.rel_entr(share, larger) + special.rel_entr(1.0 - share, smaller)
            return bool(share > larger and divergence >= required)

        shift = int(numerics.last_integer(refuted, -1, len(masses)))
        return shift * self.cell if shift >= 0 else -math.inf


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
        allowed = max_exceedances(alpha)
        # Without simulations, Bonferroni's inequality over the ranks and both order statistics of
        # each.
        level = _NOMINAL_ERROR_OF_SCAN * alpha if allowed else 0.5 * alpha / len(ranks)
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
    smallest_ratio = np.full(SIMULATIONS, np.inf)
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
    steps = rng.standard_gamma(gaps[:, None], (len(gaps), SIMULATIONS))
    below = np.cumsum(steps, axis=0)[:-1]
    above = np.cumsum(steps[::-1], axis=0)[::-1][1:]
    total = below[0] + above[0]
    return _lifted(repetitions, below / total, above / total)
