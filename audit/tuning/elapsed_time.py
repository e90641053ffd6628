"""Display of the elapsed time of a study, which reveals nothing about its runs.

It depends on the clock and on numbers that were public before the first run: the distribution of K,
the number of runs at a time, and the time of a run on synthetic or public records.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np

from audit.repetitions import Repetitions

CHANCE = 1e-3
"""The probability that a study trains more runs than the worst time assumes."""

_MAX_COUNT = 1 << 21


def worst_runs(runs: Repetitions, chance: float = CHANCE) -> int | None:
    """The smallest number that K exceeds with probability at most `chance`.

    None if it is larger than two million.
    """
    size, reached = 1024, 0.0
    begin = 0
    while begin < _MAX_COUNT:
        below = reached + np.cumsum(runs.pmf(np.arange(begin, size)))
        (enough,) = np.nonzero(below >= 1.0 - chance)
        if enough.size:
            return begin + int(enough[0])
        begin, size, reached = size, 2 * size, float(below[-1])
    return None


def worst_seconds(
    runs: Repetitions | None, run_seconds: float, jobs: int = 1, chance: float = CHANCE
) -> float | None:
    """Time of a study whose number of runs is the worst one; None if it has no limit.

    Each of `jobs` workers trains one run after the other, and each run takes `run_seconds`.
    """
    count = None if runs is None else worst_runs(runs, chance)
    return None if count is None else -(-count // jobs) * run_seconds


def format_time(seconds: float) -> str:
    """A time in days, hours, minutes and seconds."""
    days, rest_of_day = divmod(int(seconds), 86400)
    clock = time.strftime("%H:%M:%S", time.gmtime(rest_of_day))
    return f"{days} d {clock}" if days else clock


def progress_line(elapsed: float, mean_runs: float | None, worst: float | None) -> str:
    """The displayed line: a function of the elapsed time and of public numbers."""
    line = f"tuning for {format_time(elapsed)}"
    if mean_runs is not None:
        line += f"; {mean_runs:.4g} runs are expected"
    if worst is None:
        return line
    if elapsed > worst:
        return f"{line}; longer than {format_time(worst)}, the worst time of {1 - CHANCE:.1%}"
    return f"{line}; at most {format_time(worst - elapsed)} more with probability {1 - CHANCE:.1%}"


@contextlib.contextmanager
def elapsed_time(mean_runs: float | None, worst: float | None = None) -> Iterator[None]:
    """Shows on stderr for how long a study has been running, and how long it takes at most."""
    began, over = time.monotonic(), threading.Event()
    with contextlib.ExitStack() as stack:
        stream, terminal = sys.stderr, sys.__stderr__
        if terminal is not None and stream is terminal:
            # The output of runs is silenced, so the display needs its own descriptor.
            with contextlib.suppress(OSError, ValueError):
                stream = stack.enter_context(open(os.dup(terminal.fileno()), "w"))

        def show_elapsed() -> None:
            while not over.wait(1.0):
                line = progress_line(time.monotonic() - began, mean_runs, worst)
                print(f"\r{line}", end="", file=stream, flush=True)

        thread = threading.Thread(target=show_elapsed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            print(file=stream)
