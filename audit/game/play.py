"""The distinguishing game against a tuning protocol (Xiang, Wang & Wang 2024, algorithm 1).

An audit is divided into blocks of trials. It plays all of them, or only until the bound to report
is sufficient.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from audit import console, lower_bounds
from audit.errors import InvalidInput
from audit.game.settings import AuditConfig, Evaluation, Workload
from audit.game.setup import set_up
from audit.numerics import BoolArray, FloatArray, IntArray, format_places
from audit.simulation import Winners, tune

# The reduced engine plays a block with one draw.
_TRIALS_OF_A_DRAW = 1 << 14
# A block of the other engines takes a processor a few seconds. That limits the loss of a killed
# process, keeps sixteen workers busy, and moves the progress bar. Work is measured in gradients of
# a small network on one core.
_WORK_OF_A_BLOCK = 1 << 22
_WORK_OF_NOISE = 64
_WORK_OF_GRADIENT = {"logistic": 1, "mlp": 1, "convnet": 16}
# A stored trial takes about 100 bytes of memory; the limit on runs counts it as this many runs.
_RUNS_OF_A_STORED_TRIAL = 100
# Time of all bounds of one budget and view; the simulations of rank sums take most of it.
_SECONDS_OF_BOUNDS = 15.0
# No number of trials can show a larger epsilon.
_MAX_EPSILON = 500.0
_LONG_SECONDS = 60.0
# Smaller batches of runs are slower, and larger ones would make a block too long.
_MIN_RUNS, _MIN_RUNS_OF_ONE_RECORD, _MIN_RUNS_OF_A_GPU = 1 << 3, 1 << 7, 1 << 10
_MAX_RUNS = 1 << 11


@dataclass(frozen=True, order=True)
class Block:
    """A range of trials from index `start` on, with its own random stream."""

    budget: int
    repeat: int
    index: int
    start: int
    trials: int

    @property
    def name(self) -> str:
        """Name of the block's shard."""
        return f"budget{self.budget}-repeat{self.repeat}-block{self.index:06d}"


def all_blocks(workload: Workload, engine: str) -> list[Block]:
    """All blocks of an audit, in order. They do not depend on the number of workers."""
    size = _TRIALS_OF_A_DRAW
    if engine != "reduced":
        smallest = _MIN_RUNS_OF_ONE_RECORD if workload.records == 1 else _MIN_RUNS
        if workload.place.device_kind != "cpu":
            smallest = _MIN_RUNS_OF_A_GPU
        runs = min(max(_WORK_OF_A_BLOCK // _work_of_run(workload, engine), smallest), _MAX_RUNS)
        per_trial = workload.runs_per_trial
        if workload.protocol.is_sequential:
            per_trial = math.sqrt(per_trial)
        size = max(1, math.ceil(runs / max(per_trial, 1.0)))
    return [
        Block(budget, repeat, index, start, min(size, workload.trials - start))
        for budget in range(workload.budgets)
        for repeat in range(workload.repeats)
        for index, start in enumerate(range(0, workload.trials, size))
    ]


def _work_of_run(workload: Workload, engine: str) -> int:
    steps = 1 if engine == "collapsed" else workload.steps
    gradients = workload.records * _WORK_OF_GRADIENT.get(workload.model, 1)
    return steps * (gradients + _WORK_OF_NOISE)


def expected_seconds(workload: Workload, seconds_of_run: float) -> float:
    """Approximate time of the trials on one processor; a workload beyond the limits is refused."""
    runs, trials, budgets = workload.expected_runs, workload.total_trials, workload.budgets
    if runs > workload.max_runs:
        raise InvalidInput(
            f"max_runs must be at least the {runs:.3g} runs that are expected, got "
            f"{workload.max_runs:g}: play fewer trials, choose a distribution of K with a smaller "
            "mean, or raise it"
        )
    if trials * _RUNS_OF_A_STORED_TRIAL > workload.max_runs:
        raise InvalidInput(
            f"max_runs must be at least {trials * _RUNS_OF_A_STORED_TRIAL:.3g} for {trials:.3g} "
            f"trials, because each stored trial counts as {_RUNS_OF_A_STORED_TRIAL} runs, got "
            f"{workload.max_runs:g}: play fewer trials, or raise it"
        )
    if budgets > workload.max_budgets:
        minutes = expected_seconds_of_bounds(workload) / 60
        raise InvalidInput(
            f"max_budgets must be at least {budgets}, the number of values of epsilon, got "
            f"{workload.max_budgets}: their bounds alone take about {minutes:.0f} minutes; choose "
            "fewer, or raise it"
        )
    seconds = runs * seconds_of_run
    hours = seconds / workload.place.workers / 3600.0
    if workload.place.device_kind == "cpu" and hours > workload.max_hours:
        raise InvalidInput(
            f"max_hours must be at least the {hours:.3g} hours that are expected, got "
            f"{workload.max_hours:g}: play fewer trials or steps, use more jobs, or raise it"
        )
    return seconds


def expected_seconds_of_bounds(workload: Workload) -> float:
    """Approximate time of the bounds after the trials, in one process."""
    return workload.budgets * workload.views * _SECONDS_OF_BOUNDS


def outlook(
    workload: Workload, evaluation: Evaluation, budget: float, seconds: float
) -> Iterator[str]:
    """Lines about the largest eps_L that the trials can show, and about the time of a long audit.

    `budget` is the largest eps_B, and `seconds` the time of the trials on one processor.
    """
    trials, looks = workload.trials * workload.repeats, len(evaluation.looks)
    delta, confidence = evaluation.delta, evaluation.confidence
    detectable = lower_bounds.max_detectable_epsilon(
        trials // 2, trials // 2, delta, confidence, plan=looks
    )
    words = (
        f"{trials:,} trials per budget can show an eps_L of at most "
        f"{format_places(detectable, up=True, places=2)}"
    )
    if detectable < budget <= _MAX_EPSILON:
        needed = lower_bounds.trials_needed(budget, delta, 1.0 - (1.0 - confidence) / looks)
        words += f"; at least {2 * needed:,} are needed to show eps_B = {budget:g}"
    yield words
    place = workload.place
    seconds = seconds / place.workers + expected_seconds_of_bounds(workload)
    if place.device_kind == "cpu" and seconds > _LONG_SECONDS:
        yield (
            f"about {workload.expected_runs:,.0f} runs and the bounds of {workload.budgets} "
            f"budgets, roughly {console.duration(seconds)} with jobs {place.workers}"
        )


@dataclass(frozen=True)
class Trials(Winners):
    """The results of T trials: the released winners, and whether each canary was in the data."""

    trial: IntArray  # [T] index within budget and repeat
    bit: BoolArray  # [T] whether the canary was in the data
    # [T] the proxy that adds the score; minus infinity if nothing was released
    lambda_b: FloatArray

    @classmethod
    def joined(cls, *parts: "Trials") -> Self:
        """The trials of several blocks or repeats, concatenated."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: np.concatenate([getattr(trials, n) for trials in parts]) for n in names})

    def first_trials(self, count: int) -> Self:
        """The first `count` trials, or all if there are fewer."""
        runs = int(self.runs[:count].sum())
        ends = {name: runs if name.startswith("run_") else count for name in vars(self)}
        return type(self)(**{name: getattr(self, name)[:end] for name, end in ends.items()})


def play(config: AuditConfig, block: Block, device: str = "cpu") -> tuple[Trials, ...]:
    """Plays the trials of one block in every view: a coin, and a tuning on X or X', for each trial.

    The random stream of the block is `SeedSequence(seed, (budget, repeat, index))`. The result
    depends neither on other blocks nor on the process that plays it.
    """
    game = set_up(config, block.budget, device)
    key = (block.budget, block.repeat, block.index)
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=key))
    bit = rng.integers(0, 2, block.trials).astype(np.bool_)
    winners_of_views = tune(game.protocol, game.context, bit, rng)
    trial = block.start + np.arange(block.trials)
    played = []
    for view, winners in zip(game.views, winners_of_views, strict=True):
        released = winners.chosen >= 0
        lambda_b = np.full(block.trials, -np.inf)
        lambda_b[released] = view.threat_model.lambda_b(
            winners.lambda_a[released], winners.score[released]
        )
        played.append(Trials(**vars(winners), trial=trial, bit=bit, lambda_b=lambda_b))
    return tuple(played)


TrialsOfViews = list[dict[tuple[int, int], Trials]]
"""For every view, the trials of every (budget, repeat) in order."""


PlayBlocks = Callable[[Sequence[Block]], dict[Block, tuple[Trials, ...]]]


"""Returns the trials of blocks; plays the blocks that are missing on disk."""


def play_audit(
    blocks: Sequence[Block], play_blocks: PlayBlocks, evaluation: Evaluation
) -> TrialsOfViews:
    """Plays an audit, and resumes it if some blocks are on disk.

    With `stop_at`, a budget ends at the first analysis in which the bound to report is sufficient
    in every view. The numbers of trials at the analyses are fixed in advance, and all analyses
    share the error, so the bounds hold at whichever of them an audit stops.
    """
    if not evaluation.stop_at:
        return _by_view(blocks, play_blocks(blocks))
    unproved = {block.budget for block in blocks}
    played: dict[Block, tuple[Trials, ...]] = {}
    views: TrialsOfViews = []
    for count in evaluation.looks:
        reached = [block for block in blocks if block.budget in unproved and block.start < count]
        played |= play_blocks([block for block in reached if block not in played])
        so_far = _by_view(reached, {block: played[block] for block in reached})
        views = views or [{} for _ in so_far]
        for budget in sorted(unproved):
            for view, trials_of_view in zip(views, so_far, strict=True):
                view[budget, 0] = trials_of_view[budget, 0].first_trials(count)
            if all(_is_sufficient(view[budget, 0], evaluation) for view in views):
                unproved.remove(budget)
    return [dict(sorted(view.items())) for view in views]


def _is_sufficient(trials: Trials, evaluation: Evaluation) -> bool:
    values = getattr(trials, evaluation.proxy)
    bound = lower_bounds.Scan()(
        out_scores=values[~trials.bit],
        in_scores=values[trials.bit],
        delta=evaluation.delta,
        confidence=evaluation.confidence,
        plan=len(evaluation.looks),
    )
    return bound.epsilon >= evaluation.stop_at


def _by_view(blocks: Sequence[Block], played: dict[Block, tuple[Trials, ...]]) -> TrialsOfViews:
    """The trials of every (budget, repeat), in order; empties `played` to save memory."""
    groups = itertools.groupby(blocks, lambda block: (block.budget, block.repeat))
    joined = {
        key: [
            Trials.joined(*trials_of_blocks)
            for trials_of_blocks in zip(*map(played.pop, group), strict=True)
        ]
        for key, group in groups
    }
    return [dict(zip(joined, views, strict=True)) for views in zip(*joined.values(), strict=True)]
