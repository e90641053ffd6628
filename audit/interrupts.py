"""Ctrl-C while a command is still loading its packages; each command imports this first.

Python would print a traceback of the imports. Nothing has begun yet, so the command ends at once.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130
"""Exit code of a command that was stopped by Ctrl-C."""


_is_command = False


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)


def end_at_once() -> None:
    """Makes Ctrl-C end this process, that of a command, with one word until `end_by_exception`."""
    global _is_command
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _is_command = True
        signal.signal(signal.SIGINT, _end)


def end_by_exception() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, so that files and workers are closed."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Makes Ctrl-C end a command at once while packages are imported later; else does nothing.

    Python can lose a KeyboardInterrupt that is raised during an import.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not (_is_command and is_main and handler is signal.default_int_handler):
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
