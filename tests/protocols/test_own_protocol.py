"""A protocol in one file of the user's goes through every part of the toolkit without a change."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extending" / "my_protocol.py"

# In a process of its own, because the example registers a protocol that other tests must not see.
_SCRIPT = """
import json
import audit, my_protocol
from audit.accounting import GaussianMechanism
from audit.upper_bounds import tuning_cost

protocol = audit.protocols.parse_protocol("shortlist:6,3")
base = GaussianMechanism(0.3)
found = {"cost": tuning_cost(base, protocol, 1e-5).epsilon, "statement": None}
found["grid"] = tuning_cost(base, "grid:3", 1e-5).epsilon
found["statement"] = tuning_cost(base, protocol, 1e-5).statement
run = audit.DpSgd(noise_multiplier=20.0, steps=100)

space = {"lr": [1, 2, 3, 4, 5, 6]}
study = audit.Study(space, protocol, base=run, folder=None, seed=3)
trained = []
def train(trial):
    trained.append(trial.candidate["lr"])
    return audit.Outcome(float(trial.candidate["lr"]), "model")
best = study.run(train)
found["trained"], found["best"] = sorted(trained), best.candidate["lr"]
found["certified"] = study.certificate.numbers.epsilon
study.certificate.save("certificate.json")
print(json.dumps(found))
"""
_FURTHER = """
import json
import audit, my_protocol
from audit.accounting import GaussianMechanism
from audit.commands import calculator
from audit.upper_bounds import calibrate_mu_for_tuning, compare_protocols, tuning_cost

protocol = audit.protocols.parse_protocol("shortlist:6,3")
base, run = GaussianMechanism(0.3), audit.DpSgd(noise_multiplier=20.0, steps=100)
mu = calibrate_mu_for_tuning(protocol, target_epsilon=2.0, target_delta=1e-5)
found = {"inverse": tuning_cost(GaussianMechanism(mu), protocol, 1e-5).epsilon}
found["compared"] = [row.title for row in compare_protocols(base, 3, 1e-5)]
found["calculator"] = calculator.compute(run, "shortlist, half of a list", 3, 1e-5).epsilon
print(json.dumps(found))
"""


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own")
    (path / "my_protocol.py").write_text(EXAMPLE.read_text())
    return path


@pytest.fixture(scope="module")
def answers(folder: Path) -> Any:
    return json.loads(python(folder, "-c", _SCRIPT))


def test_the_example_is_one_file_of_at_most_a_hundred_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 100


def test_cost_and_statement(answers: Any) -> None:
    assert answers["cost"] == answers["grid"]
    assert "without replacement" in answers["statement"]


@pytest.mark.slow
def test_inverse_comparison_and_calculator(folder: Path) -> None:
    answers = json.loads(python(folder, "-c", _FURTHER))
    assert 1.999 < answers["inverse"] <= 2.0
    assert "shortlist, half of a list" in answers["compared"]
    assert answers["calculator"] > 0.0


def test_a_study_trains_distinct_candidates_and_releases_the_best(answers: Any) -> None:
    assert len(set(answers["trained"])) == 3
    assert answers["best"] == max(answers["trained"])


@pytest.mark.slow
def test_its_certificate_is_verified_only_with_its_module(answers: Any, folder: Path) -> None:
    refused = python(folder, "-m", "audit.verify", "certificate.json", code=2)
    assert "correct" not in refused
    verified = python(
        folder, "-m", "audit.verify", "certificate.json", "--imports", "my_protocol", code=3
    )
    assert "void" in verified  # a seed was given, so the study is not private


@pytest.mark.slow
def test_an_audit_plays_it(folder: Path) -> None:
    options = ["--imports", "my_protocol", "--protocol", "shortlist:4,2", "--trials", "300"]
    options += ["--repeats", "1", "--epsilon", "4", "--out", "audited", "--json"]
    found = json.loads(python(folder, "-m", "audit.run", *options))
    assert found
    (shard,) = (folder / "audited" / "shards").glob("*.npz")
    with np.load(shard) as trials:
        # Two of four candidates are trained in each trial, and each position wins about as often.
        assert set(trials["runs"].tolist()) == {2}
        wins = np.bincount(trials["chosen"], minlength=4)
    # 300 wins over four positions: a deviation of 45 has probability below 1e-8.
    assert np.abs(wins - 75).max() < 45
