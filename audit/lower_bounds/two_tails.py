"""Lower limit of epsilon from both tails at once: the smallest number of errors of any threshold.

The statistic is M = min over t of #{scores without the record > t} + #{scores with it <= t}. It is
small if both tails separate the two sides; two tests of one tail each would need the error twice.
Its distribution in the worst case is a sum over binomials (proposition 21 of docs/theory.md).
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import numerics
from audit.arrays import FloatArray
from audit.lower_bounds.scores import Scores

# Longer sums are computed in blocks. Each block counts as its value with the largest probability.
_MAX_BLOCKS, _MAX_CERTAIN_BLOCKS = 64, 16
# The sum covers this many standard deviations of a binomial. The rest, at most the second number,
# is added to the error. For an alpha below _SMALL_ALPHA, 1e-8 would be too much.
_DEVIATIONS, _TAIL = 6.0, 1e-8
_SMALL_ALPHA, _MORE_DEVIATIONS, _SMALL_TAIL = 1e-7, 9.0, 1e-17
# Relative rounding error of short sums, and of the logarithms of factorials.
_ROUNDING, _FACTORIAL_ROUNDING = 1e-9, 2.0 * float(np.finfo(np.float64).eps)
# If the scores that are correct at every threshold are at most this share, one block is enough.
_MIN_CERTAIN_SHARE = 0.02
# P[more of them than the block holds] is added to the error: at most this, and this share of it.
_CERTAIN_TAIL, _CERTAIN_TAIL_SHARE = 1e-5, 1e-2
_EPSILON_TOLERANCE = 1e-4


def min_errors(scores: Scores) -> tuple[int, float, int, int]:
    """M, the threshold that attains it, and the false positives and negatives there."""
    without, with_record = scores.sorted_out, scores.sorted_in
    positives = len(without) - np.arange(1, len(without) + 1)
    negatives = np.searchsorted(with_record, without, side="right")
    best = int(np.argmin(positives + negatives))
    if positives[best] + negatives[best] >= len(without):
        return len(without), -math.inf, len(without), 0
    fp, fn = int(positives[best]), int(negatives[best])
    return fp + fn, float(without[best]), fp, fn


@lru_cache(maxsize=4096)
def epsilon_lower_limit(n0: int, n1: int, delta: float, alpha: float, errors: int) -> float:
    """The largest epsilon at which P[M <= errors] is at most alpha, rounded down.

    n0 and n1 are the numbers of scores without and with the record.
    """
    target = float(special.ndtri(alpha))

    def excess(epsilon: float) -> float:
        # On the probit scale the error is nearly linear in epsilon.
        error = probability(n0, n1, delta, epsilon, errors, alpha)
        return float(special.ndtri(min(max(error, 1e-300), 1.0 - 1e-16))) - target

    if excess(0.0) > 0.0:
        return 0.0
    # The point estimate of the counts, plus one.
    end = 1.0 + math.log((n0 + n1 + 1.0) / (errors + 0.5))
    return numerics.safe_root(excess, 0.0, end, _EPSILON_TOLERANCE)


def probability(n0: int, n1: int, delta: float, epsilon: float, errors: int, alpha: float) -> float:
    """P[M <= errors] in the worst case at epsilon, rounded up by much less than alpha."""
    tail = min(_CERTAIN_TAIL, _CERTAIN_TAIL_SHARE * alpha)
    wrong = (1.0 - delta) * float(special.expit(-epsilon))
    deviations, left_out = _DEVIATIONS, _TAIL
    if alpha < _SMALL_ALPHA:
        deviations, left_out = _MORE_DEVIATIONS, _SMALL_TAIL
    late, late_mass = _binomial(n0, wrong, deviations)
    early, early_mass = _binomial(n1, wrong, deviations)
    # At most `errors` are made if one of the walks climbs by the rest (proof of proposition 21).
    climb = late[:, None] + early[None, :] - errors
    # Given the errors at the corner, the walks below and above it are independent.
    below = _climb_probability(n0, delta, wrong, late[:, None], early[None, :], climb, tail)
    above = _climb_probability(n1, delta, wrong, early[None, :], late[:, None], climb, tail)
    reached = float(late_mass @ (below + above - below * above) @ early_mass)
    return min(reached * (1.0 + _rounding(n0, n1)) + 2.0 * left_out, 1.0)


def _rounding(n0: int, n1: int) -> float:
    """Relative rounding error of the sum."""
    return max(_ROUNDING, _FACTORIAL_ROUNDING * math.lgamma(n0 + n1 + 1.0))


def _binomial(n: int, p: float, deviations: float) -> tuple[FloatArray, FloatArray]:
    """Binomial(n, p) in blocks: the smallest value of each [m], and its probability [m]."""
    edges = _block_edges(n, p, deviations)
    below = _cdf(edges - 1.0, np.full(len(edges), float(n)), p)
    below[0], below[-1] = 0.0, 1.0
    return edges[:-1], np.diff(below)


def _cdf(k: ArrayLike, n: FloatArray, p: float) -> FloatArray:
    """P[Binomial(n, p) <= k]; 1 if k >= n."""
    k = np.maximum(np.asarray(k, dtype=np.float64), -0.5)
    inside = special.betaincc(k + 1.0, np.maximum(n - k, 0.5), p)
    return np.asarray(np.where(k >= n, 1.0, inside), dtype=np.float64)


def _block_edges(n: int, p: float, deviations: float = _DEVIATIONS) -> FloatArray:
    """Starts of the blocks of Binomial(n, p), and the end; the tails below and above are left out.

    For p <= 1/2 the tail below is at most exp(-deviations^2 / 2) (Okamoto 1959).
    """
    spread = math.sqrt(n * p * (1.0 - p))
    low = max(math.floor(n * p - deviations * spread), 0)
    high = min(math.ceil(n * p + deviations * spread + 12.0), n)
    blocks = min(_MAX_BLOCKS, high + 1 - low)
    return np.unique(np.rint(np.linspace(low, high + 1.0, blocks + 1)))


def _climb_probability(
    n: int,
    delta: float,
    wrong: float,
    off: FloatArray,
    up: FloatArray,
    climb: FloatArray,
    tail: float,
) -> FloatArray:
    """Probability that the walk on one side of the corner ever climbs by `climb`, rounded up.

    Of the n scores that are correct on this side of the corner, each is correct at every threshold,
    and so not in the walk, with probability delta. It lies on the other side of the corner with
    probability `wrong`, as `off` of them do. The walk has `up` steps up, the errors on this side.
    """
    uncertain = n - off
    certain = delta / (1.0 - wrong)
    total = np.zeros(np.broadcast_shapes(off.shape, up.shape))
    taken = np.zeros_like(uncertain)
    for block_end in _certain_block_ends(n, certain, tail):
        up_to = _cdf(block_end, uncertain, certain)
        total = total + (up_to - taken) * _reflection(
            up, np.maximum(uncertain - block_end, 0.0), climb
        )
        taken = up_to
    return total + (1.0 - taken)


def _certain_block_ends(n: int, certain: float, tail: float) -> list[float]:
    """Ends of the blocks for the number of scores that are correct at every threshold."""
    ends = _block_edges(n, certain)[1:] - 1.0 if certain > 0.0 else np.zeros(1)
    # If they are few, they hardly shorten the walk, and one block loses little.
    likely = float(special.bdtrik(1.0 - tail, n, certain)) if certain > 0.0 else 0.0
    if likely <= _MIN_CERTAIN_SHARE * n:
        return [float(math.ceil(likely))]
    return [float(end) for end in ends[:: max(len(ends) // _MAX_CERTAIN_BLOCKS, 1)]] + [float(n)]


def _reflection(up: FloatArray, down: FloatArray, climb: FloatArray) -> FloatArray:
    """Probability that a random order of `up` and `down` steps ever climbs by `climb`."""
    certain = (climb <= 0.0) | (climb <= up - down)
    reflected_up = np.maximum(up - climb, 0.0)
    log_probability = special.gammaln(up + 1.0) + special.gammaln(down + 1.0)
    log_probability = log_probability - special.gammaln(reflected_up + 1.0)
    log_probability = log_probability - special.gammaln(up + down - reflected_up + 1.0)
    probability = np.where(climb <= up, np.exp(np.minimum(log_probability, 0.0)), 0.0)
    return np.asarray(np.where(certain, 1.0, probability), dtype=np.float64)
