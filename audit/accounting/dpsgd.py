"""DP-SGD with full batches, with Poisson-sampled batches, and with random allocation.

Full batches form one Gaussian mechanism; Poisson-sampled steps are composed. The dominating pair of
one step, for noise of standard deviation 1 and u = 1/sigma (a sampled record moves the sum by at
most u):

- add/remove and zero-out: (1-tau) N(0,1) + tau N(u,1) against N(0,1) (Mironov, Talwar & Zhang
  2019; Zhu, Dong & Wang 2022, theorem 11), and its reverse;
- replace-one: (1-tau) N(0,1) + tau N(u,1) against (1-tau) N(0,1) + tau N(-u,1), which is its own
  mirror image (proposition 23 of docs/theory.md);
- groups of k records, added or removed: the mixture of the N(j u, 1), j ~ Binomial(k, tau), against
  N(0,1), in both directions (Ganesh 2024). For k replaced records in sampled batches we know no
  dominating pair, so this combination is refused.

With random allocation ("balls in bins"), each record takes part in one random step of every epoch
of t steps, independently of the other records. A step releases the sum of clipped gradients plus
noise. The ratio of the densities of an epoch with and without the record is dominated in convex
order by the mean of t independent log-normal variables, S = (Z_1 + ... + Z_t) / t with
Z = exp(u x - u^2/2) and x ~ N(0, 1) (proposition 25 of docs/theory.md).

The distribution of S is computed on grids of ratios by repeated doubling. Whenever a value falls
between two grid points, its mass is split such that its mean is preserved. This spreads the ratio,
so the pair on the grid dominates the original one. All masses are sums of positive terms, so even a
tail of 1e-40 keeps its digits.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.accounting.composition import compose
from audit.accounting.mechanism import LARGEST_SPREAD, SMALLEST_SPREAD, Mechanism
from audit.accounting.pairs import (
    LOG_ROOT_TWO_PI,
    REACH,
    DominatingPair,
    GaussianPair,
    LossPair,
    PrivacyLoss,
    PrivacyLossPmf,
    multiples,
    quadrature,
)
from audit.errors import InvalidInput
from audit.numerics import FloatArray, log_subtract, memoize, safe_log

NEIGHBOURS = {
    "add-remove": "one data set has {records} more than the other",
    "zero-out": "both data sets have the same, public number of records, and the gradients of "
    "{records} are zero in one of them",
    "replace-one": "both data sets have the same, public number of records, and differ in "
    "{records}",
}
"""How neighbouring data sets differ, by the name of the relation.

- `add-remove`: the number of records n is private, so no released value may depend on it:
  not the divisor of a noisy sum, the sampling rate or the number of steps.
- `zero-out`: n is public. The numbers are those of `add-remove`.
- `replace-one`: n is public. At the same noise the distance is twice as large.
"""

_LARGEST_SHIFT = 400.0
_MAX_GROUP = 1000
_SERIES = 2e-3  # bound on alpha * loss below which three terms of a series are exact to 1e-9
_MAX_SAMPLED_STEPS = 10**8  # beyond, the rounding error of one step is visible in the sum

_RELATIONS_OF_ALLOCATION = ("add-remove", "zero-out")
_MAX_BATCHES, _MAX_EPOCHS = 10**6, 10**6
_LEAST_NOISE_OF_ALLOCATION, _MOST_NOISE_OF_ALLOCATION = 0.1, 1e4
# Grid points per standard deviation in the middle of a sum.
_PER_DEVIATION = 60.0
# Grid points per standard deviation of log Z: most and least (for little noise), and per unit.
_PER_LOG, _LEAST_PER_LOG, _PER_UNIT = 64.0, 24.0, 128.0
# Standard deviations of the middle, and the relative growth of the spacing beyond it.
_MIDDLE, _GROWTH = 6.0, 0.03
# Masses below this, at either end, are moved to a ratio of 0 or infinity.
_NEGLIGIBLE = 1e-45
# Sums of two values at once.
_TOGETHER = 1 << 15


@dataclass(frozen=True)
class SampledStep(PrivacyLoss):
    """Privacy loss of one Poisson-sampled step, in the direction mixture || N(0, 1)."""

    noise_multiplier: float
    sampling_rate: float
    replace: bool = False
    group_size: int = 1

    @property
    def _shift(self) -> float:
        return 1.0 / self.noise_multiplier

    @property
    def _largest_shift(self) -> float:
        return self.group_size * self._shift

    @cached_property
    def _log_chances(self) -> list[float]:
        """Log probabilities of j = 0 ... k records of the group in a batch."""
        k, missed, taken = self.group_size, math.log1p(-self.sampling_rate), self.sampling_rate
        return [
            math.lgamma(k + 1)
            - math.lgamma(j + 1)
            - math.lgamma(k - j + 1)
            + j * math.log(taken)
            + (k - j) * missed
            for j in range(k + 1)
        ]

    def _log_gain(self, x: FloatArray) -> FloatArray:
        """Log of the mixture's density divided by that of N(0, 1)."""
        logs = self._log_chances
        chances = [self.sampling_rate] if self.group_size == 1 else np.exp(logs[1:]).tolist()
        growth, total = np.zeros_like(x), np.full_like(x, logs[0])
        apart = np.zeros(x.shape, dtype=np.bool_)
        for j, chance in enumerate(chances, 1):
            jump = j * self._shift * (x - 0.5 * j * self._shift)
            growth += chance * np.expm1(np.minimum(jump, 30.0))
            total = np.logaddexp(total, logs[j] + jump)
            apart |= jump >= 30.0
        # Log-sum-exp where a term would overflow, and where expm1 would lose accuracy.
        apart |= growth < -0.5
        gain = np.log1p(np.maximum(growth, -0.5))
        gain[apart] = total[apart]
        return gain

    def loss(self, x: FloatArray) -> FloatArray:
        """Privacy loss at outputs x [n], increasing in x."""
        gain = self._log_gain(x)
        return gain - self._log_gain(-x) if self.replace else gain

    def _output(self, loss: FloatArray) -> FloatArray:
        """Outputs x [n] with the given losses, to a few digits: cell limits of the quadrature."""
        step = 1e-3 * min(1.0, 1.0 / self._shift)
        x = np.arange(-REACH - self._shift, REACH + self._largest_shift, step)
        return np.interp(loss, self.loss(x), x)

    def atoms(self, spacing: float) -> PrivacyLossPmf:
        u = self._shift
        low, high = -REACH - (u if self.replace else 0.0), REACH + self._largest_shift
        ends = self.loss(np.array([low, high]))
        even = np.arange(low, high, 0.25 * min(1.0, 1.0 / u))
        crossings = self._output(multiples(float(ends[0]), float(ends[1]), spacing))
        x, log_weight = quadrature(np.concatenate([even, [high], crossings]))
        log_mass = log_weight - 0.5 * x * x - LOG_ROOT_TWO_PI + self._log_gain(x)
        # Both tails count as outputs that reveal the data set.
        beyond = 2.0 * float(special.ndtr(-REACH))
        return PrivacyLossPmf(self.loss(x), log_mass, beyond, beyond)

    def renyi(self, alpha: FloatArray) -> FloatArray:
        """Renyi divergence of orders [n] > 1, the larger of both directions.

        Computed by the trapezoid rule on an analytic integrand. The difference to the rule with
        every other node is added as a margin. Very large orders, where the integrand peaks far out,
        use the bound by convexity 1 - tau + tau e^(alpha (alpha-1) u^2 / 2) on the moment (4 u^2
        for a replaced record; for a group, the mean over j of e^(alpha (alpha-1) j^2 u^2 / 2)).
        """
        alpha = np.asarray(alpha, dtype=np.float64)
        u, order_less_one = self._shift, alpha - 1.0
        far = alpha * (alpha - 1.0) * (u * u / 2.0) * (4.0 if self.replace else 1.0)
        log_far = np.full_like(alpha, self._log_chances[0])
        with np.errstate(over="ignore"):
            for j, log_chance in enumerate(self._log_chances[1:], 1):
                log_far = np.logaddexp(log_far, log_chance + j * j * far)
        near = alpha * self._largest_shift <= _LARGEST_SHIFT
        moments = np.array(log_far)
        if near.any():
            moments[near] = np.minimum(self._log_moments(alpha[near]), log_far[near])
        return np.maximum(moments, 0.0) / order_less_one

    def _log_moments(self, alpha: FloatArray) -> FloatArray:
        """Log of the moments E_Q[(P/Q)^alpha] for orders [n], the larger of both directions.

        The integrand peaks at most (1 + alpha) u from the centre, so orders of similar size share
        nodes.
        """
        log_moments = np.empty_like(alpha)
        size = np.frexp(alpha * self._largest_shift)[1]
        for size_class in np.unique(np.maximum(size, 0)):
            alike = np.maximum(size, 0) == size_class
            log_moments[alike] = self._log_moments_within(alpha[alike])
        return log_moments

    def _log_moments_within(self, alpha: FloatArray) -> FloatArray:
        """The same, on nodes that reach far enough for the largest order.

        The integrand varies on the scale of sigma. For sigma < 0.3 it does so only where it is
        negligible, so a fixed step is enough.
        """
        step = 0.1
        reach = 20.0 + (1.0 + float(alpha.max())) * self._largest_shift
        x = np.arange(-reach, reach, step)
        log_normal = -0.5 * x * x - LOG_ROOT_TWO_PI
        loss, mixture = self.loss(x), log_normal + self._log_gain(x)
        if self.replace:
            return _log_moment(alpha, log_normal + self._log_gain(-x), loss, step)
        removed = _log_moment(alpha, log_normal, loss, step)
        return np.maximum(removed, _log_moment(alpha, mixture, -loss, step))


def _log_moment(alpha: FloatArray, log_q: FloatArray, loss: FloatArray, step: float) -> FloatArray:
    """log(1 + E_Q[r^alpha - 1 - alpha (r - 1)]) with r = e^loss: every term is positive."""
    power = alpha[:, None] * loss
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        more = np.expm1(power) - alpha[:, None] * np.expm1(loss)
        # Series for small losses, where the difference cancels: sum of (alpha^k - alpha) l^k / k!
        row, column = np.nonzero(abs(power) < _SERIES)
        scaled, small = power[row, column], loss[column]
        series = 1.0 + (scaled + small) / 3.0
        series += (scaled * (scaled + small) + small * small) / 12.0
        more[row, column] = 0.5 * (alpha[row] - 1.0) * scaled * small * series
        terms = np.log(np.maximum(more, 0.0))
    # For large r^alpha the negative remainder is left out, which only increases the result.
    terms = log_q + np.where(power > 600.0, power, terms)
    top = terms.max(axis=1, keepdims=True)
    heights = np.exp(terms - top)
    sums = heights.sum(axis=1), 2.0 * heights[:, ::2].sum(axis=1)
    total = np.maximum(*sums) + np.abs(sums[0] - sums[1])
    return np.logaddexp(0.0, np.log(step * total) + top[:, 0])


@dataclass(frozen=True)
class DpSgd(Mechanism):
    """DP-SGD that releases every iterate (Xiang, Wang & Wang 2024, equation 1).

    Attributes:
        noise_multiplier: sigma, noise standard deviation in units of the clipping norm, > 0.
        steps: number of iterations, >= 1.
        sampling_rate: probability that a record is in a batch (Poisson sampling); 1 is full batch.
        neighbours: `add-remove` (one record more or less), `zero-out` (n is public, and the
            gradients of one record are zero) or `replace-one`.
        group_size: k, the number of records of one person, which are added, removed, zeroed or
            replaced together, in [1, 1000].

    Example:
        >>> run = DpSgd(noise_multiplier=1.0, steps=500, sampling_rate=0.01)
        >>> round(run.epsilon(1e-5), 3)
        1.326
        >>> run.description
        'DP-SGD, noise multiplier 1, 500 steps, rate 0.01, add-remove neighbours'
    """

    noise_multiplier: float
    steps: int
    sampling_rate: float = 1.0
    neighbours: str = "add-remove"
    group_size: int = 1
    is_directed: ClassVar[bool] = True
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.validate(self, "sampling_rate", checks.interval, 0.0, 1.0, closed_high=True)
        checks.validate(self, "noise_multiplier", checks.interval, 0.0)
        checks.validate(self, "steps", checks.integer, 1)
        checks.validate(self, "neighbours", checks.one_of, NEIGHBOURS)
        checks.validate(self, "group_size", checks.integer, 1, _MAX_GROUP)
        if self.group_size > 1 and self.neighbours == "replace-one" and self.sampling_rate < 1.0:
            raise InvalidInput(
                "group_size must be 1 with replace-one neighbours and sampled batches, got "
                f"{self.group_size!r}; use add-remove or zero-out neighbours"
            )
        if self.sampling_rate == 1.0:
            name, spread = "sqrt(steps) / noise_multiplier", self._full_batch_mu
        else:
            checks.interval("noise_multiplier", self.noise_multiplier, 0.05)
            checks.integer("steps", self.steps, 1, _MAX_SAMPLED_STEPS)
            if self.group_size > 1:
                spread = self.group_size / self.noise_multiplier
                checks.interval("group_size / noise_multiplier", spread, 0.0, 100.0)
            name = "sampling_rate * sqrt(steps) / noise_multiplier"
            spread = self.sampling_rate * self._full_batch_mu
        checks.interval(
            name, spread, SMALLEST_SPREAD, LARGEST_SPREAD, closed_low=True, closed_high=True
        )

    @property
    def distance(self) -> float:
        """Largest change of the clipped sum between neighbours, in clipping norms."""
        return self.group_size * (2.0 if self.neighbours == "replace-one" else 1.0)

    @property
    def _full_batch_mu(self) -> float:
        return self.distance * math.sqrt(self.steps) / self.noise_multiplier

    @property
    def gaussian_mu(self) -> float | None:
        return self._full_batch_mu if self.sampling_rate == 1.0 else None

    @cached_property
    def _step(self) -> SampledStep:
        return SampledStep(
            self.noise_multiplier,
            self.sampling_rate,
            self.neighbours == "replace-one",
            self.group_size,
        )

    @property
    def is_symmetric(self) -> bool:
        return self.sampling_rate == 1.0 or self.neighbours == "replace-one"

    @property
    def loss_terms(self) -> tuple[tuple[PrivacyLoss, int], ...]:
        if self.gaussian_mu is not None:
            return ((GaussianPair(self.gaussian_mu), 1),)
        return ((self._step, self.steps),)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        """Dominating pairs; in the first, P is the data set with the record."""
        if self.gaussian_mu is not None:
            return (GaussianPair(self.gaussian_mu),)
        pair = compose(self.loss_terms)
        return (pair,) if self.is_symmetric else (pair, pair.mirrored)

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        orders = checks.numbers("alpha", alpha, 1.0)
        if self.gaussian_mu is not None:
            return super().renyi(orders)
        one_step = self._step.renyi(orders.ravel())
        return self.steps * one_step.reshape(orders.shape)

    @property
    def description(self) -> str:
        rate = "full batch" if self.sampling_rate == 1.0 else f"rate {self.sampling_rate:g}"
        group = f"groups of {self.group_size} records, " if self.group_size > 1 else ""
        return (
            f"DP-SGD, noise multiplier {self.noise_multiplier:.7g}, {self.steps} steps, {rate}, "
            f"{group}{self.neighbours} neighbours"
        )


@dataclass(frozen=True)
class _Ratio:
    """A nonnegative random variable: a sum of ratios of densities, without the record."""

    at: FloatArray  # values [n], increasing; the first is 0
    mass: FloatArray  # probabilities [n]
    infinite: float  # mean of the part that was moved to infinity, with probability 0
    log_step: float  # largest spacing of the logarithms
    fineness: float  # points of the grids, relative to the usual ones

    @staticmethod
    def of_one_step(u: float, fineness: float) -> "_Ratio":
        """Z = exp(u x - u^2/2) for x ~ N(0, 1), on a grid of log Z."""
        per_log = fineness * max(min(_PER_LOG, _PER_UNIT / u), _LEAST_PER_LOG)
        x = np.linspace(-REACH, REACH + u, math.ceil((2.0 * REACH + u) * per_log) + 1)
        at = np.exp(u * x - 0.5 * u * u)
        ends = np.concatenate([[-np.inf], x, [np.inf]])
        # The probability of a cell, and its mean, which is the probability under N(u, 1).
        mass, mean = (_normal_masses(ends - shift) for shift in (0.0, u))
        at = np.append(0.0, at)
        # A cell is split between its ends; beyond the last value the surplus becomes infinite.
        up = np.clip((mean[:-1] - at[:-1] * mass[:-1]) / np.diff(at), 0.0, mass[:-1])
        masses = np.append(mass[:-1] - up, 0.0) + np.append(0.0, up)
        masses[-1] += mass[-1]
        surplus = max(float(mean[-1] - at[-1] * mass[-1]), 0.0)
        return _Ratio(at, masses, surplus, u / per_log, fineness)._trimmed()

    def __add__(self, other: "_Ratio") -> "_Ratio":
        """The sum of two independent variables, spread to a new grid."""
        at, count = self._grid_of_sum(other), len(other.at)
        widths = np.diff(at)
        masses = np.zeros(len(at))
        # Few rows at a time stay in the cache of the processor.
        rows = max(_TOGETHER // count, 1)
        for first in range(0, len(self.at), rows):
            part = slice(first, first + rows)
            # Of two equal variables, each pair of different values counts twice.
            start = first if other is self else 0
            sums = np.add.outer(self.at[part], other.at[start:]).ravel()
            weights = np.multiply.outer(self.mass[part], other.mass[start:])
            if other is self:
                size = len(weights)
                weights[:, :size] *= np.triu(np.full((size, size), 2.0), 1) + np.eye(size)
                weights[:, size:] *= 2.0
            weights = weights.ravel()
            cell = np.searchsorted(at, sums, side="right") - 1
            np.clip(cell, 0, len(widths) - 1, out=cell)
            sums -= at[cell]
            sums /= widths[cell]
            share = np.clip(sums, 0.0, 1.0, out=sums)
            share *= weights
            weights -= share
            masses += np.bincount(cell, weights, len(at))
            masses[1:] += np.bincount(cell, share, len(widths))
        return replace(self, at=at, mass=masses, infinite=self.infinite + other.infinite)._trimmed()

    @property
    def _moments(self) -> tuple[float, float]:
        """Mean and variance."""
        mean = float(self.mass @ self.at)
        return mean, float(self.mass @ np.square(self.at - mean))

    def _grid_of_sum(self, other: "_Ratio") -> FloatArray:
        """Values for a sum: even in the middle, coarser beyond, and even in logarithms far away."""
        (mean, variance), (other_mean, other_variance) = self._moments, other._moments
        mean, deviation = mean + other_mean, math.sqrt(variance + other_variance)
        low, high = self.at[1] + other.at[1], self.at[-1] + other.at[-1]
        # Integrate 1 / spacing over a fine grid of both scales, then divide it evenly.
        middle = np.linspace(low, min(mean + 10.0 * deviation, high), 4096)
        t = np.unique(np.concatenate([middle, np.geomspace(low, high, 4096)]))
        t = t[(t >= low) & (t <= high)]
        beyond = np.maximum(np.abs(t - mean) - _MIDDLE * deviation, 0.0)
        even = deviation / _PER_DEVIATION + _GROWTH * beyond
        even /= self.fineness
        spacing = np.minimum(even, self.log_step * t)
        steps = np.append(0.0, np.cumsum(np.diff(t) / np.minimum(spacing[1:], spacing[:-1])))
        points = np.interp(np.linspace(0.0, steps[-1], math.ceil(steps[-1]) + 2), steps, t)
        points[0], points[-1] = low, high
        return np.append(0.0, np.unique(points))

    def _trimmed(self) -> "_Ratio":
        """The same without negligible ends, which are moved outwards with their mean preserved."""
        below = np.cumsum(self.mass[1:])
        lowest = 1 + int(np.searchsorted(below, _NEGLIGIBLE, side="right"))
        means = self.at * self.mass
        above = np.cumsum(means[::-1])[::-1]
        highest = len(self.at) - 1 - int(np.searchsorted(above[::-1], _NEGLIGIBLE, side="right"))
        highest = max(highest, lowest + 1)
        if highest >= len(self.at):
            return self
        at = np.append(0.0, self.at[lowest : highest + 1])
        mass = np.append(self.mass[0], self.mass[lowest : highest + 1])
        # Values below the first are split between 0 and the first.
        moved = float(means[1:lowest].sum()) / self.at[lowest]
        mass[1] += moved
        mass[0] += max(float(self.mass[1:lowest].sum()) - moved, 0.0)
        # Values above the last keep their mass there, and the surplus becomes infinite.
        beyond = float(self.mass[highest + 1 :].sum())
        surplus = max(float(means[highest + 1 :].sum()) - beyond * self.at[highest], 0.0)
        mass[-1] += beyond
        return replace(self, at=at, mass=mass, infinite=self.infinite + surplus)

    def pair(self, terms: int) -> LossPair:
        """The pair of the mean of `terms` ratios; P is the data set with the record."""
        loss = np.log(self.at[1:] / terms)
        log_mass = safe_log(self.mass[1:]) + loss
        is_possible = log_mass > -np.inf
        loss, log_mass, p_only = loss[is_possible], log_mass[is_possible], self.infinite / terms
        # Rounding can leave a total below 1, by 1e-12 for 10^4 terms.
        total = float(np.exp(log_mass).sum()) + p_only
        log_mass += max(-math.log(total), 0.0)
        return LossPair(PrivacyLossPmf(loss, log_mass, p_only, float(self.mass[0])))


def _normal_masses(ends: FloatArray) -> FloatArray:
    """Normal probabilities [n-1] between sorted ends [n], from the smaller tail."""
    low, high = ends[:-1], ends[1:]
    flip = low + high > 0.0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return np.exp(log_subtract(special.log_ndtr(high), special.log_ndtr(low)))


@memoize(16)
def _epoch(noise_multiplier: float, batches: int, fineness: float) -> LossPair:
    """The pair of one epoch, by repeated doubling of the number of terms."""
    power = _Ratio.of_one_step(1.0 / noise_multiplier, fineness)
    total, terms = None, batches
    while terms:
        if terms & 1:
            total = power if total is None else total + power
        terms >>= 1
        if terms:
            power = power + power
    assert total is not None  # a positive number has a bit
    return total.pair(batches)


@dataclass(frozen=True)
class RandomAllocation(Mechanism):
    """DP-SGD in which each record takes part in random steps of every epoch.

    Each record draws its batch uniformly, independently of all other records, so batches have
    random sizes ("balls in bins", Chua et al. 2025; "random allocation", Feldman & Shenfeld 2025).
    The noisy sum must be divided by the expected size of a batch, a public constant; no batch may
    be left out, and an empty batch still adds noise. A loader that shuffles the records and cuts
    the list into batches of equal size, such as torch's, is not covered: the other batches reveal
    the batch of the record.

    The largest ratios, of probability 1e-45, are moved to infinity. So the Renyi divergences are
    infinite, and bounds that need them do not apply.

    Attributes:
        noise_multiplier: sigma, noise standard deviation in units of the clipping norm, in
            [0.1, 1e4].
        batches: t, the number of steps of an epoch, in [1, 1e6].
        epochs: number of epochs, in [1, 1e6].
        per_epoch: number of different steps of an epoch in which a record takes part; t of at
            least `per_epoch`.
        fixed: whether a record keeps its batch in all epochs, as with the sampler of jax_privacy
            2.0. By default, every epoch draws again.
        neighbours: `add-remove` or `zero-out`.

    Raises:
        InvalidInput: a parameter is out of its range, or the combination is not covered.

    Example:
        >>> run = RandomAllocation(noise_multiplier=1.0, batches=100, epochs=10)
        >>> round(run.epsilon(1e-5), 2)
        1.7
        >>> round(RandomAllocation(1.0, 100, 10, fixed=True).epsilon(1e-5), 1)
        13.3
    """

    noise_multiplier: float
    batches: int
    epochs: int
    per_epoch: int = 1
    fixed: bool = False
    neighbours: str = "add-remove"
    is_directed: ClassVar[bool] = True
    _fineness: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        checks.validate(self, "batches", checks.integer, 1, _MAX_BATCHES)
        checks.validate(self, "epochs", checks.integer, 1, _MAX_EPOCHS)
        checks.validate(self, "per_epoch", checks.integer, 1, self.batches)
        checks.validate(self, "fixed", checks.flag)
        checks.validate(self, "noise_multiplier", checks.interval, 0.0)
        checks.interval(
            "noise_multiplier / sqrt(epochs)" if self.fixed else "noise_multiplier",
            self._step_noise,
            _LEAST_NOISE_OF_ALLOCATION,
            _MOST_NOISE_OF_ALLOCATION,
            closed_low=True,
            closed_high=True,
        )
        if self.fixed and self.per_epoch > 1:
            raise InvalidInput(f"per_epoch must be 1 with fixed batches, got {self.per_epoch!r}")
        if self.neighbours not in _RELATIONS_OF_ALLOCATION:
            raise InvalidInput(
                "neighbours must be add-remove or zero-out for random allocation, got "
                f"{checks.one_line(self.neighbours)}"
            )

    @property
    def _step_noise(self) -> float:
        """The noise multiplier of one step of the equivalent epoch with fresh batches."""
        # With fixed batches, a record's ratio is a mean of products over the epochs.
        return self.noise_multiplier / (math.sqrt(self.epochs) if self.fixed else 1.0)

    @property
    def coarse(self) -> "CoarseAllocation":
        """The same run on coarse grids, for upper bounds in a ninth of the time."""
        return CoarseAllocation(**{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def gaussian_mu(self) -> float | None:
        """The mu if a record draws among single steps, as in every batch; None otherwise."""
        if self._steps_of_group > 1:
            return None
        return math.sqrt(self.per_epoch * self.epochs) / self.noise_multiplier

    @property
    def _steps_of_group(self) -> int:
        """Steps among which a record draws one: k of t steps are k draws among floor(t / k)."""
        return self.batches // self.per_epoch

    @property
    def is_symmetric(self) -> bool:
        return self.gaussian_mu is not None

    @property
    def loss_terms(self) -> tuple[tuple[PrivacyLoss, int], ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return ((GaussianPair(mu), 1),)
        # Epochs with fresh draws compose. A batch that is drawn once gives one epoch (proposition
        # 25).
        epochs = 1 if self.fixed else self.epochs * self.per_epoch
        return ((_epoch(self._step_noise, self._steps_of_group, self._fineness), epochs),)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        """Dominating pairs; in the first, P is the data set with the record."""
        mu = self.gaussian_mu
        if mu is not None:
            return (GaussianPair(mu),)
        ((epoch, count),) = self.loss_terms
        pair = compose([(epoch, count)]) if count > 1 or not isinstance(epoch, LossPair) else epoch
        return pair, pair.mirrored

    @property
    def description(self) -> str:
        times = "one random batch" if self.per_epoch == 1 else f"{self.per_epoch} random batches"
        drawn = "drawn once for all epochs" if self.fixed else "drawn again in every epoch"
        return (
            f"DP-SGD with random allocation, noise multiplier {self.noise_multiplier:.7g}, "
            f"{self.epochs} epochs of {self.batches} batches, each record in {times} of an epoch, "
            f"{drawn}, {self.neighbours} neighbours"
        )


class CoarseAllocation(RandomAllocation):
    """The same run on grids with a third of the points, in a ninth of the time.

    Every grid gives a pair that dominates the run, so each cost is a valid upper bound.

    Example:
        >>> coarse = CoarseAllocation(noise_multiplier=1.0, batches=100, epochs=10)
        >>> 1.70 < coarse.epsilon(1e-5) < 1.73
        True
    """

    _fineness: ClassVar[float] = 1.0 / 3.0
