"""`audit.check`: the differential test of a training function, an attack on it, and the verdict."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audit import checks, lower_bounds
from audit.errors import InvalidInput
from audit.loop.attack.attack import (
    MAX_EPSILON,
    Attack,
    check_steps,
    claimed_epsilon,
    detectable_chance,
    detectable_noise,
    fewest_trials,
    is_gaussian,
    only_history,
    statistics_of,
    trials_to_prove,
    unread,
    why_no_statistic,
)
from audit.loop.findings import PremiseReport
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.check_premises import PremiseTest, check_premises
from audit.loop.result import ATTACK_ERROR, CheckResult
from audit.loop.runs.records import TrainingSet, one_record
from audit.loop.runs.training_runs import AuditTask, Run, Train, exchanges
from audit.loop.sources.records import adapt_records
from audit.repetitions import Repetitions, parse_repetitions
from canaries import DiracCanary, crafted

DEFAULT_TRIALS = 1000
"""Number of trials of an attack, unless the caller chooses another."""

SECONDS = 60.0
"""Default time limit of one call of `check`."""

AS_GAUSSIAN = ", of the Gaussian mechanism that its accountant describes"
"""Suffix of a statistic whose bound requires the mechanism that the accountant describes."""

RELATIONS = ("add-remove", "zero-out", "replace-one")
MAX_RUNS = 1e6
"""Default limit on the expected number of calls of a training function."""

# The differential test gets this share of the time limit, and the attack the rest.
_SHARE_OF_PREMISES = 0.5
# If the bound exceeds the claim, but perhaps by chance, this many times the trials are played.
_TIMES_MORE_TRIALS, _MAX_TRIALS = 4, 16_000


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
    repetitions: str | Repetitions = "fixed:1",
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

    First, the differential test examines each premise of the accountant separately
    (`audit.loop.premises.check_premises`): the contribution of one record, the noise, the batches,
    the accountant's records, and every released number. If a premise is broken, the verdict reports
    it and, unless a number of trials is given, no attack is made.

    Then the distinguishing game is played. Half of the trials train on `records` with the canary
    instead of the last record, half on `records` without the last; under "replace-one", functions
    that are not watched get another record in its place. With `repetitions`, each trial trains K
    times, on candidates drawn uniformly, and keeps the run with the highest score. The outputs are
    turned into statistics: the function's score, the inner products that the watch
    recorded (lambda_a, and lambda_c for sampled batches), for full batches the residual statistic
    (see `audit.loop.attack.residuals`), and, if there are several numbers, a linear statistic of
    all of them, learned on a quarter of the trials and judged on the others.
    Each bound gets an equal share of the error, and the largest bound counts. The first bound of
    each statistic requires independent trials and nothing else. If the accountant describes a
    Gaussian mechanism (full batches), each statistic gives a second bound by a rank sum. It assumes
    that mechanism and takes far fewer trials.

    The reported bound holds with `confidence`, so it may exceed an exact claim by chance. A leak is
    proven if the bound that fails with probability at most 9e-5 exceeds the claim. With the tests
    of the premises (1e-5), a check accuses a correct function with probability at most 1e-4. If the
    reported bound exceeds the claim and no leak is proven, 4,000 trials are played, then 16,000,
    unless a number of trials is given.

    If the function calls `watch` with its accountant, all trials start from the same weights: the
    accountant's epsilon holds for every initialization, and fixed weights add no variance.

    Args:
        train: `train(records, candidate, seed, watch)`, see `Train`.
        records: X: a pair of features [n, ...] and labels [n], or an object with these attributes;
            features alone, a dictionary of both, or a torch `Dataset` or `DataLoader`. Labels may
            have several numbers each.
        canary: the record that half of the trials add: a pair (features, label), an `InputCanary`,
            or a `DiracCanary` for a worst-case gradient (with `watch` and Opacus). None takes the
            record that contributed most in the differential test, or a crafted one without it.
        claim: the epsilon that the function promises at `delta`. None takes the value given to
            `watch.claim`, or else the accountant's; with `repetitions` the tightest bound on the
            cost of the tuning.
        delta: delta of the claim and of the bounds, in (0, 1).
        games: the old name of `trials`.
        trials: number of trials. None plays 1,000 of them, more if these suggest a leak and do not
            prove it, or stops early at the time limit; if a premise is broken, it plays none.
        confidence: confidence of the reported lower bound, in (0, 1).
        repetitions: distribution of K, in the notation of `audit.repetitions.parse_repetitions`.
        candidates: the hyperparameters to choose from.
        validation: records like `records`, by whose mean score the best run is chosen; None chooses
            by the canary's score.
        loss: `loss(model, features, labels)` of a torch module on records, summed; None takes the
            cross-entropy of its logits.
        relation: neighbouring relation: "add-remove"; or "zero-out" or "replace-one", under which
            the number of records is public.
        premises: whether to make the differential test. Without it, an attack under zero-out may
            detect the number of records.
        seconds: time limit. The differential test starts no optional runs after half of it, and the
            attack no trials after all of it, unless `trials` is given. The verdict reports omitted
            parts.
        seed: seed of all random numbers.
        jobs: number of worker processes of joblib's active backend; None takes one per idle core
            if that saves time. If a worker dies, Dask repeats its trials, and the others raise.
        max_runs: limit on the expected number of calls of the function; a larger number is refused
            before the first call.

    Returns:
        The verdict. It is false if a premise is broken, if the attack proves more than is claimed,
        or if nothing could be tested.

    Raises:
        InvalidInput: an argument is out of its range, or the function raises an error or releases
            nothing.

    Example:
        >>> import numpy as np
        >>> def release_the_sum(records, candidate, seed, watch):
        ...     watch.claim(1.0)  # but the noise is far too small for it
        ...     return records.features.sum() + np.random.default_rng(seed).normal()
        >>> result = check(release_the_sum, ([[0.0]], [0]), ([9.0], 0), trials=200)
        >>> bool(result), result.exit_code
        (False, 1)
        >>> round(result.epsilon, 2), round(result.proven, 2)  # with 95 % and 99.99 % confidence
        (3.61, 2.81)
    """
    start = time.perf_counter()
    delta = checks.interval("delta", delta, 0.0, 1.0)
    confidence = checks.interval("confidence", confidence, 0.0, 1.0)
    premises = checks.flag("premises", premises)
    asked = _trials(games, trials)
    if jobs is not None:
        jobs = checks.integer("jobs", jobs, 1, checks.MAX_JOBS)
    relation = checks.one_of("relation", relation, RELATIONS)
    seconds = checks.interval("seconds", seconds, 0.0)
    distribution = parse_repetitions(repetitions)
    planned = asked or DEFAULT_TRIALS
    _refuse_too_many(planned * distribution.mean, max_runs)
    if claim is not None:
        claim = checks.interval("claim", claim, 0.0, closed_low=True)
    checks.function("train", train, "records", "candidate", "seed", "watch")
    if loss is not None:
        checks.function("loss", loss, "model", "features", "labels")
    if not isinstance(candidates, Sequence) or isinstance(candidates, str) or not candidates:
        raise InvalidInput(
            f"candidates must be a sequence of at least one, got {checks.one_line(candidates)}"
        )
    train, records, canary = adapt_records(train, records, canary)
    training_set = TrainingSet.of(records)
    is_dirac = isinstance(canary, DiracCanary)
    given = None if canary is None or is_dirac else one_record(canary)
    shape = training_set.features.shape[1:]
    if given is not None and len(training_set) and given.features.shape[1:] != shape:
        raise InvalidInput(
            f"canary must have features of shape {shape} as the records have, "
            f"got {given.features.shape[1:]}"
        )
    seed = checks.integer("seed", seed, 0)

    tested = None
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
            seconds=_SHARE_OF_PREMISES * seconds,
        )
        skipped = _reason_for_no_attack(tested.report, asked)
        if skipped:
            return CheckResult(
                claim, delta, confidence, premises=tested.report, attack_skipped=skipped
            )

    replaced = None
    watched = tested is not None and tested.report.watched
    if exchanges(relation, watched) and not is_dirac:
        if len(training_set) == 0:
            raise InvalidInput("records must hold the record that is replaced, got none")
        best = tested.replaced if tested and given is None else None
        last = TrainingSet(training_set.features[-1:], training_set.labels[-1:])
        replaced = last if best is None else _as_records(best)
    if given is None and not is_dirac:
        given = _best_canary(tested, training_set)
    task = AuditTask(
        train,
        training_set.without_last(),
        given,
        None if validation is None else TrainingSet.of(validation, "validation"),
        loss,
        delta,
        initial=None if tested is None else tested.initial,
        replaced=replaced,
    )
    deadline = start + seconds if asked is None else math.inf
    report = None if tested is None else tested.report
    attack = Attack(task, distribution, tuple(candidates), seed)
    attack = attack.with_residuals(planned, jobs, deadline)
    runs = attack.play_all(planned, jobs, deadline)
    if is_dirac and not any(run is not None and len(run.lambda_a) for run in runs):
        raise InvalidInput(
            "canary must be a record where train never calls watch with its optimizer, got a "
            "DiracCanary: its gradient could not be inserted"
        )
    check_steps(runs)
    if report is not None and asked is None and (reason := why_no_statistic(runs)):
        skipped = f"no attack was made: {reason}"
        return CheckResult(claim, delta, confidence, premises=report, attack_skipped=skipped)
    if asked is None and len(runs) < fewest_trials(runs):
        skipped = (
            f"no attack was made: {len(runs)} of {planned} trials ended within {seconds:g} s, and "
            f"{fewest_trials(runs)} are needed (raise seconds)"
        )
        return CheckResult(claim, delta, confidence, premises=report, attack_skipped=skipped)
    error = ATTACK_ERROR if asked is not None else ATTACK_ERROR / 2
    first = _verdict(runs, distribution, claim, delta, confidence, error, planned, report)
    if asked is not None:
        return first
    result = first
    while result.exceeds and len(runs) == planned < _MAX_TRIALS:
        planned, error = planned * _TIMES_MORE_TRIALS, error / 2
        runs = attack.play_all(planned, jobs, deadline, runs)
        result = _verdict(runs, distribution, claim, delta, confidence, error, planned, report)
    # Later trials are played if the first bound is large. So it alone holds with `confidence`.
    return replace(result, epsilon=first.epsilon, bounds=first.bounds, shown_by=first.shown_by)


def _trials(games: int | None, trials: int | None) -> int | None:
    """The number of trials that the caller chose, if any."""
    if games is not None and trials is not None:
        raise InvalidInput("games must be left out where trials is given: it is the old name")
    name, value = ("games", games) if trials is None else ("trials", trials)
    return None if value is None else checks.integer(name, value, 2)


def _refuse_too_many(expected: float, max_runs: float) -> None:
    if expected > checks.interval("max_runs", max_runs, 0.0):
        raise InvalidInput(
            f"max_runs must be at least the {expected:.3g} runs that are expected, got "
            f"{max_runs:g}: play fewer trials, take a smaller distribution of K, or raise it"
        )


def _reason_for_no_attack(report: PremiseReport, asked: int | None) -> str:
    if report.broken and asked is None:
        return "no attack was made: a premise is broken"
    if report.depends_on_n:
        instead = "" if report.watched else '; relation="replace-one" exchanges records'
        return f"no attack was made: it would only detect the number of records{instead}"
    return ""


def _best_canary(tested: PremiseTest | None, records: TrainingSet) -> TrainingSet:
    """The record that contributed most in the differential test, or a crafted one."""
    if tested is None or tested.canary is None:
        return one_record(crafted(records.features, records.labels))
    return _as_records(tested.canary)


def _as_records(record: PoolRecord) -> TrainingSet:
    return TrainingSet(record.features[None], np.asarray(record.label)[None])


def _verdict(
    runs: Sequence[Run | None],
    distribution: Repetitions,
    claim: float | None,
    delta: float,
    confidence: float,
    error: float,
    planned: int,
    premises: PremiseReport | None,
) -> CheckResult:
    """The largest lower bounds of all statistics, with `confidence` and with a small error."""
    statistics = statistics_of(runs)
    if not any(np.isfinite(np.concatenate(pair)).any() for pair in statistics.values()):
        raise InvalidInput(f"train must release finite numbers, got none in {len(runs)} trials")
    readings: dict[str, lower_bounds.Estimator] = {"": lower_bounds.Scan()}
    gaussian = is_gaussian(runs, distribution)
    if gaussian:
        readings[AS_GAUSSIAN] = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())
    count = len(statistics) * len(readings)
    bounds, proven = (
        {
            name + words: estimator(*scores, delta=delta, confidence=1.0 - each / count)
            for words, estimator in readings.items()
            for name, scores in statistics.items()
        }
        for each in (1.0 - confidence, error)
    )
    best = max(bounds, key=lambda name: bounds[name].epsilon)
    if claim is None:
        claim = claimed_epsilon(runs, distribution, delta)
    share = error / count
    ceiling = max(
        # The bound of a statistic that separates all trials.
        estimator(np.zeros(len(zeros)), np.ones(len(ones)), delta, 1.0 - share).epsilon
        for estimator in readings.values()
        for zeros, ones in statistics.values()
    )
    needed = None
    if claim is not None and ceiling <= claim <= MAX_EPSILON:
        needed = trials_to_prove(claim, delta, len(runs), share)
    result = CheckResult(
        claim=claim,
        delta=delta,
        confidence=confidence,
        epsilon=bounds[best].epsilon,
        proven=max(bound.epsilon for bound in proven.values()),
        shown_by=best,
        bounds=bounds,
        ceiling=ceiling,
        trials=len(runs),
        planned=planned,
        needed=needed,
        premises=premises,
        unread=unread(runs),
    )
    if result.leaks or result.exceeds:
        return result
    return replace(
        result,
        detectable=detectable_noise(
            claim, delta, len(runs), share, gaussian, only_history(runs, distribution)
        ),
        detectable_chance=detectable_chance(claim, delta, len(runs), share),
    )
