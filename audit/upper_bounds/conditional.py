r"""Rerunning until the output is acceptable, exactly; and why a fixed K is a bad idea.

Let S be what is accepted, E any part of it, e = Q(E), f = Q(S - E), and e', f' with the record. The
output is in E with chance e/(e+f). The difference

    e/(e+f) - e^eps e'/(e'+f')

grows as f' does and as e' falls, so f' = U(f), the largest P'-chance of events of P-chance f, and
e' = L(e) = 1 - U(1-e), the smallest, are the worst there are: two extreme events, disjoint as e + f
<= 1, which can be played wherever the pair is one that neighbours have. So the cost at delta is the
largest log of (e/(e+f) - delta) (L(e)+U(f))/L(e) with e + f no less than the acceptance.

If after every run that is not accepted one stops with chance g, an output q of one run is the
result with chance q/(g + (1-g)(e+f)), and nothing with g(1-e-f)/(g + (1-g)(e+f)). The worst set
holds E, with nothing or without; both chances still grow with e and fall with f.

(e, f) are two parameters. The curve of events is cut into straight pieces, outside it for a bound;
the value is then a sum of logarithms of linear functions, and the pieces where it may be largest
are cut further.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.accounting import (
    DiscreteMechanism,
    DominatingPair,
    Mechanism,
    Unreachable,
    renyi_to_epsilon,
    solve_epsilon,
)
from audit.numerics import COARSE_ORDERS, PROFILE_ACCURACY, equidistribute
from audit.protocols import RandomStopping, UntilAccepted
from audit.upper_bounds.region import corner_events
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.renyi import Curve
from audit.upper_bounds.result import NotApplicable, UpperBound
from audit.upper_bounds.worst_order import expected_ratio

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

_PARTS = 13
_COARSE, _REFINEMENTS, _MAX_BOXES, _AT_ONCE = 96, 20, 1 << 15, 2048
_ENOUGH = 1e-5
_LEAST = -230.0
_SOUGHT = (0.0, 1.0, 0.0)
_ROUNDING = 1e-12


def conditional_curve(base: Mechanism, acceptance: float) -> Curve:
    """Proposition 15: the divergence of the output given that it lies in a set S, by order.

    With u = 1/p, v = 1/q, w = 1/r summing to 1, (alpha-1) times the bound is
    (alpha-u-w) D_{(alpha-u)/w} + (alpha+v-2) D'_{alpha+v-1} + (w+1) log(1/Q(S)), minimised over a
    grid of (u, v, w). Orders alpha+v-1 below 1 give a moment of at most 1, that is 0.

    Args:
        base: one run.
        acceptance: Q(S), the smaller over both data sets, in (0, 1].

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = conditional_curve(GaussianMechanism(0.25), acceptance=0.1)
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [1.084, 1.245]
    """
    cost = -np.log(checks.interval("acceptance", acceptance, 0.0, 1.0, closed_high=True))
    shares = np.linspace(0.0, 1.0, _PARTS)
    triples = [(u, v, 1.0 - u - v) for u in shares for v in shares if u + v < 1.0 - 1e-9]

    def curve(alpha: Array) -> Array:
        best = np.full(len(alpha), np.inf)
        orders = {v: np.maximum(alpha + v - 1.0, 1.0 + 1e-12) for v in shares}
        second = {
            v: np.maximum(alpha + v - 2.0, 0.0) * base.renyi(order) for v, order in orders.items()
        }
        for u, v, w in triples:
            first = (alpha - u - w) * base.renyi((alpha - u) / w)
            best = np.minimum(best, first + second[v] + (w + 1.0) * cost)
        return best / (alpha - 1.0)

    return curve


def conditional_sampling(base: Mechanism, acceptance: float, delta: float) -> UpperBound:
    """Epsilon of rerunning until the output lies in S, by proposition 15.

    Args:
        base: one run.
        acceptance: the smallest chance, over both data sets, that a run is accepted.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(conditional_sampling(GaussianMechanism(0.25), 0.1, 1e-5).epsilon, 3)
        1.762
    """
    return proposition_15(base, UntilAccepted(acceptance), delta)


@dataclass(frozen=True)
class Chance:
    """The chance N/D of a set of outputs, both linear in the chances (e, f) of one run.

    Attributes:
        sought: constant and coefficients of e and f in N.
        all: the same of D, what N is a share of.
        acceptance: the least that e + f can be.
    """

    sought: tuple[float, float, float]
    all: tuple[float, float, float]
    acceptance: float = 0.0

    def parts(self, e: Array, f: Array) -> tuple[Array, Array]:
        """N and D."""
        (n, n_e, n_f), (d, d_e, d_f) = self.sought, self.all
        return n + n_e * e + n_f * f, d + d_e * e + d_f * f


@dataclass(frozen=True)
class TwoEvents:
    """The largest epsilon of two disjoint extreme events: one sought, one accepted besides.

    Attributes:
        pair: one direction of the base.
        chance: of what is sought; grows with e, falls with f.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import tuning_cost
        >>> round(tuning_cost(GaussianMechanism(0.25), "until:0.1", 1e-5).epsilon, 3)
        1.474
    """

    pair: DominatingPair
    chance: Chance
    delta: float

    def epsilon(self) -> tuple[float, float]:
        """An upper bound, and what two events attain."""
        t = self._first_events()
        e, f = (side.ravel() for side in np.indices((len(t) - 1,) * 2))
        e, f = e[f <= e], f[f <= e]
        best, closed = 0.0, 0.0
        for _ in range(_REFINEMENTS):
            logs = np.stack(self.pair.events(t))
            attained = self._best(logs[:, [e, e + 1]], logs[:, [f, f + 1]], chords=True)
            best = max(best, float(attained.max()))
            # Outside the curve run two pieces to every cell, before its corner and after.
            pieces = np.stack([logs[:, :-1], corner_events(*logs), logs[:, 1:]], axis=1)
            halves = [
                self._best(pieces[:, k : k + 2, e], pieces[:, m : m + 2, f], chords=False)
                for k in (0, 1)
                for m in (0, 1)
            ]
            most = np.max(halves, axis=0)
            upper = max(float(most.max()), closed, best)
            enough = best + _ENOUGH * max(best, 0.05)
            closed = max(closed, float(most[most <= enough].max(initial=0.0)))
            e, f, most = e[most > enough], f[most > enough], most[most > enough]
            if not e.size or e.size > _MAX_BOXES:
                break
            worst = np.argsort(-most)[: max(_AT_ONCE, len(most) // 4)]
            cells = np.union1d(e[worst], f[worst])
            finer = np.union1d(t, 0.5 * (t[cells] + t[cells + 1]))
            e, f = _within(finer, t, e, f)
            t = finer
            e, f = e[f <= e], f[f <= e]
        return upper, best

    def _first_events(self) -> Array:
        """Parameters [n], dense where the probability of an event, or of the rest, moves."""
        t = np.linspace(*self.pair.event_range, 4 * _COARSE)
        for _ in range(8):
            sides = [np.maximum(side, _LEAST) for side in self.pair.events(t)]
            with np.errstate(divide="ignore"):
                sides += [np.maximum(np.log(-np.expm1(side)), _LEAST) for side in sides]
            moves = np.abs(np.diff(np.stack(sides))).sum(axis=0) + 1e-9
            t = np.unique(equidistribute(t, moves, _COARSE))
        return t

    def _best(self, for_e: Array, for_f: Array, *, chords: bool) -> Array:
        """The largest epsilon [n], or a bound on it, for e and f each on a straight piece.

        It is log(N - delta D) - log D + log D' - log N', logarithms of linear functions. Minus a
        logarithm is convex, and the others are below their tangents in the middle, so that the
        largest value is in a corner of what is left of the box where acceptance <= e + f <= 1.

        Args:
            for_e: log(1-s) and log(1-s') [2, 2, n] at both ends of a piece; e is what is left.
            for_f: the same; f is the event.
            chords: whether to take the corners as they are, for what is attained.
        """
        for_e = self._clipped(for_e)
        (e0, e1), (f0, f1) = np.exp(for_e).swapaxes(0, 1), -np.expm1(for_f).swapaxes(0, 1)
        on_e, on_f, possible = self._corners(e0[0], e1[0], f0[0], f1[0])
        e, f = (v[:, None] + (w - v)[:, None] * on for v, w, on in ((e0, e1, on_e), (f0, f1, on_f)))
        with np.errstate(divide="ignore", invalid="ignore"):
            sought, every = self.chance.parts(e[0], f[0])
            sought_with, every_with = self.chance.parts(e[1], f[1])
            gain = sought * (1.0 - _ROUNDING if chords else 1.0 + _ROUNDING) - self.delta * every
            log_sought_with = np.log(sought_with)
            if self.chance.sought == _SOUGHT:
                # e' itself, which may be below what a number holds.
                low, high = for_e[1][:, None]
                log_sought_with = np.logaddexp(np.log1p(-on_e) + low, np.log(on_e) + high)
            found = np.where(possible, -np.log(every) - log_sought_with, -np.inf)
            for linear in (gain, every_with):
                logs = np.log(np.maximum(linear, 0.0))
                if not chords:
                    middle = 0.5 * (linear[0] + linear[3])
                    most = np.where(possible, logs, -np.inf).max(axis=0)
                    tangents = np.log(middle) + (linear - middle) / middle
                    logs = np.where((middle > 0.0) & (most > -np.inf), tangents, most)
                found = found + logs
        found = np.where(np.isnan(found), -np.inf, found).max(axis=0)
        return np.asarray(found + (-_ROUNDING if chords else _ROUNDING))

    def _clipped(self, for_e: Array) -> Array:
        """The pieces as far as e, where it is all that is sought, can be above delta D."""
        if self.chance.sought != _SOUGHT:
            return for_e
        least = self.delta * max(self.chance.acceptance, self.chance.all[0])
        start, end = np.exp(for_e[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(end < least, (start - least) / (start - end), 1.0)
            share = np.clip(np.nan_to_num(share, nan=1.0), 0.0, 1.0)
            ends = np.logaddexp(np.log1p(-share) + for_e[:, 0], np.log(share) + for_e[:, 1])
        return np.stack([for_e[:, 0], np.where(share < 1.0, ends, for_e[:, 1])], axis=1)

    def _corners(self, e0: Array, e1: Array, f0: Array, f1: Array) -> tuple[Array, Array, Array]:
        """Corners [12, n]: first those of the boxes, then where their sides cross the two lines.

        Returns:
            How far along the pieces of e and of f each is, and whether it is one.
        """
        zero, full = np.zeros_like(e0), np.ones_like(e0)
        places = [(zero, zero), (zero, full), (full, zero), (full, full)]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for limit in (self.chance.acceptance, 1.0):
                places += [
                    (zero, (limit - e0 - f0) / (f1 - f0)),
                    (full, (limit - e1 - f0) / (f1 - f0)),
                    ((limit - f0 - e0) / (e1 - e0), zero),
                    ((limit - f1 - e0) / (e1 - e0), full),
                ]
        on_e, on_f = (np.stack(side) for side in zip(*places, strict=True))
        inside = (on_e >= 0.0) & (on_e <= 1.0) & (on_f >= 0.0) & (on_f <= 1.0)
        on_e, on_f = np.where(inside, on_e, 0.0), np.where(inside, on_f, 0.0)
        total = e0 + (e1 - e0) * on_e + f0 + (f1 - f0) * on_f
        low, high = self.chance.acceptance * (1.0 - _ROUNDING), 1.0 + _ROUNDING
        return on_e, on_f, inside & (total >= low) & (total <= high)


def _within(finer: Array, t: Array, e: Whole, f: Whole) -> tuple[Whole, Whole]:
    """The boxes of cells of a finer grid that lie in given boxes of cells."""
    starts = [np.searchsorted(finer, t[side]) for side in (e, f)]
    ends = [np.searchsorted(finer, t[side + 1]) for side in (e, f)]
    found = []
    for move_e, move_f in ((0, 0), (0, 1), (1, 0), (1, 1)):
        new_e, new_f = starts[0] + move_e, starts[1] + move_f
        inside = (new_e < ends[0]) & (new_f < ends[1])
        found.append((new_e[inside], new_f[inside]))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


@bound(
    "two-events",
    100,
    "two extreme events, after Papernot & Steinke 2022, proposition 15",
    about=("any base",),
    protocol=UntilAccepted,
    title=r"$\varepsilon_U$ two events (any score)",
)
def until_accepted(base: Mechanism, protocol: UntilAccepted, delta: float) -> BoundValue:
    """The largest epsilon of any acceptable set and any part of it, over both directions.

    Args:
        base: one run, any with dominating pairs.
        protocol: rerunning until a run is accepted.
        delta: in (0, 1).
    """
    chance = Chance(_SOUGHT, (0.0, 1.0, 1.0), protocol.acceptance)
    return _largest(base, (chance,), delta)


@bound(
    "two-events",
    100,
    "two extreme events, after Liu & Talwar 2019, algorithm 2",
    about=("any base",),
    protocol=RandomStopping,
    title=r"$\varepsilon_U$ two events (any score)",
)
def random_stopping(base: Mechanism, protocol: RandomStopping, delta: float) -> BoundValue:
    """The largest epsilon of any acceptable set, any part of it, with or without no output.

    Args:
        base: one run, any with dominating pairs.
        protocol: rerunning until a run is accepted or one stops.
        delta: in (0, 1).
    """
    g = protocol.stop
    if g == 1.0:
        return BoundValue(base.epsilon(delta))
    every = (g, 1.0 - g, 1.0 - g)
    chances = (Chance(_SOUGHT, every), Chance((g, 1.0 - g, -g), every))
    return _largest(base, chances, delta)


@dataclass(frozen=True)
class AcceptedTails:
    """What is released of N(b mu, 1) where two tails are accepted: a game that is really played.

    The released x has the density ratio of one run but for a constant, so the worst events are
    half-lines, and all is in closed form.

    Attributes:
        mu: of the base.
        low: below it a run is accepted.
        high: above it a run is accepted, at least `low`.
        stop: chance to stop after a run that is not; 0 where one goes on.

    Example:
        >>> tails = AcceptedTails(0.25, low=-2.0, high=2.0)
        >>> round(tails.epsilon(1e-5), 3)
        1.242
    """

    mu: float
    low: float
    high: float
    stop: float = 0.0

    def rate_below(self, x: ArrayLike, mean: float) -> Array:
        """P[released <= x] in one run's mean; to release nothing is below everything."""
        x = np.asarray(x, dtype=np.float64)
        below = special.ndtr(np.minimum(x, self.low) - mean)
        between = special.ndtr(np.maximum(x, self.high) - mean) - special.ndtr(self.high - mean)
        nothing = self.stop * (1.0 - self._accepted(mean))
        return np.asarray((nothing + below + between) / self._total(mean))

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences, rounded down."""
        found = 0.0
        for sign in (1.0, -1.0):
            # Where the ratio of the one law to the other is e^epsilon.
            log_total = math.log(self._total(self.mu)) - math.log(self._total(0.0))
            at = (sign * epsilon + log_total) / self.mu + 0.5 * self.mu
            below, below_with = (float(self.rate_below(at, mean)) for mean in (0.0, self.mu))
            nothing, nothing_with = (self._nothing(mean) for mean in (0.0, self.mu))
            if sign > 0:
                gain = (1.0 - below_with) - math.exp(epsilon) * (1.0 - below)
                none = nothing_with - math.exp(epsilon) * nothing
            else:
                gain = below - nothing - math.exp(epsilon) * (below_with - nothing_with)
                none = nothing - math.exp(epsilon) * nothing_with
            found = max(found, gain + max(none, 0.0))
        return max(found * (1.0 - 1e-9) - 1e-15, 0.0)

    def epsilon(self, delta: float) -> float:
        """Epsilon that these tails attain at delta, rounded down."""
        return solve_epsilon(self.delta, delta) * (1.0 - PROFILE_ACCURACY)

    def _accepted(self, mean: float) -> float:
        return float(special.ndtr(self.low - mean) + special.ndtr(mean - self.high))

    def _total(self, mean: float) -> float:
        return self.stop + (1.0 - self.stop) * self._accepted(mean)

    def _nothing(self, mean: float) -> float:
        return self.stop * (1.0 - self._accepted(mean)) / self._total(mean)


def attack_tails(
    mu: float,
    protocol: UntilAccepted | RandomStopping,
    delta: float,
    trials: int,
    confidence: float = 0.95,
) -> tuple[AcceptedTails, float]:
    """The two tails of N(b mu, 1) to accept, and the threshold, whose audit certifies most.

    One tail is the event that is sought, the other what it is a share of. As `attack_order`: rare
    events leak most but cannot be seen in few trials, so what is certified at the expected counts
    is maximised. Below the threshold the adversary says "without the canary"; to release nothing
    is below it, too.

    Args:
        mu: of the base.
        protocol: until a run is accepted, or stopped after some that were not.
        delta: in (0, 1).
        trials: trials on each side.
        confidence: of the two limits together.

    Example:
        >>> from audit.protocols import UntilAccepted
        >>> tails, _ = attack_tails(1.0, UntilAccepted(0.1), 1e-5, trials=10_000)
        >>> tails.low < tails.high
        True
    """
    alpha = (1.0 - confidence) / 2.0
    z = np.linspace(-6.0, 6.0 + mu, 97)
    stop = 0.0
    if isinstance(protocol, UntilAccepted):
        # As little is accepted as may be: what is sought is the larger a share of it.
        low = z[special.ndtr(z) < protocol.acceptance]
        high = -special.ndtri(protocol.acceptance - special.ndtr(low))
        with_record = special.ndtr(low - mu) + special.ndtr(mu - high)
        kept = with_record >= protocol.acceptance
        low, high = low[kept], high[kept]
    else:
        stop = protocol.stop
        low, high = (side.ravel() for side in np.meshgrid(z, z, indexing="ij"))
        low, high = low[low <= high], high[low <= high]
    sides = []
    for mean in (0.0, mu):
        below, above = special.ndtr(low - mean), special.ndtr(mean - high)
        total = stop + (1.0 - stop) * (below + above)
        sides.append(above / total)
    above, above_with = sides
    # Either what is below speaks against the canary, with nothing, or what is above speaks for it.
    certified = np.maximum(
        expected_ratio(1.0 - above, 1.0 - above_with, delta, trials, alpha),
        expected_ratio(above_with, above, delta, trials, alpha),
    )
    best = int(np.argmax(certified))
    tails = AcceptedTails(mu, float(low[best]), float(high[best]), stop)
    return tails, 0.5 * (tails.low + tails.high)


def _largest(base: Mechanism, chances: tuple[Chance, ...], delta: float) -> BoundValue:
    each = [TwoEvents(pair, chance, delta).epsilon() for pair in base.pairs for chance in chances]
    upper, attained = (max(side) for side in zip(*each, strict=True))
    # Under pure DP what is sought and what it is a share of each change by at most epsilon.
    upper = min(upper, 2.0 * base.pure_epsilon)
    if upper > 1e8:
        raise Unreachable(f"delta must be above what two events tell apart for sure, got {delta!r}")
    return BoundValue(upper, error=max(upper - attained, 0.0))


@bound(
    "proposition-15",
    10,
    "Papernot & Steinke 2022, proposition 15",
    about=("any base",),
    protocol=UntilAccepted,
    title=r"$\varepsilon_U$ proposition 15 (any score)",
)
def proposition_15(base: Mechanism, protocol: UntilAccepted, delta: float) -> BoundValue:
    """Proposition 15 converted to (epsilon, delta)-DP.

    Args:
        base: one run.
        protocol: rerunning until a run is accepted.
        delta: in (0, 1).
    """
    if not np.isfinite(base.renyi(np.array([1.0 + 1e-6]))).all():
        raise NotApplicable("the base has no finite Renyi divergence")
    return BoundValue(
        renyi_to_epsilon(
            conditional_curve(base, protocol.acceptance), delta, 1e-3, 1e7, COARSE_ORDERS
        )
    )


def corollary_16(base: Mechanism, acceptance: float) -> Curve:
    """p = q = infinity: D_alpha + (alpha-2)/(alpha-1) D'_{alpha-1} + 2 log(1/Q(S))/(alpha-1).

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = corollary_16(GaussianMechanism(0.25), acceptance=0.1)
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [1.095, 1.245]
    """
    cost = -np.log(checks.interval("acceptance", acceptance, 0.0, 1.0, closed_high=True))

    def curve(alpha: Array) -> Array:
        rest = alpha - 1.0
        second = np.maximum(alpha - 2.0, 0.0) * base.renyi(np.maximum(rest, 1.0 + 1e-12))
        return base.renyi(alpha) + (second + 2.0 * cost) / rest

    return curve


def repeated_response(epsilon_0: float, k: int) -> DiscreteMechanism:
    """Randomised response run k times, "yes" preferred: what a fixed K really costs.

    The best is "no" only if all k are. It is no better than k epsilon_0 (Papernot & Steinke 2022,
    proposition 17).

    Example:
        >>> round(repeated_response(1.0, 3).pure_epsilon, 4)
        inf
    """
    checks.interval("epsilon_0", epsilon_0, 0.0, 500.0)
    checks.integer("k", k, 1)
    # "no" has the chance e^epsilon_0 / (1 + e^epsilon_0) on one data set, the rest on the other.
    logs = -np.logaddexp(0.0, np.array([-epsilon_0, epsilon_0]))
    p, q = (np.array([np.exp(k * log), -np.expm1(k * log)]) for log in logs)
    return DiscreteMechanism(p, q)


def repeated_response_divergence(epsilon_0: float, k: int, alpha: Array) -> Array:
    """A lower bound on its Renyi divergence: k eps - k log(1 + e^-eps) / (alpha-1).

    Example:
        >>> import numpy as np
        >>> repeated_response_divergence(1.0, 3, np.array([2.0, 8.0])).round(3).tolist()
        [2.06, 2.866]
    """
    return k * epsilon_0 - k * np.log1p(np.exp(-epsilon_0)) / (np.asarray(alpha) - 1.0)
