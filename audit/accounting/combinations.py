"""Several mechanisms: all of them one after the other, or any one of them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit.accounting.composition import compose
from audit.accounting.curves import pair_of_profile
from audit.accounting.mechanism import Mechanism
from audit.accounting.pairs import DominatingPair, GaussianPair, LossLaw

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Composition(Mechanism):
    """Several mechanisms on the same data, one after the other.

    Attributes:
        parts: the mechanisms; each may depend on what the earlier ones released.
    """

    parts: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        checks.keep(self, parts=_mechanisms("parts", self.parts))

    @cached_property
    def _different(self) -> list[tuple[Mechanism, int]]:
        """Every part once, with how often it is there; one and the same object is one part."""
        times = Counter(id(part) for part in self.parts)
        return [(part, times[key]) for key, part in {id(part): part for part in self.parts}.items()]

    @property
    def gaussian_mu(self) -> float | None:
        each = [(part.gaussian_mu, times) for part, times in self._different]
        known = [mu * math.sqrt(times) for mu, times in each if mu is not None]
        return math.hypot(*known) if len(known) == len(each) else None

    @property
    def is_symmetric(self) -> bool:
        return all(part.is_symmetric for part, _ in self._different)

    @property
    def attained(self) -> bool:
        return all(part.attained for part, _ in self._different)

    @property
    def laws(self) -> tuple[tuple[LossLaw, int], ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return ((GaussianPair(mu), 1),)
        return tuple(
            (law, times * count) for part, times in self._different for law, count in part.laws
        )

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return (GaussianPair(mu),)
        pair = compose(self.laws)
        return (pair,) if self.is_symmetric else (pair, pair.mirrored)

    def renyi(self, alpha: ArrayLike) -> Array:
        return np.sum([times * part.renyi(alpha) for part, times in self._different], axis=0)

    @property
    def description(self) -> str:
        return "; then ".join(
            part.description if times == 1 else f"{times} times ({part.description})"
            for part, times in self._different
        )


@dataclass(frozen=True)
class AnyOf(Mechanism):
    """One of several mechanisms, whichever: as private as the least private at every epsilon.

    Attributes:
        candidates: the mechanisms.
    """

    candidates: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        checks.keep(self, candidates=_mechanisms("candidates", self.candidates))

    def renyi(self, alpha: ArrayLike) -> Array:
        return np.max([one.renyi(alpha) for one in self.candidates], axis=0)

    def delta(self, epsilon: ArrayLike) -> Array:
        return np.max([one.delta(epsilon) for one in self.candidates], axis=0)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        epsilons = self.profile_grid()
        return (pair_of_profile(epsilons, self.delta(epsilons)),)

    @property
    def description(self) -> str:
        return "any of: " + "; ".join(one.description for one in self.candidates)


@dataclass(frozen=True)
class OneOf(Mechanism):
    """One of several mechanisms, drawn with known chances; which one it was is released.

    Its profile is the mean of the single ones, not the largest: the law of (which, output) is a
    mixture with the same chances on either data set.

    Attributes:
        candidates: the mechanisms.
        chances: probabilities that sum to 1, one a mechanism.
    """

    candidates: tuple[Mechanism, ...]
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        found = _mechanisms("candidates", self.candidates)
        chances = tuple(
            checks.interval("chances", one, 0.0, 1.0, closed_high=True) for one in self.chances
        )
        if len(chances) != len(found) or abs(math.fsum(chances) - 1.0) > 1e-9:
            raise ValueError(
                f"chances must be {len(found)} probabilities that sum to 1, got {self.chances!r}"
            )
        checks.keep(self, candidates=found, chances=chances)

    def renyi(self, alpha: ArrayLike) -> Array:
        orders = np.asarray(alpha, dtype=np.float64)
        logs = [
            math.log(chance) + (orders - 1.0) * one.renyi(orders)
            for one, chance in zip(self.candidates, self.chances, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(logs, axis=0) / (orders - 1.0))

    def delta(self, epsilon: ArrayLike) -> Array:
        epsilons = np.asarray(epsilon, dtype=np.float64)
        # Each direction is a mixture of its own.
        sides = [
            np.sum([chance * one.profile(epsilons) for one, chance in side], axis=0)
            for side in (self._side(0), self._side(-1))
        ]
        return np.max(sides, axis=0)

    def _side(self, place: int) -> list[tuple[DominatingPair, float]]:
        pairs = (one.pairs[place] for one in self.candidates)
        return list(zip(pairs, self.chances, strict=True))

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        epsilons = self.profile_grid()
        return (pair_of_profile(epsilons, self.delta(epsilons)),)

    @property
    def description(self) -> str:
        each = (
            f"with chance {chance:.4g}: {one.description}"
            for one, chance in zip(self.candidates, self.chances, strict=True)
        )
        return "one of, drawn at random: " + "; ".join(each)


def _mechanisms(name: str, several: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    found = tuple(several) if isinstance(several, Iterable) else (several,)
    if not found:
        raise ValueError(f"{name} must name at least one mechanism, got none")
    for one in found:
        if not isinstance(one, Mechanism):
            raise ValueError(f"{name} must be mechanisms, got {one!r}")
    return found
