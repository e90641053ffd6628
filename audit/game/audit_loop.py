"""A whole audit: all its games, or as many as prove enough."""

import itertools
from collections.abc import Sequence

from audit import lower_bounds
from audit.game import workers
from audit.game.play import Block, Trials
from audit.game.settings import AuditConfig
from audit.game.store import RunFolder

Games = list[dict[tuple[int, int], Trials]]
"""For every view the trials of every (budget, repeat), in order."""


def play_audit(config: AuditConfig, folder: RunFolder, blocks: Sequence[Block]) -> Games:
    """Plays what is missing of an audit.

    With `stop_at`, a budget is done at the first look at which the bound to report proves so much
    in every view. Looks are at numbers of trials fixed in advance, and share the error, so the
    bounds hold whenever it stops; the trials do not depend on who plays them.

    Args:
        config: the audit.
        folder: where the trials go.
        blocks: all blocks of the audit.
    """
    if not config.stop_at:
        return _gather(blocks, workers.play_all(config, folder, blocks))
    unproved = set(range(len(config.epsilon)))
    played: dict[Block, tuple[Trials, ...]] = {}
    games: Games = [{} for _ in config.views]
    for trials in config.analysis_sizes:
        reached = [block for block in blocks if block.budget in unproved and block.start < trials]
        played |= workers.play_all(
            config, folder, [block for block in reached if block not in played]
        )
        so_far = _gather(reached, {block: played[block] for block in reached})
        for budget in sorted(unproved):
            for of_view, found in zip(games, so_far, strict=True):
                of_view[budget, 0] = found[budget, 0].first(trials)
            if all(_proves_enough(config, of_view[budget, 0]) for of_view in games):
                unproved.remove(budget)
    return [dict(sorted(of_view.items())) for of_view in games]


def _proves_enough(config: AuditConfig, trials: Trials) -> bool:
    values = getattr(trials, config.proxy)
    found = lower_bounds.Scan()(
        out_scores=values[~trials.bit],
        in_scores=values[trials.bit],
        delta=config.delta,
        confidence=config.confidence,
        plan=len(config.analysis_sizes),
    )
    return found.epsilon >= config.stop_at


def _gather(blocks: Sequence[Block], played: dict[Block, tuple[Trials, ...]]) -> Games:
    """All trials of every (budget, repeat), in order; empties `played`."""
    groups = itertools.groupby(blocks, lambda block: (block.budget, block.repeat))
    joined = {
        key: [Trials.joined(*parts) for parts in zip(*map(played.pop, group), strict=True)]
        for key, group in groups
    }
    return [dict(zip(joined, views, strict=True)) for views in zip(*joined.values(), strict=True)]
