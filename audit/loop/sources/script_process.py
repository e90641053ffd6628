"""The process in which a script is tested, and its copies.

The process writes its answer to a descriptor. Where a preamble is slow, the script runs once up to
`make_private`. For each run, the waiting process is copied, and the copy continues with other
records. A slow preamble is paid for once, and a script that catches every exception cannot keep the
copy alive.
"""

import contextlib
import ctypes
import json
import math
import os
import pickle
import resource
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

from audit.errors import InvalidInput
from audit.loop.findings import Finding, PremiseReport
from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.coupled_runs import RecordingWatch, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.work import CouldNotFinish, CpuLimit
from audit.loop.sources.idle import WAITING, end_when_idle
from audit.loop.sources.script_run import ScriptTrain, empty_output, execute_copy
from audit.processes import end_with_parent
from threat_models.user_code import format_error

_MAX_CPU_SECONDS = 300
"""CPU time of one run of a few steps, after which the test could not finish."""
# Exit code of a copy that waits for something.
_EXIT_IDLE = 97
_NEW_NETWORK = 0x40000000
MAX_RUNS = 200
"""Number of complete runs of a script after which no further optional run is started."""
SLOW_PREAMBLE = 0.2
"""CPU seconds up to `make_private` above which runs are forked and not repeated."""
SHARE_OF_FIRST_STEP = 1 / 6
"""Share of the CPU time within which a script must take its first step, twice."""


@dataclass(frozen=True)
class RunRequest:
    """What a copy needs for one run; see `CoupledRuns.run`."""

    records: TrainingSet
    seed: int
    like: Trace | None
    stop_after: int | None
    digests: bool
    to_end: bool


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

    def run_elsewhere(
        self,
        records: TrainingSet,
        seed: int,
        like: Trace | None,
        stop_after: int | None,
        digests: bool,
        to_end: bool,
    ) -> tuple[Trace, float]:
        """The trace of one run, which has no model and no accountant, and its CPU seconds.

        Args:
            records: the data.
            seed: seed of the run.
            like: the run whose released gradients are forced, or None.
            stop_after: number of steps after which the run is ended, or None.
            digests: whether to keep digests.
            to_end: whether the script continues after the last tested step.
        """
        try:
            _send(self._connection, RunRequest(records, seed, like, stop_after, digests, to_end))
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


def cut_network() -> None:
    """Cuts the network: by a namespace where that is possible, and for Python's sockets."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the network is cut while a script is tested")

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = refuse


def test_script(options: dict[str, Any], give_up: Callable[[str], NoReturn]) -> dict[str, Any]:
    """Tests a script; see `audit.loop.sources.script.script`.

    Args:
        options: the options of the test.
        give_up: answers with an error and ends the process.
    """
    from audit.loop.sources.script_run import ScriptTrain

    path = Path(options["path"])
    train: Any = ScriptTrain(path, options["arguments"], options["records"], options["steps"])
    cpu = CpuLimit(options["cpu_seconds"])
    preamble = _Preamble(cpu)
    train.on_hook = preamble.end
    train.give_up = give_up
    train.idle_seconds = options["idle_seconds"]
    train.are_files_covered = options["protection"] == "protect"
    learning = train

    def must_go_on() -> contextlib.AbstractContextManager[None]:
        waits = f"{path.name} must go on, got {WAITING}"
        refuse = partial(give_up, waits)
        return end_when_idle(lambda: learning.end_waiting(refuse), options["idle_seconds"])

    with must_go_on():
        records = _learn(train, cpu, preamble)
    mode, seconds = options["mode"], preamble.seconds
    if mode == "auto":
        mode = "fork" if seconds > SLOW_PREAMBLE and hasattr(os, "fork") else "rerun"
    facts, steps = train.facts, train.steps
    if mode == "fork":
        train = ForkedTrain(train)
    try:
        # A process whose copies run waits for them, and the copies watch themselves.
        with contextlib.nullcontext() if mode == "fork" else must_go_on():
            report = check_premises(
                train,
                records,
                relation="zero-out",
                delta=options["delta"],
                seed=options["seed"],
                # A run of a script takes far longer than one of a function.
                max_work=MAX_RUNS * steps,
                cpu=cpu,
            ).report
    finally:
        if mode == "fork":
            train.close()
    finding = _noise_finding(facts)
    findings = list(report.findings)
    if finding is not None:
        findings.insert(0, finding)
    return {
        "report": {**asdict(report), "findings": [asdict(result) for result in findings]},
        "facts": {
            **asdict(facts),
            "loaders": sorted(facts.loaders),
            "overridden": sorted(facts.overridden),
            "files": sorted(facts.files),
        },
        "tested": {
            "n": len(records),
            "batch_size": min(_batch_size(facts, len(records)), len(records)),
        },
        "mode": mode,
    }


class _Preamble:
    """CPU seconds that a script takes up to `make_private`, where the network is cut."""

    def __init__(self, cpu: CpuLimit) -> None:
        self._cpu = cpu
        self.seconds = math.inf
        self.start()

    def start(self) -> None:
        self._start = self._cpu.used

    def end(self) -> None:
        self.seconds = min(self.seconds, self._cpu.used - self._start)
        cut_network()


def _learn(train: Any, cpu: CpuLimit, preamble: _Preamble) -> TrainingSet:
    """The records of a script, which runs twice: the second time without imports."""
    try:
        with cpu.enforced(SHARE_OF_FIRST_STEP):
            records: TrainingSet = train.learn()
            preamble.start()
            train.limit_steps(cpu)
    except CouldNotFinish:
        limit = SHARE_OF_FIRST_STEP * cpu.seconds
        raise InvalidInput(
            f"{train.path.name} must take its first private step within {limit:.3g} CPU seconds, "
            "got none: let it prepare less data, or raise cpu_seconds (--cpu-seconds)"
        ) from None
    return records


def _batch_size(facts: Any, count: int) -> int:
    return count if facts.batch_size >= facts.n else max(count // 4, 1)


def _noise_finding(facts: Any) -> Finding | None:
    """Compares the noise of the steps with the one that `make_private_with_epsilon` returned."""
    lowest, returned = facts.lowest_noise, facts.noise_multiplier
    if facts.target_epsilon is None or not lowest < returned * (1 - 1e-9):
        return None
    return Finding(
        "noise",
        f"A step has noise multiplier {lowest:.4g}; make_private_with_epsilon computed "
        f"{returned:.4g} for epsilon {facts.target_epsilon:.4g}.",
        "The script lowers optimizer.noise_multiplier after make_private_with_epsilon, or a "
        "scheduler does. The accountant records the lower noise, so that its epsilon exceeds the "
        "target.",
        "Keep the noise multiplier, or use make_private and report the accountant's epsilon.",
        {"lowest noise multiplier": lowest, "noise multiplier": returned},
    )


def report_of(values: dict[str, Any]) -> PremiseReport:
    """A report from the answer of the process."""
    findings = tuple(Finding(**finding) for finding in values["findings"])
    tuples = {name: tuple(values[name]) for name in ("tested", "notes")}
    return PremiseReport(**{**values, **tuples, "findings": findings})


def main() -> None:
    """Reads the options, tests the script, and writes the answer."""
    descriptor, options = int(sys.argv[1]), json.loads(sys.argv[2])
    end_with_parent(options["parent"])
    warnings.simplefilter("ignore")
    unprotected = os.environ.pop("AUDIT_SCRIPT_UNPROTECTED", "")

    def give_up(message: str) -> NoReturn:
        _write_answer(descriptor, {"error": message})
        os._exit(0)

    answer: dict[str, Any]
    try:
        if unprotected:
            raise InvalidInput(
                f"allow_writes must be True (--allow-writes) where files cannot be protected "
                f"({unprotected}): the script then writes to its files in every run"
            )
        answer = test_script(options, give_up)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:  # of the script or ours
        is_user_error = isinstance(error, InvalidInput)
        answer = {"error": " ".join(str(error).split()) if is_user_error else format_error(error)}
    _write_answer(descriptor, answer)


def _write_answer(descriptor: int, answer: dict[str, Any]) -> None:
    with os.fdopen(descriptor, "w") as pipe:
        pipe.write(json.dumps(answer, default=float) + "\n")


if __name__ == "__main__":
    main()
