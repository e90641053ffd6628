"""The cost of a grid on Gaussian bases, whose candidates have equal or different noise.

With equal noise it is that of as many draws from one distribution (proposition 4 of
docs/theory.md). Propositions 5 and 18 cover candidates that are left out at random, and proposition
17 covers candidates with different noise. None holds for every base.

With different noise, candidates of equal mu form a kind. The bound is the sum of the contributions
of the kinds if they win, the integrals of G_k(e) over e (proposition 17 of docs/theory.md).
Numerical errors only raise it. G_k decreases, so its value at the smaller end of each cell bounds
the integral. In G_k, let X be the product of the other candidates under P and X' that under P'. The
smallest X' is a convex function of X in logarithms. So every slope sigma > 1 gives a line below it,
log X' >= sigma log X - k(sigma), and the maximum of X - e^eps L' X^sigma e^-k(sigma) bounds G_k.
Every sigma is safe, and the one of the true maximum is exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy import special

from audit.accounting import DeltaUnreachable, DominatingPair, Mechanism, solve_epsilon
from audit.accounting.combinations import kinds_of_candidates
from audit.accounting.pairs import GaussianPair
from audit.errors import NotApplicable
from audit.numerics import (
    PROFILE_ACCURACY,
    QUANTILE_ACCURACY,
    SUM_ROUNDING,
    BoolArray,
    FloatArray,
    IntArray,
    bisect_intervals,
    dot,
    equidistribute,
    last_integer,
    log_subtract,
    memoize,
    shared_delta,
)
from audit.protocols import Grid
from audit.repetitions import Binomial, Fixed
from audit.upper_bounds.registry import BoundValue, bound, find
from audit.upper_bounds.tight import (
    TightCurve,
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


def _at_other_delta(base: Mechanism, protocol: Grid, delta: float, certified: float) -> BoundValue:
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
    at_other_delta=_at_other_delta,
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
