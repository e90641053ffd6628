"""The distinguishing game against a tuning protocol (Xiang, Wang & Wang 2024, algorithm 1).

An audit plays all its trials, or only until the bound to report is sufficient.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from audit import lower_bounds
from audit.arrays import BoolArray, FloatArray, IntArray
from audit.game.blocks import Block
from audit.game.settings import AuditConfig, Evaluation
from audit.game.setup import set_up
from audit.simulation.simulator import Winners, tune


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
