"""The rank-sum statistic: it uses all pairs of scores and needs no threshold.

U counts the pairs in which the score with the record is strictly larger (Mann & Whitney 1947). For
any score it is at most its value in the audit of the Gaussian base itself, draw by draw
(proposition 13 of docs/theory.md). The largest mu at which P_mu[U >= u] is at most alpha is a lower
limit of mu. The distribution of U is simulated with common random numbers (`monte_carlo`), so that
U increases with mu in each simulated audit. Scores are stored as counts in cells of the Gaussian
scale.

If alpha is too small for this number of simulations, Hoeffding's inequality for U-statistics
replaces them: U / (n0 n1) is an average of means of m = min(n0, n1) independent pairs, so that
P_mu[U >= u] <= exp(-m KL(u / (n0 n1), P_mu[larger])) (Hoeffding 1963, section 5).
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit import numerics
from audit.errors import InvalidInput
from audit.lower_bounds import monte_carlo
from audit.lower_bounds.gaussian_curves import GaussianFamily
from audit.lower_bounds.rules import Limit, Statistic, ThresholdRule
from audit.lower_bounds.scores import Scores
from audit.numerics import IntArray
from audit.repetitions import Repetitions

# Width of a cell for few and for many scores, and the ends of the scale. P[outside] is below 1e-11.
# A wide cell changes mu by 4e-4 max(mu, 1), a twentieth of its standard deviation at 50,000 scores.
_WIDE_CELL, _NARROW_CELL, _MIN_SCORES_FOR_NARROW = 0.05, 0.02, 50_000
_LOWEST, _HIGHEST = -7.0, 9.0
# A pair within a cell of width h has its larger score with the record with probability 1/2 + O(h),
# and mu is interpolated between cells: the error of mu is at most h^2 (mu / 12 + 1 / 20).
_CELL_ALLOWANCE = 0.15
# With fewer pairs a single pair matters, so pairs within a cell count as one.
_MIN_PAIRS_FOR_HALVES = 2_500


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
    allowed = monte_carlo.max_exceedances(alpha)
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
        edges = np.arange(_LOWEST, _HIGHEST + 0.5 * self.cell, self.cell)
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
        zeros = rng.multinomial(self.out_trials, self.masses, size=monte_carlo.SIMULATIONS)
        below = np.cumsum(zeros, axis=1) - (1.0 - self.tie) * zeros
        ones = rng.multinomial(
            self.pairs // self.out_trials, self.masses, size=monte_carlo.SIMULATIONS
        )
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
