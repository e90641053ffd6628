"""Mechanisms that are known only by a privacy profile, Renyi divergences or a loss distribution."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting.conversion import SMALLEST_DELTA, renyi_to_epsilon
from audit.accounting.mechanism import GIVEN, Mechanism
from audit.accounting.pairs import DominatingPair, LossPair, PrivacyLossPmf
from audit.errors import InvalidInput
from audit.numerics import FloatArray, safe_log


@dataclass(frozen=True, eq=False)
class PrivacyProfile(Mechanism):
    """Any mechanism that is (epsilon_i, delta_i)-DP for every i.

    Its dominating pair has as its profile the lower convex hull of the points, as a function of
    e^epsilon; delta is constant beyond the last epsilon.

    Attributes:
        epsilons: [n] >= 0, strictly increasing.
        deltas: [n] in [0, 1].

    Example:
        >>> known = PrivacyProfile([0.5, 1.0, 2.0], [1e-3, 1e-4, 1e-6])
        >>> round(known.epsilon(1e-4), 4)
        1.0
    """

    epsilons: FloatArray
    deltas: FloatArray

    def __post_init__(self) -> None:
        epsilons, deltas = _checked("epsilons", self.epsilons, "deltas", self.deltas, 0.0)
        if np.any(deltas > 1.0):
            raise InvalidInput(f"deltas must be in [0, 1], got {deltas.max():g}")
        checks.store_validated(self, epsilons=epsilons, deltas=deltas)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (pair_of_profile(self.epsilons, self.deltas),)

    @property
    def description(self) -> str:
        return f"a privacy profile of {len(self.epsilons)} points; {GIVEN}"


class _KnownByRenyi(Mechanism):
    """A mechanism of which only bounds on its Renyi divergences are known."""

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (_pair_of_renyi(self.renyi),)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta, by the divergences or by the pair, rounded up."""
        by_divergences = self.renyi_epsilon(delta)
        if delta < 2.0 * SMALLEST_DELTA:
            return by_divergences  # The profile of the pair ends there.
        return min(super().epsilon(delta), by_divergences)


@dataclass(frozen=True, eq=False)
class RenyiCurve(_KnownByRenyi):
    """Any mechanism whose Renyi divergences are bounded at some orders, in both directions.

    (alpha - 1) D_alpha is convex in alpha and 0 at order 1, so chords between the given orders
    bound it. Above the last order, the divergence counts as infinite.

    Attributes:
        orders: [n] > 1, strictly increasing.
        divergences: [n] >= 0, finite.

    Example:
        >>> curve = RenyiCurve([2.0, 8.0, 32.0], [0.25, 1.0, 4.0])  # of mu = 0.5, at three orders
        >>> round(curve.epsilon(1e-5), 3)
        2.214
    """

    orders: FloatArray
    divergences: FloatArray

    def __post_init__(self) -> None:
        orders, divergences = _checked("orders", self.orders, "divergences", self.divergences, 1.0)
        if orders[0] <= 1.0:
            raise InvalidInput(f"orders must be > 1, got {orders[0]:g}")
        if not np.isfinite(divergences).all():
            raise InvalidInput(
                "divergences must be finite (leave out the orders of infinite ones), got "
                f"{checks.one_line(divergences)}"
            )
        checks.store_validated(self, orders=orders, divergences=divergences)

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        order_less_one = checks.numbers("alpha", alpha, 1.0) - 1.0
        knots = np.append(0.0, self.orders - 1.0)
        log_moments = np.append(0.0, self.divergences) * knots
        return np.interp(order_less_one, knots, log_moments, right=np.inf) / order_less_one

    @property
    def description(self) -> str:
        return f"Renyi divergences at {len(self.orders)} orders; {GIVEN}"


@dataclass(frozen=True)
class ZeroConcentratedDp(_KnownByRenyi):
    r"""Any rho-zCDP mechanism (Bun & Steinke 2016).

    Its Renyi divergences satisfy :math:`D_\alpha \le \rho \alpha` for every order :math:`\alpha`.

    Attributes:
        rho: in (0, 1e5].

    Example:
        >>> round(ZeroConcentratedDp(0.125).epsilon(1e-5), 3)  # 2.0 for the Gaussian of mu = 0.5
        2.166
    """

    rho: float

    _words: ClassVar[str] = "rho-zCDP, rho = {rho:.6g}"
    # Stated here, because computing the pairs of many mechanisms takes long.
    is_symmetric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.validate(self, "rho", checks.interval, 0.0, 1e5, closed_high=True)

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        return self.rho * checks.numbers("alpha", alpha, 1.0)


def _checked(
    x_name: str, x: ArrayLike, y_name: str, y: ArrayLike, low: float
) -> tuple[FloatArray, FloatArray]:
    x, y = checks.numbers(x_name, x), checks.numbers(y_name, y)
    if x.ndim != 1 or x.size == 0 or np.any(np.diff(x) <= 0) or not np.all(x >= low):
        raise InvalidInput(
            f"{x_name} must be increasing numbers >= {low:g}, got {checks.one_line(x)}"
        )
    if not np.isfinite(x).all():
        raise InvalidInput(f"{x_name} must be finite, got {checks.one_line(x)}")
    if y.shape != x.shape or not np.all(y >= 0):
        raise InvalidInput(f"{y_name} must be {x.size} numbers >= 0, got {checks.one_line(y)}")
    return x, y


def _pair_of_renyi(renyi: Callable[[FloatArray], FloatArray]) -> LossPair:
    """The pair of the privacy profile that follows from a Renyi curve.

    delta = min over alpha of e^((alpha-1) (D - eps)) (1 - 1/alpha)^(alpha-1) / alpha, which inverts
    `renyi_to_epsilon`. Chords between the sampled epsilons only increase it.
    """
    largest_epsilon = renyi_to_epsilon(renyi, SMALLEST_DELTA)
    epsilons = np.linspace(0.0, largest_epsilon, 2049)
    alpha = 1.0 + np.geomspace(1e-5, 1e9, 2801)
    order_less_one, divergences = alpha - 1.0, renyi(alpha)
    usable = np.isfinite(divergences)
    alpha, order_less_one, divergences = alpha[usable], order_less_one[usable], divergences[usable]
    constant = order_less_one * (divergences + np.log1p(-1.0 / alpha)) - np.log(alpha)
    log_delta = np.array(
        [float(np.min(constant - order_less_one * epsilon)) for epsilon in epsilons]
    )
    return pair_of_profile(epsilons, np.exp(np.minimum(log_delta, 0.0)))


def pair_of_profile(epsilons: FloatArray, deltas: FloatArray) -> LossPair:
    """The self-mirrored pair whose profile is the lower convex hull of points (e^eps, delta).

    Each slope of the hull is minus a tail probability of P'. The atoms at negative losses mirror
    those at positive losses, and the remaining mass has loss 0.
    """
    # A point and its mirror image also bound the profile at 0 (the total variation distance) by
    # (2 delta + e^eps - 1)/(1 + e^eps), written such that a large eps does not overflow.
    small = np.exp(-epsilons)
    at_zero = float(np.min((2.0 * deltas * small - np.expm1(-epsilons)) / (1.0 + small)))
    later = epsilons > 0
    points = [(0.0, min(at_zero, 1.0))]
    points += zip(epsilons[later].tolist(), deltas[later].tolist(), strict=True)
    hull: list[tuple[float, float]] = []
    for point in points:
        if hull and point[1] >= hull[-1][1]:
            continue  # the point adds no information
        # A profile is convex in e^eps, so it is below each chord of two points that bound it.
        while len(hull) > 1 and _log_slope(hull[-1], point) >= _log_slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    delta_at_end = hull[-1][1]
    loss = np.array([epsilon for epsilon, _ in hull[1:]])
    log_tail = np.array([_log_slope(*ends) for ends in itertools.pairwise(hull)])
    with np.errstate(divide="ignore"):
        # q_i = tail_i - tail_{i+1} and p_i = e^loss q_i.
        following = np.append(log_tail[1:], -np.inf) - log_tail
        log_q = log_tail + np.log(-np.expm1(np.minimum(following, 0.0)))
    log_p = log_q + loss
    unassigned = max(1.0 - delta_at_end - float(np.exp(log_p).sum() + np.exp(log_q).sum()), 0.0)
    with np.errstate(divide="ignore"):
        log_mass = np.concatenate(
            [log_q[::-1], [math.log(unassigned) if unassigned > 0 else -np.inf], log_p]
        )
    is_possible = log_mass > -np.inf
    is_possible[len(loss)] = True
    return LossPair(
        PrivacyLossPmf(
            np.concatenate([-loss[::-1], [0.0], loss])[is_possible],
            log_mass[is_possible],
            delta_at_end,
            delta_at_end,
        )
    )


def _log_slope(point: tuple[float, float], later_point: tuple[float, float]) -> float:
    """log of (delta - delta') / (e^eps' - e^eps)."""
    (epsilon, delta), (later, smaller) = point, later_point
    return math.log(delta - smaller) - later - math.log(-math.expm1(epsilon - later))


_ROUNDING = 1e-6  # allowed error of a sum of 1e5 masses


@dataclass(frozen=True, eq=False)
class LossDistribution(Mechanism):
    """Any mechanism that is dominated by a privacy loss with finitely many values.

    A loss log(P/P') with P-probability p has P'-probability p e^-loss. The remaining mass of P'
    belongs to outputs that occur only under P'. So one direction determines its mirror image, which
    bounds the other direction. A second distribution can only tighten the result.

    Attributes:
        losses: [n] finite, strictly increasing.
        probabilities: [n] under P.
        infinite: P-probability of an infinite loss.
        reverse: the other direction; None for the mirror image of this one. Pass the same
            distribution if it bounds both directions.
        directed: whether P is known to be the data set with the record.

    Raises:
        InvalidInput: the losses do not increase, or the masses are not probabilities under P and
            P'.

    Example:
        >>> one = LossDistribution([-1.0, 1.0], [0.2689414, 0.7310586])
        >>> round(one.epsilon(1e-6), 3)  # randomised response of epsilon 1
        1.0
        >>> skewed = LossDistribution([-4.60517, 0.10436], [0.001, 0.999])
        >>> round(skewed.epsilon(0.01), 2)  # the mirror image has the larger losses
        4.5
    """

    losses: FloatArray
    probabilities: FloatArray
    infinite: float = 0.0
    reverse: "LossDistribution | None" = None
    directed: bool = False

    def __post_init__(self) -> None:
        losses, masses = (
            _numbers("losses", self.losses),
            _numbers("probabilities", self.probabilities),
        )
        if np.any(np.diff(losses) <= 0.0):
            raise InvalidInput("losses must increase strictly, got some that do not")
        if masses.shape != losses.shape or np.any(masses < 0.0):
            raise InvalidInput(
                f"probabilities must be {losses.size} numbers >= 0, got {checks.one_line(masses)}"
            )
        infinite = checks.interval(
            "infinite", self.infinite, 0.0, 1.0, closed_low=True, closed_high=True
        )
        checks.validate(self, "directed", checks.flag)
        total, total_of_other = masses.sum() + infinite, self._masses_of_other(losses, masses).sum()
        if abs(total - 1.0) > _ROUNDING or total_of_other > 1.0 + _ROUNDING:
            raise InvalidInput(
                "probabilities must sum to 1, and to at most 1 under the other data set, "
                f"got {total:.9g} and {total_of_other:.9g}"
            )
        checks.store_validated(self, losses=losses, probabilities=masses, infinite=infinite)

    @staticmethod
    def _masses_of_other(losses: FloatArray, masses: FloatArray) -> FloatArray:
        return np.exp(safe_log(masses) - losses)

    @cached_property
    def _pair(self) -> LossPair:
        log_mass = safe_log(self.probabilities)
        is_possible = log_mass > -np.inf
        lacking = 1.0 - float(self._masses_of_other(self.losses, self.probabilities).sum())
        # If rounding leaves a sum below 1, the difference counts as infinite loss.
        leak = max(self.infinite, 1.0 - float(self.probabilities.sum()))
        return LossPair(
            PrivacyLossPmf(self.losses[is_possible], log_mass[is_possible], leak, max(lacking, 0.0))
        )

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        if self.reverse is None:
            return self._pair, self._pair.mirrored
        return (self._pair,) if self._is_own_reverse else (self._pair, self.reverse._pair)

    @cached_property
    def _is_own_reverse(self) -> bool:
        reverse = self.reverse
        return (
            reverse is not None
            and np.array_equal(self.losses, reverse.losses)
            and np.array_equal(self.probabilities, reverse.probabilities)
            and self.infinite == reverse.infinite
        )

    @property
    def is_directed(self) -> bool:
        return self.directed or self._is_own_reverse

    @property
    def description(self) -> str:
        return f"a privacy loss distribution of {len(self.losses)} losses; {GIVEN}"


def _numbers(name: str, values: ArrayLike) -> FloatArray:
    numbers = checks.numbers(name, values)
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        raise InvalidInput(
            f"{name} must be finite numbers in one dimension, got {checks.one_line(numbers)}"
        )
    return numbers
