"""Worker processes: how they end, and the files and devices that one process at a time may use."""

import contextlib
import errno
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.files import refuse_link

_POLL_SECONDS = 0.5
_SECONDS_BETWEEN_LOCKS = 0.05
# Seconds between connections to the head node of Ray, and number of refused ones after which it is
# lost. A head node that is only restarted answers again sooner.
_SECONDS_BETWEEN_CONNECTIONS, _REFUSED_CONNECTIONS = 1.0, 5


def end_with_parent(pid: int | None = None) -> None:
    """Makes this process end within a second of its parent.

    A parent that is killed cannot stop its workers, so each worker watches its parent. `pid` is
    that of the parent; None in a worker that multiprocessing or joblib started. Does nothing on
    Windows, where the number of the parent never changes, and is that of a launcher in a virtual
    environment.
    """
    if sys.platform == "win32":
        return
    if pid is None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        pid = parent.pid

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def loky_options(initializer: Callable[[], object] = end_with_parent) -> dict[str, Any]:
    """Options of `joblib.Parallel`, whose loky workers then end with their parent."""
    from joblib.parallel import get_active_backend

    is_loky = type(get_active_backend()[0]).__name__ == "LokyBackend"
    return {"backend": "loky", "initializer": initializer} if is_loky else {}


def worker_deaths() -> tuple[type[BaseException], ...]:
    """The exceptions of the loaded backends of joblib for a worker that died."""
    names = {
        "concurrent.futures.process": "BrokenProcessPool",  # loky's errors are subclasses
        "distributed.scheduler": "KilledWorker",
        "ray.exceptions": "RayActorError",
    }
    return tuple(
        getattr(sys.modules[module], name)
        for module, name in names.items()
        if module in sys.modules
    )


@contextlib.contextmanager
def watch_ray(advice: str) -> Iterator[None]:
    """Ends this process with an error line once the head node of Ray, if it is used, is gone.

    Ray's client cannot be interrupted then. It would end the process a minute later, too, but with
    messages of its own.
    """
    ray = sys.modules.get("ray")
    address = ""
    if ray is not None and ray.is_initialized():
        # Clients of a remote driver (ray://) have no such address.
        address = getattr(ray.get_runtime_context(), "gcs_address", "")
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    ended, error_output = threading.Event(), os.dup(2)  # A study silences its output.

    def watch() -> None:
        refused = 0
        while refused < _REFUSED_CONNECTIONS:
            if ended.wait(_SECONDS_BETWEEN_CONNECTIONS):
                return
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
                refused = 0
            except OSError:
                refused += 1
        line = f"error: no answer from the ray cluster {address}; {advice}\n"
        os.write(error_output, line.encode())
        os._exit(2)

    threading.Thread(target=watch, name="watch-ray", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        os.close(error_output)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Locks a file against other processes, until the context or the process ends.

    The file is created if it does not exist, only its owner may read it, and it stays after the
    lock is released.

    Raises:
        TimeoutError: another process holds the lock, and `wait` is false.
        OSError: the file cannot be written, or is a link.
    """
    descriptor = _open_locked(path, wait)
    try:
        yield
    finally:
        _unlock(descriptor)
        os.close(descriptor)


def _open_locked(path: Path, wait: bool) -> int:
    """The descriptor of the locked file."""
    while True:
        refuse_link(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _lock(descriptor):
                if not wait:
                    raise TimeoutError(errno.EAGAIN, "Another process holds the lock", str(path))
                time.sleep(_SECONDS_BETWEEN_LOCKS)
            # The former owner may have deleted the file: then the lock of this one has no effect.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            _unlock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        """Locks an open file, if no other process has; Windows locks its first byte."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Locks an open file, if no other process has."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


IDLE_SECONDS = 600.0
"""Seconds within which a process that works uses more than a CPU second, on any machine."""

WAITING = (
    f"a script that waits: it used less than a CPU second in {IDLE_SECONDS:g} seconds (a lock, a "
    "server, or a pause)"
)
_SECONDS_BETWEEN_LOOKS, _CPU_SECONDS = 1.0, 1.0


@contextlib.contextmanager
def end_when_idle(end: Callable[[], object], seconds: float = IDLE_SECONDS) -> Iterator[None]:
    """Calls `end` from a thread if this process hardly uses any CPU time for some seconds.

    Args:
        end: ends the process.
        seconds: the time.

    Example:
        >>> calls = []
        >>> with end_when_idle(lambda: calls.append("waits"), 0.1):
        ...     time.sleep(1.5)
        >>> calls
        ['waits']
    """
    ended = threading.Event()

    def observe() -> None:
        since, used = time.monotonic(), time.process_time()
        while not ended.wait(min(_SECONDS_BETWEEN_LOOKS, seconds)):
            if time.process_time() - used > _CPU_SECONDS:
                since, used = time.monotonic(), time.process_time()
            elif time.monotonic() - since > seconds:
                end()
                return

    threading.Thread(target=observe, name="end-when-idle", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


_SECONDS_BETWEEN_CLAIMS = 0.2
# A process prefers its latest device, because it occupies memory of every device that it has used.
_latest: list[str] = []


@dataclass(frozen=True)
class Devices:
    """Names of devices, and a folder for their locks, created on each machine with workers."""

    names: tuple[str, ...]
    folder: Path

    def claim(self, until: contextlib.ExitStack) -> str:
        """A device that no other process here uses until `until` closes; waits for one."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            for index, name in sorted(
                enumerate(self.names), key=lambda device: device[1] not in _latest
            ):
                with contextlib.suppress(TimeoutError):
                    until.enter_context(locked(self.folder / str(index), wait=False))
                    _latest[:] = [name]
                    return name
            time.sleep(_SECONDS_BETWEEN_CLAIMS)


_KINDS_OF_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "xla")
"""Kinds of devices, by the names that torch gives them."""

_DEVICE = re.compile(rf"(?:{'|'.join(_KINDS_OF_DEVICES)})(?::(?:0|[1-9][0-9]*))?")


def device_names(devices: Any) -> tuple[str, ...]:
    """The checked names of the devices; none if they are not given."""
    if devices is None:
        return ()
    names = tuple(devices) if isinstance(devices, list | tuple) else ()
    # Without a number, a name means the first device of its kind.
    places = {
        name.removesuffix(":0")
        for name in names
        if isinstance(name, str) and _DEVICE.fullmatch(name)
    }
    if not names or len(places) < len(names):
        raise InvalidInput(
            "devices must be a list of different names such as ['cuda:0', 'cuda:1'] (of the kinds "
            f"{', '.join(_KINDS_OF_DEVICES)}), got {checks.one_line(devices)}"
        )
    return names


@contextlib.contextmanager
def shared_devices(names: tuple[str, ...]) -> Iterator[Devices | None]:
    """The devices with a new folder for their locks; None if there are no names."""
    if not names:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dp-tuning-audit-") as folder:
        yield Devices(names, Path(folder))
