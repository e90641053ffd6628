"""Bounds by composition: all runs of a tuning are released, and so any score and its winner."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy import special

from audit.accounting import (
    Candidates,
    Composition,
    DominatingPair,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    scale_noise,
    solve_epsilon,
)
from audit.accounting.combinations import any_fixed, kinds_of_candidates
from audit.accounting.composition import compose
from audit.accounting.pairs import gaussian_profile
from audit.errors import NotApplicable
from audit.numerics import PROFILE_ACCURACY, FloatArray, dot, memoize, shared_delta
from audit.protocols import (
    Adaptive,
    BestRuns,
    BudgetSchedule,
    Grid,
    NoisyMax,
    ParetoFront,
    Protocol,
    Sequential,
)
from audit.repetitions import (
    Binomial,
    Fixed,
    Poisson,
    Repetitions,
    Truncated,
    TruncatedNegativeBinomial,
    TwoPoint,
)
from audit.upper_bounds.cells import scale
from audit.upper_bounds.registry import BoundValue, Exceeds, bound

_MAX_RUNS = 1 << 20
_MAX_STEPS = 10**8  # of one `DpSgd`
_MAX_MU = 1e3  # of a Gaussian mechanism
# Runs, events of one run and numbers of such events that `_exceeds` counts at most.
_MAX_COUNTED, _EVENTS, _COUNTS = 1 << 14, 512, 16
_FEW, _MANY = 6, 400
# Cells of the privacy loss of all runs: with four times as many, epsilon falls by a relative 1e-5,
# and by 1e-3 for thousands of runs.
_CELLS = 1 << 15
_SUM_OF_CHANCES = 1e-15  # rounding of a sum of probabilities


def composed(base: Mechanism, runs: int) -> Mechanism:
    """The release of a given number of runs."""
    mu = base.gaussian_mu
    if mu is not None:
        together = mu * math.sqrt(runs)
        if together > _MAX_MU:
            raise NotApplicable(f"all runs together must have mu <= {_MAX_MU:g}")
        return GaussianMechanism(together)
    return _Together(base, runs) if runs > 1 else base


@dataclass(frozen=True)
class _Together(Mechanism):
    """The release of several runs, from the pair of one run, whose steps are composed only once."""

    base: Mechanism
    runs: int

    @cached_property
    def pairs(self) -> tuple[DominatingPair, ...]:
        pair = compose([(self.base.pairs[0], self.runs)], _CELLS)
        return (pair,) if self.base.is_symmetric else (pair, pair.mirrored)

    @property
    def pure_epsilon(self) -> float:
        return self.runs * self.base.pure_epsilon


def probability_of_more(repetitions: Repetitions, most: int) -> float:
    """P[K > most], rounded up, which keeps its digits for the known distributions.

    Example:
        >>> from audit.repetitions import parse_repetitions
        >>> probability_of_more(parse_repetitions("binomial:20,0.5"), 20)
        0.0
        >>> probability_of_more(parse_repetitions("poisson:1"), 40) < 1e-49
        True
    """
    largest = {Fixed: "k", Binomial: "n", TwoPoint: "L", Truncated: "most"}.get(type(repetitions))
    if largest is not None and most >= getattr(repetitions, largest):
        return 0.0
    if isinstance(repetitions, Poisson | TruncatedNegativeBinomial):
        next_chance, second = map(float, repetitions.pmf(np.array([most + 1, most + 2])))
        ratio = second / next_chance if next_chance > 0.0 else 1.0
        if isinstance(repetitions, TruncatedNegativeBinomial):
            # The ratio of consecutive probabilities moves towards 1 - gamma monotonically.
            ratio = max(ratio, 1.0 - repetitions.gamma)
        # For Poisson it falls, so a geometric series bounds the tail.
        if ratio < 1.0:
            return min(next_chance / (1.0 - ratio) * (1.0 + PROFILE_ACCURACY), 1.0)
    beyond = 1.0 - float(repetitions.pmf(np.arange(most + 1)).sum())
    return max(beyond, 0.0) + _SUM_OF_CHANCES


@dataclass(frozen=True)
class AllRuns:
    r"""The release of all K runs, and so of K.

    The profile is :math:`\sum_k P[K = k]\, \delta_k(\varepsilon)`, where :math:`\delta_k` is the
    profile of k runs composed.

    Attributes:
        base: one run.
        repetitions: the distribution of K.
        negligible: allowed probability that K exceeds the largest computed composition; that event
            counts as a full leak.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.repetitions import Fixed
        >>> four = AllRuns(GaussianMechanism(0.5), Fixed(4), negligible=1e-12)
        >>> round(four.epsilon(1e-5), 4), round(GaussianMechanism(1.0).epsilon(1e-5), 4)
        (4.3772, 4.3772)
    """

    base: Mechanism
    repetitions: Repetitions
    negligible: float

    @cached_property
    def parts(self) -> list[tuple[float, Mechanism]]:
        """Probabilities and compositions; the largest number of runs represents its range."""
        max_runs, chances = self._chances
        few = self.base.gaussian_mu is None
        runs = np.unique(
            np.ceil(np.geomspace(1.0, max_runs, _FEW if few else _MANY)).astype(np.int64)
        )
        # Fewer runs are a post-processing of more, so the largest number of a range represents it.
        places = np.searchsorted(runs, np.arange(1, max_runs + 1))
        sums = np.bincount(places, chances[1:], len(runs))
        return [
            (float(chance), composed(self.base, int(k)))
            for k, chance in zip(runs, sums, strict=True)
            if chance > 0.0
        ]

    @cached_property
    def _chances(self) -> tuple[int, FloatArray]:
        """A largest number of runs, and the probabilities [K + 1] up to it."""
        max_runs = 1
        while max_runs <= _MAX_RUNS:
            chances = self.repetitions.pmf(np.arange(max_runs + 1))
            if probability_of_more(self.repetitions, max_runs) <= self.negligible:
                max_runs = int(np.flatnonzero(chances)[-1])
                return max_runs, chances[: max_runs + 1]
            max_runs *= 2
        raise NotApplicable(f"K must be at most {_MAX_RUNS} except with negligible probability")

    def delta(self, epsilon: float) -> float:
        """The profile at epsilon >= 0, rounded up."""
        if self._gaussian is not None:
            weights, mu = self._gaussian
            return self._beyond + float(dot(weights, gaussian_profile(epsilon, mu)))
        return self._beyond + sum(c * float(composed.delta(epsilon)) for c, composed in self.parts)

    @cached_property
    def _beyond(self) -> float:
        """The probability of more runs, rounded up."""
        return probability_of_more(self.repetitions, self._chances[0])

    @cached_property
    def _gaussian(self) -> tuple[FloatArray, FloatArray] | None:
        """Chances and mu [n] of the compositions of Gaussian runs."""
        if self.base.gaussian_mu is None:
            return None
        weights, mu = zip(*((c, composed.gaussian_mu) for c, composed in self.parts), strict=True)
        return np.array(weights), np.array(mu)

    def exceeds(self, epsilon: float, delta: float) -> bool:
        """Whether `epsilon` at delta is larger, by as few compositions as possible."""
        if self._pure(delta) <= epsilon:
            return False
        if self._gaussian is not None:
            return self.delta(epsilon) > delta
        total = self._beyond
        for chance, composed in sorted(self.parts, key=lambda part: -part[0]):
            if total > delta:
                break
            total += chance * float(composed.delta(epsilon))
        return total > delta

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at delta, rounded up."""
        return solve_epsilon(self.delta, delta, enough=self._pure(delta))

    def _pure(self, delta: float) -> float:
        """An epsilon of pure DP that suffices at delta; infinite if there is none."""
        if self._beyond > delta:
            return math.inf
        return max((composed.pure_epsilon for _, composed in self.parts), default=0.0)


def together(runs: Sequence[Mechanism]) -> Mechanism:
    """The release of several different runs."""
    return runs[0] if len(runs) == 1 else Composition(tuple(runs))


def scheduled_runs(base: Mechanism, protocol: BudgetSchedule) -> list[Mechanism]:
    """The runs of all steps of a schedule."""
    return [scale_noise(base, factor) for factor in protocol.noise]


def _candidates(base: Mechanism, protocol: Grid, delta: float) -> Mechanism:
    """The release of all runs of a grid, and of the trained candidates."""

    def by_chance(mechanism: Mechanism) -> Mechanism:
        return (
            mechanism if protocol.inclusion == 1.0 else Mixture((mechanism,), (protocol.inclusion,))
        )

    _check_few(protocol.candidates)
    candidate_kinds = kinds_of_candidates(base, protocol.candidates, protocol.spec)
    if (
        len(candidate_kinds) == 1
        and not candidate_kinds[0][0].is_directed
        and not isinstance(base, Candidates)
    ):
        # All runs of one mechanism have the same direction.
        return composed(by_chance(base), protocol.candidates)
    return Composition(
        tuple(by_chance(candidate) for candidate, count in candidate_kinds for _ in range(count))
    )


def _exceeds(base: Mechanism, protocol: Grid, delta: float, epsilon: float) -> bool:
    """Whether the number of runs with a large loss alone costs more than epsilon."""
    runs = protocol.candidates
    if protocol.inclusion < 1.0 or isinstance(base, Candidates) or runs > _MAX_COUNTED:
        return False
    pair = base.pairs[0]
    large, large_with = np.exp(pair.events(np.linspace(*pair.event_range, _EVENTS)))[..., None]
    thresholds = np.unique(np.linspace(0, runs - 1, _COUNTS).astype(np.int64))
    # That more than some number of runs have a large loss is an event of the composition, which
    # leaks at least as much as each of its events.
    chance, chance_with = (special.bdtrc(thresholds, runs, rate) for rate in (large, large_with))
    scaled = scale(np.asarray(chance_with, np.float64), epsilon)
    gains = np.where(chance_with > 0.0, chance - scaled, 0.0)  # no underflow
    return bool(np.any(gains > delta))


def _runs_of_adaptive(base: Mechanism, protocol: Adaptive, delta: float) -> AllRuns:
    """The release of all runs of an adaptive search."""
    return AllRuns(any_fixed(base), protocol.repetitions, 1e-3 * delta)


def _runs_of_search(base: Mechanism, protocol: BestRuns | ParetoFront, delta: float) -> AllRuns:
    """The release of all runs of a search that releases several."""
    return AllRuns(base, protocol.repetitions, 1e-3 * delta)


def _exceeds_by_few(
    all_runs: Callable[[Mechanism, Any, float], AllRuns],
    base: Mechanism,
    protocol: Protocol,
    delta: float,
    epsilon: float,
) -> bool:
    """Whether the likeliest numbers of runs alone cost more than epsilon."""
    runs = _shared(all_runs, base, protocol, shared_delta(delta))
    return isinstance(runs, AllRuns) and runs.exceeds(epsilon, delta)


def _noisy_values(base: Mechanism, protocol: NoisyMax, delta: float) -> Mechanism:
    runs = protocol.candidates * protocol.rounds
    _check_few(runs)
    return together([base] * runs)


def _check_few(runs: int) -> None:
    if runs > _MAX_RUNS:
        raise NotApplicable(f"there must be at most {_MAX_RUNS} runs to compose")


@memoize(8)
def _shared(
    all_runs: Callable[[Mechanism, Any, float], Mechanism | AllRuns],
    base: Mechanism,
    protocol: Protocol,
    delta: float,
) -> Mechanism | AllRuns:
    return all_runs(base, protocol, delta)


def _register(
    protocol: type[Protocol],
    released: str,
    about: str,
    all_runs: Callable[[Mechanism, Any, float], Mechanism | AllRuns],
    exceeds: Exceeds | None = None,
) -> None:
    def at_other_delta(base: Mechanism, protocol: Protocol, delta: float, _: float) -> BoundValue:
        """The cost of releasing all runs, with compositions that several deltas share."""
        return BoundValue(_shared(all_runs, base, protocol, shared_delta(delta)).epsilon(delta))

    @bound(
        "composition",
        50,
        f"composition of all {released}",
        about=(about,),
        protocol=protocol,
        title="" if protocol is NoisyMax else r"$\varepsilon_U$ composition (any score)",
        exceeds=exceeds,
        at_other_delta=at_other_delta,
    )
    def composition(base: Mechanism, protocol: Protocol, delta: float) -> BoundValue:
        """The cost of releasing all runs."""
        return BoundValue(all_runs(base, protocol, delta).epsilon(delta))


_register(
    Grid,
    "runs, each released",
    "any base, possibly different for each candidate",
    _candidates,
    _exceeds,
)
_register(NoisyMax, "noisy values, each released", "any noise", _noisy_values)
_register(
    BudgetSchedule,
    "steps, each released",
    "any base",
    lambda base, protocol, delta: together(scheduled_runs(base, protocol)),
)
_register(
    Adaptive,
    "K runs, each released with its candidate",
    "any base",
    _runs_of_adaptive,
    partial(_exceeds_by_few, _runs_of_adaptive),
)
for _protocol in (BestRuns, ParetoFront):
    _register(
        _protocol,
        "K runs, each released",
        "any base",
        _runs_of_search,
        partial(_exceeds_by_few, _runs_of_search),
    )


def all_sequential_runs(base: Mechanism, protocol: Sequential, delta: float) -> Mechanism:
    """The release of all runs of a search whose candidates depend on results."""
    if isinstance(base, Candidates):
        return _candidates(base, Grid(protocol.runs), delta)
    steps = base.steps * protocol.runs if isinstance(base, DpSgd) else 0
    if isinstance(base, DpSgd) and base.gaussian_mu is None and steps <= _MAX_STEPS:
        # The steps of all runs are those of one run that is as long as all of them.
        return replace(base, steps=steps)
    return composed(base, protocol.runs)


_register(
    Sequential,
    "runs, each released",
    "any base, possibly different for each run",
    all_sequential_runs,
)
