"""Simulated runs with many canaries, each of which is a Gaussian mechanism."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from audit.claims import Assumption, facts_of_tuning
from audit.lower_bounds import (
    LowerBound,
    gaussian_canaries_bound,
    independent_canaries_bound,
    one_run_bounds,
)
from audit.numerics import BoolArray, FloatArray
from audit.protocols import RandomSearch
from audit.repetitions import Fixed
from studies.coverage.gaussian_pair import gaussian_pair_bound
from studies.coverage.mechanisms import DELTA
from studies.coverage.order_statistics import order_statistics_bound


@dataclass(frozen=True)
class CanaryRun:
    """One run with many canaries.

    Attributes:
        name: name of the row in the tables; it also seeds the samples.
        mu: mu of every canary, or of the largest canaries.
        sample: maps coins [m] to signed scores [m], positive for "included".
        holds: assumptions that hold besides fair coins and a Gaussian curve of each canary.
    """

    name: str
    mu: float
    sample: Callable[[np.random.Generator, BoolArray], FloatArray]
    holds: frozenset[Assumption]

    def bounds(self, scores: FloatArray, coins: BoolArray, confidence: float) -> list[LowerBound]:
        """Every lower bound from one run."""
        assumptions = {Assumption.FAIR_COINS, Assumption.GAUSSIAN_BASE, Assumption.NOT_TUNED}
        facts = facts_of_tuning(RandomSearch(Fixed(1)), *assumptions, *self.holds)
        all_guesses = order_statistics_bound(scores, coins, len(scores), DELTA, confidence)
        bounds = [
            *one_run_bounds(scores, coins, DELTA, confidence, len(scores) // 4, facts),
            gaussian_canaries_bound(scores, coins, DELTA, confidence),
            gaussian_pair_bound(scores, coins, DELTA, confidence),
            independent_canaries_bound(scores, coins, DELTA, confidence),
            order_statistics_bound(scores, coins, len(scores) // 4, DELTA, confidence),
            replace(all_guesses, rule="all"),
        ]
        return [replace(bound, verdict=bound.claim.validity(facts)) for bound in bounds]


def canary_runs() -> list[CanaryRun]:
    """Independent canaries of equal and of unequal size, and canaries that share a random size."""
    apart = frozenset({Assumption.DISJOINT_CANARIES, Assumption.GAUSSIAN_STATISTIC})
    equal = frozenset({Assumption.EQUAL_CANARIES})
    return [
        *(
            CanaryRun(f"canaries apart mu={mu:g}", mu, _independent(mu), apart | equal)
            for mu in (0.5, 1.5)
        ),
        CanaryRun("canaries unequal mu=1.5", 1.5, _unequal(1.5), apart),
        *(CanaryRun(f"canaries alike mu={mu:g}", mu, _sharing(mu), equal) for mu in (1.0, 2.0)),
    ]


def _independent(mu: float) -> Callable[[np.random.Generator, BoolArray], FloatArray]:
    return lambda rng, coins: rng.normal(size=len(coins)) + mu * (coins - 0.5)


def _unequal(mu: float) -> Callable[[np.random.Generator, BoolArray], FloatArray]:
    def sample(rng: np.random.Generator, coins: BoolArray) -> FloatArray:
        sizes = mu * (rng.random(len(coins)) < 0.5)
        return np.asarray(rng.normal(size=len(coins)) + sizes * (coins - 0.5))

    return sample


def _sharing(mu: float) -> Callable[[np.random.Generator, BoolArray], FloatArray]:
    def sample(rng: np.random.Generator, coins: BoolArray) -> FloatArray:
        size = abs(rng.normal() + mu / 2.0)
        correct = rng.random(len(coins)) < special.expit(mu * size)
        return size * np.where(correct == coins, 1.0, -1.0)

    return sample
