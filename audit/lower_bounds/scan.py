"""The recommended lower bound: an exact scan over thresholds that assumes only independent trials.

Walk up the sorted scores. At the j-th score without the record ("zero"), c_j counts the scores with
the record ("ones") that are not above it. A small c_j is evidence; the statistic is the largest
evidence over a grid of ranks. For any score its distribution is at most that of a known audit, and
an exact recursion computes it (proposition 20 of docs/theory.md). The joint distribution of the
tested ranks corrects for their number, which costs little, because they are dependent. The other
tail is the same test with the samples exchanged and negated. A part of the error is spent on one
more statistic, which uses both tails at once: the smallest number of errors of any threshold. It is
M = min over t of #{scores without the record > t} + #{scores with it <= t}. It is small if both
tails separate the two sides; two tests of one tail each would need the error twice. Its
distribution in the worst case is a sum over binomials (proposition 21 of docs/theory.md).
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import numerics
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import Estimator, LowerBound
from audit.lower_bounds.scores import Scores
from audit.numerics import FloatArray, IntArray, last_integer

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
TWO_TAILS_SHARE = 0.2
"""Share of the error that is spent on both tails together."""
# The next constants affect how much the bound proves, but not its validity. Neighbouring ranks j of
# the grid differ by about half a standard deviation of a count of j, within these shares of j. The
# nominal errors follow a power of the rank. They are larger in the upper half, which helps for
# scores with few values, and smaller if alpha is small.
_MIN_STEP = 0.02
_MAX_STEP = 0.15
_MAX_NOMINAL_ERROR, _NOMINAL_SHARE = 0.05, 40.0
_NOMINAL_POWER = 0.6
_UPPER_HALF_FACTOR = 4.0
# Probability of more atoms than the recursion follows, as a share of alpha; added to the error.
_ATOM_SHARE = 5e-3
# Allowances for the quadrature (relative) and the truncated tails of the recursion (absolute).
_QUADRATURE_ERROR, _TRUNCATED_TAILS = 1e-6, 1e-10
# The log of the weight is smooth, nearly a parabola, in the number of ones: along long arrays of
# probabilities it is interpolated through the Chebyshev nodes of [-1, 1].
_NODES = np.cos(np.pi * (np.arange(9) + 0.5) / 9)
_FIT = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, 8))
# The inversion stops this close to alpha on the probit scale, on the safe side. Its first step is a
# third of the step for a single rank.
_PROBIT_TOLERANCE, _FIRST_STEP = 2e-3, 0.35
# Shorter products of lengths are convolved directly, longer ones by a Fourier transform.
_MAX_DIRECT_CONVOLUTION = 300_000
_Crossings = list[tuple[int, int, FloatArray]]
"""Ranks at which paths cross, with the first number of ones there, and the probabilities."""


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


@dataclass(frozen=True)
class Scan(Estimator):
    """The recommended estimator, which assumes only independent trials.

    It scans each tail with 0.4 of the error, tests both tails together with 0.2 of it, and reports
    the largest limit. The reported threshold is the one with the strongest evidence. With ties, the
    reported counts are upper bounds on the counts there.

    Example:
        >>> import numpy as np
        >>> scores = np.linspace(0.0, 1.0, 1000)
        >>> found = Scan()(scores, scores + 2.0, 1e-5)  # separated scores
        >>> round(found.epsilon, 2), found.valid
        (6.07, True)
    """

    name: ClassVar[str] = "scan"

    rule_name: ClassVar[str] = "scan"

    claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "this project; recursion after Noe 1972",
        assumptions=(Assumption.INDEPENDENT_TRIALS,),
        about=(
            "best of all ranks of a grid and of both tails, corrected by their joint distributions",
        ),
    )

    def find(self, scores: Scores, delta: float, alpha: float) -> LowerBound:
        """The larger of the bounds by the scan and by both tails together."""
        n0, n1 = len(scores.out_scores), len(scores.in_scores)
        if n0 == 0 or n1 == 0:
            return self.result(0.0, scores, alpha, errors=(0, 0))
        two_tails_alpha = TWO_TAILS_SHARE * alpha
        errors, threshold, fp, fn = min_errors(scores)
        epsilon = epsilon_lower_limit(n0, n1, delta, two_tails_alpha, errors)
        # By Bonferroni's inequality, the errors of each tail and of both together may add up to
        # alpha.
        by_scan = _scan_each_tail(scores, delta, alpha - two_tails_alpha)
        if epsilon <= by_scan[0]:
            epsilon, threshold, fp, fn = by_scan
        return self.result(epsilon, scores, alpha, threshold, (fp, fn))


def _scan_each_tail(scores: Scores, delta: float, alpha: float) -> tuple[float, float, int, int]:
    """The larger limit of epsilon by each tail, with alpha / 2 each, its threshold and counts."""
    without, with_record = scores.sorted_out, scores.sorted_in
    n0, n1 = len(without), len(with_record)
    low = _strongest_evidence(without, with_record, delta, alpha / 2.0)
    high = _strongest_evidence(-with_record[::-1], -without[::-1], delta, alpha / 2.0)
    # Start with the stronger tail. One evaluation then usually shows that the other is weaker.
    if low >= high:
        by_low = _invert(n0, n1, delta, alpha / 2.0, low)
        # With equal numbers both tails have the same distribution, so more evidence means a larger
        # bound.
        by_high = -math.inf if n0 == n1 else _invert(n1, n0, delta, alpha / 2.0, high, by_low)
    else:
        by_high = _invert(n1, n0, delta, alpha / 2.0, high)
        by_low = -math.inf if n0 == n1 else _invert(n0, n1, delta, alpha / 2.0, low, by_high)
    if by_high > by_low:
        # Scores equal to this one indicate the record too: the threshold is just below it.
        threshold = float(np.nextafter(with_record[n1 - high.rank], -np.inf))
        return by_high, threshold, high.ones, n1 - high.rank
    return by_low, float(without[low.rank - 1]), n0 - low.rank, low.ones


@dataclass(frozen=True, order=True)
class _TestedRank:
    """The largest evidence over the grid, and the counts behind it."""

    limit: float
    rank: int
    ones: int


def _strongest_evidence(
    zeros: FloatArray, ones: FloatArray, delta: float, alpha: float
) -> _TestedRank:
    n0, n1 = len(zeros), len(ones)
    grid = _grid(n0, delta, _nominal_error(alpha))
    counts = np.searchsorted(ones, zeros[grid.ranks - 1], side="right")
    limits = grid.limits(counts, n0, n1)
    best = int(np.argmax(limits))
    return _TestedRank(float(limits[best]), int(grid.ranks[best]), int(counts[best]))


@dataclass(frozen=True, eq=False)
class _RankGrid:
    """The tested ranks [m], ascending, their nominal errors, and the ranks less expected atoms."""

    ranks: IntArray
    shares: FloatArray
    levels: FloatArray

    def limits(self, counts: IntArray, n0: int, n1: int) -> FloatArray:
        """The epsilon [m] that each count would prove on its own if arrivals were Poisson."""
        # The nominal level only ranks the evidence. `_error` gives the level of all ranks
        # together.
        zero_share = special.betaincinv(self.shares, counts + 1.0, self.levels)
        return np.asarray(special.logit(zero_share) + math.log(n1 / n0), dtype=np.float64)

    def boundary(self, limit: float, n0: int, n1: int) -> IntArray:
        """The largest counts [m] with at least the given limit; -1 if there is none."""
        zero_share = special.expit(limit - math.log(n1 / n0))

        def enough(counts: IntArray) -> ArrayLike:
            return special.betainc(self.shares, counts + 1.0, zero_share) <= self.levels

        return last_integer(enough, np.full(len(self.ranks), -1), n1 + 1)


def _nominal_error(alpha: float) -> float:
    return min(_MAX_NOMINAL_ERROR, _NOMINAL_SHARE * alpha)


@lru_cache(maxsize=64)
def _grid(n0: int, delta: float, nominal_error: float) -> _RankGrid:
    steps = [float(n0)]
    while steps[-1] > 1.0:
        share = min(max(0.5 * steps[-1] ** -0.5, _MIN_STEP), _MAX_STEP)
        steps.append(steps[-1] * (1.0 - share))
    ranks = np.unique(np.rint(steps))
    # Ranks that atoms alone could fill are no evidence.
    atoms = 0
    if n0 * delta > 1e-4:
        atoms = math.ceil(special.bdtrik(0.999, n0, delta))
    ranks = ranks[ranks > atoms] if atoms < n0 else ranks[-1:]
    shares = np.maximum(ranks - atoms, 1e-3)
    levels = nominal_error * (ranks / n0) ** _NOMINAL_POWER
    levels = np.where(ranks > n0 / 2.0, _UPPER_HALF_FACTOR, 1.0) * levels
    return _RankGrid(ranks.astype(np.int64), shares, levels)


@lru_cache(maxsize=4096)
def _invert(
    n0: int, n1: int, delta: float, alpha: float, evidence: _TestedRank, beyond: float = 0.0
) -> float:
    """The largest epsilon at which evidence this large has probability at most alpha.

    Returns 0 if that epsilon is not above `beyond`.
    """
    grid = _grid(n0, delta, _nominal_error(alpha))
    boundary = grid.boundary(evidence.limit, n0, n1)
    at = int(np.searchsorted(grid.ranks, evidence.rank))
    # Rounding must not leave out the observed evidence. A larger boundary only raises the error.
    boundary[at] = max(boundary[at], evidence.ones)
    # Ones never decrease along a path, so the boundary may be raised to its earlier values.
    boundary = np.maximum.accumulate(boundary)
    ranks, boundary = grid.ranks[boundary >= 0], boundary[boundary >= 0]

    # On the probit scale the error is nearly linear in epsilon.
    target = float(special.ndtri(alpha))

    def excess(epsilon: float) -> float:
        error = _error(n0, n1, delta, alpha, epsilon, ranks, boundary)
        return float(special.ndtri(max(error, 1e-300))) - target

    # The error increases with epsilon: narrow the bracket [low, high].
    low, high = 0.0, math.inf
    epsilon = beyond if beyond > 0.0 else max(evidence.limit, 0.0)
    seen: list[tuple[float, float]] = []
    spread = math.sqrt(1.0 / (evidence.ones + 1.0) + 1.0 / evidence.rank)
    for _ in range(60):
        value = excess(epsilon)
        seen.append((value, epsilon))
        if value <= 0.0:
            low = epsilon
            if value > -_PROBIT_TOLERANCE:
                break
        elif epsilon == beyond:
            return 0.0
        else:
            high = epsilon
        if high - low < 1e-5:
            break
        epsilon = max(_interpolate_root(seen, -0.5 * _PROBIT_TOLERANCE, _FIRST_STEP * spread), 0.0)
        if not low < epsilon < high and not (epsilon == 0.0 == low):
            epsilon = 0.5 * (low + high) if high < math.inf else low + 1.0
    return low


def _interpolate_root(seen: list[tuple[float, float]], value: float, slope: float) -> float:
    """Estimated argument at which a function attains a value, from the nearest known points."""
    near = sorted(seen, key=lambda point: abs(point[0] - value))[:3]
    if len(near) == 1:
        ((at, x),) = near
        return x + min(max((value - at) * slope, -1.0), 1.0)
    (a, x), (b, y), *third = near
    if a == b:
        return math.nan
    slope_ab = (y - x) / (b - a)
    line = x + slope_ab * (value - a)
    if not third or third[0][0] in (a, b):
        return line
    ((c, z),) = third
    bend = ((z - y) / (c - b) - slope_ab) / (c - a)
    return line + bend * (value - a) * (value - b)


def _error(
    n0: int,
    n1: int,
    delta: float,
    alpha: float,
    epsilon: float,
    ranks: IntArray,
    boundary: IntArray,
) -> float:
    """P[c_j <= boundary_j for some rank j] in the worst case at epsilon, rounded up."""
    if len(ranks) == 0:
        return 0.0
    log_ceiling = math.log1p(-delta) - epsilon
    # The number of atoms is binomial. If it is large, it is rounded up to one of a few values. The
    # probability of more atoms than that is added to the error.
    step = 1 + int(1.5 * math.sqrt(n0 * delta))
    total, followed, atoms = 0.0, 0.0, min(step - 1, n0)
    while True:
        up_to = float(special.bdtr(atoms, n0, delta)) if atoms < n0 else 1.0
        total += (up_to - followed) * _crossing(n0, n1, atoms, log_ceiling, ranks, boundary)
        followed = up_to
        beyond = float(special.bdtrc(atoms, n0, delta)) if atoms < n0 else 0.0
        if beyond <= _ATOM_SHARE * alpha:
            return min((total + beyond) * (1.0 + _QUADRATURE_ERROR) + _TRUNCATED_TAILS, 1.0)
        atoms = min(atoms + step, n0)


def _crossing(
    n0: int, n1: int, atoms: int, log_ceiling: float, ranks: IntArray, boundary: IntArray
) -> float:
    """The same probability, given the number of atoms.

    The labels of the ordered points are not independent, but the probability of an initial sequence
    depends only on its numbers of zeros and ones. So the recursion uses independent labels, with
    which the number of ones between two ranks is negative binomial. Each path is weighted by the
    ratio of the two probabilities at the point where it crosses the boundary.
    """
    if ranks[0] <= atoms:
        return 1.0
    log_odds = math.log((n0 - atoms) / n1) - log_ceiling  # of a zero, with independent labels
    crossed = _crossings(atoms, log_odds, ranks, boundary)
    if not crossed:
        return 0.0
    log_weight = partial(_log_weight, n0, n1, atoms, log_ceiling, log_odds)
    zeros = np.array([float(rank) for rank, _, _ in crossed])
    lengths = np.array([len(masses) for _, _, masses in crossed])
    if lengths.sum() <= len(_NODES) * len(crossed):
        ones = np.concatenate(
            [first + np.arange(float(len(column))) for _, first, column in crossed]
        )
        masses = np.concatenate([column for _, _, column in crossed])
        return min(float(masses @ np.exp(log_weight(np.repeat(zeros, lengths), ones))), 1.0)
    first = np.array([first for _, first, _ in crossed])
    nodes = first[:, None] + 0.5 * (lengths - 1.0)[:, None] * (1.0 + _NODES)
    logs = log_weight(np.repeat(zeros, len(_NODES)), nodes.ravel()).reshape(nodes.shape)
    total = sum(
        float(column @ np.exp(_powers(len(column)) @ fit))
        for (_, _, column), fit in zip(crossed, logs @ _FIT.T, strict=True)
    )
    return min(total, 1.0)


@lru_cache(maxsize=256)
def _powers(length: int) -> FloatArray:
    """Chebyshev polynomials [length, nodes] at points evenly spaced over [-1, 1]."""
    at = np.linspace(-1.0, 1.0, length) if length > 1 else np.zeros(1)
    powers = np.polynomial.chebyshev.chebvander(at, len(_NODES) - 1)
    return np.asarray(powers, dtype=np.float64)


def _crossings(atoms: int, log_odds: float, ranks: IntArray, boundary: IntArray) -> _Crossings:
    """Where paths of independent labels first cross the boundary, without negligible tails."""
    end = int(boundary[-1])
    states, start = np.ones(1), 0  # P[`start`, `start` + 1, ... ones, and no crossing so far]
    crossed: _Crossings = []
    arrived = atoms
    kernels: dict[int, tuple[FloatArray, int]] = {}  # many ranks are equally far apart
    for rank, limit in zip(ranks.tolist(), boundary.tolist(), strict=True):
        zeros_more = rank - arrived
        if zeros_more not in kernels:
            kernels[zeros_more] = _negative_binomial(zeros_more, log_odds, end - start)
        kernel, shift = kernels[zeros_more]
        start += shift
        if start > end:
            break
        states = _convolve(states, kernel[: end - start + 1])[: end - start + 1]
        matter = states > 1e-14 * states.max()
        lowest = int(matter.argmax())
        if not matter[lowest]:
            break
        states = states[lowest : len(matter) - int(matter[::-1].argmax())]
        start += lowest
        arrived = rank
        out = min(max(limit - start + 1, 0), len(states))
        if out:
            crossed.append((rank, start, states[:out]))
            states, start = states[out:], start + out
            if len(states) == 0:
                break
    count = sum(len(masses) for _, _, masses in crossed)
    negligible = 1e-9 * sum(float(masses.sum()) for _, _, masses in crossed) / max(count, 1)
    matter = [np.flatnonzero(masses > negligible) for _, _, masses in crossed]
    return [
        (rank, lowest + int(at[0]), masses[at[0] : at[-1] + 1])
        for (rank, lowest, masses), at in zip(crossed, matter, strict=True)
        if len(at)
    ]


def _negative_binomial(zeros: int, log_odds: float, last: int) -> tuple[FloatArray, int]:
    """Probabilities of the number of ones before a number of zeros, and their first number."""
    log_one, log_zero = special.log_expit(-log_odds), special.log_expit(log_odds)
    mean = zeros * math.exp(-log_odds)
    spread = math.sqrt(mean * (1.0 + math.exp(-log_odds)))
    # The probability outside is below 1e-15: a normal left tail, a gamma right tail.
    low = max(int(mean - 8.5 * spread), 0)
    high = int(min(mean + 9.0 * spread - 40.0 / log_one + 1.0, last))
    k = np.arange(low, high + 1.0)
    log_ways = special.gammaln(zeros + k) - special.gammaln(k + 1.0) - math.lgamma(zeros)
    return np.exp(log_ways + zeros * log_zero + k * log_one), low


def _log_weight(
    n0: int,
    n1: int,
    atoms: int,
    log_ceiling: float,
    log_odds: float,
    rank: FloatArray,
    count: FloatArray,
) -> FloatArray:
    """Log ratio of the probability of a sequence up to the rank-th zero to that of the recursion.

    With the last zero at v, the other points of the sequence lie below v and the rest above it or
    above the ceiling. So the probability is an integral over v of v^x (1-v)^y (1 - ceiling v)^z. On
    the logit scale the integrand has one peak and exponential tails, for which the trapezoidal rule
    converges fast.
    """
    ceiling, beyond = math.exp(log_ceiling), -math.expm1(log_ceiling)
    seen = rank - atoms
    x, y, z = seen - 1.0 + count, n0 - rank, n1 - count
    # Mode and width on the logit scale, on which v = expit(s) has the derivative v (1 - v).
    v = (x + 1.0) / (x + y + 2.0 + z * ceiling)
    for _ in range(12):
        v = (x + 1.0) / (x + y + 2.0 + z * ceiling * (1.0 - v) / (1.0 - ceiling * v))
    slope = v * (1.0 - v)
    curvature = (x + y + 2.0) * slope
    curvature += z * ceiling * slope * (1.0 - 2.0 * v + ceiling * v * v) / (1.0 - ceiling * v) ** 2
    width = 1.0 / np.sqrt(curvature)
    # Nodes are spaced by a hyperbolic sine: dense at the peak, and far into the tails.
    t = np.linspace(-6.0, 6.0, 65)
    s = special.logit(v)[:, None] + width[:, None] * np.sinh(t)
    log_v, log_rest = special.log_expit(s), special.log_expit(-s)
    log_f = (x[:, None] + 1.0) * log_v + (y[:, None] + 1.0) * log_rest
    log_f += z[:, None] * np.log(beyond + ceiling * np.exp(log_rest))
    top = log_f.max(axis=1)
    sums = np.exp(log_f - top[:, None]) @ np.cosh(t) * (t[1] - t[0])
    log_integral = top + np.log(width * sums)
    log_ways = special.gammaln(n0 - atoms + 1.0) - special.gammaln(y + 1.0)
    log_ways += special.gammaln(n1 + 1.0) - special.gammaln(z + 1.0) - special.gammaln(x + 1.0)
    log_actual = log_ways + count * log_ceiling + log_integral
    log_recursion = seen * special.log_expit(log_odds) + count * special.log_expit(-log_odds)
    return np.asarray(log_actual - log_recursion, dtype=np.float64)


def _convolve(a: FloatArray, b: FloatArray) -> FloatArray:
    """Convolution of two non-negative sequences, [n] and [m] to [n + m - 1]."""
    if len(a) * len(b) < _MAX_DIRECT_CONVOLUTION:
        return np.convolve(a, b)
    size = 1 << (len(a) + len(b) - 2).bit_length()
    product = np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)
    return np.maximum(product[: len(a) + len(b) - 1], 0.0)
