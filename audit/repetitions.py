"""Laws of K, the number of runs of the base mechanism.

A protocol draws K, runs the base mechanism K times and releases the best run. All that privacy
needs to know of the law of K is its probability generating function phi(x) = E[x^K] and its
derivative. The event that decides the leakage has probability close to 1 under one run, so every
law evaluates phi from log(x): the survival 1 - x = -expm1(log x) is then exact where it is tiny.

Sources: PS, Papernot & Steinke 2022 (definitions 1 and 2: truncated negative binomial, Poisson),
Koskela, Redberg & Wang 2024 (binomial), Xiang, Wang & Wang 2024 (eq. 21: two-point).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks

Array = NDArray[np.float64]

_LONGEST_TRUNCATION = 1_000_000
_POWERS_AT_ONCE = 2_000_000


def _log(x: ArrayLike) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, dtype=np.float64))


def _log_from_survival(s: ArrayLike) -> Array:
    with np.errstate(divide="ignore"):
        return np.log1p(-np.asarray(s, dtype=np.float64))


def _counts(k: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """The k that are counts, 0 in place of the others, and which they are."""
    k = np.asarray(k, dtype=np.float64)
    possible = (k >= 0) & (k == np.floor(k))
    return np.where(possible, k, 0.0), possible


class Repetitions(ABC):
    """The law of K. Subclasses give the forms in log(x); the rest follows."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The law as text; `parse(law.spec) == law`."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[K] = phi'(1)."""

    @property
    @abstractmethod
    def probability_of_none(self) -> float:
        """P[K = 0] = phi(0)."""

    @abstractmethod
    def log_pmf(self, k: ArrayLike) -> Array:
        """log P[K = k]; minus infinity where k is not a possible number of runs."""

    @abstractmethod
    def log_phi_at(self, log_x: ArrayLike) -> Array:
        """log phi(x), from log(x) <= 0."""

    @abstractmethod
    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        """1 - phi(x), from log(x) <= 0: accurate where x is within 1e-300 of 1."""

    @abstractmethod
    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        """log phi'(x), from log(x) <= 0."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draws [size] independent K, exactly from the law."""

    def some_phi_at(self, log_x: ArrayLike) -> Array:
        """phi(x) - phi(0): at least one run, and an event of probability x in every run."""
        return np.exp(self.log_phi_at(log_x))

    def pmf(self, k: ArrayLike) -> Array:
        """P[K = k]."""
        return np.exp(self.log_pmf(k))

    def phi(self, x: ArrayLike) -> Array:
        """phi(x) = E[x^K], for x in [0, 1]."""
        return np.exp(self.log_phi_at(_log(x)))

    def phi_prime(self, x: ArrayLike) -> Array:
        """phi'(x), for x in [0, 1]."""
        return np.exp(self.log_phi_prime_at(_log(x)))

    def phi_survival(self, s: ArrayLike) -> Array:
        """1 - phi(1 - s): the chance that an event of probability s happens in one run at least."""
        return self.one_minus_phi_at(_log_from_survival(s))

    def phi_prime_survival(self, s: ArrayLike) -> Array:
        """phi'(1 - s)."""
        return np.exp(self.log_phi_prime_at(_log_from_survival(s)))

    def inverse(self, y: ArrayLike) -> Array:
        """The x in [0, 1] with phi(x) = y; 0 where y < P[K = 0]."""
        return 1.0 - self.inverse_survival(1.0 - np.asarray(y, dtype=np.float64))

    def inverse_survival(self, y: ArrayLike) -> Array:
        """The s in [0, 1] with 1 - phi(1 - s) = y; 1 where y > 1 - P[K = 0].

        Solved by bisection in log(s), to the last bits of s. Laws with a closed form override it.
        """
        y = np.asarray(y, dtype=np.float64)
        # 1 - phi(1-s) <= E[K] s, so s >= y / E[K]; and s <= 1.
        low = np.log(np.maximum(y / self.mean, 1e-320)) - 1e-9
        high = np.zeros_like(low)
        for _ in range(64):
            middle = 0.5 * (low + high)
            too_small = self.phi_survival(np.exp(middle)) < y
            low, high = np.where(too_small, middle, low), np.where(too_small, high, middle)
        return np.where(y <= 0, 0.0, np.where(y >= self.phi_survival(1.0), 1.0, np.exp(high)))

    def expected_quantile(self) -> float:
        """Expected quantile of the best of K runs, 1 - int_0^1 phi (PS sec. 3.6)."""
        nodes, weights = np.polynomial.legendre.leggauss(64)
        # Substituting s = e^-t resolves the corner of phi at x = 1 that a large E[K] makes.
        end = math.log(max(self.mean, 1.0)) + 40.0
        edges = np.linspace(0.0, end, 33)
        middles, half = 0.5 * (edges[:-1] + edges[1:]), 0.5 * (edges[1] - edges[0])
        t = (middles[:, None] + half * nodes).ravel()
        values = self.phi_survival(np.exp(-t)) * np.exp(-t)
        return float(half * np.sum(values.reshape(-1, len(nodes)) @ weights))

    def chance_to_include(self, candidates: int) -> float:
        """Chance that one given of `candidates` equally likely ones is tried, 1 - phi(1 - 1/m)."""
        checks.whole("candidates", candidates, 1)
        return float(self.phi_survival(1.0 / candidates))

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True)
class TruncatedNegativeBinomial(Repetitions):
    """TNB(eta, gamma) on k >= 1 (Papernot & Steinke, definition 1); eta = 0 is the logarithmic law.

    Attributes:
        eta: shape, > -1. eta = 1 is the geometric law.
        gamma: in (0, 1); small gamma means many runs.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        checks.interval("eta", self.eta, -1.0, 1e6)
        checks.interval("gamma", self.gamma, 0.0, 1.0)
        checks.interval("gamma", self.gamma, 1e-300, 1.0)  # below it 1/gamma overflows

    @property
    def spec(self) -> str:
        return f"tnb:{self.eta:g},{self.gamma:g}"

    @cached_property
    def _log_gamma(self) -> float:
        return math.log(self.gamma)

    def _one_minus_power(self, log_u: ArrayLike) -> Array:
        """(1 - u^eta) / eta for u = e^log_u, continuous at eta = 0, where it is -log u."""
        log_u = np.asarray(log_u, dtype=np.float64)
        if self.eta == 0.0:
            return -log_u
        return np.asarray(-np.expm1(self.eta * log_u) / self.eta)

    @cached_property
    def mean(self) -> float:
        return (1.0 / self.gamma - 1.0) / float(self._one_minus_power(self._log_gamma))

    @property
    def probability_of_none(self) -> float:
        return 0.0

    def log_pmf(self, k: ArrayLike) -> Array:
        n, possible = _counts(k)
        possible = possible & (n >= 1)
        n = np.where(possible, n, 1.0)
        # P[1] = phi'(0); P[k] = P[1] (1-gamma)^(k-1) prod_{l=1}^{k-1} (l+eta)/(l+1).
        log_product = special.gammaln(n + self.eta) - special.gammaln(1.0 + self.eta)
        log_product = log_product - special.gammaln(n + 1.0)
        log_first = float(self.log_phi_prime_at(-np.inf))
        value = log_first + (n - 1.0) * math.log1p(-self.gamma) + log_product
        return np.where(possible, value, -np.inf)

    def _log_u(self, log_x: ArrayLike) -> Array:
        """log(1 - (1-gamma) x) = log(gamma + (1-gamma) s), from the side that keeps its digits."""
        log_x = np.asarray(log_x, dtype=np.float64)
        s = -np.expm1(log_x)
        by_survival = self._log_gamma + np.log1p((1.0 - self.gamma) / self.gamma * s)
        by_value = np.log1p(-(1.0 - self.gamma) * np.exp(np.minimum(log_x, -0.5)))
        return np.where(log_x > -0.5, by_survival, by_value)

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        # phi = (u^-eta - 1)/(gamma^-eta - 1); with |.|: (1 - u^|eta|) over (1 - gamma^|eta|),
        # times (gamma/u)^eta when eta > 0, so that nothing overflows.
        log_u = self._log_u(log_x)
        with np.errstate(divide="ignore"):
            ratio = np.log(self._size(log_u)) - np.log(self._size(self._log_gamma))
        return np.asarray(ratio + max(self.eta, 0.0) * (self._log_gamma - log_u))

    def _size(self, log_u: ArrayLike) -> Array:
        """(1 - u^|eta|) / |eta|, or -log u at eta = 0."""
        log_u = np.asarray(log_u, dtype=np.float64)
        eta = abs(self.eta)
        return -log_u if eta == 0.0 else np.asarray(-np.expm1(eta * log_u) / eta)

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        # 1 - phi = (1 - (gamma/u)^eta) / (1 - gamma^eta).
        log_ratio = -np.log1p((1.0 - self.gamma) / self.gamma * -np.expm1(np.asarray(log_x)))
        return self._one_minus_power(log_ratio) / self._one_minus_power(self._log_gamma)

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        log_ratio = self._log_gamma - self._log_u(log_x)
        return np.asarray(math.log(self.mean) + (self.eta + 1.0) * log_ratio)

    def inverse_survival(self, y: ArrayLike) -> Array:
        # (gamma/u)^eta = 1 - y (1 - gamma^eta), and s = (u - gamma)/(1 - gamma).
        y = np.clip(np.asarray(y, dtype=np.float64), 0.0, 1.0)
        if self.eta == 0.0:
            log_growth = -y * self._log_gamma
        else:
            with np.errstate(divide="ignore"):
                log_growth = -np.log1p(y * np.expm1(self.eta * self._log_gamma)) / self.eta
        log_growth = np.minimum(log_growth, -self._log_gamma)
        return np.minimum(self.gamma / (1.0 - self.gamma) * np.expm1(log_growth), 1.0)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        # phi(x) = x * int c v^-(eta+1) (v/(1-(1-v)x))^(eta+1) dv over v in (gamma, 1): K - 1 is
        # negative binomial with eta + 1 failures and success probability v drawn from c v^-(eta+1).
        uniform = rng.random(size)
        log_v = self._log_gamma * (1.0 - uniform)
        if self.eta != 0.0:
            # (1 - v^-eta)/(1 - gamma^-eta) = 1 - u, solved for v without leaving log scale.
            if self.eta > 0.0:
                inside = uniform * math.exp(self.eta * self._log_gamma) + (1.0 - uniform)
                with np.errstate(divide="ignore"):
                    log_v = self._log_gamma - np.log(inside) / self.eta
            else:
                inside = uniform + (1.0 - uniform) * math.exp(-self.eta * self._log_gamma)
                log_v = -np.log(inside) / self.eta
        v = np.exp(np.clip(log_v, self._log_gamma, 0.0))
        return 1 + rng.negative_binomial(self.eta + 1.0, v, size).astype(np.int64)


@dataclass(frozen=True)
class Poisson(Repetitions):
    """Poisson(mu) on k >= 0 (Papernot & Steinke, definition 2 and theorem 6)."""

    mu: float

    def __post_init__(self) -> None:
        checks.interval("mu", self.mu, 0.0, 1e15)

    @property
    def spec(self) -> str:
        return f"poisson:{self.mu:g}"

    @property
    def mean(self) -> float:
        return float(self.mu)

    @property
    def probability_of_none(self) -> float:
        return math.exp(-self.mu)

    def log_pmf(self, k: ArrayLike) -> Array:
        n, possible = _counts(k)
        log_p = n * math.log(self.mu) - self.mu - special.gammaln(n + 1.0)
        return np.where(possible, log_p, -np.inf)

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        return np.asarray(self.mu * np.expm1(log_x))

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        return np.asarray(-np.expm1(self.mu * np.expm1(log_x)))

    def some_phi_at(self, log_x: ArrayLike) -> Array:
        # e^-mu expm1(mu x), written so that a large mu overflows nothing.
        x = np.exp(log_x)
        return np.asarray(np.exp(self.mu * np.expm1(log_x)) * -np.expm1(-self.mu * x))

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        return np.asarray(math.log(self.mu) + self.mu * np.expm1(log_x))

    def inverse_survival(self, y: ArrayLike) -> Array:
        possible = np.minimum(np.asarray(y, dtype=np.float64), -math.expm1(-self.mu))
        with np.errstate(divide="ignore"):
            return np.clip(-np.log1p(-possible) / self.mu, 0.0, 1.0)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.poisson(self.mu, size).astype(np.int64)


@dataclass(frozen=True)
class Binomial(Repetitions):
    """Binomial(n, p) on k >= 0 (Koskela, Redberg & Wang 2024, theorem 5.7)."""

    n: int
    p: float

    def __post_init__(self) -> None:
        checks.whole("n", self.n, 1)
        checks.interval("p", self.p, 0.0, 1.0, closed_high=True)

    @property
    def spec(self) -> str:
        return f"binomial:{self.n},{self.p:g}"

    @property
    def mean(self) -> float:
        return self.n * self.p

    @property
    def probability_of_none(self) -> float:
        return float(np.exp(self.log_phi_at(-np.inf)))

    def log_pmf(self, k: ArrayLike) -> Array:
        n, possible = _counts(k)
        possible = possible & (n <= self.n)
        n = np.where(possible, n, 0.0)
        rest = self.n - n
        log_ways = special.gammaln(self.n + 1.0) - special.gammaln(n + 1.0)
        log_ways = log_ways - special.gammaln(rest + 1.0)
        log_p = log_ways + special.xlogy(n, self.p) + special.xlog1py(rest, -self.p)
        return np.where(possible, log_p, -np.inf)

    def _log_base(self, log_x: ArrayLike) -> Array:
        """log(1 - p + p x)."""
        with np.errstate(divide="ignore"):
            return np.log1p(self.p * np.expm1(np.asarray(log_x, dtype=np.float64)))

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        return self.n * self._log_base(log_x)

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        return -np.expm1(self.n * self._log_base(log_x))

    def some_phi_at(self, log_x: ArrayLike) -> Array:
        # (1-p+px)^n - (1-p)^n as a share of the first term.
        log_base = self._log_base(log_x)
        with np.errstate(divide="ignore"):
            share = np.log1p(-self.p * np.exp(np.asarray(log_x) - log_base))
        return np.exp(self.n * log_base) * -np.expm1(self.n * share)

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        # n = 1 needs care: 0 * log(0) is 0 here.
        tail = special.xlog1py(self.n - 1.0, self.p * np.expm1(np.asarray(log_x, dtype=np.float64)))
        return np.asarray(math.log(self.mean) + tail)

    def inverse_survival(self, y: ArrayLike) -> Array:
        possible = np.minimum(np.asarray(y, dtype=np.float64), 1.0 - self.probability_of_none)
        with np.errstate(divide="ignore"):
            return np.clip(-np.expm1(np.log1p(-possible) / self.n) / self.p, 0.0, 1.0)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.binomial(self.n, self.p, size).astype(np.int64)


@dataclass(frozen=True)
class TwoPoint(Repetitions):
    """K = 1 with probability s, else K = L (Xiang, Wang & Wang 2024, eq. 21)."""

    s: float
    L: int

    def __post_init__(self) -> None:
        checks.interval("s", self.s, 0.0, 1.0)
        checks.whole("L", self.L, 2)

    @property
    def spec(self) -> str:
        return f"two-point:{self.s:g},{self.L}"

    @property
    def mean(self) -> float:
        return self.s + (1.0 - self.s) * self.L

    @property
    def probability_of_none(self) -> float:
        return 0.0

    def log_pmf(self, k: ArrayLike) -> Array:
        k = np.asarray(k)
        return _log(np.where(k == 1, self.s, np.where(k == self.L, 1.0 - self.s, 0.0)))

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        log_x = np.asarray(log_x, dtype=np.float64)
        return np.logaddexp(math.log(self.s) + log_x, math.log1p(-self.s) + self.L * log_x)

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        log_x = np.asarray(log_x, dtype=np.float64)
        return -self.s * np.expm1(log_x) - (1.0 - self.s) * np.expm1(self.L * log_x)

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        log_many = math.log1p(-self.s) + math.log(self.L) + (self.L - 1) * np.asarray(log_x)
        return np.logaddexp(math.log(self.s), log_many)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return np.where(rng.random(size) < self.s, 1, self.L).astype(np.int64)


@dataclass(frozen=True)
class Fixed(Repetitions):
    """K = k always: naive repetition, whose cost grows with k (Papernot & Steinke, prop. 17)."""

    k: int

    def __post_init__(self) -> None:
        checks.whole("k", self.k, 1)

    @property
    def spec(self) -> str:
        return f"fixed:{self.k}"

    @property
    def mean(self) -> float:
        return float(self.k)

    @property
    def probability_of_none(self) -> float:
        return 0.0

    def log_pmf(self, k: ArrayLike) -> Array:
        return np.where(np.asarray(k) == self.k, 0.0, -np.inf)

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        return self.k * np.asarray(log_x, dtype=np.float64)

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        return -np.expm1(self.log_phi_at(log_x))

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        log_x = np.asarray(log_x, dtype=np.float64)
        if self.k == 1:
            return np.zeros_like(log_x)
        return math.log(self.k) + (self.k - 1) * log_x

    def inverse_survival(self, y: ArrayLike) -> Array:
        return -np.expm1(_log_from_survival(y) / self.k)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return np.full(size, self.k, dtype=np.int64)


@dataclass(frozen=True)
class Truncated(Repetitions):
    """A law conditioned on K <= most: a limit on the number of runs (Papernot & Steinke, lemma 22).

    Attributes:
        law: the law before conditioning.
        most: the largest number of runs allowed, up to a million.
    """

    law: Repetitions
    most: int

    def __post_init__(self) -> None:
        checks.whole("most", self.most, 1, _LONGEST_TRUNCATION)
        if isinstance(self.law, Truncated):
            raise ValueError(f"law must not be truncated twice, got {self.law.spec!r}")
        if not np.isfinite(self._log_weights).any():
            raise ValueError(
                f"most must leave {self.law.spec} a possible number of runs, got {self.most}"
            )

    @property
    def spec(self) -> str:
        return f"{self.law.spec}@{self.most}"

    @cached_property
    def _log_weights(self) -> Array:
        return self.law.log_pmf(np.arange(self.most + 1.0))

    @cached_property
    def _pmf(self) -> Array:
        weights = np.exp(self._log_weights - np.max(self._log_weights))
        return weights / weights.sum()

    @cached_property
    def _log_scale(self) -> float:
        """log P[K <= most] under the law before conditioning."""
        return float(special.logsumexp(self._log_weights))

    @cached_property
    def mean(self) -> float:
        return float(self._pmf @ np.arange(self.most + 1.0))

    @property
    def probability_of_none(self) -> float:
        return float(self._pmf[0])

    def log_pmf(self, k: ArrayLike) -> Array:
        possible = np.asarray(k) <= self.most
        return np.where(possible, self.law.log_pmf(k) - self._log_scale, -np.inf)

    @staticmethod
    def _log_polynomial(coefficients: Array, log_x: ArrayLike) -> Array:
        """log sum_j c_j x^j for c_j >= 0; every term is positive, so nothing cancels.

        Paterson & Stockmeyer's scheme: blocks of about sqrt(n) powers by one matrix product, the
        blocks by Horner's rule.
        """
        log_x = np.asarray(log_x, dtype=np.float64)
        first = int(np.flatnonzero(coefficients)[0])
        wanted = coefficients[first:]
        width = math.isqrt(len(wanted) - 1) + 1
        blocks = np.zeros((math.ceil(len(wanted) / width), width))
        blocks.ravel()[: len(wanted)] = wanted
        x = np.exp(log_x).ravel()
        total = np.zeros_like(x)
        share = max(_POWERS_AT_ONCE // width, 1)
        for start in range(0, len(x), share):
            part = x[start : start + share]
            powers = np.cumprod(
                np.column_stack([np.ones_like(part), *[part] * (width - 1)]), axis=1
            )
            step = powers[:, -1] * part
            for block in (powers @ blocks.T).T[::-1]:
                total[start : start + share] = total[start : start + share] * step + block
        # The lowest power is factored out, so that x underflowing to 0 leaves a finite logarithm.
        return np.log(total).reshape(log_x.shape) + (first * log_x if first else 0.0)

    def log_phi_at(self, log_x: ArrayLike) -> Array:
        return np.minimum(self._log_polynomial(self._pmf, log_x), 0.0)

    def one_minus_phi_at(self, log_x: ArrayLike) -> Array:
        # 1 - phi(x) = (1 - x) sum_j P[K > j] x^j: no cancellation.
        more_than = np.cumsum(self._pmf[::-1])[::-1][1:]
        log_sum = self._log_polynomial(np.asarray(more_than), log_x)
        return np.clip(-np.expm1(log_x) * np.exp(log_sum), 0.0, 1.0)

    def some_phi_at(self, log_x: ArrayLike) -> Array:
        possible = np.concatenate([[0.0], self._pmf[1:]])
        return np.minimum(np.exp(self._log_polynomial(possible, log_x)), 1.0)

    def log_phi_prime_at(self, log_x: ArrayLike) -> Array:
        return self._log_polynomial((self._pmf * np.arange(self.most + 1.0))[1:], log_x)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.choice(self.most + 1, size=size, p=self._pmf).astype(np.int64)


def _numbers(name: str, text: str, count: int) -> list[float]:
    parts = text.split(",") if text else []
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) != count:
        plural = "number" if count == 1 else "numbers separated by a comma"
        raise ValueError(f"{name} takes {count} {plural}, got {text!r}")
    return values


FAMILIES = ("tnb", "geometric", "poisson", "binomial", "two-point", "fixed")
"""The names of laws in texts."""


def parse(spec: "str | Repetitions") -> Repetitions:
    """Reads a law of K from text.

    Args:
        spec: `tnb:ETA,GAMMA`, `geometric:GAMMA`, `poisson:MU`, `binomial:N,P`, `two-point:S,L` or
            `fixed:K`, each possibly followed by `@MOST` for the law conditioned on K <= MOST.
            A law is returned as it is.

    Raises:
        ValueError: an unknown law, a wrong number of parameters, or one out of its range.

    Example:
        >>> round(parse("tnb:0,0.01").mean, 6)
        21.497577
        >>> parse("two-point:0.01,100@50").pmf([1, 100]).tolist()
        [1.0, 0.0]
    """
    if isinstance(spec, Repetitions):
        return spec
    text, at, most = str(spec).strip().partition("@")
    name, _, parameters = text.partition(":")
    name = checks.one_of("repetitions", name, FAMILIES)
    try:
        law = _law(name, parameters)
        if at:
            limit = _numbers("@", most, 1)[0]
            law = Truncated(law, checks.whole("most", limit, 1, _LONGEST_TRUNCATION))
    except ValueError as error:
        raise ValueError(f"repetitions {spec}: {error}") from error
    return law


def _law(name: str, parameters: str) -> Repetitions:
    if name == "tnb":
        return TruncatedNegativeBinomial(*_numbers(name, parameters, 2))
    if name == "geometric":
        return TruncatedNegativeBinomial(1.0, *_numbers(name, parameters, 1))
    if name == "poisson":
        return Poisson(*_numbers(name, parameters, 1))
    if name == "binomial":
        n, p = _numbers(name, parameters, 2)
        return Binomial(checks.whole("n", n, 1), p)
    if name == "two-point":
        s, many = _numbers(name, parameters, 2)
        return TwoPoint(s, checks.whole("L", many, 2))
    return Fixed(checks.whole("k", _numbers(name, parameters, 1)[0], 1))
