"""A study with the packages of the plain installation."""

import sys
from pathlib import Path

import pytest

import audit
from audit.accounting import GaussianMechanism
from audit.errors import MissingExtra


def test_a_study_without_filelock_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "filelock", None)
    study = audit.Study({"lr": [0.1]}, "grid:1", base=GaussianMechanism(0.5), scored_on="public")
    runs: list[object] = []

    def train(trial: audit.Trial) -> audit.Outcome:
        runs.append(trial)
        return audit.Outcome(0.0, None)

    with pytest.raises(
        MissingExtra, match=r"^filelock must be installed: pip install filelock, or"
    ):
        study.run(train)
    assert runs == []
    assert list(tmp_path.iterdir()) == []
