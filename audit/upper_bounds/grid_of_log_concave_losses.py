"""The cost of a grid on a base whose privacy loss almost has a log-concave density.

If the loss of one run has a log-concave density, apart from outputs that reveal the data set, the
cost of a grid of m is that of `tight` for fixed:m (proposition 6 of docs/theory.md). The loss of
composed sampled batches is log-concave except in far tails, and known on a lattice. So each
direction is replaced by a pair that meets the condition and dominates it: the right tail is moved
to an infinite loss, left tails that are not concave are cut off, and the density is shifted to the
right until the loss is stochastically at least as large as before. This only raises the profile,
E[(1 - e^(epsilon - loss))_+], and lowers P', whose lost mass gets the loss -inf.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from audit.accounting import DeltaUnreachable, LossPair, Mechanism, compose, solve_epsilon
from audit.accounting.combinations import kinds_of_candidates
from audit.accounting.pairs import DominatingPair, GaussianPair, PrivacyLossPmf
from audit.errors import NotApplicable
from audit.numerics import FloatArray, convex_chain, memoize, shared_delta
from audit.protocols import Grid
from audit.upper_bounds.grid_of_gaussians import by_chance, by_chance_shared
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.tight import TightCurve, proved_if_expected

# Shares of delta for runs that reveal the data set. The best is mostly the first or close to it;
# each list ends where the bound grows.
_SMALLEST_SHARE = 1e-8
_SHARED_SHARE = 1e-5
_SHARES = ((1e-3, 1e-5, _SMALLEST_SHARE), (0.02, 0.1, 0.5))
# Left tails that may be cut off. Once one loses this much more than a shorter one, longer ones do.
_LEFT_TAILS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
_TOO_MUCH = 1.2
_REGION_POINTS = 1 << 11
# Bins per standard deviation of the loss, and the smallest number of lattice points in a bin.
_BINS, _POINTS_OF_BIN = 150, 8
# Largest width of a bin that resolves the density, in standard deviations of the loss.
_WIDEST_BIN = 0.1
_SMALLEST_MASS = 1e-290
# If more of P' than this is lost, the density is not smooth; mu of the smoothing, in standard
# deviations of the loss.
_JAGGED, _SMOOTHING = 0.1, 0.12
# Relative and absolute margin of the shift, far above the rounding of a quantile.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Density:
    """A density that is exponential between points: log-concave if the slopes decrease."""

    at: FloatArray  # the points [n], increasing
    log: FloatArray  # the logarithm [n] of the density there

    @property
    def widths(self) -> FloatArray:
        """Widths [n-1] of the pieces."""
        return np.diff(self.at)

    @property
    def masses(self) -> FloatArray:
        """Masses [n-1] of the pieces."""
        return np.exp(self.log[:-1]) * self.widths * _mean_exp(np.diff(self.log))

    def cut_to(self, total: float) -> "_Density":
        """The right part that has this total mass, which is at most that of the whole density."""
        above = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)
        j = int(np.flatnonzero(above >= total)[-1])
        slope = (self.log[j + 1] - self.log[j]) / (self.at[j + 1] - self.at[j])
        back = float(_distance(np.array([total - above[j + 1]]), self.log[j + 1], -slope)[0])
        return _Density(
            np.append(self.at[j + 1] - back, self.at[j + 1 :]),
            np.append(self.log[j + 1] - slope * back, self.log[j + 1 :]),
        )

    def where_below(self, masses: FloatArray) -> FloatArray:
        """The points [m] to the left of which these masses [m] lie."""
        below = np.append(0.0, np.cumsum(self.masses))
        j = np.clip(np.searchsorted(below, masses, side="right") - 1, 0, len(below) - 2)
        slopes = (np.diff(self.log) / self.widths)[j]
        into = _distance(masses - below[j], self.log[j], slopes)
        return self.at[j] + np.clip(into, 0.0, self.widths[j])

    @property
    def mirrored(self) -> "_Density":
        """The density of the negated variable."""
        return _Density(-self.at[::-1], self.log[::-1])


def _mean_exp(s: FloatArray) -> FloatArray:
    """(e^s - 1) / s [n]: the mean of e^x for x from 0 to s."""
    small = np.abs(s) < 1e-5
    safe = np.where(small, 1.0, s)
    return np.where(small, 1.0 + s / 2.0 + s * s / 6.0, np.expm1(safe) / safe)


def _distance(mass: FloatArray, log: FloatArray, slope: FloatArray) -> FloatArray:
    """Distance [n] over which a density with this log value and slope has this mass."""
    flat = mass * np.exp(-log)
    bend = slope * flat
    small = np.abs(bend) < 1e-8
    safe = np.where(small, 1.0, slope)
    # If the density decreases too fast there is no such distance; the caller clips the result.
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log1p(np.where(small, 0.0, bend)) / safe
    return np.nan_to_num(np.where(small, flat * (1.0 - bend / 2.0), exact), nan=np.inf)


def log_concave_pair(pair: DominatingPair, spent: float, left_tail: float = 0.0) -> LossPair:
    """A pair that dominates another, and whose finite losses have a log-concave density.

    Args:
        pair: the pair, preferably with losses on a fine lattice.
        spent: the largest probability of finite losses that become infinite.
        left_tail: the largest probability of losses that are cut off on the left.

    Raises:
        NotApplicable: the lattice is too coarse to resolve a density.

    Example:
        >>> from audit.accounting import DpSgd
        >>> pair = DpSgd(4.0, 500, 0.2).pairs[0]
        >>> found = log_concave_pair(pair, 1e-9)
        >>> 0.0 < float(found.profile(4.0)) / float(pair.profile(4.0)) - 1.0 < 1e-3
        True
    """
    return _connected(*_dominating(_on_lattice(pair), spent, left_tail))


def _dominating(pmf: PrivacyLossPmf, spent: float, left_tail: float) -> tuple[_Density, float]:
    """The density of finite losses, and the probability of an infinite loss."""
    loss, at_least, below = pmf.loss, pmf.at_least, pmf.below
    spacing = float(loss[-1] - loss[0]) / (len(loss) - 1)
    deviation = pmf.deviation
    points = max(int(deviation / _BINS / spacing), _POINTS_OF_BIN)
    if points * spacing > _WIDEST_BIN * deviation:
        raise NotApplicable("its losses are too coarse to have a density")
    starts = np.arange(0, len(loss), points)
    ends = np.append(starts[1:], len(loss))
    in_bins = np.add.reduceat(pmf.mass, starts)
    # Losses behind this bin become infinite, and unusable ones on the left are cut off. Both make
    # the loss stochastically larger, which only increases the profile (after proposition 6).
    last_bin = int(np.argmax(at_least[ends] <= max(spent, pmf.p_only)))
    usable = (in_bins > _SMALLEST_MASS) & (below[starts] >= left_tail)
    usable[last_bin + 1 :] = False
    if usable.sum() < 3:
        raise NotApplicable("its losses are too few to have a density")
    beyond = float(at_least[ends[last_bin]])
    density = _majorant(
        0.5 * (loss[starts] + loss[ends - 1])[usable],
        np.log(in_bins[usable] / ((ends - starts)[usable] * spacing)),
        float(loss[starts[usable][0]]),
        float(loss[ends[usable][-1] - 1]) + 0.5 * spacing,
    )
    # Either way the total becomes 1 - beyond, and the shift below makes the loss stochastically
    # larger than before.
    total = float(density.masses.sum())
    if total >= 1.0 - beyond:
        density = density.cut_to(1.0 - beyond)
    else:
        density = _Density(density.at, density.log + np.log((1.0 - beyond) / total))
    # Quantiles of both from the nearer end, so that tails keep their digits.
    left = at_least[:-1] >= 0.5
    right = ~left & (at_least[:-1] > beyond)
    behind = loss[left] - density.where_below(below[:-1][left])
    ahead = loss[right] + density.mirrored.where_below(at_least[:-1][right] - beyond)
    shift = max(float(behind.max(initial=0.0)), float(ahead.max(initial=0.0)))
    return _Density(density.at + shift * (1.0 + _ROUNDING) + _ROUNDING, density.log), beyond


def _composed(*pairs: DominatingPair) -> PrivacyLossPmf:
    try:
        return compose([(pair, 1) for pair in pairs]).pmf
    except DeltaUnreachable as error:
        raise NotApplicable(str(error)) from error


def _on_lattice(pair: DominatingPair) -> PrivacyLossPmf:
    if isinstance(pair, LossPair) and len(pair.pmf.loss) > 2:
        steps = np.diff(pair.pmf.loss)
        if np.ptp(steps) < 1e-6 * steps[0]:
            return pair.pmf
    return _composed(pair)


def _majorant(at: FloatArray, log: FloatArray, first: float, last: float) -> _Density:
    """The least concave function above the points [n], from `first` to `last`."""
    hull = convex_chain(at, -log)
    at, log = at[hull], log[hull]
    slopes = np.diff(log) / np.diff(at)
    return _Density(
        np.concatenate([[first], at, [last]]),
        np.concatenate(
            [[log[0] - slopes[0] * (at[0] - first)], log, [log[-1] + slopes[-1] * (last - at[-1])]]
        ),
    )


def _connected(density: _Density, beyond: float) -> LossPair:
    """The density with each piece moved to its ends, which preserves its mass under P and P'."""
    # Mass that moves to both ends of a piece spreads P'/P without changing its mean under P, which
    # increases the mean of every convex function of P'/P, and so the profile.
    masses, widths = density.masses, density.widths
    # P' of a piece, times e to the loss at its start.
    with_record = np.exp(density.log[:-1]) * widths * _mean_exp(np.diff(density.log) - widths)
    to_end = np.clip((masses - with_record) / -np.expm1(-widths), 0.0, masses)
    mass = np.append(masses - to_end, 0.0) + np.append(0.0, to_end)
    is_possible = mass > 0.0
    loss, log_mass = density.at[is_possible], np.log(mass[is_possible])
    lost = max(1.0 - float(np.exp(log_mass - loss).sum()), 0.0)
    return LossPair(PrivacyLossPmf(loss, log_mass, beyond, lost))


def _at_other_delta(base: Mechanism, protocol: Grid, delta: float, _: float) -> BoundValue:
    """The bound with few events, for pairs that several deltas share."""
    if base.gaussian_mu is not None:
        raise NotApplicable("the base is Gaussian: grid-tight is simpler")
    if not base.is_directed and not base.is_symmetric:
        raise NotApplicable("it must be known which data set of the pair has the record")
    epsilon, runs = 0.0, protocol.runs_distribution
    pairs = _shared(base, protocol, shared_delta(delta))
    expected = proved_if_expected(pairs, runs, delta) if protocol.inclusion == 1.0 else None
    if expected is not None:
        return BoundValue(expected[0])
    for pair in pairs:
        if protocol.inclusion < 1.0:
            epsilon = max(epsilon, by_chance_shared(pair, protocol, delta))
            continue
        curve = TightCurve.quick(pair, runs, delta)
        epsilon = max(epsilon, curve.epsilon(delta, curve.guess))
    return BoundValue(epsilon)


@memoize(8)
def _shared(base: Mechanism, protocol: Grid, delta: float) -> list[LossPair]:
    """A dominating pair with a log-concave loss for each direction."""
    kinds_of_candidates(base, protocol.candidates, protocol.spec)
    pairs, share = [], delta / protocol.mean_runs
    for pair in base.pairs:
        smooth, tail = _smooth(pair, share)
        pairs.append(log_concave_pair(smooth, _SHARED_SHARE * share, tail))
    return pairs


@bound(
    "grid-log-concave",
    105,
    "tight bound of as many draws of a dominating pair with a log-concave loss",
    about=("any base",),
    protocol=Grid,
    is_special=True,
    title=r"$\varepsilon_U$ grid, log-concave loss (any score)",
    at_other_delta=_at_other_delta,
)
def grid_log_concave(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta, over both directions.

    The base is one run of any candidate, or `Candidates`, which all count as the least private one.

    Example:
        >>> from audit.accounting import DpSgd
        >>> round(grid_log_concave(DpSgd(4.0, 500, 0.2), Grid(20), 1e-5).epsilon, 1)
        24.5
    """
    kinds_of_candidates(base, protocol.candidates, protocol.spec)
    if base.gaussian_mu is not None:
        raise NotApplicable("the base is Gaussian: grid-tight is simpler")
    if not base.is_directed and not base.is_symmetric:
        raise NotApplicable("it must be known which data set of the pair has the record")
    epsilon = 0.0
    for pair in base.pairs:
        epsilon = _epsilon(pair, protocol, delta, epsilon)
    return BoundValue(epsilon)


def _epsilon(pair: DominatingPair, protocol: Grid, delta: float, lower_limit: float) -> float:
    """The bound, at least `lower_limit`, with the tails that give the smallest region bound."""
    runs = protocol.mean_runs
    pair, tail = _smooth(pair, delta / runs)
    repetitions = protocol.runs_distribution
    best: tuple[float, LossPair] | None = None
    for shares in _SHARES:
        for share in shares:
            log_concave = log_concave_pair(pair, share * delta / runs, tail)
            region = functools.cache(region_curve(log_concave, repetitions, _REGION_POINTS).delta)
            # `tight` is at most `region` of the same pair, so this direction cannot raise the cost.
            if protocol.inclusion == 1.0 and region(lower_limit) <= delta:
                return lower_limit
            if best is not None and region(best[0]) > delta:
                break
            try:
                best = solve_epsilon(region, delta), log_concave
            except DeltaUnreachable:
                continue
    if best is None:
        raise NotApplicable("the base reveals the data set with a larger probability")
    if protocol.inclusion < 1.0:
        return max(lower_limit, by_chance(best[1], protocol, delta))
    curve = TightCurve.at(best[1], repetitions, delta)
    return lower_limit if curve.delta(lower_limit) <= delta else curve.epsilon(delta)


def _smooth(pair: DominatingPair, share: float) -> tuple[LossPair, float]:
    """The pair on a lattice, made smooth if it is jagged, and the left tail that may be cut off."""
    pmf = _on_lattice(pair)
    smooth = LossPair(pmf)
    tail, lost = _left_tail(smooth, share)
    if lost > _JAGGED:
        # A small Gaussian mechanism, added to every run, smooths the density.
        smooth = LossPair(_composed(smooth, GaussianPair(_SMOOTHING * pmf.deviation)))
        tail, _ = _left_tail(smooth, share)
    return smooth, tail


def _left_tail(pair: LossPair, share: float) -> tuple[float, float]:
    """The left tail whose cut loses the least mass of P', and that loss."""
    smallest_loss, best = math.inf, 0.0
    for tail in _LEFT_TAILS:
        lost = log_concave_pair(pair, _SMALLEST_SHARE * share, tail).pmf.q_only
        if lost < smallest_loss:
            smallest_loss, best = lost, tail
        elif lost > _TOO_MUCH * smallest_loss:
            break
    return best, smallest_loss
