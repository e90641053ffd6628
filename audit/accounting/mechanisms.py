"""Base mechanisms, by their dominating pairs.

A mechanism's privacy is that of one or two pairs of distributions (P, P'): every neighbouring pair
of output laws is a postprocessing of one of them. A pair that is its own mirror image stands for
both directions. Selection bounds need three things of a pair: its Renyi divergence, its
hockey-stick profile, and the achievable probabilities of one event (its trade-off curve).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.accounting.conversion import renyi_to_epsilon, solve_epsilon

Array = NDArray[np.float64]


class DominatingPair(ABC):
    """One direction (P, P') of a mechanism."""

    @abstractmethod
    def renyi(self, alpha: Array) -> Array:
        """D_alpha(P || P') for orders [n] > 1; may be infinite."""

    @abstractmethod
    def profile(self, epsilon: ArrayLike) -> Array:
        """H_eps(P || P') = sum max(P - e^eps P', 0), for any real epsilon."""

    @property
    @abstractmethod
    def event_range(self) -> tuple[float, float]:
        """The first and last parameter t of the extreme events; s grows with t."""

    @abstractmethod
    def events(self, t: Array) -> tuple[Array, Array]:
        """The extreme events: log(1 - s) and log(1 - s'), for P- and P'-probabilities s and s'.

        For given s, s' is the largest that any event reaches, 1 - T(s) with T the trade-off curve.

        Args:
            t: parameters [n] within `event_range`; both results decrease in t.
        """


class Mechanism(ABC):
    """Privacy of one run."""

    @property
    def gaussian_mu(self) -> float | None:
        """The mu of a Gaussian pair, where the mechanism is exactly Gaussian; else None."""
        return None

    @property
    @abstractmethod
    def pairs(self) -> tuple[DominatingPair, ...]:
        """The dominating pairs of both directions; one if it is its own mirror image."""

    def renyi(self, alpha: ArrayLike) -> Array:
        """Renyi divergence of orders [n] > 1, the larger direction."""
        orders = np.asarray(alpha, dtype=np.float64)
        return np.max([pair.renyi(orders) for pair in self.pairs], axis=0)

    def delta(self, epsilon: ArrayLike) -> Array:
        """Privacy profile delta(epsilon), the larger direction."""
        return np.max([pair.profile(epsilon) for pair in self.pairs], axis=0)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta by the exact profile, rounded up."""
        return solve_epsilon(lambda epsilon: float(self.delta(epsilon)), delta)

    def renyi_epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta by Renyi divergences, as the papers account."""
        return renyi_to_epsilon(self.renyi, delta)


@dataclass(frozen=True)
class GaussianPair(DominatingPair):
    """N(0, 1) against N(mu, 1), its own mirror image."""

    mu: float

    def renyi(self, alpha: Array) -> Array:
        return np.asarray(alpha, dtype=np.float64) * (self.mu * self.mu / 2.0)

    def profile(self, epsilon: ArrayLike) -> Array:
        """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) (Balle & Wang 2018, theorem 8).

        In the tail the difference is taken between Mills ratios, where nothing cancels but mu/t
        itself: the relative error is under 1e-10 for mu >= 1e-4.
        """
        epsilon = np.asarray(epsilon, dtype=np.float64)
        a = epsilon / self.mu - self.mu / 2.0
        b = epsilon / self.mu + self.mu / 2.0
        root = math.sqrt(0.5)
        with np.errstate(under="ignore"):
            near, far = (special.erfcx(np.maximum(t, -4.0) * root) for t in (a, b))
            in_tail = 0.5 * np.exp(-0.5 * np.square(np.minimum(a, 1e3))) * (near - far)
            shifted = np.exp(np.minimum(epsilon + special.log_ndtr(-b), 0.0))
            inside = special.ndtr(-a) - shifted
        return np.clip(np.where(a > -4.0, in_tail, inside), 0.0, 1.0)

    @property
    def event_range(self) -> tuple[float, float]:
        # Beyond it one of the two normal tails is below 1e-300.
        return -37.5 - self.mu, 37.5

    def events(self, t: Array) -> tuple[Array, Array]:
        # {x < t} is likelier under P; its mirror image gives s = Phi(t), s' = Phi(t + mu).
        return special.log_ndtr(-t), special.log_ndtr(-t - self.mu)


@dataclass(frozen=True)
class DiscretePair(DominatingPair):
    """Two distributions on finitely many outputs.

    Attributes:
        p: probabilities [n] under P.
        q: probabilities [n] under P'.
    """

    p: Array
    q: Array

    def __post_init__(self) -> None:
        p, q = (np.asarray(v, dtype=np.float64) for v in (self.p, self.q))
        for name, v in (("p", p), ("q", q)):
            if v.ndim != 1 or not np.all(v >= 0) or abs(v.sum() - 1.0) > 1e-9:
                raise ValueError(f"{name} must be probabilities that sum to 1, got {v!r}")
        if p.shape != q.shape:
            raise ValueError(f"q must have the length of p, {len(p)}, got {len(q)}")
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "q", q)

    def renyi(self, alpha: Array) -> Array:
        orders = np.asarray(alpha, dtype=np.float64)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = orders * np.log(self.p) + (1.0 - orders) * np.log(self.q)
        terms = np.where(self.p == 0, -np.inf, np.where(self.q == 0, np.inf, terms))
        return special.logsumexp(terms, axis=-1) / (orders[..., 0] - 1.0)

    def profile(self, epsilon: ArrayLike) -> Array:
        factor = np.exp(np.minimum(np.asarray(epsilon, dtype=np.float64), 700.0))[..., None]
        return np.sum(np.maximum(self.p - factor * self.q, 0.0), axis=-1)

    @property
    def event_range(self) -> tuple[float, float]:
        return 0.0, float(len(self.p))

    @cached_property
    def _vertices(self) -> tuple[Array, Array]:
        """1 - s and 1 - s' after 0, 1, ..., n outputs, those likelier under P' first."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.q > 0, self.p / self.q, np.inf)
        order = np.argsort(ratio, kind="stable")
        left = [np.append(np.cumsum(v[order][::-1])[::-1], 0.0) for v in (self.p, self.q)]
        return left[0] / left[0][0], left[1] / left[1][0]

    def events(self, t: Array) -> tuple[Array, Array]:
        at = np.arange(len(self.p) + 1.0)
        with np.errstate(divide="ignore"):
            log_p, log_q = (np.log(np.interp(t, at, v)) for v in self._vertices)
        return log_p, log_q


@dataclass(frozen=True)
class GaussianMechanism(Mechanism):
    """Mu-Gaussian DP: full-batch DP-SGD has mu = sqrt(steps) / noise_multiplier.

    Attributes:
        mu: distance of the two means in standard deviations, in (0, 1000].
    """

    mu: float

    def __post_init__(self) -> None:
        checks.interval("mu", self.mu, 0.0, 1e3, closed_high=True)

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (GaussianPair(self.mu),)


@dataclass(frozen=True)
class DpSgd(Mechanism):
    """DP-SGD whose every iterate is released (Xiang, Wang & Wang 2024, eq. 1).

    Attributes:
        noise_multiplier: sigma, noise standard deviation in units of the clipping norm, > 0.
        steps: number of iterations, >= 1.
        sampling_rate: chance of a record to be in a batch; only 1 (full batch) is accounted for.
    """

    noise_multiplier: float
    steps: int
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        checks.interval("noise_multiplier", self.noise_multiplier, 0.0)
        checks.whole("steps", self.steps, 1)
        checks.interval("sampling_rate", self.sampling_rate, 0.0, 1.0, closed_high=True)
        if self.sampling_rate != 1.0:
            raise ValueError(
                f"sampling_rate must be 1 (only full batches are accounted for so far), "
                f"got {self.sampling_rate!r}"
            )
        checks.interval(
            "sqrt(steps) / noise_multiplier", self.gaussian_mu, 0.0, 1e3, closed_high=True
        )

    @property
    def gaussian_mu(self) -> float:
        return math.sqrt(self.steps) / self.noise_multiplier

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (GaussianPair(self.gaussian_mu),)


@dataclass(frozen=True)
class DiscreteMechanism(Mechanism):
    """A mechanism with finitely many outputs and one neighbouring pair of laws, both directions.

    Attributes:
        p: probabilities [n] on one data set.
        q: probabilities [n] on its neighbour.
    """

    p: Array
    q: Array

    def __post_init__(self) -> None:
        DiscretePair(self.p, self.q)

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return DiscretePair(self.p, self.q), DiscretePair(self.q, self.p)


@dataclass(frozen=True)
class PureDp(Mechanism):
    """Any (epsilon, 0)-DP mechanism: randomised response dominates it (Kairouz et al. 2015).

    Attributes:
        epsilon_0: the pure privacy parameter, in (0, 500].
    """

    epsilon_0: float

    def __post_init__(self) -> None:
        checks.interval("epsilon_0", self.epsilon_0, 0.0, 500.0, closed_high=True)

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        yes = special.expit(self.epsilon_0)
        no = special.expit(-self.epsilon_0)
        return (DiscretePair(np.array([yes, no]), np.array([no, yes])),)
