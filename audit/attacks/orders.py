"""Scores that leak most in random search: folded and split orders, and their exact leakage.

A score need not be an increasing function of the statistic x. An adversary who controls the score
controls the order of the outputs. A small x is evidence against the canary. It is released only if
no run is preferred to it, so the evidence is stronger if the preferred outputs are likely with the
canary: those above some threshold t(x). The best threshold depends on x, so the worst scores fold
the line,

    g(x) = x for x >= fold, and t(x) below it, t decreasing,

and even the score |x - c| leaks more than any increasing one. No score leaks more than the best
folded order: `audit.upper_bounds.tight` has the proof, and the search, for any base.

A constant t gives a split order: x > top first, and below top the smaller x is better.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import special

from audit import checks
from audit.accounting import GaussianMechanism, solve_epsilon
from audit.numerics import PROFILE_ACCURACY, FloatArray, log_complement
from audit.orders import FoldedOrder, Order, SplitOrder, split_tails
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.cells import bounded_masses, divergence_of_cells
from audit.upper_bounds.tight import TightCurve


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
