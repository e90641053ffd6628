"""The reduced game: the best of K draws of N(0,1) against the best of K draws of N(mu,1).

If the score is an increasing function of the sufficient statistic, the tuned output is exactly the
largest of K draws (Xiang, Wang & Wang 2024, sec. 5.2): its distribution function is phi(Phi(x)),
its density phi'(Phi(x)) pdf(x), and under the neighbour both are shifted by mu.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from audit.accounting import LossPair, Mechanism, compose, largest_epsilon
from audit.accounting.composition import COARSE_CELLS
from audit.claims import Assumption
from audit.errors import NotApplicable
from audit.numerics import PROFILE_ACCURACY, FloatArray
from audit.repetitions import Repetitions
from audit.upper_bounds.cells import cell_masses, divergence_of_cells, rounded, scale
from audit.upper_bounds.region import between
from audit.upper_bounds.registry import BoundValue, bound

_MONOTONE = (Assumption.MONOTONE_SCORE,)
_EXACT_SOURCE = (
    "hockey-stick divergence of the best run for a monotone score, by numerical integration"
)
# Beyond this loss, the smaller of the two masses of a cell underflows.
_LARGEST_LOSS = 600.0
# Cells of the exact game; more would need much memory for large mu without a better result.
_MAX_CELLS = 1 << 18
_LOG_ROOT_TWO_PI = 0.5 * float(np.log(2.0 * np.pi))


def log_density(x: FloatArray, repetitions: Repetitions) -> FloatArray:
    """Log density at x [n] of the largest of K standard normal draws, log phi'(Phi(x)) pdf(x)."""
    return repetitions.log_phi_prime_at(special.log_ndtr(x)) - 0.5 * x * x - _LOG_ROOT_TWO_PI


@dataclass(frozen=True)
class ReducedGame:
    """The pair of distributions of the tuned output for an increasing score.

    Attributes:
        mu: mu of the base mechanism.
        repetitions: the distribution of K.

    Example:
        >>> from audit.repetitions import parse_repetitions
        >>> round(float(ReducedGame(0.25, parse_repetitions("tnb:0,0.1")).delta(0.5)), 4)
        0.0067
    """

    mu: float
    repetitions: Repetitions

    @cached_property
    def _edges(self) -> FloatArray:
        step = max(min(1e-3, 0.02 / self.mu), (75.0 + self.mu) / _MAX_CELLS)
        return np.arange(-37.5, 37.5 + self.mu + step, step)[::-1]

    @cached_property
    def _masses(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Masses and their rounding, of every cell between edges, without and with the canary."""
        without, with_canary = (
            cell_masses(
                np.concatenate([[0.0], special.log_ndtr(self._edges - mean), [-np.inf]]),
                self.repetitions,
            )
            for mean in (0.0, self.mu)
        )
        return without, with_canary

    @cached_property
    def _ratios(self) -> tuple[FloatArray, FloatArray]:
        """Bounds on the log density ratio within every inner cell."""
        edges = self._edges
        ratio = log_density(edges, self.repetitions)
        ratio = ratio - log_density(edges - self.mu, self.repetitions)
        # Between two points a smooth function leaves the interval of their values by at most
        # h^2/8 |f''|; |f''| is estimated by neighbouring second differences, doubled.
        bend = np.abs(np.diff(ratio, 2, prepend=ratio[:1], append=ratio[-1:]))
        slack = 0.25 * np.maximum(bend[1:], bend[:-1])
        low, high = np.minimum(ratio[1:], ratio[:-1]), np.maximum(ratio[1:], ratio[:-1])
        return low - slack, high + slack

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences, rounded up.

        If the density ratio exceeds e^eps in all of a cell, its mass minus e^eps times the other
        mass is exact. If the ratio may cross e^eps, the cell adds at most mass (1 - e^(eps - log of
        the largest ratio)). Other cells add nothing.
        """
        (p, p_error), (q, q_error) = self._masses
        low, high = self._ratios
        forward = _hockey_stick(epsilon, p + p_error, q - q_error, low, high)
        backward = _hockey_stick(epsilon, q + q_error, p - p_error, -high, -low)
        return max(forward, backward)

    def attained_delta(self, epsilon: float) -> float:
        """The same, rounded down: the divergence of the outputs distinguished by cells."""
        return divergence_of_cells(epsilon, *self._bounded)

    @cached_property
    def _bounded(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Bounds (lower, upper) on the masses, without and with the canary."""
        without, with_canary = (rounded(*masses) for masses in self._masses)
        return without, with_canary


def _hockey_stick(
    epsilon: float, mass: FloatArray, other_mass: FloatArray, low: FloatArray, high: FloatArray
) -> float:
    inner, above = mass[1:-1], low >= epsilon
    # The cells beyond the edges, the first and the last one, count in full.
    exact = inner[above] - scale(np.maximum(other_mass[1:-1][above], 0.0), epsilon)
    crosses = ~(high <= epsilon) & ~above
    crossing = inner[crosses] * -np.expm1(epsilon - high[crosses])
    return float(np.sum(exact) + np.sum(crossing) + mass[0] + mass[-1])


@dataclass(frozen=True)
class LikelihoodOrder:
    """The tuned output if the run with the largest likelihood ratio P/P' is released.

    The statistic of a subsampled base is its log likelihood ratio L (Xiang, Wang & Wang 2024, eq.
    19, approximate it by a normal one). The best of K is at most l with probability phi(P[L <= l]).

    Attributes:
        pair: the pair of the base, with a discrete distribution of the privacy loss.
        repetitions: the distribution of K.

    Example:
        >>> from audit.accounting import DpSgd
        >>> from audit.repetitions import parse_repetitions
        >>> pair = DpSgd(1.0, 10, 0.1).pairs[0]
        >>> round(float(LikelihoodOrder(pair, parse_repetitions("tnb:0,0.1")).delta(1.0)), 4)
        0.0198
    """

    pair: LossPair
    repetitions: Repetitions

    @cached_property
    def masses(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Bounds on the mass of every loss under P and under P', the largest loss first."""
        log_p, log_q = self.pair.ranked()
        under_p, under_q = (cell_masses(log, self.repetitions) for log in (log_p, log_q))
        return rounded(*under_p), rounded(*under_q)

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences."""
        return divergence_of_cells(epsilon, *self.masses)


@bound(
    "reduced-exact",
    80,
    _EXACT_SOURCE,
    needs=_MONOTONE,
    title=r"$\varepsilon_U$ reduced (monotone score)",
)
def reduced_exact(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Exact epsilon of the reduced game, by its hockey-stick divergence.

    A Gaussian base is integrated directly. The pair of any other base must be attained by
    neighbouring data sets; its runs are then ordered by their likelihood ratio, increasing or
    decreasing, whichever leaks more, on the grid of the privacy loss. The error is the change of
    epsilon on a grid that is twice as coarse.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(reduced_exact(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.008
    """
    if base.gaussian_mu is not None:
        game = ReducedGame(base.gaussian_mu, repetitions)
        return replace(between(game.delta, game.attained_delta, delta), about=("Gaussian base",))
    if not base.attained:
        raise NotApplicable("the base must have known output distributions")
    if float(base.delta(_LARGEST_LOSS)) > delta * PROFILE_ACCURACY:
        raise NotApplicable(f"losses beyond {_LARGEST_LOSS:g} must be negligible at this delta")
    (pair, count), *other_terms = base.loss_terms
    if isinstance(pair, LossPair) and count == 1 and not other_terms:
        epsilon, error = _by_likelihood(pair, repetitions, delta), 0.0
    else:
        fine = base.pairs[0] if isinstance(base.pairs[0], LossPair) else compose(base.loss_terms)
        epsilon = _by_likelihood(fine, repetitions, delta)
        coarse = compose(base.loss_terms, COARSE_CELLS)
        error = abs(epsilon - _by_likelihood(coarse, repetitions, delta))
    return BoundValue(epsilon + error, error=2.0 * error)


def _by_likelihood(pair: LossPair, repetitions: Repetitions, delta: float) -> float:
    orders = LikelihoodOrder(pair, repetitions), LikelihoodOrder(pair.mirrored, repetitions)
    return largest_epsilon((order.delta for order in orders), delta)
