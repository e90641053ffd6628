"""Processes that tests fork, to kill them or to let them compete."""

import os
import warnings
from collections.abc import Callable


def forked(work: Callable[[], None]) -> int:
    """Starts a process that does some work; its exit code is 0 on success."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of threads, which the work does not need.
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
