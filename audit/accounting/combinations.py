"""Combinations of mechanisms: composition, the worst of several, and a random mixture."""

import itertools
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.accounting.composition import compose
from audit.accounting.curves import pair_of_profile
from audit.accounting.dpsgd import DpSgd, RandomAllocation
from audit.accounting.mechanism import GaussianMechanism, LaplaceMechanism, Mechanism
from audit.accounting.pairs import (
    DominatingPair,
    GaussianPair,
    LossPair,
    PrivacyLoss,
    PrivacyLossPmf,
)
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import SUMS_TO_ONE, FloatArray

_MAX_TERMS = 4  # A part that itself has more terms is composed once and used as one term.
_MAX_ARRANGEMENTS = 16

Arrangement = list[tuple[DominatingPair, int]]
"""The pairs that represent the mechanisms, in their order, and the number of runs of each."""


def arrangements(several: Sequence[tuple[Mechanism, int]]) -> list[Arrangement]:
    """All combinations of directions that repeated mechanisms can have on two data sets.

    A directed mechanism uses its first pair if the first data set has the record, otherwise its
    last. Every run of any other mechanism may use either pair. The first arrangement and the last
    are mirror images, and so on inwards. If there are more than 16, the self-mirrored pair of the
    mechanism's privacy profile replaces both directions, because it dominates them.
    """
    free = [not mechanism.is_directed for mechanism, _ in several]
    fixed_turns = any(
        mechanism.is_directed and not mechanism.is_symmetric for mechanism, _ in several
    )
    ways = math.prod(n + 1 for (_, n), is_free in zip(several, free, strict=True) if is_free)
    many = ways > _MAX_ARRANGEMENTS
    choices = [
        range(n + 1) if is_free and not many else (n,)
        for (_, n), is_free in zip(several, free, strict=True)
    ]
    every_arrangement = []
    for turned, *counts in itertools.product((False, True) if fixed_turns else (False,), *choices):
        arrangement: Arrangement = []
        for (mechanism, n), is_free, k in zip(several, free, counts, strict=True):
            if not is_free:
                arrangement.append((mechanism.pairs[-1 if turned else 0], n))
            elif many:
                arrangement.append((_both_directions(mechanism), n))
            else:
                near, far = _ends(mechanism)
                arrangement += [(pair, runs) for pair, runs in ((near, k), (far, n - k)) if runs]
        every_arrangement.append(arrangement)
    return every_arrangement


def _ends(mechanism: Mechanism) -> list[DominatingPair]:
    """The pairs of both directions, in an order that does not depend on which is given first."""
    ends = [mechanism.pairs[0], mechanism.pairs[-1]]
    with_content = [(_content(pair.pmf), pair) for pair in ends if isinstance(pair, LossPair)]
    return (
        ends
        if len(with_content) < 2
        else [pair for _, pair in sorted(with_content, key=lambda end: end[0])]
    )


def _both_directions(mechanism: Mechanism) -> DominatingPair:
    epsilons = mechanism.profile_grid()
    return pair_of_profile(epsilons, mechanism.delta(epsilons))


def kinds(mechanisms: Sequence[Mechanism]) -> list[tuple[Mechanism, int]]:
    """Distinct mechanisms in their first order, with their counts.

    Undirected mechanisms with the same two pairs count as equal, unhashable ones by identity.
    """
    objects = {id(mechanism): mechanism for mechanism in mechanisms}
    counted: dict[Hashable, tuple[Mechanism, int]] = {}
    # Of a million mechanisms, most are the same few objects, whose keys are slow.
    for place, count in Counter(map(id, mechanisms)).items():
        key = _key(objects[place])
        representative, before = counted.get(key, (objects[place], 0))
        counted[key] = representative, before + count
    return list(counted.values())


def _key(mechanism: Mechanism) -> Hashable:
    """A key that equal mechanisms share."""
    if not mechanism.is_directed:
        ends = [_content(pair.pmf) for pair in _ends(mechanism) if isinstance(pair, LossPair)]
        if len(ends) == 2:
            return tuple(ends)
    try:
        hash(mechanism)
    except TypeError:
        return id(mechanism)
    return mechanism


def _content(pmf: PrivacyLossPmf) -> tuple[bytes, bytes, float, float]:
    return pmf.loss.tobytes(), pmf.log_mass.tobytes(), pmf.p_only, pmf.q_only


class _Combination(Mechanism):
    """Mechanisms whose directions may be combined in more than one way."""

    @property
    @abstractmethod
    def _members(self) -> tuple[Mechanism, ...]:
        """The mechanisms, with repetitions."""

    @cached_property
    def _is_ambiguous(self) -> bool:
        """Whether the directions can be combined in more than one way."""
        asymmetric = [member for member in self._members if not member.is_symmetric]
        return len(asymmetric) > 1 and not all(member.is_directed for member in asymmetric)

    @cached_property
    def is_symmetric(self) -> bool:
        return self._is_ambiguous or all(member.is_symmetric for member in self._members)

    @cached_property
    def is_directed(self) -> bool:
        return self._is_ambiguous or all(member.is_directed for member in self._members)

    @cached_property
    def attained(self) -> bool:
        return not self._is_ambiguous and all(member.attained for member in self._members)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return (GaussianPair(mu),)
        if self._is_ambiguous:
            return (_both_directions(self),)
        pair = compose(self.loss_terms)
        return (pair,) if self.is_symmetric else (pair, pair.mirrored)


@dataclass(frozen=True)
class Composition(_Combination):
    """Several mechanisms that run on the same data, one after the other.

    If it is not known which data set has the record (`Mechanism.is_directed`), the cost is the
    largest over all combinations of directions.

    Attributes:
        parts: the mechanisms; each may depend on the outputs of earlier ones.

    Example:
        >>> from audit.accounting import GaussianMechanism, LaplaceMechanism
        >>> both = Composition((GaussianMechanism(0.3), GaussianMechanism(0.4)))
        >>> both.gaussian_mu
        0.5
        >>> round(Composition((GaussianMechanism(0.5), LaplaceMechanism(10.0))).epsilon(1e-5), 3)
        2.032
    """

    parts: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        checks.store_validated(self, parts=_mechanisms("parts", self.parts))

    @property
    def _members(self) -> tuple[Mechanism, ...]:
        return self.parts

    @cached_property
    def _different(self) -> list[tuple[Mechanism, int]]:
        return kinds(self.parts)

    @property
    def gaussian_mu(self) -> float | None:
        with_times = [(mechanism.gaussian_mu, times) for mechanism, times in self._different]
        scaled_mus = [mu * math.sqrt(times) for mu, times in with_times if mu is not None]
        return math.hypot(*scaled_mus) if len(scaled_mus) == len(with_times) else None

    @property
    def pure_epsilon(self) -> float:
        return math.fsum(mechanism.pure_epsilon for mechanism in self.parts)

    @property
    def loss_terms(self) -> tuple[tuple[PrivacyLoss, int], ...]:
        mu = self.gaussian_mu
        if mu is not None:
            return ((GaussianPair(mu), 1),)
        if self._is_ambiguous:
            return ((self.pairs[0], 1),)
        return tuple(
            (term, times * count)
            for mechanism, times in self._different
            for term, count in (
                mechanism.loss_terms
                if len(mechanism.loss_terms) <= _MAX_TERMS
                else ((mechanism.pairs[0], 1),)
            )
        )

    @cached_property
    def _in_all_directions(self) -> tuple[LossPair, ...]:
        """The composition in every arrangement of the directions of its parts."""
        arrangements_of_terms = arrangements(self._different)
        # The second half are mirror images.
        pairs = [
            compose(terms)
            for terms in arrangements_of_terms[: (len(arrangements_of_terms) + 1) // 2]
        ]
        return tuple(
            pair for pair_of_half in pairs for pair in (pair_of_half, pair_of_half.mirrored)
        )

    def delta(self, epsilon: ArrayLike) -> FloatArray:
        if not self._is_ambiguous:
            return super().delta(epsilon)
        epsilons = checks.numbers("epsilon", epsilon)
        return np.asarray(
            np.max([pair.profile(epsilons) for pair in self._in_all_directions], axis=0)
        )

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        return np.sum(
            [times * mechanism.renyi(alpha) for mechanism, times in self._different], axis=0
        )

    @property
    def description(self) -> str:
        return "; then ".join(
            mechanism.description if times == 1 else f"{times} times ({mechanism.description})"
            for mechanism, times in self._different
        )


@dataclass(frozen=True)
class WorstOf(Mechanism):
    """One of several mechanisms, where it is unknown which: the largest of their deltas.

    Attributes:
        candidates: the mechanisms.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> either = WorstOf((GaussianMechanism(0.5), GaussianMechanism(1.0)))
        >>> either.epsilon(1e-5) == GaussianMechanism(1.0).epsilon(1e-5)
        True
    """

    candidates: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        checks.store_validated(self, candidates=_mechanisms("candidates", self.candidates))

    @cached_property
    def _least_private(self) -> Mechanism | None:
        """A candidate of which all others are known to be post-processings, or None."""
        distinct = self._distinct
        return next(
            (
                candidate
                for candidate in distinct
                if all(_dominates(candidate, compared) for compared in distinct)
            ),
            None,
        )

    @property
    def _distinct(self) -> list[Mechanism]:
        """The candidates without repetitions of the same object."""
        return list({id(candidate): candidate for candidate in self.candidates}.values())

    @property
    def gaussian_mu(self) -> float | None:
        return None if self._least_private is None else self._least_private.gaussian_mu

    @property
    def pure_epsilon(self) -> float:
        return max(candidate.pure_epsilon for candidate in self.candidates)

    @property
    def is_directed(self) -> bool:
        return self._least_private is None or self._least_private.is_directed

    @property
    def loss_terms(self) -> tuple[tuple[PrivacyLoss, int], ...]:
        return super().loss_terms if self._least_private is None else self._least_private.loss_terms

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        return np.max([candidate.renyi(alpha) for candidate in self._distinct], axis=0)

    def delta(self, epsilon: ArrayLike) -> FloatArray:
        return np.max([candidate.delta(epsilon) for candidate in self._distinct], axis=0)

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        if self._least_private is not None:
            return self._least_private.pairs
        # A pair whose profile is at least that of each candidate dominates all of them.
        epsilons = self.profile_grid()
        return (pair_of_profile(epsilons, self.delta(epsilons)),)

    @property
    def description(self) -> str:
        return "any of: " + "; ".join(candidate.description for candidate in self.candidates)


def _dominates(mechanism: Mechanism, compared: Mechanism) -> bool:
    """Whether `compared` is known to be a post-processing of the mechanism."""
    if mechanism == compared:
        return True
    if mechanism.gaussian_mu is not None and compared.gaussian_mu is not None:
        return mechanism.gaussian_mu >= compared.gaussian_mu
    # Post-processing can add noise, leave out steps, and thin each sampled batch.
    return (
        isinstance(mechanism, DpSgd)
        and isinstance(compared, DpSgd)
        and (mechanism.distance, mechanism.group_size) == (compared.distance, compared.group_size)
        and mechanism.noise_multiplier <= compared.noise_multiplier
        and mechanism.steps >= compared.steps
        and mechanism.sampling_rate >= compared.sampling_rate
    )


class Candidates(WorstOf):
    """The mechanisms of the candidates of a grid, if they differ.

    As the mechanism of a single run, it is the worst of them.

    Example:
        >>> from audit.accounting import PureDp
        >>> Candidates((PureDp(0.1), PureDp(0.1), PureDp(0.2))).pure_epsilon
        0.2
    """

    @property
    def description(self) -> str:
        counts = Counter(candidate.description for candidate in self.candidates)
        return "candidates: " + "; ".join(f"{n} x ({words})" for words, n in counts.items())


@dataclass(frozen=True)
class Mixture(_Combination):
    """One of several mechanisms, drawn with known probabilities; its identity is released.

    The privacy profile is the mean of the candidates' profiles, because the index of the candidate
    has the same distribution on both data sets.

    Attributes:
        candidates: the mechanisms.
        chances: probability of each, in (0, 1], with a sum of at most 1. With the remaining
            probability, nothing runs.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> drawn = Mixture((GaussianMechanism(0.5), GaussianMechanism(1.0)), (0.9, 0.1))
        >>> round(drawn.epsilon(1e-3), 3)  # between the two candidates
        2.318
    """

    candidates: tuple[Mechanism, ...]
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        candidates = _mechanisms("candidates", self.candidates)
        chances = tuple(
            checks.interval("chances", chance, 0.0, 1.0, closed_high=True)
            for chance in self.chances
        )
        if len(chances) != len(candidates):
            raise InvalidInput(
                f"chances must be {len(candidates)} probabilities, "
                f"got {checks.one_line(self.chances)}"
            )
        if math.fsum(chances) > 1.0 + SUMS_TO_ONE:
            raise InvalidInput(
                f"chances must sum to at most 1, got {checks.one_line(self.chances)}"
            )
        checks.store_validated(self, candidates=candidates, chances=chances)

    @property
    def idle(self) -> float:
        """Probability that nothing runs."""
        idle = 1.0 - math.fsum(self.chances)
        return idle if idle > 1e-12 else 0.0

    @property
    def pure_epsilon(self) -> float:
        return max(candidate.pure_epsilon for candidate in self.candidates)

    @cached_property
    def _directions(self) -> list[tuple[DominatingPair, ...]]:
        return directions(self.candidates)

    @property
    def _members(self) -> tuple[Mechanism, ...]:
        return self.candidates

    @property
    def loss_terms(self) -> tuple[tuple[PrivacyLoss, int], ...]:
        if self._is_ambiguous:
            return ((self.pairs[0], 1),)
        return ((_Drawn(self._directions[0], self.chances, self.idle), 1),)

    def renyi(self, alpha: ArrayLike) -> FloatArray:
        orders = checks.numbers("alpha", alpha, 1.0)
        return _mean_divergence(
            [candidate.renyi(orders) for candidate in self.candidates], self.chances, orders
        )

    def delta(self, epsilon: ArrayLike) -> FloatArray:
        epsilon = checks.numbers("epsilon", epsilon)
        nothing = -np.expm1(np.minimum(epsilon, 0.0))
        deltas = [
            np.sum(
                [
                    c * candidate.profile(epsilon)
                    for c, candidate in zip(self.chances, side, strict=True)
                ],
                0,
            )
            for side in self._directions
        ]
        return np.asarray(np.max(deltas, axis=0) + self.idle * nothing)

    @property
    def description(self) -> str:
        drawn = zip(self.chances, self.candidates, strict=True)
        words = [
            f"with chance {chance:.4g}: {candidate.description}" for chance, candidate in drawn
        ]
        nothing = [f"with chance {self.idle:.4g}: nothing"] if self.idle else []
        return "one of, drawn at random: " + "; ".join([*words, *nothing])


@dataclass(frozen=True)
class _Drawn(PrivacyLoss):
    """Privacy loss of a mixture whose component is known: the union of the components' losses."""

    components: tuple[PrivacyLoss, ...]
    chances: tuple[float, ...]
    idle: float

    def renyi(self, alpha: FloatArray) -> FloatArray:
        return _mean_divergence(
            [component.renyi(alpha) for component in self.components], self.chances, alpha
        )

    def atoms(self, spacing: float) -> PrivacyLossPmf:
        pmfs = [component.atoms(spacing) for component in self.components]
        loss = [pmf.loss for pmf in pmfs]
        log_mass = [
            pmf.log_mass + math.log(chance) for pmf, chance in zip(pmfs, self.chances, strict=True)
        ]
        if self.idle > 0.0:
            loss.append(np.zeros(1))
            log_mass.append(np.log([self.idle]))
        p_only, q_only = (
            sum(c * mass for c, mass in zip(self.chances, side, strict=True))
            for side in ([pmf.p_only for pmf in pmfs], [pmf.q_only for pmf in pmfs])
        )
        return PrivacyLossPmf(np.concatenate(loss), np.concatenate(log_mass), p_only, q_only)


def _mean_divergence(
    divergences: list[FloatArray], chances: tuple[float, ...], alpha: FloatArray
) -> FloatArray:
    """Renyi divergence of a mixture with a known component: the moments are averaged."""
    order_less_one = np.asarray(alpha, dtype=np.float64) - 1.0
    logs = [
        math.log(c) + order_less_one * divergence
        for c, divergence in zip(chances, divergences, strict=True)
    ]
    idle = max(1.0 - math.fsum(chances), 0.0)
    if idle > 0.0:
        logs.append(np.full_like(order_less_one, math.log(idle)))
    return np.asarray(np.maximum(special.logsumexp(np.stack(logs), axis=0), 0.0) / order_less_one)


def relations(base: Mechanism) -> frozenset[str]:
    """Neighbouring relations of the parts of a mechanism.

    Example:
        >>> from audit.accounting import DpSgd, GaussianMechanism
        >>> sorted(relations(Composition((GaussianMechanism(1.0), DpSgd(1.0, 10)))))
        ['add-remove']
    """
    return frozenset(str(relation) for relation in _stated(base, "neighbours"))


def group_size(base: Mechanism) -> int:
    """Group size that the parts of a mechanism protect, 1 if none states it.

    Raises:
        InvalidInput: the parts state different numbers.

    Example:
        >>> from audit.accounting import DpSgd
        >>> group_size(Composition((DpSgd(1.0, 10, group_size=3), DpSgd(2.0, 10, group_size=3))))
        3
    """
    stated = _stated(base, "group_size") or {1}
    if len(stated) > 1:
        sizes = ", ".join(map(str, sorted(stated)))
        raise InvalidInput(f"group_size must be the same in all parts of a mechanism, got {sizes}")
    return int(next(iter(stated)))


def _stated(base: Mechanism, name: str) -> frozenset[Any]:
    """The values of an attribute in the parts of a mechanism that have it."""
    if isinstance(base, WorstOf | _Combination):
        members = base.candidates if isinstance(base, WorstOf) else base._members
        return frozenset().union(*(_stated(member, name) for member in members))
    return frozenset({getattr(base, name)}) if hasattr(base, name) else frozenset()


def directions(several: Iterable[Mechanism]) -> list[tuple[DominatingPair, ...]]:
    """Dominating pairs of several mechanisms, one tuple for each combination of their directions.

    Example:
        >>> from audit.accounting import DiscreteMechanism, GaussianMechanism
        >>> len(directions([GaussianMechanism(0.5), GaussianMechanism(1.0)]))
        1
        >>> one, other = (DiscreteMechanism([p, 1.0 - p], [0.9, 0.1]) for p in (0.99, 0.8))
        >>> len(directions([one, other]))
        4
    """
    return [
        tuple(pair for pair, _ in arrangement)
        for arrangement in arrangements([(mechanism, 1) for mechanism in several])
    ]


def any_fixed(base: Mechanism) -> Mechanism:
    """One run with any fixed candidate: the worst candidate of a mixture."""
    return WorstOf(base.candidates) if isinstance(base, Mixture) else base


def kinds_of_candidates(
    base: Mechanism, candidates: int, protocol: str
) -> list[tuple[Mechanism, int]]:
    """Kinds of candidates of a grid, and the number of candidates of each kind.

    Args:
        base: the mechanisms of the candidates, or of each candidate.
        candidates: size of the grid.
        protocol: the grid, in the error.
    """
    if not isinstance(base, Candidates):
        return [(base, candidates)]
    if len(base.candidates) != candidates:
        raise InvalidInput(
            f"base must have {candidates} candidates, as {protocol} has, got {len(base.candidates)}"
        )
    return kinds(base.candidates)


def scale_noise(base: Mechanism, factor: float) -> Mechanism:
    """The mechanism with `factor` times as much noise in each of its parts.

    Args:
        base: DP-SGD, a Gaussian or Laplace mechanism, or a combination of them.
        factor: > 0.

    Raises:
        NotApplicable: the noise of the mechanism is not a parameter.

    Example:
        >>> scale_noise(GaussianMechanism(1.0), 4.0)
        GaussianMechanism(mu=0.25)
    """
    factor = checks.interval("factor", factor, 0.0)
    if factor == 1.0:
        return base
    if isinstance(base, GaussianMechanism):
        return GaussianMechanism(base.mu / factor)
    if isinstance(base, LaplaceMechanism):
        return LaplaceMechanism(base.scale * factor)
    if isinstance(base, DpSgd | RandomAllocation):
        return replace(base, noise_multiplier=base.noise_multiplier * factor)
    if isinstance(base, Composition):
        return replace(base, parts=tuple(scale_noise(member, factor) for member in base.parts))
    if isinstance(base, WorstOf | Mixture):
        return replace(
            base, candidates=tuple(scale_noise(member, factor) for member in base.candidates)
        )
    raise NotApplicable(
        f"base must be DP-SGD, a Gaussian or Laplace mechanism, or a combination of them, whose "
        f"noise can be scaled, got {base.description}"
    )


def _mechanisms(name: str, values: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    alone = isinstance(values, Mechanism)
    mechanisms = (values,) if alone else tuple(checks.items(name, values, "mechanisms"))
    if not mechanisms:
        raise InvalidInput(f"{name} must name at least one mechanism, got none")
    for mechanism in mechanisms:
        if not isinstance(mechanism, Mechanism):
            raise InvalidInput(f"{name} must be mechanisms, got {checks.one_line(mechanism)}")
    return mechanisms
