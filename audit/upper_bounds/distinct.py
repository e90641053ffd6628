"""The cost of a random number of distinct candidates, by the costs of grids.

This is proposition 28 of docs/theory.md. Given K = k, the tuning trains a uniformly random set of
min(k, m) candidates. The set does not depend on the records, so given k and the set the tuning is a
grid of min(k, m) candidates, whose profile is at most the grid bound delta_k(epsilon), whatever the
score. Without k and the set, the output is a mixture of these with weights that are the same on
both data sets. The hockey-stick divergence is jointly convex, so

    delta(epsilon) <= sum_k P[min(K, m) = k] delta_k(epsilon).

With k = 0 nothing is released, which adds nothing. A grid of k candidates is one of k' > k whose
other candidates never win, so its profile is at most that of k': one curve covers a range of k.

On a Gaussian base, the exact profile of a grid of k is the tight bound of k draws (proposition 4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from audit.accounting import (
    Candidates,
    DominatingPair,
    Mechanism,
    largest_epsilon,
    solve_epsilon,
)
from audit.errors import NotApplicable
from audit.numerics import memoize, shared_delta
from audit.protocols import DistinctCandidates
from audit.repetitions import Fixed
from audit.upper_bounds.composed import composed
from audit.upper_bounds.grid import FEW_POINTS, GridCurve
from audit.upper_bounds.grid_of_gaussians import gaussian_pair_of
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.tight import TightCurve

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


def _at_other_delta(
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
    at_other_delta=_at_other_delta,
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


def _tight_at_other_delta(
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
    at_other_delta=_tight_at_other_delta,
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
