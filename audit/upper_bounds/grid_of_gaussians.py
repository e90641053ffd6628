"""The cost of a grid on a Gaussian base: that of as many draws from one distribution.

This is proposition 4 of docs/theory.md. Propositions 5 and 18 cover candidates that are left out at
random, and proposition 17 covers candidates with different noise. None holds for every base.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from audit.accounting import DeltaUnreachable, DominatingPair, Mechanism, solve_epsilon
from audit.accounting.pairs import GaussianPair
from audit.arrays import FloatArray, IntArray
from audit.errors import NotApplicable
from audit.numerics import QUANTILE_ACCURACY, last_integer, memoize, shared_delta
from audit.protocols import Grid
from audit.repetitions import Binomial, Fixed
from audit.upper_bounds.grid import kinds_of_candidates
from audit.upper_bounds.grid_of_kinds import kinds_epsilon
from audit.upper_bounds.registry import BoundValue, bound, find
from audit.upper_bounds.tight import (
    TightCurve,
    tight,
    tight_at_other_delta,
)

_SOURCE = (
    "tight bound of the same number of independent draws, exact for a grid with a Gaussian base"
)
_OF_KINDS = "tight bound within candidates of equal noise, region bound between them"
_OF_TWO = "tight bound of binomial:2,p, exact for two candidates on a Gaussian base"
_BY_CHANCE = "mean of the tight bounds of as many draws as candidates are run"
# Share of delta for the event that more candidates are trained than the bins cover.
_RARE = 0.02
# Probability of more candidates than in the first bin, number of bins, and events of each curve.
_USUAL, _BINS, _POINTS = 0.7, 12, 500
# Number of bins, and events of each curve, at deltas other than that of a certificate.
_FEW_BINS, _FEW_EVENTS = 6, 200
_LARGE_EPSILON = 1e6


def _at_other_delta(base: Mechanism, protocol: Grid, delta: float, certified: float) -> BoundValue:
    """The bound with few events, for candidates that all run with the same noise."""
    candidate_kinds = kinds_of_candidates(base, protocol)
    worst = max((member for member, _ in candidate_kinds), key=_mu)
    if protocol.inclusion < 1.0 and protocol.candidates > 2:
        return BoundValue(by_chance_shared(_gaussian_pair(_mu(worst)), protocol, delta))
    if len(candidate_kinds) > 1 or protocol.inclusion < 1.0:
        raise NotApplicable("each delta needs a computation of its own")
    draws = Fixed(protocol.candidates)
    return tight_at_other_delta(worst, draws, delta, certified)


@bound(
    "grid-tight",
    110,
    _SOURCE,
    about=("Gaussian base",),
    protocol=Grid,
    is_special=True,
    title=r"$\varepsilon_U$ grid, tight (any score)",
    at_other_delta=_at_other_delta,
)
def grid_tight(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta.

    The base is one run of any candidate, or `Candidates` with one mechanism for each. If candidates
    are left out at random, all count as the least private one.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(grid_tight(GaussianMechanism(0.24721), Grid(10), 1e-5).epsilon, 3)
        2.728
    """
    candidate_kinds = kinds_of_candidates(base, protocol)
    worst = max((member for member, _ in candidate_kinds), key=_mu)
    # N(0, 1) against N(mu, 1) dominates smaller mu, so that every candidate may count as the worst.
    # Proposition 18 is proved for two candidates only. For more, proposition 5 holds.
    if protocol.inclusion < 1.0 and protocol.candidates == 2:
        of_two = find("tight").body(worst, Binomial(2, protocol.inclusion), delta)
        return replace(of_two, source=_OF_TWO)
    if protocol.inclusion < 1.0:
        return BoundValue(by_chance(GaussianPair(_mu(worst)), protocol, delta), source=_BY_CHANCE)
    # Proposition 4, and proposition 17 for candidates with different noise.
    tight_value = tight(worst, Fixed(protocol.candidates), delta)
    if len(candidate_kinds) > 1:
        try:
            epsilon = kinds_epsilon(
                [(_mu(member), count) for member, count in candidate_kinds], delta
            )
        except DeltaUnreachable:
            epsilon = math.inf
        if epsilon < tight_value.epsilon:
            return BoundValue(epsilon, source=_OF_KINDS)
    if not tight_value.applies:
        raise NotApplicable(tight_value.reason)
    return BoundValue(
        tight_value.epsilon,
        tight_value.error,
        attains=tight_value.attains if len(candidate_kinds) == 1 else 0.0,
    )


def by_chance(pair: DominatingPair, protocol: Grid, delta: float) -> float:
    """Smallest epsilon if candidates, each dominated by the pair, are left out at random."""
    return solve_epsilon(_ByChance(pair, protocol, delta).delta, delta)


def by_chance_shared(pair: DominatingPair, protocol: Grid, delta: float) -> float:
    """The same with few events and bins, from curves that several deltas share."""
    return solve_epsilon(_shared_by_chance(pair, protocol, shared_delta(delta)).delta, delta)


@memoize(8)
def _shared_by_chance(pair: DominatingPair, protocol: Grid, delta: float) -> "_ByChance":
    return _ByChance(pair, protocol, delta, _FEW_EVENTS, _FEW_BINS)


@dataclass(frozen=True)
class _ByChance:
    """The cost of a grid whose candidates are left out at random, for all deltas from one on."""

    pair: DominatingPair
    protocol: Grid
    least_delta: float
    events: int = _POINTS
    bins: int = _BINS

    @cached_property
    def _curves(self) -> tuple[list[tuple[float, TightCurve]], float]:
        """The probability and the curve of each bin, and the probability of more candidates."""
        runs, chances, beyond = _bins(self.protocol, self.least_delta, self.bins)
        reveals = float(self.pair.profile(_LARGE_EPSILON))
        curves = []
        for k, chance in zip(runs, chances, strict=True):
            # The curve is dense where each bin adds the same to delta, if that is possible.
            share = max(self.least_delta / (len(runs) * chance), 2.0 * k * reveals)
            curve = TightCurve.at(self.pair, Fixed(k), min(share, 0.5), self.events)
            curves.append((chance, curve))
        return curves, beyond

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon, rounded up."""
        curves, beyond = self._curves
        # Proposition 5: the number of candidates that run is independent of the data. A bin costs
        # at most its largest number, and numbers beyond the last bin count in full.
        together = sum(chance * min(curve.delta(epsilon), 1.0) for chance, curve in curves)
        return together * (1.0 + QUANTILE_ACCURACY) + beyond


@memoize(8)
def _gaussian_pair(mu: float) -> GaussianPair:
    """The pair of a mu, the same object for every delta, so that curves are found again."""
    return GaussianPair(mu)


def gaussian_pair_of(base: Mechanism) -> GaussianPair:
    """The Gaussian pair that dominates one run.

    Raises:
        NotApplicable: the base is not Gaussian.
    """
    return _gaussian_pair(_mu(base))


def _mu(candidate: Mechanism) -> float:
    """The mu of the Gaussian pair that dominates one run, for any class of mechanism."""
    means = [pair.mu for pair in candidate.pairs if isinstance(pair, GaussianPair)]
    if len(means) < len(candidate.pairs):
        raise NotApplicable("the base must be Gaussian, such as DP-SGD with full batches")
    return max(means)


def _bins(protocol: Grid, delta: float, bins: int) -> tuple[list[int], list[float], float]:
    """Largest number of trained candidates and probability of each bin, and that of more."""
    count, chance = protocol.candidates, protocol.inclusion

    def exceeded(k: IntArray) -> FloatArray:
        second_shape = np.maximum(count - k, 1)
        return np.where(
            k < count, special.betainc(np.maximum(k, -1) + 1.0, second_shape, chance), 0.0
        )

    def last_above(share: float) -> int:
        return int(last_integer(lambda k: exceeded(k) > share, -1, count))

    largest_count = last_above(_RARE * delta) + 1
    beyond = float(exceeded(np.array([largest_count]))[0]) * (1.0 + QUANTILE_ACCURACY)
    if largest_count == 0:
        return [], [], beyond
    smallest_count = max(min(last_above(_USUAL), largest_count), 1)
    edges = np.unique(np.linspace(smallest_count, largest_count, bins).round().astype(np.int64))
    above = np.append(exceeded(np.array([0])), exceeded(edges))
    chances = above[:-1] - above[1:]
    is_possible = chances > 0.0
    return edges[is_possible].tolist(), chances[is_possible].tolist(), beyond
