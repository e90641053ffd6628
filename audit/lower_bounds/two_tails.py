"""Both tails at once: how few wrong answers one threshold gives, and what that proves.

The statistic is M = min over t of #{scores without the record > t} + #{scores with it <= t}. It is
small where both tails tell the sides apart, which two tests of one tail each pay for twice.

Its law. (epsilon, delta)-DP says of the distribution functions F without and G with the record that
F <= f(G), f(u) = min(e^eps u + delta, 1 - e^-eps (1 - delta - u)). Let V_i and W_j be independent
uniforms, the scores F^-1(V_i) and G^-1(W_j). At t, with u = G(t), the wrong answers are

    #{V_i > F(t)} + #{W_j <= G(t)} >= #{V_i > f(u)} + #{W_j <= u},

so M is at least its value in the game with F = f, G uniform, whatever the score. There, with
q = 1 / (1 + e^eps), a score without the record is right at every threshold with probability delta,
else beyond the corner of f with probability q; just so with the record, below the corner. Below
the corner, and beyond it, the order of the two sides is a random one given their numbers. So given
those, with s wrong answers at the corner, M <= m if one of two random walks that start there, of b
steps up and a down, or a' up and b' down, ever climbs by s - m; by reflection the first does with
probability C(a + b, b - k) / C(a + b, b) for k = s - m. What is left is a sum over binomials, and
it grows with epsilon.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import numerics
from audit.lower_bounds.scores import Scores

Array = NDArray[np.float64]

# More values than this are summed in blocks, each taken as its most telling value.
_BLOCKS, _BLOCKS_OF_SURE = 64, 16
# Standard deviations of a binomial that are summed; what is beyond is added to the error, and the
# rounding of the sum to it.
_REACH = 6.0
_BEYOND, _ALLOWANCE = 1e-8, 1e-9
# A share of the scores by which a walk may be shortened for good.
_FEW = 0.02
_TOLERANCE = 1e-4


def fewest_errors(scores: Scores) -> tuple[int, float, int, int]:
    """M, the threshold that gives it, and the false positives and negatives there."""
    without, with_record = scores.sorted_without, scores.sorted_with
    positives = len(without) - np.arange(1, len(without) + 1)
    negatives = np.searchsorted(with_record, without, side="right")
    best = int(np.argmin(positives + negatives))
    if positives[best] + negatives[best] >= len(without):
        return len(without), -math.inf, len(without), 0
    fp, fn = int(positives[best]), int(negatives[best])
    return fp + fn, float(without[best]), fp, fn


@lru_cache(maxsize=4096)
def epsilon_lower_limit(n0: int, n1: int, delta: float, alpha: float, errors: int) -> float:
    """The largest epsilon at which so few errors have probability at most alpha, rounded down.

    Args:
        n0: scores without the record.
        n1: scores with it.
        delta: in [0, 1).
        alpha: error.
        errors: M.
    """
    target = float(special.ndtri(alpha))

    def missed(epsilon: float) -> float:
        # On the probit scale the error is close to linear in epsilon.
        error = probability(n0, n1, delta, epsilon, errors)
        return float(special.ndtri(min(max(error, 1e-300), 1.0 - 1e-16))) - target

    if missed(0.0) > 0.0:
        return 0.0
    # What the counts say as they are, and a little more.
    end = 1.0 + math.log((n0 + n1 + 1.0) / (errors + 0.5))
    return numerics.safe_root(missed, 0.0, end, _TOLERANCE)


def probability(n0: int, n1: int, delta: float, epsilon: float, errors: int) -> float:
    """P[M <= errors] in the worst game at epsilon, rounded up."""
    wrong = (1.0 - delta) * float(special.expit(-epsilon))
    late, chance_late = _binomial(n0, wrong)
    early, chance_early = _binomial(n1, wrong)
    climb = late[:, None] + early[None, :] - errors
    # Given the wrong answers at the corner, the walks below and beyond it are independent.
    below = _climbs(n0, delta, wrong, late[:, None], early[None, :], climb)
    beyond = _climbs(n1, delta, wrong, early[None, :], late[:, None], climb)
    reached = float(chance_late @ (below + beyond - below * beyond) @ chance_early)
    return min(reached * (1.0 + _ALLOWANCE) + 2.0 * _BEYOND, 1.0)


def _binomial(n: int, p: float) -> tuple[Array, Array]:
    """Binomial(n, p) in blocks: the least value of each [m], and its chance [m]."""
    edges = _edges(n, p)
    below = _at_most(edges - 1.0, np.full(len(edges), float(n)), p)
    below[0], below[-1] = 0.0, 1.0
    return edges[:-1], np.diff(below)


def _at_most(k: ArrayLike, n: Array, p: float) -> Array:
    """P[Binomial(n, p) <= k]; 1 where k >= n."""
    k = np.maximum(np.asarray(k, dtype=np.float64), -0.5)
    inside = special.betaincc(k + 1.0, np.maximum(n - k, 0.5), p)
    return np.asarray(np.where(k >= n, 1.0, inside), dtype=np.float64)


def _edges(n: int, p: float) -> Array:
    """Where blocks of Binomial(n, p) begin, and the end; beyond it the chance is under 1e-9."""
    spread = math.sqrt(n * p * (1.0 - p))
    low = max(math.floor(n * p - _REACH * spread), 0)
    high = min(math.ceil(n * p + _REACH * spread + 12.0), n)
    blocks = min(_BLOCKS, high + 1 - low)
    return np.unique(np.rint(np.linspace(low, high + 1.0, blocks + 1)))


def _climbs(n: int, delta: float, wrong: float, off: Array, up: Array, climb: Array) -> Array:
    """Chance that the walk on one side of the corner ever climbs so far, rounded up.

    Args:
        n: scores of the side that is right there, of which `off` are beyond the corner.
        delta: chance that one of them is right at every threshold, and so not in the walk.
        wrong: chance that one is beyond the corner.
        off: scores beyond the corner.
        up: steps up, scores of the other side.
        climb: how far.
    """
    rest = n - off
    sure = delta / (1.0 - wrong)
    total = np.zeros(np.broadcast_shapes(off.shape, up.shape))
    taken = np.zeros_like(rest)
    for most in _ends_of_sure(n, sure):
        up_to = _at_most(most, rest, sure)
        total = total + (up_to - taken) * _reflected(up, np.maximum(rest - most, 0.0), climb)
        taken = up_to
    return total + (1.0 - taken)


def _ends_of_sure(n: int, sure: float) -> list[float]:
    """Ends of the blocks by which the scores that are right at every threshold are counted."""
    ends = _edges(n, sure)[1:] - 1.0 if sure > 0.0 else np.zeros(1)
    # Few of many scores hardly shorten the walk: the block with nearly all of them will do.
    likely = float(special.bdtrik(1.0 - 1e-5, n, sure)) if sure > 0.0 else 0.0
    if likely <= _FEW * n:
        return [float(math.ceil(likely))]
    return [float(end) for end in ends[:: max(len(ends) // _BLOCKS_OF_SURE, 1)]] + [float(n)]


def _reflected(up: Array, down: Array, climb: Array) -> Array:
    """Chance that so many steps up and down, in random order, ever climb so far."""
    sure = (climb <= 0.0) | (climb <= up - down)
    left = np.maximum(up - climb, 0.0)
    log_chance = special.gammaln(up + 1.0) + special.gammaln(down + 1.0)
    log_chance = log_chance - special.gammaln(left + 1.0) - special.gammaln(up + down - left + 1.0)
    chance = np.where(climb <= up, np.exp(np.minimum(log_chance, 0.0)), 0.0)
    return np.asarray(np.where(sure, 1.0, chance), dtype=np.float64)
