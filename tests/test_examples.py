"""The examples run as they stand in the README."""

import subprocess
import sys
from pathlib import Path

import pytest

from audit import verify

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder):
    command = [sys.executable, str(EXAMPLES / name), *([str(folder)] if folder else [])]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folder or EXAMPLES
    ).stdout


def test_what_did_it_cost():
    assert run("what_did_it_cost.py", None).count("only the best is released") == 4


@pytest.mark.parametrize("name", ["tune_with_optuna.py", "tune_privately.py"])
def test_tuning_examples(name, tmp_path, capsys):
    printed = run(name, tmp_path)
    assert "noise multiplier" in printed
    assert "differentially private" in printed
    left = {path.name for path in tmp_path.iterdir()}
    if name == "tune_privately.py":
        assert left == {"certificate.json", "certificate.txt", "certificate.html"}
        assert verify.main([str(tmp_path / "certificate.json")]) == 0
        # Steps, noise, rate and Poisson sampling were checked: five things are left on trust.
        assert "if the 5 things taken on trust are so" in capsys.readouterr().out
    else:
        assert not left
