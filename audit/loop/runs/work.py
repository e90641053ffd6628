"""Limits of a check: the work of its runs decides, and CPU time is a safety net.

The work of a run is its number of steps, where a step of a large model counts several times. It is
the same on every machine, so that a check has the same verdict on every machine. CPU time limits a
check too, but ends it without a verdict (`CouldNotFinish`).
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

MIN_WORK = 5
"""Work of a run of few steps, or of a black box."""

CPU_SECONDS = 1800.0
"""Default limit on the CPU time of a check."""

SHARE_OF_RUN = 0.05
"""Share of the CPU time that a single run may use; a check makes far more than 20 runs."""

# A step whose parameters times records are this number counts twice.
_LARGE_STEP = 1e6


class CouldNotFinish(BaseException):
    """The CPU time of a check is used up; `except Exception` does not catch it."""


def work_of(steps: int, parameters: int, records: int) -> float:
    """Work of a run, in steps of a small model.

    Args:
        steps: number of steps of the run.
        parameters: number of parameters of its model.
        records: number of records.

    Example:
        >>> work_of(10, 100, 24), work_of(0, 0, 24), work_of(10, 100_000, 50)
        (10.024, 5.0, 60.0)
    """
    return max(float(MIN_WORK), steps * (1.0 + parameters * records / _LARGE_STEP))


@dataclass
class CpuLimit:
    """The CPU time that a check may use.

    Attributes:
        seconds: the limit.

    Example:
        >>> limit = CpuLimit(60.0)
        >>> limit.add(70.0)  # by worker processes
        >>> limit.is_used_up
        True
    """

    seconds: float = CPU_SECONDS
    _of_workers: float = 0.0
    _is_enforced: bool = False
    _start: float = field(default_factory=time.process_time)

    def add(self, seconds: float) -> None:
        """Counts the CPU time of a worker process."""
        self._of_workers += seconds

    @property
    def used(self) -> float:
        """CPU seconds of this process and of workers since the check began."""
        return time.process_time() - self._start + self._of_workers

    @property
    def is_used_up(self) -> bool:
        """Whether no CPU time is left."""
        return self.used >= self.seconds

    @property
    def reason(self) -> str:
        """The reason why a check has no verdict."""
        return (
            f"could not finish within {self.seconds:g} CPU seconds: take fewer records, steps or "
            "trials, leave out the attack (attack=False), or raise cpu_seconds"
        )

    def check(self) -> None:
        """Raises `CouldNotFinish` if no CPU time is left."""
        if self.is_used_up:
            raise CouldNotFinish(self.reason)

    @contextlib.contextmanager
    def enforced(self, share: float = 1.0) -> Iterator[None]:
        """Raises `CouldNotFinish` within a run, where this thread may set a timer.

        The timer counts the CPU time of this process, and fires again each second in case the
        user's code catches the exception.

        Args:
            share: share of the limit that the run may use.
        """
        timer = getattr(signal, "setitimer", None)
        seconds_left = min(self.seconds - self.used, share * self.seconds)
        if timer is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        if not math.isfinite(seconds_left):
            yield
            return

        def stop(*_: object) -> None:
            raise CouldNotFinish(self.reason)

        before = signal.signal(signal.SIGVTALRM, stop)
        self._is_enforced = True
        self.set_timer(seconds_left)
        try:
            yield
        finally:
            self._is_enforced = False
            timer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)

    def set_timer(self, seconds: float) -> None:
        """Within `enforced`, sets the CPU seconds after which it raises `CouldNotFinish`."""
        if self._is_enforced:
            signal.setitimer(signal.ITIMER_VIRTUAL, max(seconds, 1e-3), 1.0)
