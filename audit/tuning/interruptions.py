"""Signals that end a study: a run that one of them cuts has not failed, and is resumed.

Job schedulers announce the end of a job by a signal. A handler such as that of submitit then raises
an exception in the middle of a run. Without this module, the run would count as one that failed.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_pending: list[BaseException] = []


class Interrupted(KeyboardInterrupt):
    """A signal handler raised an exception, which ends the study after the present run."""


def is_pending() -> bool:
    """Whether a signal handler has raised an exception, which a trainer may have caught."""
    return bool(_pending)


@contextlib.contextmanager
def interruptions() -> Iterator[None]:
    """Ends the study by the exception of a signal handler, whatever the running trainer does.

    It concerns the handlers that are installed when the study begins. Does nothing outside of the
    main thread, where Python calls no handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number, handler in replaced.items():
            signal.signal(number, _noting(handler))
        yield
    except KeyboardInterrupt:
        if _pending:
            raise _pending[0] from None
        raise
    finally:
        _pending.clear()
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _noting(handler: Callable[[int, FrameType | None], Any]) -> Callable[..., None]:
    def noting(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            _pending.append(error)
            raise Interrupted from error

    return noting
