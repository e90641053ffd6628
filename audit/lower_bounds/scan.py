"""The recommended bound: an exact scan over thresholds that assumes only independent trials.

The question. (epsilon, delta)-DP says of every threshold t that

    P[S <= t | X] <= e^epsilon P[S <= t | X'] + delta,

and the same of {S >= t} with X and X' exchanged. The first is tested by the scores without the
record in the lower tail ("zeros") against those with it ("ones"): too many zeros arrive before the
ones do. The second is the first with the samples exchanged and negated, so there is one test here.

The statistic. Walk up the sorted scores. When the j-th zero arrives, count the ones that are not
above it, c_j. Few ones is evidence. For ranks j on a fixed grid, score the evidence by a nominal
lower limit of epsilon, and keep the largest over the grid.

Its law. Write F for the distribution function of the zeros and G for that of the ones, so that
F <= g(G) with g(u) = min(1, e^epsilon u + delta). Let V_i and U_i be independent uniforms, zeros
F^-1(V_i) and ones G^-1(U_i). At t = the j-th zero, F(t) >= V_(j), hence G(t) >= g^-1(V_(j)), hence
c_j >= #{i: U_i <= g^-1(V_(j))}. So *whatever the score* (ties, atoms and infinities included) the
evidence is at most what the game with F = g, G = uniform gives, and that game is one known law: its
zeros are Binomial(n0, delta) many at the very start, and the rest is uniform on [0, u] with
u = (1 - delta) e^-epsilon. The law of the largest evidence over the grid follows by an exact
recursion, grows with epsilon, and the bound is the epsilon where it passes alpha. Every rank on the
grid is looked at, and the price is that of their joint law, not of their number.

A part of the error is spent on one more statistic, which sees both tails at once (`two_tails`).

This extends exact confidence bands for one distribution function (Berk & Jones 1979; Noe 1972, for
the recursion) to a ratio of two; the construction is this project's own.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds import two_tails
from audit.lower_bounds.estimator import Estimator, Finding
from audit.lower_bounds.recursion import convolve
from audit.lower_bounds.scores import Scores
from audit.numerics import last_integer

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

TOGETHER = 0.2
"""Share of the error that is spent on both tails together."""

# Neighbouring ranks j on the grid differ by about half a standard deviation of a count of j, within
# these shares of j. The nominal errors follow a power of the rank and are larger in the upper half,
# where scores of few values need it. All steer how much is proved, never whether it holds.
_SMALLEST_STEP = 0.02
_LARGEST_STEP = 0.15
_NOMINAL = 0.05
_NOMINAL_POWER = 0.6
_UPPER_HALF = 4.0
# Chance of more atoms than are followed, as a share of alpha; it is added to the error.
_ATOM_SHARE = 5e-3
# Allowances for the quadrature (relative) and the truncated tails of the recursion (absolute).
_ALLOWANCE, _TAILS = 1e-6, 1e-10
# Longer stretches than this are interpolated, through the Chebyshev nodes of [-1, 1].
_LONG = 24
_NODES = np.cos(np.pi * (np.arange(9) + 0.5) / 9)
_FIT = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, 8))
# The inversion stops this close to alpha on the probit scale, on the safe side; its first step is
# a third of what a single look would suggest.
_TOLERANCE, _STEP = 2e-3, 0.35


@dataclass(frozen=True)
class Scan(Estimator):
    """The recommended estimator: it assumes nothing but independent trials.

    A scan of each tail at 0.4 of the error, and both tails together at 0.2 of it; the largest
    counts. The threshold of its bounds is the most telling one; with ties, the counts there are as
    many at most.

    Example:
        >>> import numpy as np
        >>> scores = np.linspace(0.0, 1.0, 1000)
        >>> found = Scan()(scores, scores + 2.0, 1e-5)  # perfect separation
        >>> round(found.epsilon, 2), found.valid
        (6.07, True)
    """

    name: ClassVar[str] = "scan"

    @property
    def rule_name(self) -> str:
        return "scan"

    @property
    def claim(self) -> Claim:
        return Claim(
            Kind.BOUND,
            "this project; recursion after Noe 1972",
            assumptions=(Assumption.INDEPENDENT_TRIALS,),
            about=("all ranks of a grid, and both tails together, paid for by their joint laws",),
        )

    def find(self, scores: Scores, delta: float, alpha: float) -> Finding:
        """Lower bound on epsilon: the larger of the scan's and that of both tails together."""
        n0, n1 = len(scores.without), len(scores.with_record)
        if n0 == 0 or n1 == 0:
            return Finding(0.0, None, 0, 0, n0, n1)
        together = TOGETHER * alpha
        found = _scan_each_tail(scores, delta, alpha - together)
        errors, at, fp, fn = two_tails.fewest_errors(scores)
        epsilon = two_tails.epsilon_lower_limit(n0, n1, delta, together, errors)
        return Finding(epsilon, at, fp, fn, n0, n1) if epsilon > found.epsilon else found


def _scan_each_tail(scores: Scores, delta: float, alpha: float) -> Finding:
    """Lower bound on epsilon from each tail, with error alpha / 2 each."""
    without, with_record = scores.sorted_without, scores.sorted_with
    n0, n1 = len(without), len(with_record)
    low = _most_telling(without, with_record, delta)
    high = _most_telling(-with_record[::-1], -without[::-1], delta)
    # The more telling tail first: most often one look at the other tells that it says less.
    if low >= high:
        by_low = _invert(n0, n1, delta, alpha / 2.0, low)
        # With equal numbers both tails have the same law, and more evidence means a larger bound.
        by_high = -math.inf if n0 == n1 else _invert(n1, n0, delta, alpha / 2.0, high, by_low)
    else:
        by_high = _invert(n1, n0, delta, alpha / 2.0, high)
        by_low = -math.inf if n0 == n1 else _invert(n0, n1, delta, alpha / 2.0, low, by_high)
    if by_high > by_low:
        # Scores at this one speak for the record too: the threshold is just below.
        at = float(np.nextafter(with_record[n1 - high.rank], -np.inf))
        return Finding(by_high, at, high.ones, n1 - high.rank, n0, n1)
    return Finding(by_low, float(without[low.rank - 1]), n0 - low.rank, low.ones, n0, n1)


@dataclass(frozen=True, order=True)
class _Evidence:
    """The largest evidence over the grid, and the counts that gave it."""

    limit: float
    rank: int
    ones: int


def _most_telling(zeros: Array, ones: Array, delta: float) -> _Evidence:
    n0, n1 = len(zeros), len(ones)
    grid = _grid(n0, delta)
    counts = np.searchsorted(ones, zeros[grid.ranks - 1], side="right")
    limits = grid.limits(counts, n0, n1)
    best = int(np.argmax(limits))
    return _Evidence(float(limits[best]), int(grid.ranks[best]), int(counts[best]))


@dataclass(frozen=True, eq=False)
class _Grid:
    """The ranks looked at, and what a single look at one of them would say.

    Attributes:
        ranks: [m], ascending.
        shares: ranks less the atoms to be expected at the start, [m].
        levels: nominal errors [m].
    """

    ranks: Counts
    shares: Array
    levels: Array

    def limits(self, counts: Counts, n0: int, n1: int) -> Array:
        """The epsilon [m] that each count gives on its own, were arrivals Poisson."""
        zero_share = special.betaincinv(self.shares, counts + 1.0, self.levels)
        return np.asarray(special.logit(zero_share) + math.log(n1 / n0), dtype=np.float64)

    def boundary(self, limit: float, n0: int, n1: int) -> Counts:
        """The largest counts [m] with at least the given limit; -1 where there is none."""
        zero_share = special.expit(limit - math.log(n1 / n0))

        def enough(counts: Counts) -> ArrayLike:
            return special.betainc(self.shares, counts + 1.0, zero_share) <= self.levels

        return last_integer(enough, np.full(len(self.ranks), -1), n1 + 1)


@lru_cache(maxsize=64)
def _grid(n0: int, delta: float) -> _Grid:
    steps = [float(n0)]
    while steps[-1] > 1.0:
        share = min(max(0.5 * steps[-1] ** -0.5, _SMALLEST_STEP), _LARGEST_STEP)
        steps.append(steps[-1] * (1.0 - share))
    ranks = np.unique(np.rint(steps))
    # No evidence in ranks that chance alone would fill with atoms.
    atoms = 0
    if n0 * delta > 1e-4:
        atoms = math.ceil(special.bdtrik(0.999, n0, delta))
    ranks = ranks[ranks > atoms] if atoms < n0 else ranks[-1:]
    shares = np.maximum(ranks - atoms, 1e-3)
    levels = _NOMINAL * (ranks / n0) ** _NOMINAL_POWER
    levels = np.where(ranks > n0 / 2.0, _UPPER_HALF, 1.0) * levels
    return _Grid(ranks.astype(np.int64), shares, levels)


@lru_cache(maxsize=4096)
def _invert(
    n0: int, n1: int, delta: float, alpha: float, evidence: _Evidence, beyond: float = 0.0
) -> float:
    """The largest epsilon at which evidence this large has probability at most alpha.

    0 where it is not beyond what is known already.
    """
    grid = _grid(n0, delta)
    boundary = grid.boundary(evidence.limit, n0, n1)
    at = int(np.searchsorted(grid.ranks, evidence.rank))
    boundary[at] = max(boundary[at], evidence.ones)
    # A path counts its ones in order, so a boundary may be raised to an earlier one's height.
    boundary = np.maximum.accumulate(boundary)
    ranks, boundary = grid.ranks[boundary >= 0], boundary[boundary >= 0]

    # On the probit scale the error is close to linear in epsilon.
    target = float(special.ndtri(alpha))

    def excess(epsilon: float) -> float:
        error = _error(n0, n1, delta, alpha, epsilon, ranks, boundary)
        return float(special.ndtri(max(error, 1e-300))) - target

    # The error grows with epsilon: ever closer within a bracket [low, high].
    low, high = 0.0, math.inf
    epsilon = beyond if beyond > 0.0 else max(evidence.limit, 0.0)
    seen: list[tuple[float, float]] = []
    spread = math.sqrt(1.0 / (evidence.ones + 1.0) + 1.0 / evidence.rank)
    for _ in range(60):
        value = excess(epsilon)
        seen.append((value, epsilon))
        if value <= 0.0:
            low = epsilon
            if value > -_TOLERANCE:
                break
        elif epsilon == beyond:
            return 0.0
        else:
            high = epsilon
        if high - low < 1e-5:
            break
        epsilon = max(_where(seen, -0.5 * _TOLERANCE, _STEP * spread), 0.0)
        if not low < epsilon < high and not (epsilon == 0.0 == low):
            epsilon = 0.5 * (low + high) if high < math.inf else low + 1.0
    return low


def _where(seen: list[tuple[float, float]], value: float, slope: float) -> float:
    """Where a function may have a value: by its inverse through the three nearest points seen.

    By a line through two, and with a given slope (of the inverse) through one.
    """
    near = sorted(seen, key=lambda point: abs(point[0] - value))[:3]
    if len(near) == 1:
        ((at, x),) = near
        return x + min(max((value - at) * slope, -1.0), 1.0)
    (a, x), (b, y), *third = near
    if a == b:
        return math.nan
    first = (y - x) / (b - a)
    line = x + first * (value - a)
    if not third or third[0][0] in (a, b):
        return line
    ((c, z),) = third
    bend = ((z - y) / (c - b) - first) / (c - a)
    return line + bend * (value - a) * (value - b)


def _error(
    n0: int, n1: int, delta: float, alpha: float, epsilon: float, ranks: Counts, boundary: Counts
) -> float:
    """P[c_j <= boundary_j for some rank j] in the worst game at epsilon, rounded up."""
    if len(ranks) == 0:
        return 0.0
    log_ceiling = math.log1p(-delta) - epsilon
    # Their number at the start is binomial; when many are likely, it is rounded up to the next of
    # a few, and what is rare beyond is an error.
    step = 1 + int(1.5 * math.sqrt(n0 * delta))
    total, followed, atoms = 0.0, 0.0, min(step - 1, n0)
    while True:
        up_to = float(special.bdtr(atoms, n0, delta)) if atoms < n0 else 1.0
        total += (up_to - followed) * _crossing(n0, n1, atoms, log_ceiling, ranks, boundary)
        followed = up_to
        beyond = float(special.bdtrc(atoms, n0, delta)) if atoms < n0 else 0.0
        if beyond <= _ATOM_SHARE * alpha:
            return min((total + beyond) * (1.0 + _ALLOWANCE) + _TAILS, 1.0)
        atoms = min(atoms + step, n0)


def _crossing(
    n0: int, n1: int, atoms: int, log_ceiling: float, ranks: Counts, boundary: Counts
) -> float:
    """The same probability with the number of atoms known.

    The labels of the points in order are not independent, but the probability of a beginning
    depends only on how many zeros and ones it has. So the recursion runs with independent labels,
    where the ones between two ranks are negative binomial, and each path that crosses is weighted,
    where it does, by the ratio of the two probabilities.
    """
    if ranks[0] <= atoms:
        return 1.0
    log_odds = math.log((n0 - atoms) / n1) - log_ceiling  # of a zero, in the recursion
    last = int(boundary[-1])
    states, start = np.ones(1), 0  # chances of having `start`, `start` + 1, ... ones, not crossed
    crossed: list[tuple[int, int, Array]] = []  # rank, first number of ones, chances
    arrived = atoms
    kernels: dict[int, tuple[Array, int]] = {}  # most ranks are as far apart as others
    for rank, limit in zip(ranks.tolist(), boundary.tolist(), strict=True):
        zeros_more = rank - arrived
        if zeros_more not in kernels:
            kernels[zeros_more] = _negative_binomial(zeros_more, log_odds, last - start)
        kernel, shift = kernels[zeros_more]
        start += shift
        if start > last:
            break
        states = convolve(states, kernel[: last - start + 1])[: last - start + 1]
        matter = states > 1e-14 * states.max()
        first = int(matter.argmax())
        if not matter[first]:
            break
        states = states[first : len(matter) - int(matter[::-1].argmax())]
        start += first
        arrived = rank
        out = min(max(limit - start + 1, 0), len(states))
        if out:
            crossed.append((rank, start, states[:out]))
            states, start = states[out:], start + out
            if len(states) == 0:
                break
    if not crossed:
        return 0.0
    # Chances that do not matter are dropped. Along many numbers of ones the log of the weight is
    # taken through a few: it is smooth, and close to a parabola.
    floor = 1e-9 * sum(c.sum() for _, _, c in crossed) / sum(len(c) for _, _, c in crossed)
    stretches: list[Array] = []
    zeros: list[Array] = []
    ones: list[Array] = []
    for rank, first, chances in crossed:
        matter = np.flatnonzero(chances > floor)
        if len(matter) == 0:
            continue
        kept = chances[matter[0] : matter[-1] + 1]
        span = np.arange(len(kept), dtype=np.float64)
        if len(kept) > _LONG:
            span = (len(kept) - 1) * 0.5 * (1.0 + _NODES)
        stretches.append(kept)
        ones.append(first + matter[0] + span)
        zeros.append(np.full(len(span), float(rank)))
    if not stretches:
        return 0.0
    log_weight = _log_weight(
        n0, n1, atoms, log_ceiling, log_odds, np.concatenate(zeros), np.concatenate(ones)
    )
    total, at = 0.0, 0
    for kept, span in zip(stretches, ones, strict=True):
        known = log_weight[at : at + len(span)]
        at += len(span)
        if len(kept) > _LONG:
            powers = np.polynomial.chebyshev.chebvander(
                np.linspace(-1.0, 1.0, len(kept)), len(_NODES) - 1
            )
            known = powers @ (_FIT @ known)
        total += float(kept @ np.exp(known))
    return min(total, 1.0)


def _negative_binomial(zeros: int, log_odds: float, most: int) -> tuple[Array, int]:
    """Chances of the number of ones that arrive with so many zeros, from some first to `most`."""
    log_one, log_zero = special.log_expit(-log_odds), special.log_expit(log_odds)
    mean = zeros * math.exp(-log_odds)
    spread = math.sqrt(mean * (1.0 + math.exp(-log_odds)))
    # Outside of these the chance is under 1e-15: a normal left, a gamma right tail.
    low = max(int(mean - 8.5 * spread), 0)
    high = int(min(mean + 9.0 * spread - 40.0 / log_one + 1.0, most))
    k = np.arange(low, high + 1.0)
    log_ways = special.gammaln(zeros + k) - special.gammaln(k + 1.0) - math.lgamma(zeros)
    return np.exp(log_ways + zeros * log_zero + k * log_one), low


def _log_weight(
    n0: int,
    n1: int,
    atoms: int,
    log_ceiling: float,
    log_odds: float,
    rank: Array,
    count: Array,
) -> Array:
    """Log probability of one beginning that ends with the rank-th zero, over that of the recursion.

    With the last zero at v, the others of the beginning lie below v and the rest above it (or
    beyond the ceiling), so it is an integral over v of v^x (1-v)^y (1 - ceiling v)^z. On the logit
    scale the integrand has one peak and exponential tails, and the trapezoidal rule suits it.
    """
    ceiling, beyond = math.exp(log_ceiling), -math.expm1(log_ceiling)
    seen = rank - atoms
    x, y, z = seen - 1.0 + count, n0 - rank, n1 - count
    # The mode on the logit scale, where v = expit(s) has derivative v (1 - v); then its width.
    v = (x + 1.0) / (x + y + 2.0 + z * ceiling)
    for _ in range(12):
        v = (x + 1.0) / (x + y + 2.0 + z * ceiling * (1.0 - v) / (1.0 - ceiling * v))
    slope = v * (1.0 - v)
    curvature = (x + y + 2.0) * slope
    curvature += z * ceiling * slope * (1.0 - 2.0 * v + ceiling * v * v) / (1.0 - ceiling * v) ** 2
    width = 1.0 / np.sqrt(curvature)
    # Nodes spaced by a hyperbolic sine: dense at the peak, and far into an exponential tail.
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
    log_followed = seen * special.log_expit(log_odds) + count * special.log_expit(-log_odds)
    return np.asarray(log_actual - log_followed, dtype=np.float64)
