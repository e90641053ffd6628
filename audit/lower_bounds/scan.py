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

This extends exact confidence bands for one distribution function (Berk & Jones 1979; Noe 1972, for
the recursion) to a ratio of two; the construction is this project's own.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Ratio of neighbouring ranks on the grid, and the power of the rank that the nominal error levels
# follow: both only steer power, never validity.
_RANK_RATIO = 1.25
_LEVEL_POWER = 0.5
_NOMINAL = 0.02
# Chance of atoms beyond those followed, as a share of alpha; it is added to the error.
_ATOM_SHARE = 1e-3
# Relative allowance for the quadrature and the truncated tails of the recursion.
_ALLOWANCE = 1e-7


@dataclass(frozen=True)
class Tail:
    """One tail's outcome.

    Attributes:
        epsilon: the lower bound.
        rank: how many zeros had arrived at the most telling threshold.
        ones: how many ones had arrived by then.
    """

    epsilon: float
    rank: int
    ones: int


def tail_bound(zeros: Array, ones: Array, delta: float, alpha: float) -> Tail:
    """Lower bound on epsilon from the lower tail, with error alpha.

    Args:
        zeros: sorted scores [n0] of the input whose low scores are too many.
        ones: sorted scores [n1] of the other.
        delta: in [0, 1).
        alpha: in (0, 1).

    Returns:
        The bound, rounded down.
    """
    n0, n1 = len(zeros), len(ones)
    if n0 == 0 or n1 == 0:
        return Tail(0.0, 0, 0)
    ranks, levels = _grid(n0, delta)
    counts = np.searchsorted(ones, zeros[ranks - 1], side="right")
    evidence = _nominal_limit(ranks, counts, levels, n0, n1, delta)
    best = int(np.argmax(evidence))
    epsilon = _invert(n0, n1, delta, alpha, float(evidence[best]), best, int(counts[best]))
    return Tail(epsilon, int(ranks[best]), int(counts[best]))


@lru_cache(maxsize=64)
def _grid(n0: int, delta: float) -> tuple[Counts, Array]:
    """The ranks looked at, and the nominal error level of each."""
    steps = int(math.log(n0) / math.log(_RANK_RATIO)) + 1
    ranks = np.unique(np.rint(n0 * _RANK_RATIO ** -np.arange(steps)).astype(np.int64))
    ranks = ranks[ranks > n0 * delta]
    levels = _NOMINAL * (ranks / n0) ** _LEVEL_POWER
    return ranks, levels


def _nominal_limit(
    ranks: Counts, counts: Counts, levels: Array, n0: int, n1: int, delta: float
) -> Array:
    """The epsilon that a single look at (rank, count) would give, were arrivals Poisson."""
    zero_share = special.betaincinv(ranks - n0 * delta, counts + 1.0, levels)
    with np.errstate(divide="ignore"):
        return np.asarray(special.logit(zero_share) + math.log(n1 / n0), dtype=np.float64)


def _boundary(n0: int, n1: int, delta: float, evidence: float) -> Counts:
    """The largest counts [ranks] whose evidence is at least the given one; -1 if none is."""
    ranks, levels = _grid(n0, delta)
    zero_share = special.expit(evidence - math.log(n1 / n0))
    low = np.full(len(ranks), -1, dtype=np.int64)
    high = np.full(len(ranks), n1 + 1, dtype=np.int64)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        enough = special.betainc(ranks - n0 * delta, middle + 1.0, zero_share) <= levels
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return low


@lru_cache(maxsize=4096)
def _invert(
    n0: int, n1: int, delta: float, alpha: float, evidence: float, best: int, count: int
) -> float:
    """The largest epsilon at which evidence this large has probability at most alpha."""
    boundary = _boundary(n0, n1, delta, evidence)
    boundary[best] = max(boundary[best], count)
    ranks, _ = _grid(n0, delta)

    def excess(epsilon: float) -> float:
        return math.log(max(_error(n0, n1, delta, alpha, epsilon, ranks, boundary), 1e-300) / alpha)

    low, high = 0.0, math.inf
    at_low, at_high = excess(0.0), math.nan
    if at_low > 0.0:
        return 0.0
    guess = max(evidence, 0.1)
    for _ in range(60):
        value = excess(guess)
        if value <= 0.0:
            low, at_low = guess, value
        else:
            high, at_high = guess, value
        if high == math.inf:
            guess = guess + min(0.5, 0.05 - value)
            continue
        if high - low < 1e-4 or (value <= 0.0 and value > -1e-3):
            break
        slope = (at_high - at_low) / (high - low)
        guess = low - (at_low + 4e-4) / slope
        guess = min(max(guess, low + 0.01 * (high - low)), high - 0.01 * (high - low))
    return low


def _error(
    n0: int, n1: int, delta: float, alpha: float, epsilon: float, ranks: Counts, boundary: Counts
) -> float:
    """P[c_j <= boundary_j for some rank j on the grid] in the worst game at epsilon, rounded up."""
    ceiling = (1.0 - delta) * math.exp(-epsilon)
    looked = boundary >= 0
    ranks, boundary = ranks[looked], np.maximum.accumulate(boundary[looked])
    if len(ranks) == 0:
        return 0.0
    # The number of atoms at the start: followed one by one, the rare rest counts as an error.
    total, atoms, reached = 0.0, 0, 0.0
    while True:
        chance = _binomial(n0, delta, atoms)
        total += chance * _crossing(n0, n1, atoms, ceiling, ranks, boundary)
        reached += chance
        atoms += 1
        beyond = float(special.bdtrc(atoms - 1, n0, delta)) if atoms <= n0 else 0.0
        if beyond <= _ATOM_SHARE * alpha:
            return min((total + beyond) * (1.0 + _ALLOWANCE), 1.0)


def _binomial(n: int, p: float, k: int) -> float:
    log_ways = math.lgamma(n + 1.0) - math.lgamma(k + 1.0) - math.lgamma(n - k + 1.0)
    return math.exp(log_ways + float(special.xlogy(k, p) + special.xlog1py(n - k, -p)))


def _crossing(
    n0: int, n1: int, atoms: int, ceiling: float, ranks: Counts, boundary: Counts
) -> float:
    """The same probability with the number of atoms known.

    The labels of the points in order are not independent, but the probability of a beginning
    depends only on how many zeros and ones it has. So the recursion runs with independent labels,
    where the ones between two ranks are negative binomial, and each path that crosses is weighted,
    where it does, by the ratio of the two probabilities.
    """
    if ranks[0] <= atoms:
        return 1.0
    odds = (n0 - atoms) / (n1 * ceiling)
    zero_share = odds / (1.0 + odds)
    last = int(boundary[-1])
    states, start = np.ones(1), 0  # chance of having `start`, `start` + 1, ... ones, not crossed
    exits: list[tuple[Array, Counts, int]] = []
    arrived = atoms
    for rank, limit in zip(ranks.tolist(), boundary.tolist(), strict=True):
        kernel, shift = _negative_binomial(rank - arrived, zero_share)
        states, start = _convolve(states, kernel), start + shift
        states = states[: last - start + 1]
        arrived = rank
        out = max(limit - start + 1, 0)
        if out:
            crossed = states[:out]
            exits.append((crossed, start + np.arange(len(crossed)), rank))
            states, start = states[out:], start + out
        if len(states) == 0:
            break
    if not exits:
        return 0.0
    chance = np.concatenate([e[0] for e in exits])
    count = np.concatenate([e[1] for e in exits])
    rank_of = np.concatenate([np.full(len(e[0]), e[2]) for e in exits])
    kept = chance > 0.0
    weight = _weight(n0, n1, atoms, ceiling, zero_share, rank_of[kept], count[kept])
    return min(float(np.sum(chance[kept] * weight)), 1.0)


def _negative_binomial(zeros: int, zero_share: float) -> tuple[Array, int]:
    """Chances of the number of ones that arrive with so many zeros, from some first number on."""
    one_share = 1.0 - zero_share
    mean = zeros * one_share / zero_share
    spread = math.sqrt(mean / zero_share)
    # Beyond these both tails together have chance under 1e-15.
    low = max(int(mean - 8.5 * spread), 0)
    high = int(mean + 9.0 * spread + 40.0 / -math.log(one_share)) + 1 if one_share > 0 else 0
    k = np.arange(low, high + 1)
    log_chance = special.gammaln(zeros + k) - special.gammaln(k + 1.0) - math.lgamma(zeros)
    log_chance += zeros * math.log(zero_share) + k * math.log(one_share) if one_share > 0 else 0.0
    return np.exp(log_chance), low


def _convolve(a: Array, b: Array) -> Array:
    if len(a) * len(b) < 300_000:
        return np.convolve(a, b)
    size = 1 << (len(a) + len(b) - 2).bit_length()
    product = np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)
    return np.maximum(product[: len(a) + len(b) - 1], 0.0)


def _weight(
    n0: int, n1: int, atoms: int, ceiling: float, zero_share: float, rank: Counts, count: Counts
) -> Array:
    """Probability of one beginning that ends with the rank-th zero, over that of the recursion.

    With the last zero at v, the others of the beginning lie below v and the rest above it (or
    beyond the ceiling), so it is an integral over v of v^x (1-v)^y (1 - ceiling v)^z. On the logit
    scale the integrand is close to Gaussian, and the trapezoidal rule is exact to about 1e-9.
    """
    seen = rank - atoms
    x, y, z = seen - 1.0 + count, (n0 - rank).astype(np.float64), (n1 - count).astype(np.float64)
    # The mode on the logit scale, where v = expit(s) has derivative v (1 - v).
    v = (x + 1.0) / (x + y + 2.0 + z * ceiling)
    for _ in range(30):
        v = (x + 1.0) / (x + y + 2.0 + z * ceiling * (1.0 - v) / (1.0 - ceiling * v))
    slope = v * (1.0 - v)
    curvature = (x + y + 2.0) * slope
    curvature += z * ceiling * slope * (1.0 - 2.0 * v + ceiling * v * v) / (1.0 - ceiling * v) ** 2
    width = 1.0 / np.sqrt(curvature)
    nodes = np.linspace(-12.0, 12.0, 65)
    s = special.logit(v)[:, None] + width[:, None] * nodes
    log_v, log_rest = special.log_expit(s), special.log_expit(-s)
    log_f = (x[:, None] + 1.0) * log_v + (y[:, None] + 1.0) * log_rest
    log_f += z[:, None] * np.log1p(-ceiling * np.exp(log_v))
    top = log_f.max(axis=1)
    step = (nodes[1] - nodes[0]) * width
    log_integral = top + np.log(step * np.exp(log_f - top[:, None]).sum(axis=1))
    log_ways = special.gammaln(n0 - atoms + 1.0) - special.gammaln(y + 1.0)
    log_ways += special.gammaln(n1 + 1.0) - special.gammaln(z + 1.0) - special.gammaln(x + 1.0)
    log_actual = log_ways + special.xlogy(count, ceiling) + log_integral
    log_followed = seen * math.log(zero_share) + special.xlog1py(count, -zero_share)
    return np.exp(log_actual - log_followed)
