"""What the worst score leaks: the exact leakage of split orders, and the attack that attains it.

Nothing in the protocol forces a score to be a continuous function of the statistic x: who controls
the score controls the order of the outputs. A split order puts x > top first (the larger the
better) and below it prefers the smaller x. A small x then wins only if no run exceeds `top`; that
is likelier without the canary, and a small x is so too: the two add up. A top of minus infinity is
the increasing score of the reduced game, so no split order search ends below it.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.accounting import Mechanism, solve_epsilon
from audit.repetitions import Repetitions
from audit.upper_bounds.cells import cell_masses, divergence_of_cells, log_of_worse
from audit.upper_bounds.result import UpperBound, not_applicable

Array = NDArray[np.float64]

_SOURCE = "exact leakage of the best split order found"
_ASSUMES = "Gaussian base, the adversary chooses the score: attained by an attack, not a bound"


@dataclass(frozen=True)
class SplitOrder:
    """An order on the standardised statistic x = sum_i p_i[0] / (C sigma sqrt N).

    Attributes:
        top: where the order splits, in standard deviations; may be infinite.
    """

    top: float


@dataclass(frozen=True)
class TunedOrder:
    """The tuned output under a split order, told apart by cells: a game that is really played.

    Attributes:
        mu: the base's mu.
        repetitions: the law of K.
        order: the order by which the best run is chosen.
        step: width of the cells, in standard deviations.
    """

    mu: float
    repetitions: Repetitions
    order: SplitOrder
    step: float = field(default=0.005)

    @cached_property
    def masses(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Masses and their rounding, of every cell, without and with the canary."""
        top = min(max(self.order.top, -38.0), 38.0 + self.mu)
        low = np.arange(top, -38.0, -self.step)[:0:-1]
        high = np.arange(top, 38.0 + self.mu, self.step)[::-1]
        laws = []
        for mean in (0.0, self.mu):
            # From the best output to the worst: down from the right to top, then up from the left.
            above_top = special.ndtr(mean - top)
            below_top = special.ndtr(top - mean)
            better = [special.ndtr(mean - high), above_top + special.ndtr(low - mean)]
            between = np.where(
                low > mean,
                special.ndtr(mean - low) - above_top,
                below_top - special.ndtr(low - mean),
            )
            worse = [special.ndtr(high - mean), np.maximum(between, 0.0)]
            log_worse = log_of_worse(np.concatenate(better), np.concatenate(worse))
            log_worse = np.concatenate([[0.0], log_worse, [-np.inf]])
            laws.append(cell_masses(log_worse, self.repetitions))
        return laws[0], laws[1]

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences over the cells, rounded down."""
        return divergence_of_cells(epsilon, *self.masses)

    def epsilon(self, delta: float) -> float:
        """Epsilon that this order attains at delta, rounded down."""
        return solve_epsilon(self.delta, delta) * (1.0 - 1e-9)


def best_split_order(mu: float, repetitions: Repetitions, delta: float) -> tuple[SplitOrder, float]:
    """Searches the split order that leaks most at delta.

    A grid over the split finds the neighbourhood, from the closed form of the three outputs
    "x > top", "x < bottom", "the rest"; it is refined with the full output.

    Args:
        mu: the base's mu.
        repetitions: the law of K.
        delta: in (0, 1).

    Returns:
        The order and the epsilon that it attains. The increasing order is always among those tried.
    """
    tops = np.linspace(-6.0, 8.0 + min(mu, 8.0), 225)
    bottoms = np.linspace(-9.0, 4.0 + mu, 200)
    log_ratio = _three_outputs(mu, repetitions, delta, tops[:, None], bottoms[None, :])
    found = float(tops[int(np.argmax(log_ratio.max(axis=1)))])

    def attained(top: float) -> float:
        return TunedOrder(mu, repetitions, SplitOrder(top)).epsilon(delta)

    tried = {top: attained(top) for top in (found, -np.inf, np.inf)}
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
    mu: float, repetitions: Repetitions, top: Array, bottom: Array
) -> tuple[Array, Array]:
    """Chance of the output "x < bottom", preferred to all but "x > top", for both data sets."""
    masses = []
    for mean in (0.0, mu):
        above = special.ndtr(mean - top)
        low = special.ndtr(np.minimum(bottom, top) - mean)
        better = repetitions.phi_survival(above)
        masses.append(repetitions.phi_survival(np.minimum(above + low, 1.0)) - better)
    return masses[0], masses[1]


def _three_outputs(
    mu: float, repetitions: Repetitions, delta: float, top: Array, bottom: Array
) -> Array:
    """log((A - delta)/A') of the output "x < bottom" that only "x > top" beats; -inf if A <= delta.

    One such event certifies that much epsilon, whatever else the output tells.
    """
    a, a_with = _beaten_only_by_top(mu, repetitions, top, bottom)
    enough = (a > 2.0 * delta) & (a_with > 1e-14)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(enough, np.log((a - delta) / a_with), -np.inf)


def worst_order(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """Epsilon that the best split order found attains: no bound for all scores can be smaller.

    Args:
        base: the base mechanism; it must be Gaussian.
        repetitions: the law of K.
        delta: in (0, 1).
    """
    if base.gaussian_mu is None:
        return not_applicable("worst-order", "the base must be Gaussian", _SOURCE)
    order, epsilon = best_split_order(base.gaussian_mu, repetitions, delta)
    source = f"{_SOURCE} (split at {order.top:.3f})"
    return UpperBound("worst-order", epsilon, _ASSUMES, source, attained=True)


def attack_order(
    mu: float, repetitions: Repetitions, delta: float, trials: int, confidence: float = 0.95
) -> tuple[SplitOrder, float]:
    """The split order, and the threshold on x, whose audit is expected to certify most.

    Rare events leak most but cannot be seen in few trials. The certified epsilon at the expected
    counts, log((1 - FP_u - delta) / FN_u) with Clopper-Pearson limits, is maximised over the split
    and over the threshold below which the adversary says "without the canary".

    Args:
        mu: the base's mu.
        repetitions: the law of K.
        delta: in (0, 1).
        trials: trials on each side.
        confidence: of the two limits together.

    Returns:
        The order and the threshold.
    """
    tops = np.linspace(-1.0, 5.0 + min(mu, 8.0), 121)
    bottoms = np.linspace(-6.0, 2.0 + mu, 121)
    top, bottom = (grid.ravel() for grid in np.meshgrid(tops, bottoms, indexing="ij"))
    without, with_canary = _beaten_only_by_top(mu, repetitions, top, bottom)
    alpha = (1.0 - confidence) / 2.0
    hits, misses = trials * without, trials * with_canary
    # Clopper & Pearson's limits are beta quantiles; real counts interpolate them.
    lower = special.betaincinv(np.maximum(hits, 1e-9), trials - hits + 1.0, alpha)
    upper = special.betaincinv(misses + 1.0, np.maximum(trials - misses, 1e-9), 1.0 - alpha)
    best = int(np.argmax(np.maximum(lower - delta, 1e-300) / upper))
    return SplitOrder(float(top[best])), float(bottom[best])
