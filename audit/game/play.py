"""The distinguishing game against the tuning protocol (Xiang, Wang & Wang 2024, algorithm 1)."""

import math
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from audit.game.settings import AuditConfig
from audit.game.setup import set_up
from audit.protocols import Adaptive, RandomStopping, UntilAccepted
from audit.tuning import Winners
from audit.tuning.on_run_batches import tune

# With an exact law a block is what one draw fills.
_TRIALS_OF_A_DRAW = 1 << 14
# Else a block is a few seconds' work of a processor, in gradients of a small network: what a kill
# may lose, what keeps sixteen workers busy, and how often a progress bar moves. The noise of a step
# costs as much as so many gradients, and a gradient of a ConvNet as so many of a dense network; a
# model of one's own may be either. All measured on one core.
_WORK_OF_A_BLOCK = 1 << 22
_WORK_OF_NOISE = 64
_WORK_OF_GRADIENT = {"logistic": 1, "mlp": 1, "convnet": 16}
# What is kept of a game, some 100 bytes, weighs as much as so many runs, of which nothing is.
_RUNS_OF_A_KEPT_GAME = 100
_WORK_PER_SECOND, _DRAWS_PER_SECOND = 5e5, 1e7
# All bounds of a budget, in every view; most are reference games of rank sums.
_SECONDS_OF_BOUNDS = 15.0
# Fewer runs side by side are slower; more are not worth waiting for.
_MIN_RUNS, _MIN_RUNS_OF_ONE_RECORD, _MIN_RUNS_OF_A_GPU = 1 << 3, 1 << 7, 1 << 10
_MAX_RUNS = 1 << 11
_LOOKS_BACK = (Adaptive, UntilAccepted, RandomStopping)


@dataclass(frozen=True, order=True)
class Block:
    """A range of trials with its own random stream, played in one go.

    Attributes:
        budget: index of eps_B in the config.
        repeat: index of the repeat.
        index: index of the block within them.
        start: its first trial.
        trials: how many.
    """

    budget: int
    repeat: int
    index: int
    start: int
    trials: int

    @property
    def name(self) -> str:
        """Name of the block's shard."""
        return f"budget{self.budget}-repeat{self.repeat}-block{self.index:06d}"


@dataclass(frozen=True)
class Trials(Winners):
    """What T games leave: one row each, what the tuning released and the coin behind it.

    Attributes:
        trial: [T] index within budget and repeat.
        bit: [T] whether the canary was in the data.
        lambda_b: [T] the proxy that adds the score; minus infinity where nothing was released.
    """

    trial: NDArray[np.int64]
    bit: NDArray[np.bool_]
    lambda_b: NDArray[np.float64]

    @classmethod
    def joined(cls, *parts: "Trials") -> Self:
        """The trials of several blocks or repeats, one after the other."""
        names = [each.name for each in fields(cls)]
        return cls(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})

    def first(self, count: int) -> Self:
        """The first trials, `count` of them or all."""
        kept = int(self.runs[:count].sum())
        ends = {name: kept if name.startswith("run_") else count for name in vars(self)}
        return type(self)(**{name: getattr(self, name)[:end] for name, end in ends.items()})


def blocks(config: AuditConfig, engine: str) -> list[Block]:
    """All blocks of an audit, in order. They depend on the config alone, never on the workers.

    Args:
        config: the audit.
        engine: name of the engine that plays it.
    """
    size = _TRIALS_OF_A_DRAW
    if engine != "reduced":
        work_of_run = _work_of_run(config, engine)
        fewest = _MIN_RUNS_OF_ONE_RECORD if config.threat == "ETCV" else _MIN_RUNS
        if config.device_kind != "cpu":
            fewest = _MIN_RUNS_OF_A_GPU
        runs = min(max(_WORK_OF_A_BLOCK // work_of_run, fewest), _MAX_RUNS)
        of_a_game = config.runs_of_a_game
        if isinstance(config.tuning, _LOOKS_BACK):
            # They are played in rounds, and all of a round lie side by side.
            of_a_game = math.sqrt(of_a_game)
        size = max(1, math.ceil(runs / max(of_a_game, 1.0)))
    return [
        Block(budget, repeat, index, start, min(size, config.trials - start))
        for budget in range(len(config.epsilon))
        for repeat in range(config.repeats)
        for index, start in enumerate(range(0, config.trials, size))
    ]


def _work_of_run(config: AuditConfig, engine: str) -> int:
    """What one trained run costs, in gradients of a small network."""
    records = 1 if config.threat == "ETCV" else config.train_size
    steps = 1 if engine == "collapsed" else config.steps
    return steps * (records * _WORK_OF_GRADIENT.get(config.model, 1) + _WORK_OF_NOISE)


def expected_seconds(config: AuditConfig, engine: str) -> float:
    """Roughly how long one processor plays; a GPU is some hundred times as fast.

    Raises:
        ValueError: more runs or hours are expected than `max_runs` and `max_hours`, or there are
            more budgets than `max_budgets`.
    """
    runs, budgets = config.expected_runs, len(config.epsilon)
    if runs > config.max_runs:
        raise ValueError(
            f"max_runs must be at least the {runs:.3g} runs that are expected, got "
            f"{config.max_runs:g}: play fewer trials, take a smaller law of K, or raise it"
        )
    games = budgets * config.repeats * config.trials
    if games * _RUNS_OF_A_KEPT_GAME > config.max_runs:
        raise ValueError(
            f"max_runs must be at least {games * _RUNS_OF_A_KEPT_GAME:.3g} for {games:.3g} games, "
            f"each kept in the memory that {_RUNS_OF_A_KEPT_GAME} runs are counted for, got "
            f"{config.max_runs:g}: play fewer trials, or raise it"
        )
    if budgets > config.max_budgets:
        raise ValueError(
            f"max_budgets must be at least the {budgets} of epsilon, got {config.max_budgets}: "
            f"their bounds alone take about {expected_seconds_of_bounds(config) / 60:.0f} minutes; "
            "take fewer, or raise it"
        )
    if engine == "reduced":
        return runs / _DRAWS_PER_SECOND
    seconds = runs * _work_of_run(config, engine) / _WORK_PER_SECOND
    hours = seconds / config.workers / 3600.0
    if config.device_kind == "cpu" and hours > config.max_hours:
        raise ValueError(
            f"max_hours must be at least the {hours:.3g} hours that are expected, got "
            f"{config.max_hours:g}: play fewer trials or steps, take more jobs, or raise it"
        )
    return seconds


def expected_seconds_of_bounds(config: AuditConfig) -> float:
    """Roughly how long the bounds take after the games, in one process."""
    return len(config.epsilon) * len(config.views) * _SECONDS_OF_BOUNDS


def play(config: AuditConfig, block: Block) -> tuple[Trials, ...]:
    """Plays the games of one block: a coin, a tuning on X or X', what it releases.

    The block's random stream is `SeedSequence(seed, (budget, repeat, index))`: the result depends
    on nothing else, neither on other blocks nor on who plays it.

    Args:
        config: the audit.
        block: which games.

    Returns:
        The trials of every view that the runs serve.
    """
    game = set_up(config, block.budget)
    key = (block.budget, block.repeat, block.index)
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=key))
    bit = rng.integers(0, 2, block.trials).astype(np.bool_)
    judged = tune(game.protocol, game.context, bit, rng)
    trial = block.start + np.arange(block.trials)
    played = []
    for view, winners in zip(game.views, judged, strict=True):
        some = winners.chosen >= 0
        lambda_b = np.full(block.trials, -np.inf)
        lambda_b[some] = view.threat_model.lambda_b(winners.lambda_a[some], winners.score[some])
        played.append(Trials(**vars(winners), trial=trial, bit=bit, lambda_b=lambda_b))
    return tuple(played)
