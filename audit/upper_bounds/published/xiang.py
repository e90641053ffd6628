"""Xiang, Wang & Wang 2024: the reduced game by Renyi divergence (algorithm 3)."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special

from audit.accounting import DpSgd, GaussianMechanism, Mechanism, gdp_limit_mu, mean_inclusion_mu
from audit.accounting.conversion import best_conversion, epsilon_of_order
from audit.claims import Assumption, Kind
from audit.errors import NotApplicable
from audit.numerics import (
    FLOAT_ROUNDING,
    PROFILE_ACCURACY,
    SUM_ROUNDING,
    FloatArray,
    safe_log,
    safe_root,
)
from audit.repetitions import Repetitions
from audit.upper_bounds.cells import cell_masses
from audit.upper_bounds.reduced import log_density
from audit.upper_bounds.registry import BoundValue, bound

_MONOTONE = (Assumption.MONOTONE_SCORE,)
_RENYI_SOURCE = "Xiang, Wang & Wang 2024, algorithm 3"
# Orders above this value / mu are never best; their integrand peaks this far from the origin.
_LARGEST_SHIFT = 200.0
_RULES = tuple(np.polynomial.legendre.leggauss(nodes) for nodes in (8, 6))
_SHORT_RULE = np.polynomial.legendre.leggauss(3)
_FIRST_CELLS = 8001
# Number of passes that refine the cells for the chords of one order, cells added in each pass, and
# share of delta for the outputs beyond the cells.
_PASSES = 8
_NEW_CELLS = 1 << 12
_NEGLIGIBLE, _MIN_MASS = 1e-30, 1e-305
_FURTHEST = 1e3
# At smaller log densities, a mass underflows.
_MIN_DENSITY = -800.0
# Cells are not refined for larger orders: the best orders are smaller, and the error is added.
_LARGEST_ORDER = 1e3


@dataclass(frozen=True)
class ReducedGameRenyi:
    """The Renyi divergences of the reduced game.

    Attributes:
        mu: the base's mu.
        repetitions: the distribution of K.

    Example:
        >>> import numpy as np
        >>> from audit.repetitions import parse_repetitions
        >>> game = ReducedGameRenyi(0.25, parse_repetitions("tnb:0,0.1"))
        >>> game.renyi(np.array([2.0, 8.0])).round(3).tolist()
        [0.058, 0.199]
    """

    mu: float
    repetitions: Repetitions

    def renyi(self, alpha: FloatArray, sign: float = 1.0) -> FloatArray:
        """Renyi divergence of orders [n] by quadrature, to search for the best order.

        It uses Gauss-Legendre quadrature on cells that are short where the density bends, and adds
        the difference to a rule with fewer nodes. It is infinite for orders with (alpha - 1) mu >
        200. Only `renyi_epsilon` is proved to be rounded up.

        Args:
            alpha: orders [n] > 1.
            sign: 1 for D(without || with the canary), -1 for the reverse.
        """
        edges = self._cells(float(np.max(alpha)))
        best, coarse = (self._log_integral(alpha, sign, edges, rule) for rule in _RULES)
        with np.errstate(over="ignore"):
            log_integral = best + np.log1p(np.abs(np.expm1(coarse - best)))
        return self._divergence(alpha, log_integral)

    def _rough_renyi(self, alpha: FloatArray, sign: float) -> FloatArray:
        """The same to about four digits, several times faster."""
        edges = self._cells(float(np.max(alpha)))
        return self._divergence(alpha, self._log_integral(alpha, sign, edges, _SHORT_RULE))

    def _divergence(self, alpha: FloatArray, log_integral: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            # Without a run, the output is the same on both sides, which adds P[K=0] to the sum.
            none = self.repetitions.probability_of_none
            log_sum = np.logaddexp(log_integral, np.log(none)) if none > 0 else log_integral
        divergence = np.maximum(log_sum, 0.0) / (alpha - 1.0)
        return np.where((alpha - 1.0) * self.mu > _LARGEST_SHIFT * 1.001, np.inf, divergence)

    def renyi_epsilon(self, order: float, delta: float, sign: float = 1.0) -> float:
        """Epsilon at delta by the Renyi divergence of one order, proved to be rounded up.

        The outer outputs, which have a negligible probability under P, are subtracted from delta.
        The others are divided into cells whose masses P_i and Q_i are known. phi' increases, so in
        a cell r = p/q is between lo and hi, which follow from the slopes and the normal densities
        at its ends. A convex function is below its chord, and Q_i and P_i are the integrals of 1
        and of r under q. So the integral of q r^alpha over the cell is at most that of the chord,

            Q_i lo^alpha + (P_i - Q_i lo) (hi^alpha - lo^alpha) / (hi - lo),

        which grows with P_i and falls with Q_i: one is rounded up, the other down. The excess
        decreases with the square of the width of the cells.

        Args:
            order: alpha > 1.
            delta: in (0, 1).
            sign: 1 for D(without || with the canary), -1 for the reverse.
        """
        means = (0.0, self.mu) if sign > 0 else (self.mu, 0.0)
        edges, beyond = self._where_p_is(means[0], max(delta * _NEGLIGIBLE, _MIN_MASS))
        for _ in range(_PASSES):
            log_terms, widths = self._chords(order, edges, *means)
            excess = np.cbrt(np.exp(log_terms - log_terms.max()) * widths * widths)
            pieces = 1.0 + np.floor(_NEW_CELLS * excess / excess.sum())
            ends = np.append(0.0, np.cumsum(pieces))
            edges = np.interp(np.arange(ends[-1] + 1.0), ends, edges)
        log_terms, _ = self._chords(order, edges, *means)
        # Without a run, the output is the same on both sides, which adds P[K=0] to the sum.
        none = float(safe_log(self.repetitions.probability_of_none))
        log_sum = float(special.logsumexp(np.append(log_terms, none)))
        divergence = max(log_sum + SUM_ROUNDING, 0.0) / (order - 1.0)
        # The outputs beyond the cells may reveal the data set at the price of their probability.
        return float(epsilon_of_order(divergence, order, delta - beyond))

    def _where_p_is(self, mean: float, negligible: float) -> tuple[FloatArray, float]:
        """Edges [n] of outputs beyond which P has negligible mass, and this mass."""
        repetitions = self.repetitions

        def below(x: float) -> float:
            log_x = float(special.log_ndtr(x - mean))
            # phi is convex, so phi(x) - phi(0) <= x phi'(x): sharper for some distributions.
            at_most = np.exp(log_x + repetitions.log_phi_prime_at(log_x))
            return float(min(repetitions.some_phi_at(log_x), at_most))

        def above(x: float) -> float:
            return float(repetitions.one_minus_phi_at(special.log_ndtr(x - mean)))

        far, near = mean - _FURTHEST, mean + _FURTHEST
        low = safe_root(lambda x: below(x) > negligible, far, near, 1e-3)
        high = safe_root(lambda x: above(x) > negligible, near, far, 1e-3)
        beyond = (below(low) + above(high)) * (1.0 + PROFILE_ACCURACY)
        return np.linspace(low, high, 1 << 12), beyond

    def _chords(
        self, order: float, edges: FloatArray, mean: float, other_mean: float
    ) -> tuple[FloatArray, FloatArray]:
        """Log of the largest contribution of each cell [n-1], and the range of log r in it."""
        repetitions, sign = self.repetitions, 1.0 if mean == 0.0 else -1.0
        slopes = self._slope_ratios(edges)
        # The log ratio of both normal densities is linear in x, so its values at the ends bound it.
        normal = (mean - other_mean) * (edges - 0.5 * (mean + other_mean))
        low, high = slopes if sign > 0 else (-slopes[1], -slopes[0])
        rounding = FLOAT_ROUNDING * np.maximum(np.abs(normal[1:]), np.abs(normal[:-1]))
        low = low + np.minimum(normal[1:], normal[:-1]) - rounding
        high = high + np.maximum(normal[1:], normal[:-1]) + rounding
        width = high - low
        log_p, log_q = (
            safe_log(np.maximum(mass + way * rounding, 0.0)[::-1])
            for way, (mass, rounding) in (
                (way, cell_masses(special.log_ndtr(edges[::-1] - at), repetitions))
                for way, at in ((1.0, mean), (-1.0, other_mean))
            )
        )
        # (e^(alpha w) - 1) / (e^w - 1), the chord's slope in units of lo^(alpha - 1).
        log_slope = (order - 1.0) * width + np.log(np.expm1(-order * width) / np.expm1(-width))
        with np.errstate(over="ignore", invalid="ignore"):
            above = safe_log(np.maximum(np.expm1(log_p - low - log_q), 0.0))
            terms = order * low + log_q + np.logaddexp(0.0, log_slope + above)
        # If Q_i is lost to rounding or underflow, it counts as 0.
        lost = ~(np.isfinite(log_q) & np.isfinite(terms))
        return np.where(lost, (order - 1.0) * low + log_slope + log_p, terms), width

    def _slope_ratios(self, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on g(x) - g(x - mu), g = log phi'(Phi(x)), in every cell [n-1] between edges [n].

        g increases, so its values at the ends bound the difference. For small mu, the bounds are mu
        times the smallest and the largest g'(t), with t from the first end minus mu to the last
        end. g' is the slope of log phi' in log x, which increases (phi' is a power series with
        coefficients >= 0), times the slope of log Phi, which decreases. The first is bounded by
        chords just outside of the cell, the second by its values at the ends.
        """

        def g(x: FloatArray) -> tuple[FloatArray, FloatArray]:
            log_x = special.log_ndtr(x)
            log_slope = self.repetitions.log_phi_prime_at(log_x)
            # The second value is the log of the slope of log Phi, up to a constant.
            return np.maximum(log_slope, -1e300), -0.5 * x * x - log_x

        start, end = edges[:-1], edges[1:]
        step = end - start
        (at, fall), (before, fall_before) = g(edges), g(edges - self.mu)
        rounding = FLOAT_ROUNDING * (1.0 + np.maximum(np.abs(at), np.abs(before)))
        rounding = rounding[1:] + rounding[:-1]
        after, fall_after = g(end + step)
        before_previous, fall_before_previous = g(start - self.mu - step)
        steepest = (after - at[1:] + rounding) * np.exp(fall_before[:-1] - fall_after)
        flattest = (before[:-1] - before_previous - rounding) * np.exp(
            fall[1:] - fall_before_previous
        )
        with np.errstate(over="ignore"):
            steepest, flattest = self.mu * steepest / step, self.mu * flattest / step
        return (
            np.maximum(np.maximum(at[:-1] - before[1:], flattest) - rounding, 0.0),
            np.minimum(at[1:] - before[:-1], steepest) + rounding,
        )

    def _cells(self, largest_order: float) -> FloatArray:
        """Edges [n] of cells over which the integrand of an order is smooth.

        log phi'(Phi(x)) may bend within a hundredth of a standard deviation, where two numbers of
        runs have equal weight. A cell is at most 0.25 wide, and about 1/(4 sqrt(c)) where the
        exponent has curvature c. Bends where neither side has mass are ignored, because orders that
        depend on them are never best.
        """
        reach = 40.0 + min(largest_order * self.mu, 1.001 * _LARGEST_SHIFT + self.mu)
        x = np.linspace(-reach, reach + self.mu, _FIRST_CELLS)
        for _ in range(3):
            width = np.diff(x)
            p, q = (
                self.repetitions.log_phi_prime_at(special.log_ndtr(x - mean))
                for mean in (0.0, self.mu)
            )
            bends = np.zeros(len(x))
            seen = np.maximum(p - 0.5 * x * x, q - 0.5 * (x - self.mu) ** 2) > _MIN_DENSITY
            for log_slope, times in (
                (p, 1.0),
                (q, 1.0),
                (p - q, min(largest_order, _LARGEST_ORDER)),
            ):
                bend = np.abs(np.diff(np.diff(log_slope) / width))
                bends[1:-1] += times * bend / (0.5 * (width[1:] + width[:-1]))
            dense = 4.0 + 4.0 * np.sqrt(np.where(seen, bends, 0.0))
            cells = np.append(0.0, np.cumsum(np.maximum(dense[1:], dense[:-1]) * width))
            x = np.interp(np.linspace(0.0, cells[-1], int(cells[-1]) + 2), cells, x)
        return x

    def _log_integral(
        self, alpha: FloatArray, sign: float, edges: FloatArray, rule: tuple[FloatArray, FloatArray]
    ) -> FloatArray:
        """log of the integral [n] of p^alpha q^(1-alpha)."""
        nodes, weights = rule
        half = 0.5 * np.diff(edges)
        x = (0.5 * (edges[1:] + edges[:-1])[:, None] + half[:, None] * nodes).ravel()
        log_weight = np.log((half[:, None] * weights).ravel())
        p, q = log_density(x, self.repetitions), log_density(x - self.mu, self.repetitions)
        if sign < 0:
            p, q = q, p
        log_weight += p
        gain = p - q
        log_sums = []
        for order in alpha.tolist():
            terms = log_weight + (order - 1.0) * gain
            top = float(terms.max())
            log_sums.append(top + math.log(float(np.exp(terms - top).sum())))
        return np.array(log_sums)


@bound("reduced-renyi", 70, _RENYI_SOURCE, needs=_MONOTONE, about=("Gaussian base",))
def reduced_renyi(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Epsilon of the reduced game by Renyi divergence.

    Each direction is converted to (epsilon, delta) separately, and the larger epsilon is returned;
    taking the larger divergence at each order first would be looser. For mu "O" or "G" of a
    subsampled base, this is the paper's eps_U-O or eps_U-G.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(reduced_renyi(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.089
    """
    if base.gaussian_mu is None:
        raise NotApplicable("the base must be Gaussian")
    return BoundValue(_renyi_epsilon(base.gaussian_mu, repetitions, delta))


def _renyi_epsilon(mu: float, repetitions: Repetitions, delta: float) -> float:
    game = ReducedGameRenyi(mu, repetitions)
    high = _LARGEST_SHIFT / game.mu

    def one_direction(sign: float) -> float:
        # Each order gives a bound, so a rough search is enough. Only the bound itself is rounded
        # up.
        order = best_conversion(partial(game._rough_renyi, sign=sign), delta, 1e-5, high)[0]
        return max(game.renyi_epsilon(order, delta, sign), 0.0)

    return max(one_direction(sign) for sign in (1.0, -1.0))


@bound(
    "reduced-O",
    70,
    f"{_RENYI_SOURCE}, mu by eq. 19",
    kind=Kind.APPROXIMATION,
    needs=_MONOTONE,
    is_special=True,
)
def reduced_mean_inclusion(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """eps_U-O: algorithm 3 for a Gaussian of mu "O" = tau sqrt(N) / sigma, for sampled batches.

    Example:
        >>> from audit.accounting import DpSgd
        >>> round(reduced_mean_inclusion(DpSgd(1.0, 500, 0.01), "tnb:0,0.1", 1e-5).epsilon, 3)
        0.966
    """
    run = _sampled(base)
    mu = mean_inclusion_mu(run.noise_multiplier, run.steps, run.sampling_rate)
    return _approximation(run.distance * mu, repetitions, delta)


@bound(
    "reduced-G",
    75,
    f"{_RENYI_SOURCE}, mu by corollary 2",
    kind=Kind.APPROXIMATION,
    needs=_MONOTONE,
    is_special=True,
)
def reduced_gdp_limit(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """eps_U-G: algorithm 3 for the mu "G" of sampled batches, the central limit of Gaussian DP.

    Example:
        >>> from audit.accounting import DpSgd
        >>> round(reduced_gdp_limit(DpSgd(1.0, 500, 0.01), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.727
    """
    run = _sampled(base)
    if run.distance != 1.0:
        raise NotApplicable("neighbours must be add-remove or zero-out, and groups of one record")
    mu = gdp_limit_mu(run.noise_multiplier, run.steps, run.sampling_rate)
    return _approximation(mu, repetitions, delta)


def _sampled(base: Mechanism) -> DpSgd:
    if not (isinstance(base, DpSgd) and base.sampling_rate < 1.0):
        raise NotApplicable("the base must be DP-SGD with sampling rate < 1")
    return base


def _approximation(mu: float, repetitions: Repetitions, delta: float) -> BoundValue:
    try:
        GaussianMechanism(mu)
    except ValueError as error:
        raise NotApplicable(f"the approximation's {error}") from error
    epsilon = _renyi_epsilon(mu, repetitions, delta)
    return BoundValue(epsilon, about=(f"an approximation by mu = {mu:.4g}, not a bound",))
