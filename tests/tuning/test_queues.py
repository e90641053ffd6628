"""Studies in the queues of clusters, on local stand-ins: runs that are cut resume byte for byte."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_helpers import study

from audit import tuning

SCRIPTS = Path(__file__).parents[2] / "examples" / "queues"
SETTINGS = {"seed": 3, "protocol": "fixed:2"}

# Takes the place of `my_training`: the first run that has saved 20 steps gets a signal.
STAND_IN = """
import os, runpy, signal, time
from pathlib import Path

globals().update(runpy.run_path(os.environ["TRAINING"], run_name="original"))
uncut = train

def train(trial, records):
    marker, save_state = Path(os.environ["MARKER"]), trial.save_state

    def saving(steps, **objects):
        save_state(steps, **objects)
        if steps == 20 and os.environ["CUT"] and "study" in str(trial.checkpoints.folder):
            try:
                marker.open("x").write(str(os.getpid()))
            except FileExistsError:
                return
            number = getattr(signal, os.environ["CUT"])
            if os.environ.get("WHOLE_JOB"):  # SLURM signals every process of a job
                os.kill(os.getppid(), number)
            os.kill(os.getpid(), number)
            time.sleep(1)

    trial.save_state = saving
    outcome = uncut(trial, records)
    with open(str(marker) + ".ended", "a") as file:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        file.write(f"{os.getpid()} {trial.checkpoints.resumed_at} {trial.device} {gpu}\\n")
    return outcome
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes the scripts importable here and in workers, with a function whose runs may be cut."""
    (tmp_path / "my_training.py").write_text(STAND_IN)
    paths = [str(tmp_path), str(SCRIPTS)]
    monkeypatch.setattr(sys, "path", [*paths, *sys.path])
    given = os.environ.get("PYTHONPATH", str(SCRIPTS.parents[1]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, given]))
    monkeypatch.setenv("TRAINING", str(SCRIPTS / "my_training.py"))
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    monkeypatch.setenv("CUT", "")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name == "my_training" or name.startswith("with_"):
            del sys.modules[name]


def uninterrupted(folder: Path) -> Any:
    """The result of the same study in this process, and without a cut."""
    training = importlib.import_module("my_training")
    best = training.make_study(None, **SETTINGS).run(
        training.train, records=training.load_records(), rehearse=False
    )
    (folder / "marker.ended").unlink()
    return best


def check_same(best: Any, expected: Any) -> None:
    assert best.candidate == expected.candidate
    assert best.score == expected.score
    assert best.model.tobytes() == expected.model.tobytes()


def check_resumed_elsewhere(folder: Path) -> None:
    """The run was cut after 20 steps, and another process took the remaining ones."""
    killed = (folder / "marker").read_text()
    ended = [line.split()[:2] for line in (folder / "marker.ended").read_text().splitlines()]
    assert "20" in [steps for process, steps in ended if process != killed]


@pytest.mark.slow
def test_the_rehearsal_tests_the_loop_of_the_scripts(scripts: Path) -> None:
    training = importlib.import_module("my_training")
    images, labels = training.IMAGES[training.PUBLIC] / 16, training.LABELS[training.PUBLIC]
    queued = training.make_study(None, **SETTINGS)
    queued.rehearse(training.train, (images[:60], labels[:60]))
    assert not queued.premises.broken
    assert {"contribution", "noise", "batches"} <= set(queued.premises.tested)
    assert "empty batches were not tested" not in str(queued.premises)


SCRIPT = """
import sys
import my_training as m
study = m.make_study(sys.argv[1], seed=3, protocol="fixed:2")
study.run(m.train, records=m.load_records(), save=m.save, load=m.load, rehearse=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["SIGTERM", "SIGKILL"])
def test_a_killed_process_is_continued_by_another(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    expected = uninterrupted(scripts)
    monkeypatch.setenv("CUT", cut)
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(scripts / "study")], check=False)
    assert ended.returncode == -getattr(signal, cut)
    training = importlib.import_module("my_training")
    best = training.make_study(scripts / "study", **SETTINGS).run(
        training.train, records=training.load_records(), save=training.save, load=training.load
    )
    check_same(best, expected)
    check_resumed_elsewhere(scripts)
    assert not (scripts / "study").exists()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["cpu"], ["cpu:0", "cpu:1"]])
def test_a_preempted_job_of_submitit_is_requeued(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str]
) -> None:
    pytest.importorskip("submitit")
    expected = uninterrupted(scripts)
    monkeypatch.setenv("CUT", "SIGUSR2")  # by which SLURM announces a preemption to submitit
    monkeypatch.setenv("WHOLE_JOB", "yes" if len(devices) > 1 else "")
    script = importlib.import_module("with_submitit")
    job = script.submit("local", scripts / "job", devices, **SETTINGS)
    check_same(job.result(), expected)
    check_resumed_elsewhere(scripts)
    assert (scripts / "job" / "certificate.json").exists()


# dask-jobqueue's local jobs do not wait for their processes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_a_run_of_a_lost_dask_worker_continues_on_another(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dask_jobqueue")
    expected = uninterrupted(scripts)
    monkeypatch.setenv("CUT", "SIGKILL")
    monkeypatch.chdir(scripts)
    script = importlib.import_module("with_dask_jobqueue")
    best, _ = script.main("local", scripts / "study", **SETTINGS)
    check_same(best, expected)
    check_resumed_elsewhere(scripts)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_each_run_on_ray_has_its_gpu(scripts: Path) -> None:
    pytest.importorskip("ray")
    expected = uninterrupted(scripts)
    script = importlib.import_module("with_ray")
    try:
        best, _ = script.main("local", scripts / "study", **SETTINGS)
    except Exception as error:
        if "timed out during startup" in str(error):
            pytest.skip("Ray gives its own processes 30 seconds, which a busy machine exceeds")
        raise
    check_same(best, expected)
    ended = (scripts / "marker.ended").read_text().splitlines()
    own = [line.split()[3] for line in ended if line.split()[0] != str(os.getpid())]
    assert len(own) == 2
    assert set(own) <= {"0", "1"}  # one of the two that Ray has


@pytest.mark.slow
def test_each_run_of_joblib_has_a_device(scripts: Path) -> None:
    expected = uninterrupted(scripts)
    script = importlib.import_module("with_joblib")
    best, _ = script.main(scripts / "study", ["cpu:0", "cpu:1"], **SETTINGS)
    check_same(best, expected)
    ended = (scripts / "marker.ended").read_text().splitlines()
    own = [line.split()[2] for line in ended if line.split()[0] != str(os.getpid())]
    assert len(own) == 2
    assert set(own) <= {"cpu:0", "cpu:1"}


class Stopped(Exception):
    """Raised by a handler, as that of a job scheduler raises SystemExit."""


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), Stopped()])
def test_an_exception_of_a_signal_handler_interrupts_a_run_and_does_not_fail_it(
    tmp_path: Path, error: BaseException, caught: bool
) -> None:
    def raise_error(*_: Any) -> None:
        raise error

    def train(trial: Any, signals: bool = False) -> Any:
        generator = np.random.default_rng(trial.seed)
        state = trial.load_state(generator=generator)
        total = 0.0 if state is None else state["total"]
        for step in range(0 if state is None else state["steps"], 4):
            total += generator.normal()
            trial.save_state(step + 1, generator=generator, total=total)
            if signals and step == 2:
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(5)
                except BaseException:  # as Lightning does with KeyboardInterrupt
                    if not caught:
                        raise
        return tuning.Outcome(total, trial.seed)

    settings = {"protocol": "fixed:3", "seed": 5}
    expected = study(**settings).run(train)
    before = signal.signal(signal.SIGTERM, raise_error)
    try:
        with pytest.raises(type(error)) as caught_here:
            study(folder=tmp_path / "s", **settings).run(lambda trial: train(trial, True))
        assert caught_here.value is error
        assert signal.getsignal(signal.SIGTERM) is raise_error
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "s" / "runs" / "0").is_dir()  # the run has not lost
    assert study(folder=tmp_path / "s", **settings).run(train) == expected
