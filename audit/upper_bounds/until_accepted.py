"""The cost of repeating runs until one is accepted: with equal noise, or a schedule of budgets.

With equal noise, a run is repeated until its output is acceptable, or until a random stop. The
worst case consists of two disjoint extreme events: the target E, and the rest of the accepted set,
with probabilities e and f (proposition 8 of docs/theory.md). The search over (e, f) replaces the
curve of events by straight pieces, outside of the curve for an upper bound, and refines the best
pieces.

The cost of a schedule of Gaussian budgets whose first accepted model is released is exact. It
follows by backward induction over the steps (proposition 9 of docs/theory.md): with the profile H_i
of step i,

    V_i(1, theta) = sup_(a,b)  a H_i(theta b/a) + (1-a) H_i(theta (1-b)/(1-a))

over the trade-off curve of the later steps. The right side is convex in (a, b), so the vertices of
a polygon around the curve bound it: chords of V_{i+1}(1, .) on a grid of theta. Every grid gives an
upper bound; the grid is refined where the maximum lies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from audit import checks
from audit.accounting import (
    DeltaUnreachable,
    DominatingPair,
    GaussianMechanism,
    Mechanism,
    solve_epsilon,
)
from audit.accounting.conversion import expected_epsilon
from audit.accounting.pairs import GaussianPair
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import PROFILE_ACCURACY, BoolArray, FloatArray, IntArray, equidistribute
from audit.protocols import BudgetSchedule, Protocol, RandomStopping, UntilAccepted
from audit.upper_bounds.composed import scheduled_runs, together
from audit.upper_bounds.region import corner_events
from audit.upper_bounds.registry import BoundValue, bound

_REFINEMENTS_OF_BOXES, _MAX_BOXES, _BATCH_OF_BOXES = 20, 1 << 13, 2048
# Cells of the first search, also at deltas other than that of a certificate.
_COARSE, _QUICK_COARSE = 96, 40
# Relative distance of the bound from what two events attain, at which the search ends, and the same
# at deltas other than that of a certificate.
_RELATIVE_GAP, _QUICK_GAP = 1e-5, 2e-3
_MIN_LOG_PROBABILITY = -230.0
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Chance:
    """The probability N/D of a set of outputs, both linear in the probabilities (e, f) of one run.

    `target` are the coefficients of e and 1-f in N, with a sum of 1; `all` are the constant and the
    coefficient of e + f in D; `acceptance` is the smallest allowed e + f.
    """

    target: tuple[float, float]
    all: tuple[float, float]
    acceptance: float = 0.0


@dataclass(frozen=True)
class TwoEvents:
    """The largest epsilon over two disjoint extreme events: the target, and the rest accepted.

    Attributes:
        pair: one direction of the base.
        chance: probability of the released target; it grows with e and falls with f.
        delta: in (0, 1).
        gap: relative distance of both values at which the search ends; it grows if too many boxes
            of events are that close.
        coarse: number of cells of the first search.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import tuning_cost
        >>> round(tuning_cost(GaussianMechanism(0.25), "until:0.1", 1e-5).epsilon, 3)
        1.474
    """

    pair: DominatingPair
    chance: Chance
    delta: float
    gap: float = _RELATIVE_GAP
    coarse: int = _COARSE

    def epsilon(self, enough: float = 0.0) -> tuple[float, float]:
        """An upper bound, and the epsilon that two events attain.

        Args:
            enough: the bound need not be below this one.
        """
        t = self._first_events()
        e, f = (side.ravel() for side in np.indices((len(t) - 1,) * 2))
        e, f = e[f <= e], f[f <= e]
        best, attained, closed, gap = 0.0, 0.0, 0.0, self.gap
        for _ in range(_REFINEMENTS_OF_BOXES):
            logs = np.stack(self.pair.events(t))
            around_best = self._best(logs[:, [e, e + 1]], logs[:, [f, f + 1]], chords=True)
            best, attained = np.maximum((best, attained), around_best.max(axis=1)).tolist()
            # Two straight pieces per cell, before and after its corner, lie outside the curve. A
            # piece that ends in the certain event is straight.
            is_last = np.isneginf(logs[:, 1:]).all(axis=0)
            corners = np.where(is_last, logs[:, :-1] - math.log(2.0), corner_events(*logs))
            pieces = np.stack([logs[:, :-1], corners, logs[:, 1:]], axis=1)
            halves = [
                self._best(pieces[:, k : k + 2, e], pieces[:, m : m + 2, f], chords=False)[0]
                for k in (0, 1)
                for m in (0, 1)
            ]
            bounds = np.max(halves, axis=0)
            upper = max(float(bounds.max()), closed, best)
            limit = max(best + gap * max(best, 0.05), enough)
            while np.count_nonzero(bounds > limit) > _MAX_BOXES:
                gap *= 2.0
                limit = max(best + gap * max(best, 0.05), enough)
            closed = max(closed, float(bounds[bounds <= limit].max(initial=0.0)))
            e, f, bounds = e[bounds > limit], f[bounds > limit], bounds[bounds > limit]
            if not e.size:
                break
            worst = np.argsort(-bounds)[: max(_BATCH_OF_BOXES, len(bounds) // 4)]
            cells = np.union1d(e[worst], f[worst])
            finer = np.union1d(t, 0.5 * (t[cells] + t[cells + 1]))
            e, f = _within(finer, t, e, f)
            t = finer
            e, f = e[f <= e], f[f <= e]
        return upper, attained

    def _first_events(self) -> FloatArray:
        """Parameters [n], dense where the probability of an event, or of the rest, moves."""
        t = np.linspace(*self.pair.event_range, 4 * self.coarse)
        for _ in range(8):
            sides = [np.maximum(side, _MIN_LOG_PROBABILITY) for side in self.pair.events(t)]
            with np.errstate(divide="ignore"):
                sides += [
                    np.maximum(np.log(-np.expm1(side)), _MIN_LOG_PROBABILITY) for side in sides
                ]
            moves = np.abs(np.diff(np.stack(sides))).sum(axis=0) + 1e-9
            t = np.unique(equidistribute(t, moves, self.coarse))
        return np.union1d(t, self.pair.event_range[1] - np.array([1.0, 2.0]))  # the last pieces

    def _best(self, for_e: FloatArray, for_f: FloatArray, *, chords: bool) -> FloatArray:
        """The largest epsilon [2, n], or a bound on it, for e and f each on a straight piece.

        It is log(N - delta D) - log D + log D' - log N', logarithms of linear functions. Minus a
        logarithm is convex, and the others are below their tangents in the middle. So the largest
        value is at a corner of the part of the box where acceptance <= e + f <= 1. It is also at
        most the largest log(N/N') plus the largest log(D'/D), each at a corner. The pieces are
        log(1-s) and log(1-s') [2, 2, n] at both ends, with e = 1-s and f = s of their events. With
        `chords`, logarithms are not replaced by tangents, which gives the attained epsilon. The
        second row is for sets that are accepted often enough on both data sets.
        """
        _, by_rest = self.chance.target
        constant, _ = self.chance.all
        # Elsewhere N, which is at most 1-f, is at most delta D.
        smallest = self.delta * max(self.chance.acceptance, constant)
        for_e, for_f = (
            (for_e, _clipped(for_f, smallest)) if by_rest else (_clipped(for_e, smallest), for_f)
        )
        # A box whose own corners are all possible is not cut, and has no others.
        is_whole = self._are_possible(for_e, for_f)
        whole, cut = ((for_e[..., part], for_f[..., part]) for part in (is_whole, ~is_whole))
        best = np.empty((2, len(is_whole)))
        best[:, is_whole] = self._best_at(*_own_corners(*whole), chords=chords)
        best[:, ~is_whole] = self._best_at(*self._cut_corners(*cut), chords=chords)
        return best

    def _best_at(
        self, log_e: FloatArray, log_rest: FloatArray, possible: BoolArray, *, chords: bool
    ) -> FloatArray:
        """The same from log e and log(1-f) [2, k, n] at corners, the first four those of the box.

        Corners that are not `possible` [k, n] do not count.
        """
        by_e, by_rest = self.chance.target
        constant, slope = self.chance.all
        with np.errstate(divide="ignore", invalid="ignore"):
            # Probabilities may underflow.
            accepted, accepted_with = constant + slope * (np.exp(log_e) - np.expm1(log_rest))
            log_targets = np.log(by_e) + log_e
            if by_rest:
                log_targets = np.logaddexp(log_targets, np.log(by_rest) + log_rest)
            log_target, log_target_with = log_targets
            target = np.exp(log_target)
            gain = target * (1.0 - _ROUNDING if chords else 1.0 + _ROUNDING) - self.delta * accepted
            log_gain = np.where(possible, -np.log(accepted) - log_target_with, -np.inf)
            for linear in (gain, accepted_with):
                logs = np.log(np.maximum(linear, 0.0))
                if not chords:
                    middle = 0.5 * (linear[0] + linear[3])
                    largest_ratios = np.where(possible, logs, -np.inf).max(axis=0)
                    tangents = np.log(middle) + (linear - middle) / middle
                    logs = np.where(
                        (middle > 0.0) & (largest_ratios > -np.inf), tangents, largest_ratios
                    )
                log_gain = log_gain + logs
            log_gain = np.where(np.isnan(log_gain), -np.inf, log_gain)
            if not chords:
                ratios = [log_target - log_target_with, np.log(accepted_with) - np.log(accepted)]
                largest_ratios = np.where(
                    possible, np.nan_to_num(ratios, nan=np.inf, posinf=np.inf), -np.inf
                )
                log_gain = np.minimum(log_gain, largest_ratios.max(axis=1).sum(axis=0))
        by_both = accepted_with >= self.chance.acceptance * (1.0 - _ROUNDING)
        log_gain = np.stack([log_gain, np.where(by_both, log_gain, -np.inf)]).max(axis=1)
        return np.asarray(log_gain + (-_ROUNDING if chords else _ROUNDING))

    def _are_possible(self, for_e: FloatArray, for_f: FloatArray) -> BoolArray:
        """Whether all four corners of the boxes [n] are possible, and so all their points."""
        e, rest, f = np.exp(for_e[0]), np.exp(for_f[0]), -np.expm1(for_f[0])
        # The corner with the smallest e + f, and the one that is nearest to e = 1-f.
        enough = e.min(axis=0) + f.min(axis=0) >= self.chance.acceptance
        return np.asarray(enough & (e.max(axis=0) <= rest.min(axis=0)))

    def _cut_corners(
        self, for_e: FloatArray, for_f: FloatArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Corners [12, n] of the boxes, and the points where their sides cross the two lines.

        Returns log e and log(1-f) [2, 12, n], and whether it is a corner of the possible part.
        """
        (e0, e1), (f0, f1) = np.exp(for_e[0]), -np.expm1(for_f[0])
        rest0, rest1 = np.exp(for_f[0])
        zero, full = np.zeros_like(e0), np.ones_like(e0)
        places = [(zero, zero), (zero, full), (full, zero), (full, full)]
        limit = self.chance.acceptance
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            places += [
                (zero, (limit - e0 - f0) / (f1 - f0)),
                (full, (limit - e1 - f0) / (f1 - f0)),
                ((limit - f0 - e0) / (e1 - e0), zero),
                ((limit - f1 - e0) / (e1 - e0), full),
                # e = 1-f
                (zero, (e0 - rest0) / (rest1 - rest0)),
                (full, (e1 - rest0) / (rest1 - rest0)),
                ((rest0 - e0) / (e1 - e0), zero),
                ((rest1 - e0) / (e1 - e0), full),
            ]
        on_e, on_f = (np.stack(side) for side in zip(*places, strict=True))
        inside = (on_e >= 0.0) & (on_e <= 1.0) & (on_f >= 0.0) & (on_f <= 1.0)
        on_e, on_f = np.where(inside, on_e, 0.0), np.where(inside, on_f, 0.0)
        e, f = e0 + (e1 - e0) * on_e, f0 + (f1 - f0) * on_f
        remaining = rest0 + (rest1 - rest0) * on_f
        enough = e + f >= limit * (1.0 - _ROUNDING)
        possible = inside & enough & (e <= remaining * (1.0 + _ROUNDING))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_e, log_rest = (
                _log_between(side[:, :1], side[:, 1:], on)
                for on, side in ((on_e, for_e), (on_f, for_f))
            )
        return log_e, log_rest, possible


def _own_corners(for_e: FloatArray, for_f: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """log e and log(1-f) [2, 4, n] at the corners of boxes that are not cut."""
    possible = np.ones((4, for_e.shape[-1]), dtype=bool)
    return for_e[:, [0, 0, 1, 1]], for_f[:, [0, 1, 0, 1]], possible


def _log_between(log_start: FloatArray, log_end: FloatArray, share: FloatArray) -> FloatArray:
    """Logarithm of the number at a share of the way between two numbers, from their logarithms."""
    return np.logaddexp(np.log1p(-share) + log_start, np.log(share) + log_end)


def _clipped(piece: FloatArray, smallest: float) -> FloatArray:
    """The parts of pieces [2, 2, n] whose first probability is at least `smallest`."""
    start, end = np.exp(piece[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        # The share of the start keeps its digits where almost the whole piece is left.
        share = np.where(end < smallest, (smallest - end) / (start - end), 0.0)
        share = np.clip(np.nan_to_num(share, nan=1.0), 0.0, 1.0)
        ends = _log_between(piece[:, 1], piece[:, 0], share)
    return np.stack([piece[:, 0], ends], axis=1)


def _within(
    finer: FloatArray, t: FloatArray, e: IntArray, f: IntArray
) -> tuple[IntArray, IntArray]:
    """The boxes of cells of a finer grid that lie in given boxes of cells."""
    starts = [np.searchsorted(finer, t[side]) for side in (e, f)]
    ends = [np.searchsorted(finer, t[side + 1]) for side in (e, f)]
    corners = []
    for move_e, move_f in ((0, 0), (0, 1), (1, 0), (1, 1)):
        new_e, new_f = starts[0] + move_e, starts[1] + move_f
        inside = (new_e < ends[0]) & (new_f < ends[1])
        corners.append((new_e[inside], new_f[inside]))
    return np.concatenate([coordinate for coordinate, _ in corners]), np.concatenate(
        [coordinate for _, coordinate in corners]
    )


def _until_at_other_delta(
    base: Mechanism, protocol: UntilAccepted, delta: float, _: float
) -> BoundValue:
    return _largest(base, _until(protocol), delta, is_quick=True)


def _stopping_at_other_delta(
    base: Mechanism, protocol: RandomStopping, delta: float, _: float
) -> BoundValue:
    if protocol.stop == 1.0:
        return BoundValue(base.epsilon(delta))
    return _largest(base, _stopping(protocol), delta, is_quick=True)


@bound(
    "two-events",
    100,
    "two extreme events, after Papernot & Steinke 2022, proposition 15",
    about=("any base",),
    protocol=UntilAccepted,
    at_other_delta=_until_at_other_delta,
    title=r"$\varepsilon_U$ two events (any score)",
)
def until_accepted(base: Mechanism, protocol: UntilAccepted, delta: float) -> BoundValue:
    """The largest epsilon over all accepted sets and target events, and both directions."""
    return _largest(base, _until(protocol), delta)


@bound(
    "two-events",
    100,
    "two extreme events, after Liu & Talwar 2019, algorithm 2",
    about=("any base",),
    protocol=RandomStopping,
    at_other_delta=_stopping_at_other_delta,
    title=r"$\varepsilon_U$ two events (any score)",
)
def random_stopping(base: Mechanism, protocol: RandomStopping, delta: float) -> BoundValue:
    """The largest epsilon over all accepted sets and target events, and both directions.

    The target may include the case that nothing is released.
    """
    if protocol.stop == 1.0:
        return BoundValue(base.epsilon(delta))
    return _largest(base, _stopping(protocol), delta)


def _until(protocol: UntilAccepted) -> tuple[Chance, ...]:
    return (Chance((1.0, 0.0), (0.0, 1.0), protocol.acceptance),)


def _stopping(protocol: RandomStopping) -> tuple[Chance, ...]:
    g = protocol.stop
    return Chance((1.0, 0.0), (g, 1.0 - g)), Chance((1.0 - g, g), (g, 1.0 - g))


def _largest(
    base: Mechanism, chances: tuple[Chance, ...], delta: float, is_quick: bool = False
) -> BoundValue:
    options = (_QUICK_GAP, _QUICK_COARSE) if is_quick else ()
    searches = [
        TwoEvents(pair, chance, delta, *options) for pair in base.pairs for chance in chances
    ]
    # Both directions, and both kinds of target events, are possible: the largest epsilon counts.
    upper, attained = _largest_of(searches)
    # Under pure DP, the probabilities N and D change by a factor of at most e^epsilon each.
    upper = min(upper, 2.0 * base.pure_epsilon)
    if upper > 1e8:
        raise DeltaUnreachable(
            "delta must exceed the probability that two events reveal the data, got "
            f"{checks.one_line(delta)}"
        )
    attains = attained if base.attained else 0.0
    return BoundValue(upper, error=max(upper - attained, 0.0), attains=attains)


def _largest_of(searches: list[TwoEvents]) -> tuple[float, float]:
    """The largest upper bound, and the largest epsilon that two events attain."""
    expected = expected_epsilon()
    if expected is not None:
        epsilons = [search.epsilon(expected) for search in searches]
        upper, attained = (max(side) for side in zip(*epsilons, strict=True))
        # It is proved, and a search without it would hardly find a smaller bound.
        if upper <= expected <= attained + 2.0 * searches[0].gap * max(attained, 0.05):
            return expected, attained
    upper = attained = 0.0
    for search in searches:
        upper_of_one, attained_of_one = search.epsilon(upper)
        upper, attained = max(upper, upper_of_one), max(attained, attained_of_one)
    return upper, attained


_POINTS = 200
"""Losses on the grid of one step; three times as many change epsilon by a relative 1e-6."""
_GRADING = 8.0
"""A refined grid is e^8 = 3,000 times as dense near the maximum as the first grid."""
_REFINEMENTS_OF_GRID = 2
"""Times that the grids are refined where the maximum lies."""
_NEGLIGIBLE = 1e-7
"""Share of delta that losses beyond the grid may have; they count as a full leak."""
_SMALLEST_MU, _LARGEST_MU = 1e-4, 25.0
"""Outside this range, e^loss or its distance from 1 is inaccurate in double precision."""


@bound(
    "first-accepted",
    100,
    "exact cost of a schedule of Gaussian budgets until a run is accepted",
    about=("a Gaussian base, such as full-batch DP-SGD",),
    protocol=BudgetSchedule,
    title=r"$\varepsilon_U$ first accepted (any score)",
)
def first_accepted(base: Mechanism, protocol: BudgetSchedule, delta: float) -> BoundValue:
    """The cost of releasing the first accepted run and its step.

    Example:
        >>> schedule = BudgetSchedule((4, 2, 1))
        >>> round(first_accepted(GaussianMechanism(1.0), schedule, 1e-5).epsilon, 3)
        4.838
    """
    budgets = _gaussian_budgets(scheduled_runs(base, protocol))
    if budgets is None:
        raise NotApplicable("base must be Gaussian, such as full-batch DP-SGD")
    return BoundValue(gaussian_schedule(budgets, delta))


def schedule_ex_post(base: Mechanism, protocol: Protocol, delta: float) -> tuple[float, ...]:
    """Ex-post cost of a schedule: one epsilon for each step at which it can end.

    With the results eps_1, ..., eps_k, every event E of released models (with their steps) has
    P(E) <= sum_i e^eps_i Q(E and the schedule ends at step i) + delta on neighbouring data sets.
    Every step gets the same share delta / k. The epsilon of a step is that of the composition of
    the runs up to it; for Gaussian steps it is the exact value for this share, if smaller. This is
    not an (epsilon, delta)-DP guarantee, because the epsilon depends on the outcome.

    Args:
        base: one run, whose noise the schedule scales.
        protocol: the schedule.
        delta: in (0, 1).

    Raises:
        InvalidInput: the protocol is not a schedule.
        NotApplicable: the noise of the base is not a parameter.

    Example:
        >>> found = schedule_ex_post(GaussianMechanism(1.0), BudgetSchedule((4, 2, 1)), 1e-5)
        >>> [round(one, 2) for one in found]
        [0.99, 2.31, 5.12]
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    if not isinstance(protocol, BudgetSchedule):
        raise InvalidInput(f"protocol must be a schedule for an ex-post epsilon, got {protocol}")
    runs = scheduled_runs(base, protocol)
    share = delta / len(runs)
    epsilons = [together(runs[: number + 1]).epsilon(share) for number in range(len(runs))]
    budgets = _gaussian_budgets(runs)
    if budgets is not None:
        epsilons = list(map(min, epsilons, gaussian_schedule_ex_post(budgets, delta)))
    return tuple(epsilons)


def gaussian_schedule(steps: Sequence[float], delta: float) -> float:
    """Cost of a schedule of budgets mu: exact up to numerical error, which only raises it."""
    pairs, reach = _schedule(steps, delta)
    return _smallest_epsilon(pairs, reach, delta, released=True)


def gaussian_schedule_ex_post(steps: Sequence[float], delta: float) -> tuple[float, ...]:
    """The epsilon of each step; the step of index i is exact for its share delta / k."""
    steps = checks.items("steps", steps, "values of mu")
    share = checks.interval("delta", delta, 0.0, 1.0) / max(len(steps), 1)
    pairs, reach = _schedule(steps, share)
    return tuple(
        _smallest_epsilon(pairs[: number + 1], reach, share, released=False)
        for number in range(len(pairs))
    )


def _gaussian_budgets(runs: Sequence[Mechanism]) -> list[float] | None:
    """mu of every run; None if one of them is not Gaussian."""
    budgets = [run.gaussian_mu for run in runs if run.gaussian_mu is not None]
    return budgets if len(budgets) == len(runs) else None


def _schedule(steps: Sequence[float], delta: float) -> tuple[list[GaussianPair], float]:
    """The pair of each step, and a loss that is negligible in every remaining part."""
    delta = checks.interval("delta", delta, 0.0, 1.0)
    budgets = [
        checks.interval("mu of steps", mu, _SMALLEST_MU, _LARGEST_MU)
        for mu in checks.items("steps", steps, "values of mu")
    ]
    if not budgets:
        raise InvalidInput("steps must contain at least one mu, got none")
    together = checks.interval(
        "sqrt(sum of mu^2)", float(np.linalg.norm(budgets)), 0.0, _LARGEST_MU
    )
    reach = GaussianMechanism(together).epsilon(_NEGLIGIBLE * delta / len(budgets))
    return [GaussianPair(mu) for mu in budgets], reach


@dataclass(frozen=True)
class _Events:
    """Events of the remaining steps, on or outside their trade-off curve."""

    p: FloatArray  # P-probabilities [n]
    q: FloatArray  # Q-probabilities [n]
    p_rest: FloatArray  # 1 - p, without cancellation
    q_rest: FloatArray  # 1 - q, without cancellation

    @classmethod
    def around(cls, losses: FloatArray, profile: FloatArray, mirrored: FloatArray) -> "_Events":
        """A polygon around the curve of all events, from profiles [n] at losses [n]."""
        p, q = _chords(losses, profile)
        q_rest, p_rest = _chords(losses, mirrored)
        return cls(
            np.append(p, 1.0 - p_rest),
            np.append(q, 1.0 - q_rest),
            np.append(1.0 - p, p_rest),
            np.append(1.0 - q, q_rest),
        )

    @property
    def mirrored(self) -> "_Events":
        return _Events(self.q, self.p, self.q_rest, self.p_rest)


def _chords(losses: FloatArray, profile: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Chords p - theta q of a convex profile of theta = e^loss; constant beyond the last loss."""
    theta = np.exp(losses)
    q = np.append(-np.diff(profile) / np.diff(theta), 0.0)
    return np.minimum(profile + theta * q, 1.0), q


def _weighted(pair: DominatingPair, loss: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    """p H(e^loss q / p) [m, n], for losses [m] and weights [n]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(p > 0.0, np.log(q) - np.log(p), 0.0)
    return p * pair.profile(loss[:, None] + shift)


def _values(
    pair: DominatingPair, losses: FloatArray, later: _Events, *, released: bool, is_mirror: bool
) -> FloatArray:
    """sup P(E) - e^loss Q(E) from a step on [m, n], for losses [m] and each later event [n].

    The pair of the step is its own mirror image. If an accepted model of this step is not released,
    the procedure ends there without an output, which belongs to no event, but to its complement.
    `is_mirror` exchanges P and Q.
    """
    side = later.mirrored if is_mirror else later
    values = _weighted(pair, losses, side.p, side.q)
    if released:
        return values + _weighted(pair, losses, side.p_rest, side.q_rest)
    if is_mirror:
        return values + side.p_rest - np.exp(losses)[:, None] * side.q_rest
    return values


def _smallest_epsilon(
    pairs: Sequence[DominatingPair], reach: float, delta: float, *, released: bool
) -> float:
    """The smallest epsilon at delta, rounded up, of a schedule of self-mirrored pairs.

    `reach` is the largest loss on the grids. If `released`, the accepted models of all steps are
    released, otherwise those of the last step alone.
    """
    # Relative errors add over the steps, because every V_i is at most proportional to V_{i+1}.
    margin = (1.0 + PROFILE_ACCURACY) ** len(pairs)
    grids = [np.linspace(0.0, reach, _POINTS) for _ in pairs]
    best = np.inf
    for refinement in range(_REFINEMENTS_OF_GRID + 1):
        remaining = _backward(pairs, grids, released)

        def profile(epsilon: float, later: Sequence[_Events] = remaining) -> float:
            return margin * _top(pairs, later, epsilon, released)

        best = min(best, solve_epsilon(profile, delta))
        if len(pairs) == 1:
            break
        if refinement < _REFINEMENTS_OF_GRID:
            centres = _losses_at_maximum(pairs, grids, remaining, best, released)
            grids = [_graded(reach, centre) for centre in centres]
    return float(best)


def _backward(
    pairs: Sequence[DominatingPair], grids: Sequence[FloatArray], released: bool
) -> list[_Events]:
    """The events of the steps after each step but the last, by backward induction."""
    # In the last step it is best to accept every output (end of the proof of proposition 9).
    values = mirrored = pairs[-1].profile(grids[-1])
    remaining = [_Events.around(grids[-1], values, mirrored)]
    for pair, grid in zip(pairs[-2:0:-1], grids[-2:0:-1], strict=True):
        values, mirrored = (
            _values(pair, grid, remaining[0], released=released, is_mirror=mirror).max(axis=1)
            for mirror in (False, True)
        )
        remaining.insert(0, _Events.around(grid, values, mirrored))
    return remaining


def _top(
    pairs: Sequence[DominatingPair], remaining: Sequence[_Events], epsilon: float, released: bool
) -> float:
    """V_1(1, e^epsilon)."""
    at = np.array([epsilon])
    if len(pairs) == 1:
        return float(pairs[0].profile(at)[0])
    return float(_values(pairs[0], at, remaining[0], released=released, is_mirror=False).max())


def _losses_at_maximum(
    pairs: Sequence[DominatingPair],
    grids: Sequence[FloatArray],
    remaining: Sequence[_Events],
    epsilon: float,
    released: bool,
) -> list[float]:
    """The absolute loss at which the optimal rules for epsilon enter each step."""
    losses = [epsilon]
    is_mirror = False
    for pair, grid, later in zip(pairs, grids[1:], remaining, strict=False):
        at = np.array(losses[-1:])
        vertex = int(
            _values(pair, at, later, released=released, is_mirror=is_mirror).argmax(axis=1)[0]
        )
        # The vertices of the profile come first, then those of its mirror image.
        is_mirror = vertex >= len(grid)
        losses.append(float(grid[vertex % len(grid)]))
    return losses


def _graded(reach: float, centre: float) -> FloatArray:
    """Losses from 0 to `reach` with a spacing that grows with the distance from `centre`."""
    unit = reach * np.exp(-_GRADING)
    ends = np.arcsinh(-centre / unit), np.arcsinh((reach - centre) / unit)
    inner = centre + unit * np.sinh(np.linspace(ends[0], ends[1], _POINTS))
    return np.unique(np.concatenate([[0.0], np.clip(inner[1:-1], 0.0, reach), [reach]]))
