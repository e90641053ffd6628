"""Display of the elapsed time of a study, which reveals nothing about its runs."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def elapsed_time(mean_runs: float | None) -> Iterator[None]:
    """Shows on stderr for how long a study has been running, and how many runs are expected."""
    expected = "" if mean_runs is None else f"; {mean_runs:.4g} runs are expected"
    began, over = time.monotonic(), threading.Event()
    with contextlib.ExitStack() as stack:
        stream, terminal = sys.stderr, sys.__stderr__
        if terminal is not None and stream is terminal:
            # The output of runs is silenced, so the display needs its own descriptor.
            with contextlib.suppress(OSError, ValueError):
                stream = stack.enter_context(open(os.dup(terminal.fileno()), "w"))

        def tick() -> None:
            while not over.wait(1.0):
                elapsed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - began))
                print(f"\rtuning for {elapsed}{expected}", end="", file=stream, flush=True)

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            print(file=stream)
