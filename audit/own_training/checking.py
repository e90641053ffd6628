"""`audit.check`: the differential test of a training function, an attack on it, and the verdict."""

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit import accounting, checks, lower_bounds, repetitions, upper_bounds
from audit.arrays import FloatArray
from audit.own_training.canary_pool import PoolRecord
from audit.own_training.discriminant import discriminant
from audit.own_training.findings import PremiseReport
from audit.own_training.premises import SECONDS, check_premises
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

Statistics = Mapping[str, tuple[FloatArray, FloatArray]]

AS_GAUSSIAN = ", of the Gaussian mechanism that its accountant describes"
"""What is added to a statistic's name where its bound needs the accountant to be right in kind."""

# One game in so many is played to learn the linear statistic, not to be judged by it.
# More no number of games shows.
_MAX_EPSILON = 500.0
_TO_LEARN = 4
# Games with fewer numbers recorded on each side teach nothing.
_MIN_TO_LEARN = 10
_GAMES_PER_JOB = 50
_NUMBERS_OF_TRIALS = (200, 400, 1000, 2000, 4000)
_FEWEST = 200
_SECONDS_OF_TRIALS = 8.0
_SECONDS_TO_START = 10.0
_SIMULATIONS = 20
_POWER = 0.8
RELATIONS = ("add-remove", "zero-out", "replace-one")
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
    games: int | None = None,
    trials: int | None = None,
    confidence: float = 0.95,
    repetitions: str | repetitions.Repetitions = "fixed:1",
    candidates: Sequence[Any] = (None,),
    validation: Any = None,
    loss: Callable[..., Any] | None = None,
    relation: str = "add-remove",
    premises: bool = True,
    seconds: float = SECONDS,
    seed: int = 0,
    jobs: int | None = None,
    max_runs: float = MAX_RUNS,
) -> CheckResult:
    """Tests whether a training function does what its accountant assumes, then attacks it.

    First, the differential test examines each premise of the accountant by itself, within seconds
    (see `audit.own_training.premises`): the contribution of one record, the noise, the batches, the
    accountant's records, and every released number. If a premise is broken, the verdict says so
    and, unless a number of trials is given, no attack is made.

    Then the distinguishing game is played. Half of the trials train on `records` with the canary in
    the place of the last of them, half on `records` without the last. Where `repetitions` is given,
    each trial trains K times, on candidates drawn uniformly, and keeps the run of the highest
    score: the best of a tuning. The outputs are turned into statistics: the function's score, what
    the watch saw (lambda_a, and lambda_c for sampled batches), and, where several numbers are
    known, a linear statistic of all, learned on a quarter of the trials and judged on the others.
    Each gets its share of the error, and the largest bound counts. The bounds assume nothing but
    independent trials; where the accountant describes a Gaussian mechanism (full batches), each
    statistic also refutes those by its rank sum, which takes far fewer trials.

    Args:
        train: `train(records, candidate, seed, watch)`, see `Train`.
        records: X: a pair of features [n, ...] and labels [n], or an object with these attributes.
        canary: the record that half of the trials add: a pair (features, label), an `InputCanary`,
            or a `DiracCanary` for a gradient of the worst case (with `watch` and Opacus). None
            takes the record that the differential test found to contribute most.
        claim: the epsilon that the function promises at `delta`. None takes what the function
            says with `watch.claim`, or else what its accountant says; with `repetitions` the
            tightest bound on the cost of the tuning.
        delta: in (0, 1).
        games: the old name of `trials`.
        trials: how many. None plays 200 to 4,000, as many as the function's speed allows within
            about 8 seconds, and none where a premise is broken.
        confidence: of the lower bound.
        repetitions: the distribution of K, as `audit.repetitions.parse_repetitions` reads it.
        candidates: the hyper-parameters to choose from.
        validation: records as `records`, by whose mean score the best run is chosen; None chooses
            by the canary's score.
        loss: `loss(model, features, labels)` of a torch module on records, summed, where it is not
            the cross-entropy of its logits.
        relation: of neighbouring data sets: "add-remove"; or "zero-out" or "replace-one", where the
            number of records is public.
        premises: whether to make the differential test.
        seconds: after which the differential test starts no further optional runs.
        seed: of everything random.
        jobs: worker processes; None takes the number of cores where it saves time.
        max_runs: how many calls of the function may be expected; more are refused before the first.

    Returns:
        The verdict; it is false where a premise is broken, where the attack shows more than is
        claimed, and where nothing could be tested.

    Raises:
        ValueError: an argument out of its range, or a function that raises or releases nothing.

    Example:
        >>> import numpy as np
        >>> def release_the_sum(records, candidate, seed, watch):
        ...     watch.claim(1.0)  # but the noise is far too small for it
        ...     return records.features.sum() + np.random.default_rng(seed).normal()
        >>> result = check(release_the_sum, ([[0.0]], [0]), ([9.0], 0), trials=200)
        >>> bool(result), result.exit_code
        (False, 1)
        >>> print(result.words)
        claims (1, 1e-05); an attack shows at least 3.607 with 95 % confidence (by score)
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    confidence = checks.interval("confidence", confidence, 0.0, 1.0)
    if games is not None and trials is not None:
        raise ValueError("games must be left out where trials is given: it is the old name")
    asked = games if trials is None else trials
    if asked is not None:
        asked = checks.integer("games" if trials is None else "trials", asked, 2)
    if jobs is not None:
        jobs = checks.integer("jobs", jobs, 1, _MAX_JOBS)
    relation = checks.one_of("relation", relation, RELATIONS)
    seconds = checks.interval("seconds", seconds, 0.0)
    law = _law(repetitions)
    if (asked or _FEWEST) * law.mean > checks.interval("max_runs", max_runs, 0.0):
        raise ValueError(
            f"max_runs must be at least the {(asked or _FEWEST) * law.mean:.3g} runs that are "
            f"expected, got {max_runs:g}: play fewer trials, take a smaller distribution of K, or "
            "raise it"
        )
    if claim is not None:
        claim = checks.interval("claim", claim, 0.0, closed_low=True)
    if not callable(train):
        raise ValueError(f"train must be a function, got {type(train).__name__}")
    if len(candidates) == 0:
        raise ValueError("candidates must name at least one, got none")
    training_set = TrainingSet.of(records)
    is_dirac = isinstance(canary, DiracCanary)
    given = None if canary is None or is_dirac else one_record(canary)
    seed = checks.integer("seed", seed, 0)
    report: PremiseReport | None = None
    best: PoolRecord | None = None
    if premises and not (is_dirac and len(training_set) == 0):
        tested = check_premises(
            train,
            training_set,
            canary=given,
            candidate=candidates[0],
            claim=claim,
            delta=delta,
            relation=relation,
            loss=loss,
            seed=seed,
            seconds=seconds,
        )
        report, best = tested.report, tested.canary
        skipped = ""
        if report.broken and asked is None:
            skipped = "no attack was made: a premise is broken"
        elif report.depends_on_n:
            skipped = "no attack was made: it would only detect the number of records"
        if skipped:
            return CheckResult(
                claim,
                delta,
                confidence,
                0.0,
                "",
                {},
                0.0,
                0,
                premises=report,
                attack_skipped=skipped,
            )
    if given is None and not is_dirac:
        if best is not None:
            given = TrainingSet(best.features[None], np.asarray(best.label)[None])
        else:
            given = one_record(crafted(training_set.features, training_set.labels))
    question = AuditTask(
        train,
        training_set.without_last(),
        given,
        None if validation is None else TrainingSet.of(validation),
        loss,
        delta,
    )
    game = _Game(question, law, tuple(candidates), seed)
    played, jobs = _how_many(game, asked, jobs, max_runs)
    runs = _play(game, played, jobs)
    if is_dirac and not any(run is not None and len(run.lambda_a) for run in runs):
        raise ValueError(
            "canary must be a record where train never calls watch with its optimizer, got a "
            "DiracCanary: its gradient could not be inserted"
        )
    _check_steps(runs)
    statistics = _statistics(runs)
    if not any(np.isfinite(np.concatenate(pair)).any() for pair in statistics.values()):
        raise ValueError(f"train must release finite numbers, got none in {played} games")
    readings: dict[str, lower_bounds.Estimator] = {"": lower_bounds.Scan()}
    gaussian = _is_gaussian(runs, game.law)
    if gaussian:
        readings[AS_GAUSSIAN] = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())
    share = (1.0 - confidence) / (len(statistics) * len(readings))
    bounds = {
        name + words: estimator(*scores, delta=delta, confidence=1.0 - share)
        for words, estimator in readings.items()
        for name, scores in statistics.items()
    }
    best_name = max(bounds, key=lambda name: bounds[name].epsilon)
    claimed = _claimed(runs, game.law, delta) if claim is None else claim
    return CheckResult(
        claim=claimed,
        delta=delta,
        confidence=confidence,
        epsilon=bounds[best_name].epsilon,
        shown_by=best_name,
        bounds=bounds,
        ceiling=max(
            # What a statistic that separates all games would show.
            estimator(np.zeros(len(zeros)), np.ones(len(ones)), delta, 1.0 - share).epsilon
            for estimator in readings.values()
            for zeros, ones in statistics.values()
        ),
        games=played,
        needed=None
        if claimed is None or claimed > _MAX_EPSILON
        else 2 * lower_bounds.trials_needed(claimed, delta, 1.0 - share),
        premises=report,
        detectable=detectable_noise(claimed, delta, played, share, gaussian),
    )


def _how_many(
    game: "_Game", asked: int | None, jobs: int | None, max_runs: float
) -> tuple[int, int]:
    """The number of trials and of processes, by the time that one trial takes."""
    cores = os.cpu_count() or 1
    if asked is not None and jobs is not None:
        return asked, jobs
    start = time.perf_counter()
    with undisturbed_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        game.play(0)
        game.play(1)
    each = max((time.perf_counter() - start) / 2, 1e-6)
    if asked is None:
        affordable = min(_SECONDS_OF_TRIALS * (jobs or cores) / each, max_runs / game.law.mean)
        asked = max([n for n in _NUMBERS_OF_TRIALS if n <= affordable], default=_FEWEST)
    if jobs is None:
        # Processes take seconds to start.
        jobs = cores if asked * each > _SECONDS_TO_START * cores else 1
    return asked, min(jobs, _MAX_JOBS)


def detectable_noise(
    claim: float | None, delta: float, trials: int, error: float, gaussian: bool
) -> float | None:
    """The largest noise, as a share of the claimed one, that trials find with 80 % probability.

    By simulation of a Gaussian mechanism of the claimed epsilon, seen perfectly by the attack.

    Args:
        claim: epsilon.
        delta: of the claim.
        trials: number of trials.
        error: of one bound.
        gaussian: whether the bound may assume a Gaussian mechanism.

    Returns:
        A number below 1 in steps of 0.05, or None where no noise is found or nothing is claimed.

    Example:
        >>> 0.5 < detectable_noise(3.0, 1e-5, 1000, 0.01, True) < 1.0
        True
    """
    if claim is None or not 0.0 < claim < _MAX_EPSILON or trials < 20:
        return None
    mu = accounting.calibrate_mu(claim, delta, "exact")
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(_SIMULATIONS, 2, trials // 2))
    estimator: lower_bounds.Estimator = lower_bounds.Scan()
    if gaussian:
        estimator = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())

    def is_found(share: float) -> bool:
        shown = [
            estimator(out, into + mu / share, delta, 1.0 - error).epsilon > claim
            for out, into in normal
        ]
        return float(np.mean(shown)) >= _POWER

    low, high = 1, 20  # twentieths: found at low, not at high
    if not is_found(low / 20):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_found(middle / 20) else (low, middle)
    return low / 20


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
        with undisturbed_generators(), warnings.catch_warnings():
            # Without a gradient by the input, torch warns of what Opacus's hooks see: harmless.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            return [game.play(trial) for trial in of]

    if jobs == 1:
        parts = [part(of) for of in trials]
    else:
        from concurrent.futures.process import BrokenProcessPool

        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        try:
            parts = Parallel(n_jobs=jobs)(delayed(part)(of) for of in trials)
        except (TerminatedWorkerError, BrokenProcessPool) as error:
            raise ValueError(
                f"jobs must be fewer, or train must need less memory: a worker process of {jobs} "
                f"ended without an answer ({type(error).__name__})"
            ) from error
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
    found: dict[str, FloatArray] = {}
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


def _learned(runs: Sequence[Run | None]) -> tuple[FloatArray, FloatArray] | None:
    """A linear statistic of all recorded numbers, for the trials that it was not learned on.

    Of a single number it learns the sign: a record may lower what a function returns.
    """
    width = max(0 if run is None else len(run.details) for run in runs)
    if width == 0:
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
