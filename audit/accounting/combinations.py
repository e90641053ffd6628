"""Several mechanisms: all of them one after the other, or any one of them."""

import math
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

    @property
    def gaussian_mu(self) -> float | None:
        each = [part.gaussian_mu for part in self.parts]
        known = [mu for mu in each if mu is not None]
        return math.hypot(*known) if len(known) == len(each) else None

    @property
    def attained(self) -> bool:
        return all(part.attained for part in self.parts)

    @property
    def laws(self) -> tuple[tuple[LossLaw, int], ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return ((GaussianPair(mu), 1),)
        return tuple(law for part in self.parts for law in part.laws)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return (GaussianPair(mu),)
        pair = compose(self.laws)
        both = any(len(part.pairs) > 1 for part in self.parts)
        return (pair, pair.mirrored) if both else (pair,)

    def renyi(self, alpha: ArrayLike) -> Array:
        return np.sum([part.renyi(alpha) for part in self.parts], axis=0)

    @property
    def description(self) -> str:
        return "; then ".join(part.description for part in self.parts)


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


def _mechanisms(name: str, several: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    found = tuple(several) if isinstance(several, Iterable) else (several,)
    if not found:
        raise ValueError(f"{name} must name at least one mechanism, got none")
    for one in found:
        if not isinstance(one, Mechanism):
            raise ValueError(f"{name} must be mechanisms, got {one!r}")
    return found
