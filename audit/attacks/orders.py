"""Scores that leak most, and their exact leakage: in random search, on subsets, and until accepted.

In random search these are folded and split orders. A score need not be an increasing function of
the statistic x. An adversary who controls the score controls the order of the outputs. A small x is
evidence against the canary. It is released only if no run is preferred to it, so the evidence is
stronger if the preferred outputs are likely with the canary: those above some threshold t(x). The
best threshold depends on x, so the worst scores fold the line,

    g(x) = x for x >= fold, and t(x) below it, t decreasing,

and even the score |x - c| leaks more than any increasing one. No score leaks more than the best
folded order: `audit.upper_bounds.tight` has the proof, and the search, for any base. A constant t
gives a split order: x > top first, and below top the smaller x is better.

In tuning on a subset, the attack uses the winner by an order of N(b mu, 1), and the final run. By
the lemma of Neyman and Pearson, the best statistic is the density ratio of both outputs together.
With the ratios r1 of the tuning and r2 of the final run, it is q r1 + (1-q) r2 if the final run
trains on the other records, and (q r1 + 1-q) r2 if it trains on all.

If runs are repeated until one is accepted, the set of accepted outputs that leaks most consists of
two Gaussian tails.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.accounting import GaussianMechanism, LossPair, solve_epsilon
from audit.accounting.pairs import PrivacyLossPmf
from audit.numerics import PROFILE_ACCURACY, FloatArray, log_complement
from audit.orders import FoldedOrder, Order, SplitOrder, split_tails
from audit.protocols import RepeatedRuns, Subset
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.cells import bounded_masses, divergence_of_cells
from audit.upper_bounds.subset import SubsetCurve
from audit.upper_bounds.tight import TightCurve

_STEP_ON_SUBSET = 0.01
_ROUNDING_ON_SUBSET = 1e-6


@dataclass(frozen=True)
class TunedOrder:
    """The tuned output under an order, distinguished by cells, which an attack can play.

    Attributes:
        mu: mu of the base mechanism.
        repetitions: the distribution of K; text is parsed.
        order: the order by which the best run is chosen.
        step: width of the cells, in standard deviations.

    Example:
        >>> from audit.orders import SplitOrder
        >>> from audit.repetitions import parse_repetitions
        >>> game = TunedOrder(0.25, parse_repetitions("tnb:0,0.1"), SplitOrder(2.0))
        >>> round(game.epsilon(1e-5), 3)
        1.118
    """

    mu: float
    repetitions: Repetitions
    order: Order
    step: float = field(default=0.005)

    def __post_init__(self) -> None:
        checks.store_validated(self, repetitions=parse_repetitions(self.repetitions))

    @cached_property
    def edges(self) -> tuple[FloatArray, FloatArray]:
        """Left and right ends [n] of the cells, from the most preferred cell to the least."""
        fold = min(max(self.order.fold, -38.0), 38.0 + self.mu)
        below = np.arange(fold, -38.0, -self.step)[:0:-1]
        inner = np.concatenate([below, np.arange(fold, 38.0 + self.mu, self.step)])
        left, right = np.append(-np.inf, inner), np.append(inner, np.inf)
        middle = np.concatenate([inner[:1], 0.5 * (inner[1:] + inner[:-1]), inner[-1:]])
        best_first = np.lexsort((middle, -self.order.rank(middle)))
        return left[best_first], right[best_first]

    @cached_property
    def masses(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Bounds (lower, upper) on the mass [n] of every cell, without and with the canary."""
        left, right = self.edges
        sides = []
        for mean in (0.0, self.mu):
            a, b = left - mean, right - mean
            one_run = np.where(
                a > 0, special.ndtr(-a) - special.ndtr(-b), special.ndtr(b) - special.ndtr(a)
            )
            better = np.concatenate([[0.0], np.cumsum(one_run)])
            worse = np.concatenate([np.cumsum(one_run[::-1])[::-1], [0.0]])
            log_worse = log_complement(np.minimum(better, 1.0), np.minimum(worse, 1.0))
            sides.append(bounded_masses(log_worse, one_run, self.repetitions))
        return sides[0], sides[1]

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences over the cells, rounded down."""
        return divergence_of_cells(epsilon, *self.masses)

    def epsilon(self, delta: float) -> float:
        """Epsilon that this order attains at delta, rounded down."""
        return solve_epsilon(self.delta, delta) * (1.0 - PROFILE_ACCURACY)


def worst_case_order(
    mu: float, repetitions: str | Repetitions, delta: float
) -> tuple[FoldedOrder, float]:
    """The folded order of a Gaussian statistic that leaks most at delta, as a score.

    Args:
        mu: mu of the base mechanism.
        repetitions: the distribution of K.
        delta: in (0, 1).

    Returns:
        The order and the epsilon that it attains.

    Example:
        >>> _, epsilon = worst_case_order(0.25, "tnb:0,0.1", 1e-5)
        >>> round(epsilon, 3)
        1.191
    """
    repetitions = parse_repetitions(repetitions)
    (pair,) = GaussianMechanism(mu).pairs
    curve = TightCurve.at(pair, repetitions, delta)
    game = curve.worst_order(delta)
    x = np.concatenate([[np.inf], -curve.t, [-np.inf]])  # the event t is x > -t
    x = np.clip(x, -40.0, 40.0 + mu)
    low, scores = 0.5 * (x[game.cells + 1] + x[game.cells]), x[game.before[game.cells]]
    order = FoldedOrder(float(x[game.cells[-1]]), tuple(low), tuple(scores))
    return order, TunedOrder(mu, repetitions, order).epsilon(delta)


def worst_case_split_order(
    mu: float, repetitions: str | Repetitions, delta: float
) -> tuple[SplitOrder, float]:
    """The split order that leaks most at delta, by a search.

    A grid search uses the closed form of the three outputs "x > top", "x < bottom" and "the rest".
    The full output then refines its best split.

    Args:
        mu: mu of the base mechanism.
        repetitions: the distribution of K.
        delta: in (0, 1).

    Returns:
        The order and the epsilon that it attains, at least that of the increasing order.

    Example:
        >>> _, epsilon = worst_case_split_order(0.25, "tnb:0,0.1", 1e-5)
        >>> round(epsilon, 3)
        1.187
    """
    repetitions = parse_repetitions(repetitions)
    tops = np.linspace(-6.0, 8.0 + min(mu, 8.0), 225)
    bottoms = np.linspace(-9.0, 4.0 + mu, 200)
    log_ratio = _three_outputs(mu, repetitions, delta, tops[:, None], bottoms[None, :])
    top_of_worst = float(tops[int(np.argmax(log_ratio.max(axis=1)))])

    def attained(top: float) -> float:
        return TunedOrder(mu, repetitions, SplitOrder(top)).epsilon(delta)

    tried = {top: attained(top) for top in (top_of_worst, -np.inf, np.inf)}
    width = float(tops[1] - tops[0])
    while width > 1e-3:
        centre = max(tried, key=lambda top: tried[top])
        if not np.isfinite(centre):
            break
        for top in (centre - width / 2, centre + width / 2):
            tried.setdefault(top, attained(top))
        width /= 2
    best = max(tried, key=lambda top: tried[top])
    return SplitOrder(best), tried[best]


def _beaten_only_by_top(
    mu: float, repetitions: Repetitions, top: FloatArray, bottom: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Probability, on both data sets, that x < bottom is released if only x > top is preferred."""
    masses = []
    for mean in (0.0, mu):
        above, low = split_tails(top, np.minimum(bottom, top), mean)
        better = repetitions.phi_survival(above)
        masses.append(repetitions.phi_survival(np.minimum(above + low, 1.0)) - better)
    return masses[0], masses[1]


def _three_outputs(
    mu: float, repetitions: Repetitions, delta: float, top: FloatArray, bottom: FloatArray
) -> FloatArray:
    """log((A - delta)/A') for the event "x < bottom" if only x > top is preferred; -inf if rare.

    This event alone proves that epsilon is at least this large.
    """
    a, a_with = _beaten_only_by_top(mu, repetitions, top, bottom)
    enough = (a > 2.0 * delta) & (a_with > 1e-14)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(enough, np.log((a - delta) / a_with), -np.inf)


def attack_order(
    mu: float, repetitions: str | Repetitions, delta: float, trials: int, confidence: float = 0.95
) -> tuple[SplitOrder, float]:
    """The split order, and the threshold on x, whose audit is expected to prove the most.

    Rare events leak most, but few trials cannot detect them. The function maximises the epsilon
    that the expected counts prove, log((1 - FP_u - delta) / FN_u) with Clopper-Pearson limits, over
    the split and over the threshold below which the adversary guesses "without the canary".

    Args:
        mu: mu of the base mechanism.
        repetitions: the distribution of K.
        delta: in (0, 1).
        trials: number of trials with, and without, the canary.
        confidence: confidence of the two limits together.

    Returns:
        The order and the threshold.

    Example:
        >>> order, _ = attack_order(1.0, "tnb:0,0.1", 1e-5, trials=10_000)
        >>> round(order.top, 1)
        1.6
    """
    repetitions = parse_repetitions(repetitions)
    tops = np.linspace(-1.0, 5.0 + min(mu, 8.0), 121)
    bottoms = np.linspace(-6.0, 2.0 + mu, 121)
    top, bottom = (grid.ravel() for grid in np.meshgrid(tops, bottoms, indexing="ij"))
    without, with_canary = _beaten_only_by_top(mu, repetitions, top, bottom)
    alpha = (1.0 - confidence) / 2.0
    best = int(np.argmax(expected_ratio(without, with_canary, delta, trials, alpha)))
    return SplitOrder(float(top[best])), float(bottom[best])


def expected_ratio(
    likely: FloatArray, unlikely: FloatArray, delta: float, trials: int, alpha: float
) -> FloatArray:
    """e^epsilon [n] that events of these probabilities [n] prove at the expected counts."""
    hits, misses = trials * likely, trials * unlikely
    # Clopper & Pearson's limits are beta quantiles; real counts interpolate them.
    lower = special.betaincinv(np.maximum(hits, 1e-9), trials - hits + 1.0, alpha)
    upper = special.betaincinv(misses + 1.0, np.maximum(trials - misses, 1e-9), 1.0 - alpha)
    return np.asarray(np.maximum(lower - delta, 1e-300) / upper)


@dataclass(frozen=True)
class AcceptedTails:
    """The released output if runs have outputs N(b mu, 1) and two tails of them are accepted.

    The density ratio of the released x is a constant times that of one run, so the worst events are
    half-lines, and all probabilities have closed forms.

    Attributes:
        mu: mu of the base mechanism.
        low: a run with x below it is accepted.
        high: a run with x above it is accepted; at least `low`.
        stop: probability of stopping after a rejected run; 0 if the tuning always continues.

    Example:
        >>> tails = AcceptedTails(0.25, low=-2.0, high=2.0)
        >>> round(tails.epsilon(1e-5), 3)
        1.242
    """

    mu: float
    low: float
    high: float
    stop: float = 0.0

    def rate_below(self, x: ArrayLike, mean: float) -> FloatArray:
        """P[released output <= x] for runs with this mean; no output counts as below every x."""
        x = np.asarray(x, dtype=np.float64)
        below = special.ndtr(np.minimum(x, self.low) - mean)
        between = special.ndtr(np.maximum(x, self.high) - mean) - special.ndtr(self.high - mean)
        nothing = self.stop * (1.0 - self._accepted(mean))
        return np.asarray((nothing + below + between) / self._total(mean))

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences, rounded down."""
        delta = 0.0
        for sign in (1.0, -1.0):
            # The x at which the ratio of the two densities is e^epsilon.
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
            delta = max(delta, gain + max(none, 0.0))
        return max(delta * (1.0 - 1e-9) - 1e-15, 0.0)

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
    protocol: RepeatedRuns,
    delta: float,
    trials: int,
    confidence: float = 0.95,
) -> tuple[AcceptedTails, float]:
    """The two accepted tails of N(b mu, 1), and the threshold, whose audit proves the most.

    One tail is the target event, the other the rest of the accepted outputs. Rare events leak most,
    but few trials cannot detect them, so the search maximises the epsilon that the expected counts
    prove, as in `attack_order`. Below the threshold, and if nothing is released, the adversary
    guesses "without the canary".

    Args:
        mu: mu of the base mechanism.
        protocol: the protocol, with its acceptance or stopping probability.
        delta: in (0, 1).
        trials: number of trials with, and without, the canary.
        confidence: confidence of the two limits together.

    Example:
        >>> from audit.protocols import UntilAccepted
        >>> tails, _ = attack_tails(1.0, UntilAccepted(0.1), 1e-5, trials=10_000)
        >>> tails.low < tails.high
        True
    """
    alpha = (1.0 - confidence) / 2.0
    z = np.linspace(-6.0, 6.0 + mu, 97)
    stop = protocol.stopping_probability
    if stop == 0.0:
        # With the smallest allowed acceptance, the target event is the largest share of it.
        low = z[special.ndtr(z) < protocol.accepted_share]
        high = -special.ndtri(protocol.accepted_share - special.ndtr(low))
        with_record = special.ndtr(low - mu) + special.ndtr(mu - high)
        is_accepted = with_record >= protocol.accepted_share
        low, high = low[is_accepted], high[is_accepted]
    else:
        low, high = (side.ravel() for side in np.meshgrid(z, z, indexing="ij"))
        low, high = low[low <= high], high[low <= high]
    sides = []
    for mean in (0.0, mu):
        below, above = special.ndtr(low - mean), special.ndtr(mean - high)
        total = stop + (1.0 - stop) * (below + above)
        sides.append(above / total)
    above, above_with = sides
    # The target is the lower tail (with no output) as evidence against the canary, or the upper
    # tail as evidence for it.
    certified = np.maximum(
        expected_ratio(1.0 - above, 1.0 - above_with, delta, trials, alpha),
        expected_ratio(above_with, above, delta, trials, alpha),
    )
    best = int(np.argmax(certified))
    tails = AcceptedTails(mu, float(low[best]), float(high[best]), stop)
    return tails, 0.5 * (tails.low + tails.high)


@dataclass(frozen=True)
class SubsetAttack:
    """Tuning on a subset with outputs N(b mu, 1) and a split order, followed by a final run.

    Attributes:
        mu: mu of one run.
        protocol: the distribution of K, the probability that a record is in the subset, and the
            records of the final run.
        order: the order by which the best run of the tuning is chosen.

    Example:
        >>> from audit.orders import SplitOrder
        >>> from audit.protocols import Subset
        >>> attack = SubsetAttack(1.0, Subset("tnb:0,0.1", 0.5), SplitOrder(2.0))
        >>> attack.epsilon(1e-5) > 0.0
        True
    """

    mu: float
    protocol: Subset
    order: SplitOrder

    def epsilon(self, delta: float) -> float:
        """Epsilon that the order attains at delta, with the winner's x in cells; rounded down."""
        (p, _), (p_with, _) = TunedOrder(
            self.mu, self.protocol.repetitions, self.order, _STEP_ON_SUBSET
        ).masses
        is_possible = (p > 1e-290) & (p_with > 1e-290)
        loss = np.log(p_with[is_possible]) - np.log(p[is_possible])
        order = np.argsort(loss)
        tuning = LossPair(PrivacyLossPmf(loss[order], np.log(p_with[is_possible])[order], 0.0, 0.0))
        (pair,) = GaussianMechanism(self.mu).pairs
        on_all = self.protocol.final == "all"
        curve = SubsetCurve(tuning, pair, pair, self.protocol.sampling_rate, on_all)

        def attained(epsilon: float) -> float:
            return max(curve.delta(epsilon) * (1.0 - _ROUNDING_ON_SUBSET) - 1e-13, 0.0)

        return solve_epsilon(attained, delta) * (1.0 - _ROUNDING_ON_SUBSET)

    def log_ratio(self, winner: FloatArray, final: FloatArray) -> FloatArray:
        """Log density ratio [n] of both outputs; a winner of minus infinity means no run."""
        repetitions, q = self.protocol.repetitions, self.protocol.sampling_rate
        is_finite = np.isfinite(winner)
        x, tuned = winner[is_finite], np.zeros(len(winner))
        without, with_record = (
            repetitions.log_phi_prime_at(_log_worse(self.order, x, mean)) for mean in (0.0, self.mu)
        )
        tuned[is_finite] = with_record - without + self.mu * (x - 0.5 * self.mu)
        final_loss = self.mu * (final - 0.5 * self.mu)
        with np.errstate(divide="ignore"):
            log_q, log_rest = np.log(q), np.log1p(-q)
        if self.protocol.final == "all":
            return np.asarray(np.logaddexp(log_q + tuned, log_rest) + final_loss)
        return np.asarray(np.logaddexp(log_q + tuned, log_rest + final_loss))

    def play(self, rng: np.random.Generator, trials: int, mean: float) -> FloatArray:
        """Simulates tunings and returns their log density ratios, [trials].

        Args:
            rng: source of all random draws.
            trials: number of tunings.
            mean: mean of x in runs on the part of the data with the record: mu, or 0 without it.
        """
        runs = self.protocol.repetitions.sample(rng, trials)
        tuned_on = rng.random(trials) < self.protocol.sampling_rate
        winner = np.full(trials, -np.inf)
        for has_record in (False, True):
            who = np.flatnonzero((runs > 0) & (tuned_on == has_record))
            winner[who] = self.order.best(runs[who], mean * has_record, rng)
        on_final = np.ones(trials) if self.protocol.final == "all" else ~tuned_on
        return self.log_ratio(winner, mean * on_final + rng.standard_normal(trials))


def _log_worse(order: SplitOrder, x: FloatArray, mean: float) -> FloatArray:
    """Log probability that a run is not preferred to x."""
    above, below = order.tails(x, mean)
    better = np.minimum(above + below, 1.0)
    return np.asarray(log_complement(better, 1.0 - better))


def subset_attack(mu: float, protocol: Subset, delta: float) -> SubsetAttack:
    """The attack with the best of three orders: increasing, decreasing, or split.

    The split order is the worst one for random search.

    Args:
        mu: mu of one run.
        protocol: the distribution of K, the probability that a record is in the subset, and the
            records of the final run.
        delta: in (0, 1).

    Example:
        >>> from audit.protocols import Subset
        >>> subset_attack(1.0, Subset("tnb:0,0.1", 0.5), 1e-5).epsilon(1e-5) > 0.0
        True
    """
    best, _ = worst_case_split_order(mu, protocol.repetitions, delta)
    plain = SubsetAttack(mu, protocol, SplitOrder(-np.inf))
    tried = [plain, *(replace(plain, order=SplitOrder(top)) for top in (np.inf, best.top))]
    return max(tried, key=lambda attack: attack.epsilon(delta))
