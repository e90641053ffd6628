"""Ends a process that waits: for an answer, a lock, or another process."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

IDLE_SECONDS = 600.0
"""Seconds within which a process that works uses more than a CPU second, on any machine."""

WAITING = (
    f"a script that waits: it used less than a CPU second in {IDLE_SECONDS:g} seconds (a lock, a "
    "server, or a pause)"
)
_POLL_SECONDS, _CPU_SECONDS = 1.0, 1.0


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
        while not ended.wait(min(_POLL_SECONDS, seconds)):
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
