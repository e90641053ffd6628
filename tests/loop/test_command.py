"""The processes of the command that audits a training function."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from audit import run

LOOP = """
import os, time

def records():
    return [[1.0], [2.0], [3.0]], [0, 1, 0]

def train(records, candidate, seed, watch):
    with open("trainings", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.05)
    return float(seed % 7)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "jobs"),
    [
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
    ],
)
def test_training_ends_with_the_command(
    tmp_path: Path, request: pytest.FixtureRequest, number: Any, jobs: int
) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    options = ["--train", "loop.train", "--records", "loop.records", "--claim", "1"]
    options += ["--no-premises", "--trials", "100000", "--cpu-seconds", "2000", "--jobs", str(jobs)]
    trainings = tmp_path / "trainings"

    def processes() -> Any:
        return set(trainings.read_text().split()) if trainings.exists() else set()

    # A script may start the tests in the background, where SIGINT is ignored, also by the command.
    # Whatever handles it in this process, a new program starts with the default.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    errors = tmp_path / "errors"  # a pipe would be open until the last training ends
    with open(errors, "w") as file:
        command = subprocess.Popen(
            [sys.executable, "-m", "audit.run", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        # With several jobs, the first two trainings run in the process that starts the workers.
        while len(processes()) < (1 if jobs == 1 else 2):
            assert command.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if number == signal.SIGINT:  # a terminal sends it to all processes
            os.killpg(command.pid, number)
        else:
            command.send_signal(number)
        killed = number == signal.SIGKILL
        assert command.wait(60) == (-number if killed else 128 + number)
    finally:
        command.kill()
        command.wait()
    time.sleep(1.5)
    assert errors.read_text().splitlines() == ([] if killed else ["stopped"])
    count = len(trainings.read_text().split())
    time.sleep(1)
    still_training = len(trainings.read_text().split()) != count
    if still_training:
        os.killpg(command.pid, signal.SIGKILL)
    assert not still_training


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--one-run", "--trials", "9", "--no-premises"], "--trials, --no-premises must not be"),
        (["--one-run", "--relation", "zero-out"], "--relation must not be given with --one-run"),
        (["--one-run", "--canary-index", "3"], "--canary-index must not be given with --one-run"),
        (["--one-run", "--threat", "ntnv"], "--threat must be NTCV or ETCV with --one-run, got 'n"),
        (["--one-run", "--canary", "input"], "--canary must be dirac or left out with --one-run"),
        (["--one-run", "--canary", "a.b"], "--canary must be dirac or left out with --one-run"),
        (["--canaries", "9"], "--canaries must not be given without --one-run"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--train", "loop.train", *options])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}")
    assert error.count("\n") == 1
