"""Each tab of the page about finished tunings runs, and has the cost that the page states."""

import re
from pathlib import Path
from typing import Any

import optuna
import pandas
import pytest
from test_trackers import (
    RUNS,
    TEN,
    rows,
    study,
    write_experiment,
    write_multirun,
    write_offline_run,
    write_project,
    write_store,
)

PAGE = Path(__file__).parents[2] / "docs" / "what_did_my_tuning_cost.md"


def blocks() -> dict[str, str]:
    tabs = re.findall(
        r"^:::\{tab-item\} (.+?)\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S
    )
    return dict(tabs)


def prepare(folder: Path) -> None:
    """The files that the examples read."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    renamed = {"noise_multiplier": "sigma", "batch_size": "bs"}
    frame = pandas.DataFrame(RUNS)
    frame.rename(columns=renamed).to_csv(folder / "runs.csv", index=False)
    (folder / "plain.csv").write_text(rows())
    study(f"sqlite:///{folder}/study.db")
    for run in RUNS:
        write_offline_run(folder, run)
    write_store(folder / "mlruns")
    write_experiment(folder / "ray_results" / "experiment")
    basic = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}
    write_multirun(folder / "multirun", basic)
    write_project(folder / "keras_project")


@pytest.mark.slow
def test_every_tracker_has_a_tab_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    tabs = blocks()
    assert len(tabs) == 9
    for name, code in tabs.items():
        names: dict[str, Any] = {}
        exec(code, names)
        assert names["cost"].epsilon == pytest.approx(TEN, abs=0.0005), name
        assert names["cost"].trials == len(RUNS)
    assert "is (2.8581, 1e-05)-differentially private" in capsys.readouterr().out
