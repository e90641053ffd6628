"""Distributes blocks of trials to processes, on one machine or on a cluster."""

import collections
import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor

from audit import checks, console
from audit.errors import (
    AuditError,
    ClusterLost,
    DamagedShard,
    InvalidInput,
    WorkerDied,
    missing_extra,
)
from audit.game.play import Block, Trials
from audit.game.settings import Place
from audit.game.store import RunFolder
from audit.processes import Devices, end_with_parent, shared_devices, watch_ray

# Seconds after which a missing scheduler is an error.
_PATIENCE = 10.0
# Seconds after which a scheduler without workers is reported.
_SECONDS_WITHOUT_WORKERS = 10.0
# Seconds in which a scheduler that accepts connections must speak the protocol of its backend. A
# process of its own tries, because neither library gives up on a server that stays silent.
_SECONDS_TO_CONNECT = 15.0
_CONNECT = {
    "dask": "from distributed import Client; Client(sys.argv[1], timeout=10).close()",
    "ray": "import ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)",
}
_EXAMPLES = {"dask": "tcp://HOST:8786", "ray": "HOST:6379"}
# Variables of the environment that name a cluster to the libraries.
_VARIABLES = {"dask": "DASK_SCHEDULER_ADDRESS", "ray": "RAY_ADDRESS"}
_RESUME = "run the same command again to resume from the finished blocks"
# Number of deaths in a row, without a finished block, after which an audit gives up.
_DEATHS_WITHOUT_PROGRESS = 3

# Seconds without a finished block after which an audit says that it waits.
_SECONDS_WITHOUT_BLOCK = 60.0

PlayBlock = Callable[[Block, str], tuple[Trials, ...]]
"""Plays a block on a device; it can be pickled."""


def check_devices(place: Place) -> None:
    """Checks that this machine has the devices. CUDA is started only in the workers."""
    if place.backend != "loky" or set(place.devices) == {"cpu"}:
        return
    import torch  # takes seconds

    count = torch.cuda.device_count()
    existing = ["cpu", *["cuda"][:count], *(f"cuda:{index}" for index in range(count))]
    for device in place.devices:
        if device not in existing:
            raise InvalidInput(
                f"device must be one of this machine's: {', '.join(existing)}, got {device!r}"
            )


def finished_blocks(folder: RunFolder, blocks: Sequence[Block]) -> dict[Block, tuple[Trials, ...]]:
    """The trials of the blocks on disk. A damaged shard is reported and left out."""
    finished = {}
    for block in blocks:
        try:
            finished[block] = folder.load(block)
        except FileNotFoundError:
            continue
        except DamagedShard as damage:
            print(f"damaged shard, will be repeated: {damage}", file=sys.stderr)
    return finished


def play_all(
    place: Place, play_block: PlayBlock, folder: RunFolder, blocks: Sequence[Block]
) -> dict[Block, tuple[Trials, ...]]:
    """Plays the missing blocks, stores their trials in the folder, and returns all trials.

    Each block is saved as soon as it is finished, so an interruption loses no finished block. If a
    worker dies, it is replaced, its block is repeated, and a message reports it. There is one
    process of one thread for each job, and not more processes than blocks. Each of several devices
    plays one block at a time. A message says for what an audit waits if no block finishes.
    """
    played = finished_blocks(folder, blocks)
    if len(played) == len(blocks):
        return played
    deaths, has_died = 0, False
    total, done_trials = (sum(block.trials for block in listed) for listed in (blocks, played))
    shared_places = place.devices if len(place.devices) > 1 else ()
    with (
        shared_devices(shared_places) as shared,
        console.progress(total, done_trials) as update,
        _waiting_reported(place) as finished,
    ):
        devices = shared or place.devices[0]
        while missing := [block for block in blocks if block not in played]:
            before = len(played)
            try:
                # A block that ended a worker must not be played in this process.
                fewer = _with_workers(place, max(len(missing), 1 + has_died))
                for block, trials in _played(fewer, play_block, devices, missing):
                    folder.save(block, trials)
                    played[block] = trials
                    update(block.trials)
                    finished()
            except BrokenProcessPool as death:
                has_died = True
                deaths = deaths + 1 if len(played) == before else 0
                if deaths == _DEATHS_WITHOUT_PROGRESS:
                    raise _died(deaths, death) from death
                _report_death(death)
    return played


def _with_workers(place: Place, max_workers: int) -> Place:
    """The place with at most this number of processes: more would have nothing to do."""
    return replace(place, jobs=min(place.jobs, max_workers), devices=place.devices[:max_workers])


def _died(deaths: int, death: Exception) -> WorkerDied:
    return WorkerDied(
        f"workers died {deaths} times without finishing a block: {checks.one_line(str(death))}"
    )


def _report_death(death: Exception) -> None:
    words = checks.one_line(str(death))
    print(f"a worker died; its blocks will be repeated ({words})", file=sys.stderr)


@contextlib.contextmanager
def _waiting_reported(place: Place) -> Iterator[Callable[[], None]]:
    """Reports from a thread if no block finishes for long; yields a function for each that does."""
    where = "this machine" if place.backend == "loky" else f"the {place.backend} cluster"
    ended, last_report = threading.Event(), [time.monotonic()]

    def watch() -> None:
        next_report = _SECONDS_WITHOUT_BLOCK
        while not ended.wait(_SECONDS_WITHOUT_BLOCK / 10):
            seconds = time.monotonic() - last_report[0]
            if seconds < _SECONDS_WITHOUT_BLOCK:
                next_report = _SECONDS_WITHOUT_BLOCK
            elif seconds >= next_report:
                next_report = 2 * seconds
                console.note(
                    f"no block has finished for {seconds:.0f} s; waiting for the workers on "
                    f"{where}, which may be busy or frozen"
                )

    thread = threading.Thread(target=watch, name="waiting", daemon=True)
    thread.start()
    try:
        yield lambda: last_report.__setitem__(0, time.monotonic())
    finally:
        ended.set()
        thread.join()


def _played(
    place: Place, play_block: PlayBlock, devices: Devices | str, blocks: Sequence[Block]
) -> Iterator[tuple[Block, tuple[Trials, ...]]]:
    """The blocks with their trials, in the order in which they finish."""
    if place.workers == 1 and place.backend == "loky":
        yield from (_play(play_block, devices, block) for block in blocks)
        return
    calls = [joblib.delayed(_play)(play_block, devices, block) for block in blocks]
    if place.backend == "loky":
        # The tracker of joblib's temporary files warns about those of a worker that was killed.
        ignored = "ignore:resource_tracker:UserWarning"
        if ignored not in (present := os.environ.get("PYTHONWARNINGS", "")):
            os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (present, ignored)))
        # One thread per process: two OpenMP threads on a busy machine stall each other.
        with joblib.parallel_config(
            "loky", n_jobs=place.workers, inner_max_num_threads=1, initializer=end_with_parent
        ):
            yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls)
        if isinstance(devices, Devices):
            # Idle workers would occupy the memory of their devices.
            get_reusable_executor().shutdown()
        return
    with _cluster(place):
        if place.backend == "ray":
            yield from _played_on_ray(play_block, devices, blocks)
            return
        with joblib.parallel_config(place.backend, n_jobs=-1):
            yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls)


def _played_on_ray(
    play_block: PlayBlock, devices: Devices | str, blocks: Sequence[Block]
) -> Iterator[tuple[Block, tuple[Trials, ...]]]:
    """The blocks, each when it finishes. Ray's backend of joblib returns a list at once instead.

    A lost worker, or the loss of a node other than the head, costs the blocks that it was playing.
    """
    import ray
    from ray import exceptions

    losses = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
    )
    play = ray.remote(max_retries=0)(_play)
    remaining = collections.deque(blocks)
    running: dict[Any, Block] = {}
    deaths = 0
    while remaining or running:
        # A few per processor, so that none waits for the next block.
        max_running = 4 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        while remaining and len(running) < max_running:
            block = remaining.popleft()
            running[play.remote(play_block, devices, block)] = block
        for result in ray.wait(list(running), num_returns=1)[0]:
            block = running.pop(result)
            try:
                played = ray.get(result)
            except losses as death:
                remaining.append(block)
                deaths += 1
                if deaths == _DEATHS_WITHOUT_PROGRESS:
                    raise _died(deaths, death) from death
                _report_death(death)
            except exceptions.RayTaskError as error:
                # Its text is a traceback in the worker; the error of a block is one line.
                raise error.cause if isinstance(error.cause, Exception) else error from None
            else:
                deaths = 0
                yield played


@contextlib.contextmanager
def _cluster(place: Place) -> Iterator[None]:
    """A connection to the Dask or Ray cluster, or a local one; each is an optional extra."""
    connect = _dask if place.backend == "dask" else _ray
    variable = _VARIABLES[place.backend]
    if address := os.environ.get(variable):
        if not place.scheduler:
            console.note(
                f"{variable} is not used, and the audit starts a local {place.backend} cluster; "
                f"--scheduler {checks.without_password(address)} uses that cluster"
            )
        elif (place.backend, place.scheduler) == ("ray", "auto"):
            # Ray itself would take the address from there, unchecked.
            place = replace(place, scheduler=address)
    try:
        with connect(place):
            yield
    except AuditError:
        raise  # Of a block or of the address: it has a clear message.
    except Exception as error:
        if not (isinstance(error, CancelledError) or _is_cluster_error(error)):
            raise
        cause = f"{type(error).__name__}: {error}"
        raise ClusterLost(
            f"the {place.backend} cluster stopped working ({cause}); {_RESUME}"
        ) from error


def _is_cluster_error(error: Exception) -> bool:
    """Whether an error comes from Dask or Ray, by its class or by the code that raised it."""
    places = [kind.__module__ for kind in type(error).__mro__]
    # A Ray cluster without nodes raises a KeyError.
    for frame, _ in list(traceback.walk_tb(error.__traceback__))[-1:]:
        places.append(str(frame.f_globals.get("__name__")))
    return any(place.startswith(("distributed", "ray.")) for place in places)


@contextlib.contextmanager
def _dask(place: Place) -> Iterator[None]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise missing_extra(["distributed"], "dask") from error
    if not place.scheduler:
        # Client alone would take the address in DASK_SCHEDULER_ADDRESS.
        with (
            # A dashboard would listen on all interfaces, without authentication.
            LocalCluster(
                n_workers=place.workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                worker_dashboard_address=None,
            ) as cluster,
            Client(cluster, set_as_default=True),
        ):
            yield
        return
    _check_answers(place)
    try:
        client = Client(place.scheduler, set_as_default=True, timeout=_PATIENCE)
    except Exception as error:  # for example a MemoryError, if another kind of server answers
        raise _no_answer(place, error) from error
    log = logging.getLogger("distributed.client")
    with contextlib.ExitStack() as stack:
        # A lost cluster is one line; Dask would log a traceback for each of its tasks.
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(client)
        try:
            client.wait_for_workers(1, timeout=_SECONDS_WITHOUT_WORKERS)
        except TimeoutError:
            console.note(
                f"the dask scheduler {place.scheduler} has no workers after "
                f"{_SECONDS_WITHOUT_WORKERS:g} s; waiting for the first"
            )
            client.wait_for_workers(1)
        yield


@contextlib.contextmanager
def _ray(place: Place) -> Iterator[None]:
    # Ray prints a line for each failed attempt to connect; the last error is enough.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    try:
        import ray
    except ImportError as error:
        raise missing_extra(["ray"], "ray") from error
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if place.scheduler:
        _check_answers(place)  # Ray itself would try forever.
        try:
            with _without_messages():
                context = ray.init(place.scheduler, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise _no_answer(place, error) from error
    else:
        # The servers of a cluster of one node then listen on the loopback only.
        constants = ray._private.ray_constants
        before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
        try:
            with _without_messages():
                context = ray.init(
                    "local", num_cpus=place.workers, include_dashboard=False, **quiet
                )
        finally:
            constants.ENABLE_RAY_CLUSTER = before
    # Ray would print the last lines of its own log for a node that is lost.
    ray._private.worker._worker_logs_enabled = False
    with context, watch_ray(_RESUME):
        yield


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Discards what compiled code writes to stderr: Ray announces its own level of logging."""
    sys.stderr.flush()
    before = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _check_answers(place: Place) -> None:
    """Checks that a cluster answers at an address; names such as "auto" are not checked."""
    host, colon, port = place.scheduler.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            break
        except (OSError, ValueError, OverflowError) as error:
            if not isinstance(error, OSError) or time.monotonic() > deadline:
                raise _no_answer(place, error) from error
        time.sleep(min(0.5, _PATIENCE))
    command = [sys.executable, "-c", f"import sys; {_CONNECT[place.backend]}", place.scheduler]
    talking = os.environ | {"RAY_BACKEND_LOG_LEVEL": "warning"}  # A refused token is a warning.
    try:
        subprocess.run(
            command, check=True, capture_output=True, timeout=_SECONDS_TO_CONNECT, env=talking
        )
    except subprocess.TimeoutExpired as error:
        silent = f"no answer within {_SECONDS_TO_CONNECT:g} s"
        if b"InvalidAuthToken" in (error.stderr or b""):
            # Since version 2.60, `ray start` lets only drivers in that send its token.
            silent = "it needs an authentication token: set RAY_AUTH_MODE=token"
        raise _no_answer(place, TimeoutError(silent)) from error
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip() or f"exit code {error.returncode}"
        errors = [
            line for line in words.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)
        ]
        reason = (errors or words.splitlines())[-1]
        if "MemoryError" in reason:  # The first bytes of the answer were taken for its length.
            reason = "another kind of server, such as a web server, answers there"
        raise _no_answer(place, RuntimeError(reason)) from error


def _no_answer(place: Place, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"scheduler must be the address of a running {place.backend} cluster, such as "
        f"{_EXAMPLES[place.backend]}, got {place.scheduler!r}: {error}"
    )


def _play(
    play_block: PlayBlock, devices: Devices | str, block: Block
) -> tuple[Block, tuple[Trials, ...]]:
    """Plays a block on the only device, or on one that no other process of this machine uses."""
    with contextlib.ExitStack() as stack:
        device = devices if isinstance(devices, str) else devices.claim(stack)
        return block, play_block(block, device)
