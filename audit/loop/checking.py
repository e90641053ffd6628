"""`audit.check`: the differential test of a training function, an attack on it, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit import checks, lower_bounds
from audit.errors import InvalidInput
from audit.loop.attack.attack import (
    DEFAULT_TRIALS,
    MAX_EPSILON,
    MAX_WORK_OF_ALL_TRIALS,
    Attack,
    check_steps,
    claimed_epsilon,
    detectable_chance,
    detectable_noise,
    is_gaussian,
    only_history,
    separation_of,
    statistics_of,
    trials_to_prove,
    unread,
    why_no_statistic,
)
from audit.loop.findings import PremiseReport
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.check_premises import PremiseTest, check_premises
from audit.loop.premises.number_of_records import PublicSize
from audit.loop.result import ATTACK_ERROR, CheckResult
from audit.loop.runs.records import TrainingSet, one_record
from audit.loop.runs.training_runs import AuditTask, Run, Train, exchanges, one_thread
from audit.loop.runs.work import CPU_SECONDS, CouldNotFinish, CpuLimit
from audit.loop.sources.records import adapt_records
from audit.repetitions import Repetitions, parse_repetitions
from canaries import DiracCanary, crafted

AS_GAUSSIAN = ", of the Gaussian mechanism that its accountant describes"
"""Suffix of a statistic whose bound requires the mechanism that the accountant describes."""

RELATIONS = ("add-remove", "zero-out", "replace-one")
MAX_RUNS = 1e6
"""Default limit on the expected number of calls of a training function."""

# If the bound exceeds the claim, but perhaps by chance, this many times the trials are played.
_TIMES_MORE_TRIALS, _MAX_TRIALS = 4, 16_000


def check(
    train: Train,
    records: Any,
    canary: Any = None,
    *,
    claim: float | None = None,
    delta: float = 1e-5,
    trials: int | None = None,
    confidence: float = 0.95,
    repetitions: str | Repetitions = "fixed:1",
    candidates: Sequence[Any] = (None,),
    validation: Any = None,
    loss: Callable[..., Any] | None = None,
    relation: str | None = None,
    premises: bool = True,
    attack: bool = True,
    seed: int = 0,
    jobs: int | None = None,
    max_runs: float = MAX_RUNS,
    cpu_seconds: float = CPU_SECONDS,
) -> CheckResult:
    """Tests whether a training function does what its accountant assumes, then attacks it.

    First, the differential test examines each premise of the accountant separately
    (`audit.loop.premises.check_premises`): the contribution of one record, the noise, the batches,
    the accountant's records, and every released number. If a premise is broken, the verdict reports
    it and, unless a number of trials is given, no attack is made.

    Then the distinguishing game is played. Half of the trials train on `records` with the canary
    instead of the last record, half on `records` without the last; under "replace-one", functions
    that are not watched get another record in its place. Under "zero-out", if the divisor depends
    on the number of records n, the attack takes a number of records for which n and n - 1 have the
    same divisor, or keeps that of n. With `repetitions`, each trial trains K
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

    All limits count the work of the runs (`audit.loop.runs.work`), so that the verdict is the same
    on every machine. If `cpu_seconds` are used up, the verdict is that the check could not finish.

    If the function calls `watch` with its accountant, all trials start from the same weights: the
    accountant's epsilon holds for every initialization, and fixed weights add no variance. Torch
    computes with one thread, unless the function sets another number.

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
        trials: number of trials. None plays 1,000 of them, fewer (at least 100) if runs have many
            steps or many parameters, more if these suggest a leak and do not prove it; if a premise
            is broken, it plays none.
        confidence: confidence of the reported lower bound, in (0, 1).
        repetitions: distribution of K, in the notation of `audit.repetitions.parse_repetitions`.
        candidates: the hyperparameters to choose from.
        validation: records like `records`, by whose mean score the best run is chosen; None chooses
            by the canary's score.
        loss: `loss(model, features, labels)` of a torch module on records, summed; None takes the
            cross-entropy of its logits.
        relation: neighbouring relation: "add-remove"; or "zero-out" or "replace-one", under which
            the number of records is public. None takes "zero-out" if the function calls `watch`
            with an optimizer of Opacus, and "add-remove" otherwise.
        premises: whether to make the differential test. Without it, an attack under zero-out may
            detect the number of records.
        attack: whether to attack the function. A unit test needs the differential test alone.
        seed: seed of all random numbers.
        jobs: number of worker processes of joblib's active backend; None takes one per idle core
            if that saves time. If a worker dies, Dask repeats its trials, and the others raise.
        max_runs: limit on the expected number of calls of the function; a larger number is refused
            before the first call.
        cpu_seconds: CPU time after which the check ends without a verdict (exit code 2).

    Returns:
        The verdict. It is false if a premise is broken, if the attack proves more than is claimed,
        if nothing could be tested, or if there is neither a claim nor a watched accountant.

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
    checks.function("train", train, "records", "candidate", "seed", "watch")
    if loss is not None:
        checks.function("loss", loss, "model", "features", "labels")
    game = _Game(
        claim=None if claim is None else checks.interval("claim", claim, 0.0, closed_low=True),
        delta=checks.interval("delta", delta, 0.0, 1.0),
        confidence=checks.interval("confidence", confidence, 0.0, 1.0),
        trials=None if trials is None else checks.integer("trials", trials, 2),
        distribution=parse_repetitions(repetitions),
        candidates=_candidates(candidates),
        seed=checks.integer("seed", seed, 0),
        jobs=None if jobs is None else checks.integer("jobs", jobs, 1, checks.MAX_JOBS),
        attack=_attack_flag(attack, trials),
        premises=checks.flag("premises", premises),
        relation=None if relation is None else checks.one_of("relation", relation, RELATIONS),
        cpu=CpuLimit(checks.interval("cpu_seconds", cpu_seconds, 0.0)),
    )
    if not game.attack and not game.premises:
        raise InvalidInput("attack must be True where premises is False, or nothing is tested")
    if game.attack:
        expected = (game.trials or DEFAULT_TRIALS) * game.distribution.mean
        _refuse_too_many(expected, max_runs)
    subject = _Subject.of(train, records, canary, validation, loss)
    try:
        with one_thread():
            return _checked(subject, game)
    except CouldNotFinish as unfinished:
        return CheckResult(game.claim, game.delta, game.confidence, unfinished=str(unfinished))


@dataclass(frozen=True)
class _Subject:
    """The function and the records of a check.

    Attributes:
        canary: the record that the caller chose, or None.
        is_dirac: whether the canary is a worst-case gradient.
        validation: records by which the best run is chosen, or None.
        loss: the summed loss, or None.
    """

    train: Train
    records: TrainingSet
    canary: TrainingSet | None
    is_dirac: bool
    validation: Any
    loss: Callable[..., Any] | None

    @staticmethod
    def of(
        train: Train, records: Any, canary: Any, validation: Any, loss: Callable[..., Any] | None
    ) -> "_Subject":
        train, records, canary = adapt_records(train, records, canary)
        training_set = TrainingSet.of(records)
        is_dirac = isinstance(canary, DiracCanary)
        record = None if canary is None or is_dirac else one_record(canary)
        shape = training_set.features.shape[1:]
        if record is not None and len(training_set) and record.features.shape[1:] != shape:
            raise InvalidInput(
                f"canary must have features of shape {shape} as the records have, "
                f"got {record.features.shape[1:]}"
            )
        return _Subject(train, training_set, record, is_dirac, validation, loss)


@dataclass(frozen=True)
class _Game:
    """The options of a check, see `check`."""

    claim: float | None
    delta: float
    confidence: float
    trials: int | None
    distribution: Repetitions
    candidates: tuple[Any, ...]
    seed: int
    jobs: int | None
    attack: bool
    premises: bool
    relation: str | None
    cpu: CpuLimit

    def skipped(self, reason: str, report: PremiseReport) -> CheckResult:
        """The verdict without an attack."""
        return CheckResult(
            self.claim, self.delta, self.confidence, premises=report, attack_skipped=reason
        )


def _candidates(candidates: Sequence[Any]) -> tuple[Any, ...]:
    if not isinstance(candidates, Sequence) or isinstance(candidates, str) or not candidates:
        raise InvalidInput(
            f"candidates must be a sequence of at least one, got {checks.one_line(candidates)}"
        )
    return tuple(candidates)


def _attack_flag(attack: bool, trials: int | None) -> bool:
    attack = checks.flag("attack", attack)
    if not attack and trials is not None:
        raise InvalidInput(f"trials must be left out where attack is False, got {trials}")
    return attack


def _refuse_too_many(expected: float, max_runs: float) -> None:
    if expected > checks.interval("max_runs", max_runs, 0.0):
        raise InvalidInput(
            f"max_runs must be at least the {expected:.3g} runs that are expected, got "
            f"{max_runs:g}: play fewer trials, take a smaller distribution of K, or raise it"
        )


def _checked(subject: _Subject, game: _Game) -> CheckResult:
    """The differential test, then the attack if there is a reason for it."""
    tested = None
    if game.premises and not (subject.is_dirac and len(subject.records) == 0):
        tested = check_premises(
            subject.train,
            subject.records,
            canary=subject.canary,
            candidate=game.candidates[0],
            claim=game.claim,
            delta=game.delta,
            relation=game.relation,
            loss=subject.loss,
            seed=game.seed,
            cpu=game.cpu,
        )
    size: PublicSize | None = None
    if tested is not None:
        if tested.report.unfinished:
            raise CouldNotFinish(tested.report.unfinished)
        reason = _reason_for_no_attack(tested.report, game)
        if not reason and tested.report.depends_on_n:
            size = None if tested.public_size is None else tested.public_size()
            reason = "" if size is not None else _only_n(tested.report)
        if reason:
            return game.skipped(reason, tested.report)
    task = _task(subject, game, tested, size)
    with game.cpu.enforced():
        return _attacked(task, game, tested)


def _reason_for_no_attack(report: PremiseReport, game: _Game) -> str:
    if not game.attack:
        return "no attack was made: attack=False"
    if report.broken and game.trials is None:
        return "no attack was made: a premise is broken"
    return ""


def _only_n(report: PremiseReport) -> str:
    instead = "" if report.watched else '; relation="replace-one" exchanges records'
    return f"no attack was made: it would only detect the number of records{instead}"


def _task(
    subject: _Subject, game: _Game, tested: PremiseTest | None, size: PublicSize | None
) -> AuditTask:
    """The two data sets of the attack, and what all of its runs share."""
    records = subject.records if size is None else subject.records.first_records(size.records)
    relation = game.relation or ("add-remove" if tested is None else tested.report.relation)
    watched = tested is not None and tested.report.watched
    replaced = None
    if exchanges(relation, watched) and not subject.is_dirac:
        if len(records) == 0:
            raise InvalidInput("records must hold the record that is replaced, got none")
        best = tested.replaced if tested and subject.canary is None else None
        last_record = TrainingSet(records.features[-1:], records.labels[-1:])
        replaced = last_record if best is None else _as_records(best)
    canary = subject.canary
    if canary is None and not subject.is_dirac:
        canary = _best_canary(tested, subject.records)
    return AuditTask(
        subject.train,
        records.without_last(),
        canary,
        None if subject.validation is None else TrainingSet.of(subject.validation, "validation"),
        subject.loss,
        game.delta,
        initial=None if tested is None else tested.initial,
        replaced=replaced,
        expected_batch_size=None if size is None else size.expected_batch_size,
    )


def _best_canary(tested: PremiseTest | None, records: TrainingSet) -> TrainingSet:
    """The record that contributed most in the differential test, or a crafted one."""
    if tested is None or tested.canary is None:
        return one_record(crafted(records.features, records.labels))
    return _as_records(tested.canary)


def _as_records(record: PoolRecord) -> TrainingSet:
    return TrainingSet(record.features[None], np.asarray(record.label)[None])


def _attacked(task: AuditTask, game: _Game, tested: PremiseTest | None) -> CheckResult:
    """Plays trials, more of them if the first suggest a leak, and returns the verdict."""
    report = None if tested is None else tested.report
    work = (0.0 if tested is None else tested.work) * game.distribution.mean
    attack = Attack(task, game.distribution, game.candidates, game.seed)
    attack = attack.with_residuals(game.trials, work)
    planned = attack.affordable_trials(work) if game.trials is None else game.trials
    runs = attack.play_all(planned, game.jobs, game.cpu)
    if task.canaries is None and not any(run is not None and len(run.lambda_a) for run in runs):
        raise InvalidInput(
            "canary must be a record where train never calls watch with its optimizer, got a "
            "DiracCanary: its gradient could not be inserted"
        )
    check_steps(runs)
    if report is not None and game.trials is None and (reason := why_no_statistic(runs)):
        return game.skipped(f"no attack was made: {reason}", report)
    error = ATTACK_ERROR if game.trials is not None else ATTACK_ERROR / 2
    first_verdict = _verdict(runs, game, error, report)
    result = first_verdict
    while game.trials is None and result.exceeds and planned < _MAX_TRIALS:
        planned, error = min(planned * _TIMES_MORE_TRIALS, _MAX_TRIALS), error / 2
        if planned * work * attack.runs_per_trial > MAX_WORK_OF_ALL_TRIALS:
            break
        runs = attack.play_all(planned, game.jobs, game.cpu, runs)
        result = _verdict(runs, game, error, report)
    # Later trials are played if the first bound is large. So it alone holds with `confidence`.
    return replace(
        result,
        epsilon=first_verdict.epsilon,
        bounds=first_verdict.bounds,
        shown_by=first_verdict.shown_by,
    )


def _verdict(
    runs: Sequence[Run | None], game: _Game, error: float, premises: PremiseReport | None
) -> CheckResult:
    """The largest lower bounds of all statistics, with `confidence` and with a small error."""
    statistics = statistics_of(runs)
    if not any(np.isfinite(np.concatenate(pair)).any() for pair in statistics.values()):
        raise InvalidInput(f"train must release finite numbers, got none in {len(runs)} trials")
    readings: dict[str, lower_bounds.Estimator] = {"": lower_bounds.Scan()}
    gaussian = is_gaussian(runs, game.distribution)
    if gaussian:
        readings[AS_GAUSSIAN] = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())
    count = len(statistics) * len(readings)
    bounds, proven = (
        {
            name + words: estimator(*scores, delta=game.delta, confidence=1.0 - level / count)
            for words, estimator in readings.items()
            for name, scores in statistics.items()
        }
        for level in (1.0 - game.confidence, error)
    )
    best = max(bounds, key=lambda name: bounds[name].epsilon)
    claim = game.claim
    if claim is None:
        claim = claimed_epsilon(runs, game.distribution, game.delta)
    share = error / count
    ceiling = max(
        # The bound of a statistic that separates all trials.
        estimator(np.zeros(len(zeros)), np.ones(len(ones)), game.delta, 1.0 - share).epsilon
        for estimator in readings.values()
        for zeros, ones in statistics.values()
    )
    result = CheckResult(
        claim=claim,
        delta=game.delta,
        confidence=game.confidence,
        epsilon=bounds[best].epsilon,
        proven=max(bound.epsilon for bound in proven.values()),
        shown_by=best,
        bounds=bounds,
        ceiling=ceiling,
        trials=len(runs),
        planned=DEFAULT_TRIALS if game.trials is None else game.trials,
        needed=_needed(claim, ceiling, game.delta, len(runs), share),
        premises=premises,
        unread=unread(runs),
    )
    if result.leaks or result.exceeds:
        return result
    return _with_power(result, runs, game, share, gaussian)


def _needed(
    claim: float | None, ceiling: float, delta: float, trials: int, error: float
) -> int | None:
    if claim is not None and ceiling <= claim <= MAX_EPSILON:
        return trials_to_prove(claim, delta, trials, error)
    return None


def _with_power(
    result: CheckResult, runs: Sequence[Run | None], game: _Game, error: float, gaussian: bool
) -> CheckResult:
    """The verdict with the noise and the outputs that these trials detect.

    The noise that trials detect follows from the accountant's description. Without an accountant it
    is unknown: other random numbers, such as initial weights, may hide a record as noise does.
    """
    claim, delta = result.claim, game.delta
    history = only_history(runs, game.distribution)
    if history is None and not any(run is not None and run.history for run in runs):
        separation, allowed = separation_of(runs, claim, delta)
        result = replace(result, separation=separation, separation_of_claim=allowed)
        if result.hidden:
            return result
        noise = None
    else:
        noise = detectable_noise(claim, delta, len(runs), error, gaussian, history)
    # One of several outputs is seen by the learned statistic, which is judged on fewer trials.
    judged = min(len(zeros) + len(ones) for zeros, ones in statistics_of(runs).values())
    return replace(
        result,
        detectable=noise,
        detectable_chance=detectable_chance(claim, delta, judged, error),
    )
