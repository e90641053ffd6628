"""Dominating pairs of distributions (P, P'), one for each direction of a mechanism.

One or two dominating pairs describe the privacy of a mechanism: its output distributions on any two
neighbouring data sets are post-processings of one of them. Selection bounds use a pair's Renyi
divergence, its hockey-stick profile, and the attainable probabilities of one event (its trade-off
curve). Composition uses the distribution of the privacy loss log(P/P') under P.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import FLOAT_ROUNDING, SUMS_TO_ONE, FloatArray, log_complement, safe_log

REACH = 15.0
"""Normal tails beyond this many standard deviations are below 1e-50; they count as delta."""

LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SMALL_MU = 1e-4
_UNDERFLOW = -650.0  # of a logarithm, before sums of its exponential lose digits
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True)
class PrivacyLossPmf:
    """Distribution of the privacy loss under P."""

    loss: FloatArray  # finite values [n] of log(P/P')
    log_mass: FloatArray  # log of their P-probabilities [n]
    p_only: float = 0.0  # P-probability of outputs that P' never gives (or of a truncated tail)
    q_only: float = 0.0  # P'-probability of outputs that P never gives (or of a truncated tail)

    @cached_property
    def mass(self) -> FloatArray:
        """P-probabilities [n] of the finite values."""
        return np.exp(self.log_mass)

    @cached_property
    def below(self) -> FloatArray:
        """P-probabilities [n+1] of losses below each finite value, and of all finite ones."""
        return np.append(0.0, np.cumsum(self.mass))

    @cached_property
    def at_least(self) -> FloatArray:
        """P-probabilities [n+1] of losses of at least each finite value, and of an infinite one."""
        return np.append(np.cumsum(self.mass[::-1])[::-1], 0.0) + self.p_only

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the finite losses; 0 if there are none."""
        total = max(float(self.mass.sum()), 1e-300)
        mean = float(self.mass @ self.loss) / total
        return math.sqrt(float(self.mass @ np.square(self.loss - mean)) / total)


class PrivacyLoss(ABC):
    """The part of a pair's interface that composition uses."""

    @abstractmethod
    def renyi(self, alpha: FloatArray) -> FloatArray:
        """D_alpha(P || P') for orders [n] > 1; may be infinite."""

    @abstractmethod
    def atoms(self, spacing: float) -> PrivacyLossPmf:
        """Distribution of the loss: exact if discrete, otherwise by quadrature.

        Multiples of the spacing are cell limits of the quadrature, so that functions that are
        linear in e^-loss between them are integrated to rounding error.
        """


class DominatingPair(PrivacyLoss):
    """One direction (P, P') of a mechanism.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> (pair,) = GaussianMechanism(1.0).pairs
        >>> isinstance(pair, DominatingPair), round(float(pair.profile(0.0)), 4)
        (True, 0.3829)
    """

    @abstractmethod
    def profile(self, epsilon: ArrayLike) -> FloatArray:
        """H_eps(P || P') = sum max(P - e^eps P', 0), for any real epsilon."""

    @property
    @abstractmethod
    def event_range(self) -> tuple[float, float]:
        """First and last parameter t of the extreme events; s grows with t."""

    @abstractmethod
    def events(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Extreme events: log(1 - s) and log(1 - s') for their probabilities s (P) and s' (P').

        For each s, s' = 1 - T(s) is the largest probability of any event, with T the trade-off
        curve. If the curve reaches s = s' = 1 within the range, its last pieces of unit length in t
        are straight.

        Args:
            t: parameters [n] within `event_range`; both results decrease in t.
        """


def quadrature(edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes and log weights, six for each cell between sorted edges [n]."""
    edges = np.unique(edges)
    middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    nodes = (middle[:, None] + half[:, None] * _NODES).ravel()
    return nodes, np.log((half[:, None] * _WEIGHTS).ravel())


def multiples(low: float, high: float, spacing: float) -> FloatArray:
    """Multiples of `spacing` strictly between two losses; none if it is infinite."""
    if math.isinf(spacing):
        return np.empty(0)
    return spacing * np.arange(math.ceil(low / spacing), math.floor(high / spacing) + 1.0)


def gaussian_profile(epsilon: ArrayLike, mu: ArrayLike) -> FloatArray:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), elementwise (Balle & Wang 2018, theorem 8).

    In the tail, the difference of Mills ratios avoids cancellation; its relative error is below
    1e-10 for mu >= 1e-4. For smaller mu, the integral of the ratio's slope stays accurate.
    """
    epsilon, mu = np.broadcast_arrays(
        np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64)
    )
    with np.errstate(over="ignore"):
        standardised = epsilon / mu
    a, b = standardised - mu / 2.0, standardised + mu / 2.0
    value = np.zeros(a.shape)
    tail = a > -4.0
    inner = ~tail
    tail &= a < 40.0  # beyond, the value underflows
    if tail.any():
        value[tail] = _far_gaussian_profile(a[tail], b[tail], mu[tail])
    if inner.any():
        a, b, epsilon = a[inner], b[inner], epsilon[inner]
        value[inner] = special.ndtr(-a) - np.exp(np.minimum(epsilon + special.log_ndtr(-b), 0.0))
    return np.clip(value, 0.0, 1.0)


def _far_gaussian_profile(a: FloatArray, b: FloatArray, mu: FloatArray) -> FloatArray:
    """Profile [n] for a = eps/mu - mu/2 > -4 and b = eps/mu + mu/2."""
    root = math.sqrt(0.5)
    x, gap = a * root, mu * root
    fall = special.erfcx(x) - special.erfcx(b * root)
    small = mu < _SMALL_MU
    if small.any():
        nodes = x[small][:, None] + gap[small][:, None] * 0.5 * (_NODES + 1.0)
        slope = 2.0 / math.sqrt(math.pi) - 2.0 * nodes * special.erfcx(nodes)
        fall[small] = gap[small] * 0.5 * (slope @ _WEIGHTS)
    with np.errstate(under="ignore"):
        return np.asarray(0.5 * np.exp(-0.5 * np.square(a)) * fall)


@dataclass(frozen=True)
class GaussianPair(DominatingPair):
    """N(0, 1) against N(mu, 1), its own mirror image."""

    mu: float

    def renyi(self, alpha: FloatArray) -> FloatArray:
        return np.asarray(alpha, dtype=np.float64) * (self.mu * self.mu / 2.0)

    def atoms(self, spacing: float) -> PrivacyLossPmf:
        # loss = mu^2/2 - mu x for x ~ N(0, 1), or N(mu, 1) under P'.
        low, high = -REACH, self.mu + REACH
        ends = self.mu * (self.mu / 2.0 - high), self.mu * (self.mu / 2.0 - low)
        crossings = self.mu / 2.0 - multiples(*ends, spacing) / self.mu
        x, log_weight = quadrature(np.concatenate([np.arange(low, high, 0.25), [high], crossings]))
        log_mass = log_weight - 0.5 * x * x - LOG_ROOT_TWO_PI
        # Both tails count as outputs that reveal the data set.
        beyond = 2.0 * float(special.ndtr(-REACH))
        return PrivacyLossPmf(self.mu * (self.mu / 2.0 - x), log_mass, beyond, beyond)

    def profile(self, epsilon: ArrayLike) -> FloatArray:
        return gaussian_profile(epsilon, self.mu)

    @property
    def event_range(self) -> tuple[float, float]:
        # Beyond it one of the two normal tails is below 1e-300.
        return -37.5 - self.mu, 37.5

    def events(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        # The event {x < t} mirrored: s = Phi(t) and s' = Phi(t + mu).
        return special.log_ndtr(-t), special.log_ndtr(-t - self.mu)


@dataclass(frozen=True, eq=False)
class LossPair(DominatingPair):
    """A pair given by the distribution of its privacy loss, which has finitely many values.

    Attributes:
        pmf: the distribution, with losses in increasing order.

    Example:
        >>> import numpy as np
        >>> pmf = PrivacyLossPmf(np.array([-1.0, 1.0]), np.log([0.2689414, 0.7310586]))
        >>> round(float(LossPair(pmf).profile(0.0)), 4)
        0.4621
    """

    pmf: PrivacyLossPmf

    @cached_property
    def mirrored(self) -> "LossPair":
        """The pair (P', P)."""
        pmf = self.pmf
        flipped = PrivacyLossPmf(-pmf.loss[::-1], self._log_q[::-1], pmf.q_only, pmf.p_only)
        return LossPair(flipped)

    def renyi(self, alpha: FloatArray) -> FloatArray:
        order_less_one = np.asarray(alpha, dtype=np.float64)[..., None] - 1.0
        if self.pmf.p_only > 0:
            return np.full(order_less_one.shape[:-1], np.inf)
        log_sum = special.logsumexp(self.pmf.log_mass + order_less_one * self.pmf.loss, axis=-1)
        return np.maximum(log_sum, 0.0) / order_less_one[..., 0]

    def atoms(self, spacing: float) -> PrivacyLossPmf:
        return self.pmf

    @cached_property
    def _log_q(self) -> FloatArray:
        return self.pmf.log_mass - self.pmf.loss

    @cached_property
    def _log_q_tail(self) -> FloatArray:
        """log P'[loss >= loss_k]."""
        return np.logaddexp.accumulate(self._log_q[::-1])[::-1]

    @cached_property
    def _delta_at(self) -> FloatArray:
        """The profile at each loss; it is linear in e^eps between them.

        delta(l_k) = delta(l_{k+1}) + (e^l_{k+1} - e^l_k) P'[loss >= l_{k+1}], without cancellation.
        """
        loss = self.pmf.loss
        # All terms are positive, so their sums keep their digits in the tail.
        rises = -np.expm1(-np.diff(loss)) * np.exp(loss[1:] + self._log_q_tail[1:])
        return self.pmf.p_only + np.append(np.cumsum(rises[::-1])[::-1], 0.0)

    def profile(self, epsilon: ArrayLike) -> FloatArray:
        epsilon = np.asarray(epsilon, dtype=np.float64)
        loss = self.pmf.loss
        after = np.searchsorted(loss, epsilon, side="right")
        k = np.minimum(after, len(loss) - 1)
        gap = -np.expm1(np.minimum(epsilon - loss[k], 0.0))
        inner = self._delta_at[k] + gap * np.exp(loss[k] + self._log_q_tail[k])
        return np.where(after == len(loss), self.pmf.p_only, np.minimum(inner, 1.0))

    @property
    def event_range(self) -> tuple[float, float]:
        return 0.0, len(self.pmf.loss) + 2.0

    @cached_property
    def _vertices(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Cumulative and remaining probabilities under P and P', from the smallest loss on."""
        sides = []
        for first, log_mass, last in (
            (0.0, self.pmf.log_mass, self.pmf.p_only),
            (self.pmf.q_only, self._log_q, 0.0),
        ):
            masses = np.concatenate([[first], np.exp(log_mass), [last]])
            above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
            below = np.append(0.0, np.cumsum(masses))
            sides.append((below, above))
        return sides[0], sides[1]

    @cached_property
    def _log_left_with(self) -> FloatArray:
        """Logarithms of the remaining probabilities under P' at the vertices."""
        total = np.logaddexp(safe_log(self.pmf.q_only), self._log_q_tail[:1])
        return np.concatenate([total, self._log_q_tail, [-np.inf, -np.inf]])

    def events(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        k = np.clip(t.astype(np.int64), 0, len(self.pmf.loss) + 1)
        share = np.clip(t - k, 0.0, 1.0)
        (below, above), (below_with, left_with) = (
            (a[k] + share * (a[k + 1] - a[k]), b[k] + share * (b[k + 1] - b[k]))
            for a, b in self._vertices
        )
        # If composition added mass, s is rounded down and s' up, so that both remain monotone.
        added, added_with = (max(float(b[0]) - 1.0, 0.0) for _, b in self._vertices)
        p = log_complement(below * (1.0 - 2.0 * added), above)
        q = log_complement(below_with, left_with * (1.0 - 2.0 * added_with))
        # Probabilities under P' that underflow are interpolated in logarithms.
        tiny = q < _UNDERFLOW
        if tiny.any():
            k, share, tail = k[tiny], share[tiny], self._log_left_with
            q[tiny] = np.logaddexp(safe_log(1.0 - share) + tail[k], safe_log(share) + tail[k + 1])
        return p, q

    def ranked(self) -> tuple[FloatArray, FloatArray]:
        """Probabilities of a worse run, if outputs with larger losses are better.

        Returns:
            log P[worse] and log P'[worse] at the limits [n+3] of the outputs, from 0 to -inf.
            Outputs that occur only under P' are the worst.
        """
        p, q = (log_complement(above, below)[::-1] for below, above in self._vertices)
        return p, q


class DiscretePair(LossPair):
    """Two distributions on finitely many outputs, from their probabilities [n] under P and P'."""

    def __init__(self, p: ArrayLike, q: ArrayLike) -> None:
        p, q = checks.numbers("p", p), checks.numbers("q", q)
        for name, v in (("p", p), ("q", q)):
            if v.ndim != 1 or not np.all(v >= 0) or abs(v.sum() - 1.0) > SUMS_TO_ONE:
                raise InvalidInput(
                    f"{name} must be probabilities that sum to 1, got {checks.one_line(v)}"
                )
        if p.shape != q.shape:
            raise InvalidInput(f"q must have the length of p, {len(p)}, got {len(q)}")
        in_both = (p > 0) & (q > 0)
        if not in_both.any():
            super().__init__(PrivacyLossPmf(np.zeros(1), np.full(1, -np.inf), 1.0, 1.0))
            return
        log_p, log_q = np.log(p[in_both]), np.log(q[in_both])
        order = np.argsort(log_p - log_q, kind="stable")
        super().__init__(
            PrivacyLossPmf(
                (log_p - log_q)[order],
                log_p[order],
                float(p[~in_both].sum()),
                float(q[~in_both].sum()),
            )
        )

    @cached_property
    def _loss_error(self) -> float:
        """Largest rounding error of a loss, which is a difference of two rounded logarithms."""
        pmf = self.pmf
        sizes = np.abs(pmf.log_mass) + np.abs(self._log_q) + np.abs(pmf.loss)
        return 2.0**-51 * float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))

    def profile(self, epsilon: ArrayLike) -> FloatArray:
        """The profile, rounded up: a loss may be smaller than that of the given probabilities."""
        lowered = np.asarray(epsilon, dtype=np.float64) - self._loss_error
        return np.minimum(super().profile(lowered) * (1.0 + FLOAT_ROUNDING), 1.0)


@dataclass(frozen=True)
class LaplacePair(DominatingPair):
    """Two Laplace distributions at distance 1; the pair is its own mirror image."""

    scale: float  # scale of both, in units of the sensitivity
    event_range: ClassVar[tuple[float, float]] = (0.0, 3.0)

    @property
    def _most(self) -> float:
        return 1.0 / self.scale

    def renyi(self, alpha: FloatArray) -> FloatArray:
        """Mironov 2017, proposition 6."""
        alpha = np.asarray(alpha, dtype=np.float64)
        order_less_one, log_normaliser = alpha - 1.0, np.log(2.0 * alpha - 1.0)
        far = np.log(alpha) - log_normaliser + order_less_one * self._most
        near = np.log(order_less_one) - log_normaliser - alpha * self._most
        return np.maximum(np.logaddexp(far, near), 0.0) / order_less_one

    def atoms(self, spacing: float) -> PrivacyLossPmf:
        # Between the two centres, at y, the loss is (1 - 2 y)/scale; beyond them it is +-1/scale.
        crossings = 0.5 * (1.0 - self.scale * multiples(-self._most, self._most, spacing))
        even = np.append(np.arange(0.0, 1.0, min(0.25, 0.25 * self.scale)), 1.0)
        y, log_weight = quadrature(np.clip(np.concatenate([even, crossings]), 0.0, 1.0))
        log_half = math.log(0.5)
        inner = log_weight + log_half - math.log(self.scale) - y / self.scale
        loss = np.concatenate([[-self._most], (1.0 - 2.0 * y) / self.scale, [self._most]])
        return PrivacyLossPmf(loss, np.concatenate([[log_half - self._most], inner, [log_half]]))

    def profile(self, epsilon: ArrayLike) -> FloatArray:
        epsilon = np.asarray(epsilon, dtype=np.float64)
        inside = -np.expm1(0.5 * np.minimum(epsilon - self._most, 0.0))
        return np.where(epsilon < -self._most, -np.expm1(np.minimum(epsilon, 0.0)), inside)

    def events(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        # First the outputs beyond the centre of P', then those between the centres, then the rest.
        before_one, after_two = np.clip(t, 0.0, 1.0), np.clip(t - 2.0, 0.0, 1.0)
        y = np.clip(2.0 - t, 0.0, 1.0)
        with np.errstate(divide="ignore"):
            log_p = np.where(
                t <= 2.0,
                np.log1p(-0.5 * before_one * np.exp(-y / self.scale)),
                math.log(0.5) + np.log1p(-after_two),
            )
            log_q = np.where(
                t <= 1.0,
                np.log1p(-0.5 * before_one),
                math.log(0.5) + (y - 1.0) / self.scale + np.log1p(-after_two),
            )
        return log_p, log_q
