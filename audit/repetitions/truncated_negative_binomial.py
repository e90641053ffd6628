"""Truncated negative binomial K, the family with the most theorems."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import ROOT_TOLERANCE, FloatArray, best_alpha, format_exact, safe_log, safe_root
from audit.repetitions.base import (
    Function,
    PowerLaw,
    ProfileTheorem,
    RenyiTheorem,
    Repetitions,
    checked_generator,
    counts,
    format_spec,
)


@dataclass(frozen=True)
class TruncatedNegativeBinomial(Repetitions):
    """TNB(eta, gamma) on k >= 1; eta = 0 is the logarithmic distribution.

    Source: Papernot & Steinke 2022, definition 1.

    Attributes:
        eta: shape, > -1. eta = 1 is the geometric distribution.
        gamma: in (0, 1); a smaller gamma means more runs.

    Example:
        >>> geometric = TruncatedNegativeBinomial(1.0, 0.1)
        >>> round(geometric.mean, 6), geometric.pmf([1, 2]).round(3).tolist()
        (10.0, [0.1, 0.09])
    """

    eta: float
    gamma: float
    probability_of_none: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        checks.validate(self, "eta", checks.interval, -1.0, 1e6)
        checks.interval("gamma", self.gamma, 0.0, 1.0)
        # For smaller gamma, 1/gamma overflows.
        checks.validate(self, "gamma", checks.interval, 1e-300, 1.0)

    @property
    def spec(self) -> str:
        return format_spec("tnb", self.eta, self.gamma)

    @property
    def words(self) -> str:
        shape, rate = format_exact(self.eta), format_exact(self.gamma)
        if self.eta == 1.0:
            return f"the geometric distribution with stopping probability {rate}"
        if self.eta == 0.0:
            return f"the logarithmic distribution with parameter gamma = {rate}"
        return (
            "the negative binomial distribution without 0, with shape eta = "
            f"{shape} and parameter gamma = {rate}"
        )

    @property
    def _power(self) -> float:
        """eta, or 0 where |eta| is so small that products with it lose their digits."""
        return self.eta if abs(self.eta) >= 1e-290 else 0.0

    @cached_property
    def _log_gamma(self) -> float:
        return math.log(self.gamma)

    def _one_minus_power(self, log_u: ArrayLike) -> FloatArray:
        """(1 - u^eta) / eta for u = e^log_u, continuous at eta = 0, where it is -log u."""
        log_u = np.asarray(log_u, dtype=np.float64)
        if self._power == 0.0:
            return -log_u
        return np.asarray(-np.expm1(self._power * log_u) / self._power)

    @cached_property
    def mean(self) -> float:
        return (1.0 / self.gamma - 1.0) / float(self._one_minus_power(self._log_gamma))

    def log_pmf(self, k: ArrayLike) -> FloatArray:
        n, possible = counts(k)
        possible = possible & (n >= 1)
        n = np.where(possible, n, 1.0)
        # P[1] = phi'(0); P[k] = P[1] (1-gamma)^(k-1) prod_{l=1}^{k-1} (l+eta)/(l+1).
        log_product = special.gammaln(n + self.eta) - special.gammaln(1.0 + self.eta)
        log_product = log_product - special.gammaln(n + 1.0)
        log_first = float(self.log_phi_prime_at(-np.inf))
        value = log_first + (n - 1.0) * math.log1p(-self.gamma) + log_product
        return np.where(possible, value, -np.inf)

    def _log_u(self, log_x: ArrayLike) -> FloatArray:
        """log(1 - (1-gamma) x) = log(gamma + (1-gamma) s), computed from the more accurate form."""
        log_x = np.asarray(log_x, dtype=np.float64)
        s = -np.expm1(log_x)
        by_survival = self._log_gamma + np.log1p((1.0 - self.gamma) / self.gamma * s)
        by_value = np.log1p(-(1.0 - self.gamma) * np.exp(np.minimum(log_x, -0.5)))
        return np.where(log_x > -0.5, by_survival, by_value)

    def log_phi_at(self, log_x: ArrayLike) -> FloatArray:
        # phi = (u^-eta - 1)/(gamma^-eta - 1); with |.|: (1 - u^|eta|) over (1 - gamma^|eta|),
        # times (gamma/u)^eta when eta > 0, so that nothing overflows.
        log_u = self._log_u(log_x)
        ratio = safe_log(self._size(log_u)) - safe_log(self._size(self._log_gamma))
        return np.asarray(ratio + max(self.eta, 0.0) * (self._log_gamma - log_u))

    def _size(self, log_u: ArrayLike) -> FloatArray:
        """(1 - u^|eta|) / |eta|, or -log u at eta = 0."""
        log_u = np.asarray(log_u, dtype=np.float64)
        eta = abs(self._power)
        return -log_u if eta == 0.0 else np.asarray(-np.expm1(eta * log_u) / eta)

    def one_minus_phi_at(self, log_x: ArrayLike) -> FloatArray:
        # 1 - phi = (1 - (gamma/u)^eta) / (1 - gamma^eta).
        log_ratio = -np.log1p((1.0 - self.gamma) / self.gamma * -np.expm1(np.asarray(log_x)))
        return self._one_minus_power(log_ratio) / self._one_minus_power(self._log_gamma)

    def log_phi_prime_at(self, log_x: ArrayLike) -> FloatArray:
        log_ratio = self._log_gamma - self._log_u(log_x)
        return np.asarray(math.log(self.mean) + (self.eta + 1.0) * log_ratio)

    def inverse_survival(self, y: ArrayLike) -> FloatArray:
        # (gamma/u)^eta = 1 - y (1 - gamma^eta), and s = (u - gamma)/(1 - gamma).
        y = np.clip(np.asarray(y, dtype=np.float64), 0.0, 1.0)
        if self._power == 0.0:
            log_growth = -y * self._log_gamma
        else:
            with np.errstate(divide="ignore"):
                log_growth = -np.log1p(y * np.expm1(self.eta * self._log_gamma)) / self.eta
        log_growth = np.minimum(log_growth, -self._log_gamma)
        return np.minimum(self.gamma / (1.0 - self.gamma) * np.expm1(log_growth), 1.0)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        rng = checked_generator(rng)
        # phi(x) = x * int c v^-(eta+1) (v/(1-(1-v)x))^(eta+1) dv over v in (gamma, 1): K - 1 is
        # negative binomial with eta + 1 failures and success probability v drawn from c v^-(eta+1).
        uniform = rng.random(size)
        log_v = self._log_gamma * (1.0 - uniform)
        if self._power != 0.0:
            # (1 - v^-eta)/(1 - gamma^-eta) = 1 - u, solved for v on the logarithmic scale.
            if self.eta > 0.0:
                inside = uniform * math.exp(self.eta * self._log_gamma) + (1.0 - uniform)
                log_v = self._log_gamma - safe_log(inside) / self.eta
            else:
                inside = uniform + (1.0 - uniform) * math.exp(-self.eta * self._log_gamma)
                log_v = -np.log(inside) / self.eta
        v = np.exp(np.clip(log_v, self._log_gamma, 0.0))
        return 1 + rng.negative_binomial(self.eta + 1.0, v, size).astype(np.int64)

    def _given_no_failure(self, failure: float) -> Repetitions:
        gamma = self.gamma + (1.0 - self.gamma) * failure
        return replace(self, gamma=gamma) if gamma < 1.0 else super()._given_no_failure(failure)

    @property
    def means(self) -> tuple[float, float]:
        # For eta < 0, the mean grows slowly as gamma decreases, and gamma is at least 1e-300.
        return 1.0, 0.1 * replace(self, gamma=1e-280).mean if self.eta < 0.0 else math.inf

    def with_mean(self, mean: float) -> Repetitions:
        mean = checks.interval("mean", mean, 1.0, 1e15, closed_low=True)

        def excess(log_gamma: float) -> float:
            return math.log(replace(self, gamma=math.exp(log_gamma)).mean) - math.log(mean)

        few, many = -1e-9, math.log(1e-290)
        if excess(few) >= 0.0:
            return replace(self, gamma=math.exp(few))
        if excess(many) < 0.0:
            raise InvalidInput(
                f"mean must be reachable with eta = {self.eta:g}, got {checks.one_line(mean)}"
            )
        return replace(self, gamma=math.exp(safe_root(excess, few, many, ROOT_TOLERANCE)))

    @property
    def power_law(self) -> PowerLaw:
        return PowerLaw(self.eta, self.gamma)

    @property
    def profile_theorem(self) -> ProfileTheorem:
        def penalty(epsilon_1: FloatArray, delta_1: FloatArray) -> FloatArray:
            log_growth = safe_log((1.0 / self.gamma - 1.0) * delta_1)
            return (1.0 + self.eta) * np.logaddexp(epsilon_1, log_growth)

        return ProfileTheorem("Koskela, Redberg & Wang 2024, theorem 5.2", penalty)

    @property
    def renyi_theorem(self) -> RenyiTheorem:
        """The penalty (1+eta) min_b [(1-1/b) D_b + log(1/gamma)/b], which holds for every order."""

        def penalty(renyi: Function, profile: Function) -> Function:
            def at(order: FloatArray) -> FloatArray:
                return renyi(order) * (1.0 - 1.0 / order) - self._log_gamma / order

            constant = (1.0 + self.eta) * best_alpha(at)[1]
            return lambda alpha: np.full_like(alpha, constant)

        return RenyiTheorem("Papernot & Steinke 2022, theorem 2", penalty)
