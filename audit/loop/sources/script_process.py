"""The process in which a script is tested: it writes its answer to a descriptor."""

import contextlib
import ctypes
import json
import math
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from audit.errors import InvalidInput
from audit.loop.findings import Finding, PremiseReport
from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.work import CouldNotFinish, CpuLimit
from audit.processes import WAITING, end_when_idle, end_with_parent
from audit.user_code import format_error

_NEW_NETWORK = 0x40000000
MAX_RUNS = 200
"""Number of complete runs of a script after which no further optional run is started."""

SLOW_PREAMBLE = 0.2
"""CPU seconds up to `make_private` above which runs are forked and not repeated."""

SHARE_OF_FIRST_STEP = 1 / 6
"""Share of the CPU time within which a script must take its first step, twice."""


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
    from audit.loop.sources.script_forks import ForkedTrain
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
