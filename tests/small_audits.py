"""Audits in this process, for the tests of trials and reports."""

from typing import Any

from audit.game.play import Trials, all_blocks, play
from audit.game.settings import AuditConfig
from audit.game.setup import SetUp, set_up


def play_trials(
    view: int = 0, **settings: Any
) -> tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]]:
    """The settings of a view, the setup of every budget, and the trials by (budget, repeat)."""
    config = AuditConfig(**settings)
    set_ups = [set_up(config, budget) for budget in range(len(config.epsilon))]
    parts: dict[tuple[int, int], list[Trials]] = {}
    for block in all_blocks(config.workload, set_ups[0].engine.name):
        parts.setdefault((block.budget, block.repeat), []).append(play(config, block)[view])
    trials = {key: Trials.joined(*group) for key, group in parts.items()}
    return config.views[view], set_ups, trials
