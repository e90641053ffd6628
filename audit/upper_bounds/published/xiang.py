"""Xiang, Wang & Wang 2024: the reduced game by Renyi divergence (algorithm 3)."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special

from audit.accounting import DpSgd, GaussianMechanism, Mechanism, gdp_limit_mu, mean_inclusion_mu
from audit.accounting.conversion import best_conversion, epsilon_of_order
from audit.arrays import FloatArray
from audit.claims import Assumption, Kind
from audit.errors import NotApplicable
from audit.numerics import FLOAT_ROUNDING, PROFILE_ACCURACY, SUM_ROUNDING, safe_log, safe_root
from audit.repetitions import Repetitions
from audit.upper_bounds.cells import cell_masses
from audit.upper_bounds.reduced import log_density
from audit.upper_bounds.registry import BoundValue, bound

_MONOTONE = (Assumption.MONOTONE_SCORE,)
_RENYI_SOURCE = "Xiang, Wang & Wang 2024, algorithm 3"
# Orders above shift / mu are never best, and their integrand peaks that far from the origin.
_LARGEST_SHIFT = 200.0
_RULES = tuple(np.polynomial.legendre.leggauss(nodes) for nodes in (8, 6))
_SHORT_RULE = np.polynomial.legendre.leggauss(3)
_FIRST_CELLS = 8001
# How often cells are cut for the chords of one order, into how many more each time; and what of
# delta is given up for outputs beyond them.
_PASSES = 8
_NEW_CELLS = 1 << 12
_NEGLIGIBLE, _MIN_MASS = 1e-30, 1e-305
_FURTHEST = 1e3
# Log densities below it are of outputs that no double gives a mass.
_MIN_DENSITY = -800.0
# Cells are not made for larger orders: the best are below, and what is missed is added as error.
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
        """Renyi divergence of orders [n], by quadrature: what to search the best order with.

        Gauss and Legendre's rule on cells that are short where the density bends; what the rule of
        fewer nodes, much less exact, differs by is added. Orders with (alpha - 1) mu > 200 give
        infinity. What is proved to be on the safe side is `renyi_epsilon`.

        Args:
            alpha: orders [n] > 1.
            sign: 1: without || with the canary, -1: the reverse.
        """
        edges = self._cells(float(np.max(alpha)))
        best, other = (self._log_integral(alpha, sign, edges, rule) for rule in _RULES)
        with np.errstate(over="ignore"):
            log_integral = best + np.log1p(np.abs(np.expm1(other - best)))
        return self._divergence(alpha, log_integral)

    def _rough_renyi(self, alpha: FloatArray, sign: float) -> FloatArray:
        """The same to four digits or so, several times faster."""
        edges = self._cells(float(np.max(alpha)))
        return self._divergence(alpha, self._log_integral(alpha, sign, edges, _SHORT_RULE))

    def _divergence(self, alpha: FloatArray, log_integral: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            # No run leaves the same nothing on both sides: it adds P[K=0] to the sum.
            none = self.repetitions.probability_of_none
            log_sum = np.logaddexp(log_integral, np.log(none)) if none > 0 else log_integral
        divergence = np.maximum(log_sum, 0.0) / (alpha - 1.0)
        return np.where((alpha - 1.0) * self.mu > _LARGEST_SHIFT * 1.001, np.inf, divergence)

    def renyi_epsilon(self, order: float, delta: float, sign: float = 1.0) -> float:
        """Epsilon at delta by the Renyi divergence of one order, proved to be rounded up.

        Outputs that P gives with less than a negligible share of delta are taken off delta. The
        others are cut into cells whose masses P_i and Q_i are known. phi' increases, so in a cell r
        = p/q is between lo and hi, which the slopes and the normal densities at its ends give. A
        convex function is below its chord, and Q_i and P_i are the means of 1 and of r under q, so
        that the integral of q r^alpha over the cell is at most the chord's,

            Q_i lo^alpha + (P_i - Q_i lo) (hi^alpha - lo^alpha) / (hi - lo),

        which grows with P_i and falls with Q_i: one is rounded up, the other down. What is too much
        shrinks with the square of the cells, however the density bends.

        Args:
            order: alpha > 1.
            delta: in (0, 1).
            sign: 1: without || with the canary, -1: the reverse.
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
        # No run leaves the same nothing on both sides: it adds P[K=0] to the sum.
        none = float(safe_log(self.repetitions.probability_of_none))
        log_sum = float(special.logsumexp(np.append(log_terms, none)))
        divergence = max(log_sum + SUM_ROUNDING, 0.0) / (order - 1.0)
        return float(epsilon_of_order(divergence, order, delta - beyond))

    def _where_p_is(self, mean: float, negligible: float) -> tuple[FloatArray, float]:
        """Outputs [n] outside of which P has little mass on either side, and how much it has."""
        law = self.repetitions

        def below(x: float) -> float:
            log_x = float(special.log_ndtr(x - mean))
            # phi is convex, so phi(x) - phi(0) <= x phi'(x): sharper for some distributions.
            at_most = np.exp(log_x + law.log_phi_prime_at(log_x))
            return float(min(law.some_phi_at(log_x), at_most))

        def above(x: float) -> float:
            return float(law.one_minus_phi_at(special.log_ndtr(x - mean)))

        far, near = mean - _FURTHEST, mean + _FURTHEST
        low = safe_root(lambda x: below(x) > negligible, far, near, 1e-3)
        high = safe_root(lambda x: above(x) > negligible, near, far, 1e-3)
        beyond = (below(low) + above(high)) * (1.0 + PROFILE_ACCURACY)
        return np.linspace(low, high, 1 << 12), beyond

    def _chords(
        self, order: float, edges: FloatArray, mean: float, other: float
    ) -> tuple[FloatArray, FloatArray]:
        """log of what every cell [n-1] adds to the integral at most, and how far log r may move."""
        law, sign = self.repetitions, 1.0 if mean == 0.0 else -1.0
        slopes = self._slope_ratios(edges)
        normal = (mean - other) * (edges - 0.5 * (mean + other))
        low, high = slopes if sign > 0 else (-slopes[1], -slopes[0])
        rounding = FLOAT_ROUNDING * np.maximum(np.abs(normal[1:]), np.abs(normal[:-1]))
        low = low + np.minimum(normal[1:], normal[:-1]) - rounding
        high = high + np.maximum(normal[1:], normal[:-1]) + rounding
        width = high - low
        log_p, log_q = (
            safe_log(np.maximum(mass + way * rounding, 0.0)[::-1])
            for way, (mass, rounding) in (
                (way, cell_masses(special.log_ndtr(edges[::-1] - at), law))
                for way, at in ((1.0, mean), (-1.0, other))
            )
        )
        # (e^(alpha w) - 1) / (e^w - 1), the chord's slope in units of lo^(alpha - 1).
        log_slope = (order - 1.0) * width + np.log(np.expm1(-order * width) / np.expm1(-width))
        with np.errstate(over="ignore", invalid="ignore"):
            above = safe_log(np.maximum(np.expm1(log_p - low - log_q), 0.0))
            terms = order * low + log_q + np.logaddexp(0.0, log_slope + above)
        # Where Q_i is lost to rounding or underflow it is taken to be 0.
        lost = ~(np.isfinite(log_q) & np.isfinite(terms))
        return np.where(lost, (order - 1.0) * low + log_slope + log_p, terms), width

    def _slope_ratios(self, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on g(x) - g(x - mu), g = log phi'(Phi(x)), in every cell [n-1] between edges [n].

        As g grows: by its values at the ends. For small mu: by mu times the smallest and the
        largest g'(t), t from the first end less mu to the last end. g' is the slope of log phi' in
        log x, which grows, for phi' is a power series with coefficients >= 0, times the slope of
        log Phi, which falls. The first is bounded by chords just outside, the second by its ends.
        """

        def g(x: FloatArray) -> tuple[FloatArray, FloatArray]:
            log_x = special.log_ndtr(x)
            found = self.repetitions.log_phi_prime_at(log_x)
            # And log of the slope of log Phi, but for a constant.
            return np.maximum(found, -1e300), -0.5 * x * x - log_x

        start, end = edges[:-1], edges[1:]
        step = end - start
        (at, fall), (before, fall_before) = g(edges), g(edges - self.mu)
        rounding = FLOAT_ROUNDING * (1.0 + np.maximum(np.abs(at), np.abs(before)))
        rounding = rounding[1:] + rounding[:-1]
        after, fall_after = g(end + step)
        further, fall_further = g(start - self.mu - step)
        most = (after - at[1:] + rounding) * np.exp(fall_before[:-1] - fall_after)
        least = (before[:-1] - further - rounding) * np.exp(fall[1:] - fall_further)
        with np.errstate(over="ignore"):
            most, least = self.mu * most / step, self.mu * least / step
        return (
            np.maximum(np.maximum(at[:-1] - before[1:], least) - rounding, 0.0),
            np.minimum(at[1:] - before[:-1], most) + rounding,
        )

    def _cells(self, largest_order: float) -> FloatArray:
        """Edges [n] of cells over which the integrand of an order is smooth.

        log phi'(Phi(x)) may turn within a hundredth of a standard deviation, where two numbers of
        runs weigh the same. A cell is at most 0.25 wide, and where the exponent has curvature c
        some 1/(4 sqrt(c)): what turns by a slope of any height then gets the same few cells. Bends
        where neither side has mass are passed over: orders that see them are never best.
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
        found = []
        for order in alpha.tolist():
            terms = log_weight + (order - 1.0) * gain
            top = float(terms.max())
            found.append(top + math.log(float(np.exp(terms - top).sum())))
        return np.array(found)


@bound("reduced-renyi", 70, _RENYI_SOURCE, needs=_MONOTONE, about=("Gaussian base",))
def reduced_renyi(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Epsilon of the reduced game by Renyi divergence.

    Each direction is converted to (epsilon, delta) on its own and the larger epsilon is taken;
    taking the larger divergence at each order first is looser. Given mu "O" or "G" of a subsampled
    base this is the paper's eps_U-O or eps_U-G.

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
