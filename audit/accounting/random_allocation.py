"""DP-SGD in which each record takes part in one random step of every epoch ("balls in bins").

In an epoch of t steps every record draws its step uniformly, independently of the other records. A
step releases the sum of clipped gradients plus noise. The ratio of the densities of an epoch with
and without the record is dominated in convex order by the mean of t independent log-normal
variables, S = (Z_1 + ... + Z_t) / t with Z = exp(u x - u^2/2), u = 1 / sigma and x ~ N(0, 1)
(proposition 25 of docs/theory.md).

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
from scipy import special

from audit import checks
from audit.accounting.composition import compose
from audit.accounting.mechanism import Mechanism
from audit.accounting.pairs import (
    REACH,
    DominatingPair,
    GaussianPair,
    LossPair,
    PrivacyLoss,
    PrivacyLossPmf,
)
from audit.errors import InvalidInput
from audit.numerics import FloatArray, log_subtract, memoize, safe_log

_RELATIONS = ("add-remove", "zero-out")
_MAX_BATCHES, _MAX_EPOCHS = 10**6, 10**6
_SMALLEST_NOISE, _LARGEST_NOISE = 0.1, 1e4
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
            _SMALLEST_NOISE,
            _LARGEST_NOISE,
            closed_low=True,
            closed_high=True,
        )
        if self.fixed and self.per_epoch > 1:
            raise InvalidInput(f"per_epoch must be 1 with fixed batches, got {self.per_epoch!r}")
        if self.neighbours not in _RELATIONS:
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
