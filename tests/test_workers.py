"""Processes, devices and clusters: the same bytes from any of them, and dead workers replaced."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from audit import run

ROOT = Path(__file__).parents[1]
OPTIONS = ["--trials", "40000", "--repeats", "1", "--epsilon", "2"]


def audit(out, *options, path=""):
    environment = os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "audit.run", *OPTIONS, *options, "--out", str(out)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "audit"
    assert run.main([*OPTIONS, "--out", str(out)]) == 0
    return (out / "results.csv").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ("--jobs", "2"),
        ("--devices", "cpu", "cpu"),
        pytest.param(
            ("--backend", "dask", "--jobs", "2"),
            marks=pytest.mark.skipif(
                not importlib.util.find_spec("distributed"), reason="extra dask is not installed"
            ),
        ),
        pytest.param(
            ("--backend", "ray", "--jobs", "2"),
            marks=pytest.mark.skipif(
                not importlib.util.find_spec("ray"), reason="extra ray is not installed"
            ),
        ),
    ],
    ids=["jobs", "devices", "dask", "ray"],
)
def test_any_workers_give_the_same_bytes(tmp_path, expected, options):
    done = audit(tmp_path / "audit", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "audit" / "results.csv").read_bytes() == expected


# A model that kills its worker the first `deaths` times it is built in one.
MORTAL = """
import multiprocessing, os, pathlib, signal, torch
def build():
    if multiprocessing.current_process().name != "MainProcess":
        graves = pathlib.Path(os.environ["GRAVES"])
        count = len(list(graves.iterdir()))
        if count < int(os.environ["DEATHS"]):
            (graves / f"{count}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


def mortal(tmp_path, deaths, monkeypatch):
    (tmp_path / "mortal.py").write_text(MORTAL)
    (tmp_path / "graves").mkdir()
    monkeypatch.setenv("GRAVES", str(tmp_path / "graves"))
    monkeypatch.setenv("DEATHS", str(deaths))
    options = ["--engine", "batched", "--model", "mortal.build", "--steps", "2", "--jobs", "2"]
    options += ["--trials", "60", "--repetitions", "fixed:200"]
    return audit(tmp_path / "audit", *options, path=tmp_path)


def test_dead_workers_are_replaced_and_said(tmp_path, monkeypatch):
    done = mortal(tmp_path, 1, monkeypatch)
    assert done.returncode == 0, done.stderr
    assert "a worker died; its blocks are played again" in done.stderr
    assert (tmp_path / "audit" / "results.csv").exists()


def test_workers_that_keep_dying_end_the_run(tmp_path, monkeypatch):
    done = mortal(tmp_path, 10_000, monkeypatch)
    assert done.returncode == 2
    assert "workers died 3 times without finishing a block" in done.stderr
