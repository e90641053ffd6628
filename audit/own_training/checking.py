"""`audit.check`: the distinguishing game against a training function, and the verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import accounting, checks, lower_bounds, repetitions, upper_bounds
from audit.own_training.discriminant import discriminant
from audit.own_training.records import TrainingSet, one_record
from audit.own_training.result import CheckResult
from audit.own_training.runs import (
    AuditTask,
    Run,
    Train,
    run_once,
    run_seed,
    undisturbed_generators,
)
from audit.repetitions import Fixed
from canaries import DiracCanary, crafted

Array = NDArray[np.float64]
Statistics = Mapping[str, tuple[Array, Array]]

AS_GAUSSIAN = ", of the Gaussian mechanism that its accountant describes"
"""What is added to a statistic's name where its bound needs the accountant to be right in kind."""

# One game in so many is played to learn the linear statistic, not to be judged by it.
# More no number of games shows.
_MAX_EPSILON = 500.0
_TO_LEARN = 4
# Games with fewer numbers recorded on each side teach nothing.
_MIN_TO_LEARN = 10
_GAMES_PER_JOB = 50
_MAX_JOBS = 256
MAX_RUNS = 1e6
"""Calls of a training function that are taken to be meant: more must be asked for."""


def check(
    train: Train,
    records: Any,
    canary: Any = None,
    *,
    claim: float | None = None,
    delta: float = 1e-5,
    games: int = 1000,
    confidence: float = 0.95,
    repetitions: str | repetitions.Repetitions = "fixed:1",
    candidates: Sequence[Any] = (None,),
    validation: Any = None,
    loss: Callable[..., Any] | None = None,
    seed: int = 0,
    jobs: int = 1,
    max_runs: float = MAX_RUNS,
) -> CheckResult:
    """Plays the distinguishing game against a training function.

    Half of the games train on `records` with the canary in the place of the last of them, half on
    `records` without the last. How many there are is taken to be known: the number of steps and the
    sampling rate must not change with it. Where `repetitions` is
    given, each game trains K times, on candidates drawn uniformly, and keeps the run of the highest
    score: the best of a tuning. What is released of the games is turned into statistics: the
    function's score, what the watch saw (lambda_a, and lambda_c for sampled batches), and, where
    several numbers are known, a linear statistic of all, learned on a quarter of the games and
    judged on the others. Each gets its share of the error, and the largest bound counts. The bounds
    assume nothing but independent games; where the accountant describes a Gaussian mechanism (full
    batches), each statistic also refutes those by its rank sum, which takes far fewer games.

    Args:
        train: `train(records, candidate, seed, watch)`, see `Train`.
        records: X: a pair of features [n, ...] and labels [n], or an object with these attributes.
        canary: the record that half of the games add: a pair (features, label), an `InputCanary`,
            or a `DiracCanary` for a gradient of the worst case (with `watch` and Opacus). None
            crafts one from the records (`canaries.crafted`).
        claim: the epsilon that the function promises at `delta`. None takes what the function
            says with `watch.claim`, or else what its accountant says; with `repetitions` the
            tightest bound on what tuning it costs.
        delta: in (0, 1).
        games: how many.
        confidence: of the lower bound.
        repetitions: the law of K, as `audit.repetitions.parse_repetitions` reads it.
        candidates: the hyper-parameters to choose from.
        validation: records as `records`, by whose mean score the best run is chosen; None chooses
            by the canary's score.
        loss: `loss(model, features, labels)` of a torch module on records, summed, where it is not
            the cross-entropy of its logits.
        seed: of everything random.
        jobs: worker processes.
        max_runs: how many calls of the function may be expected; more are refused before the first.

    Returns:
        The verdict; it is false where the attack shows more than is claimed.

    Raises:
        ValueError: an argument out of its range, or a function that releases nothing.

    Example:
        >>> import numpy as np
        >>> def release_the_sum(records, candidate, seed, watch):
        ...     watch.claim(1.0)  # but the noise is far too small for it
        ...     return records.features.sum() + np.random.default_rng(seed).normal()
        >>> result = check(release_the_sum, ([[0.0]], [0]), ([9.0], 0), games=200)
        >>> bool(result), result.exit_code
        (False, 1)
        >>> print(result)
        claims (1, 1e-05); an attack shows at least 3.749 with 95 % confidence (by score)
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    confidence = checks.interval("confidence", confidence, 0.0, 1.0)
    games, jobs = checks.integer("games", games, 2), checks.integer("jobs", jobs, 1, _MAX_JOBS)
    law = _law(repetitions)
    if games * law.mean > checks.interval("max_runs", max_runs, 0.0):
        raise ValueError(
            f"max_runs must be at least the {games * law.mean:.3g} runs that are expected, got "
            f"{max_runs:g}: play fewer games, take a smaller law of K, or raise it"
        )
    if claim is not None:
        claim = checks.interval("claim", claim, 0.0, closed_low=True)
    if not callable(train):
        raise ValueError(f"train must be a function, got {type(train).__name__}")
    if len(candidates) == 0:
        raise ValueError("candidates must name at least one, got none")
    training_set = TrainingSet.of(records)
    if canary is None:
        canary = crafted(training_set.features, training_set.labels)
    canaries = None if isinstance(canary, DiracCanary) else one_record(canary)
    question = AuditTask(
        train,
        training_set.without_last(),
        canaries,
        None if validation is None else TrainingSet.of(validation),
        loss,
        delta,
    )
    game = _Game(question, law, tuple(candidates), checks.integer("seed", seed, 0))
    runs = _play(game, games, jobs)
    _check_steps(runs)
    statistics = _statistics(runs)
    if not any(np.isfinite(np.concatenate(pair)).any() for pair in statistics.values()):
        raise ValueError(f"train must release finite numbers, got none in {games} games")
    readings: dict[str, lower_bounds.Estimator] = {"": lower_bounds.Scan()}
    if _is_gaussian(runs, game.law):
        readings[AS_GAUSSIAN] = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())
    share = (1.0 - confidence) / (len(statistics) * len(readings))
    bounds = {
        name + words: estimator(*scores, delta=delta, confidence=1.0 - share)
        for words, estimator in readings.items()
        for name, scores in statistics.items()
    }
    best = max(bounds, key=lambda name: bounds[name].epsilon)
    claimed = _claimed(runs, game.law, delta) if claim is None else claim
    return CheckResult(
        claim=claimed,
        delta=delta,
        confidence=confidence,
        epsilon=bounds[best].epsilon,
        shown_by=best,
        bounds=bounds,
        ceiling=max(
            # What a statistic that separates all games would show.
            estimator(np.zeros(len(zeros)), np.ones(len(ones)), delta, 1.0 - share).epsilon
            for estimator in readings.values()
            for zeros, ones in statistics.values()
        ),
        games=games,
        needed=None
        if claimed is None or claimed > _MAX_EPSILON
        else 2 * lower_bounds.trials_needed(claimed, delta, 1.0 - share),
    )


def _law(given: "str | repetitions.Repetitions") -> repetitions.Repetitions:
    return repetitions.parse_repetitions(given)


@dataclass(frozen=True)
class _Game:
    question: AuditTask
    law: repetitions.Repetitions
    candidates: tuple[Any, ...]
    seed: int

    def play(self, trial: int) -> Run | None:
        """One game; the record is in the data in every other one. None where no run was chosen."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(trial,)))
        included = np.array([trial % 2 == 1])
        best: Run | None = None
        count = int(self.law.sample(rng, 1)[0])
        for run in range(count):
            candidate = self.candidates[int(rng.integers(len(self.candidates)))]
            found = run_once(self.question, included, candidate, run_seed(self.seed, trial, run))
            if best is None or found.choice > best.choice:
                best = found
        return best


def _play(game: _Game, games: int, jobs: int) -> list[Run | None]:
    """All games in order; the record is in every other one."""
    trials = [range(i, min(i + _GAMES_PER_JOB, games)) for i in range(0, games, _GAMES_PER_JOB)]

    def part(of: range) -> list[Run | None]:
        with undisturbed_generators():
            return [game.play(trial) for trial in of]

    if jobs == 1:
        parts = [part(of) for of in trials]
    else:
        from joblib import Parallel, delayed

        parts = Parallel(n_jobs=jobs)(delayed(part)(of) for of in trials)
    return [run for each in parts for run in each]


def _check_steps(runs: Sequence[Run | None]) -> None:
    """Refuses steps that tell the number of records, which is no leak of a record."""
    sides = [{run.history for run in runs[start::2] if run is not None} for start in (0, 1)]
    if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]:
        without, with_record = (next(iter(side)) for side in sides)
        raise ValueError(
            "steps and sampling rate must not depend on the number of records, got (noise, rate, "
            f"steps) = {without} without the canary and {with_record} with it"
        )


def _statistics(runs: Sequence[Run | None]) -> Statistics:
    """The scores of games without and with the record, for every statistic."""
    played = [run for run in runs if run is not None]
    if not played:
        raise ValueError("repetitions must play a run now and then, got none in all games")
    found: dict[str, Array] = {}
    for name in ("score", "lambda_a", "lambda_c"):
        if any(len(getattr(run, name)) for run in played):
            found[name] = np.array([_number(run, name) for run in runs])
    if "lambda_a" in found and np.array_equal(found["lambda_a"], found["lambda_c"]):
        del found["lambda_c"]  # batches were not sampled
    statistics = {name: (values[0::2], values[1::2]) for name, values in found.items()}
    learned = _learned(runs)
    if learned is not None:
        statistics["learned"] = learned
    if not statistics:
        raise ValueError(
            "train must return a model, an estimator or numbers, or call watch, got neither"
        )
    return statistics


def _number(run: Run | None, name: str) -> float:
    """A proxy of a game; what is not a number, or nothing, is least."""
    values = np.empty(0) if run is None else getattr(run, name)
    return float(values[0]) if len(values) and not np.isnan(values[0]) else -math.inf


def _learned(runs: Sequence[Run | None]) -> tuple[Array, Array] | None:
    """A linear statistic of all that was recorded, of the games that it was not learned on."""
    width = max(0 if run is None else len(run.details) for run in runs)
    if width < 2:
        return None
    table = np.zeros((len(runs), width))
    for row, run in zip(table, runs, strict=True):
        if run is not None:
            row[: len(run.details)] = np.nan_to_num(run.details, posinf=0.0, neginf=0.0)
    sides = table[0::2], table[1::2]
    ends = [len(side) // _TO_LEARN for side in sides]
    if min(ends) < _MIN_TO_LEARN:
        return None
    weights = discriminant(*(side[:end] for side, end in zip(sides, ends, strict=True)))
    if weights is None:
        return None
    zeros, ones = (side[end:] @ weights for side, end in zip(sides, ends, strict=True))
    return zeros, ones


def _is_gaussian(runs: Sequence[Run | None], law: repetitions.Repetitions) -> bool:
    """Whether every run is, by its accountant, a Gaussian mechanism."""
    histories = {run.history for run in runs if run is not None}
    full = all(history and all(rate == 1.0 for _, rate, _ in history) for history in histories)
    return full and law == Fixed(1)


def _claimed(
    runs: Sequence[Run | None], law: repetitions.Repetitions, delta: float
) -> float | None:
    """The largest epsilon that a run claims; of a tuning, what it costs by the accountant."""
    claims = {(run.claim, run.history) for run in runs if run is not None}
    told = [_cost(claim, history, law, delta) for claim, history in claims]
    return max((epsilon for epsilon in told if epsilon is not None), default=None)


def _cost(
    claim: float | None,
    history: tuple[tuple[float, float, int], ...] | None,
    law: repetitions.Repetitions,
    delta: float,
) -> float | None:
    if law == Fixed(1) or not history:
        return claim
    return upper_bounds.tuning_cost(accounting.from_opacus(_Recorded(history)), law, delta).epsilon


@dataclass(frozen=True)
class _Recorded:
    """An accountant's history, as `accounting.from_opacus` reads it."""

    history: tuple[tuple[float, float, int], ...]
