"""Repetitions of simulated audits, with every estimator applied to each."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import joblib
import numpy as np
import pandas as pd
from joblib.parallel import get_active_backend
from scipy import stats

from audit.accounting import GaussianMechanism
from audit.lower_bounds import LowerBound, all_estimators, pooled_bounds
from audit.lower_bounds.scores import Scores
from audit.processes import loky_options
from studies.coverage.canaries import CanaryRun, canary_runs
from studies.coverage.estimators import LargestOverAnalyses, estimators_of_others
from studies.coverage.mechanisms import (
    DELTA,
    GAUSSIAN_ERROR,
    MONOTONE,
    Mechanism,
    mechanisms,
)

CONFIDENCE = 0.95
AUDITS = {50: 200, 200: 200, 1_000: 50}
"""The number of audits by trials per side. The study takes a quarter of an hour on one core."""
DEFAULT_AUDITS = 100
"""The number of audits for other numbers of trials."""

# These are slow, and omitted above the given numbers of trials: the pooled runs, which are E[K]
# times as many as the trials; the estimators of other projects; and runs with many canaries.
_MAX_POOLED_TRIALS = 10_000
_MAX_CANARY_TRIALS = 1_000
_SEQUENTIAL_MECHANISMS = ("pure noise", "Gaussian mu=1.5")


def simulate_study(
    audits: Mapping[int, int], seed: int, only: Sequence[str] = (), jobs: int | None = None
) -> Iterator[pd.DataFrame]:
    """Yields one table per mechanism and number of trials, with one row per estimator.

    `audits` is the number of audits by trials per side. If `only` is empty, it simulates all
    mechanisms. `jobs` is the number of processes of joblib's active backend; None takes its number.
    """
    calls = []
    for trials, repetitions in audits.items():
        for mechanism in mechanisms(trials):
            if not only or mechanism.name in only:
                calls.append(joblib.delayed(simulate_audits)(mechanism, trials, repetitions, seed))
        for run in canary_runs() if trials <= _MAX_CANARY_TRIALS else []:
            if not only or run.name in only:
                calls.append(joblib.delayed(simulate_canary_runs)(run, trials, repetitions, seed))
    streams = get_active_backend()[0].supports_return_generator
    workers = joblib.Parallel(
        jobs, return_as="generator" if streams else "list", batch_size=1, **loky_options()
    )
    yield from map(pd.DataFrame, workers(calls))


def simulate_audits(
    mechanism: Mechanism, trials: int, repetitions: int, seed: int
) -> list[dict[str, object]]:
    """One row per estimator, from `repetitions` audits with `trials` trials per side each."""
    rng, tally = _generator(mechanism.name, trials, seed), _Tally()
    sequential = mechanism.name in _SEQUENTIAL_MECHANISMS
    estimators = [
        *all_estimators(
            mechanism.repetitions, mechanism.mu, mechanism.threshold, mechanism.split_top
        ),
        *(LargestOverAnalyses(planned) for planned in (True, False) if sequential),
        *mechanism.own_estimators,
        *(estimators_of_others() if trials <= _MAX_POOLED_TRIALS else []),
    ]
    pooled = mechanism.known >= MONOTONE and mechanism.repetitions is not None
    pooled = pooled and trials <= _MAX_POOLED_TRIALS
    for _ in range(repetitions):
        scores = Scores.of(*mechanism.sample(rng, trials))
        for estimator in estimators:
            begin = time.perf_counter()
            bound = estimator.bound(scores, mechanism.delta, CONFIDENCE, known=mechanism.facts)
            tally.add([bound], time.perf_counter() - begin)
        if pooled:
            begin = time.perf_counter()
            bounds = _bounds_of_all_runs(mechanism, rng, trials)
            tally.add(bounds, time.perf_counter() - begin)
    return tally.rows(mechanism.name, trials, mechanism.epsilon)


def simulate_canary_runs(
    run: CanaryRun, trials: int, repetitions: int, seed: int
) -> list[dict[str, object]]:
    """One row per estimator, from `repetitions` runs with 2 * trials canaries each."""
    rng, tally = _generator(run.name, trials, seed), _Tally()
    for _ in range(repetitions):
        coins = rng.random(2 * trials) < 0.5
        scores = run.sample(rng, coins)
        begin = time.perf_counter()
        bounds = run.bounds(scores, coins, CONFIDENCE)
        tally.add(bounds, time.perf_counter() - begin)
    epsilon = GaussianMechanism(run.mu).epsilon(DELTA) * (1.0 - GAUSSIAN_ERROR)
    return tally.rows(run.name, trials, epsilon)


def _bounds_of_all_runs(
    mechanism: Mechanism, rng: np.random.Generator, trials: int
) -> list[LowerBound]:
    """Bounds from as many single runs as this number of trials has on average."""
    assert mechanism.repetitions is not None
    assert mechanism.mu is not None
    runs = max(round(trials * mechanism.repetitions.mean), 1)
    out_scores, in_scores = rng.normal(size=runs), rng.normal(mechanism.mu, size=runs)
    return pooled_bounds(
        out_scores, in_scores, mechanism.repetitions, mechanism.delta, known=mechanism.facts
    )


class _Tally:
    """Collects the bounds of all audits of a mechanism, by estimator."""

    def __init__(self) -> None:
        self.epsilons: defaultdict[str, list[float]] = defaultdict(list)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last: dict[str, LowerBound] = {}

    def add(self, bounds: Sequence[LowerBound], seconds: float) -> None:
        """Adds the bounds of one audit, which took `seconds` together."""
        for bound in bounds:
            self.last[bound.key] = bound
            self.epsilons[bound.key].append(bound.epsilon)
            self.seconds[bound.key] += seconds / len(bounds)

    def rows(self, mechanism: str, trials: int, epsilon: float) -> list[dict[str, object]]:
        """One row per estimator, compared with the true epsilon."""
        return [
            self._row(bound, mechanism, trials, epsilon, np.array(self.epsilons[key]))
            for key, bound in self.last.items()
        ]

    def _row(
        self, bound: LowerBound, mechanism: str, trials: int, epsilon: float, found: np.ndarray
    ) -> dict[str, object]:
        violations = int(np.sum(found > epsilon))
        interval = stats.binomtest(violations, len(found)).proportion_ci(0.95)
        return {
            "mechanism": mechanism,
            "trials": trials,
            "estimator": bound.name,
            "rule": bound.rule,
            "label": bound.label,
            "claimed": bound.valid,
            "truth": epsilon,
            "audits": len(found),
            "violations": violations,
            "rate": violations / len(found),
            "rate_low": float(interval.low),
            "rate_high": float(interval.high),
            "mean": found.mean(),
            "spread": found.std(),
            "milliseconds": 1e3 * self.seconds[bound.key] / len(found),
        }


def _generator(name: str, trials: int, seed: int) -> np.random.Generator:
    letters = [ord(letter) for letter in name]
    return np.random.default_rng(np.random.SeedSequence([seed, trials, *letters]))
