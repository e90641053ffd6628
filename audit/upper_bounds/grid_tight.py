"""The cost of a grid as that of as many draws, on Gaussian bases and on log-concave privacy losses.

On a Gaussian base, candidates have equal or different noise. With equal noise the cost is that of
as many draws from one distribution (proposition 4 of docs/theory.md). Propositions 5 and 18 cover
candidates that are left out at random, and proposition 17 covers candidates with different noise.
None holds for every base.

With different noise, candidates of equal mu form a kind. The bound is the sum of the contributions
of the kinds if they win, the integrals of G_k(e) over e (proposition 17 of docs/theory.md).
Numerical errors only raise it. G_k decreases, so its value at the smaller end of each cell bounds
the integral. In G_k, let X be the product of the other candidates under P and X' that under P'. The
smallest X' is a convex function of X in logarithms. So every slope sigma > 1 gives a line below it,
log X' >= sigma log X - k(sigma), and the maximum of X - e^eps L' X^sigma e^-k(sigma) bounds G_k.
Every sigma is safe, and the one of the true maximum is exact.

If the loss of one run has a log-concave density, apart from outputs that reveal the data set, the
cost of a grid of m is that of `tight` for fixed:m (proposition 6 of docs/theory.md). The loss of
composed sampled batches is log-concave except in far tails, and known on a lattice. So each
direction is replaced by a pair that meets the condition and dominates it: the right tail is moved
to an infinite loss, left tails that are not concave are cut off, and the density is shifted to the
right until the loss is stochastically at least as large as before. This only raises the profile,
E[(1 - e^(epsilon - loss))_+], and lowers P', whose lost mass gets the loss -inf.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy import special

from audit.accounting import (
    DeltaUnreachable,
    DominatingPair,
    LossPair,
    Mechanism,
    compose,
    solve_epsilon,
)
from audit.accounting.combinations import kinds_of_candidates
from audit.accounting.pairs import GaussianPair, PrivacyLossPmf
from audit.errors import NotApplicable
from audit.numerics import (
    PROFILE_ACCURACY,
    QUANTILE_ACCURACY,
    SUM_ROUNDING,
    BoolArray,
    FloatArray,
    IntArray,
    bisect_intervals,
    convex_chain,
    dot,
    equidistribute,
    last_integer,
    log_subtract,
    memoize,
    shared_delta,
)
from audit.protocols import Grid
from audit.repetitions import Binomial, Fixed
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import BoundValue, bound, find
from audit.upper_bounds.tight import (
    TightCurve,
    proved_if_expected,
    tight,
    tight_at_other_delta,
)

# Events of the first pass and of the integral; ten times as many reduce epsilon by 1e-4.
_COARSE, _FINE = 400, 8_000
# Events of the other kinds between which k(sigma) is bounded by its chord.
_OTHERS = 4_000
# Standard deviations beyond which a normal tail is below 1e-300, and the range of log widths of the
# remaining outputs, in standard deviations.
_FAR = 37.0
_WIDTHS = np.log([1e-6, 2.0 * _FAR])
# Smaller mu count as this one: the slopes of their curves differ from 1 by rounding errors only.
_SMALLEST_MU = 0.01
# If there are more distinct values of mu, they are rounded up to this many.
_MAX_KINDS = 8
# Kinds are merged where this lowers delta by more than this share.
_WORTHWHILE = 1e-3
Kind = tuple[float, int]
"""The mu of some candidates, and how many there are."""
_SOURCE = (
    "tight bound of the same number of independent draws, exact for a grid with a Gaussian base"
)
_OF_KINDS = "tight bound within candidates of equal noise, region bound between them"
_OF_TWO = "tight bound of binomial:2,p, exact for two candidates on a Gaussian base"
_BY_CHANCE = "mean of the tight bounds of as many draws as candidates are run"
# Share of delta for the event that more candidates are trained than the bins cover.
_RARE = 0.02
# Probability of more candidates than in the first bin, number of bins, and events of each curve.
_USUAL, _BINS, _POINTS = 0.7, 12, 500
# Number of bins, and events of each curve, at deltas other than that of a certificate.
_FEW_BINS, _FEW_EVENTS = 6, 200
_LARGE_EPSILON = 1e6


@dataclass(frozen=True)
class OtherKind:
    """The contribution of candidates of another kind to a line below the curve of products."""

    mu: float
    count: int

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Slopes sigma [n], increasing, with k(sigma) and log(1-s) of one candidate."""
        # Dense in the middle; far to the left the slope is close to 1.
        b = np.concatenate([-np.geomspace(1e4, 6.0, 400), np.linspace(-6.0, _FAR, _OTHERS)[1:]])
        x, x_with = special.log_ndtr(b), special.log_ndtr(b - self.mu)
        with np.errstate(over="ignore"):  # lines of infinite slope are left out
            sigma = np.exp(self.mu * (b - 0.5 * self.mu) + x - x_with)
        # Rounding must not reverse the order of the slopes.
        with np.errstate(invalid="ignore"):
            grows = np.append(True, np.diff(np.maximum.accumulate(sigma)) > 1e-12)
        usable = grows & (sigma > 1.0)
        usable &= np.isfinite(sigma)
        sigma, x, x_with = sigma[usable], x[usable], x_with[usable]
        return sigma, sigma * x - x_with + SUM_ROUNDING * sigma * np.abs(x_with), x

    def constant(self, sigma: FloatArray) -> FloatArray:
        """k(sigma) of all candidates of the kind [n], rounded up; infinite where it is unknown.

        k is a maximum of lines in sigma, hence below its chords, and it decreases.
        """
        slopes, constants, _ = self._table
        return self.count * np.interp(sigma, slopes, constants, left=np.inf)

    def log_ratio(self, sigma: FloatArray) -> FloatArray:
        """Approximate log of X'/X of the kind [n] where its curve has the slope sigma."""
        slopes, constants, x = self._table
        log_x = np.interp(sigma, slopes, x)
        return self.count * ((sigma - 1.0) * log_x - np.interp(sigma, slopes, constants))


@dataclass(frozen=True)
class WinnersOfKind:
    """The contribution of the candidates of one kind."""

    mu: float
    count: int
    other_kinds: tuple[OtherKind, ...]

    def delta(self, epsilon: float) -> float:
        """The contribution to delta at epsilon >= 0, rounded up."""
        z = np.linspace(-_FAR, _FAR, _COARSE)
        widths = self._widths(z, epsilon)
        # The error of a cell is its width times the step of G.
        heights = self._heights(z, widths, epsilon)
        errors = np.sqrt(np.diff(special.ndtr(z)) * -np.diff(heights))
        fine = z  # if all heights underflow or are 1, no finer cells are needed
        if errors.any():
            fine = np.unique(equidistribute(z, errors + 1e-4 * errors.sum() / _COARSE, _FINE))
        heights = self._heights(fine, np.interp(fine, z, widths), epsilon)
        e = special.ndtr(fine)
        # A difference of tails keeps its digits on the side of the smaller tail.
        cells = np.where(fine[:-1] < 0.0, np.diff(e), -np.diff(special.ndtr(-fine)))
        # G is at most 1 before the first point, and at most its last value behind the last one.
        ends = e[0] + float(special.ndtr(-fine[-1]) * heights[-1])
        return self.count * (float(dot(cells, heights[:-1])) + ends) * (1.0 + PROFILE_ACCURACY)

    def _left(self, z: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """log(1-e-f) and log(1-L-U) [n] of one candidate, and the slope there.

        `z` are the ends [n] of the outputs that are preferred and in the event, `width` the
        logarithms [n] of the width of the outputs that are left.
        """
        end = z + np.exp(width)
        x, x_with = _log_mass(z, end), _log_mass(z - self.mu, end - self.mu)
        with np.errstate(over="ignore"):  # an infinite slope gives no height, which counts as 1
            return x, x_with, np.exp(self.mu * (end - 0.5 * self.mu) + x - x_with)

    def _widths(self, z: FloatArray, epsilon: float) -> FloatArray:
        """Widths [n] of the remaining outputs at the best f, where a derivative vanishes."""
        slope_at_e = epsilon + self.mu * (z - 0.5 * self.mu)

        def wide(width: FloatArray) -> BoolArray:
            x, x_with, sigma = self._left(z, width)
            with np.errstate(invalid="ignore"):  # an infinite slope; any width is safe
                ratio = np.log(sigma) + (self.count - 1) * (x_with - x) + slope_at_e
                return np.asarray(
                    ratio + sum(kind.log_ratio(sigma) for kind in self.other_kinds) <= 0.0
                )

        low, high = (np.full(len(z), width) for width in _WIDTHS)
        return bisect_intervals(wide, low, high, 40)[1]

    def _heights(self, z: FloatArray, width: FloatArray, epsilon: float) -> FloatArray:
        """G [n] at the ends z, rounded up; any widths are safe."""
        x, x_with, sigma = self._left(z, width)
        with np.errstate(all="ignore"):
            own_ratio = sigma * x - x_with + SUM_ROUNDING * (np.abs(x) + np.abs(x_with)) * sigma
            constant = (self.count - 1) * own_ratio + sum(
                kind.constant(sigma) for kind in self.other_kinds
            )
            price = epsilon + self.mu * (z - 0.5 * self.mu) - constant
            # The largest X - e^price X^sigma, which is attained at X^(sigma - 1) = e^-price /
            # sigma.
            log_height = np.log1p(-1.0 / sigma) - (price + np.log(sigma)) / (sigma - 1.0)
        heights = np.exp(np.where(sigma > 1.0 + 1e-12, np.fmin(log_height, 0.0), 0.0))
        # G decreases in e, so a bound at a smaller e is also one here.
        return np.minimum.accumulate(np.where(np.isnan(heights), 1.0, heights))


def _log_mass(low: FloatArray, high: FloatArray) -> FloatArray:
    """log of the normal probability [n] between two points, from the smaller tail."""
    flip = low + high > 0.0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return log_subtract(special.log_ndtr(high), special.log_ndtr(low))


@memoize(16)
def _winners(kinds: tuple[Kind, ...]) -> tuple[WinnersOfKind, ...]:
    all_kinds = [OtherKind(mu, count) for mu, count in kinds]
    return tuple(
        WinnersOfKind(mu, count, tuple(kind for j, kind in enumerate(all_kinds) if j != k))
        for k, (mu, count) in enumerate(kinds)
    )


def kinds_delta(kinds: Sequence[Kind], epsilon: float) -> float:
    """The bound on delta at epsilon for candidates of several kinds, rounded up."""
    return float(min(sum(winners.delta(epsilon) for winners in _winners(tuple(kinds))), 1.0))


def kinds_epsilon(kinds: Sequence[Kind], delta: float) -> float:
    """The smallest epsilon of the bound at delta, rounded up.

    Candidates may count as less private ones: neighbouring kinds are merged as long as this lowers
    the bound.
    """
    remaining = _at_most(kinds, _MAX_KINDS)
    epsilon = solve_epsilon(partial(kinds_delta, remaining), delta)
    while len(remaining) > 1:
        merged = [_merge(remaining, k) for k in range(len(remaining) - 1)]
        deltas = [kinds_delta(merged_kinds, epsilon) for merged_kinds in merged]
        if min(deltas) >= delta * (1.0 - _WORTHWHILE):
            break
        remaining = merged[int(np.argmin(deltas))]
        epsilon = solve_epsilon(partial(kinds_delta, remaining), delta)
    return epsilon


def _merge(kinds: list[Kind], k: int) -> list[Kind]:
    """The kinds, with the candidates of kind k + 1 counted as kind k."""
    (mu, count), (_, more) = kinds[k : k + 2]
    return [*kinds[:k], (mu, count + more), *kinds[k + 2 :]]


def _at_most(kinds: Sequence[Kind], max_kinds: int) -> list[Kind]:
    """At most this many kinds: the closest are merged, and a very small mu is rounded up."""
    # A candidate may count as one with a larger mu, whose pair dominates it.
    kinds = sorted(((max(mu, _SMALLEST_MU), count) for mu, count in kinds), reverse=True)
    while len(kinds) > max_kinds:
        mus = np.array([mu for mu, _ in kinds])
        kinds = _merge(kinds, int(np.argmin((mus[:-1] - mus[1:]) * [n for _, n in kinds[1:]])))
    return kinds


def _gaussian_at_other_delta(
    base: Mechanism, protocol: Grid, delta: float, certified: float
) -> BoundValue:
    """The bound with few events, for candidates that all run with the same noise."""
    candidate_kinds = kinds_of_candidates(base, protocol.candidates, protocol.spec)
    worst = max((member for member, _ in candidate_kinds), key=_mu)
    if protocol.inclusion < 1.0 and protocol.candidates > 2:
        return BoundValue(by_chance_shared(_gaussian_pair(_mu(worst)), protocol, delta))
    if len(candidate_kinds) > 1 or protocol.inclusion < 1.0:
        raise NotApplicable("each delta needs a computation of its own")
    draws = Fixed(protocol.candidates)
    return tight_at_other_delta(worst, draws, delta, certified)


@bound(
    "grid-tight",
    110,
    _SOURCE,
    about=("Gaussian base",),
    protocol=Grid,
    is_special=True,
    title=r"$\varepsilon_U$ grid, tight (any score)",
    at_other_delta=_gaussian_at_other_delta,
)
def grid_tight(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta.

    The base is one run of any candidate, or `Candidates` with one mechanism for each. If candidates
    are left out at random, all count as the least private one.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(grid_tight(GaussianMechanism(0.24721), Grid(10), 1e-5).epsilon, 3)
        2.728
    """
    candidate_kinds = kinds_of_candidates(base, protocol.candidates, protocol.spec)
    worst = max((member for member, _ in candidate_kinds), key=_mu)
    # N(0, 1) against N(mu, 1) dominates smaller mu, so that every candidate may count as the worst.
    # Proposition 18 is proved for two candidates only. For more, proposition 5 holds.
    if protocol.inclusion < 1.0 and protocol.candidates == 2:
        of_two = find("tight").body(worst, Binomial(2, protocol.inclusion), delta)
        return replace(of_two, source=_OF_TWO)
    if protocol.inclusion < 1.0:
        return BoundValue(by_chance(GaussianPair(_mu(worst)), protocol, delta), source=_BY_CHANCE)
    # Proposition 4, and proposition 17 for candidates with different noise.
    tight_value = tight(worst, Fixed(protocol.candidates), delta)
    if len(candidate_kinds) > 1:
        try:
            epsilon = kinds_epsilon(
                [(_mu(member), count) for member, count in candidate_kinds], delta
            )
        except DeltaUnreachable:
            epsilon = math.inf
        if epsilon < tight_value.epsilon:
            return BoundValue(epsilon, source=_OF_KINDS)
    if not tight_value.applies:
        raise NotApplicable(tight_value.reason)
    return BoundValue(
        tight_value.epsilon,
        tight_value.error,
        attains=tight_value.attains if len(candidate_kinds) == 1 else 0.0,
    )


def by_chance(pair: DominatingPair, protocol: Grid, delta: float) -> float:
    """Smallest epsilon if candidates, each dominated by the pair, are left out at random."""
    return solve_epsilon(_ByChance(pair, protocol, delta).delta, delta)


def by_chance_shared(pair: DominatingPair, protocol: Grid, delta: float) -> float:
    """The same with few events and bins, from curves that several deltas share."""
    return solve_epsilon(_shared_by_chance(pair, protocol, shared_delta(delta)).delta, delta)


@memoize(8)
def _shared_by_chance(pair: DominatingPair, protocol: Grid, delta: float) -> "_ByChance":
    return _ByChance(pair, protocol, delta, _FEW_EVENTS, _FEW_BINS)


@dataclass(frozen=True)
class _ByChance:
    """The cost of a grid whose candidates are left out at random, for all deltas from one on."""

    pair: DominatingPair
    protocol: Grid
    least_delta: float
    events: int = _POINTS
    bins: int = _BINS

    @cached_property
    def _curves(self) -> tuple[list[tuple[float, TightCurve]], float]:
        """The probability and the curve of each bin, and the probability of more candidates."""
        runs, chances, beyond = _bins(self.protocol, self.least_delta, self.bins)
        reveals = float(self.pair.profile(_LARGE_EPSILON))
        curves = []
        for k, chance in zip(runs, chances, strict=True):
            # The curve is dense where each bin adds the same to delta, if that is possible.
            share = max(self.least_delta / (len(runs) * chance), 2.0 * k * reveals)
            curve = TightCurve.at(self.pair, Fixed(k), min(share, 0.5), self.events)
            curves.append((chance, curve))
        return curves, beyond

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon, rounded up."""
        curves, beyond = self._curves
        # Proposition 5: the number of candidates that run is independent of the data. A bin costs
        # at most its largest number, and numbers beyond the last bin count in full.
        together = sum(chance * min(curve.delta(epsilon), 1.0) for chance, curve in curves)
        return together * (1.0 + QUANTILE_ACCURACY) + beyond


@memoize(8)
def _gaussian_pair(mu: float) -> GaussianPair:
    """The pair of a mu, the same object for every delta, so that curves are found again."""
    return GaussianPair(mu)


def gaussian_pair_of(base: Mechanism) -> GaussianPair:
    """The Gaussian pair that dominates one run.

    Raises:
        NotApplicable: the base is not Gaussian.
    """
    return _gaussian_pair(_mu(base))


def _mu(candidate: Mechanism) -> float:
    """The mu of the Gaussian pair that dominates one run, for any class of mechanism."""
    means = [pair.mu for pair in candidate.pairs if isinstance(pair, GaussianPair)]
    if len(means) < len(candidate.pairs):
        raise NotApplicable("the base must be Gaussian, such as DP-SGD with full batches")
    return max(means)


def _bins(protocol: Grid, delta: float, bins: int) -> tuple[list[int], list[float], float]:
    """Largest number of trained candidates and probability of each bin, and that of more."""
    count, chance = protocol.candidates, protocol.inclusion

    def exceeded(k: IntArray) -> FloatArray:
        second_shape = np.maximum(count - k, 1)
        return np.where(
            k < count, special.betainc(np.maximum(k, -1) + 1.0, second_shape, chance), 0.0
        )

    def last_above(share: float) -> int:
        return int(last_integer(lambda k: exceeded(k) > share, -1, count))

    largest_count = last_above(_RARE * delta) + 1
    beyond = float(exceeded(np.array([largest_count]))[0]) * (1.0 + QUANTILE_ACCURACY)
    if largest_count == 0:
        return [], [], beyond
    smallest_count = max(min(last_above(_USUAL), largest_count), 1)
    edges = np.unique(np.linspace(smallest_count, largest_count, bins).round().astype(np.int64))
    above = np.append(exceeded(np.array([0])), exceeded(edges))
    chances = above[:-1] - above[1:]
    is_possible = chances > 0.0
    return edges[is_possible].tolist(), chances[is_possible].tolist(), beyond


# Shares of delta for runs that reveal the data set. The best is mostly the first or close to it;
# each list ends where the bound grows.
_SMALLEST_SHARE = 1e-8
_SHARED_SHARE = 1e-5
_SHARES = ((1e-3, 1e-5, _SMALLEST_SHARE), (0.02, 0.1, 0.5))
# Left tails that may be cut off. Once one loses this much more than a shorter one, longer ones do.
_LEFT_TAILS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
_TOO_MUCH = 1.2
_REGION_POINTS = 1 << 11
# Bins per standard deviation of the loss, and the smallest number of lattice points in a bin.
_BINS_OF_DENSITY, _POINTS_OF_BIN = 150, 8
# Largest width of a bin that resolves the density, in standard deviations of the loss.
_WIDEST_BIN = 0.1
_SMALLEST_MASS = 1e-290
# If more of P' than this is lost, the density is not smooth; mu of the smoothing, in standard
# deviations of the loss.
_JAGGED, _SMOOTHING = 0.1, 0.12
# Relative and absolute margin of the shift, far above the rounding of a quantile.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Density:
    """A density that is exponential between points: log-concave if the slopes decrease."""

    at: FloatArray  # the points [n], increasing
    log: FloatArray  # the logarithm [n] of the density there

    @property
    def widths(self) -> FloatArray:
        """Widths [n-1] of the pieces."""
        return np.diff(self.at)

    @property
    def masses(self) -> FloatArray:
        """Masses [n-1] of the pieces."""
        return np.exp(self.log[:-1]) * self.widths * _mean_exp(np.diff(self.log))

    def cut_to(self, total: float) -> "_Density":
        """The right part that has this total mass, which is at most that of the whole density."""
        above = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)
        j = int(np.flatnonzero(above >= total)[-1])
        slope = (self.log[j + 1] - self.log[j]) / (self.at[j + 1] - self.at[j])
        back = float(_distance(np.array([total - above[j + 1]]), self.log[j + 1], -slope)[0])
        return _Density(
            np.append(self.at[j + 1] - back, self.at[j + 1 :]),
            np.append(self.log[j + 1] - slope * back, self.log[j + 1 :]),
        )

    def where_below(self, masses: FloatArray) -> FloatArray:
        """The points [m] to the left of which these masses [m] lie."""
        below = np.append(0.0, np.cumsum(self.masses))
        j = np.clip(np.searchsorted(below, masses, side="right") - 1, 0, len(below) - 2)
        slopes = (np.diff(self.log) / self.widths)[j]
        into = _distance(masses - below[j], self.log[j], slopes)
        return self.at[j] + np.clip(into, 0.0, self.widths[j])

    @property
    def mirrored(self) -> "_Density":
        """The density of the negated variable."""
        return _Density(-self.at[::-1], self.log[::-1])


def _mean_exp(s: FloatArray) -> FloatArray:
    """(e^s - 1) / s [n]: the mean of e^x for x from 0 to s."""
    small = np.abs(s) < 1e-5
    safe = np.where(small, 1.0, s)
    return np.where(small, 1.0 + s / 2.0 + s * s / 6.0, np.expm1(safe) / safe)


def _distance(mass: FloatArray, log: FloatArray, slope: FloatArray) -> FloatArray:
    """Distance [n] over which a density with this log value and slope has this mass."""
    flat = mass * np.exp(-log)
    bend = slope * flat
    small = np.abs(bend) < 1e-8
    safe = np.where(small, 1.0, slope)
    # If the density decreases too fast there is no such distance; the caller clips the result.
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log1p(np.where(small, 0.0, bend)) / safe
    return np.nan_to_num(np.where(small, flat * (1.0 - bend / 2.0), exact), nan=np.inf)


def log_concave_pair(pair: DominatingPair, spent: float, left_tail: float = 0.0) -> LossPair:
    """A pair that dominates another, and whose finite losses have a log-concave density.

    Args:
        pair: the pair, preferably with losses on a fine lattice.
        spent: the largest probability of finite losses that become infinite.
        left_tail: the largest probability of losses that are cut off on the left.

    Raises:
        NotApplicable: the lattice is too coarse to resolve a density.

    Example:
        >>> from audit.accounting import DpSgd
        >>> pair = DpSgd(4.0, 500, 0.2).pairs[0]
        >>> found = log_concave_pair(pair, 1e-9)
        >>> 0.0 < float(found.profile(4.0)) / float(pair.profile(4.0)) - 1.0 < 1e-3
        True
    """
    return _connected(*_dominating(_on_lattice(pair), spent, left_tail))


def _dominating(pmf: PrivacyLossPmf, spent: float, left_tail: float) -> tuple[_Density, float]:
    """The density of finite losses, and the probability of an infinite loss."""
    loss, at_least, below = pmf.loss, pmf.at_least, pmf.below
    spacing = float(loss[-1] - loss[0]) / (len(loss) - 1)
    deviation = pmf.deviation
    points = max(int(deviation / _BINS_OF_DENSITY / spacing), _POINTS_OF_BIN)
    if points * spacing > _WIDEST_BIN * deviation:
        raise NotApplicable("its losses are too coarse to have a density")
    starts = np.arange(0, len(loss), points)
    ends = np.append(starts[1:], len(loss))
    in_bins = np.add.reduceat(pmf.mass, starts)
    # Losses behind this bin become infinite, and unusable ones on the left are cut off. Both make
    # the loss stochastically larger, which only increases the profile (after proposition 6).
    last_bin = int(np.argmax(at_least[ends] <= max(spent, pmf.p_only)))
    usable = (in_bins > _SMALLEST_MASS) & (below[starts] >= left_tail)
    usable[last_bin + 1 :] = False
    if usable.sum() < 3:
        raise NotApplicable("its losses are too few to have a density")
    beyond = float(at_least[ends[last_bin]])
    density = _majorant(
        0.5 * (loss[starts] + loss[ends - 1])[usable],
        np.log(in_bins[usable] / ((ends - starts)[usable] * spacing)),
        float(loss[starts[usable][0]]),
        float(loss[ends[usable][-1] - 1]) + 0.5 * spacing,
    )
    # Either way the total becomes 1 - beyond, and the shift below makes the loss stochastically
    # larger than before.
    total = float(density.masses.sum())
    if total >= 1.0 - beyond:
        density = density.cut_to(1.0 - beyond)
    else:
        density = _Density(density.at, density.log + np.log((1.0 - beyond) / total))
    # Quantiles of both from the nearer end, so that tails keep their digits.
    left = at_least[:-1] >= 0.5
    right = ~left & (at_least[:-1] > beyond)
    behind = loss[left] - density.where_below(below[:-1][left])
    ahead = loss[right] + density.mirrored.where_below(at_least[:-1][right] - beyond)
    shift = max(float(behind.max(initial=0.0)), float(ahead.max(initial=0.0)))
    return _Density(density.at + shift * (1.0 + _ROUNDING) + _ROUNDING, density.log), beyond


def _composed(*pairs: DominatingPair) -> PrivacyLossPmf:
    try:
        return compose([(pair, 1) for pair in pairs]).pmf
    except DeltaUnreachable as error:
        raise NotApplicable(str(error)) from error


def _on_lattice(pair: DominatingPair) -> PrivacyLossPmf:
    if isinstance(pair, LossPair) and len(pair.pmf.loss) > 2:
        steps = np.diff(pair.pmf.loss)
        if np.ptp(steps) < 1e-6 * steps[0]:
            return pair.pmf
    return _composed(pair)


def _majorant(at: FloatArray, log: FloatArray, first: float, last: float) -> _Density:
    """The least concave function above the points [n], from `first` to `last`."""
    hull = convex_chain(at, -log)
    at, log = at[hull], log[hull]
    slopes = np.diff(log) / np.diff(at)
    return _Density(
        np.concatenate([[first], at, [last]]),
        np.concatenate(
            [[log[0] - slopes[0] * (at[0] - first)], log, [log[-1] + slopes[-1] * (last - at[-1])]]
        ),
    )


def _connected(density: _Density, beyond: float) -> LossPair:
    """The density with each piece moved to its ends, which preserves its mass under P and P'."""
    # Mass that moves to both ends of a piece spreads P'/P without changing its mean under P, which
    # increases the mean of every convex function of P'/P, and so the profile.
    masses, widths = density.masses, density.widths
    # P' of a piece, times e to the loss at its start.
    with_record = np.exp(density.log[:-1]) * widths * _mean_exp(np.diff(density.log) - widths)
    to_end = np.clip((masses - with_record) / -np.expm1(-widths), 0.0, masses)
    mass = np.append(masses - to_end, 0.0) + np.append(0.0, to_end)
    is_possible = mass > 0.0
    loss, log_mass = density.at[is_possible], np.log(mass[is_possible])
    lost = max(1.0 - float(np.exp(log_mass - loss).sum()), 0.0)
    return LossPair(PrivacyLossPmf(loss, log_mass, beyond, lost))


def _log_concave_at_other_delta(
    base: Mechanism, protocol: Grid, delta: float, _: float
) -> BoundValue:
    """The bound with few events, for pairs that several deltas share."""
    if base.gaussian_mu is not None:
        raise NotApplicable("the base is Gaussian: grid-tight is simpler")
    if not base.is_directed and not base.is_symmetric:
        raise NotApplicable("it must be known which data set of the pair has the record")
    epsilon, runs = 0.0, protocol.runs_distribution
    pairs = _shared(base, protocol, shared_delta(delta))
    expected = proved_if_expected(pairs, runs, delta) if protocol.inclusion == 1.0 else None
    if expected is not None:
        return BoundValue(expected[0])
    for pair in pairs:
        if protocol.inclusion < 1.0:
            epsilon = max(epsilon, by_chance_shared(pair, protocol, delta))
            continue
        curve = TightCurve.quick(pair, runs, delta)
        epsilon = max(epsilon, curve.epsilon(delta, curve.guess))
    return BoundValue(epsilon)


@memoize(8)
def _shared(base: Mechanism, protocol: Grid, delta: float) -> list[LossPair]:
    """A dominating pair with a log-concave loss for each direction."""
    kinds_of_candidates(base, protocol.candidates, protocol.spec)
    pairs, share = [], delta / protocol.mean_runs
    for pair in base.pairs:
        smooth, tail = _smooth(pair, share)
        pairs.append(log_concave_pair(smooth, _SHARED_SHARE * share, tail))
    return pairs


@bound(
    "grid-log-concave",
    105,
    "tight bound of as many draws of a dominating pair with a log-concave loss",
    about=("any base",),
    protocol=Grid,
    is_special=True,
    title=r"$\varepsilon_U$ grid, log-concave loss (any score)",
    at_other_delta=_log_concave_at_other_delta,
)
def grid_log_concave(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    The base is one run of any candidate, or `Candidates`, which all count as the least private one.

    Example:
        >>> from audit.accounting import DpSgd
        >>> round(grid_log_concave(DpSgd(4.0, 500, 0.2), Grid(20), 1e-5).epsilon, 1)
        24.5
    """
    kinds_of_candidates(base, protocol.candidates, protocol.spec)
    if base.gaussian_mu is not None:
        raise NotApplicable("the base is Gaussian: grid-tight is simpler")
    if not base.is_directed and not base.is_symmetric:
        raise NotApplicable("it must be known which data set of the pair has the record")
    epsilon = 0.0
    for pair in base.pairs:
        epsilon = _epsilon(pair, protocol, delta, epsilon)
    return BoundValue(epsilon)


def _epsilon(pair: DominatingPair, protocol: Grid, delta: float, lower_limit: float) -> float:
    """The bound, at least `lower_limit`, with the tails that give the smallest region bound."""
    runs = protocol.mean_runs
    pair, tail = _smooth(pair, delta / runs)
    repetitions = protocol.runs_distribution
    best: tuple[float, LossPair] | None = None
    for shares in _SHARES:
        for share in shares:
            log_concave = log_concave_pair(pair, share * delta / runs, tail)
            region = functools.cache(region_curve(log_concave, repetitions, _REGION_POINTS).delta)
            # `tight` is at most `region` of the same pair, so this direction cannot raise the cost.
            if protocol.inclusion == 1.0 and region(lower_limit) <= delta:
                return lower_limit
            if best is not None and region(best[0]) > delta:
                break
            try:
                best = solve_epsilon(region, delta), log_concave
            except DeltaUnreachable:
                continue
    if best is None:
        raise NotApplicable("the base reveals the data set with a larger probability")
    if protocol.inclusion < 1.0:
        return max(lower_limit, by_chance(best[1], protocol, delta))
    curve = TightCurve.at(best[1], repetitions, delta)
    return lower_limit if curve.delta(lower_limit) <= delta else curve.epsilon(delta)


def _smooth(pair: DominatingPair, share: float) -> tuple[LossPair, float]:
    """The pair on a lattice, made smooth if it is jagged, and the left tail that may be cut off."""
    pmf = _on_lattice(pair)
    smooth = LossPair(pmf)
    tail, lost = _left_tail(smooth, share)
    if lost > _JAGGED:
        # A small Gaussian mechanism, added to every run, smooths the density.
        smooth = LossPair(_composed(smooth, GaussianPair(_SMOOTHING * pmf.deviation)))
        tail, _ = _left_tail(smooth, share)
    return smooth, tail


def _left_tail(pair: LossPair, share: float) -> tuple[float, float]:
    """The left tail whose cut loses the least mass of P', and that loss."""
    smallest_loss, best = math.inf, 0.0
    for tail in _LEFT_TAILS:
        lost = log_concave_pair(pair, _SMALLEST_SHARE * share, tail).pmf.q_only
        if lost < smallest_loss:
            smallest_loss, best = lost, tail
        elif lost > _TOO_MUCH * smallest_loss:
            break
    return best, smallest_loss
