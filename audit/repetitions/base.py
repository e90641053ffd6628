"""The interface of distributions of K, the number of runs.

A protocol draws K, runs the base mechanism K times and releases the best run. The privacy of the
tuning depends on the distribution of K only through its probability generating function
phi(x) = E[x^K] and the derivative of phi. The event that determines the leakage has probability
close to 1 in one run. Distributions therefore evaluate phi from log(x), so that the survival
1 - x = -expm1(log x) is exact where it is tiny.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import TINY, FloatArray, bisect_intervals, format_exact, safe_log

Function = Callable[[FloatArray], FloatArray]

GIVEN = " given no failure of chance "

MAX_RUNS = 10**15
"""Largest number of runs: below it, doubles represent integers exactly."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LOG_HALF = math.log(0.5)


def log_of_one_minus(s: ArrayLike) -> FloatArray:
    """log(1 - s), minus infinity at 1."""
    with np.errstate(divide="ignore"):
        return np.log1p(-np.asarray(s, dtype=np.float64))


def counts(k: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Values with 0 in place of those that are not non-negative integers, and which are valid."""
    k = np.asarray(k, dtype=np.float64)
    possible = (k >= 0) & (k == np.floor(k))
    return np.where(possible, k, 0.0), possible


def checked_generator(rng: np.random.Generator) -> np.random.Generator:
    """Checks that `rng` is a random generator of numpy, and returns it."""
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(
            "rng must be a generator such as numpy.random.default_rng(), got "
            f"{checks.one_line(rng)}"
        )
    return rng


def format_spec(name: str, *numbers: float) -> str:
    """Formats `name:number,number` with the shortest digits that are parsed back exactly."""
    return f"{name}:{','.join(map(format_exact, numbers))}"


@dataclass(frozen=True)
class PowerLaw:
    r"""The parameters of phi' if K is truncated negative binomial.

    :math:`\varphi'(x) = \mathbb{E}[K]\, (1 + (1/\gamma - 1)(1 - x))^{-(1 + \eta)}`.

    Attributes:
        eta: > -1.
        gamma: in (0, 1).

    Example:
        >>> from audit.repetitions import TruncatedNegativeBinomial
        >>> TruncatedNegativeBinomial(1.0, 0.1).power_law
        PowerLaw(eta=1.0, gamma=0.1)
    """

    eta: float
    gamma: float


@dataclass(frozen=True)
class ProfileTheorem:
    r"""A bound on the profile of the best run, for every eps_1 >= 0.

    :math:`\delta_A(\varepsilon) \le \mathbb{E}[K]\, \delta(\varepsilon - \text{penalty})`.

    Attributes:
        source: the theorem.
        penalty: maps eps_1 [n] and upper bounds on delta(eps_1) [n] to penalties [n];
            infinite where the theorem does not allow eps_1.

    Example:
        >>> from audit.repetitions import Poisson
        >>> Poisson(10.0).profile_theorem.source
        'Koskela, Redberg & Wang 2024, corollary 5.8'
    """

    source: str
    penalty: Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True)
class RenyiTheorem:
    r"""A bound on the Renyi divergence of the best run, by order.

    .. math:: (\alpha - 1)\, D_\alpha(A \,\|\, A') \le
        \log\big(P[K = 0] + \mathbb{E}[K]\, e^{(\alpha - 1)(D_\alpha + \text{penalty})}\big).

    Attributes:
        source: the theorem.
        penalty: maps the base's Renyi divergence (a function of orders) and its privacy profile (a
            function of epsilons) to the penalty, a function of orders [n].

    Example:
        >>> from audit.repetitions import Poisson
        >>> Poisson(10.0).renyi_theorem.source
        'Papernot & Steinke 2022, theorem 6'
    """

    source: str
    penalty: Callable[[Function, Function], Function]


class Repetitions(ABC):
    """The distribution of K. Subclasses implement the functions of log(x); the rest follows.

    A new distribution only needs the abstract methods. Properties that belong to theorems about
    single families are None by default; the bounds of these theorems then do not apply.

    Example:
        >>> import numpy as np
        >>> from audit.repetitions import parse_repetitions
        >>> runs = parse_repetitions("tnb:0,0.01")
        >>> round(runs.mean, 2), round(runs.expected_quantile(), 3)
        (21.5, 0.793)
        >>> runs.sample(np.random.default_rng(0), 5).tolist()
        [6, 56, 27, 4, 4]
    """

    @property
    @abstractmethod
    def spec(self) -> str:
        """The distribution as text; `parse_repetitions(distribution.spec) == distribution`."""

    @property
    def words(self) -> str:
        """The distribution in words, for certificates: `drawn from` comes before them."""
        return self.spec

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[K] = phi'(1)."""

    @property
    @abstractmethod
    def probability_of_none(self) -> float:
        """P[K = 0] = phi(0)."""

    @abstractmethod
    def log_pmf(self, k: ArrayLike) -> FloatArray:
        """log P[K = k]; minus infinity where k is not a possible number of runs."""

    @abstractmethod
    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        """log phi(x), from log(x) <= 0."""

    @abstractmethod
    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        """1 - phi(x), from log(x) <= 0; accurate even where x is within 1e-300 of 1."""

    @abstractmethod
    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        """log phi'(x), from log(x) <= 0."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draws [size] independent values of K, exactly from the distribution."""

    def some_phi_at(self, log_x: ArrayLike) -> FloatArray:
        """phi(x) - phi(0): probability that K > 0 and all runs lie in an event of probability x."""
        phi = np.exp(self.log_phi_at(log_x))
        if self.probability_of_none == 0.0:
            return phi
        # For x <= 1/2, the first terms of the series are accurate, and the rest is at most x^65.
        log_x = np.asarray(log_x, dtype=np.float64)
        k = np.arange(1.0, 65.0)
        log_small = np.minimum(log_x, _LOG_HALF)[..., None]
        terms = np.exp(self.log_pmf(k) + k * log_small).sum(axis=-1)
        terms += np.exp(65.0 * log_small[..., 0])
        large = np.maximum(phi - self.probability_of_none, 0.0)
        return np.where(log_x <= _LOG_HALF, terms, large)

    def pmf(self, k: ArrayLike) -> FloatArray:
        """P[K = k]."""
        return np.exp(self.log_pmf(k))

    def phi(self, x: ArrayLike) -> FloatArray:
        """phi(x) = E[x^K], for x in [0, 1]."""
        return np.exp(self.log_phi_at(safe_log(x)))

    def phi_prime(self, x: ArrayLike) -> FloatArray:
        """phi'(x), for x in [0, 1]."""
        return np.exp(self.log_phi_prime_at(safe_log(x)))

    def phi_survival(self, s: ArrayLike) -> FloatArray:
        """1 - phi(1 - s): probability that an event of probability s happens in some run."""
        return self.one_minus_phi_at(log_of_one_minus(s))

    def inverse(self, y: ArrayLike) -> FloatArray:
        """The x in [0, 1] with phi(x) = y; 0 where y < P[K = 0]."""
        return 1.0 - self.inverse_survival(1.0 - np.asarray(y, dtype=np.float64))

    def inverse_survival(self, y: ArrayLike) -> FloatArray:
        """The s in [0, 1] with 1 - phi(1 - s) = y; 1 where y > 1 - P[K = 0].

        Solved by bisection in log(s) and rounded up. Distributions with a closed form override it.
        """
        y = np.asarray(y, dtype=np.float64)
        # 1 - phi(1-s) <= E[K] s, so s >= y / E[K] up to rounding; and s <= 1.
        low = np.log(np.maximum(y / self.mean, TINY)) - 1e-9
        _, high = bisect_intervals(lambda log_s: self.phi_survival(np.exp(log_s)) < y, low, 0.0, 64)
        return np.where(y <= 0, 0.0, np.where(y >= self.phi_survival(1.0), 1.0, np.exp(high)))

    def expected_quantile(self) -> float:
        """Expected quantile of the best of K runs, 1 - int_0^1 phi.

        Source: Papernot & Steinke 2022, section 3.6.
        """
        nodes, weights = np.polynomial.legendre.leggauss(64)
        # Substituting s = e^-t resolves the steep slope of phi at x = 1 for large E[K].
        end = math.log(max(self.mean, 1.0)) + 40.0
        edges = np.linspace(0.0, end, 33)
        middles, half = 0.5 * (edges[:-1] + edges[1:]), 0.5 * (edges[1] - edges[0])
        t = (middles[:, None] + half * nodes).ravel()
        values = self.phi_survival(np.exp(-t)) * np.exp(-t)
        return float(half * np.sum(values.reshape(-1, len(nodes)) @ weights))

    def chance_to_include(self, candidates: int) -> float:
        """Probability that one of m equally likely candidates is trained, 1 - phi(1 - 1/m).

        Example:
            >>> from audit.repetitions import Fixed
            >>> Fixed(3).chance_to_include(4)
            0.578125
        """
        return float(self.phi_survival(1.0 / checks.integer("candidates", candidates, 1)))

    def given_no_failure(self, failure: float) -> "Repetitions":
        """The distribution of K, conditioned on no run failing.

        Every run fails independently with the same probability:
        P[K = k] (1-failure)^k / phi(1-failure) (Papernot & Steinke 2022, lemma 20).

        Args:
            failure: probability that one run fails, in [0, 1).
        """
        return self._given_no_failure(
            checks.interval("failure", failure, 0.0, 1.0, closed_low=True)
        )

    def _given_no_failure(self, failure: float) -> "Repetitions":
        """The same for a validated probability of failure."""
        return GivenNoFailure(self, failure) if failure > 0.0 else self

    @property
    def means(self) -> tuple[float, float]:
        """Smallest and largest E[K] (before truncation) that `with_mean` can produce."""
        return self.mean, self.mean

    def with_mean(self, mean: float) -> "Repetitions":
        """A distribution of the same family with another expected number of runs.

        Truncated negative binomial distributions keep eta, binomial ones n, two-point ones s, and
        truncated ones their maximum. If the mean is not reachable exactly, the nearest is used.

        Args:
            mean: the wanted E[K] (before truncation), > 0; at least 1 for truncated negative
                binomial distributions.

        Raises:
            InvalidInput: the family has no member with that mean.
        """
        raise InvalidInput(f"repetitions must belong to a family with a free mean, got {self.spec}")

    @property
    def untruncated(self) -> "Repetitions":
        """The distribution before it was conditioned on K <= most; otherwise itself."""
        return self

    @property
    def log_kept(self) -> float:
        """log P[K <= most] under `untruncated`."""
        return 0.0

    @property
    def power_law(self) -> PowerLaw | None:
        """Parameters of a truncated negative binomial distribution; None for others."""
        return None

    @property
    def profile_theorem(self) -> ProfileTheorem | None:
        """The theorem about privacy profiles for this family, if there is one."""
        return None

    @property
    def renyi_theorem(self) -> RenyiTheorem | None:
        """The theorem about Renyi divergences for this family, if there is one."""
        return None

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True)
class GivenNoFailure(Repetitions):
    """A distribution of K, conditioned on no run failing.

    Attributes:
        distribution: the distribution before conditioning.
        failure: probability that one run fails, in (0, 1).

    Example:
        >>> from audit.repetitions import Fixed, Poisson
        >>> round(Poisson(10.0).given_no_failure(0.1).mean, 6)
        9.0
    """

    distribution: Repetitions
    failure: float

    def __post_init__(self) -> None:
        checks.validate(self, "failure", checks.interval, 0.0, 1.0)
        if not np.isfinite(self._log_chance):
            raise InvalidInput(
                f"failure must leave {self.distribution.spec} a positive probability that no run "
                f"fails, got {checks.one_line(self.failure)}"
            )

    @property
    def spec(self) -> str:
        return f"{self.distribution.spec}{GIVEN}{format_exact(self.failure)}"

    @cached_property
    def _log_keep(self) -> float:
        return math.log1p(-self.failure)

    @cached_property
    def _log_chance(self) -> float:
        """Logarithm of the probability that no run fails, log phi(1 - failure)."""
        return float(self.distribution.log_phi_at(self._log_keep))

    @property
    def mean(self) -> float:
        return math.exp(float(self.log_phi_prime_at(0.0)))

    @property
    def probability_of_none(self) -> float:
        return float(self.distribution.probability_of_none / math.exp(self._log_chance))

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        log_kept = np.asarray(k, dtype=np.float64) * self._log_keep
        return self.distribution.log_pmf(k) + log_kept - self._log_chance

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        return self.distribution.log_phi_at(np.asarray(log_x) + self._log_keep) - self._log_chance

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        # phi(keep) - phi(keep x) = int phi'. The difference is accurate unless x is near 1. There,
        # phi' is nearly constant, and Gauss-Legendre quadrature is used.
        log_x = np.asarray(log_x, dtype=np.float64)
        low = log_x + self._log_keep
        beaten = self.distribution.one_minus_phi_at(low)
        difference = beaten - self.distribution.one_minus_phi_at(self._log_keep)
        half = 0.5 * -np.maximum(log_x, -1.0)
        at = self._log_keep - half[..., None] * (1.0 + _NODES)
        integral = half * (np.exp(at + self.distribution.log_phi_prime_at(at)) @ _WEIGHTS)
        near = (difference < 1e-3 * beaten) & (log_x > -1.0)
        return np.clip(np.where(near, integral, difference) / math.exp(self._log_chance), 0.0, 1.0)

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        slope = self.distribution.log_phi_prime_at(np.asarray(log_x) + self._log_keep)
        return slope + (self._log_keep - self._log_chance)

    def _given_no_failure(self, failure: float) -> Repetitions:
        return GivenNoFailure(self.distribution, self.failure + (1.0 - self.failure) * failure)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draws K by rejection.

        Raises:
            InvalidInput: less than one draw in 10,000 would be accepted.
        """
        rng = checked_generator(rng)
        if self._log_chance < math.log(1e-4):
            raise InvalidInput(
                f"failure must be smaller to sample from {self.distribution.spec}, got {self.spec}"
            )
        accepted = np.empty(0, dtype=np.int64)
        while len(accepted) < size:
            drawn = self.distribution.sample(rng, size)
            accepted = np.append(accepted, drawn[np.log(rng.random(size)) < drawn * self._log_keep])
        return accepted[:size]
