"""Runs of a study in several processes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from clusters import local_backend
from light_runs import noisy
from study_helpers import (
    study,
)

from audit import processes, tuning
from audit.errors import InvalidInput, MissingExtra

PARENT = """
import sys, time, os
from pathlib import Path
from audit import accounting, tuning

def train(trial):
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.2)
    return tuning.Outcome(1.0)

study = tuning.Study({"level": [1, 2]}, "fixed:1000", base=accounting.GaussianMechanism(0.5),
                     folder=None)
study.run(train, jobs=2)
"""


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_workers_end_with_the_process_of_the_study(tmp_path: Path, end: Any) -> None:
    seen = tmp_path / "seen"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(seen)], stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 60
    while not seen.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = {int(line) for line in seen.read_text().split()}
    parent.send_signal(end)
    parent.wait()

    def alive(process: Any) -> Any:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
        return False

    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))
    runs = len(seen.read_text().split())
    time.sleep(0.5)
    assert len(seen.read_text().split()) == runs


def test_workers_need_joblib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(MissingExtra, match=r"^joblib must be installed: .*\[game\]'$"):
        study().run(noisy, jobs=2)


def test_threads_are_refused_as_workers() -> None:
    import joblib

    with (
        joblib.parallel_config("threading"),
        pytest.raises(ValueError, match="active backend must run each job in a process"),
    ):
        study().run(noisy, jobs=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_worker_that_dies_with_a_device_changes_nothing(tmp_path: Path) -> None:
    died, seen = tmp_path / "died", tmp_path / "seen"

    def train(trial: Any) -> Any:
        if trial.device != "cpu":
            if not died.exists():
                died.write_text(trial.device)
                os.kill(os.getpid(), signal.SIGKILL)
            with seen.open("a") as file:
                file.write(f"{trial.device}\n")
            # Waits for the worker that replaces the dead one and takes its device.
            deadline = time.monotonic() + 60
            while died.read_text() not in seen.read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
        return tuning.Outcome(np.random.default_rng(trial.seed).normal(), os.getpid())

    alone = study(seed=5).run(train)
    with local_backend("dask", tmp_path):
        there = study(seed=5).run(train, devices=["xpu:0", "xpu:1"])
    assert died.read_text() in seen.read_text().split()  # its device is free again
    assert (there.candidate, there.score) == (alone.candidate, alone.score)
    assert there.model != os.getpid()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["loky", "ray"])
def test_a_worker_that_dies_stops_the_study_which_resumes_with_the_same_draws(
    backend: str, tmp_path: Path
) -> None:
    (tmp_path / "graves").mkdir()

    def train(trial: Any) -> Any:
        if not list((tmp_path / "graves").iterdir()):
            (tmp_path / "graves" / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return noisy(trial)

    settings = {"seed": 5, "folder": tmp_path / "s"}
    with (
        local_backend(backend, tmp_path),
        pytest.raises(RuntimeError, match=r"a worker process died.*it resumes") as caught,
    ):
        study(**settings).run(train, jobs=2)
    assert "\n" not in str(caught.value)
    assert study(**settings).run(noisy, jobs=2) == study(seed=5).run(noisy)


def test_the_number_of_jobs_does_not_change_the_result() -> None:
    assert study(seed=5).run(noisy, jobs=2) == study(seed=5).run(noisy)


def test_each_device_serves_one_run_at_a_time(tmp_path: Path) -> None:
    names = ["xpu:0", "xpu:1"]

    def train(trial: Any) -> Any:
        claim = tmp_path / trial.device
        claim.touch(exist_ok=False)  # raises if another run has the device, and the run then loses
        with (tmp_path / "seen").open("a") as file:
            file.write(f"{trial.device}\n")
        time.sleep(0.2)
        claim.unlink()
        return noisy(trial)

    # More processes than devices: the third waits for a device.
    found = study(seed=5).run(train, jobs=3, devices=names)
    assert found == study(seed=5).run(noisy)
    assert found == study(seed=5).run(train, devices=names[:1])
    seen = (tmp_path / "seen").read_text().split()
    assert set(seen[:6]) == set(names)
    assert seen[6:] == names[:1] * 6


def test_a_process_prefers_its_latest_device_and_waits_for_a_free_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_latest", [])
    shared = processes.Devices(("xpu:0", "xpu:1"), tmp_path / "locks")
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        assert [shared.claim(first), shared.claim(second)] == ["xpu:0", "xpu:1"]
        with contextlib.ExitStack() as third:
            threading.Timer(0.3, second.close).start()
            assert shared.claim(third) == "xpu:1"
    with contextlib.ExitStack() as again:
        assert shared.claim(again) == "xpu:1"


def test_the_default_is_one_job_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def play(*given: Any, jobs: int, **options: Any) -> Any:
        found.append(jobs)
        raise KeyboardInterrupt

    monkeypatch.setattr("audit.tuning.study.play", play)
    for names in (None, ["xpu:0"], ["xpu:0", "xpu:1", "xpu:2"]):
        with pytest.raises(KeyboardInterrupt):
            study().run(noisy, devices=names)
    assert found == [1, 1, 3]


def test_rehearsals_have_a_device() -> None:
    seen = []

    def train(trial: Any, records: Any) -> Any:
        seen.append(trial.device)
        return noisy(trial)

    study(protocol="fixed:1").run(train, records=np.ones(3), devices=["xpu:1"])
    study().rehearse(train, np.ones(3), device="xpu:2")
    study().rehearse(train, np.ones(3))
    assert seen == ["xpu:1"] * 3 + ["xpu:2"] * 2 + ["cpu"] * 2


@pytest.mark.parametrize(
    "names",
    ["cuda:0", [], [0], ["cuda:0", "cuda:0"], [""], 2, ["tpu"], ["cuda", "cuda:0"], ["cuda:-1"]],
)
def test_devices_are_different_names(names: Any) -> None:
    with pytest.raises(InvalidInput, match="devices must be a list of different names") as caught:
        study().run(noisy, devices=names)
    assert "\n" not in str(caught.value)
