"""Ten runs of one tuning cost the same, whichever tracker recorded them.

Where a tracker is installed, it writes the files. Otherwise they are written here in its format;
the formats of MLflow 3.17, W&B 0.31 and Ray 2.60 were compared with files that these libraries
wrote, and that of Keras Tuner 1.4 with its code.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pandas
import pytest

import audit
from audit.errors import MissingExtra
from audit.finished import readers

TEN = 2.858
"""Cost of ten runs of noise 1.1, batch 100 of 10,000 records and 5 epochs, from a fixed list."""

RUNS = [
    {"noise_multiplier": 1.1, "batch_size": 100, "epochs": 5, "lr": 0.1 * i} for i in range(1, 11)
]
NAMES = list(RUNS[0])


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def check_ten(source: Any, chosen: str | None = "grid", **options: Any) -> Any:
    cost = audit.cost_of_trials(source, chosen, records=10_000, **options)
    assert (cost.trials, cost.chosen, cost.contradiction) == (10, "grid", "")
    assert cost.epsilon == pytest.approx(TEN, abs=0.0005)
    used = {name.rpartition(".")[2].rpartition("/")[2] for name in _used(cost)}
    assert {name.removeprefix("params_").removeprefix("param_") for name in used} == {*NAMES[:3]}
    return cost


def _used(cost: Any) -> list[str]:
    [line] = [line for line in cost.columns if line.startswith("used: ")]
    return line.removeprefix("used: ").split(", ")


def test_the_known_answer_is_that_of_a_grid_of_ten() -> None:
    grid = audit.tuning_cost(audit.DpSgd(1.1, 500, 0.01), "grid:10", delta=1e-5)
    assert grid.epsilon == pytest.approx(TEN, abs=0.0005)


# Tables.


def rows(separator: str = ",", heading: str = "{}", decimal: str = ".") -> str:
    lines = [separator.join(heading.format(name) for name in NAMES)]
    lines += [
        separator.join(str(round(run[name], 3)).replace(".", decimal) for name in NAMES)
        for run in RUNS
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", rows()),
        ("runs.tsv", rows("\t")),
        ("runs.txt", rows("|")),
        ("german.csv", rows(";", decimal=",")),
        ("excel.csv", "sep=;\n" + rows(";")),
        ("bom.csv", "\ufeff" + rows()),
        ("windows.csv", rows().replace("\n", "\r\n")),
        ("blank.csv", rows() + "\n\n"),
        ("quoted.csv", rows(heading='"{}"')),
    ],
)
def test_tables_of_spreadsheets(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    check_ten(tmp_path / name)
    (tmp_path / name).write_text(text, encoding="utf-16")
    check_ten(str(tmp_path / name))


def test_decimal_commas_need_a_plain_dialect(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("noise_multiplier;steps;sampling_rate\n1,1;1.000;0,01\n")
    with pytest.raises(ValueError, match=r"must write all decimals in one way, got '1.000'"):
        audit.cost_of_trials(path, "grid")
    path.write_text("noise_multiplier;steps;sampling_rate\n1,1;500;0,01\n1,1;1,000;0,01\n")
    with pytest.raises(ValueError, match="it may mean 1 or 1000"):
        audit.cost_of_trials(path, "grid")
    path.write_text('noise_multiplier,steps,sampling_rate\n"1,1",500,"0,01"\n')
    with pytest.raises(ValueError, match="write decimals with a point"):
        audit.cost_of_trials(path, "grid")


@pytest.mark.thorough
def test_json_and_data_frames(tmp_path: Path) -> None:
    lines, whole, columns = (tmp_path / name for name in ("runs.jsonl", "runs.json", "c.json"))
    lines.write_text("\n".join(map(json.dumps, RUNS)) + "\n")
    whole.write_text(json.dumps([{"config": run} for run in RUNS]))
    frame = pandas.DataFrame(RUNS)
    columns.write_text(json.dumps(frame.to_dict("list")))
    for source in (lines, whole, columns, frame, RUNS):
        check_ten(source)


_RUN = {"noise_multiplier": 1.1, "batch_size": 100, "epochs": 5}


@pytest.mark.parametrize(
    "content",
    [
        {"name": "sweep", "results": [_RUN, _RUN]},
        {"done": [_RUN, _RUN], "failed": [_RUN, _RUN]},
        {"first": _RUN, "second": _RUN},
        {name: {"0": value, "1": value} for name, value in _RUN.items()},
        {"columns": [*_RUN], "index": [0, 1], "data": [[*_RUN.values()]] * 2},
        {"name": "sweep", **_RUN, "lr": [0.1, 0.2]},
        {"method": "grid", "parameters": {"lr": {"values": [0.1, 0.2]}}},
    ],
)
def test_one_json_object_with_several_runs_is_not_counted_as_one_run(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    path = tmp_path / "runs.json"
    for indent in (None, 2):
        path.write_text(json.dumps(content, indent=indent))
        with pytest.raises(ValueError, match=r"one object in .* which may hold several runs"):
            audit.cost_of_trials(path, "grid", records=10_000, noise_multiplier=1.1)


def test_one_list_of_objects_is_a_list_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": [_RUN, _RUN]}))
    assert audit.cost_of_trials(path, "grid", records=10_000).trials == 2


def test_one_json_object_with_settings_is_one_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"config": _RUN, "summary": {"acc": 0.9}}))
    assert audit.cost_of_trials(path, "grid", records=10_000).trials == 1


def test_a_list_of_objects_in_a_row_may_be_further_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    row = {**_RUN, "history": [{"loss": 1.0}, {"loss": 0.5}]}
    path.write_text(json.dumps([row, row]))
    for source in (path, [row, row]):
        with pytest.raises(ValueError, match="got 2 objects in 'history': write a row for each"):
            audit.cost_of_trials(source, "grid", records=10_000)
        cost = audit.cost_of_trials(source, "grid", records=10_000, columns={"history": "ignore"})
        assert cost.trials == 2


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_json_object_with_two_values_of_one_name_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"runs.{suffix}"
    path.write_text('{"noise_multiplier": 1.1, "noise_multiplier": 2.0, "lr": 1}\n{"lr": 2}\n')
    with pytest.raises(ValueError, match="must name each value once, got 'noise_multiplier' twice"):
        audit.cost_of_trials(path, "grid", sampling_rate=0.01, steps=500)


def test_an_address_on_the_web_is_no_storage() -> None:
    with pytest.raises(ValueError, match="download its runs, or export them as csv") as refused:
        audit.cost_of_trials("https://me:secret@wandb.ai/team/project", "grid")
    assert "secret" not in str(refused.value)


def test_parquet_names_the_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    (tmp_path / "runs.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match=r"p(andas|yarrow) must be installed: pip install"):
        audit.cost_of_trials(tmp_path / "runs.parquet", "grid")


def test_parquet(tmp_path: Path) -> None:
    pandas.DataFrame(RUNS).to_parquet(tmp_path / "runs.parquet")
    check_ten(tmp_path / "runs.parquet")


@pytest.mark.slow
def test_missing_values_of_pandas_are_missing(tmp_path: Path) -> None:
    frame = pandas.DataFrame([{**run, "state": "finished"} for run in RUNS])
    frame.loc[10] = [1.1, None, 5, 0.3, "crashed"]
    with pytest.raises(ValueError, match="row 10: batch_size must be given for every run"):
        audit.cost_of_trials(frame, "grid", records=10_000)
    frame.loc[10, "batch_size"] = 100.0  # the column has floats now
    cost = audit.cost_of_trials(frame, "grid", records=10_000)
    assert cost.trials == 11
    assert cost.remarks == ("1 run failed, and it counts in full",)


# Optuna.


def study(storage: Any = None) -> Any:
    space = {name: sorted({run[name] for run in RUNS}) for name in NAMES}
    found = optuna.create_study(
        storage=storage, study_name="mine", sampler=optuna.samplers.GridSampler(space)
    )

    def objective(trial: Any) -> float:
        return sum(trial.suggest_categorical(name, space[name]) for name in NAMES)

    found.optimize(objective, n_trials=10)
    return found


@pytest.mark.slow
def test_optuna(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/study.db"
    stored = study(database)
    frame = stored.trials_dataframe()
    frame.to_csv(tmp_path / "trials.csv", index=False)
    for source in (stored, database, tmp_path / "study.db", frame, tmp_path / "trials.csv"):
        cost = check_ten(source, None)
        assert "every trial has a mark of a grid sampler" in cost.remarks[0]
    journal = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study(optuna.storages.JournalStorage(backend))
    check_ten(journal, None)
    with pytest.raises(ValueError, match="study must name one of the studies 'mine' in"):
        audit.cost_of_trials(journal, study="other")


# scikit-learn.


def test_scikit_learn_with_one_split_of_public_records() -> None:
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")

    class Model(base.BaseEstimator):  # type: ignore[misc, name-defined]
        def __init__(
            self, noise_multiplier: float = 1.0, batch_size: int = 1, epochs: int = 1, lr: float = 1
        ) -> None:
            self.noise_multiplier, self.batch_size = noise_multiplier, batch_size
            self.epochs, self.lr = epochs, lr

        def fit(self, x: Any, y: Any) -> "Model":
            return self

        def score(self, x: Any, y: Any) -> float:
            return -abs(self.lr - 0.3)

    space = {name: sorted({run[name] for run in RUNS}) for name in NAMES}
    x, y = [[0.0]] * 10, [0] * 10
    one_split = [(list(range(8)), [8, 9])]
    search = selection.GridSearchCV(Model(), space, cv=one_split).fit(x, y)
    check_ten(search, None)
    check_ten(search.cv_results_)
    check_ten(pandas.DataFrame(search.cv_results_))
    # With two splits, each record trains some models and validates others.
    search = selection.GridSearchCV(Model(), space, cv=2).fit(x, y)
    for source in (search, pandas.DataFrame(search.cv_results_)):
        cost = audit.cost_of_trials(source, "grid", records=10_000)
        assert (cost.epsilon, cost.kind) == (None, "no bound")
        assert "each candidate was trained on 2 splits" in cost.why
    halving = {**search.cv_results_, "iter": [0] * 10, "n_resources": [1] * 10}
    cost = audit.cost_of_trials(pandas.DataFrame(halving), "grid", records=10_000)
    assert "successive halving drops candidates" in cost.contradiction


# Hydra.


@pytest.mark.slow
def test_a_multirun_that_hydra_wrote(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    script = tmp_path / "train.py"
    script.write_text(
        "import hydra\n\n\n"
        "@hydra.main(version_base=None)\ndef main(config):\n    pass\n\n\nmain()\n"
    )
    rates = ",".join(str(run["lr"]) for run in RUNS)
    settings = [f"+{name}={RUNS[0][name]}" for name in NAMES[:3]]
    sweep = [f"hydra.sweep.dir={tmp_path}/multirun", f"+lr={rates}"]
    command = [sys.executable, str(script), "--multirun", *settings, *sweep]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    cost = check_ten(tmp_path / "multirun", None)
    assert "Hydra's basic sweeper" in cost.remarks[0]


def write_multirun(folder: Path, sweeper: dict[str, Any]) -> Path:
    yaml = pytest.importorskip("yaml")
    for i, run in enumerate(RUNS):
        job = folder / str(i) / ".hydra"
        job.mkdir(parents=True)
        (job / "config.yaml").write_text(yaml.safe_dump(run))
        overrides = [f"+{name}={value}" for name, value in run.items()]
        (job / "overrides.yaml").write_text(yaml.safe_dump(overrides))
    (folder / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {"sweeper": sweeper}}))
    return folder


@pytest.mark.slow
def test_the_sweeper_of_hydra_is_evidence(tmp_path: Path) -> None:
    basic = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}
    check_ten(write_multirun(tmp_path / "basic", basic), None)
    optuna_sweeper = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"
    for sampler, way in (("TPESampler", "sequential"), ("RandomSampler", "random")):
        sweeper = {
            "_target_": optuna_sweeper,
            "sampler": {"_target_": f"optuna.samplers.{sampler}", "seed": 1},
        }
        folder = write_multirun(tmp_path / sampler, sweeper)
        assert audit.cost_of_trials(folder, records=10_000).chosen == way
    cost = audit.cost_of_trials(tmp_path / "TPESampler", "grid", records=10_000)
    assert "the sweeper of Hydra was TPESampler" in cost.contradiction


# MLflow.


def write_store(root: Path) -> Path:
    """A file store of MLflow: one experiment, ten runs and the run that groups them."""
    experiment = root / "926841647341316960"
    experiment.mkdir(parents=True)
    (experiment / "meta.yaml").write_text("experiment_id: '926841647341316960'\nname: tuning\n")
    for i in range(-1, len(RUNS)):
        name = f"{i + 1:032x}"
        folder = experiment / name
        for part in ("params", "metrics", "tags", "artifacts"):
            (folder / part).mkdir(parents=True)
        status = 4 if i == 3 else 3
        (folder / "meta.yaml").write_text(
            f"run_id: '{name}'\nrun_name: run-{i}\nstatus: {status}\nlifecycle_stage: active\n"
        )
        if i < 0:
            continue
        (folder / "tags" / "mlflow.parentRunId").write_text(f"{0:032x}")
        for key, value in RUNS[i].items():
            (folder / "params" / key).write_text(str(value))
    return root


def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    cost = check_ten(write_store(tmp_path / "mlruns"))
    assert cost.remarks == (
        "1 run groups other runs, without parameters, and does not count",
        "1 run failed, and it counts in full",
    )
    table = [
        {
            "run_id": f"{i}",
            "experiment_id": "1",
            "status": "FAILED" if i == 3 else "FINISHED",
            "metrics.epoch": 5.0,
            **{f"params.{name}": str(value) for name, value in run.items()},
            "tags.mlflow.parentRunId": "parent",
        }
        for i, run in enumerate(RUNS)
    ]
    table.append({"run_id": "parent", "experiment_id": "1", "status": "FINISHED"})
    pandas.DataFrame(table).to_csv(tmp_path / "mlflow.csv", index=False)
    assert check_ten(tmp_path / "mlflow.csv").remarks == cost.remarks


def test_a_store_that_mlflow_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    mlflow.set_experiment("tuning")
    for run in RUNS:
        with mlflow.start_run():
            mlflow.log_params(run)
    check_ten(tmp_path / "mlruns")
    check_ten(mlflow.search_runs(experiment_names=["tuning"]))


# W&B.


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protocol buffer."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            parts.append(varint(number << 3 | 2) + varint(len(value)) + value)
    return b"".join(parts)


def log(records: list[bytes]) -> bytes:
    """Records in the framing of LevelDB's log, with the identity of W&B."""
    found = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, first = record, True
        while rest or first:
            left = 32768 - len(found) % 32768
            if left < 7:
                found += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            found += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(found)


def write_offline_run(folder: Path, run: dict[str, Any], code: int | None = 0) -> None:
    name = f"{abs(hash(str(run))):08x}"[:8]
    target = folder / "wandb" / f"offline-run-20260101_000000-{name}"
    target.mkdir(parents=True)

    def config(values: dict[str, Any]) -> bytes:
        items = [
            (1, message((1, key.encode()), (16, json.dumps(value).encode())))
            for key, value in values.items()
        ]
        return message(*items)

    early = {name: run[name] for name in NAMES[1:]} | {"_wandb": {}}
    noise = {"noise_multiplier": run["noise_multiplier"]}
    records = [
        message((1, 1), (17, message((1, name.encode()), (4, config(early))))),
        message((1, 2), (7, b"\x0a\x02xx" * 20_000)),  # a long record over several blocks
        message((1, 3), (5, config(noise))),
    ]
    if code is not None:
        records.append(message((1, 4), (18, message((1, code)) if code else b"")))
    (target / f"run-{name}.wandb").write_bytes(log(records))


def test_wandb(tmp_path: Path) -> None:
    for run, code in zip(RUNS, [0] * 8 + [1, None], strict=True):
        write_offline_run(tmp_path, run, code)
    cost = check_ten(tmp_path)
    assert cost.remarks == (
        "1 run failed, and it counts in full",
        "1 run had not ended, and it counts in full",
    )
    check_ten(tmp_path / "wandb")
    rows_of_site = [
        {"Name": f"run-{i}", "State": "crashed" if i == 2 else "finished", "Notes": "-",
         "Sweep": "sweep-1", "Runtime": 12, **run, "_step": 500, "train/loss": 0.1}
        for i, run in enumerate(RUNS)
    ]  # fmt: skip
    pandas.DataFrame(rows_of_site).to_csv(tmp_path / "site.csv", index=False)
    cost = check_ten(tmp_path / "site.csv")
    assert "its method is not recorded" in cost.remarks[0]
    damaged = next(tmp_path.rglob("*.wandb"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"must have noise_multiplier|must be given"):
        audit.cost_of_trials(damaged, "grid", records=10_000)
    damaged.write_bytes(b"no log")
    with pytest.raises(ValueError, match="source must be an offline run of W&B"):
        audit.cost_of_trials(damaged, "grid", records=10_000)


def test_runs_that_wandb_wrote(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    for run in RUNS:
        session = wandb.init(mode="offline", project="tuning", dir=str(tmp_path), config=run)
        session.finish()
    check_ten(tmp_path)


# Ray Tune.


def write_experiment(folder: Path, status: str = "TERMINATED") -> Path:
    folder.mkdir(parents=True)
    trials = [
        [json.dumps({"trial_id": f"ca59b_{i:05}", "config": run, "status": status}), "{}"]
        for i, run in enumerate(RUNS)
    ]
    content = {"trial_data": trials, "runner_data": {}, "stats": {}}
    (folder / "experiment_state-2026-11-27_21-16-20.json").write_text(json.dumps(content))
    return folder


def test_ray_tune(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "plain")
    (folder / "basic-variant-state-2026-11-27_21-16-20.json").write_text("")
    cost = check_ten(folder)
    assert cost.remarks == ("Ray Tune made the candidates without a search algorithm (a grid or "
                            "draws)",)  # fmt: skip
    searched = write_experiment(tmp_path / "searched", "ERROR")
    (searched / "searcher-state-2026-11-27_21-16-20.pkl").write_bytes(b"")
    cost = audit.cost_of_trials(searched, "random", records=10_000)
    assert cost.chosen == "sequential"
    assert "a search algorithm of Ray Tune saved its state" in cost.contradiction
    assert "10 runs failed, and they count in full" in cost.remarks
    frame = pandas.DataFrame(
        [
            {"trial_id": str(i), "training_iteration": 7, "iterations_since_restore": 7,
             **{f"config/{name}": value for name, value in run.items()}}
            for i, run in enumerate(RUNS)
        ]
    )  # fmt: skip
    check_ten(frame)


@pytest.mark.slow
def test_an_experiment_that_ray_wrote(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="ray.tune needs it")
    ray = pytest.importorskip("ray")
    tune = pytest.importorskip("ray.tune")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        space = {**RUNS[0], "lr": tune.grid_search([run["lr"] for run in RUNS])}
        place = tune.RunConfig(storage_path=str(tmp_path), name="experiment", verbose=0)
        tune.Tuner(_report, param_space=space, run_config=place).fit()
    finally:
        ray.shutdown()
    check_ten(tmp_path / "experiment")


def _report(config: dict[str, Any]) -> None:
    from ray import tune

    tune.report({"accuracy": config["lr"]})


# Keras Tuner.


def write_project(folder: Path, **oracle: Any) -> Path:
    folder.mkdir()
    (folder / "oracle.json").write_text(json.dumps({"ongoing_trials": {}, **oracle}))
    for i, run in enumerate(RUNS):
        trial = folder / f"trial_{i:02}"
        trial.mkdir()
        content = {
            "trial_id": f"{i:02}",
            "hyperparameters": {"space": [], "values": run},
            "metrics": {"metrics": {}},
            "score": 0.1,
            "status": "INVALID" if i == 2 else "COMPLETED",
        }
        (trial / "trial.json").write_text(json.dumps(content))
    return folder


def test_keras_tuner(tmp_path: Path) -> None:
    cost = check_ten(write_project(tmp_path / "random"))
    assert cost.remarks == ("1 run failed, and it counts in full",)
    for name, marks in (("bayes", {"num_initial_points": 3}), ("hyperband", {"brackets": []})):
        folder = write_project(tmp_path / name, **marks)
        cost = audit.cost_of_trials(folder, "random", records=10_000)
        assert "the oracle is " in cost.contradiction


# All of them.


def test_every_reader_names_its_source_in_one_line(tmp_path: Path) -> None:
    assert len(readers.formats()) >= 12
    broken = {
        "runs.csv": b"\xff\x00",
        "runs.json": b"[1, 2]",
        "runs.jsonl": b"{}\n{oops\n",
        "study.db": b"no database" * 100,
        "r/experiment_state-1.json": b"{}",
        "k/oracle.json": b"{",
        "k/trial_1/trial.json": b"{}",
    }
    for name, content in broken.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
    for name in ("runs.csv", "runs.json", "runs.jsonl", "study.db", "r", "k", "absent.csv", "."):
        with pytest.raises(audit.AuditError) as refused:
            audit.cost_of_trials(tmp_path / name, "grid", records=10)
        assert "\n" not in str(refused.value)


@pytest.mark.thorough
def test_several_sources_are_one_tuning(tmp_path: Path) -> None:
    pilot = tmp_path / "pilot.csv"
    pilot.write_text(rows())
    sweep = tmp_path / "sweep.jsonl"
    sweep.write_text("\n".join(map(json.dumps, RUNS)))
    cost = audit.cost_of_trials([pilot, sweep], "grid", records=10_000)
    grid = audit.tuning_cost(audit.DpSgd(1.1, 500, 0.01), "grid:20", delta=1e-5)
    assert (cost.trials, cost.epsilon) == (20, grid.epsilon)
    assert "2 sources are one tuning" in cost.remarks[-1]
    # One source whose candidates depend on results makes all of them depend on results.
    frame = pandas.DataFrame([{**RUNS[0], "state": "pruned"}])
    cost = audit.cost_of_trials([pilot, frame], "grid", records=10_000)
    assert (cost.chosen, cost.trials) == ("sequential", 11)
    assert "1 run was pruned" in cost.contradiction


@pytest.mark.slow
def test_reading_imports_no_tracker(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(rows())
    code = (
        "import sys, audit; audit.cost_of_trials(sys.argv[1], 'grid', records=10_000); "
        "print({'pandas', 'optuna', 'mlflow', 'wandb', 'ray', 'sklearn', 'yaml'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "set()\n"


@pytest.fixture(autouse=True)
def _no_services() -> Iterator[None]:
    os.environ["WANDB_SILENT"] = "true"
    yield
    del os.environ["WANDB_SILENT"]
