"""The region bound: valid for every score and every distribution of K, and nearly attained.

It is a sum of shifted profiles of one run, sum_j (a_j - a_{j-1}) delta_base(eps + u_j). Here (a_j,
b_j) are the vertices of the lower convex hull of the origin and the curve (phi'(1-s), phi'(1-s'))
over all events (s, s'), and u_j the logarithms of its slopes (proposition 1 of docs/theory.md). The
hull does not depend on epsilon. The weights sum to E[K].
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from audit import numerics
from audit.accounting import DominatingPair, Mechanism, largest_epsilon, solve_epsilon
from audit.numerics import FloatArray, dot
from audit.repetitions import Repetitions
from audit.upper_bounds.registry import BoundValue, bound

_SOURCE = (
    "region bound: Koskela, Redberg & Wang 2024, theorem 4.1, maximised over achievable events"
)
# Points on the curve of events (four times as many reduce the bound by a relative 1e-7), and points
# of the first passes, which find where the curve changes.
_POINTS = 1 << 14
_FIRST_POINTS = 1 << 12
# A shift of epsilon that any finite epsilon leaves negative, and log of a negligible probability.
_REVEALED, _NEGLIGIBLE_LOG = -1e13, -100.0
# Smallest share of the points that each part of the curve gets.
_MIN_SHARE = 1e-9


@dataclass(frozen=True)
class ShiftedProfiles:
    """A sum of shifted base profiles, sum_j weights_j delta_base(eps + shifts_j)."""

    pair: DominatingPair  # the base's dominating pair
    weights: FloatArray  # [n], >= 0
    shifts: FloatArray  # [n], increasing; the first is minus the penalty

    def delta(self, epsilon: float) -> float:
        """The sum at epsilon."""
        return float(dot(self.weights, self.pair.profile(epsilon + self.shifts)))


@dataclass(frozen=True)
class RegionCurve:
    """The region bound as a function of epsilon, for one direction of the base.

    Attributes:
        pair: the base's dominating pair.
        repetitions: the distribution of K.
        points: points on the curve of events; fewer are faster and give a larger bound.
    """

    pair: DominatingPair
    repetitions: Repetitions
    points: int = _POINTS

    @cached_property
    def upper(self) -> ShiftedProfiles:
        """The bound, rounded up.

        Both a = phi'(1-s) and b = phi'(1-s') are convex and decreasing along the curve as functions
        of s: phi' is convex and increasing, and s' is a concave function of s (a trade-off curve).
        So between two points a is below its chord, and b is above the lines that extend the
        neighbouring chords. The hull contains the corner of these lines. This holds for smooth
        curves and for curves with a kink at every atom.
        """
        log_left, a, log_b = self._curve
        # Rounded towards a larger bound.
        a = a * (1.0 + numerics.FLOAT_ROUNDING)
        log_b = log_b - numerics.FLOAT_ROUNDING * (1.0 + np.where(log_b > -np.inf, -log_b, 0.0))
        # A last piece that ends in the certain event is a straight line on which b/a grows (log
        # phi' is convex in log x), so it needs no corner.
        inner = (a[1:] > 0.0) | (log_b[1:] > -np.inf)
        share, corner = _log_corners(distances(log_left), log_b)
        # If a has a kink within a piece, the box of its ends is used.
        kink = (log_left[1:] < self._kink) & (log_left[:-1] > self._kink)
        share, corner = np.where(kink, 0.0, share)[inner], np.where(kink, log_b[1:], corner)[inner]
        corner_a = a[:-1][inner] + np.diff(a)[inner] * share
        largest_a = self._most
        log_smallest_b = self._log_slopes(*np.full((2, 1), -np.inf))[1]
        # Before the first point and after the last the box of the limits bounds the curve.
        a_points = np.concatenate([[largest_a], a, corner_a, a[-1:]])
        return mixture(
            self.pair,
            np.minimum(a_points, largest_a * (1.0 + numerics.FLOAT_ROUNDING)),
            np.concatenate([log_b[:1], log_b, corner, log_smallest_b]),
        )

    @cached_property
    def vertices(self) -> tuple[FloatArray, FloatArray]:
        """Vertices (a, log b) [n] of the hull. Each event has one with larger a and smaller b."""
        weights, shifts = self.upper.weights, self.upper.shifts
        return np.cumsum(weights), np.logaddexp.accumulate(np.log(weights) + shifts)

    @cached_property
    def lower(self) -> ShiftedProfiles:
        """The same from points of the curve alone, which is smaller by the discretisation error."""
        _, a, log_b = self._curve
        return mixture(self.pair, a, log_b)

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up."""
        return min(self.upper.delta(epsilon) * (1.0 + numerics.PROFILE_ACCURACY), 1.0)

    @property
    def _most(self) -> float:
        """The largest a."""
        return self.repetitions.mean

    @property
    def _kink(self) -> float:
        """log(1-s) of the event at which a is not convex in s; 0 if there is none."""
        return 0.0

    def _log_slopes(self, log_left: FloatArray, log_left_with: FloatArray) -> FloatArray:
        """log a and log b [2, n] of events, from log(1-s) and log(1-s')."""
        return np.asarray(self.repetitions.log_phi_prime_at(np.stack([log_left, log_left_with])))

    @cached_property
    def events(self) -> FloatArray:
        """Parameters t [n] of extreme events, dense where a or b changes."""

        def heights(
            log_left: FloatArray, log_left_with: FloatArray
        ) -> tuple[FloatArray, FloatArray]:
            logs = self._log_slopes(log_left, log_left_with) - np.log(self._most)
            logs = np.maximum(logs, min(deepest(*logs), -700.0))
            # Events that seldom win matter less, but light terms can decide a small delta.
            return np.exp(0.125 * logs), logs

        # Any events give a valid bound: pieces between them are bounded from outside.
        t = dense_events(self.pair, heights, self.points)
        if self._kink < 0.0:
            for _ in range(4):
                t = np.union1d(t, np.interp(-self._kink, -self.pair.events(t)[0], t))
        return np.union1d(t, self.pair.event_range[1] - np.array([1.0, 2.0]))  # the last pieces

    @cached_property
    def _curve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """log(1-s), a and log b [n] of the events."""
        log_left, log_left_with = self.pair.events(self.events)
        log_a, log_b = self._log_slopes(log_left, log_left_with)
        return log_left, np.exp(log_a), log_b


region_curve = numerics.memoize(8)(RegionCurve)
"""The curve of a pair and a distribution of K, cached because several bounds use it."""


def mixture(pair: DominatingPair, a: FloatArray, log_b: FloatArray) -> ShiftedProfiles:
    """Shifted profiles of the lower hull of the origin and points (a, b) [n], from a and log b."""
    # Proposition 1: the largest of the lines a - e^eps b r is a sum of hinges in r with kinks at
    # the slopes of the hull, and each hinge integrates to a profile that is shifted by a log slope.
    vertices = numerics.lower_hull(a, log_b)
    a, log_b = a[vertices], log_b[vertices]
    weights = np.diff(a, prepend=0.0)
    steps = numerics.log_subtract(log_b, np.append(-np.inf, log_b[:-1]))
    # If b is 0 the output reveals the data set.
    return ShiftedProfiles(pair, weights, np.maximum(steps - np.log(weights), _REVEALED))


def deepest(log_a: FloatArray, log_b: FloatArray) -> float:
    """The smallest finite log b [n] of the events that can matter to any delta; 0 if none can."""
    matters = (log_a > _NEGLIGIBLE_LOG) & (log_b > -np.inf)
    return float(log_b[matters].min(initial=0.0))


def dense_events(
    pair: DominatingPair,
    heights: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]],
    points: int,
) -> FloatArray:
    """Parameters of about `points` events, dense where two pairs of curves [2, n] change."""
    t = np.linspace(*pair.event_range, _FIRST_POINTS)
    # Each pass resolves the steepest cell of the previous one; events of 1e-15 need a few passes.
    for count in (*[_FIRST_POINTS] * 6, points, points):
        moves = [np.abs(np.diff(v)).sum(axis=0) + _MIN_SHARE for v in heights(*pair.events(t))]
        moves = 0.8 * moves[0] / moves[0].sum() + 0.2 * moves[1] / moves[1].sum()
        t = np.unique(numerics.equidistribute(t, moves, count))
    return t


def distances(log_left: FloatArray) -> FloatArray:
    """Distances in s [n-1] of events, from log(1-s) [n], decreasing."""
    with np.errstate(invalid="ignore"):
        widths = np.exp(log_left[:-1]) * -np.expm1(np.diff(log_left))
    return np.where(np.isfinite(log_left[:-1]), widths, 0.0)


def corners(widths: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The corners at which the neighbouring chords of b, extended, meet between every two points.

    `widths` are the distances [n-1] of the points in s; b [..., n] is convex and decreasing in s.
    Returns the relative position of each corner between its points, from 0 to 1, and b there,
    [..., n-1]. No convex function through the points is below the chords to the corners.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        slopes = np.diff(b) / widths
        before, after = slopes.copy(), np.zeros_like(slopes)
        before[..., 0], before[..., 1:], after[..., :-1] = (
            -np.inf,
            slopes[..., :-1],
            slopes[..., 1:],
        )
        # b + before x = b' + after (x - width), in shares of the width.
        share = (slopes - after) / (before - after)
        corner = b[..., :-1] + before * share * widths
    # If rounding or an end leaves no corner, the box of the two points is used.
    bad = ~np.isfinite(corner) | ~((share >= 0.0) & (share <= 1.0))
    corner = np.where(bad, b[..., 1:], np.maximum(corner, b[..., 1:]))
    return np.where(bad, 0.0, share), corner


def _log_corners(widths: FloatArray, log_b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`corners` from log b, with the logarithm of b at each corner."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        fall = np.diff(log_b)
        # Slopes of a piece in units of b at its start, and of the pieces before and after it.
        slopes = np.expm1(fall) / widths
        before = np.append(-np.inf, slopes[:-1] * np.exp(-fall[:-1]))
        after = np.append(slopes[1:] * np.exp(fall[:-1]), 0.0)
        share = (slopes - after) / (before - after)
        corner = log_b[:-1] + np.log1p(before * share * widths)
    bad = ~np.isfinite(corner) | ~((share >= 0.0) & (share <= 1.0))
    corner = np.where(bad, log_b[1:], np.maximum(corner, log_b[1:]))
    return np.where(bad, 0.0, share), corner


def corner_events(left: FloatArray, left_with: FloatArray) -> FloatArray:
    """log(1-s) and log(1-s') [2, n-1] of corners below the curve, one between any two events.

    A corner is the intersection of the extended neighbouring chords of s', a concave function of s.
    It is computed from s' or from 1-s', whichever keeps its digits.
    """
    widths = distances(left)
    small = left_with[:-1] > np.log(0.5)
    share, by_rest = _safe_corners(widths, np.exp(left_with))
    share_small, by_event = _safe_corners(widths, np.expm1(left_with))
    share = np.where(small, share_small, share)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_with = np.where(small, np.log1p(by_event), np.log(by_rest))
        fall = np.expm1(np.diff(left))
        log_without = left[:-1] + np.log1p(np.where(np.isfinite(fall), fall, -1.0) * share)
    return np.stack([log_without, np.maximum(log_with, left_with[1:])])


def _safe_corners(widths: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`corners`; on straight lines, whose chords do not meet, the middle minus a margin."""
    share, corner = corners(widths, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.diff(b) / widths
    before, after = np.append(-np.inf, slopes[:-1]), np.append(slopes[1:], np.inf)
    with np.errstate(invalid="ignore"):
        bend = np.abs(after - before)
        straight = bend <= 1e-6 * np.abs(slopes)
        middle = 0.5 * (b[:-1] + b[1:]) - 0.5 * bend * widths - 1e-14 * np.abs(b[:-1])
    straight &= middle > b[1:]
    return np.where(straight, 0.5, share), np.where(straight, middle, corner)


def between(
    upper: Callable[[float], float], lower: Callable[[float], float], delta: float
) -> BoundValue:
    """The value of a bound whose exact profile lies between two others, with its error."""
    epsilon = solve_epsilon(upper, delta)
    return BoundValue(epsilon, error=max(epsilon - solve_epsilon(lower, delta), 0.0))


def _at_other_delta(
    base: Mechanism, repetitions: Repetitions, delta: float, _: float
) -> BoundValue:
    """The region bound, without its error."""
    curves = [region_curve(pair, repetitions) for pair in base.pairs]
    return BoundValue(largest_epsilon((curve.delta for curve in curves), delta))


@bound("region", 100, _SOURCE, is_quick=True, at_other_delta=_at_other_delta)
def region(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Smallest epsilon that the region bound gives at delta, over both directions.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(region(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 4)
        1.4491
    """
    curves = [region_curve(pair, repetitions) for pair in base.pairs]
    epsilon = largest_epsilon((curve.delta for curve in curves), delta)
    below = largest_epsilon((curve.lower.delta for curve in curves), delta)
    return BoundValue(epsilon, error=epsilon - min(below, epsilon))
