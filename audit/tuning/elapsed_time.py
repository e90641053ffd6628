"""Display of the elapsed time of a study, which reveals nothing about its runs."""

import contextlib
import os
import sys
import threading
import time
from typing import IO


class ElapsedTime:
    """Shows on stderr for how long a study has been running, and how many runs are expected."""

    def __init__(self, is_shown: bool, mean_runs: float | None) -> None:
        self._is_shown, self._over = is_shown, threading.Event()
        self._stream: IO[str] | None = sys.stderr
        self._own: IO[str] | None = None
        self._expected = "" if mean_runs is None else f"; {mean_runs:.4g} runs are expected"

    def __enter__(self) -> None:
        if not self._is_shown:
            return
        terminal = sys.__stderr__
        if terminal is not None and self._stream is terminal:
            # The output of runs is silenced, so the display needs its own descriptor.
            with contextlib.suppress(OSError, ValueError):
                self._stream = self._own = open(os.dup(terminal.fileno()), "w")
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            elapsed = time.gmtime(time.monotonic() - self._began)
            words = f"tuning for {time.strftime('%H:%M:%S', elapsed)}{self._expected}"
            print(f"\r{words}", end="", file=self._stream, flush=True)

    def __exit__(self, *_: object) -> None:
        if not self._is_shown:
            return
        self._over.set()
        self._thread.join()
        print(file=self._stream)
        if self._own is not None:
            self._own.close()
