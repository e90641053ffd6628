"""Blocks of trials handed out to processes."""

import sys
from collections.abc import Iterator, Sequence

import joblib
from tqdm import tqdm

from audit import game
from audit.config import AuditConfig
from audit.game import Block
from audit.store import DamagedShard, RunFolder


def missing_blocks(folder: RunFolder, blocks: Sequence[Block]) -> list[Block]:
    """The blocks that still have to be played; a damaged shard is named and counts as missing."""
    missing = []
    for block in blocks:
        try:
            folder.load(block)
        except FileNotFoundError:
            missing.append(block)
        except DamagedShard as damage:
            print(f"damaged shard, played again: {damage}", file=sys.stderr)
            missing.append(block)
    return missing


def play_all(config: AuditConfig, folder: RunFolder, blocks: Sequence[Block]) -> None:
    """Plays what is missing and leaves every block's trials in the folder.

    A block is saved by the process that played it, as soon as it is played: whatever stops the run,
    no finished block is lost.

    Args:
        config: the audit; `jobs` processes of one thread each.
        folder: where the trials go.
        blocks: all blocks of the audit.
    """
    missing = missing_blocks(folder, blocks)
    if not missing:
        return
    done = sum(block.trials for block in blocks) - sum(block.trials for block in missing)
    total = sum(block.trials for block in blocks)
    patience = 0.5 if sys.stderr.isatty() else 15.0
    with tqdm(
        total=total, initial=done, unit="trial", smoothing=0.05, mininterval=patience
    ) as progress:
        for trials in _played(config, folder, missing):
            progress.update(trials)


def _played(config: AuditConfig, folder: RunFolder, blocks: Sequence[Block]) -> Iterator[int]:
    if config.jobs == 1:
        yield from (_play_and_save(config, folder, block) for block in blocks)
        return
    # One thread per process: two OpenMP threads on a busy machine stall each other.
    with joblib.parallel_config("loky", n_jobs=config.jobs, inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        yield from parallel(
            joblib.delayed(_play_and_save)(config, folder, block) for block in blocks
        )


def _play_and_save(config: AuditConfig, folder: RunFolder, block: Block) -> int:
    folder.save(block, game.play(config, block))
    return block.trials
