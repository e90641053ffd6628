"""The distinguishing game against a tuning protocol (Xiang, Wang & Wang 2024, algorithm 1)."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from audit.arrays import BoolArray, FloatArray, IntArray
from audit.game.blocks import Block
from audit.game.settings import AuditConfig
from audit.game.setup import set_up
from audit.simulation import Winners
from audit.simulation.tune import tune


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
