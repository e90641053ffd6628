"""Runs of a script as copies of a process that waits at `make_private`.

The script runs once up to `make_private`. For each run, the waiting process is copied, and the copy
continues with other records. A slow preamble is paid for once, and a script that catches every
exception cannot keep the copy alive.
"""

import os
import pickle
import resource
import signal
import sys
import time
import warnings
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

from audit.loop.runs.coupled_runs import RecordingWatch, RunRequest, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.work import CouldNotFinish
from audit.loop.sources.script_run import ScriptTrain, empty_output, execute_copy
from audit.opacus_objects import left_out_of_samples
from audit.processes import WAITING, end_when_idle

_MAX_CPU_SECONDS = 300
"""CPU time of one run of a few steps, after which the test could not finish."""
# Exit code of a copy that waits for something.
_EXIT_IDLE = 97


class ForkedTrain:
    """A script as a training function whose runs are copies of a waiting process.

    Args:
        train: the script.
    """

    def __init__(self, train: ScriptTrain) -> None:
        self._facts = train.facts
        self._connection, child_end = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns that a process with threads is copied
            self._process = os.fork()
        if self._process == 0:
            self._connection.close()
            _wait_at_hook(train, child_end)
        child_end.close()

    def __call__(self, *_: Any) -> NoReturn:
        raise AssertionError("runs are copies")

    def run_elsewhere(self, request: RunRequest) -> tuple[Trace, float]:
        """The trace of one run, which has no model and no accountant, and its CPU seconds.

        Args:
            request: the run.
        """
        try:
            _send(self._connection, request)
            trace, facts, seconds = _receive(self._connection)
        except (EOFError, OSError) as error:
            return Trace(error=f"the waiting process ended ({type(error).__name__})"), 0.0
        if isinstance(seconds, str):
            raise CouldNotFinish(seconds)
        if trace is None:
            return Trace(error="the process of the run ended without an answer"), 0.0
        if facts is not None and self._facts is not None:
            self._facts.merge(facts)
        return trace, seconds

    def close(self) -> None:
        """Ends the waiting process."""
        self._connection.close()
        os.waitpid(self._process, 0)


def _send(connection: Connection, value: Any) -> None:
    # `Connection.send` would pass tensors by descriptors, through a socket of the sender.
    connection.send_bytes(pickle.dumps(value))


def _receive(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())  # of our own process


def _why_unfinished(status: int) -> str:
    """The reason why a copy did not finish; empty if it ended in another way."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return f"a run of the script used more than {_MAX_CPU_SECONDS} CPU s"
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _EXIT_IDLE:
        return f"a run must go on, got {WAITING}"
    return ""


def _wait_at_hook(train: ScriptTrain, connection: Connection) -> NoReturn:
    """Runs the script up to `make_private`, and copies the process for each request."""

    def wait() -> tuple[TrainingSet, int, RecordingWatch]:
        while True:
            try:
                request = _receive(connection)
            except EOFError:
                os._exit(0)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            empty_output()
            child = os.fork()
            if child == 0:
                # The kernel ends a copy that uses far more CPU time than any run of a few steps.
                limits = _MAX_CPU_SECONDS, _MAX_CPU_SECONDS + 10
                resource.setrlimit(resource.RLIMIT_CPU, limits)
                end_when_idle(lambda: os._exit(_EXIT_IDLE), train.idle_seconds).__enter__()
                watch = RecordingWatch(request.like, request.stop_after, request.digests)
                watch.to_end = request.to_end
                left_out_of_samples(request.left_out).__enter__()
                return request.records, request.seed, watch
            _, status = os.waitpid(child, 0)
            if status:
                _send(connection, (None, None, _why_unfinished(status) or 0.0))

    def send(trace: Trace, facts: Any) -> NoReturn:
        trace.model, trace.parameters, trace.accountant = None, [], None
        _send(connection, (trace, facts, time.process_time()))
        os._exit(0)

    try:
        execute_copy(train, wait, send)
    finally:
        os._exit(1)
