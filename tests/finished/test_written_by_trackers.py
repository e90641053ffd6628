"""Files that trackers wrote themselves are read everywhere, also where they are not installed.

`trackers.zip` has files of MLflow 3.17.2, W&B 0.31.0, Ray 2.60.0, Keras Tuner 1.4 and Hydra 1.3.8
about three runs of noise 1.1, batch 100 and 5 epochs at learning rates 0.1, 0.2 and 0.3. Nothing in
them is changed but the name of their folder. Ray's trials failed, as their states say.
"""

import zipfile
from pathlib import Path

import pytest

from audit.accounting import DpSgd
from audit.finished import cost_of_trials

ARCHIVE = Path(__file__).parent / "trackers.zip"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trackers")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(root)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "study", "runs", "remarks"),
    [
        ("mlruns", "tuning", 4, ["1 run failed, and it counts in full"]),
        ("wandb", None, 3, []),
        ("ray", None, 3, ["3 runs failed, and they count in full"]),
        ("multirun", None, 3, []),
    ],
)
def test_files_of_trackers(
    folder: Path, source: str, study: str | None, runs: int, remarks: list[str]
) -> None:
    if source in ("mlruns", "multirun"):
        pytest.importorskip("yaml")
    options = {"records": 10_000, "study": study}
    cost = cost_of_trials(folder / source, "grid", **options)
    assert (cost.trials, cost.contradiction) == (runs, "")
    composed = DpSgd(1.1, 500 * runs, 0.01).epsilon(1e-5)
    assert cost.all_released == pytest.approx(composed, rel=1e-6)
    assert [remark for remark in cost.remarks if "failed" in remark] == remarks


@pytest.mark.slow
@pytest.mark.parametrize(("source", "shown"), [("keras", False), ("keras_bayes", True)])
def test_oracles_of_keras_tuner(folder: Path, source: str, shown: bool) -> None:
    cost = cost_of_trials(folder / source, "random", records=10_000)
    trials = len(list((folder / source).glob("trial_*")))
    assert (cost.trials, trials > 0) == (trials, True)
    assert ("the oracle is Bayesian optimisation" in cost.contradiction) == shown
    composed = DpSgd(1.1, 500 * trials, 0.01).epsilon(1e-5)
    assert cost.all_released == pytest.approx(composed, rel=1e-6)
