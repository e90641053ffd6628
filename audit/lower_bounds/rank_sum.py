"""The rank-sum statistic: all pairs at once, no threshold, nothing to be known in advance.

U counts the pairs of a score without and one with the record in the right order, the one with the
record strictly above (Mann & Whitney 1947). The scores are those of single runs, or of the best of
K, and F and G their distribution functions without and with the record. If one run is dominated by
N(0, 1) against N(mu, 1), no threshold has error rates below that pair's: for scores of single runs

    G(t) >= Phi(Phi^-1(F(t)) - mu) =: g(F(t)) for every t,

and for the best of K, where it is the score that is ordered by, the same with phi(Phi) for Phi. Let
V_i and W_j be independent uniforms; the scores are F^-1(V_i) and G^-1(W_j). Because G >= g(F),
G^-1(w) <= F^-1(g^-1(w)); so if G^-1(W_j) > F^-1(V_i), then g^-1(W_j) > V_i. The right side is the
right order of the pair in the game of the Gaussian base itself, where the scores with the record
have quantiles g^-1(W_j). Hence U is at most what U is there, draw by draw and *whatever the score*,
ties counting as wrong: P[U >= u] <= P_mu[U >= u]. The right side grows with mu, and the largest mu
at which it is at most alpha is a lower limit of mu with error alpha.

The law of U at mu is had from reference games with common random numbers (`reference_games`), in
each of which U grows with mu. They are kept as counts in cells of the Gaussian scale. Pairs within
a cell count one half, which moves mu by less than is taken off at the end; with few pairs they
count as right, which is safe.

Where alpha is too small for so many reference games, Hoeffding's inequality for U-statistics takes
their place: U / (n0 n1) is an average of means of m = min(n0, n1) independent pairs, so that
P_mu[U >= u] <= exp(-m KL(u / (n0 n1), P_mu[right order])) (Hoeffding 1963, section 5).
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit import numerics
from audit.arrays import IntArray
from audit.lower_bounds import reference_games
from audit.lower_bounds.counting import GaussianFamily
from audit.lower_bounds.rules import Choice, Statistic, ThresholdRule
from audit.lower_bounds.scores import Scores
from audit.repetitions import Repetitions

Array = NDArray[np.float64]

# Width of a cell, with few scores and with many, and the ends of the scale: beyond is under 1e-11.
# A wide one moves mu by 4e-4 max(mu, 1), a twentieth of what chance does to mu with many scores.
_WIDE, _NARROW, _MANY = 0.05, 0.02, 50_000
_LOWEST, _HIGHEST = -7.0, 9.0
# A pair within a cell of width h is right with probability 1/2 + O(h), and mu is interpolated
# between cells: the error of mu is at most h^2 (mu / 12 + 1 / 20).
_CELL_ALLOWANCE = 0.15
# With fewer pairs, one of them counts.
_FEW_PAIRS = 2_500


@dataclass(frozen=True)
class RankSum(ThresholdRule):
    """No threshold but the number of pairs in the right order, for curves of Gaussian bases.

    Its limit of mu holds for every score that is a postprocessing of a Gaussian base, for the best
    of K if that score orders the runs; what mu means for epsilon is the curve's to say.

    Example:
        >>> import numpy as np
        >>> from audit.lower_bounds import GaussianCurve
        >>> noise = np.random.default_rng(0).normal(size=(2, 500))
        >>> found = GaussianCurve(rule=RankSum())(noise[0], noise[1] + 0.5, 1e-5)
        >>> round(found.epsilon, 2)  # of 1.99
        1.36
    """

    name: ClassVar[str] = "rank-sum"
    words: ClassVar[str] = "all pairs in the right order, by reference games"

    def choose(self, scores: Scores, statistic: Statistic, delta: float, alpha: float) -> Choice:
        if not isinstance(statistic, GaussianFamily):
            raise ValueError(f"rule must have a threshold for {statistic!r}, got {self!r}")
        n0, n1 = len(scores.without), len(scores.with_record)
        mu = -math.inf
        if n0 > 0 and n1 > 0:
            mu = mu_lower_limit(pairs_in_order(scores), n0, n1, statistic.scored, alpha)
        return Choice(math.nan, mu, None, None, n0, n1)


def pairs_in_order(scores: Scores) -> int:
    """U, the number of pairs with the score with the record strictly above the one without."""
    below = np.searchsorted(scores.sorted_without, scores.sorted_with, side="left")
    return int(below.sum())


def mu_lower_limit(pairs: int, n0: int, n1: int, repetitions: Repetitions, alpha: float) -> float:
    """The largest mu at which so many pairs in the right order have probability at most alpha.

    Args:
        pairs: U.
        n0: scores without the record.
        n1: scores with it.
        repetitions: law of K behind one score.
        alpha: error.

    Returns:
        mu, rounded down; -inf where even mu = 0 is not refuted.
    """
    reaching = reference_games.allowed(alpha)
    games = _reference_games(n0, n1, repetitions)
    if reaching == 0:
        return games.limit_by_hoeffding(pairs, alpha)
    return games.limit(pairs, reaching)


@lru_cache(maxsize=4)
def _reference_games(n0: int, n1: int, repetitions: Repetitions) -> "_ReferenceGames":
    return _ReferenceGames(n0, n1, repetitions)


class _ReferenceGames:
    """Games of a Gaussian base, the best of K: both sides of each at mu = 0, counted in cells.

    To have the game at mu, the scores with the record are moved by mu.
    """

    def __init__(self, n0: int, n1: int, repetitions: Repetitions) -> None:
        self.fewer, self.without = min(n0, n1), n0
        self.cell = _NARROW if self.fewer >= _MANY else _WIDE
        edges = np.arange(_LOWEST, _HIGHEST + 0.5 * self.cell, self.cell)
        log_below = special.log_ndtr(edges[1:-1])
        # Without a run a score is below all others: a cell of its own, and no pair within it.
        none = repetitions.probability_of_none
        below = np.concatenate([[0.0, none], np.exp(repetitions.log_phi_at(log_below)), [1.0]])
        above = np.concatenate([[1.0, 1.0 - none], repetitions.one_minus_phi_at(log_below), [0.0]])
        masses = np.maximum(np.where(above[1:] < 0.5, -np.diff(above), np.diff(below)), 0.0)
        self.masses = masses / masses.sum()
        self.pairs = n0 * n1
        self.tie = 1.0 if self.pairs < _FEW_PAIRS else 0.5
        self.known: dict[tuple[int, int], float] = {}

    @cached_property
    def _counts(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scores without the record below each cell, and those with it in the cell, [B, cells]."""
        rng = np.random.default_rng([self.without, self.pairs])
        zeros = rng.multinomial(self.without, self.masses, size=reference_games.GAMES)
        below = np.cumsum(zeros, axis=1) - (1.0 - self.tie) * zeros
        ones = rng.multinomial(self.pairs // self.without, self.masses, size=reference_games.GAMES)
        return below[:, 1:].astype(np.float32), ones[:, 1:].astype(np.float32)

    def _reached(self, shift: int, allowed: int) -> float:
        """The `allowed`-th largest U of the games at mu = shift * cell."""
        if (shift, allowed) not in self.known:
            below, ones = self._counts
            stay = ones.shape[1] - shift
            right = np.einsum("ij,ij->i", below[:, shift:], ones[:, :stay])
            right = right + self.without * ones[:, stay:].sum(axis=1, dtype=np.float64)
            self.known[shift, allowed] = float(np.partition(right, -allowed)[-allowed])
        return self.known[shift, allowed]

    def limit(self, pairs: int, allowed: int) -> float:
        """The largest mu at which fewer than `allowed` reference games have so many pairs."""
        # Between two whole numbers of pairs lie only pairs within cells.
        pairs_at_least = pairs - 0.5
        if self._reached(0, allowed) >= pairs_at_least:
            return -math.inf

        def refuted(shift: IntArray) -> bool:
            return self._reached(int(shift), allowed) < pairs_at_least

        low = int(numerics.last_integer(refuted, 0, len(self.masses) - 2))
        at_low, at_high = self._reached(low, allowed), self._reached(low + 1, allowed)
        part = (pairs_at_least - at_low) / max(at_high - at_low, 1e-300)
        mu = self.cell * (low + min(part, 1.0))
        return mu - _CELL_ALLOWANCE * self.cell**2 * max(mu, 1.0)

    def limit_by_hoeffding(self, pairs: int, alpha: float) -> float:
        """The same by Hoeffding's inequality, to a cell and rounded down."""
        share, room = pairs / self.pairs, -math.log(alpha) / self.fewer
        masses = self.masses[1:]
        beyond = np.cumsum(self.masses[::-1])[::-1][1:]  # with the record, in this cell or above

        def refuted(shifts: IntArray) -> bool:
            shift = int(shifts)
            # Pairs within a cell count as right.
            right = float(self.masses[0] * (1.0 - self.masses[0]))
            right += float(masses[:shift].sum() * beyond[0])
            right += float(masses[shift:] @ beyond[: len(masses) - shift])
            wrong = max(1.0 - right, 1e-300)
            divergence = special.rel_entr(share, right) + special.rel_entr(1.0 - share, wrong)
            return bool(share > right and divergence >= room)

        shift = int(numerics.last_integer(refuted, -1, len(masses)))
        return shift * self.cell if shift >= 0 else -math.inf
