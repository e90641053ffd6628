"""Upper bound for adaptive search that accounts for how much the earlier runs reveal.

The sampling density is the same function of the earlier runs on both data sets, so it differs only
as far as the distributions of those runs differ. The largest contribution of all later runs is a
function of the likelihood ratio of the earlier runs. It is computed from the last run to the first
(proposition 11 of docs/theory.md, with its notation). For the events that decide the bound it is
computed again with the smaller operator of proposition 26. The same event applies to the runs
before and after the best, so ties must be broken at random or by candidate and output.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from audit import numerics
from audit.accounting import (
    DeltaUnreachable,
    DominatingPair,
    Mechanism,
    Mixture,
    largest_epsilon,
    solve_epsilon,
)
from audit.accounting.combinations import any_fixed
from audit.accounting.conversion import expected_epsilon
from audit.accounting.pairs import PrivacyLossPmf
from audit.numerics import FloatArray
from audit.protocols import Adaptive
from audit.upper_bounds.adaptive import AdaptiveCurve, adaptive_curves
from audit.upper_bounds.ratio_lattice import RatioLattice, chords
from audit.upper_bounds.region import ShiftedProfiles
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.two_densities import EndLines, TwoDensities

# Number of events (s, s') between cells. Few suffice: the cells that decide the bound are divided.
# With a loss of few values there are more, because s' has corners.
_EVENTS, _EVENTS_WITH_CORNERS = 16, 48
# Lattice points per standard deviation of the loss: the largest number with little enough work.
_PER_DEVIATION = (6, 5, 4, 3, 2, 1)
# For a loss with few values the spacing is a part of one of them, among a few of these parts.
_FEW_OUTPUTS, _TRIED_MULTIPLES = 16, 3
# Proposition 11 is computed at every n-th point of the lattice.
_SKIPPED = 2
# A run with at most this many outputs is summed over them, any other is transformed.
_MAX_TAPS = 4
# The lattice of log t reaches this far below 0 and beyond epsilon; its largest number of points.
_BEYOND, _MOST_POINTS = 5.0, 2048
# Once its spacing is chosen, it ends this many deviations of the loss beyond epsilon, if before.
_ENOUGH_DEVIATIONS = 40.0
# Beyond this epsilon only the simple bound is computed.
_LARGEST_EPSILON = 200.0
# The share of E[K] in later runs that may be left out, and the largest number of runs considered.
_NEGLIGIBLE, _MAX_RUNS = 1e-6, 1 << 13
# Expected number of winners among later runs, and its share of that among all runs, below which
# later runs count by the simple bound.
_NOTHING, _SMALL_SHARE = 1e-14, 1e-6
# In every round proposition 26 divides and computes again at most this many cells, each in two
# parts. The rounds end once two of them together lower delta by less than this share; epsilon may
# stay at a multiple of the spacing while delta falls.
_CELLS_OF_A_ROUND, _MAX_ROUNDS, _CONVERGED = 8, 20, 0.01
# The power of a cell's share, and the largest number of outputs on the lattice for this.
_DECISIVE, _MAX_OUTPUTS = 8, 1024
# Outputs with a total probability below this are moved to the others, and the contribution of
# further runs, relative to Psi, that is left to the simple bound in these rounds.
_RARE_OUTPUTS, _FEW = 1e-11, 1e-2
# The part of the lattice of log t that is computed again: this far below 0 and beyond epsilon.
_NEAR = 3.0, 2.5
# Work counts values (cell, point, run) of proposition 26. A value of proposition 11 costs as much
# as this many, and a run as much as these by proposition 11 and by 26, as measured. The limits are
# those with rounds of proposition 26 and without.
_WORK_OF_A_VALUE, _WORK_OF_A_RUN, _MOST_WORK = 2.7, (4000, 11000), (7.5e7, 1e8)
# The lattice leaves work for this many rounds, with the runs that have this share of E[K].
_EXPECTED_ROUNDS, _MAIN_SHARE = 2, 0.99
# The share of this work, and of the runs, for a base of one direction, for the direction that costs
# most, and for the first look at the others. Both directions count alike, and there is no first
# look, if the simple bound of one is at least this share of the other's.
_ALONE, _FIRST, _QUICK = (1.75, 1.0), (1.0, 1.0), (0.2, 0.4)
_ALIKE, _SIMILAR = (0.8, 1.0), 0.95
# Rounding of a transform relative to the largest value: 3e-16, measured, with a safety factor.
_TRANSFORM = 3e-15


@dataclass(frozen=True)
class _Cells:
    """Cells between extreme events, for winners of every rank."""

    largest: FloatArray  # largest probability [m] that a run is worse, decreasing
    smallest_with: FloatArray  # smallest probability [m] that it is worse, with the record
    smallest: FloatArray  # smallest probability [m] that it is worse, without the record

    @staticmethod
    def of(adaptive: AdaptiveCurve, events: FloatArray) -> "_Cells":
        """The cells between events with these parameters [m - 1], and beyond the ends."""
        log_left, log_left_with = adaptive.pair.events(events)
        largest, smallest = adaptive.worse(log_left, log_left)
        _, least_with = adaptive.worse(log_left, log_left_with)
        # A cell takes the largest u and the smallest l of its ends, so that it covers every winner
        # within.
        ends = np.append(0.0, largest), np.append(least_with, -np.inf), np.append(smallest, -np.inf)
        return _Cells(*(np.exp(end) for end in ends))


def _with_little_spread(outputs: PrivacyLossPmf, spacing: float) -> float:
    """A spacing of at most this size that spreads a loss with few values little.

    A loss between two points of the lattice is divided among them in every run. A multiple of the
    spacing is not.
    """
    losses = np.abs(outputs.loss)
    coarse = _SKIPPED * spacing
    multiples = np.ceil(losses[losses > 0.0] / coarse)[:, None] + np.arange(_TRIED_MULTIPLES)
    tried = np.append(coarse, losses[losses > 0.0, None] / multiples)
    # The variance that a loss between two points gets.
    above = outputs.loss / tried[:, None] % 1.0
    spread = (tried[:, None] ** 2 * above * (1.0 - above)) @ outputs.mass
    return float(tried[np.argmin(spread)]) / _SKIPPED


def _horizon(
    worse: FloatArray, chances: FloatArray, nothing: float, share: float = 0.0
) -> NDArray[np.int64]:
    """Numbers of runs [m] beyond which little is contributed, from P[K = k] [n].

    It is at most `nothing`, or at most a share of all that is contributed.
    """
    k = np.arange(len(chances))
    expected_winners = chances * k * worse[:, None] ** np.maximum(k - 1, 0)
    later = np.cumsum(expected_winners[:, ::-1], axis=1)
    little = np.maximum(nothing, share * later[:, -1:])
    return np.asarray((later > little).sum(axis=1))


@dataclass(frozen=True)
class _Plan:
    """What proposition 11 computes.

    Attributes:
        events: parameters [m - 1] of the events between the cells.
        cells: the cells [m].
        t: the lattice [n] of likelihood ratios.
        runs: the number of runs [m] that count for each cell, not increasing.
        work: the work that was expected.
    """

    events: FloatArray
    cells: _Cells
    t: FloatArray
    runs: NDArray[np.int64]
    work: float


@dataclass(frozen=True)
class HistoryCurve:
    """The bound as a function of epsilon, for one direction of the base.

    Attributes:
        adaptive: the simple adaptive bound of the same direction; this one is never larger.
        run: this direction of one run with any fixed candidate.
        reach: the largest epsilon of interest; the bound also holds for others.
        effort: the shares of the usual work and of the runs considered.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import parse_repetitions
        >>> (pair,) = GaussianMechanism(0.25).pairs
        >>> plain = AdaptiveCurve(pair, parse_repetitions("tnb:0,0.1"), low=0.5, high=2.0)
        >>> HistoryCurve(plain, pair, reach=4.0).delta(2.5) < 0.1 * plain.delta(2.5)
        True
    """

    adaptive: AdaptiveCurve
    run: DominatingPair
    reach: float
    effort: tuple[float, float] = _FIRST

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0, rounded up."""
        return self._smaller(lambda: self.upper, epsilon)

    def quick_delta(self, epsilon: float) -> float:
        """The same, or the bound by proposition 11 alone as long as only this is computed."""
        if "upper" in vars(self):
            return self.delta(epsilon)
        return self._smaller(lambda: self._of_any_densities, epsilon)

    def _smaller(self, profiles: Callable[[], ShiftedProfiles], epsilon: float) -> float:
        """The smaller of the simple bound and another one."""
        simple = self.adaptive.delta(epsilon)
        if self.reach > _LARGEST_EPSILON:
            return simple
        return min(profiles().delta(epsilon) * (1.0 + numerics.PROFILE_ACCURACY), simple)

    @cached_property
    def upper(self) -> ShiftedProfiles:
        """Shifted profiles of the base, the hinges of chords over points (t, Psi(t))."""
        return self._after(_MAX_ROUNDS)

    @property
    def _of_any_densities(self) -> ShiftedProfiles:
        """The same by proposition 11 alone."""
        return self._after(0)

    def delta_after(self, rounds: int, epsilon: float) -> float:
        """The bound on delta with at most this many rounds of proposition 26."""
        return self._smaller(lambda: self._after(rounds), epsilon)

    def _after(self, rounds: int) -> ShiftedProfiles:
        """Shifted profiles after at most this many rounds; those that are known remain so."""
        profiles, psi_of_later_rounds = self._by_rounds
        while len(profiles) <= rounds:
            psi = next(psi_of_later_rounds, None)
            if psi is None:
                break
            profiles.append(self._chords(psi))
        return profiles[min(rounds, len(profiles) - 1)]

    @cached_property
    def _by_rounds(self) -> tuple[list[ShiftedProfiles], Iterator[FloatArray]]:
        """Shifted profiles after each known round, and Psi after the others."""
        return [], self._rounds(self._psi)

    def _chords(self, psi: FloatArray) -> ShiftedProfiles:
        """Shifted profiles of the chords over the largest Psi [m, n] of all cells."""
        psi_at_zero = self.adaptive.high * self.adaptive.repetitions.mean  # Psi(0)
        psi_at_zero *= 1.0 + numerics.SUM_ROUNDING
        return chords(
            self.adaptive.pair,
            self._plan.t,
            np.clip(psi.max(axis=0), 0.0, psi_at_zero),
            psi_at_zero,
        )

    @cached_property
    def _plan(self) -> _Plan:
        largest = int(_MAX_RUNS * self.effort[1])
        k = np.arange(largest + 1)
        repetitions = self.adaptive.repetitions
        expected = np.cumsum(k * repetitions.pmf(k)) / repetitions.mean
        max_runs = min(max(int(np.searchsorted(expected, 1.0 - _NEGLIGIBLE)), 1), largest)
        events = _EVENTS_WITH_CORNERS if self._has_few_outputs else _EVENTS
        parameters = replace(self.adaptive, points=events).events
        cells = _Cells.of(self.adaptive, parameters)
        chances = repetitions.pmf(k[: max_runs + 1])
        runs = _horizon(cells.largest, chances, _NOTHING)
        main_runs = min(int(np.searchsorted(expected, _MAIN_SHARE)), max_runs)
        for per_deviation in _PER_DEVIATION:
            t = self._lattice(per_deviation)
            of_rounds = _WORK_OF_A_RUN[1] + 8.0 * _CELLS_OF_A_ROUND * len(t) * (1 + per_deviation)
            work = self._work(runs, t) + _EXPECTED_ROUNDS * main_runs * of_rounds
            if work <= self.effort[0] * _MOST_WORK[0]:
                break
        else:
            # No round is worth a lattice with one point per deviation.
            finer = self._lattice(_PER_DEVIATION[-2])
            if self._work(runs, finer) <= self.effort[0] * _MOST_WORK[1]:
                t = finer
        work = self._work(runs, t)
        if expected[max_runs] < 0.5:
            max_runs = 1  # nothing to gain
        # Fewer points and runs suffice, which saves time and hardly changes the bound. They do not
        # change the spacing, which would change it more.
        beyond = min(_ENOUGH_DEVIATIONS * self.run.atoms(np.inf).deviation, _BEYOND)
        end = np.searchsorted(np.log(t), min(self.reach, _LARGEST_EPSILON) + beyond)
        t = t[: _SKIPPED * math.ceil(int(end) / _SKIPPED) + 1]
        runs = np.minimum(_horizon(cells.largest, chances, _NOTHING, _SMALL_SHARE), max_runs)
        return _Plan(parameters, cells, t, runs, work)

    @property
    def _has_few_outputs(self) -> bool:
        return len(self.run.atoms(np.inf).loss) <= _FEW_OUTPUTS

    @staticmethod
    def _work(runs: NDArray[np.int64], t: FloatArray) -> float:
        """The work of proposition 11 for cells with these runs."""
        values = float(runs.sum()) * len(t) / _SKIPPED
        return _WORK_OF_A_RUN[0] * float(runs.max()) + _WORK_OF_A_VALUE * values

    def _lattice(self, per_deviation: float) -> FloatArray:
        reach = min(self.reach, _LARGEST_EPSILON) + 2.0 * _BEYOND
        outputs = self.run.atoms(np.inf)
        spacing = max(outputs.deviation / per_deviation, reach / _MOST_POINTS)
        if self._has_few_outputs:
            spacing = _with_little_spread(outputs, spacing)
        below = math.ceil(_BEYOND / spacing)
        points = _SKIPPED * math.ceil(reach / spacing / _SKIPPED) + 1
        return np.asarray(np.exp(spacing * (np.arange(points) - below)))

    @cached_property
    def _psi(self) -> FloatArray:
        """Psi of each cell by proposition 11, [m, n] at the points t, rounded up.

        It is computed at some of the points. It is convex, and so below its chords between them.
        """
        cells, t, runs = self._plan.cells, self._plan.t, self._plan.runs
        few_points = t[::_SKIPPED]
        psi = self._largest(_Worse(self.run, few_points, cells), few_points, cells, runs)
        return np.stack([np.interp(t, few_points, of_cell) for of_cell in psi])

    def _rounds(self, psi: FloatArray) -> Iterator[FloatArray]:
        """The same [k, n], and then after each round of proposition 26 for cells that decide.

        Each round computes some cells again, divided into parts. Which cells these are only affects
        the size of the bound: every value is valid either way.
        """
        yield psi
        parameters, t, runs = self._plan.events, self._plan.t, self._plan.runs
        if not self.adaptive.low < 1.0 < self.adaptive.high or not runs.any():
            return
        run = RatioLattice.of(self.run, np.log(t[1] / t[0]), len(t), _RARE_OUTPUTS)
        if not 1 < len(run.masses) <= _MAX_OUTPUTS:
            return
        # The first and the last cell have no event at one of their ends.
        starts = np.concatenate([[np.nan], parameters])
        ends = np.concatenate([parameters, [np.nan]])
        work, epsilons = self._plan.work, [self._epsilon_of(psi)]
        while len(epsilons) <= _MAX_ROUNDS:
            share, level = self._shares(psi, run, epsilons[-1])
            share[np.isnan(starts + ends)] = 0.0
            decisive = np.argsort(-share)[: min(_CELLS_OF_A_ROUND, np.count_nonzero(share > 0.0))]
            # As many of these cells as the remaining work allows.
            while len(decisive):
                chosen = np.sort(decisive)
                middles = 0.5 * (starts[chosen] + ends[chosen])
                lower_ends = np.stack([starts[chosen], middles], axis=1).ravel()
                upper_ends = np.stack([middles, ends[chosen]], axis=1).ravel()
                parts = _Parts.of(self, lower_ends, upper_ends, run, epsilons[-1], level)
                if work + parts.work <= self.effort[0] * _MOST_WORK[0]:
                    break
                decisive = decisive[: len(decisive) // 2]
            if not len(decisive):
                break
            work += parts.work
            # The largest of both parts bounds the cell, and so does its old value.
            smaller = np.minimum(np.repeat(psi[chosen], 2, axis=0), self._of_parts(parts))
            psi = np.concatenate([np.delete(psi, chosen, axis=0), smaller])
            starts = np.concatenate([np.delete(starts, chosen), lower_ends])
            ends = np.concatenate([np.delete(ends, chosen), upper_ends])
            order = np.argsort(np.where(np.isnan(starts), -np.inf, starts))
            psi, starts, ends = psi[order], starts[order], ends[order]
            yield psi
            epsilons.append(self._epsilon_of(psi))
            if len(epsilons) > 2:
                reached = self._chords(psi).delta(epsilons[-3])
                if reached >= (1.0 - _CONVERGED) * self._delta:
                    break

    @cached_property
    def _delta(self) -> float:
        """The delta that the simple bound has at `reach`."""
        return self.adaptive.delta(self.reach)

    def _epsilon_of(self, psi: FloatArray) -> float:
        """Epsilon of a bound, at the delta that the simple bound has at `reach`."""
        if not 0.0 < self._delta < 1.0:
            return self.reach
        try:
            return min(solve_epsilon(self._chords(psi).delta, self._delta), self.reach)
        except DeltaUnreachable:  # this bound alone reaches no such delta
            return self.reach

    def _shares(
        self, psi: FloatArray, run: RatioLattice, epsilon: float
    ) -> tuple[FloatArray, float]:
        """How much each cell [m] decides the bound, and the mean of Psi where it does."""
        t, total = self._plan.t, np.maximum(psi.max(axis=0), 0.0)
        place = (np.log(t) - epsilon) / np.log(t[1] / t[0]) - run.first
        # An output that leads between two points counts at both.
        weight = np.zeros(len(t))
        for index in (np.floor(place), np.floor(place) + 1.0):
            reached = (index >= 0) & (index < len(run.masses))
            weight[reached] += run.masses[index[reached].astype(np.int64)]
        weight *= total
        relative = np.maximum(psi, 0.0) / np.where(total > 0.0, total, 1.0)
        level = float(weight @ total) / max(float(weight.sum()), 1e-300)
        return (weight * relative**_DECISIVE).sum(axis=1), level

    def _of_parts(self, parts: "_Parts") -> FloatArray:
        """Psi [m, n] of cells between events, by proposition 26; infinite far from epsilon."""
        t = self._plan.t
        value, earlier_a = parts.worse.largest(parts.lines, parts.chances, parts.runs)
        value += self._further(
            parts.lines.largest.reshape(-1, 2),
            parts.smallest_with,
            earlier_a,
            parts.runs,
            t[parts.inner],
        )
        psi = np.full((len(parts.runs), len(t)), np.inf)
        psi[:, parts.inner] = value.max(axis=1)
        return psi

    def _further(
        self,
        u: FloatArray,
        u_with: FloatArray,
        earlier_a: FloatArray,
        runs: NDArray[np.int64],
        t: FloatArray,
    ) -> FloatArray:
        """The contribution [m, 2, n] of further runs by the simple bound, rounded up.

        Args:
            u: largest probability [m, 2] that a run is worse, at both ends of the cells.
            u_with: smallest probability [m] that it is worse, with the record, in the cells.
            earlier_a: the part [m, 2] of the simple bound that belongs to earlier runs.
            runs: the number [m] of earlier runs.
            t: the points [n].
        """
        repetitions, k = self.adaptive.repetitions, np.arange(int(runs.max()) + 1)
        up = 1.0 + numerics.SUM_ROUNDING + 4.0 * np.finfo(float).eps * len(k)
        slopes = np.exp(repetitions.log_phi_prime_at(numerics.safe_log(u)))
        further_a = np.maximum(self.adaptive.high * slopes * up - earlier_a / up, 0.0)
        earlier = repetitions.pmf(k) * k * u_with[:, None] ** np.maximum(k - 1, 0)
        earlier_with = np.where(k <= runs[:, None], earlier, 0.0).sum(axis=1)
        slopes_with = np.exp(repetitions.log_phi_prime_at(numerics.safe_log(u_with)))
        further_b = np.maximum(slopes_with / up - earlier_with * up, 0.0) * self.adaptive.low
        return np.asarray(further_a[..., None] - further_b[:, None, None] * t)

    def _largest(
        self,
        worse: "_Worse",
        t: FloatArray,
        cells: _Cells,
        runs: NDArray[np.int64],
    ) -> FloatArray:
        """The largest w - t w' of each cell, [m, n] at the points t, rounded up."""
        low, high = self.adaptive.low, self.adaptive.high
        u, u_with = cells.largest, cells.smallest_with
        max_runs = int(runs.max())
        chances = self.adaptive.repetitions.pmf(np.arange(max_runs + 1))
        lines = self._lines(cells, chances, runs)
        # (1 - t) / (1 + t)
        lost = worse.weights[0] - worse.weights[1]
        # The largest contribution of the remaining runs after the winner [:, 0] and before it
        # [:, 1], divided by 1 + t.
        value = worse.value
        for n, chance in reversed([*enumerate(chances.tolist())]):  # after n runs
            m = int(np.count_nonzero(runs >= n))
            # V_n and W_n of proposition 11, from V_{n+1} and W_{n+1}: K adds one more worse run.
            new = worse(lines[n + 1, :m])
            new[:, 0] += chance * lost
            # The best run has the density C where the later runs gain, and c where they lose.
            after = value[:m, 0]
            new[:, 1] += np.maximum(high * after, low * after)
            # The line of the simple bound is above the exact V_n and W_n ("Lines" after proposition
            # 11).
            np.minimum(new, worse.at_points(lines[n, :m]), out=value[:m])
        a, b = lines[0, :, 1].T
        # The errors of all steps. An operator never increases an earlier error: its masses sum to
        # at most 1.
        rounding = worse.rounding(lines[1:, :, :, 0])
        error_of_later = np.cumsum(rounding[::-1, :, 0], axis=0)[::-1]
        error = rounding[:, :, 1].sum(axis=0) + high * error_of_later[1:].sum(axis=0)
        # Further runs count by the simple bound, rounded so that their total is an upper bound.
        up = 1.0 + numerics.SUM_ROUNDING + 4.0 * np.finfo(float).eps * max_runs
        worse_than_best = numerics.safe_log([u, u_with])
        slopes = np.exp(self.adaptive.repetitions.log_phi_prime_at(worse_than_best))
        further_a = np.maximum(high * slopes[0] * up - a / up, 0.0)
        further_b = np.maximum(low * slopes[1] / up - b * up, 0.0)
        total_error = error + (up - 1.0) * a
        psi = value[:, 1] * (1.0 + t) + total_error[:, None] * (1.0 + t)
        return np.asarray(psi + further_a[:, None] - further_b[:, None] * t)

    def _lines(self, cells: _Cells, chances: FloatArray, runs: NDArray[np.int64]) -> FloatArray:
        """a and b of lines a - b t above the values after each number of runs, [n + 2, m, 2, 2].

        The third index is that of the values after the winner and before it.
        """
        counting = np.arange(len(chances))[:, None] <= runs
        added = np.where(counting, chances[:, None], 0.0)[..., None]
        factors = np.stack([cells.largest, cells.smallest_with], axis=-1)
        densities = np.array([self.adaptive.high, self.adaptive.low])
        lines = np.zeros((len(chances) + 1, len(runs), 2, 2))
        after, before = lines[:, :, 0], lines[:, :, 1]
        for n in reversed(range(len(chances))):
            np.multiply(after[n + 1], factors, out=after[n])
            np.multiply(before[n + 1], factors, out=before[n])
            before[n] += densities * after[n + 1]
            after[n] += added[n]
        return lines


class _Worse:
    """One more run that is worse than the winner, for several winners [m] and the best density.

    A convex and decreasing value V(t) becomes the largest integral of V(t r) dP over an event whose
    probability is between two limits. The event contains the smallest r: up to the larger limit as
    long as V is positive, and at least up to the smaller one.

    Values are arrays [m, 2, n] of V(t) / (1 + t). Lines a - b t are given by a and b [m, 2, 2].
    """

    def __init__(self, pair: DominatingPair, t: FloatArray, cells: _Cells) -> None:
        ratio = t[1] / t[0]
        run = RatioLattice.of(pair, np.log(ratio), len(t))
        below, above = -run.first, run.last
        lower = t[0] * ratio ** np.arange(-below, 0)
        upper = t[-1] * ratio ** np.arange(1, above + 1)
        over_lower, over_upper = 1.0 / (1.0 + lower), 1.0 / (1.0 + upper)
        chord = lower / t[0] * over_lower
        # A convex function is below its chord from t = 0, a combination of a and the first value.
        self._below = np.stack([over_lower - chord, (1.0 + t[0]) * chord])
        # A decreasing one is below its last value.
        self._above = (1.0 + t[-1]) * over_upper
        self.weights = 1.0 / (1.0 + t), t / (1.0 + t)
        self._lines = np.stack([self.weights[0], -self.weights[1]])
        self._upper_lines = np.stack([over_upper, -upper * over_upper])
        self._first, self._last = below, below + len(t)
        self._end = self._last + above
        # A sum of products wraps around only for points beyond t, which are not used.
        self._size = int(fft.next_fast_len(self._end, real=True))
        small, large = run.least(cells.smallest), run.least(cells.largest)
        ratios = ratio ** np.arange(run.first, run.last + 1)
        self._never = np.minimum(run.never, cells.largest)[:, None, None]
        self._is_sometimes_never = bool(self._never.any())
        # Masses under P and P', up to the smaller limit and between the limits.
        limits = small, large - small
        self._taps = np.flatnonzero((limits[0] + limits[1]).any(axis=0))
        self._limits: list[FloatArray]
        if len(self._taps) <= _MAX_TAPS:
            self._limits = [limit[:, self._taps].T[..., None, None] for limit in limits]
            # The integral over P and over P', for V(t r) / (1 + t r).
            self._of_taps = self.weights[0] + ratios[self._taps, None] * self.weights[1]
        else:
            self._limits = [
                np.conj(fft.rfft(np.stack([limit, limit * ratios]), self._size))[:, :, None]
                for limit in limits
            ]
        # The values at all points that one more run can reach, and their positive parts.
        self._padded = np.zeros((2, len(cells.largest), 2, self._size))

    @property
    def value(self) -> FloatArray:
        """The values [m, 2, n], which a step reads and the caller replaces."""
        return self._padded[0, ..., self._first : self._last]

    def rounding(self, a: FloatArray) -> FloatArray:
        """The error of one step, over 1 + t, of values over 1 + t below lines a - b t."""
        return _TRANSFORM * a

    def at_points(self, lines: FloatArray) -> FloatArray:
        """Lines over 1 + t at the points, [m, 2, n]."""
        return (lines.reshape(-1, 2) @ self._lines).reshape(len(lines), 2, -1)

    def __call__(self, lines: FloatArray) -> FloatArray:
        """The new values of the first m cells, from the present ones and lines above them."""
        m, n = len(lines), self._last - self._first
        self._pad(lines)
        small, between = (limit[..., :m, :, :] for limit in self._limits)
        if len(self._taps) <= _MAX_TAPS:
            values, positive = self._padded[:, :m]
            new = np.zeros((m, 2, n))
            for tap, weights, of_all, of_positive in zip(
                self._taps, self._of_taps, small, between, strict=True
            ):
                reached = slice(tap, tap + n)
                new += (of_all * values[..., reached] + of_positive * positive[..., reached]) * (
                    weights
                )
        else:
            values, positive = fft.rfft(self._padded[:, :m])
            spectra = values * small
            spectra += positive * between
            sides = fft.irfft(spectra, self._size, overwrite_x=True)[..., :n]
            new = sides[0] * self.weights[0]
            new += sides[1] * self.weights[1]
        if self._is_sometimes_never:
            new += (self._never[:m] * lines[..., :1]) * self.weights[0]
        return new

    def _pad(self, lines: FloatArray) -> None:
        """Bounds the values beyond the points, and computes the positive parts."""
        padded, positive = self._padded[:, : len(lines)].reshape(2, -1, self._size)
        of_ends = lines.reshape(-1, 2)
        upper = padded[:, self._last : self._end]
        first, last = padded[:, self._first], padded[:, self._last - 1, None]
        np.matmul(of_ends, self._upper_lines, out=upper)
        np.minimum(upper, last * self._above, out=upper)
        of_start = np.stack([of_ends[:, 0], first], axis=1)
        np.matmul(of_start, self._below, out=padded[:, : self._first])
        np.maximum(padded, 0.0, out=positive)


@dataclass(frozen=True)
class _Parts:
    """Cells between events, for proposition 26."""

    worse: TwoDensities
    lines: EndLines
    smallest_with: FloatArray  # smallest probability [m] that a run is worse, with the record
    chances: FloatArray  # P[K = k] from k = 0 on
    runs: NDArray[np.int64]  # the number of runs [m] that count for each cell
    inner: slice  # the points that are computed

    @staticmethod
    def of(
        curve: HistoryCurve,
        first: FloatArray,
        last: FloatArray,
        run: RatioLattice,
        epsilon: float,
        level: float,
    ) -> "_Parts":
        """The cells between events with parameters from `first` to `last` [m]."""
        adaptive, t, runs_of_all = curve.adaptive, curve._plan.t, curve._plan.runs
        below, above = np.searchsorted(np.log(t), [-_NEAR[0], epsilon + _NEAR[1]])
        inner = slice(int(below), int(above) + 1)
        log_left, log_left_with = adaptive.pair.events(
            np.stack([first, 0.5 * (first + last), last])
        )
        lines = EndLines.of(log_left, log_left_with, adaptive.low, adaptive.high)
        worse = TwoDensities(
            np.arange(run.first, run.last + 1.0),
            run.masses,
            run.never,
            t[inner],
            -np.expm1(log_left[[0, 2]]).T.ravel(),
            adaptive.low,
            adaptive.high,
        )
        chances = adaptive.repetitions.pmf(np.arange(int(runs_of_all.max()) + 1))
        runs = _horizon(lines.largest[::2], chances, _FEW * level)
        runs = np.clip(runs, 1, len(chances) - 1)
        runs = np.maximum.accumulate(runs[::-1])[::-1]
        _, log_smallest = adaptive.worse(log_left[2], log_left_with[2])
        return _Parts(worse, lines, np.exp(log_smallest), chances, runs, inner)

    @property
    def work(self) -> float:
        """The number of values (cell, point, run), and what the runs cost besides."""
        return float(_WORK_OF_A_RUN[1] * self.runs.max() + self.runs.sum() * self.worse.work)


def _at_other_delta(
    base: Mechanism, protocol: Adaptive, delta: float, certified: float
) -> BoundValue:
    """The bound by the curves for another delta, which are valid for every delta."""
    return BoundValue(_largest_epsilon(_curves(base, protocol, certified), delta, is_own=False))


@bound(
    "adaptive-histories",
    90,
    "adaptive bound, with densities that depend on the information in the earlier runs",
    about=("any base",),
    protocol=Adaptive,
    title=r"$\varepsilon_U$ adaptive, histories (any score)",
    deferred=True,
    at_other_delta=_at_other_delta,
)
def adaptive_histories(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.protocols import Adaptive
        >>> protocol = Adaptive("tnb:0,0.1", low=0.5, high=2.0)
        >>> round(adaptive_histories(GaussianMechanism(0.24721), protocol, 1e-5).epsilon, 2)
        1.46
    """
    return BoundValue(_largest_epsilon(_curves(base, protocol, delta), delta))


def _largest_epsilon(curves: "_Curves", delta: float, is_own: bool = True) -> float:
    """The largest epsilon of all directions at delta.

    Usually a faster bound of one direction is below the epsilon of the other one. At a delta that
    is not the own one of the curves, the quick bounds of the other directions suffice. An epsilon
    that a certificate states may be proved before the last round.
    """
    is_expected = expected_epsilon() is not None
    bounds = []
    for curve, quick in curves:
        is_same = quick is curve
        of_curve = [curve.adaptive.delta, curve.quick_delta if is_same else quick.delta]
        if is_expected and (is_same or is_own):
            of_curve += [partial(curve.delta_after, rounds) for rounds in range(_MAX_ROUNDS)]
        if is_own or curve is curves[0][0] or (is_same and is_expected):
            of_curve.append(curve.delta)
        bounds.append(of_curve)
    return largest_epsilon(
        [smallest for *_, smallest in bounds], delta, [larger for *larger, _ in bounds]
    )


_Curves = list[tuple[HistoryCurve, HistoryCurve]]


@numerics.memoize(4)
def _curves(base: Mechanism, protocol: Adaptive, delta: float) -> _Curves:
    """The curves of all directions, each with one that takes less time, which may be the same.

    The direction with the largest simple bound at delta comes first; it usually costs most.
    Calibrations and certificates use the curves more than once.
    """
    curves = [
        HistoryCurve(plain, run, reach=solve_epsilon(plain.delta, delta))
        for plain, run in _directions(base, protocol)
    ]
    if len(curves) == 1:
        curves = [replace(curves[0], effort=_ALONE)]
    first, *others = sorted(curves, key=lambda curve: -curve.reach)
    if others and others[0].reach >= _SIMILAR * first.reach:
        first, others[0] = (replace(curve, effort=_ALIKE) for curve in (first, others[0]))
    return [
        (first, first),
        *(
            (curve, curve if curve.effort == _ALIKE else replace(curve, effort=_QUICK))
            for curve in others
        ),
    ]


def _directions(
    base: Mechanism, protocol: Adaptive
) -> Iterable[tuple[AdaptiveCurve, DominatingPair]]:
    """The curve of the best run and the pair of any other run, in each direction."""
    curves, runs = adaptive_curves(base, protocol), any_fixed(base).pairs
    # The pairs of a mixture and of its worst candidate need not belong to the same directions.
    # One pair is that of a mixture over the prior, the other that of every fixed candidate.
    return product(curves, runs) if isinstance(base, Mixture) else zip(curves, runs, strict=True)
