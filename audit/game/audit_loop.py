"""Plays an audit: all its trials, or only until the bound to report is sufficient."""

import itertools
from collections.abc import Callable, Sequence

from audit import lower_bounds
from audit.game.blocks import Block
from audit.game.groups import Evaluation
from audit.game.play import Trials

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
