"""Base mechanisms: what one run costs."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.accounting.conversion import SMALLEST_DELTA, reach, renyi_to_epsilon, solve_epsilon
from audit.accounting.pairs import (
    Atoms,
    DiscretePair,
    DominatingPair,
    GaussianPair,
    LaplacePair,
    LossLaw,
    LossPair,
)

Array = NDArray[np.float64]

NEIGHBOURS = ("add-remove", "replace-one")
"""Neighbouring data sets: one record more or less, or one record replaced."""

_GIVEN = "neighbours are those for which its parameters hold"

_LARGEST_PURE = 1e6


class Mechanism(ABC):
    """Privacy of one run."""

    _words: ClassVar[str] = ""

    @property
    def gaussian_mu(self) -> float | None:
        """The mu of a Gaussian pair, where the mechanism is exactly Gaussian; else None."""
        return None

    @property
    @abstractmethod
    def pairs(self) -> tuple[DominatingPair, ...]:
        """The dominating pairs of both directions; one if it is its own mirror image."""

    @property
    def laws(self) -> tuple[tuple[LossLaw, int], ...]:
        """The runs that make up the first pair, for composition; the second is its mirror image."""
        return ((self.pairs[0], 1),)

    @property
    def attained(self) -> bool:
        """Whether some neighbours really have the first pair, so that it can be played."""
        return False

    @property
    def description(self) -> str:
        """The mechanism in words, and its neighbours."""
        return self._words.format(**vars(self)) + f"; {_GIVEN}"

    def renyi(self, alpha: ArrayLike) -> Array:
        """Renyi divergence of orders [n] > 1, the larger direction."""
        orders = np.asarray(alpha, dtype=np.float64)
        return np.max([pair.renyi(orders) for pair in self.pairs], axis=0)

    def delta(self, epsilon: ArrayLike) -> Array:
        """Privacy profile delta(epsilon), the larger direction."""
        return np.max([pair.profile(epsilon) for pair in self.pairs], axis=0)

    def profile_grid(self, points: int = 2049) -> Array:
        """Epsilons [n] from 0 to where the profile is negligible or no longer falls."""
        return np.linspace(0.0, reach(lambda epsilon: float(self.delta(epsilon))), points)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta by the exact profile, rounded up."""
        return solve_epsilon(lambda epsilon: float(self.delta(epsilon)), delta)

    def renyi_epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta by Renyi divergences, as the papers account."""
        return renyi_to_epsilon(self.renyi, delta)


@dataclass(frozen=True)
class GaussianMechanism(Mechanism):
    """Mu-Gaussian DP: full-batch DP-SGD has mu = sqrt(steps) / noise_multiplier.

    Attributes:
        mu: distance of the two means in standard deviations, in (0, 1000].
    """

    mu: float

    _words: ClassVar[str] = "Gaussian, mu = {mu:.6g}"

    def __post_init__(self) -> None:
        checks.interval("mu", self.mu, 0.0, 1e3, closed_high=True)

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def attained(self) -> bool:
        return True

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (GaussianPair(self.mu),)


@dataclass(frozen=True)
class DiscreteMechanism(Mechanism):
    """A mechanism with finitely many outputs and one neighbouring pair of laws, both directions.

    Attributes:
        p: probabilities [n] on one data set.
        q: probabilities [n] on its neighbour.
    """

    p: Array
    q: Array

    _words: ClassVar[str] = "finitely many outputs, both laws given"

    def __post_init__(self) -> None:
        DiscretePair(self.p, self.q)

    @property
    def attained(self) -> bool:
        return True

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return DiscretePair(self.p, self.q), DiscretePair(self.q, self.p)


@dataclass(frozen=True)
class PureDp(Mechanism):
    """Any (epsilon, 0)-DP mechanism: randomised response dominates it (Kairouz et al. 2015).

    Attributes:
        epsilon_0: the pure privacy parameter, in (0, 1e6].
    """

    epsilon_0: float

    _words: ClassVar[str] = "epsilon-DP, epsilon = {epsilon_0:.6g}"

    def __post_init__(self) -> None:
        checks.interval("epsilon_0", self.epsilon_0, 0.0, _LARGEST_PURE, closed_high=True)

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return ApproximateDp(self.epsilon_0, 0.0).pairs


@dataclass(frozen=True)
class ApproximateDp(Mechanism):
    """Any (epsilon, delta)-DP mechanism, by the pair that dominates it (Kairouz et al. 2015).

    Attributes:
        epsilon_0: in (0, 1e6].
        delta_0: in [0, 1).
    """

    epsilon_0: float
    delta_0: float

    _words: ClassVar[str] = "(epsilon, delta)-DP, epsilon = {epsilon_0:.6g}, delta = {delta_0:.3g}"

    def __post_init__(self) -> None:
        checks.interval("epsilon_0", self.epsilon_0, 0.0, _LARGEST_PURE, closed_high=True)
        checks.interval("delta_0", self.delta_0, 0.0, 1.0, closed_low=True)

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        loss = np.array([-self.epsilon_0, self.epsilon_0])
        log_mass = special.log_expit(loss) + math.log1p(-self.delta_0)
        return (LossPair(Atoms(loss, log_mass, self.delta_0, self.delta_0)),)


@dataclass(frozen=True)
class RandomisedResponse(Mechanism):
    """One of several options told truly with e^epsilon_0 times the chance of each other option.

    Attributes:
        epsilon_0: in (0, 1e6].
        options: number of options, >= 2.
    """

    epsilon_0: float
    options: int = 2

    _words: ClassVar[str] = "randomised response, epsilon = {epsilon_0:.6g}, {options} options"

    def __post_init__(self) -> None:
        checks.interval("epsilon_0", self.epsilon_0, 0.0, _LARGEST_PURE, closed_high=True)
        checks.whole("options", self.options, 2)

    @property
    def attained(self) -> bool:
        return True

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        log_lie = -float(np.logaddexp(self.epsilon_0, math.log(self.options - 1.0)))
        loss = [-self.epsilon_0, self.epsilon_0]
        log_mass = [log_lie, log_lie + self.epsilon_0]
        if self.options > 2:
            loss.insert(1, 0.0)
            log_mass.insert(1, log_lie + math.log(self.options - 2.0))
        return (LossPair(Atoms(np.array(loss), np.array(log_mass))),)


@dataclass(frozen=True)
class LaplaceMechanism(Mechanism):
    """Laplace noise.

    Attributes:
        scale: of the noise, in units of the sensitivity, >= 0.002.
    """

    scale: float

    _words: ClassVar[str] = "Laplace noise of scale {scale:.6g} sensitivities"

    def __post_init__(self) -> None:
        checks.interval("scale", self.scale, 0.002, closed_low=True)

    @property
    def attained(self) -> bool:
        return True

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (LaplacePair(self.scale),)


@dataclass(frozen=True)
class PrivacyProfile(Mechanism):
    """Any mechanism that is (epsilon_i, delta_i)-DP for every i.

    The pair is the least private of all such mechanisms: its profile is the lower convex hull of
    the points, as a function of e^epsilon, and beyond the last epsilon delta stays.

    Attributes:
        epsilons: [n] >= 0, strictly increasing.
        deltas: [n] in [0, 1].
    """

    epsilons: Array
    deltas: Array

    def __post_init__(self) -> None:
        epsilons, deltas = _curve("epsilons", self.epsilons, "deltas", self.deltas, 0.0)
        if np.any(deltas > 1.0):
            raise ValueError(f"deltas must be in [0, 1], got {deltas.max():g}")
        object.__setattr__(self, "epsilons", epsilons)
        object.__setattr__(self, "deltas", deltas)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (_pair_of_profile(self.epsilons, self.deltas),)

    @property
    def description(self) -> str:
        return f"a privacy profile of {len(self.epsilons)} points; {_GIVEN}"


@dataclass(frozen=True)
class RenyiCurve(Mechanism):
    """Any mechanism whose Renyi divergences are bounded at some orders, both directions.

    Between two orders (alpha - 1) D_alpha is convex, and at order 1 it is 0: chords bound it. Above
    the last order nothing is known.

    Attributes:
        orders: [n] > 1, strictly increasing.
        divergences: [n] >= 0.
    """

    orders: Array
    divergences: Array

    def __post_init__(self) -> None:
        orders, divergences = _curve("orders", self.orders, "divergences", self.divergences, 1.0)
        if orders[0] <= 1.0:
            raise ValueError(f"orders must be > 1, got {orders[0]:g}")
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "divergences", divergences)

    def renyi(self, alpha: ArrayLike) -> Array:
        rest = np.asarray(alpha, dtype=np.float64) - 1.0
        known = np.append(0.0, self.orders - 1.0)
        log_moments = np.append(0.0, self.divergences) * known
        return np.interp(rest, known, log_moments, right=np.inf) / rest

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (_pair_of_renyi(self.renyi),)

    @property
    def description(self) -> str:
        return f"Renyi divergences at {len(self.orders)} orders; {_GIVEN}"


@dataclass(frozen=True)
class ZeroConcentratedDp(Mechanism):
    """Any rho-zCDP mechanism: D_alpha <= rho alpha for every order (Bun & Steinke 2016).

    Attributes:
        rho: in (0, 1e5].
    """

    rho: float

    _words: ClassVar[str] = "rho-zCDP, rho = {rho:.6g}"

    def __post_init__(self) -> None:
        checks.interval("rho", self.rho, 0.0, 1e5, closed_high=True)

    def renyi(self, alpha: ArrayLike) -> Array:
        return self.rho * np.asarray(alpha, dtype=np.float64)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        return (_pair_of_renyi(self.renyi),)


@dataclass(frozen=True)
class AnyOf(Mechanism):
    """One of several mechanisms, whichever: as private as the least private at every epsilon.

    Attributes:
        candidates: the mechanisms.
    """

    candidates: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("candidates must name at least one mechanism, got none")
        object.__setattr__(self, "candidates", tuple(self.candidates))

    def renyi(self, alpha: ArrayLike) -> Array:
        return np.max([one.renyi(alpha) for one in self.candidates], axis=0)

    def delta(self, epsilon: ArrayLike) -> Array:
        return np.max([one.delta(epsilon) for one in self.candidates], axis=0)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        epsilons = self.profile_grid()
        return (_pair_of_profile(epsilons, self.delta(epsilons)),)

    @property
    def description(self) -> str:
        return "any of: " + "; ".join(one.description for one in self.candidates)


def _curve(x_name: str, x: ArrayLike, y_name: str, y: ArrayLike, low: float) -> tuple[Array, Array]:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or np.any(np.diff(x) <= 0) or not np.all(x >= low):
        raise ValueError(f"{x_name} must be increasing numbers >= {low:g}, got {x!r}")
    if not np.isfinite(x).all():
        raise ValueError(f"{x_name} must be finite, got {x!r}")
    if y.shape != x.shape or not np.all(y >= 0):
        raise ValueError(f"{y_name} must be {x.size} numbers >= 0, got {y!r}")
    return x, y


def _pair_of_renyi(renyi: Callable[[Array], Array]) -> LossPair:
    """The pair of the profile that a Renyi curve gives, sampled finely: chords only add.

    delta = min over alpha of e^((alpha-1) (D - eps)) (1 - 1/alpha)^(alpha-1) / alpha: the inverse
    of the conversion `renyi_to_epsilon`.
    """
    most = renyi_to_epsilon(renyi, SMALLEST_DELTA)
    epsilons = np.linspace(0.0, most, 2049)
    alpha = 1.0 + np.geomspace(1e-5, 1e9, 2801)
    rest, divergences = alpha - 1.0, renyi(alpha)
    usable = np.isfinite(divergences)
    alpha, rest, divergences = alpha[usable], rest[usable], divergences[usable]
    constant = rest * (divergences + np.log1p(-1.0 / alpha)) - np.log(alpha)
    log_delta = np.array([float(np.min(constant - rest * epsilon)) for epsilon in epsilons])
    return _pair_of_profile(epsilons, np.exp(np.minimum(log_delta, 0.0)))


def _pair_of_profile(epsilons: Array, deltas: Array) -> LossPair:
    """The self-mirrored pair whose profile is the lower convex hull of points (e^eps, delta).

    A slope of the hull is minus a tail of P'; the atoms at negative losses are the mirror image of
    those at positive ones, and what is left of the mass has loss 0.
    """
    # A point and its mirror image bound the profile at 0 too (the total variation distance).
    # (2 delta + e^eps - 1)/(1 + e^eps), written so that a large eps overflows nothing.
    small = np.exp(-epsilons)
    at_zero = float(np.min((2.0 * deltas * small - np.expm1(-epsilons)) / (1.0 + small)))
    later = epsilons > 0
    points = [(0.0, min(at_zero, 1.0))]
    points += zip(epsilons[later].tolist(), deltas[later].tolist(), strict=True)
    hull: list[tuple[float, float]] = []
    for point in points:
        if hull and point[1] >= hull[-1][1]:
            continue  # a larger epsilon at no smaller delta says nothing
        while len(hull) > 1 and _log_slope(hull[-1], point) >= _log_slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    left = hull[-1][1]
    loss = np.array([epsilon for epsilon, _ in hull[1:]])
    log_tail = np.array([_log_slope(*ends) for ends in itertools.pairwise(hull)])
    with np.errstate(divide="ignore"):
        # q_i = tail_i - tail_{i+1} and p_i = e^loss q_i.
        following = np.append(log_tail[1:], -np.inf) - log_tail
        log_q = log_tail + np.log(-np.expm1(np.minimum(following, 0.0)))
    log_p = log_q + loss
    rest = max(1.0 - left - float(np.exp(log_p).sum() + np.exp(log_q).sum()), 0.0)
    with np.errstate(divide="ignore"):
        log_mass = np.concatenate([log_q[::-1], [math.log(rest) if rest > 0 else -np.inf], log_p])
    kept = log_mass > -np.inf
    kept[len(loss)] = True
    return LossPair(
        Atoms(np.concatenate([-loss[::-1], [0.0], loss])[kept], log_mass[kept], left, left)
    )


def _log_slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """log of (delta - delta') / (e^eps' - e^eps)."""
    (epsilon, delta), (later, smaller) = one, other
    return math.log(delta - smaller) - later - math.log(-math.expm1(epsilon - later))


def read_curve(path: str | Path) -> tuple[Array, Array]:
    """Two columns of numbers from a csv file (commas or spaces; a heading is skipped).

    Raises:
        ValueError: the file is missing, or a line holds no two numbers.
    """
    rows = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"path must be a readable csv file, got {str(path)!r}") from error
    for number, line in enumerate(lines):
        fields = line.replace(",", " ").split()
        try:
            x, y = (float(field) for field in fields)
            rows.append((x, y))
        except ValueError:
            if fields and number > 0:
                raise ValueError(
                    f"path must hold two numbers per line, got {line!r} in {str(path)!r}"
                ) from None
    if not rows:
        raise ValueError(f"path must hold two numbers per line, got none in {str(path)!r}")
    x, y = np.array(rows).T
    return x, y


_BASES = ("gaussian", "laplace", "response", "pure", "approximate", "zcdp", "renyi", "profile")


def parse(spec: str) -> Mechanism:
    """Reads a base mechanism from text.

    Args:
        spec: `gaussian:MU`, `laplace:SCALE`, `response:EPSILON[,OPTIONS]`, `pure:EPSILON`,
            `approximate:EPSILON,DELTA`, `zcdp:RHO`, `renyi:FILE` (orders and divergences in two
            columns) or `profile:FILE` (epsilons and deltas).

    Raises:
        ValueError: an unknown mechanism, a wrong number of parameters, or one out of its range.

    Example:
        >>> parse("pure:0.5")
        PureDp(epsilon_0=0.5)
    """
    name, _, text = spec.strip().partition(":")
    checks.one_of("base", name, _BASES)
    if name == "renyi":
        return RenyiCurve(*read_curve(text))
    if name == "profile":
        return PrivacyProfile(*read_curve(text))
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    allowed = {"approximate": (2,), "response": (1, 2)}.get(name, (1,))
    if len(numbers) not in allowed:
        count = " or ".join(map(str, allowed))
        raise ValueError(f"base {name!r} takes {count} numbers after the colon, got {text!r}")
    if name == "response":
        options = checks.whole("options", numbers[1], 2) if len(numbers) > 1 else 2
        return RandomisedResponse(numbers[0], options)
    if name == "approximate":
        return ApproximateDp(numbers[0], numbers[1])
    kinds: dict[str, Callable[[float], Mechanism]] = {
        "gaussian": GaussianMechanism,
        "laplace": LaplaceMechanism,
        "pure": PureDp,
        "zcdp": ZeroConcentratedDp,
    }
    return kinds[name](numbers[0])
