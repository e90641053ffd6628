"""All runs at all thresholds: a scan of single runs against the null law that tuning lifts.

The scores of single runs have distribution functions F without and G with the record, and the best
of K, where the score is what is released, phi(F) and phi(G). (epsilon, delta)-DP of the tuning says

    phi(F) <= e^epsilon phi(G) + delta   and   1 - phi(G) <= e^epsilon (1 - phi(F)) + delta

at every threshold, that is F <= f(G) with one known function f, which grows with epsilon.

The statistic. When the j-th smallest score without the record has arrived ("zero") and c of those
with it have not come later ("ones"), the (c+1)-th one is beyond it. Few ones is evidence: the
epsilon that quantiles of the two order statistics, of a nominal level each, say. The largest over a
grid of ranks j counts; c + 1 is rounded up to a grid as well.

Its law. Let V and U be independent uniforms, zeros F^-1(V) and ones G^-1(U). If the k-th one is
above the j-th zero, x, then V_(j) <= F(x) <= f(G(x)) <= f(U_(k)); so *whatever the score*, ties
included, there is at most the evidence of the game with F = f, G uniform. Evidence of t or more is
the k-th one above the j-th zero for some pair (j, k) out of a known set. In that game it happens at
every epsilon above

    min over the pairs of max(log (phi(V) - delta) / phi(U),
                              log (1 - phi(U) - delta) / (1 - phi(V))),    V = V_(j), U = U_(k),

a number that each reference game has once and for all (`reference_games`); both tails are in it,
and the price is that of the joint law. The bound is the least of these numbers but for so many as
are allowed. Where the error is too small for reference games, each rank pays for itself.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import repetitions as laws
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds import reference_games
from audit.lower_bounds.estimator import Estimator, Finding
from audit.lower_bounds.scores import Scores
from audit.numerics import QUANTILE_ACCURACY
from audit.protocols import RandomSearch
from audit.repetitions import Repetitions

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Neighbouring ranks differ by about half a standard deviation of a count, and by this share of the
# distance to the nearer end at least. The nominal level steers what is proved, never whether it
# holds.
_STEP, _SMALLEST_STEP = 0.5, 0.05
_NOMINAL = 0.3


@dataclass(frozen=True)
class PooledScan(Estimator):
    """Single runs at all thresholds, lifted to the best of K; nothing is assumed of the base.

    The score, the larger the better, has to be what is released, or to decide it.

    Attributes:
        repetitions: law of K, also as text.

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
        object.__setattr__(self, "repetitions", laws.parse_repetitions(self.repetitions))

    @property
    def rule_name(self) -> str:
        return "scan"

    @property
    def claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project",
            protocols=(RandomSearch,),
            assumptions=(Assumption.INDEPENDENT_TRIALS, Assumption.RELEASED_SCORE),
            about=("all ranks of a grid, paid for by their joint law, by reference games",),
        )

    def find(self, scores: Scores, delta: float, alpha: float) -> Finding:
        """Lower bound on the epsilon of the tuning, with error alpha."""
        zeros, ones = scores.sorted_without, scores.sorted_with
        n0, n1 = len(zeros), len(ones)
        if n0 == 0 or n1 == 0:
            return Finding(0.0, None, 0, 0, n0, n1)
        law, ranks, next_ones = self.repetitions, _ranks(n0), _ranks(n1)
        counts = np.searchsorted(ones, zeros[ranks - 1], side="right")
        # Beyond the last one there is none to come: no evidence.
        at = np.searchsorted(next_ones, counts + 1)
        seen = at < len(next_ones)
        if not seen.any():
            return Finding(0.0, None, 0, 0, n0, n1)
        reaching = reference_games.allowed(alpha)
        level = _NOMINAL * alpha if reaching else 0.5 * alpha / len(ranks)
        evidence = _evidence(law, n0, n1, delta, level)
        each = np.where(seen, evidence[np.arange(len(ranks)), np.where(seen, at, 0)], -np.inf)
        best = int(np.argmax(each))
        epsilon = float(each[best])
        if reaching:
            # How many of the ranks of ones, ascending, are evidence as strong.
            until = np.count_nonzero(evidence >= epsilon, axis=1)
            crossed = _crossed_from(law, n0, n1, delta, until)
            epsilon = float(np.partition(crossed, reaching - 1)[reaching - 1])
        epsilon = max(epsilon * (1.0 - QUANTILE_ACCURACY), 0.0)
        rank = int(ranks[best])
        return Finding(epsilon, float(zeros[rank - 1]), n0 - rank, int(counts[best]), n0, n1)


def _evidence(law: Repetitions, n0: int, n1: int, delta: float, level: float) -> Array:
    """The epsilon [m0, m1] that each pair of ranks says alone, falling along the ones."""
    zeros, ones = _ranks(n0).astype(np.float64), _ranks(n1).astype(np.float64)
    # The zero's chance from below, the one's from above, each by its smaller tail.
    v = _lifted(
        law,
        special.betaincinv(zeros, n0 + 1.0 - zeros, level)[:, None],
        special.betainccinv(n0 + 1.0 - zeros, zeros, level)[:, None],
    )
    u = _lifted(
        law,
        special.betainccinv(ones, n1 + 1.0 - ones, level),
        special.betaincinv(n1 + 1.0 - ones, ones, level),
    )
    ratios = _ratios(*v, *u, delta)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.minimum.accumulate(np.maximum(ratios, 0.0), axis=1)))


def _crossed_from(law: Repetitions, n0: int, n1: int, delta: float, until: Counts) -> Array:
    """The epsilon [B] from which each reference game has evidence as strong.

    Args:
        law: of K.
        n0: scores without the record.
        n1: scores with it.
        delta: in [0, 1).
        until: how many ranks of ones, ascending, are evidence beside each rank of zeros, [m0].
    """
    best_zero, beaten_zero = _games(n0, law, 0)
    best_one, beaten_one = _games(n1, law, 1)
    least = np.full(reference_games.GAMES, np.inf)
    # Pair by pair: what is at work stays in the cache.
    for row in np.flatnonzero(until > 0):
        zero, one = (best_zero[row], beaten_zero[row]), until[row] - 1
        np.minimum(least, _ratios(*zero, best_one[one], beaten_one[one], delta), out=least)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(least, 0.0)))


def _ratios(v: Array, v_rest: Array, u: Array, u_rest: Array, delta: float) -> Array:
    """e^epsilon from phi(V), 1 - phi(V), phi(U) and 1 - phi(U)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (v - delta) / u, (u_rest - delta) / v_rest
    return np.asarray(np.fmax(low, high))


def _lifted(law: Repetitions, below: ArrayLike, above: ArrayLike) -> tuple[Array, Array]:
    """phi and 1 - phi of chances whose both tails are given, keeping the digits of either."""
    return law.phi(below), law.phi_survival(above)


@lru_cache(maxsize=8)
def _ranks(n: int) -> Counts:
    """Ranks [m] looked at, ascending from 1 to n."""
    from_end = [1.0]
    while from_end[-1] < n / 2.0:
        step = max(_STEP * from_end[-1] ** 0.5, _SMALLEST_STEP * from_end[-1], 1.0)
        from_end.append(from_end[-1] + step)
    low = np.rint([rank for rank in from_end if rank <= n / 2.0] or [1.0])
    return np.unique(np.concatenate([low, n + 1.0 - low])).astype(np.int64)


@lru_cache(maxsize=4)
def _games(n: int, law: Repetitions, side: int) -> tuple[Array, Array]:
    """phi and 1 - phi of the uniform order statistics at the ranks looked at, [m, B] each."""
    rng = np.random.default_rng(np.random.SeedSequence([n, side]))
    ranks = _ranks(n)
    # Sums of exponential gaps, from either end: both tails keep their digits.
    gaps = np.diff(ranks, prepend=0, append=n + 1).astype(np.float64)
    steps = rng.standard_gamma(gaps[:, None], (len(gaps), reference_games.GAMES))
    below = np.cumsum(steps, axis=0)[:-1]
    above = np.cumsum(steps[::-1], axis=0)[::-1][1:]
    total = below[0] + above[0]
    return _lifted(law, below / total, above / total)
