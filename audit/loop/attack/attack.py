"""The attack: trials with and without a record, and the statistics that compare them."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from audit import accounting, lower_bounds, upper_bounds
from audit.errors import InvalidInput, require_modules
from audit.loop.attack.residuals import RUNS_PER_TRIAL, Residuals
from audit.loop.runs.optimizer_hooks import run_of
from audit.loop.runs.training_runs import (
    AuditTask,
    Run,
    many_runs,
    run_once,
)
from audit.loop.runs.work import CpuLimit
from audit.numerics import FloatArray
from audit.opacus_objects import History, has_full_batches
from audit.processes import loky_options, watch_ray, worker_deaths
from audit.repetitions import Fixed, Repetitions
from audit.user_code import run_seed

# Smallest share of the within-class covariance that is replaced by its mean variance times the
# identity. The share is larger with fewer trials per recorded number.
_SMALLEST_SHRINKAGE = 0.02
# Numbers are clipped to this many robust standard deviations before the weights are learned.
_LIMIT = 4.0
_DEVIATION_OF_NORMAL = 1.4826  # standard deviation in units of the median absolute deviation
Statistics = Mapping[str, tuple[FloatArray, FloatArray]]
MAX_EPSILON = 500.0
"""For larger claims, detectable noise and the necessary number of trials are not computed."""
DEFAULT_TRIALS, MIN_TRIALS = 1000, 100
"""Numbers of trials of an attack, unless the caller chooses another: at most, and at least."""
ATTACK_WORK = 30_000.0
"""Work of the trials above which fewer than 1,000 are played, see `audit.loop.runs.work`."""
MAX_WORK_OF_ALL_TRIALS = 8 * ATTACK_WORK
"""Work above which no further trials are played where the first suggest a leak."""
# One quarter of the trials is used to learn the linear statistic, which the others then judge.
_TO_LEARN = 4
# Fewer trials on each side are not enough to learn from.
_MIN_TO_LEARN = 10
# The statistics of a trial that are one number each.
_SCORES = ("score", "lambda_a", "lambda_c", "residual")
_MAX_TRIALS_PER_TASK = 50
# Duration of a task of a worker process.
_SECONDS_PER_TASK = 0.5
# Time until worker processes play their first trial.
_SECONDS_TO_START = 10.0
_MAX_JOBS = 64
_MAX_TRIALS_TO_PROVE = 500_000
_SIMULATIONS = 40
_POWER = 0.8
# A random number of steps is constant on both sides, and differs between them, with probability at
# most 2^-15 in this number of trials.
_MIN_TRIALS_OF_STEPS = 16


def discriminant(without: FloatArray, with_record: FloatArray) -> FloatArray | None:
    """Fisher's linear discriminant with a shrunk covariance, of clipped numbers.

    A rare output that reveals the record is far from all others. It would inflate the variance of
    its number, whose weight would then be too small to reveal anything.

    Args:
        without: [n0, f], numbers recorded in trials without the record.
        with_record: [n1, f], numbers recorded in trials with it.

    Returns:
        [f] weights; a high weighted sum indicates the record. None if all trials are equal.
    """
    recorded = _clipped(np.concatenate([without, with_record]))
    without, with_record = recorded[: len(without)], recorded[len(without) :]
    scale = recorded.std(axis=0)
    varies = np.isfinite(scale) & (scale > 1e-12 * np.abs(recorded).max(axis=0))
    if not varies.any():
        return None
    scale = np.where(varies, scale, 1.0)
    weights = np.where(varies, 1.0 / scale, 0.0)
    means = [sample.mean(axis=0) for sample in (without, with_record)]
    within = np.concatenate([without - means[0], with_record - means[1]]) * weights
    trials, numbers = len(recorded), int(varies.sum())
    covariance = within.T @ within / max(trials - 2, 1)
    shrinkage = min(max(numbers / (numbers + trials), _SMALLEST_SHRINKAGE), 1.0)
    mean_variance = max(np.trace(covariance) / numbers, 1e-12)
    shrunk = (1.0 - shrinkage) * covariance + shrinkage * mean_variance * np.eye(len(weights))
    direction: FloatArray = np.linalg.solve(shrunk, (means[1] - means[0]) * weights) * weights
    return direction


def _clipped(numbers: FloatArray) -> FloatArray:
    """[n, f], numbers within a few robust standard deviations of their median.

    A number that is the same in most trials has no such deviation, and stays as it is.
    """
    center = np.median(numbers, axis=0)
    deviation = _DEVIATION_OF_NORMAL * np.median(np.abs(numbers - center), axis=0)
    reach = np.where(deviation > 0, _LIMIT * deviation, np.inf)
    clipped: FloatArray = np.clip(numbers, center - reach, center + reach)
    return clipped


@dataclass(frozen=True)
class Attack:
    """The distinguishing game with a training function.

    Attributes:
        task: the function, its records and the canary.
        repetitions: distribution of the number of runs in each trial.
        candidates: hyperparameters that each run chooses from.
        seed: seed of all random numbers.
        residuals: the residual statistic; None where it does not apply.
    """

    task: AuditTask
    repetitions: Repetitions
    candidates: tuple[Any, ...]
    seed: int
    residuals: Residuals | None = None

    @property
    def runs_per_trial(self) -> int:
        """Number of runs of a trial for each of its K trainings."""
        return 1 if self.residuals is None else RUNS_PER_TRIAL

    def affordable_trials(self, work: float) -> int:
        """The number of trials that `ATTACK_WORK` allows, from 100 to 1,000, and even.

        Args:
            work: work of the K trainings of a trial.
        """
        if work <= 0:
            return DEFAULT_TRIALS
        affordable = int(ATTACK_WORK / (work * self.runs_per_trial))
        return min(max(affordable, MIN_TRIALS), DEFAULT_TRIALS) // 2 * 2

    def with_residuals(self, trials: int | None, work: float) -> "Attack":
        """The same attack with the residual statistic, where it applies and is not too much work.

        Args:
            trials: number of trials that the caller chose, or None.
            work: work of a training.
        """
        task = self.task
        applies = self.repetitions == Fixed(1) and len(self.candidates) == 1
        if not applies or task.initial is None or task.canaries is None:
            return self
        # The adversary's own runs would have another divisor.
        if task.expected_batch_size is not None:
            return self
        # With fewer trials, the statistic, which costs three runs per trial, gives a smaller bound
        # than another statistic with three times as many trials.
        if trials is None and RUNS_PER_TRIAL * MIN_TRIALS * work > ATTACK_WORK:
            return self
        residuals = Residuals.of(
            task.train, self.candidates[0], task.records, task.canaries, task.initial, self.seed
        )
        return replace(self, residuals=residuals)

    def play(self, trial: int) -> Run | None:
        """Plays one trial; odd trials include the record. Returns None if there was no run."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(trial,)))
        included = np.array([trial % 2 == 1])
        best: Run | None = None
        count = int(self.repetitions.sample(rng, 1)[0])
        for run in range(count):
            candidate = self.candidates[int(rng.integers(len(self.candidates)))]
            recorder = None if self.residuals is None else self.residuals.recorder()
            seed = run_seed(self.seed, trial, run)
            run_of_model = run_once(self.task, included, candidate, seed, recorder)
            if self.residuals is not None and recorder is not None:
                residual = self.residuals.statistic(recorder.recorded)
                run_of_model = replace(run_of_model, residual=np.array([residual]))
            if best is None or run_of_model.choice > best.choice:
                best = run_of_model
        return best

    def play_some(self, trials: range) -> list[Run | None]:
        """Plays several trials."""
        with many_runs():
            return [self.play(trial) for trial in trials]

    def play_all(
        self,
        trials: int,
        jobs: int | None = None,
        cpu: CpuLimit | None = None,
        played: Sequence[Run | None] = (),
    ) -> list[Run | None]:
        """Plays trials in order.

        Args:
            trials: number of trials.
            jobs: number of processes; None takes one per idle core if that saves time.
            cpu: limit on CPU time; None sets none.
            played: an even number of trials that were played before, from the first on.

        Returns:
            All trials; if the first two give no statistic because the model cannot be read, these
            alone.

        Raises:
            CouldNotFinish: the CPU time is used up.
        """
        cpu = cpu or CpuLimit(math.inf)
        start = time.perf_counter()
        runs = [*played, *self.play_some(range(len(played), min(len(played) + 2, trials)))]
        if why_no_statistic(runs):
            return runs
        seconds = max((time.perf_counter() - start) / 2, 1e-6)
        if jobs is None:
            jobs = _jobs_that_pay(seconds * (trials - len(runs)))
        size = 2 * max(1, min(_MAX_TRIALS_PER_TASK, int(_SECONDS_PER_TASK / seconds)) // 2)
        blocks = [range(i, min(i + size, trials)) for i in range(len(runs), trials, size)]
        if jobs == 1:
            for block in blocks:
                cpu.check()
                runs += self.play_some(block)
            return runs
        return runs + self._play_in_processes(blocks, jobs, cpu)

    def _play_in_processes(
        self, blocks: Sequence[range], jobs: int, cpu: CpuLimit
    ) -> list[Run | None]:
        require_modules("game", "joblib")
        from joblib import Parallel, delayed

        runs: list[Run | None] = []
        try:
            with watch_ray("check again"), Parallel(n_jobs=jobs, **loky_options()) as parallel:
                for start in range(0, len(blocks), jobs):
                    cpu.check()
                    tasks = (delayed(self._play_and_time)(p) for p in blocks[start : start + jobs])
                    for played, seconds in parallel(tasks):
                        runs += played
                        cpu.add(seconds)
        except worker_deaths() as error:
            raise InvalidInput(
                f"jobs must be fewer, or train must need less memory: a worker process of {jobs} "
                f"ended without an answer ({type(error).__name__})"
            ) from error
        return runs

    def _play_and_time(self, trials: range) -> tuple[list[Run | None], float]:
        """Plays several trials in a worker process, and counts their CPU seconds."""
        start = time.process_time()
        runs = self.play_some(trials)
        return runs, time.process_time() - start


def detectable_noise(
    claim: float | None,
    delta: float,
    trials: int,
    error: float,
    gaussian: bool,
    history: History | None = None,
) -> float | None:
    """The largest noise, as a share of the claimed one, that trials detect with 80 % probability.

    Simulates the attack on the mechanism that the accountant describes, with a share of its noise:
    the canary adds C to a step whose batch holds it, and nothing else varies. For sampled batches,
    the simulated statistic is the sum over the steps, as in `lambda_a`.

    Args:
        claim: the claimed epsilon.
        delta: delta of the claim.
        trials: number of trials.
        error: error probability of one bound.
        gaussian: whether the bound may assume a Gaussian mechanism.
        history: the accountant's phases; None simulates the Gaussian mechanism of the claim, where
            runs have different histories.

    Returns:
        A number below 1 in steps of 0.05; None if not even 5 % of the noise is detected, nothing
        is claimed, or there are fewer than 20 trials.

    Example:
        >>> 0.5 < detectable_noise(3.0, 1e-5, 1000, 0.01, True) < 1.0
        True
    """
    if claim is None or not 0.0 < claim < MAX_EPSILON or trials < 20:
        return None
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(_SIMULATIONS, 2, trials // 2))
    if history and all(sigma > 0 for sigma, _, _ in history):
        shift = _shifts(history, (_SIMULATIONS, trials // 2), rng)
    else:
        mu = accounting.calibrate_mu(claim, delta, "exact")
        shift = np.full((_SIMULATIONS, trials // 2), mu)
    estimator: lower_bounds.Estimator = lower_bounds.Scan()
    if gaussian:
        estimator = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())

    def is_found(share: float) -> bool:
        shown = [
            estimator(out, into + shift_of_run / share, delta, 1.0 - error).epsilon > claim
            for (out, into), shift_of_run in zip(normal, shift, strict=True)
        ]
        return float(np.mean(shown)) >= _POWER

    low, high = 1, 20  # twentieths: found at low, not at high
    if not is_found(low / 20):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_found(middle / 20) else (low, middle)
    return low / 20


def _shifts(history: History, size: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Shifts of the statistic by the record, in standard deviations of the accounted noise."""
    if has_full_batches(history):
        return np.full(size, math.sqrt(sum(steps / sigma**2 for sigma, _, steps in history)))
    hits = sum(rng.binomial(steps, rate, size) for _, rate, steps in history)
    return np.asarray(hits) / math.sqrt(sum(steps * sigma**2 for sigma, _, steps in history))


def separation_of(
    runs: Sequence[Run | None], claim: float | None, delta: float
) -> tuple[float | None, float | None]:
    """How far the record moves the outputs, and how far the claim allows it to.

    Args:
        runs: the trials, which alternate between runs without and with the record.
        claim: the claimed epsilon.
        delta: delta of the claim.

    Returns:
        The largest difference of the means of a statistic in units of its standard deviation, and
        that difference for the Gaussian mechanism with the claimed epsilon; None where unknown.
    """
    if claim is None or not 0.0 < claim < MAX_EPSILON or len(runs) < _MIN_TRIALS_OF_STEPS:
        return None, None
    largest = 0.0
    for zeros, ones in statistics_of(runs).values():
        zeros, ones = zeros[np.isfinite(zeros)], ones[np.isfinite(ones)]
        if min(len(zeros), len(ones)) < 2:
            continue
        spread = math.sqrt((zeros.var(ddof=1) + ones.var(ddof=1)) / 2)
        gap = abs(float(ones.mean() - zeros.mean()))
        largest = max(largest, gap / spread if spread > 0 else (math.inf if gap > 0 else 0.0))
    return largest, accounting.calibrate_mu(claim, delta, "exact")


def detectable_chance(claim: float | None, delta: float, trials: int, error: float) -> float | None:
    """The smallest probability of a revealing output that trials detect with 80 % probability.

    The output never occurs without the record, and the attack sees it.

    Args:
        claim: the claimed epsilon.
        delta: delta of the claim.
        trials: number of trials.
        error: error probability of one bound.

    Returns:
        A probability; None if no probability is detected or nothing is claimed.

    Example:
        >>> 0.01 < detectable_chance(1.0, 1e-5, 1000, 0.05) < 0.1
        True
    """
    if claim is None:
        return None
    half = trials // 2

    def is_found(hits: int) -> bool:
        with_record = np.arange(half) < hits
        bound = lower_bounds.Scan()(np.zeros(half), with_record.astype(float), delta, 1.0 - error)
        return bound.epsilon > claim

    low, high = 0, half  # not found at low, found at high
    if half < 1 or not is_found(half):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    # With this probability of the output, at least `high` trials have it with probability 80 %.
    return float(stats.beta.ppf(_POWER, high, half - high + 1))


def trials_to_prove(claim: float, delta: float, trials: int, error: float) -> int | None:
    """The smallest number of trials, of these and twice as many and so on, that can prove more.

    Args:
        claim: the claimed epsilon.
        delta: delta of the claim.
        trials: number of trials that are not enough.
        error: error probability of one bound.

    Returns:
        The number; None if it is above a million.

    Example:
        >>> trials_to_prove(4.0, 1e-5, 100, 0.05)
        400
    """
    while trials <= _MAX_TRIALS_TO_PROVE:
        trials *= 2
        half = trials // 2
        if lower_bounds.max_detectable_epsilon(half, half, delta, 1.0 - error) > claim:
            return trials
    return None


def check_steps(runs: Sequence[Run | None]) -> None:
    """Refuses a number of records that changes the accounted steps: the attack would detect it."""
    sides = [{run.history for run in runs[start::2] if run is not None} for start in (0, 1)]
    if len(runs) < _MIN_TRIALS_OF_STEPS:
        return  # a random number of steps may differ between few trials
    if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]:
        without, with_record = (next(iter(side)) for side in sides)
        raise InvalidInput(
            "steps and sampling rate must not depend on the number of records, got (noise, rate, "
            f"steps) = {without} without the canary and {with_record} with it"
        )


def _fewest_trials(runs: Sequence[Run | None]) -> int:
    """The smallest number of trials that has a statistic; a learned one needs at least 80."""
    completed = [run for run in runs if run is not None]
    scored = any(len(getattr(run, name)) for run in completed for name in _SCORES)
    learned = not scored and any(len(run.details) for run in completed)
    return 2 * _TO_LEARN * _MIN_TO_LEARN if learned else 2


def unread(runs: Sequence[Run | None]) -> str:
    """The reason why the model or the canary's gradient gave no statistic; empty if they did."""
    return next((run.unread for run in runs if run is not None and run.unread), "")


def why_no_statistic(runs: Sequence[Run | None]) -> str:
    """As `unread`, and empty if any trial gave a score or a number."""
    names = (*_SCORES, "details")
    has_statistic = any(
        len(getattr(run, name)) for run in runs if run is not None for name in names
    )
    return "" if has_statistic else unread(runs)


def statistics_of(runs: Sequence[Run | None]) -> Statistics:
    """The scores of trials without and with the record, for every statistic."""
    completed = [run for run in runs if run is not None]
    if not completed:
        raise InvalidInput("repetitions must include at least one run, got none in all trials")
    numbers: dict[str, FloatArray] = {}
    for name in _SCORES:
        if any(len(getattr(run, name)) for run in completed):
            numbers[name] = np.array([_number(run, name) for run in runs])
    if "lambda_a" in numbers and np.array_equal(numbers["lambda_a"], numbers["lambda_c"]):
        del numbers["lambda_c"]  # batches were not sampled
    statistics = {name: (values[0::2], values[1::2]) for name, values in numbers.items()}
    learned = _learned(runs)
    if learned is not None:
        statistics["learned"] = learned
    if statistics:
        return statistics
    if any(len(run.details) for run in completed):
        if len(runs) < _fewest_trials(runs):
            raise InvalidInput(
                f"trials must be at least {_fewest_trials(runs)} where train returns several "
                "numbers, because a quarter of the trials learn the statistic, got "
                f"{len(runs)}"
            )
        constant = np.zeros(len(runs))  # the numbers are the same in all trials
        return {"learned": (constant[0::2], constant[1::2])}
    raise InvalidInput(
        unread(runs)
        or "train must return a model, an estimator or numbers, or call watch, got none of these"
    )


def _number(run: Run | None, name: str) -> float:
    """A score of a trial; a missing score or NaN counts as minus infinity."""
    values = np.empty(0) if run is None else getattr(run, name)
    return float(values[0]) if len(values) and not np.isnan(values[0]) else -math.inf


def _learned(runs: Sequence[Run | None]) -> tuple[FloatArray, FloatArray] | None:
    """A linear statistic of all recorded numbers, for the trials that it was not learned on.

    For a single number it learns the sign, because a record may lower the returned number.
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


def is_gaussian(runs: Sequence[Run | None], distribution: Repetitions) -> bool:
    """Whether each trial is one run that its accountant describes as a Gaussian mechanism."""
    full = all(has_full_batches(run.history) for run in runs if run is not None)
    return full and distribution == Fixed(1)


def only_history(runs: Sequence[Run | None], distribution: Repetitions) -> History | None:
    """The accountant's history if each trial is one run and all runs have the same history."""
    histories = {run.history for run in runs if run is not None}
    return histories.pop() if len(histories) == 1 and distribution == Fixed(1) else None


def claimed_epsilon(
    runs: Sequence[Run | None], distribution: Repetitions, delta: float
) -> float | None:
    """The largest epsilon that a run claims, or for K runs the cost of the tuning."""
    claims = {(run.claim, run.history) for run in runs if run is not None}
    epsilons = [_cost(claim, history, distribution, delta) for claim, history in claims]
    return max((epsilon for epsilon in epsilons if epsilon is not None), default=None)


def _jobs_that_pay(work: float) -> int:
    """Number of processes that do this work (in seconds) soonest; results do not depend on it."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 1.0
    # This process is part of the load. Other processes slow workers down.
    jobs = max(int(min(cores - max(load - 1.0, 0.0), _MAX_JOBS)), 1)
    return jobs if _SECONDS_TO_START + work / jobs < work else 1


def _cost(
    claim: float | None,
    history: tuple[tuple[float, float, int], ...] | None,
    distribution: Repetitions,
    delta: float,
) -> float | None:
    if distribution == Fixed(1) or not history:
        return claim
    return upper_bounds.tuning_cost(run_of(history), distribution, delta).epsilon
