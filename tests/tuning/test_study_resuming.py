"""Interrupted and killed studies resume with the same draws."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_runs import noisy, returns_nothing
from study_helpers import interrupted, study, subset_run

from audit import tuning


def test_an_interrupted_study_continues_with_the_same_draws(tmp_path: Path) -> None:
    settings = {"protocol": "fixed:7", "seed": 11}
    through = []
    best = study(**settings).run(lambda trial: through.append(trial) or noisy(trial))
    *parts, (found, last) = interrupted(tmp_path, 2, **settings)
    assert found == best
    seeds = [trial.seed for _, calls in parts for trial in calls] + [trial.seed for trial in last]
    assert seeds[:7] == [trial.seed for trial in through]  # no run twice, and none left out
    assert set(seeds[7:]) <= {best.model}  # except the winner's, if another process ran it


@pytest.mark.slow
def test_an_adaptive_study_continues_with_the_same_draws(tmp_path: Path) -> None:
    settings = {
        "space": {"x": tuning.Uniform(0, 1)}, "protocol": "adaptive:0.5,2/tnb:1,0.1", "seed": 1,
    }  # fmt: skip
    through = []
    best = study(**settings).run(lambda trial: through.append(trial) or noisy(trial))
    *parts, (found, _) = interrupted(tmp_path, 3, **settings)
    assert found == best
    done = [trial.candidate for _, calls in parts for trial in calls]
    assert len(done) > 3
    assert done == [trial.candidate for trial in through][: len(done)]


@pytest.mark.parametrize("until", [2, 5])
def test_an_interrupted_subset_study_continues_with_the_same_final_run(
    tmp_path: Path, until: int
) -> None:
    settings = {"protocol": "subset:0.4/fixed:4", "seed": 2}
    through = []
    best = study(**settings).run(lambda trial: through.append(trial) or subset_run(trial))
    *parts, (found, last) = interrupted(tmp_path, until, **settings, train=subset_run)
    assert found == best
    done = [trial for _, calls in [*parts, (None, last)] for trial in calls]
    assert [trial.seed for trial in done] == [trial.seed for trial in through]
    assert [trial.is_final for trial in done] == [False] * 4 + [True]


def test_a_missing_final_model_is_retrained_or_loaded(tmp_path: Path) -> None:
    settings = {"protocol": "subset:0.4/fixed:4", "seed": 2, "folder": tmp_path, "keep": True}
    calls = []

    def train(trial: Any) -> Any:
        calls.append(trial)
        return subset_run(trial)

    best = study(**settings).run(train)
    assert study(**settings).run(train) == best
    assert [trial.is_final for trial in calls] == [False] * 4 + [True, True]


def test_a_winner_that_cannot_be_reproduced_is_not_released(tmp_path: Path) -> None:
    def fresh(
        trial: Any,
    ) -> Any:  # ignores its seed, so the second training would be an additional run
        return tuning.Outcome(trial.candidate["level"], os.urandom(8))

    with pytest.raises(
        tuning.StudyAborted, match=r"train must return the same result for the same trial.seed"
    ):
        list(interrupted(tmp_path, 3, protocol="fixed:9", seed=1, train=fresh))


def test_a_saved_model_is_not_retrained(tmp_path: Path) -> None:
    def save(model: Any, path: Any) -> None:
        path.write_bytes(model)

    best = None
    for _ in range(9):
        calls: list[Any] = []

        def train(trial: Any, calls: Any = calls) -> Any:
            if calls:
                raise KeyboardInterrupt
            calls.append(trial)
            return tuning.Outcome(-trial.candidate["level"], os.urandom(8))

        one = study(folder=tmp_path / "s", protocol="fixed:4", seed=1)
        try:
            best = one.run(train, save=save, load=Path.read_bytes)
            break
        except KeyboardInterrupt:
            models = list((tmp_path / "s" / "models").iterdir())
            assert len(models) == 1
            assert models[0].stat().st_mode & 0o777 == 0o600
    assert best is not None
    assert len(best.model) == 8


def test_two_processes_cannot_run_one_study(tmp_path: Path) -> None:
    def train(trial: Any) -> None:
        study(folder=tmp_path, seed=1).run(noisy)  # refused, so this run loses
        raise AssertionError

    with pytest.raises(tuning.StudyAborted, match="every run raised an exception"):
        study(folder=tmp_path, seed=1, protocol="fixed:1").run(train)


KILLED = """
import sys, time, numpy as np
from pathlib import Path
from audit import accounting, tuning

def train(trial):
    Path(sys.argv[2]).open("a").write(f"{trial.seed}\\n")
    time.sleep(0.02)
    return tuning.Outcome(np.random.default_rng(trial.seed).normal(), trial.seed)

study = tuning.Study({"level": [1, 2, 3, 4]}, "fixed:40", base=accounting.GaussianMechanism(0.5),
                     seed=8, folder=sys.argv[1])
print("began", flush=True)
print(study.run(train).model, flush=True)
"""


def kill_and_restart(tmp_path: Path, kills: Any, rng: Any, runs: Any) -> Any:
    """Kills a study at random times, then lets it end; returns the release and all runs."""
    code, seeds = KILLED.replace("fixed:40", f"fixed:{runs}"), tmp_path / "seeds"
    command = [sys.executable, "-c", code, str(tmp_path / "s"), str(seeds)]

    def ran() -> Any:
        return len(seeds.read_text().split()) if seeds.exists() else 0

    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        before = ran()
        # Either some runs on, or while it reads what is there.
        some_runs_on = rng.random() < 0.7
        while some_runs_on and ran() < before + 3 and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    killed = ran()
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(answer.split()[-1]), seeds.read_text().split(), killed


@pytest.mark.parametrize(
    ("kills", "runs"), [(3, 40), pytest.param(50, 700, marks=pytest.mark.slow)]
)
def test_killed_study_gives_the_same_winner(tmp_path: Path, kills: int, runs: int) -> None:
    winner, seeds, killed = kill_and_restart(tmp_path, kills, np.random.default_rng(0), runs)
    assert winner == study(protocol=f"fixed:{runs}", seed=8).run(noisy).model
    assert 0 < killed < runs  # it was killed before its end
    assert len(set(seeds)) == runs  # the same K and the same draws
    assert len(seeds) <= runs + kills + 1  # a run cut off is repeated, and the winner's model


@pytest.mark.slow
def test_a_stopped_study_does_not_reveal_how_many_runs_were_left(recwarn: Any) -> None:
    with pytest.raises(tuning.StudyAborted, match=r"must return a tuning\.Outcome"):
        study(seed=5, protocol="tnb:1,0.05").run(returns_nothing, jobs=2)
    gc.collect()
    assert not recwarn.list
