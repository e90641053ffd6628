"""DP-SGD. Full batches form one Gaussian mechanism; Poisson-sampled steps are composed.

The dominating pair of one step, for noise of standard deviation 1 and u = 1/sigma (a sampled record
moves the sum by at most u):

- add/remove and zero-out: (1-tau) N(0,1) + tau N(u,1) against N(0,1) (Mironov, Talwar & Zhang
  2019; Zhu, Dong & Wang 2022, theorem 11), and its reverse;
- replace-one: (1-tau) N(0,1) + tau N(u,1) against (1-tau) N(0,1) + tau N(-u,1), which is its own
  mirror image (proposition 23 of docs/theory.md);
- groups of k records, added or removed: the mixture of the N(j u, 1), j ~ Binomial(k, tau), against
  N(0,1), in both directions (Ganesh 2024). For k replaced records in sampled batches we know no
  dominating pair, so this combination is refused.
"""

import math
from dataclasses import dataclass
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
    PrivacyLoss,
    PrivacyLossPmf,
    multiples,
    quadrature,
)
from audit.errors import InvalidInput
from audit.numerics import FloatArray

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
