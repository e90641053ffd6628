"""Blocks of trials handed out to processes, on one machine or a cluster."""

import contextlib
import fcntl
import functools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import IO

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from audit import console
from audit.game.play import Block, Trials, play
from audit.game.settings import AuditConfig
from audit.game.store import DamagedShard, RunFolder
from audit.processes import end_with_parent

# A block that kills its worker this often is not tried again.
_DEATHS_WITHOUT_PROGRESS = 3


class WorkersDied(RuntimeError):
    """Workers keep dying on the same blocks."""


def check_devices(config: AuditConfig) -> None:
    """Checks the devices of this machine's workers. CUDA is not started here, only in workers.

    Raises:
        ValueError: a device that is not there.
    """
    if config.backend != "loky" or set(config.devices) == {"cpu"}:
        return
    import torch  # which takes seconds

    count = torch.cuda.device_count()
    there = ["cpu", *["cuda"][:count], *(f"cuda:{index}" for index in range(count))]
    for device in config.devices:
        if device not in there:
            raise ValueError(
                f"device must be one that is there: {', '.join(there)}, got {device!r}"
            )


def finished_blocks(folder: RunFolder, blocks: Sequence[Block]) -> dict[Block, tuple[Trials, ...]]:
    """The trials of the blocks that were played; a damaged shard is named and left out."""
    finished = {}
    for block in blocks:
        try:
            finished[block] = folder.load(block)
        except FileNotFoundError:
            continue
        except DamagedShard as damage:
            print(f"damaged shard, played again: {damage}", file=sys.stderr)
    return finished


def play_all(
    config: AuditConfig, folder: RunFolder, blocks: Sequence[Block]
) -> dict[Block, tuple[Trials, ...]]:
    """Plays what is missing and leaves every block's trials in the folder.

    A block is saved as soon as it is played: whatever stops the run, no finished block is lost. A
    worker that dies is replaced and its block played again, and the run says so.

    Args:
        config: the audit; `jobs` processes of one thread each, one per device where several are
            named, on this machine or through `backend`.
        folder: where the trials go.
        blocks: all blocks of the audit.

    Returns:
        The trials of every block, in every view; a shard is read once, or not at all where its
        block was played just now.

    Raises:
        WorkersDied: workers keep dying on the same blocks.
    """
    played = finished_blocks(folder, blocks)
    if len(played) == len(blocks):
        return played
    deaths = 0
    total, done = (sum(block.trials for block in some) for some in (blocks, played))
    with console.progress(total, done) as update:
        while missing := [block for block in blocks if block not in played]:
            before = len(played)
            try:
                for block, games in _played(config, missing):
                    folder.save(block, games)
                    played[block] = games
                    update(block.trials)
            except (TerminatedWorkerError, BrokenProcessPool) as death:
                deaths = deaths + 1 if len(played) == before else 0
                if deaths == _DEATHS_WITHOUT_PROGRESS:
                    raise WorkersDied(
                        f"workers died {deaths} times without finishing a block: {death}"
                    ) from death
                print(f"a worker died; its blocks are played again ({death})", file=sys.stderr)
    return played


def _played(
    config: AuditConfig, blocks: Sequence[Block]
) -> Iterator[tuple[Block, tuple[Trials, ...]]]:
    """The blocks as they get done, in any order."""
    if config.workers == 1 and config.backend == "loky":
        yield from (_play(config, block, None) for block in blocks)
        return
    locks = config.out if len(config.devices) > 1 else None
    calls = [joblib.delayed(_play)(config, block, locks) for block in blocks]
    if config.backend == "loky":
        # One thread per process: two OpenMP threads on a busy machine stall each other.
        with joblib.parallel_config(
            "loky", n_jobs=config.workers, inner_max_num_threads=1, initializer=end_with_parent
        ):
            yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls)
        if locks is not None:
            # A worker keeps its device, and what it has there, for life.
            get_reusable_executor().shutdown()
        return
    with _cluster(config), joblib.parallel_config(config.backend, n_jobs=-1):
        # Not every backend can stream: a few blocks per worker at a time.
        share = max(4 * config.workers, 16)
        for start in range(0, len(calls), share):
            yield from joblib.Parallel()(calls[start : start + share])


@contextlib.contextmanager
def _cluster(config: AuditConfig) -> Iterator[None]:
    """A connection to the Dask or Ray cluster, or a local one; each is an optional extra."""
    if config.backend == "dask":
        try:
            from distributed import Client
        except ImportError as error:
            raise ValueError(
                "backend dask needs the extra 'dask': pip install 'dp-tuning-audit[dask]'"
            ) from error
        local = {} if config.scheduler else {"n_workers": config.workers, "threads_per_worker": 1}
        with Client(config.scheduler or None, set_as_default=True, **local):
            yield
        return
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise ValueError(
            "backend ray needs the extra 'ray': pip install 'dp-tuning-audit[ray]'"
        ) from error
    local = {} if config.scheduler else {"num_cpus": config.workers, "include_dashboard": False}
    with ray.init(address=config.scheduler or None, log_to_driver=False, **local):
        register_ray()
        yield


def _play(config: AuditConfig, block: Block, locks: str | None) -> tuple[Block, tuple[Trials, ...]]:
    device = config.devices[0] if locks is None else _claim(config.devices, locks)[0]
    return block, play(replace(config, devices=(device,), jobs=1), block)


@functools.cache
def _claim(devices: tuple[str, ...], locks: str) -> tuple[str, IO[str]]:
    """This process's own device: the first whose lock no other living worker holds."""
    for place, device in enumerate(devices):
        # The lock lasts while the file is open, and falls with the process.
        lock = open(Path(locks) / f".device{place}.lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return device, lock
    raise RuntimeError(f"more workers than devices: every one of {', '.join(devices)} is taken")
