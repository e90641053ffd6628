"""The cost of releasing the best m of K runs, or the runs on a Pareto front of at most m.

This is the region bound with the m-th derivative of phi, phi^(m)(x) = E[K (K-1) ... (K-m+1)
x^(K-m)], and the profile of the composition of m runs (propositions 7 and 19 of docs/theory.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol as Interface

import numpy as np
from numpy.typing import ArrayLike

from audit import numerics
from audit.accounting import DominatingPair, Mechanism, solve_epsilon
from audit.errors import NotApplicable
from audit.numerics import FloatArray
from audit.protocols import BestRuns, ParetoFront
from audit.repetitions import (
    Binomial,
    Fixed,
    Poisson,
    Repetitions,
    TruncatedNegativeBinomial,
    TwoPoint,
)
from audit.upper_bounds.composed import composed
from audit.upper_bounds.region import RegionCurve, ShiftedProfiles, between
from audit.upper_bounds.registry import BoundValue, bound

# Larger than the rounding error of the logarithm of a derivative.
_ROUNDING = 1e-12
_LARGEST_LOG = 600.0


def log_derivative(repetitions: Repetitions, order: int, log_x: ArrayLike) -> FloatArray:
    """log of the m-th derivative of phi, E[K (K-1) ... (K-m+1) x^(K-m)], from log(x) <= 0."""
    log_x, more = np.asarray(log_x, dtype=np.float64), np.arange(1, order)
    if isinstance(repetitions, TruncatedNegativeBinomial):
        # Each derivative adds a factor (eta + i) (1 - gamma) / (1 - (1 - gamma) x).
        log_rest = np.log(repetitions.gamma - (1.0 - repetitions.gamma) * np.expm1(log_x))
        factors = float(np.log((repetitions.eta + more) * (1.0 - repetitions.gamma)).sum())
        return repetitions.log_phi_prime_at(log_x) + factors - (order - 1) * log_rest
    if isinstance(repetitions, Poisson):
        return repetitions.log_phi_prime_at(log_x) + (order - 1) * math.log(repetitions.mean)
    if isinstance(repetitions, Binomial):
        return _of_power(
            repetitions.n, order, repetitions.p, np.log1p(repetitions.p * np.expm1(log_x))
        )
    if isinstance(repetitions, Fixed):
        return _of_power(repetitions.k, order, 1.0, log_x)
    if isinstance(repetitions, TwoPoint):
        many = math.log1p(-repetitions.s) + _of_power(repetitions.L, order, 1.0, log_x)
        return np.logaddexp(math.log(repetitions.s), many) if order == 1 else many
    raise NotApplicable(
        f"the distribution of K must have a closed form for its derivatives, got {repetitions.spec}"
    )


def _of_power(n: int, order: int, factor: float, log_base: FloatArray) -> FloatArray:
    """log of the derivative of base^n, where the base's own slope is `factor`."""
    if n < order:
        return np.full(np.shape(log_base), -np.inf)
    constant = float(np.log(factor * (n - np.arange(order))).sum())
    power = n - order
    return constant + (power * log_base if power > 0 else np.zeros(np.shape(log_base)))


@dataclass(frozen=True)
class BestRunsCurve(RegionCurve):
    """The part of the bound for at least m runs, for one direction.

    Attributes:
        released: m, the number of released runs.
        together: the dominating pair of the composition of m runs.
    """

    released: int = 1
    together: DominatingPair | None = None

    @property
    def _most(self) -> float:
        return float(np.exp(log_derivative(self.repetitions, self.released, 0.0)))

    def _log_slopes(self, log_left: FloatArray, log_left_with: FloatArray) -> FloatArray:
        slopes = log_derivative(
            self.repetitions, self.released, np.stack([log_left, log_left_with])
        )
        # A margin for the rounding of the closed forms, on the safe side of both.
        return slopes + np.array([[_ROUNDING], [-_ROUNDING]])

    @cached_property
    def upper(self) -> ShiftedProfiles:
        return self._of_all(super().upper)

    @cached_property
    def lower(self) -> ShiftedProfiles:
        return self._of_all(super().lower)

    def _of_all(self, mixture: ShiftedProfiles) -> ShiftedProfiles:
        # Proposition 7: each hinge in the product of m ratios is a profile of m runs composed, and
        # the ordered outputs are 1/m! of all.
        pair = self.pair if self.together is None else self.together
        return ShiftedProfiles(
            pair, mixture.weights / math.factorial(self.released), mixture.shifts
        )


@numerics.memoize(8)
def best_runs_curves(base: Mechanism, protocol: BestRuns) -> list[BestRunsCurve]:
    """One curve for each direction of the base; none if K is always below m."""
    repetitions, m = protocol.repetitions, protocol.released
    log_largest = float(log_derivative(repetitions, m, 0.0))
    if log_largest == -math.inf:
        return []
    if log_largest > _LARGEST_LOG:
        raise NotApplicable(f"E[K (K-1) ... (K-{m - 1})] must be below e^{_LARGEST_LOG:g}")
    together = composed(base, m).pairs if m > 1 else base.pairs
    return [
        BestRunsCurve(pair, repetitions, released=m, together=all_m)
        for pair, all_m in zip(base.pairs, together, strict=True)
    ]


@numerics.memoize(8)
def fewer_runs(base: Mechanism, protocol: BestRuns) -> Callable[[float], float]:
    """The part of delta with fewer than m runs, all of which are released."""
    m = protocol.released
    chances = protocol.repetitions.pmf(np.arange(m))
    # K is independent of the data, so the profiles are averaged. Without a run nothing is released.
    few = [(float(chances[k]), composed(base, k)) for k in range(1, m) if float(chances[k]) > 0.0]

    def delta(epsilon: float) -> float:
        total = sum(chance * float(runs.delta(epsilon)) for chance, runs in few)
        return total * (1.0 + numerics.PROFILE_ACCURACY)

    return delta


class _Profile(Interface):
    """A delta by epsilon."""

    def delta(self, epsilon: float) -> float: ...


class UpperAndLower(Interface):
    """A bound on delta by epsilon, and the value that shows the size of its rounding."""

    @property
    def lower(self) -> _Profile:
        """The value without rounding up."""
        ...

    def delta(self, epsilon: float) -> float:
        """The bound on delta, rounded up."""
        ...


def with_fewer_runs(
    base: Mechanism, protocol: BestRuns, curves: Sequence[UpperAndLower], delta: float
) -> BoundValue:
    """Epsilon of both parts: at least m runs, with a curve for each direction, and fewer runs."""
    upper = delta_of_both(base, protocol, curves)
    return between(upper, delta_of_both(base, protocol, [curve.lower for curve in curves]), delta)


def delta_of_both(
    base: Mechanism, protocol: BestRuns, curves: Sequence[_Profile]
) -> Callable[[float], float]:
    """Delta by epsilon: at least m runs, by the curve of each direction, and fewer runs."""
    fewer = fewer_runs(base, protocol)
    return lambda epsilon: (
        fewer(epsilon) + max((curve.delta(epsilon) for curve in curves), default=0.0)
    )


def best_at_other_delta(base: Mechanism, protocol: BestRuns, delta: float, _: float) -> BoundValue:
    """The bound, without its error."""
    reached = delta_of_both(base, protocol, best_runs_curves(base, protocol))
    return BoundValue(solve_epsilon(reached, delta))


@bound(
    "best-runs",
    100,
    "region bound with the m-th derivative of phi, for the best m of K runs",
    about=("any base",),
    protocol=BestRuns,
    title=r"$\varepsilon_U$ best m (any score)",
    at_other_delta=best_at_other_delta,
)
def best_runs(base: Mechanism, protocol: BestRuns, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = BestRuns("tnb:1,0.05", released=2)
        >>> round(best_runs(GaussianMechanism(0.24721), protocol, 1e-5).epsilon, 3)
        2.464
    """
    return with_fewer_runs(base, protocol, best_runs_curves(base, protocol), delta)


def _directions(base: Mechanism, protocol: ParetoFront) -> list[tuple[BestRunsCurve, ...]]:
    """In each direction, the curves of all numbers of runs on the front."""
    numbers = range(1, protocol.most + 1)
    curves = [best_runs_curves(base, BestRuns(protocol.repetitions, m)) for m in numbers]
    return list(zip(*filter(None, curves), strict=True))


def _front_at_other_delta(
    base: Mechanism, protocol: ParetoFront, delta: float, _: float
) -> BoundValue:
    """The bound, without its error."""
    return BoundValue(solve_epsilon(_delta_of_front(_directions(base, protocol)), delta))


def _delta_of_front(directions: Sequence[Sequence[_Profile]]) -> Callable[[float], float]:
    """Delta by epsilon: the sum over all numbers of runs on the front, in the worse direction."""
    return lambda epsilon: max(
        sum(curve.delta(epsilon) for curve in direction) for direction in directions
    )


@bound(
    "pareto-front",
    100,
    "region bound with derivatives of phi, summed over the number of runs on the front",
    about=("any base",),
    protocol=ParetoFront,
    title=r"$\varepsilon_U$ Pareto front (any scores)",
    at_other_delta=_front_at_other_delta,
)
def pareto_front(base: Mechanism, protocol: ParetoFront, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = ParetoFront("tnb:1,0.05", most=2)
        >>> round(pareto_front(GaussianMechanism(0.24721), protocol, 1e-5).epsilon, 3)
        2.464
    """
    directions = _directions(base, protocol)
    lower = [[curve.lower for curve in direction] for direction in directions]
    return between(_delta_of_front(directions), _delta_of_front(lower), delta)
