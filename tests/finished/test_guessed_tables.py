"""Tables on which a guess gave a wrong number: each has its right value, or is refused."""

from pathlib import Path
from typing import Any

import optuna
import pytest

import audit
from audit import cost as command
from audit.accounting import DpSgd, GaussianMechanism

BASE = DpSgd(0.8, 2000, 0.01)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def study_of(objective: Any, trials: int, sampler: Any = None, **options: Any) -> Any:
    random = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler or random, **options)
    study.optimize(objective, n_trials=trials)
    return study


def table(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mu", "rho"])
def test_a_hyperparameter_never_overrides_the_base(name: str) -> None:
    # mu is a momentum or a weight of FedProx, rho the radius of SAM.
    study = study_of(lambda trial: trial.suggest_float(name, 0.1, 0.99), 20)
    for options in (
        {"base": BASE},
        {"noise_multiplier": 0.8, "steps": 2000, "sampling_rate": 0.01},
    ):
        cost = audit.cost_of_trials(study, **options)  # type: ignore[arg-type]
        assert cost.epsilon == pytest.approx(16.28, abs=0.005)
        assert cost.columns == (f"not read as a privacy setting: {name}",)
    # One run alone costs 4.29.
    assert BASE.epsilon(1e-5) == pytest.approx(4.29, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "role"), [("mu", "gdp_mu"), ("rho", "zcdp_rho")])
def test_a_table_without_a_privacy_column_is_refused(
    tmp_path: Path, name: str, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, f"lr,{name},score\n0.1,0.9,0.7\n0.2,0.8,0.6\n")
    assert command.main([str(path), "--chosen", "grid"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--columns '{name}={role}'" in error
    # Where it is mapped, it is read.
    assert command.main([str(path), "--chosen", "grid", "--columns", f"{name}={role}"]) == 0
    assert f"used: {name} as {role}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_thousand_of_a_spreadsheet_is_refused(tmp_path: Path) -> None:
    rows = "noise_multiplier,sampling_rate,steps\n" + "1,0.01,{}\n" * 2
    path = table(tmp_path, rows.format("1.000", "1.000"))
    with pytest.raises(ValueError, match=r"line 2: steps must be .* it may mean 1 or 1000"):
        audit.cost_of_trials(path, "grid")
    for thousand in ("1000", "1000.0", "1e3"):
        path = table(tmp_path, rows.format(thousand, thousand))
        cost = audit.cost_of_trials(path, "grid")
        assert cost.epsilon == pytest.approx(2.584, abs=0.0005)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["chance", "Chance", "probability", " Probability"])
def test_chances_of_a_prior_are_read_by_their_names(tmp_path: Path, name: str) -> None:
    path = table(tmp_path, "gdp_mu\n0.1\n1\n")
    prior = tmp_path / "prior.csv"
    prior.write_text(f"gdp_mu,{name}\n0.1,0.1\n1,0.9\n")
    cost = audit.cost_of_trials(path, "random", protocol="tnb:0,0.1", prior=prior)
    assert cost.epsilon == pytest.approx(5.398, abs=0.0005)
    prior.write_text("gdp_mu\n0.1\n1\n")  # equal chances
    cost = audit.cost_of_trials(path, "random", protocol="tnb:0,0.1", prior=prior)
    assert cost.epsilon == pytest.approx(5.098, abs=0.0005)
    prior.write_text(f"gdp_mu,{name}\n0.1,0.1\n1,\n")
    with pytest.raises(ValueError, match="must be given for every candidate, got none"):
        audit.cost_of_trials(path, "random", protocol="tnb:0,0.1", prior=prior)
    prior.write_text("gdp_mu,weight\n0.1,0.1\n1,0.9\n")  # no equal chances in its place
    with pytest.raises(ValueError, match="prior must have only columns gdp_mu"):
        audit.cost_of_trials(path, "random", protocol="tnb:0,0.1", prior=prior)


@pytest.mark.slow
def test_a_batch_size_gives_the_rate_or_is_refused() -> None:
    def objective(trial: Any) -> float:
        trial.suggest_categorical("noise_multiplier", [1.0])
        trial.suggest_categorical("batch_size", [100])
        trial.suggest_categorical("steps", [500])
        return float(trial.suggest_float("lr", 0.1, 1.0))

    study = study_of(objective, 3)
    with pytest.raises(ValueError, match=r"records .* must be given with batch_size"):
        audit.cost_of_trials(study)
    cost = audit.cost_of_trials(study, records=10_000)
    assert cost.epsilon == audit.cost_of_trials([DpSgd(1.0, 500, 0.01)] * 3, "random").epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["bs", "sample_prob", "q", "sample_rate", "rate", "lot_size", "effective_batch", "batchSize",
     "dp.sampling_rate", "poisson_rate"],
)  # fmt: skip
def test_a_rate_under_another_name_is_refused_with_the_mapping_to_type(
    tmp_path: Path, name: str
) -> None:
    path = table(tmp_path, f"noise_multiplier,steps,{name}\n" + "0.9,1000,0.02\n" * 3)
    with pytest.raises(ValueError, match=rf"'{name}' may be .*--columns '{name}=") as refused:
        audit.cost_of_trials(path, "grid")
    assert "\n" not in str(refused.value)
    cost = audit.cost_of_trials(path, "grid", columns={name: "sampling_rate"})
    known = audit.cost_of_trials([DpSgd(0.9, 1000, 0.02)] * 3, "grid")
    assert cost.epsilon == known.epsilon


def test_steps_beside_a_curve_are_not_ignored(tmp_path: Path) -> None:
    path = table(tmp_path, "mu,steps\n0.1,20\n0.1,20\n")
    with pytest.raises(ValueError, match="must have noise_multiplier"):
        audit.cost_of_trials(path, "grid")
    with pytest.raises(ValueError, match="steps must not be given with gdp_mu"):
        audit.cost_of_trials(path, "grid", columns="mu=gdp_mu")
    cost = audit.cost_of_trials(path, "grid", columns="mu=gdp_mu,steps=ignore")
    assert cost.epsilon == audit.cost_of_trials([GaussianMechanism(0.1)] * 2, "grid").epsilon


@pytest.mark.thorough
def test_a_storage_contradicts_a_false_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def objective(trial: Any) -> float:
        value = trial.suggest_float("lr", 0.01, 1.0)
        if trial.number in (3, 7):
            raise optuna.TrialPruned
        return float(value)

    storage = f"sqlite:///{tmp_path}/study.db"
    sampler = optuna.samplers.TPESampler(seed=0)
    study_of(objective, 15, sampler, storage=storage, study_name="mine")
    options = ["--chosen", "random", "--base", "gaussian:0.3"]
    assert command.main([storage, "--study", "mine", *options]) == 0
    out = capsys.readouterr().out
    # Fifteen Gaussian runs are one of mu 0.3 sqrt(15).
    exact = GaussianMechanism(0.3 * 15**0.5).epsilon(1e-5)
    assert exact == pytest.approx(5.213, abs=0.0005)
    assert out.startswith("contradiction: chosen random was stated, but ")
    assert "2 runs were pruned, by the results of others" in out
    assert "epsilon = 5.2126" in out
    assert "15 trials, chosen: sequential" in out
    assert "to its end" not in out


@pytest.mark.slow
def test_a_study_over_noise_batch_size_and_epochs_has_an_answer() -> None:
    def objective(trial: Any) -> float:
        trial.suggest_float("noise_multiplier", 0.8, 2.0)
        trial.suggest_float("max_grad_norm", 0.1, 2.0)
        trial.suggest_categorical("batch_size", [64, 128])
        trial.suggest_int("epochs", 1, 3)
        return float(trial.suggest_float("lr", 0.001, 1.0, log=True))

    study = study_of(objective, 5)
    runs = []
    for trial in study.trials:
        batches = -(-50_000 // trial.params["batch_size"])
        steps = trial.params["epochs"] * batches
        runs.append(DpSgd(trial.params["noise_multiplier"], steps, 1.0 / batches))
    cost = audit.cost_of_trials(study, records=50_000)
    assert cost.chosen == "random"
    assert cost.epsilon == audit.cost_of_trials(runs, "random").epsilon
    assert "used: noise_multiplier, batch_size, epochs" in cost.columns


def test_the_command_of_the_readme_has_an_answer_or_the_line_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study_of(lambda trial: trial.suggest_float("lr", 0.1, 1.0), 3, storage=storage)
    assert command.main([storage]) == 2
    error = capsys.readouterr().err
    assert "--noise-multiplier 1.1 --sampling-rate 0.01 --steps 500" in error
    settings = ["--noise-multiplier", "1.1", "--sampling-rate", "0.01", "--steps", "500"]
    assert command.main([storage, *settings]) == 0
    assert "chosen: unknown" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_heading_of_a_hundred_thousand_characters_is_not_echoed(tmp_path: Path) -> None:
    for heading in ("x" * 10**5, ",".join(f"sigma{i}" for i in range(10**4))):
        cells = ",".join("1" for _ in heading.split(","))
        with pytest.raises(ValueError, match=r"runs\.csv") as refused:
            audit.cost_of_trials(table(tmp_path, f"{heading}\n{cells}\n"), "grid")
        assert len(str(refused.value)) < 1200


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("column", "cells", "contradicted"),
    [
        ("sampler", ["TPESampler"] * 10, True),
        ("method", ["bayes"] * 10, True),
        ("params.search_alg", ["random"] * 9 + ["HyperOptSearch"], True),
        ("pruned", [True] + [False] * 9, True),
        ("early_stopped", ["yes"] + ["no"] * 9, True),
        ("generation", [1] * 5 + [2] * 5, True),
        ("scheduler", ["ASHA"] * 10, True),
        ("pruner", ["MedianPruner"] * 10, True),
        ("scheduler", ["cosine"] * 10, False),
        ("pruner", ["NopPruner"] * 10, False),
        ("sampler", ["GridSampler"] * 10, False),
        ("method", ["dp-sgd"] * 10, False),
        ("pruned", [False] * 10, False),
        ("generation", [0] * 10, False),
    ],
)
def test_columns_of_a_plain_table_are_evidence(
    tmp_path: Path, column: str, cells: list[object], contradicted: bool
) -> None:
    rows = [f"{column},noise_multiplier,sampling_rate,steps,lr"]
    rows += [f"{cell},1.1,0.01,500,{0.1 * number}" for number, cell in enumerate(cells)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows))
    cost = audit.cost_of_trials(path, "grid")
    assert bool(cost.contradiction) == contradicted
    composed = audit.DpSgd(1.1, 5000, 0.01).epsilon(1e-5)
    listed = audit.tuning_cost(audit.DpSgd(1.1, 500, 0.01), "grid:10", 1e-5).epsilon
    assert cost.epsilon == pytest.approx(composed if contradicted else listed, rel=1e-6)
