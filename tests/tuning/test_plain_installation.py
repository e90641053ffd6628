"""A study with the packages of the plain installation."""

import subprocess
import sys
from pathlib import Path

import pytest

import audit
from audit.accounting import GaussianMechanism
from audit.processes import locked

_HOLDS = """
import sys, time
from pathlib import Path
from audit.processes import locked
with locked(Path(sys.argv[1]), wait=False):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_study_needs_no_further_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for package in ("filelock", "joblib", "matplotlib", "opacus", "pandas", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    study = audit.Study({"lr": [0.1]}, "grid:1", base=GaussianMechanism(0.5), scored_on="public")
    best = study.run(lambda trial: audit.Outcome(trial.candidate["lr"], None))
    assert best.candidate == {"lr": 0.1}
    assert list(tmp_path.iterdir()) == []
    for suffix in ("json", "html", "txt", "yaml"):
        study.certificate.save(tmp_path / f"certificate.{suffix}")
    page = (tmp_path / "certificate.html").read_text()
    assert "figures of this page are left out, because matplotlib was not installed" in page


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", _HOLDS, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(TimeoutError), locked(path, wait=False):
        pass
    holder.kill()
    holder.communicate()
    with locked(path, wait=False):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(TimeoutError), locked(path, wait=False):
            pass
        path.unlink()  # as at the end of a study
    with locked(path, wait=True):
        assert path.exists()
