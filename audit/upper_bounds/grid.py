"""The cost of a list for any base: all candidates run once, each with a chance, or a random number.

For a grid, this is the region bound with a curve of products over the other candidates (proposition
3 of docs/theory.md). In logarithms this curve is a sum of sets, so its lower boundary consists of
all pieces of their hulls, ordered by slope. If s_j' = 1 is reached before s_j = 1, the curve is cut
where h(1-s_j) falls below a small probability. Events beyond the cut count as a full leak.

A random number of distinct candidates is proposition 28 of docs/theory.md. Given K = k, the tuning
trains a uniformly random set of min(k, m) candidates. The set does not depend on the records, so
given k and the set the tuning is a grid of min(k, m) candidates, whose profile is at most the grid
bound delta_k(epsilon), whatever the score. Without k and the set, the output is a mixture of these
with weights that are the same on both data sets. The hockey-stick divergence is jointly convex, so

    delta(epsilon) <= sum_k P[min(K, m) = k] delta_k(epsilon).

With k = 0 nothing is released, which adds nothing. A grid of k candidates is one of k' > k whose
other candidates never win, so its profile is at most that of k': one curve covers a range of k.
On a Gaussian base, the exact profile of a grid of k is the tight bound of k draws (proposition 4).
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from audit import numerics
from audit.accounting import (
    Candidates,
    DominatingPair,
    Mechanism,
    largest_epsilon,
    solve_epsilon,
)
from audit.accounting.combinations import arrangements, kinds_of_candidates
from audit.errors import NotApplicable
from audit.numerics import FloatArray, memoize, shared_delta
from audit.protocols import DistinctCandidates, Grid
from audit.repetitions import Fixed
from audit.upper_bounds.composed import composed
from audit.upper_bounds.grid_tight import gaussian_pair_of
from audit.upper_bounds.region import ShiftedProfiles, corner_events, dense_events, mixture
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.tight import TightCurve

MAX_POINTS, FEW_POINTS = 1 << 16, 1 << 12
# Shares of delta for events beyond the cut. Every share gives a valid bound. A hull in logarithms
# interpolates to events with a tiny 1-s, so on rarely sampled batches larger cuts give less.
_SHARES = (1e-6, 1e-2, 0.1, 0.3)
_PREVIEW_SHARE = 1e-2
# Relative gain below which no further share is tried.
_SUFFICIENT = 1e-3
# Change of log(b/a) beyond which a piece of the curve of products is divided, and its largest
# number of parts.
_LARGEST_BEND, _MAX_PARTS = 0.01, 1024
_MAX_PIECES = 400_000  # of ten thousand candidates with much noise or little


@dataclass(frozen=True)
class GridCurve:
    """The grid bound as a function of epsilon, for one direction.

    Attributes:
        pairs: a dominating pair for every kind of candidate.
        counts: number of candidates of every kind.
        inclusion: probability that a candidate is trained.
        negligible: a delta; rarer events count as a full leak.
        points: largest number of points of the curve.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> curve = GridCurve(GaussianMechanism(0.25).pairs, (10,), inclusion=1.0, negligible=1e-12)
        >>> round(curve.delta(3.0), 6)
        1.3e-05
    """

    pairs: tuple[DominatingPair, ...]
    counts: tuple[int, ...]
    inclusion: float
    negligible: float
    points: int = MAX_POINTS

    @cached_property
    def upper(self) -> tuple[ShiftedProfiles, ...]:
        """The bound, rounded up, as a mixture for every kind of winner."""
        return self._mixtures(rounded=True)

    @cached_property
    def lower(self) -> tuple[ShiftedProfiles, ...]:
        """The same from points of the curve alone, which is smaller by the discretisation error."""
        return self._mixtures(rounded=False)

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up."""
        together = sum(profiles.delta(epsilon) for profiles in self.upper)
        return min(together * (1.0 + numerics.PROFILE_ACCURACY), 1.0)

    def attained_delta(self, epsilon: float) -> float:
        """The bound at epsilon, rounded down."""
        return min(sum(profiles.delta(epsilon) for profiles in self.lower), 1.0)

    @cached_property
    def cut(self) -> float:
        """The largest h(1-s) below which an event counts as a full leak."""
        return max(
            float(np.exp(self._log_h(pair.events(np.array([end]))[0])[0]))
            if end < pair.event_range[1]
            else 0.0
            for pair, end in zip(self.pairs, self._ends, strict=True)
        )

    @property
    def least(self) -> float:
        """The `cut` if every output of every candidate is possible on both data sets."""
        smallest = self.negligible / (sum(self.counts) * self.inclusion)
        return max(smallest, sys.float_info.min)  # its logarithm is needed

    def _mixtures(self, rounded: bool) -> tuple[ShiftedProfiles, ...]:
        steps = [
            self._boundary(pair, end, rounded)
            for pair, end in zip(self.pairs, self._ends, strict=True)
        ]
        cut = self.cut if rounded else 0.0
        mixtures = []
        for winner, pair in enumerate(self.pairs):
            other_counts = [count - (kind == winner) for kind, count in enumerate(self.counts)]
            log_a, log_b = _sum_of_boundaries(steps, other_counts, math.log(self.least))
            weight = self.counts[winner] * self.inclusion
            a, log_b = _points(log_a, log_b, rounded)
            # An event beyond the cut has a product of at most the cut, so that (cut, 0) bounds it
            # ("Rare events are cut off", after proposition 3).
            if cut > 0.0 and sum(other_counts) > 0:
                a, log_b = np.append(a, cut), np.append(log_b, -np.inf)
            mixtures.append(mixture(pair, weight * a, math.log(weight) + log_b))
        return tuple(mixtures)

    def _boundary(
        self, pair: DominatingPair, end: float, rounded: bool
    ) -> tuple[FloatArray, FloatArray]:
        """The lower boundary of the hull of (log h(1-s), log h(1-s')) for one candidate.

        `end` is the pair's last event. Returns steps [n] of log a and of log b, both negative, the
        steepest first. The boundary ends where b/a is smallest: beyond, a is smaller and b/a
        larger, which cannot increase the bound. Up to there h(1-s') lies above a polygon of lines
        b = k a - c with c >= 0, which are concave functions in logarithms, so the hull of its
        corners is enough.
        """
        floor, other_count = math.log(self.least), sum(self.counts) - 1

        def heights(
            log_left: FloatArray, log_left_with: FloatArray
        ) -> tuple[FloatArray, FloatArray]:
            logs = np.maximum(self._log_h(np.stack([log_left, log_left_with])), 2.0 * floor)
            return np.exp(0.125 * other_count * logs), np.maximum(logs, [[floor], [2.0 * floor]])

        t = dense_events(pair, heights, min(self.points // len(self.pairs), self.points // 4))
        t = np.append(t[t < end], [end] if end < t[-1] else t[-1:])
        logs = np.stack(pair.events(t))
        if rounded:
            logs = np.hstack([logs, corner_events(*logs)])
        x, y = self._log_h(logs)
        if rounded:
            # Both logarithms are negative: a is rounded up and b down.
            x, y = x * (1.0 - numerics.SUM_ROUNDING), y * (1.0 + numerics.SUM_ROUNDING)
        order = np.lexsort((-y, -x))
        x, y = x[order], y[order]
        last = int(np.argmin(y - x)) + 1
        x, y = x[:last], y[:last]
        if not np.any(y < 0.0):
            return np.empty(0), np.empty(0)
        # A hull from the origin, of -x over -y.
        hull = numerics.lower_hull(-y, numerics.safe_log(-x))
        return np.diff(x[hull], prepend=0.0), np.diff(y[hull], prepend=0.0)

    @cached_property
    def _ends(self) -> tuple[float, ...]:
        """The last event t of every pair with h(1-s) of at least `least` and h(1-s') above 0."""
        return tuple(map(self._last_event, self.pairs))

    def _last_event(self, pair: DominatingPair) -> float:
        # Both conditions hold up to some event. Evaluating many events together is faster than
        # halving; after ten rounds, the interval is 64^10 = 2^60 times as small.
        low, high = pair.event_range
        for _ in range(10):
            t = np.linspace(low, high, 65)
            x, y = self._log_h(np.stack(pair.events(t[1:-1])))
            usable = (x >= np.log(self.least)) & (y > -np.inf)
            last = int(np.argmin(np.append(usable, False)))
            low, high = float(t[last]), float(t[last + 1])
        return low if high < pair.event_range[1] else high

    def _log_h(self, log_left: FloatArray) -> FloatArray:
        return log_h(self.inclusion, log_left)


def log_h(inclusion: float, log_left: FloatArray) -> FloatArray:
    """log h(x) = log(1 - p + p x) from log(x), elementwise, for the inclusion probability p."""
    with np.errstate(divide="ignore"):
        near = np.log1p(inclusion * np.expm1(np.maximum(log_left, -1.0)))
        log_absent = math.log1p(-inclusion) if inclusion < 1.0 else -math.inf
        far = np.logaddexp(log_absent, math.log(inclusion) + log_left)
    return np.where(log_left > -1.0, near, far)


def _sum_of_boundaries(
    steps: list[tuple[FloatArray, FloatArray]], counts: list[int], floor: float
) -> tuple[FloatArray, FloatArray]:
    """Points [n] of the sum of `counts` times each boundary, from (0, 0) on.

    Long pieces above the floor of log a are divided, because b is a power of a and not linear.
    """
    dx = np.concatenate([count * x for (x, _), count in zip(steps, counts, strict=True)])
    dy = np.concatenate([count * y for (_, y), count in zip(steps, counts, strict=True)])
    dx, dy = dx[dy < 0.0], dy[dy < 0.0]
    # The lower boundary of a sum of convex sets consists of all their pieces, the steepest first.
    order = np.argsort(dx / dy, kind="stable")
    dx, dy = dx[order], dy[order]
    inner = (np.append(0.0, np.cumsum(dx)[:-1]) > floor) & np.isfinite(dy)
    bends = np.subtract(dx, dy, out=np.zeros(len(dx)), where=inner)
    largest = max(_LARGEST_BEND, float(bends.sum()) / _MAX_PIECES)
    pieces = np.clip(np.ceil(bends / largest), 1.0, _MAX_PARTS).astype(np.int64)
    dx, dy = np.repeat(dx / pieces, pieces), np.repeat(dy / pieces, pieces)
    return np.append(0.0, np.cumsum(dx)), np.append(0.0, np.cumsum(dy))


def _points(log_a: FloatArray, log_b: FloatArray, rounded: bool) -> tuple[FloatArray, FloatArray]:
    """a and log b of points [n] on the curve and, if `rounded`, of corners below it.

    Between vertices b is a power of a with exponent g >= 1, a convex function above the tangents at
    both ends.
    """
    a = np.exp(log_a)
    if not rounded or len(a) == 1:
        return a, log_b
    da, db = -np.diff(log_a), -np.diff(log_b)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        g = np.maximum(db / da, 1.0)
        share = (g - 1.0) / g * np.expm1(-g * da) / np.expm1(-(g - 1.0) * da)
        corner = 1.0 + g * (share - 1.0) - numerics.QUANTILE_ACCURACY
    # If rounding or a slope near 1 leaves no corner, the box of both ends is used.
    bad = ~((share >= np.exp(-da)) & (share < 1.0) & (corner > 0.0))
    share, fall = np.where(bad, 1.0, share), np.where(bad, -db, np.log(np.where(bad, 1.0, corner)))
    return np.append(a, a[:-1] * share), np.append(log_b, log_b[:-1] + fall)


def sides(
    base: Mechanism, protocol: Grid
) -> list[tuple[tuple[DominatingPair, ...], tuple[int, ...]]]:
    """Pairs and counts in every arrangement; candidates of one mechanism share its direction."""
    # If it is unknown which data set has the record, the worst arrangement of directions counts.
    candidate_kinds = kinds_of_candidates(base, protocol.candidates, protocol.spec)
    if len(candidate_kinds) == 1 and not isinstance(base, Candidates):
        return [((pair,), (protocol.candidates,)) for pair in base.pairs]
    return [
        (tuple(pair for pair, _ in arrangement), tuple(count for _, count in arrangement))
        for arrangement in arrangements(candidate_kinds)
    ]


def _exceeds(base: Mechanism, protocol: Grid, delta: float, epsilon: float) -> bool:
    """Whether few points of the curve show that the grid bound is above epsilon."""
    return any(
        GridCurve(*side, protocol.inclusion, delta, FEW_POINTS).attained_delta(epsilon) > delta
        for side in sides(base, protocol)
    )


def _preview(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The grid bound from few points of the curve, for one share of delta beyond the cut.

    Every share and every number of points give a valid bound, because the curve is rounded up.
    """
    return _from_few_points(base, protocol, delta, delta)


def _at_other_delta(base: Mechanism, protocol: Grid, delta: float, _: float) -> BoundValue:
    """The same from curves that several deltas share."""
    return _from_few_points(base, protocol, delta, shared_delta(delta))


def _from_few_points(
    base: Mechanism, protocol: Grid, delta: float, least_delta: float
) -> BoundValue:
    """The grid bound at delta, from curves for all deltas from `least_delta` on."""
    if protocol.candidates * protocol.inclusion <= delta:
        return BoundValue(0.0)
    curves = _curves_of_few_points(base, protocol, least_delta)
    return BoundValue(largest_epsilon((curve.delta for curve in curves), delta))


@memoize(8)
def _curves_of_few_points(base: Mechanism, protocol: Grid, delta: float) -> list[GridCurve]:
    arranged, inclusion = sides(base, protocol), protocol.inclusion
    return [GridCurve(*side, inclusion, _PREVIEW_SHARE * delta, FEW_POINTS) for side in arranged]


@bound(
    "grid",
    100,
    "grid bound: the region bound with a product over the other candidates",
    about=("any base, possibly different for each candidate",),
    protocol=Grid,
    title=r"$\varepsilon_U$ grid (any score)",
    exceeds=_exceeds,
    preview=_preview,
    at_other_delta=_at_other_delta,
)
def grid(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """Smallest epsilon that the grid bound gives at delta, over both directions."""
    inclusion = protocol.inclusion
    if protocol.candidates * inclusion <= delta:
        return BoundValue(0.0)  # with probability at least 1 - delta, nothing is trained
    best = BoundValue(math.inf, error=math.inf)
    arranged = sides(base, protocol)
    # Each share gives a bound for every score, so the smallest of them is one.
    for share in _SHARES:
        curves = [GridCurve(*side, inclusion, share * delta) for side in arranged]
        epsilon = largest_epsilon((curve.delta for curve in curves), delta)
        if epsilon < best.epsilon:
            below = largest_epsilon((curve.attained_delta for curve in curves), delta)
            best = BoundValue(epsilon, error=epsilon - min(below, epsilon))
        # The points of the curve above the largest cut belong to the curve of every share.
        if _exceeds(base, protocol, delta, best.epsilon * (1.0 - _SUFFICIENT)):
            break
    return best


_CURVES = 24
"""Ranges of the number of runs; each costs one curve of a grid."""

_POINTS = 1 << 14
"""Largest number of points of each curve; four times as many change epsilon by at most 0.1 %."""

_MAX_CANDIDATES = 10**6
_NEGLIGIBLE = 1e-3  # share of delta that a curve may lose

# Ranges and events of the tight bounds, at the delta of a cost and at other deltas.
_TIGHT_CURVES, _FEW_TIGHT_CURVES = 12, 6
_EVENTS, _FEW_EVENTS = 500, 200
_TIGHT = "mean of the tight bounds of as many draws as candidates are run"


def _ranges(protocol: DistinctCandidates, number: int = _CURVES) -> list[tuple[float, int]]:
    """Probabilities of ranges of the number of runs, with the largest number of each range."""
    candidates = protocol.candidates
    if candidates > _MAX_CANDIDATES:
        raise NotApplicable(f"the list must have at most {_MAX_CANDIDATES} candidates")
    chances = np.asarray(protocol.repetitions.pmf(np.arange(candidates)), dtype=np.float64)
    # P[min(K, m) = m] is what the smaller numbers leave; it is rounded up.
    last = max(1.0 - float(chances.sum()) + 1e-15 * candidates, 0.0)
    weights = np.append(chances, last)
    possible = 1 + np.flatnonzero(weights[1:] > 0.0)
    if len(possible) == 0:
        return []
    ends = possible
    if len(possible) > number:
        spread = np.geomspace(possible[0], possible[-1], number)
        ends = np.unique(np.append(np.ceil(spread).astype(np.int64), possible[-1]))
    # Each range counts as its largest number of runs, whose grid leaks at least as much.
    sums = np.bincount(np.searchsorted(ends, possible), weights[possible], len(ends))
    return [(float(w), int(k)) for k, w in zip(ends, sums, strict=True) if w > 0.0]


def _chance_of_training(protocol: DistinctCandidates) -> float:
    return sum(weight for weight, _ in _ranges(protocol))


def _mixture_at_other_delta(
    base: Mechanism, protocol: DistinctCandidates, delta: float, _: float
) -> BoundValue:
    """The bound by curves with fewer points, which several deltas share."""
    if _chance_of_training(protocol) <= delta:
        return BoundValue(0.0)
    return BoundValue(largest_epsilon(_shared(base, protocol, shared_delta(delta)), delta))


@bound(
    "grid-mixture",
    100,
    "grid bound, given the number of runs",
    about=("any base, the same for each candidate",),
    protocol=DistinctCandidates,
    title=r"$\varepsilon_U$ distinct candidates (any score)",
    at_other_delta=_mixture_at_other_delta,
)
def grid_mixture(base: Mechanism, protocol: DistinctCandidates, delta: float) -> BoundValue:
    """Smallest epsilon that the mixture of grid bounds gives at delta, over both directions.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(grid_mixture(GaussianMechanism(0.25), "distinct:10/fixed:10", 1e-5).epsilon, 2)
        3.05
    """
    if _chance_of_training(protocol) <= delta:
        return BoundValue(0.0)  # with probability at least 1 - delta, nothing is trained
    return BoundValue(largest_epsilon(_profiles(base, protocol, delta), delta))


def _tight_mixture_at_other_delta(
    base: Mechanism, protocol: DistinctCandidates, delta: float, _: float
) -> BoundValue:
    """The bound by curves with fewer events, which several deltas share."""
    _check_one_base(base)
    if _chance_of_training(protocol) <= delta:
        return BoundValue(0.0)
    mean = _shared_tight(gaussian_pair_of(base), protocol, shared_delta(delta))
    return BoundValue(solve_epsilon(mean.delta, delta))


@bound(
    "grid-mixture-tight",
    110,
    _TIGHT,
    about=("Gaussian base, the same for each candidate",),
    protocol=DistinctCandidates,
    is_special=True,
    title=r"$\varepsilon_U$ distinct candidates, tight (any score)",
    at_other_delta=_tight_mixture_at_other_delta,
)
def grid_mixture_tight(base: Mechanism, protocol: DistinctCandidates, delta: float) -> BoundValue:
    """Smallest epsilon that the mixture of tight bounds gives at delta, on a Gaussian base.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base = GaussianMechanism(0.25)
        >>> round(grid_mixture_tight(base, "distinct:10/fixed:10", 1e-5).epsilon, 2)
        2.76
    """
    _check_one_base(base)
    if _chance_of_training(protocol) <= delta:
        return BoundValue(0.0)  # with probability at least 1 - delta, nothing is trained
    ranges = tuple(_ranges(protocol, _TIGHT_CURVES))
    mean = _MeanOfTight(gaussian_pair_of(base), ranges, delta, _EVENTS)
    return BoundValue(solve_epsilon(mean.delta, delta))


@memoize(8)
def _shared_tight(
    pair: DominatingPair, protocol: DistinctCandidates, delta: float
) -> "_MeanOfTight":
    return _MeanOfTight(pair, tuple(_ranges(protocol, _FEW_TIGHT_CURVES)), delta, _FEW_EVENTS)


@dataclass(frozen=True)
class _MeanOfTight:
    """The mean of the tight bounds of ranges of the number of runs, for all deltas from one on.

    Attributes:
        pair: the Gaussian pair of one run; both directions are equal.
        ranges: the probability and the largest number of runs of each range.
        least_delta: the delta near which the curves are dense.
        events: largest number of events of each curve.
    """

    pair: DominatingPair
    ranges: tuple[tuple[float, int], ...]
    least_delta: float
    events: int

    @cached_property
    def _curves(self) -> list[tuple[float, TightCurve]]:
        # Each curve is dense where every range adds the same to delta.
        return [
            (
                weight,
                TightCurve.at(
                    self.pair,
                    Fixed(runs),
                    min(self.least_delta / (len(self.ranges) * weight), 0.5),
                    self.events,
                ),
            )
            for weight, runs in self.ranges
        ]

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon, rounded up."""
        total = sum(weight * min(curve.delta(epsilon), 1.0) for weight, curve in self._curves)
        return min(total * (1.0 + 1e-12), 1.0)


def _check_one_base(base: Mechanism) -> None:
    """Raises `NotApplicable` if candidates have different bases: it is random which of them run."""
    if isinstance(base, Candidates):
        raise NotApplicable("candidates must have one base, because it is random which of them run")


def _profiles(
    base: Mechanism, protocol: DistinctCandidates, delta: float, points: int = _POINTS
) -> list[Callable[[float], float]]:
    """The bound on delta as a function of epsilon for each direction, for deltas from `delta` on.

    `points` is the largest number of points of a curve.
    """
    _check_one_base(base)
    ranges = _ranges(protocol)
    releases = _releases(base, tuple(k for _, k in ranges))

    def profile_of(pair_index: int) -> Callable[[float], float]:
        curves = {
            k: GridCurve((base.pairs[pair_index],), (k,), 1.0, _NEGLIGIBLE * delta, points)
            for _, k in ranges
        }

        def profile(epsilon: float) -> float:
            # For each k, releasing all runs is another valid bound, so the smaller one counts.
            deltas = [
                weight * min(curves[k].delta(epsilon), float(releases[k].delta(epsilon)))
                for weight, k in ranges
            ]
            return min(sum(deltas) * (1.0 + 1e-12), 1.0)

        return profile

    return [profile_of(index) for index in range(len(base.pairs))]


@memoize(2)
def _releases(base: Mechanism, runs: tuple[int, ...]) -> dict[int, Mechanism]:
    """The release of all runs, by their number, which all deltas share."""
    return {k: composed(base, k) for k in runs}


@memoize(8)
def _shared(
    base: Mechanism, protocol: DistinctCandidates, delta: float
) -> list[Callable[[float], float]]:
    return _profiles(base, protocol, delta, FEW_POINTS)
