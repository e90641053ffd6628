"""Upper bound for adaptive search that accounts for how much the earlier runs reveal.

The sampling density is the same function of the earlier runs on both data sets, so it differs only
as far as the distributions of those runs do (proposition 11 of docs/theory.md, with its notation:
u, l, H_n, phi_j and Psi). The same event applies to the runs before and after the best, so ties
must be broken at random or by candidate and output.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from audit import numerics
from audit.accounting import Mechanism, reach, solve_epsilon
from audit.arrays import FloatArray
from audit.errors import NotApplicable
from audit.protocols import Adaptive
from audit.upper_bounds.adaptive import AdaptiveCurve, adaptive_curves, any_fixed
from audit.upper_bounds.composed import composed
from audit.upper_bounds.region import ShiftedProfiles, mixture
from audit.upper_bounds.registry import BoundValue, bound

Stick = tuple[FloatArray, FloatArray]

# Events (s, s'), points t where Psi is known, and losses where a profile of n runs is: with twice
# as many of each, and of ranges, epsilon falls by 1 %.
_EVENTS, _POINTS, _LOSSES = 384, 96, 513
_LOG_T = np.concatenate([[0.0], np.linspace(0.25, 8.0, 32), np.geomspace(8.5, 600.0, 32)])
_LOG_T = np.union1d(-_LOG_T, _LOG_T)
# Shares of Psi(0): where the chords begin, not to lose their digits, and what is not resolved.
_FIRST, _REST = 1.0 - 1e-6, 1e-20
# The largest number of runs that is considered, and the share of E[K] that may be left out; beyond,
# the simple adaptive bound applies. Numbers of runs form ranges, and the largest of a range stands
# for all of them.
_MAX_RUNS = 1 << 13
_NEGLIGIBLE = 1e-6
_RANGES, _FEW_RANGES = 24, 8
# Where H_n(1) is larger, n runs reveal most of the record, and the exact amount does not matter.
_REVEALING = 0.75
_ALL = 0.99
_EVERYTHING = np.zeros(1), np.ones(1)
# Above the rounding of sums over `_MAX_RUNS` runs.
_UP = 1.0 + 1e-11


class _Part(NamedTuple):
    """What K in one range adds where the best is the j-th, for a range of j.

    Attributes:
        before: the most runs before the best.
        weight: sum of P[K = k].
        a: sum of P[K = k] u^(k-1) [m], in cells between events.
        follow: sum of phi_j(u) [m].
        least: smallest phi_j(l) / phi_j(u) [m].
    """

    before: int
    weight: float
    a: FloatArray
    follow: FloatArray
    least: FloatArray


class _Block(NamedTuple):
    """What K in one range adds.

    Attributes:
        others: the most runs other than the best.
        weight: sum of k P[K = k].
        a: sum of k P[K = k] u^(k-1) [m], in cells between events.
        b: sum of k P[K = k] l^(k-1) [m].
        parts: by the place of the best.
    """

    others: int
    weight: float
    a: FloatArray
    b: FloatArray
    parts: list[_Part]


@dataclass(frozen=True)
class ComposedRuns:
    """What n runs together reveal of the record: the hockey-stick divergence of their composition.

    Attributes:
        run: one run, with any fixed candidate.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> t, heights = ComposedRuns(GaussianMechanism(0.5)).hockey_stick(4)
        >>> round(float(np.interp(1.0, t, heights)), 3)  # total variation of mu = 1
        0.383
    """

    run: Mechanism

    def hockey_stick(self, runs: int) -> Stick:
        """Points (t, H_n(t)) from t = 0 on: chords are above what is convex."""
        if runs not in self._known:
            self._known[runs] = _hockey_stick(self.run, runs)
        return self._known[runs]

    @cached_property
    def _known(self) -> dict[int, Stick]:
        return {}


def _hockey_stick(run: Mechanism, runs: int) -> Stick:
    if runs == 0:
        return np.array([0.0, 1.0]), np.array([1.0, 0.0])
    try:
        together = composed(run, runs)
        last = reach(lambda epsilon: float(together.delta(epsilon)))
        losses = np.linspace(0.0, min(last, _LOG_T[-1]), _LOSSES)
        delta = np.minimum(together.delta(losses) * (1.0 + numerics.PROFILE_ACCURACY), 1.0)
    except NotApplicable:  # this many runs reveal everything
        return _EVERYTHING
    # For 1/t < 1 by the other direction: P(E) - P'(E)/t = 1 - 1/t + (P'(not E) - t P(not E)) / t.
    t = np.exp(losses)
    small = (1.0 - 1.0 / t + delta / t)[:0:-1]
    return np.concatenate([[0.0], 1.0 / t[:0:-1], t]), np.concatenate([[1.0], small, delta])


@dataclass(frozen=True)
class HistoryCurve:
    """The bound as a function of epsilon, for one direction of the base.

    Attributes:
        adaptive: the simple adaptive bound of the same direction; this one is never larger.
        composed_runs: what n runs reveal of the record.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import parse_repetitions
        >>> base = GaussianMechanism(0.25)
        >>> plain = AdaptiveCurve(base.pairs[0], parse_repetitions("tnb:0,0.1"), low=0.5, high=2.0)
        >>> HistoryCurve(plain, ComposedRuns(base)).delta(2.5) < 0.1 * plain.delta(2.5)
        True
    """

    adaptive: AdaptiveCurve
    composed_runs: ComposedRuns

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up."""
        mine = self.upper.delta(epsilon) * (1.0 + numerics.PROFILE_ACCURACY)
        return min(mine, self.adaptive.delta(epsilon))

    @cached_property
    def upper(self) -> ShiftedProfiles:
        """Shifted profiles of the base: the hinges of chords over points (t, Psi(t))."""
        most = self.adaptive.high * self.adaptive.repetitions.mean * _UP  # Psi(0)
        psi = self._psi(np.exp(_LOG_T))
        share = psi / most
        falls = np.diff(np.stack([share, np.log(np.maximum(share, _REST)) / -math.log(_REST)]))
        dense = numerics.equidistribute(_LOG_T, np.abs(falls).sum(axis=0), _POINTS)
        new = np.setdiff1d(dense, _LOG_T)
        log_t, psi = np.append(_LOG_T, new), np.append(psi, self._psi(np.exp(new)))
        order = np.argsort(log_t)
        t, psi = np.exp(log_t[order]), psi[order]
        keep = psi < _FIRST * most
        keep[-1] = True
        t, psi = t[keep], psi[keep]
        # (1/t, Psi/t) is convex as well, and ends in the origin: lines stay lines.
        inverse, height = numerics.lower_hull(1.0 / t, psi / t)
        slopes = np.diff(height, prepend=0.0) / np.diff(inverse, prepend=0.0)
        # The chords as lines a - b t, the last of them to Psi(0).
        a = np.append(np.minimum(slopes, most), most)
        b = np.append(slopes * inverse - height, most * inverse[-1] - height[-1])
        return mixture(self.adaptive.pair, a, np.maximum(b, 0.0))

    def _psi(self, t: FloatArray) -> FloatArray:
        """Psi [n] at t [n], rounded up: the largest of cells between events.

        K in several ranges is sharp where few runs reveal little, K in one range where many follow.
        """
        sums = [self._sum(t[:, None], blocks) for blocks in self._blocks]
        return np.asarray(np.maximum(np.minimum(*sums).max(axis=1), 0.0))

    def _sum(self, t: FloatArray, blocks: list[_Block]) -> FloatArray:
        """What K in every range adds, and K beyond, [n, m] at t [n, 1]."""
        low, high = self.adaptive.low, self.adaptive.high
        a, b = self._slopes
        total = np.zeros((len(t), len(a)))
        for block in blocks:
            revealed = np.interp(t, *self._sticks[block.others])
            total += low * np.minimum(block.a - t * block.b, block.weight * revealed)
            for part in block.parts:
                learnt = np.interp(t * part.least, *self._sticks[part.before])
                learnt *= part.follow
                np.minimum(learnt, np.minimum(part.a, part.weight * revealed), out=learnt)
                learnt *= high - low
                total += learnt
            # What was rounded to the safe side is taken away rounded to the other one.
            a, b = a - block.a / _UP**2, b - block.b * _UP**2
        total += high * np.maximum(a, 0.0) - low * t * np.maximum(b, 0.0)
        return total

    @cached_property
    def _cells(self) -> tuple[FloatArray, FloatArray]:
        """log(u) at the beginning and log(l) at the end [m] of cells between events."""
        few = replace(self.adaptive, points=_EVENTS)
        log_u, log_l = few.worse(*few.pair.events(few.events))
        return np.append(0.0, log_u), np.append(log_l, -np.inf)

    @cached_property
    def _slopes(self) -> tuple[FloatArray, FloatArray]:
        """phi'(u), rounded up, and phi'(l), rounded down, [m] in the cells."""
        a, b = map(np.exp, map(self.adaptive.repetitions.log_phi_prime_at, self._cells))
        return a * _UP, b / _UP

    @cached_property
    def _ranges(self) -> list[range]:
        """Ranges of numbers of runs, from 1 on."""
        k = np.arange(_MAX_RUNS + 1)
        law = self.adaptive.repetitions
        enough = np.searchsorted(np.cumsum(k * law.pmf(k)), (1.0 - _NEGLIGIBLE) * law.mean)
        most = min(max(int(enough), 1), _MAX_RUNS)
        # Gaussian runs compose in closed form.
        ranges = _RANGES if self.composed_runs.run.gaussian_mu is not None else _FEW_RANGES
        edges = np.unique(np.geomspace(1.0, most + 1.0, ranges).round().astype(np.int64))
        return [range(first, end) for first, end in itertools.pairwise(edges.tolist())]

    @cached_property
    def _sticks(self) -> dict[int, Stick]:
        """Hockey sticks of K - 1 runs for the largest K of each range, ascending."""
        found: dict[int, Stick] = {}
        stick = None
        for one in self._ranges:
            # More runs reveal no less: once nearly everything is revealed, nothing is composed.
            nearly_all = stick is not None and float(np.interp(1.0, *stick)) > _ALL
            stick = _EVERYTHING if nearly_all else self.composed_runs.hockey_stick(one.stop - 2)
            found[one.stop - 2] = stick
        return found

    @cached_property
    def _blocks(self) -> tuple[list[_Block], list[_Block]]:
        """K in several ranges, and in one."""
        ranges, cells = self._ranges, np.exp(self._cells)
        sticks = self._sticks.values()
        several = sum(float(np.interp(1.0, *stick)) < _REVEALING for stick in sticks)
        every = range(1, ranges[-1].stop)
        rest = range(ranges[several].start, every.stop) if several < len(ranges) else range(0)
        chances = self.adaptive.repetitions.pmf(np.arange(every.stop))
        one, *others = [
            _block(chances, k, ranges, cells) for k in (every, *ranges[:several], rest) if k
        ]
        return others, [one]


def _block(chances: FloatArray, k: range, places: list[range], cells: FloatArray) -> _Block:
    """What K in one range adds, from chances [K + 1] and u, l [2, m] of cells."""
    u, u_with = cells
    a, b, count = np.zeros(len(u)), np.zeros(len(u)), 0.0
    chance, follow, follow_with = 0.0, np.zeros(len(u)), np.zeros(len(u))
    parts = []
    for place in reversed([one for one in places if one.start < k.stop]):
        part_count, part_a, part_follow = 0.0, np.zeros(len(u)), np.zeros(len(u))
        least = np.full(len(u), np.inf)
        for j in reversed(place):
            new = float(chances[j]) if j in k else 0.0
            chance, follow, follow_with = chance + new, new + u * follow, new + u_with * follow_with
            with np.errstate(divide="ignore", invalid="ignore"):
                least = np.fmin(least, follow_with / follow)  # 0 / 0 says nothing
            part_count, part_follow = part_count + chance, part_follow + follow
            part_a += follow * u ** (j - 1.0)
            b += j * new * u_with ** (j - 1.0)
        a, count = a + part_a, count + part_count
        safe = part_count * _UP, part_a * _UP, part_follow * _UP, least / _UP
        parts.append(_Part(place.stop - 2, *safe))
    return _Block(k.stop - 2, count * _UP, a * _UP, b / _UP, parts)


@bound(
    "adaptive-histories",
    90,
    "adaptive bound, with densities that depend on what the earlier runs reveal",
    about=("any base",),
    protocol=Adaptive,
    title=r"$\varepsilon_U$ adaptive, histories (any score)",
)
def adaptive_histories(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    Args:
        base: one run with any fixed hyperparameter, or with one drawn from the prior.
        protocol: the distribution of K, any, and the range of the density relative to the prior.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.protocols import Adaptive
        >>> protocol = Adaptive("tnb:0,0.01", low=0.5, high=2.0)
        >>> round(adaptive_histories(GaussianMechanism(0.24721), protocol, 1e-5).epsilon, 2)
        3.14
    """
    return BoundValue(_epsilon(base, protocol, delta))


@numerics.memoize(4)  # calibration evaluates the end of its search twice
def _epsilon(base: Mechanism, protocol: Adaptive, delta: float) -> float:
    composed_runs = ComposedRuns(any_fixed(base))
    curves = [HistoryCurve(plain, composed_runs) for plain in adaptive_curves(base, protocol)]
    return max(solve_epsilon(curve.delta, delta) for curve in curves)
