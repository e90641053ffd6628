"""Many canaries in one run of a training function, each put in by its own fair coin.

For trainings that are too long for many trials. The guesses of the coins are read by
`lower_bounds.one_run_bounds`. Dirac canaries without any other record touch a coordinate each, to
which the mechanism adds noise of its own: then every canary is a trial, independent of the others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks, lower_bounds
from audit.arrays import FloatArray
from audit.errors import InvalidInput
from audit.lower_bounds import LowerBound
from audit.own_training.records import TrainingSet
from audit.own_training.result import CheckResult
from audit.own_training.runs import (
    AuditTask,
    Run,
    Train,
    run_once,
    run_seed,
    undisturbed_generators,
)
from canaries import crafted

# The rule of the readings of guesses: a short list of numbers of guesses, each paid for.
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
    """Trains once, on the records and about half of the canaries, and guesses which.

    Every reading gets its share of the error, and the largest bound counts; those that hold for
    any mechanism (Steinke, Nasr & Jagielski 2023) show far less than as many trials do.

    Args:
        train: as for `check`.
        records: X: a pair of features [n, ...] and labels [n]; may be empty where `dirac`.
        canaries: how many are crafted from the records (`canaries.crafted`, in random directions),
            or the canaries themselves as a pair (features, labels).
        dirac: whether canaries are gradients of the worst case, (0, .., C, .., 0) in a coordinate
            each; needs `watch` and Opacus, and a number of `canaries`.
        claim: as for `check`.
        delta: in (0, 1).
        confidence: of the lower bound.
        candidate: the hyperparameters.
        loss: as for `check`.
        seed: of the coins and the run.

    Returns:
        The verdict, with a bound for every statistic and reading.

    Raises:
        InvalidInput: an argument out of its range, or a function that releases nothing.

    Example:
        >>> import numpy as np
        >>> def release_all(records, candidate, seed, watch):
        ...     watch.claim(1.0)  # it forgets its noise
        ...     return records.features.sum(axis=0)
        >>> canaries = 20.0 * np.eye(100), np.zeros(100, int)
        >>> result = check_one_run(release_all, (np.zeros((5, 100)), np.zeros(5, int)), canaries)
        >>> bool(result), result.unit
        (False, 'canaries')
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    confidence = checks.interval("confidence", confidence, 0.0, 1.0)
    if not callable(train):
        raise InvalidInput(f"train must be a function, got {type(train).__name__}")
    dirac = checks.flag("dirac", dirac)
    training_set = TrainingSet.of(records)
    inserted: TrainingSet | None
    if isinstance(canaries, int):
        count = checks.integer("canaries", canaries, 2, _MAX_CANARIES)
        inserted = None if dirac else _crafted(training_set, count)
    else:
        inserted = TrainingSet.of(canaries, "canaries")
        count = checks.integer("canaries", len(inserted), 2)
        if dirac:
            raise InvalidInput("canaries must be a number with dirac, got records")
    question = AuditTask(train, training_set, inserted, None, loss, delta)
    seed = checks.integer("seed", seed, 0)
    coins = np.random.default_rng([seed, 2]).integers(0, 2, count).astype(np.bool_)
    with undisturbed_generators():
        run = run_once(question, coins, candidate, run_seed(seed, 0))
    statistics = {
        name: np.nan_to_num(values, nan=-np.inf)
        for name in ("score", "lambda_a", "lambda_c")
        if len(values := getattr(run, name)) == count
    }
    if "lambda_a" in statistics and np.array_equal(run.lambda_a, run.lambda_c):
        del statistics["lambda_c"]  # batches were not sampled
    if not statistics:
        raise InvalidInput(
            "train must return a model, an estimator or a score per canary, or call watch, "
            "got none of these"
        )
    alone = dirac and len(training_set) == 0
    readings = 4 if alone else 2
    error = (1.0 - confidence) / (readings * len(statistics))
    bounds = {
        f"{name}, {reading}": bound
        for name, values in statistics.items()
        for reading, bound in _readings(values, coins, delta, 1.0 - error, alone, name).items()
    }
    valid = [key for key in bounds if _counts(run, bounds[key])]
    best = max(valid, key=lambda key: bounds[key].epsilon)
    ceiling = _readings(np.where(coins, 1.0, 0.0), coins, delta, 1.0 - error, alone)
    return CheckResult(
        claim=run.claim if claim is None else checks.interval("claim", claim, 0, closed_low=True),
        delta=delta,
        confidence=confidence,
        epsilon=bounds[best].epsilon,
        shown_by=best,
        bounds=bounds,
        ceiling=max(bound.epsilon for bound in ceiling.values() if _counts(run, bound)),
        trials=count,
        unit="canaries",
    )


def _readings(
    scores: FloatArray,
    coins: NDArray[np.bool_],
    delta: float,
    confidence: float,
    alone: bool,
    statistic: str = "",
) -> dict[str, LowerBound]:
    found = lower_bounds.one_run_bounds(scores, coins, delta, confidence)
    readings = {bound.name: bound for bound in found if bound.rule == _RULE}
    if alone:
        trials = lower_bounds.independent_canaries_bound(scores, coins, delta, confidence)
        readings[trials.name] = trials
    if alone and statistic == "lambda_a":
        values = lower_bounds.gaussian_canaries_bound(scores, coins, delta, confidence)
        readings[values.name] = values
    return readings


def _counts(run: Run, bound: LowerBound) -> bool:
    """Whether a bound is about this run: curves of Gaussian mechanisms only where it is one."""
    is_gaussian = bool(run.history) and all(rate == 1.0 for _, rate, _ in run.history or ())
    return is_gaussian or bound.name not in ("one-run-gaussian-curve", "gaussian-canaries")


def _crafted(records: TrainingSet, count: int) -> TrainingSet:
    """Canaries as long as the crafted one, in random directions and of random classes."""
    like = crafted(records.features, records.labels)
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(count, like.features.size))
    directions *= np.linalg.norm(like.features) / np.linalg.norm(directions, axis=1, keepdims=True)
    labels = rng.choice(np.unique(records.labels), size=count)
    return TrainingSet(directions.reshape(count, *like.features.shape), labels)
