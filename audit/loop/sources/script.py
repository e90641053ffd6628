"""`audit.script`: the differential test of an unmodified script that uses Opacus."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from audit import checks
from audit.errors import InvalidInput, PrivacyLeak
from audit.loop.findings import PremiseReport
from audit.loop.runs.work import CPU_SECONDS
from audit.processes import IDLE_SECONDS

MODES = ("auto", "rerun", "fork")
RECORDS, STEPS = 24, 8
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class ScriptResult:
    """The verdict on a script.

    Attributes:
        name: name of the script.
        report: outcome of the differential test.
        facts: what the runs showed: the script's own n, batch size and noise, constant seeds,
            other loaders, and settings that were changed.
        tested: n and batch size of the test.
        mode: "rerun" or "fork".

    Example:
        >>> from audit.loop.findings import PremiseReport
        >>> report = PremiseReport((), ("contribution",), {}, (), {}, True, 80, 20.0)
        >>> ScriptResult("train.py", report, {}, {"n": 24}, "rerun").broken
        False
    """

    name: str
    report: PremiseReport
    facts: Mapping[str, Any]
    tested: Mapping[str, Any]
    mode: str

    @property
    def broken(self) -> bool:
        """Whether a premise is broken."""
        return self.report.broken

    @property
    def exit_code(self) -> int:
        """1 for a broken premise, 2 where a premise was not testable, else 0."""
        return 1 if self.broken else 2 if self.report.inconclusive else 0

    def __bool__(self) -> bool:
        """Whether the test was conclusive and found nothing."""
        return self.exit_code == 0

    @property
    def setting(self) -> list[str]:
        """The script's own numbers, those of the test, and what was changed for it."""
        facts, tested = self.facts, self.tested
        rate = tested["batch_size"] / tested["n"]
        lines = [
            f"script: n = {facts['n']:,}, batch size {facts['batch_size']:,}, noise multiplier "
            f"{facts['noise_multiplier']:.4g}"
            + (
                ""
                if facts["target_epsilon"] is None
                else f" for epsilon {facts['target_epsilon']:.4g}"
            ),
            f"tested: n = {tested['n']}, rate {rate:.3g}, {self.report.steps} steps, "
            f"{self.report.runs} runs ({self.mode}); zero-out: n is public",
        ]
        if facts.get("arguments"):
            lines[0] += f", arguments {checks.one_line(' '.join(facts['arguments']))}"
        changed = ["seeds", "data set of the loader", *facts["overridden"]]
        lines.append(f"changed for the test: {', '.join(changed)}")
        if facts["files"] and "released numbers" in self.report.tested:
            shown = ", ".join(facts["files"][:4])
            lines.append(f"contents of files that were compared: {shown}")
        if facts["lowest_noise"] < facts["noise_multiplier"]:
            lines.append(
                f"the smallest noise multiplier of a step is {facts['lowest_noise']:.4g}; "
                f"make_private got {facts['noise_multiplier']:.4g}"
            )
        if facts["seeds"]:
            shown = ", ".join(facts["seeds"][:4])
            lines.append(
                f"constant seeds: {shown}; anyone who knows them can subtract the noise, so train "
                "the released model without them"
            )
        return lines

    @property
    def not_tested(self) -> list[str]:
        """Parts of the script that no verdict covers."""
        facts = self.facts
        items = [
            "everything before make_private (scaling, subsets, first weights)",
            "prints, logs, files not saved by torch, safetensors, pickle, numpy",
            f"steps after the first {self.report.steps}, and the number of epochs"
            + (f" (the script then fails: {facts['failure']})" if facts["failure"] else ""),
            "epsilon by an attack (audit.check runs one on a function)",
        ]
        if "released numbers" not in self.report.tested:
            items.append("contents of files that the script saves")
        elif facts["end"]:
            items.append(
                f"what the script saves after the first {self.report.steps} steps, because it does "
                f"not reach its end: {facts['end']}"
            )
        if facts["loaders"]:
            shown = ", ".join(facts["loaders"][:4])
            items.append(f"other loaders, taken as public ({shown})")
        else:
            items.append("other records (held out, or copies), taken as public")
        if facts["files"] and not facts["are_rows_exchanged"]:
            items.append(
                "choices by the loader's records where they are read past it, because no array of "
                "the data set holds them"
            )
        if facts["unchanged"]:
            shown = ", ".join(facts["unchanged"][:4])
            items.append(f"parts of a record that were not exchanged ({shown})")
        if facts["engines"] > 1:
            calls = facts["engines"] if not facts["end"] else f"at least {facts['engines']}"
            items.append(
                f"clipping, noise and batches of all but the first of {calls} calls of "
                "make_private, and the sum of their epsilons: each engine accounts for its own runs"
            )
        return items

    @property
    def short(self) -> str:
        """The verdict, and one line per finding; the first one has its message, cause and fix."""
        return self._verdict(self.report.short)

    def __str__(self) -> str:
        return self._verdict(str(self.report))

    def _verdict(self, report: str) -> str:
        outside = [f"not tested: {item}" for item in self.not_tested]
        return "\n".join([report, *self.setting, *outside])

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python objects."""
        return {
            "exit_code": self.exit_code,
            "script": self.name,
            "premises": self.report.to_dict(),
            "facts": dict(self.facts),
            "tested": dict(self.tested),
            "mode": self.mode,
            "not_tested": self.not_tested,
        }

    def to_json(self) -> str:
        """The result as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def raise_if_broken(self) -> "ScriptResult":
        """Returns itself, or raises.

        Raises:
            PrivacyLeak: a premise is broken.
            InvalidInput: a premise could not be tested.
        """
        if self.broken:
            raise PrivacyLeak(f"{self.name}: {self.report.summary}")
        if self.exit_code:
            raise InvalidInput(f"{self.name}: {self.report.summary}")
        return self


def script(
    path: str | Path,
    arguments: Sequence[str] = (),
    *,
    mode: str = "auto",
    records: int = RECORDS,
    steps: int = STEPS,
    delta: float = 1e-5,
    cpu_seconds: float = CPU_SECONDS,
    seed: int = 0,
    allow_writes: bool = False,
) -> ScriptResult:
    """Tests an unmodified training script that calls `PrivacyEngine.make_private` of Opacus.

    The script runs in a process of its own, up to about 200 times and for a few steps each. At its
    call of `make_private`, its data set is replaced by a few of its records, of which one is
    exchanged, and the random generators are seeded. The premises are those of `audit.check`.

    Nothing of the user's is overwritten: the process has its own view of all file systems, and its
    writes are discarded. The network is cut at `make_private`.

    Args:
        path: the script. It runs as `python path arguments` does, in the current folder.
        arguments: the script's own arguments. Let them choose the CPU.
        mode: "rerun" repeats the script for each run; "fork" copies the process at `make_private`,
            which is faster after a slow preamble and does not allow CUDA; "auto" forks where the
            preamble takes more than 0.2 CPU seconds.
        records: number of the script's records that are used, evenly spaced.
        steps: number of steps after which a run ends.
        delta: delta of notes about an epsilon.
        cpu_seconds: CPU time after which the test ends without a verdict (exit code 2).
        seed: seed of all random numbers.
        allow_writes: whether the script may write to files where they cannot be protected.

    Returns:
        The verdict, with the list of what is not tested.

    Raises:
        InvalidInput: the script cannot be tested; the message says what to do.

    Example:
        >>> script("missing.py")
        Traceback (most recent call last):
        ...
        audit.errors.InvalidInput: path must name a script, got 'missing.py'
    """
    if not isinstance(path, str | Path):
        raise InvalidInput(f"path must name a script, got {checks.one_line(path)}")
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"path must name a script, got {checks.one_line(str(path))}")
    if isinstance(arguments, str):
        raise InvalidInput(
            f"arguments must be a list of words, got one text: {checks.one_line(arguments)}"
        )
    mode = checks.one_of("mode", mode, MODES)
    options = {
        "path": str(file.resolve()),
        "arguments": [str(word) for word in arguments],
        "mode": mode,
        "records": checks.integer("records", records, 8, 1000),
        "steps": checks.integer("steps", steps, 2, 1000),
        "delta": checks.interval("delta", delta, 0.0, 1.0),
        "cpu_seconds": checks.interval("cpu_seconds", cpu_seconds, 0.0),
        "seed": checks.integer("seed", seed, 0),
        "parent": os.getpid(),
        "idle_seconds": IDLE_SECONDS,
        "protection": "allow" if checks.flag("allow_writes", allow_writes) else "protect",
    }
    answer = _answer_of(options)
    if "error" in answer:
        raise InvalidInput(answer["error"])
    from audit.loop.sources.script_process import report_of

    return ScriptResult(
        file.name,
        report_of(answer["report"]),
        answer["facts"] | {"arguments": options["arguments"]},
        answer["tested"],
        answer["mode"],
    )


def _answer_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the test in a process of its own."""
    read, write = os.pipe()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The threads of OpenMP do not survive a copy of the process: the copy would wait for them.
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }
    start = Path(__file__).with_name("namespace.py")
    texts = options["protection"], str(write), json.dumps(options)
    command = [sys.executable, "-P", str(start), *texts]
    process = subprocess.Popen(
        command,
        env=environment,
        pass_fds=(write,),
        stdin=subprocess.DEVNULL,  # a script that reads answers would wait forever
        start_new_session=True,
    )
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            text = _line_of(process, pipe)
        code = process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):  # processes that the script started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not text:
        name = Path(options["path"]).name
        return {
            "error": f"{name} must end by an exception or at its last line, got a process that "
            f"ended with {_end_of(code)}: leave out os._exit, and give it enough memory"
        }
    answer: dict[str, Any] = json.loads(text)
    return answer


def _line_of(process: subprocess.Popen[bytes], pipe: IO[str]) -> str:
    """The answer of the process, a line; empty if it ended without one.

    A process that the script started may hold the other end of the pipe open.
    """
    while not select.select([pipe], [], [], _POLL_SECONDS)[0]:
        if process.poll() is not None and not select.select([pipe], [], [], 0)[0]:
            return ""
    return pipe.readline()


def _end_of(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
