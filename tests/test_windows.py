"""Audits and studies where the operating system refuses what Windows refuses."""

import errno
import fcntl
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from light_runs import noisy

from audit import Study, files, processes, run

WINDOWS = SimpleNamespace(platform="win32")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No SIGHUP, no descriptors of folders, and no sync of a file that is open for reading."""
    opened, synced = os.open, os.fsync

    def open_file(path: Any, *arguments: Any, **keywords: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **keywords)

    def sync(descriptor: int) -> None:
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EBADF, "Bad file descriptor")
        synced(descriptor)

    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.slow
@pytest.mark.usefixtures("windows")
def test_an_audit_runs_on_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run.main(["--trials", "300", "--repeats", "1", "--epsilon", "1", "--out", str(tmp_path)])
    assert code == 0, capsys.readouterr().err


@pytest.mark.usefixtures("windows")
def test_a_study_on_disk_runs_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sys", WINDOWS)
    study = Study(
        {"level": [1, 2, 3, 4]}, "fixed:6", base="gaussian:0.5", folder=tmp_path / "study"
    )
    assert study.run(noisy).candidate is not None


def test_a_worker_on_windows_does_not_watch_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "sys", WINDOWS)
    monkeypatch.setattr(processes, "threading", None)  # no thread may start
    processes.end_with_parent(pid=1)  # not the parent's number, as in a virtual environment
