"""Audit of one run of a training function with many canaries, each included by a fair coin.

This is for functions that train too long for many trials. `lower_bounds.one_run_bounds` turns
guesses of the coins into lower bounds. Dirac canaries without any other record change one
coordinate each, and the noise of each coordinate is independent. Then every canary is an
independent trial.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks, lower_bounds
from audit.errors import InvalidInput
from audit.loop.result import ATTACK_ERROR, CheckResult
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import (
    AuditTask,
    Run,
    Train,
    run_once,
)
from audit.lower_bounds import LowerBound
from audit.numerics import FloatArray
from audit.opacus_objects import has_full_batches
from audit.user_code import run_seed
from canaries import crafted

# The numbers of guesses are from a short list, corrected for multiple tests by Bonferroni.
_RULE = "bonferroni"
_MAX_CANARIES = 100_000  # each is a record in memory


def check_one_run(
    train: Train,
    records: Any,
    canaries: int | Any = 1000,
    *,
    dirac: bool = False,
    claim: float | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    candidate: Any = None,
    loss: Callable[..., Any] | None = None,
    seed: int = 0,
) -> CheckResult:
    """Trains once, on the records and about half of the canaries, and guesses which were included.

    Every bound gets an equal share of the error, and the largest one counts. As for `check`, a leak
    is proven by a bound that fails with probability at most 9e-5. A function that is (epsilon,
    delta)-DP may reveal all canaries of its only run with probability delta, so that a proof needs
    a delta far below 9e-5, such as 1e-9. The bounds that hold
    for any mechanism (Steinke, Nasr & Jagielski 2023) are far smaller than those of as many trials.

    Args:
        train: as for `check`.
        records: X: a pair of features [n, ...] and labels [n]; may be empty if `dirac`.
        canaries: a number of canaries to craft from the records (`canaries.crafted`, in random
            directions), or the canaries as a pair (features, labels).
        dirac: whether canaries are worst-case gradients, (0, .., C, .., 0), each in a coordinate of
            its own; requires `watch`, Opacus and a number of `canaries`.
        claim: as for `check`.
        delta: delta of the claim and of the bounds, in (0, 1).
        confidence: confidence of the lower bound, in (0, 1).
        candidate: the hyperparameters.
        loss: as for `check`.
        seed: seed of the coins and of the run.

    Returns:
        The verdict, with several bounds for every statistic.

    Raises:
        InvalidInput: an argument is out of its range, or the function releases nothing.

    Example:
        >>> import numpy as np
        >>> def release_all(records, candidate, seed, watch):
        ...     watch.claim(1.0)  # it forgets its noise
        ...     return records.features.sum(axis=0)
        >>> canaries = 20.0 * np.eye(100), np.zeros(100, int)
        >>> records = np.zeros((5, 100)), np.zeros(5, int)
        >>> result = check_one_run(release_all, records, canaries, delta=1e-9)
        >>> bool(result), result.unit
        (False, 'canaries')
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    confidence = checks.interval("confidence", confidence, 0.0, 1.0)
    checks.function("train", train, "records", "candidate", "seed", "watch")
    if loss is not None:
        checks.function("loss", loss, "model", "features", "labels")
    dirac = checks.flag("dirac", dirac)
    training_set = TrainingSet.of(records)
    inserted, count = _canaries_of(training_set, canaries, dirac)
    task = AuditTask(train, training_set, inserted, None, loss, delta)
    seed = checks.integer("seed", seed, 0)
    coins = np.random.default_rng([seed, 2]).integers(0, 2, count).astype(np.bool_)
    run = run_once(task, coins, candidate, run_seed(seed, 0))
    return _verdict(
        _Guesses(run, _statistics(run, count), coins, delta, dirac and len(training_set) == 0),
        run.claim if claim is None else checks.interval("claim", claim, 0, closed_low=True),
        confidence,
    )


def _canaries_of(
    records: TrainingSet, canaries: int | Any, dirac: bool
) -> tuple[TrainingSet | None, int]:
    """The canaries, or None for worst-case gradients; and their number."""
    if isinstance(canaries, int):
        count = checks.integer("canaries", canaries, 2, _MAX_CANARIES)
        return None if dirac else _crafted(records, count), count
    inserted = TrainingSet.of(canaries, "canaries")
    count = checks.integer("canaries", len(inserted), 2)
    if dirac:
        raise InvalidInput("canaries must be a number with dirac, got records")
    return inserted, count


def _statistics(run: Run, count: int) -> dict[str, FloatArray]:
    """The statistics that have one value for each canary, by name."""
    statistics = {
        name: np.nan_to_num(values, nan=-np.inf)
        for name in ("score", "lambda_a", "lambda_c")
        if len(values := getattr(run, name)) == count
    }
    if "lambda_a" in statistics and np.array_equal(run.lambda_a, run.lambda_c):
        del statistics["lambda_c"]  # batches were not sampled
    if not statistics:
        raise InvalidInput(
            run.unread
            or "train must return a model, an estimator or a score per canary, or call watch, "
            "got none of these"
        )
    return statistics


@dataclass(frozen=True)
class _Guesses:
    """What a run shows about its canaries.

    Attributes:
        statistics: a value for each canary, by statistic.
        coins: whether each canary was included.
        delta: delta of the bounds.
        alone: whether the canaries are the only records, each in a coordinate of its own.
    """

    run: Run
    statistics: dict[str, FloatArray]
    coins: NDArray[np.bool_]
    delta: float
    alone: bool

    def bounds(self, error: float) -> dict[str, LowerBound]:
        """Bounds of all statistics, which fail with probability at most `error` in total."""
        confidence = 1.0 - self._share(error)
        return {
            f"{name}, {reading}": bound
            for name, values in self.statistics.items()
            for reading, bound in _readings(
                values, self.coins, self.delta, confidence, self.alone, name
            ).items()
        }

    def ceiling(self) -> float:
        """The largest epsilon that a statistic which separates all canaries would prove."""
        separated, confidence = np.where(self.coins, 1.0, 0.0), 1.0 - self._share(ATTACK_ERROR)
        bounds = _readings(separated, self.coins, self.delta, confidence, self.alone)
        return max(bound.epsilon for bound in bounds.values() if _counts(self.run, bound))

    def _share(self, error: float) -> float:
        readings = 4 if self.alone else 2
        return error / (readings * len(self.statistics))


def _verdict(guesses: _Guesses, claim: float | None, confidence: float) -> CheckResult:
    """The verdict of one run, by the largest bound that holds for it."""
    bounds, proven = (guesses.bounds(error) for error in (1.0 - confidence, ATTACK_ERROR))
    valid = [key for key in bounds if _counts(guesses.run, bounds[key])]
    best = max(valid, key=lambda key: bounds[key].epsilon)
    return CheckResult(
        claim=claim,
        delta=guesses.delta,
        confidence=confidence,
        epsilon=bounds[best].epsilon,
        proven=max(proven[key].epsilon for key in valid),
        shown_by=best,
        bounds=bounds,
        ceiling=guesses.ceiling(),
        trials=len(guesses.coins),
        unit="canaries",
        unread=guesses.run.unread,
    )


def _readings(
    scores: FloatArray,
    coins: NDArray[np.bool_],
    delta: float,
    confidence: float,
    alone: bool,
    statistic: str = "",
) -> dict[str, LowerBound]:
    bounds = lower_bounds.one_run_bounds(scores, coins, delta, confidence)
    readings = {bound.name: bound for bound in bounds if bound.rule == _RULE}
    if alone:
        trials = lower_bounds.independent_canaries_bound(scores, coins, delta, confidence)
        readings[trials.name] = trials
    if alone and statistic == "lambda_a":
        values = lower_bounds.gaussian_canaries_bound(scores, coins, delta, confidence)
        readings[values.name] = values
    return readings


def _counts(run: Run, bound: LowerBound) -> bool:
    """Whether a bound holds for this run; some hold for Gaussian mechanisms alone."""
    gaussian = bound.name in ("one-run-gaussian-curve", "gaussian-canaries")
    return not gaussian or has_full_batches(run.history)


def _crafted(records: TrainingSet, count: int) -> TrainingSet:
    """Canaries of random classes, as long as the crafted one in random directions.

    Whole numbers may be indices of a vocabulary, so that they are drawn within the range of each
    feature.
    """
    rng, shape = np.random.default_rng(0), (count, *records.features.shape[1:])
    like = crafted(records.features, records.labels)
    if records.features.dtype.kind in "biu":
        low, high = (np.asarray(end(records.features, axis=0)) for end in (np.min, np.max))
        drawn = rng.integers(low.astype(np.int64), high.astype(np.int64), shape, endpoint=True)
        features = drawn.astype(records.features.dtype)
    else:
        directions = rng.normal(size=(count, like.features.size))
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        features = (directions * (np.linalg.norm(like.features) / lengths)).reshape(shape)
    return TrainingSet(features, rng.choice(np.unique(records.labels), size=count))
