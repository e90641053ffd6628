"""The cost of finished Optuna studies, and objectives under a private protocol."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest

from audit import cost as command
from audit import finished
from audit.accounting import DpSgd, GaussianMechanism
from audit.finished import readers
from audit.finished.readers import optuna as reader
from audit.integrations import optuna as integration


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.parametrize("study", [None, 3, {}])
def test_what_is_no_study_is_one_line(study: Any) -> None:
    with pytest.raises(ValueError, match="source must be a table, a folder or a storage of runs"):
        finished.cost_of_trials(study)


def test_several_objectives_release_more_than_the_best() -> None:
    study = optuna.create_study(directions=["minimize"] * 2, sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(lambda trial: (objective(trial), 1.0), n_trials=3)
    found = finished.cost_of_trials(study)
    assert found.best_only == found.all_released
    assert found.chosen == "random, several objectives"
    assert "Pareto front" in found.why
    assert finished.cost_of_trials(study, chosen="random").best_only == found.best_only
    with pytest.raises(ValueError, match="protocol and prior must come with"):
        finished.cost_of_trials(study, protocol="tnb:0,0.1")


def test_budgets_chosen_by_a_sampler_have_no_cost_without_a_cap() -> None:
    study = optuna.create_study(sampler=SAMPLERS.TPESampler(seed=0, n_startup_trials=2))
    study.optimize(lambda trial: trial.suggest_float("gdp_mu", 0.1, 0.2), n_trials=4)
    found = finished.cost_of_trials(study)
    assert (found.kind, found.best_only) == ("odometer reading", None)
    assert finished.cost_of_trials(study, cap=4.0).best_only == 4.0


def stored(folder: Any) -> Any:
    storage = f"sqlite:///{folder}/study.db"
    study = optuna.create_study(storage=storage, study_name="mine")
    study.optimize(objective, n_trials=2)
    return storage, folder / "study.db"


def refused_line(capsys: pytest.CaptureFixture[str], storage: Any, name: Any = "mine") -> Any:
    assert command.main([storage, "--study", name]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def test_a_storage_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage, file = stored(tmp_path)
    before = file.read_bytes()
    file.chmod(0o444)
    assert command.main([storage, "--study", "mine"]) == 0
    assert file.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["study.db"]
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as database:
        database.execute("create table mine (x int)")
        database.commit()
    before = foreign.read_bytes()
    capsys.readouterr()
    assert "which holds no studies" in refused_line(capsys, f"sqlite:///{foreign}")
    assert foreign.read_bytes() == before
    foreign.write_bytes(b"no database" * 100)
    assert "which holds no studies" in refused_line(capsys, f"sqlite:///{foreign}")


@pytest.mark.thorough
def test_a_database_is_recognised_whatever_its_name(tmp_path: Path) -> None:
    storage, file = stored(tmp_path)
    expected = readers.read(storage, readers.ReadOptions())
    for name in ("study", "study.backup", "a b?mode=rw#c%20.txt"):
        copy = tmp_path / name
        shutil.copy(file, copy)
        assert readers.read(copy, readers.ReadOptions()) == expected
        assert readers.read(str(copy), readers.ReadOptions()) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    ["update version_info set schema_version = 99", "update alembic_version set version_num = 'x'"],
)
def test_a_storage_of_an_unknown_schema_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    storage, file = stored(tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(change)
        database.commit()
    assert "tables are not those of the installed version of Optuna" in refused_line(
        capsys, storage
    )


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nothing://x", "no address of a database that SQLAlchemy knows"),
        ("postgresql://[::1", "no address of a database that SQLAlchemy knows"),
        ("sqlite://host/study.db", "where there is no file with content"),
        ("sqlite:///:memory:", "where there is no file with content"),
    ],
)
def test_errors_of_sqlalchemy_are_translated(
    capsys: pytest.CaptureFixture[str], address: str, words: str
) -> None:
    assert words in refused_line(capsys, address)


def test_a_database_of_mlflow_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        for table in ("experiments", "runs", "params", "metrics"):
            database.execute(f"create table {table} (x int)")
        database.commit()
    assert "runs of MLflow: save mlflow.search_runs() as csv" in refused_line(capsys, str(file))


def test_locked_and_damaged_storages_have_their_own_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_SECONDS_LOCKED", 0.1)
    storage, file = stored(tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("begin exclusive")
        assert "which is locked: wait" in refused_line(capsys, storage)
        database.rollback()
        database.execute("update trial_user_attributes set value_json = '{oops'")
        database.commit()
    line = refused_line(capsys, storage)
    assert f"got {storage!r}, where study 'mine' is damaged" in line
    journal = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name="mine")
    study.optimize(objective, n_trials=2)
    before = journal.read_bytes()
    assert command.main([str(journal), "--study", "mine"]) == 0
    assert journal.read_bytes() == before
    capsys.readouterr()
    journal.write_bytes(before[:200] + b"{oops\n" + before[200:])
    assert f"got {str(journal)!r}, where study 'mine' is damaged" in refused_line(
        capsys, str(journal)
    )


@pytest.mark.parametrize(
    "storage",
    [
        "postgresql://me:secret@nowhere.invalid/x",
        "mysql://me:sec/secret@nowhere.invalid/x",
        "nosuch://me:secret@nowhere.invalid/x",
        "me:secret@nowhere.invalid/x",
        "sqlite:////no/such/file?password=secret",
        "://me:secret@",
    ],
)
def test_no_password_is_echoed(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "secret" not in refused_line(capsys, storage)
    with pytest.raises(ValueError, match="source must be") as caught:
        finished.cost_of_trials(storage, study="mine")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(SystemExit):
        command.main(["--optunna", storage if "://" in storage else "x"])
    assert "secret" not in capsys.readouterr().err


def objective(trial: Any) -> Any:
    trial.set_user_attr("gdp_mu", 0.1)
    return trial.suggest_int("x", 1, 4)


SAMPLERS = optuna.samplers
WAYS = [
    (SAMPLERS.RandomSampler(seed=0), "random"),
    (SAMPLERS.GridSampler({"x": [1, 2, 3, 4]}), "grid"),
    (SAMPLERS.TPESampler(seed=0, n_startup_trials=2), "sequential"),
    (SAMPLERS.NSGAIISampler(seed=0), "sequential"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("sampler", "way"), WAYS, ids=lambda one: type(one).__name__)
def test_the_protocol_is_derived_from_the_sampler(sampler: Any, way: str) -> None:
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=4)
    found = finished.cost_of_trials(study)
    assert (found.trials, found.chosen) == (4, way)
    assert found.premises.runs == "4 runs of the mechanism Gaussian, mu = 0.1"


def test_pruned_trials_make_a_study_sequential() -> None:
    def pruned(trial: Any) -> None:
        objective(trial)
        raise optuna.TrialPruned

    study = optuna.create_study(sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(objective, n_trials=2)
    study.optimize(pruned, n_trials=1)
    found = finished.cost_of_trials(study)
    assert (found.trials, found.chosen) == (3, "sequential")
    assert "1 run was pruned, by the results of others" in found.remarks[0]


def test_trials_added_by_hand_make_a_study_sequential() -> None:
    study = optuna.create_study(sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(objective, n_trials=1)
    study.enqueue_trial({"x": 4})
    study.optimize(objective, n_trials=1)
    assert finished.cost_of_trials(study).chosen == "sequential"


@pytest.mark.slow
def test_uncertain_facts_of_a_stored_study_increase_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(
        storage=storage, study_name="mine", sampler=SAMPLERS.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=3)
    assert command.main([storage, "--study", "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == "unknown"
    assert found["best_only"] == found["all_released"]
    assert "drawn at random, chosen random" in found["why"]
    assert command.main([storage, "--study", "mine", "--chosen", "random", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bound"].endswith("fixed:3")
    assert command.main([storage, "--study", "other"]) == 2
    assert "study must name one of the studies 'mine' in" in capsys.readouterr().err
    assert command.main([f"sqlite:///{tmp_path}/none.db"]) == 2
    assert "where there is no file" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_a_study_without_recorded_noise_needs_an_argument() -> None:
    study = optuna.create_study(sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1.0), n_trials=2)
    with pytest.raises(ValueError, match=r"must have noise_multiplier .* give them for all"):
        finished.cost_of_trials(study)
    found = finished.cost_of_trials(study, base=GaussianMechanism(0.2))
    assert (found.trials, found.chosen) == (2, "random")


def test_an_objective_runs_unchanged_under_a_private_protocol() -> None:
    numbers, pruned = [], []

    def unchanged(trial: Any) -> Any:
        rate = trial.suggest_float("rate", 0.1, 1.0, log=True)
        width = trial.suggest_categorical("width", [16, 32])
        numbers.append((trial.number, len(trial.study.trials)))
        trial.report(rate, 0)
        pruned.append(trial.should_prune())
        trial.set_user_attr("model", (rate, width))
        return rate

    study = integration.PrivateStudy(
        "fixed:12", "minimize", base=GaussianMechanism(0.5), seed=1, folder=None
    )
    best = study.optimize(unchanged)
    assert set(numbers) == {(0, 1)}  # no run sees another
    assert len(numbers) == 12
    assert not any(pruned)
    assert set(best.candidate) == {"rate", "width"}
    assert best.score == best.candidate["rate"] == best.model[0] < 0.5  # type: ignore[index]
    # Optuna draws the candidates, so another seed gives others.
    seen = [integration.PrivateStudy("fixed:1", base=GaussianMechanism(0.5), folder=None)
            .optimize(unchanged).score for _ in range(3)]  # fmt: skip
    assert len(set(seen)) == 3


def test_an_objective_receives_its_noise() -> None:
    told = {}

    def objective(trial: Any) -> Any:
        told.update(trial.user_attrs)
        return trial.suggest_float("rate", 0.1, 1.0)

    study = integration.PrivateStudy("fixed:1", base=DpSgd(1.5, 20, 0.1), folder=None)
    study.optimize(objective)
    assert told.pop("seed") >= 0
    assert told == {"noise_multiplier": 1.5, "steps": 20, "sampling_rate": 0.1}
    assert study.noise_multiplier == 1.5


def test_protocols_that_need_a_space_are_refused() -> None:
    for protocol in ("grid:3", "adaptive:0.5,2/tnb:1,0.5"):
        with pytest.raises(ValueError, match=r"candidates of grid:3|protocol must draw every"):
            integration.PrivateStudy(protocol, base=GaussianMechanism(0.5), folder=None)
