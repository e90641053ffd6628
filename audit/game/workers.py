"""Blocks of trials handed out to processes, on one machine or a cluster."""

import contextlib
import functools
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import joblib
from filelock import FileLock, Timeout
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from audit import console
from audit.game.play import Block, Trials, play
from audit.game.settings import AuditConfig
from audit.game.store import DamagedShard, RunFolder
from audit.processes import end_with_parent

# Seconds to wait for a cluster; then a missing scheduler is an error, and missing workers are
# reported.
_PATIENCE = 10.0
# A block that kills its worker this often is not tried again.
_DEATHS_WITHOUT_PROGRESS = 3


class WorkersDied(RuntimeError):
    """Workers keep dying on the same blocks."""


class ClusterLost(RuntimeError):
    """A Dask or Ray cluster stopped working while blocks were played."""


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
    """A connection to the Dask or Ray cluster, or a local one; each is an optional extra.

    Raises:
        ValueError: the extra is not installed, or nothing answers at the scheduler's address.
        ClusterLost: the cluster stopped working.
    """
    connect = _dask if config.backend == "dask" else _ray
    try:
        with connect(config):
            yield
    except (ValueError, OSError, RuntimeError):
        raise  # of a block, of the address, or of the connection: one line each
    except Exception as error:
        if not (isinstance(error, CancelledError) or _is_of_cluster(error)):
            raise
        raise ClusterLost(
            f"the {config.backend} cluster stopped working ({type(error).__name__}: {error}); "
            "the same command goes on from the finished blocks"
        ) from error


def _is_of_cluster(error: Exception) -> bool:
    """Whether Dask or Ray raised an error of their own, rather than of a block."""
    return any(kind.__module__.startswith(("distributed", "ray.")) for kind in type(error).__mro__)


@contextlib.contextmanager
def _dask(config: AuditConfig) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(
            "backend dask needs the extra 'dask': pip install 'dp-tuning-audit[dask]'"
        ) from error
    if not config.scheduler:
        with Client(n_workers=config.workers, threads_per_worker=1, set_as_default=True):
            yield
        return
    try:
        client = Client(config.scheduler, set_as_default=True, timeout=_PATIENCE)
    except (OSError, ValueError) as error:
        raise _nothing_answers(config, error) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            console.note(
                f"the dask scheduler {config.scheduler} has no workers after {_PATIENCE:g} s; "
                "waiting for the first"
            )
            client.wait_for_workers(1)
        yield


@contextlib.contextmanager
def _ray(config: AuditConfig) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise ValueError(
            "backend ray needs the extra 'ray': pip install 'dp-tuning-audit[ray]'"
        ) from error
    local = {} if config.scheduler else {"num_cpus": config.workers, "include_dashboard": False}
    _check_answers(config)  # Ray itself would try for ever
    with ray.init(address=config.scheduler or None, log_to_driver=False, **local):
        register_ray()
        yield


def _check_answers(config: AuditConfig) -> None:
    """Checks that something listens at a scheduler's address; names such as "auto" pass."""
    host, colon, port = config.scheduler.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            if not isinstance(error, OSError) or time.monotonic() > deadline:
                raise _nothing_answers(config, error) from error
        time.sleep(min(0.5, _PATIENCE))


def _nothing_answers(config: AuditConfig, error: Exception) -> ValueError:
    return ValueError(
        f"scheduler must be the address of a running {config.backend} cluster, got "
        f"{config.scheduler!r}: {error}"
    )


def _play(config: AuditConfig, block: Block, locks: str | None) -> tuple[Block, tuple[Trials, ...]]:
    device = config.devices[0] if locks is None else _claim(config.devices, locks)[0]
    return block, play(replace(config, devices=(device,), jobs=1), block)


@functools.cache
def _claim(devices: tuple[str, ...], locks: str) -> tuple[str, FileLock]:
    """This process's own device: the first whose lock no other living worker holds."""
    for place, device in enumerate(devices):
        # The lock lasts while this object does, and ends with the process.
        lock = FileLock(Path(locks) / f".device{place}.lock", timeout=0)
        with contextlib.suppress(Timeout):
            lock.acquire()
            return device, lock
    raise RuntimeError(f"more workers than devices: every one of {', '.join(devices)} is taken")
