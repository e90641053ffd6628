"""The reduced game: the best of K draws of N(0,1) against the best of K draws of N(mu,1).

If the score is an increasing function of the sufficient statistic, the tuned output is exactly the
largest of K draws (Xiang, Wang & Wang 2024, sec. 5.2): its distribution function is phi(Phi(x)),
its density phi'(Phi(x)) pdf(x), and under the neighbour both are shifted by mu. Its cost is
computed exactly, and by Renyi divergence as in their algorithm 3.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy import special

from audit.accounting import (
    DpSgd,
    GaussianMechanism,
    LossPair,
    Mechanism,
    compose,
    gdp_limit_mu,
    largest_epsilon,
    mean_inclusion_mu,
)
from audit.accounting.composition import COARSE_CELLS
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
