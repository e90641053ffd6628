"""Columns that say that runs were less private than the used columns do are refused by name."""

from pathlib import Path
from typing import Any

import pytest

from audit.finished import cost_of_trials

_RUN = {"noise_multiplier": 1.1, "batch_size": 100, "epochs": 5}


def _cost(columns: dict[str, Any], options: dict[str, Any] | None = None) -> float | None:
    # An option for all runs replaces the column of its name.
    shared = {name: value for name, value in _RUN.items() if name not in (options or {})}
    rows = [{**shared, **columns}] * 10
    return cost_of_trials(rows, "grid", records=10_000, **(options or {})).epsilon


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"disable_dp": "True"}, {}, "runs with differential privacy only"),
        ({"use_dp": False}, {}, "runs with differential privacy only"),
        ({"config.dp": "false"}, {}, "runs with differential privacy only"),
        ({"differential_privacy": "disabled"}, {}, "runs with differential privacy only"),
        ({"dp_enabled": "off"}, {}, "runs with differential privacy only"),
        ({"add_noise": False}, {}, "runs with differential privacy only"),
        ({"nondp": "True"}, {}, "runs with differential privacy only"),
        ({"private": "nein"}, {}, "runs with differential privacy only"),
        ({"privacy": "none"}, {}, "runs with differential privacy only"),
        ({"noise": "without"}, {}, "runs with differential privacy only"),
        ({"non_private": "ja"}, {}, "runs with differential privacy only"),
        ({"mu_gdp": 9}, {}, "'mu_gdp' must not say .* less private than epsilon"),
        ({"zCDP rho": 9}, {}, "'zCDP rho' must not say .* less private than epsilon"),
        (
            {"mu_gdp": 0.9},
            {"noise_multiplier": None},
            "map a column, such as --columns 'mu_gdp=gdp_mu'",
        ),
        ({"n_runs": 5}, {}, "one row for each training"),
        ({"count": 3}, {}, "one row for each training"),
        ({"seeds": "[1, 2, 3]"}, {}, "one row for each training"),
        ({"seeds": "1;2"}, {}, "one row for each training"),
        ({"total_trials": 200}, {}, "one row for each training"),
        ({"n_splits": "5"}, {}, "one row for each training"),
        ({"num_candidates": 12}, {}, "one row for each training"),
        ({"fold_scores": "[0.8, 0.75]"}, {}, "one row for each training"),
        ({"acc_seed0": 0.8, "acc_seed1": 0.7}, {}, "one row for each .* 'acc_seed1=ignore'"),
        ({"seeds": 5}, {}, "one row for each training"),
        ({"averaged over": 3}, {}, "one row for each training"),
        ({"replicates": 3}, {}, "one row for each training"),
        ({"cv": 5}, {}, "one row for each training"),
        ({"accuracy": "0.81 \u00b1 0.02"}, {}, "one row for each training"),
        ({"accuracy": "0.81 +/- .02 (5 runs)"}, {}, "one row for each training"),
        ({"accuracy": r"$0.81 \pm 0.02$"}, {}, "one row for each training"),
        ({"note": "Mean over 5 seeds"}, {}, "one row for each training"),
        ({"note": "best of 3"}, {}, "one row for each training"),
        ({"acc_mean": 0.8, "acc_std": 0.02}, {}, "deviation of a score in column 'acc_std'"),
        ({"accuracy": 0.8, "Std Accuracy": 0.02}, {}, "deviation of a score"),
        ({"val/f1.sem": 0.02}, {}, "deviation of a score"),
        ({"fold 1": "0.8", "fold 2": "0.7"}, {}, "one row for each training"),
        ({"folds/0/acc": 0.8, "folds/1/acc": 0.7}, {}, "one row for each training"),
        ({"warm_start": "trial 0"}, {}, "the length of each whole run"),
        ({"noise_scheduler": "exponential"}, {}, "constant noise"),
        ({"noise_decay": 0.9}, {}, "constant noise"),
        ({"n_train": 1000}, {}, r"all 10000 records \(--records\)"),
        ({"noise": 0.5}, {}, "'noise' must not say .* noise multiplier 1.1"),
        ({"noise_mulitplier": 1.1}, {"noise_multiplier": 2}, "'noise_mulitplier' must not say"),
        ({"\u03c3": 1.1}, {"noise_multiplier": 2}, "must not say .* noise multiplier 2"),
        ({"max_steps": "5000"}, {}, "'max_steps' must not say .* 500 steps"),
        ({"num_epochs": 6}, {}, "'num_epochs' must not say .* 500 steps"),
        ({"world_size": 4}, {}, "records of one step on all devices together"),
        ({"ddp_world_size": 2}, {}, "records of one step on all devices together"),
        ({"total_steps": "5,000"}, {}, "must not say .* 500 steps"),
        ({"effective_batch_size": 400}, {}, "must not say .* sampling rate 0.01"),
        ({"n_gpus": "2"}, {}, "records of one step on all devices together"),
        ({"devices": "[0, 1]"}, {}, "records of one step on all devices together"),
        ({"num_processes": 8}, {}, "records of one step on all devices together"),
        ({"gradient_accumulation_steps": 4}, {}, "may change a batch size"),
        ({"train_fraction": 0.1}, {}, "only the records that its runs trained on"),
        ({"subset_fraction": "50%"}, {}, "only the records that its runs trained on"),
        ({"train_size": 0.8}, {}, "only the records that its runs trained on"),
        ({"val_split": 0.2}, {}, "only the records that its runs trained on"),
        ({"max_train_samples": 500}, {}, r"all 10000 records \(--records\)"),
        ({"sigma_b": 10}, {}, "adaptive clipping releases in every step"),
        ({"adaptive_clipping": True}, {}, "adaptive clipping releases in every step"),
        ({"target_unclipped_quantile": 0.5}, {}, "adaptive clipping releases in every step"),
        ({"clipping": "adaptive"}, {}, "adaptive clipping releases in every step"),
        ({"group_size": 5}, {}, "or their number as --group-size"),
        ({"user_level": True}, {}, "or their number as --group-size"),
        ({"privacy_unit": "user"}, {}, "or their number as --group-size"),
        ({"adjacency": "substitution"}, {}, "pass --neighbours"),
        ({"sampler": "shuffle"}, {}, "pass --batches shuffled"),
        ({"batches": "shuffled"}, {}, "pass --batches shuffled"),
        ({"batching": "fixed"}, {}, "pass --batches shuffled"),
        ({"drop_last": True}, {}, "pass --drop-last"),
        ({"num_microbatches": 50}, {}, "the mean of a microbatch is more sensitive"),
        ({"microbatch_size": 2}, {}, "the mean of a microbatch is more sensitive"),
        ({"resumed_from": "run-3"}, {}, "the length of each whole run"),
        ({"start_step": 500}, {}, "the length of each whole run"),
        ({"phase2_steps": 500}, {}, "the length of each whole run"),
        ({"best_of": 5}, {}, "one row for each training"),
        ({"mechanism": "laplace"}, {}, "DP-SGD with independent Gaussian noise only"),
        ({"noise_distribution": "laplacian"}, {}, "DP-SGD with independent Gaussian noise only"),
        ({"algorithm": "DP-FTRL"}, {}, "DP-SGD with independent Gaussian noise only"),
        ({"optimizer": "non-private-adam"}, {}, "DP-SGD with independent Gaussian noise only"),
        ({"label_dp": True}, {}, "DP-SGD with independent Gaussian noise only"),
        ({"max_grad_norm": "inf"}, {}, "clipped gradients"),
        ({"clipping": "off"}, {}, "clipped gradients"),
        ({"scored_on": "private"}, {}, "scores that depend on public records only"),
        ({"replacement": False}, {}, "pass --batches shuffled"),
        ({"name": "mean"}, {}, "no row with a summary"),
        ({"epsilon_spent": 4.1}, {}, "less private than epsilon .* at delta 1e-07"),
        ({"target_epsilon": 4.1, "delta": 1e-5}, {}, "less private than epsilon"),
    ],
)
def test_a_column_towards_less_privacy_is_refused(
    columns: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _cost(columns, options)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "columns",
    [
        {"disable_dp": "False", "dp": True, "n_runs": 1, "noise_scheduler": "none"},
        {"seeds": 1, "note": "one of 5, 1 run", "init_std": 0.02, "acc_std": 0.0, "cv": "no"},
        {"score": "0.5", "run": "trial 3 + 4", "loss": "1e-3", "augmentation": "rotate +-"},
        {"n_train": 10_000, "noise": 1.1, "num_epochs": 5, "max_steps": 500},
        {"n_gpus": 1, "gradient_accumulation_steps": 1, "train_fraction": 1.0, "group_size": 1},
        {"adaptive_clipping": False, "clipping": "flat", "privacy_unit": "example"},
        {"num_microbatches": 100, "microbatch_size": 1, "resumed_from": "", "start_step": 0},
        {"mechanism": "gaussian", "optimizer": "dp-sgd", "max_grad_norm": 1.0, "best_of": 1},
        {"scored_on": "public", "name": "run", "epsilon_spent": 1.2, "adam_eps": 1e-8},
        {"adjacency": "add_remove", "sampler": "poisson", "drop_last": False, "num_workers": 4},
        {"label_fraction": 0.8, "label_noise": 0.1, "eval_steps": 1000, "warmup_steps": 900},
        {"seeds": "[7]", "folds": "", "splits": "random"},
        {"seed1": 3, "fold_0": "a", "fold_1": "b", "dropout1": 0.1, "dropout2": 0.2},
        {"seed_weights": "0.8", "warm_start": False, "split_sizes": "[0.8, 0.2]"},
        {"mu_gdp": 0.01, "zcdp": 0.01, "mu": 9, "noise_seed": 0, "dp_enabled": "on"},
        {"privacy": "DP-SGD", "noise": "gaussian", "private": "", "non_dp": "no", "use_dp": "y"},
        {"max_per_sample_grad_norm": 1.0, "_step": 49_999, "test_batch_size": 1024},
    ],
)
def test_a_column_that_agrees_or_means_something_else_is_no_contradiction(
    columns: dict[str, Any], epsilon_of_ten_runs: float
) -> None:
    assert _cost(columns) == epsilon_of_ten_runs


@pytest.mark.parametrize(
    "names", [("acc_seed1", "acc_seed2"), ("Run 1", "Run 2"), ("fold-0/acc", "fold-1/acc")]
)
def test_results_of_several_trainings_in_a_row_are_refused(
    names: tuple[str, str], epsilon_of_ten_runs: float
) -> None:
    results = dict.fromkeys(names, 0.5)
    with pytest.raises(ValueError, match="must have one row for each training, got columns"):
        _cost(results)
    assert _cost(results, {"columns": dict.fromkeys(names, "ignore")}) == epsilon_of_ten_runs
    assert _cost({names[0]: 0.5, "trained2": 1, "rerun": 3}) == epsilon_of_ten_runs


def test_a_contradiction_can_be_mapped_to_ignore(epsilon_of_ten_runs: float) -> None:
    for column in ("disable_dp", "n_runs", "max_steps"):
        assert _cost({column: 1000 if column == "max_steps" else "1"} | {"lr": 1}, {
            "columns": {column: "ignore"}
        }) == epsilon_of_ten_runs  # fmt: skip


def test_the_steps_of_shuffled_batches_are_not_those_of_the_mechanism() -> None:
    assert _cost({"max_steps": 500}, {"batches": "shuffled"}) == _cost({}, {"batches": "shuffled"})


def test_the_mapping_to_type_never_reads_epochs_as_steps(
    tmp_path: Path, epsilon_of_ten_runs: float
) -> None:
    path = tmp_path / "runs.csv"
    rows = "1.1,100,5\n" * 10
    path.write_text(f"noise_multiplier,batch_size,num_train_epochs\n{rows}")
    mapping = "num_train_epochs=epochs"
    with pytest.raises(ValueError, match=f"a number of epochs: add --columns '{mapping}'"):
        cost_of_trials(path, "grid", records=10_000)
    assert (
        cost_of_trials(path, "grid", records=10_000, columns=mapping).epsilon == epsilon_of_ten_runs
    )


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        (
            "num_train_epochs=steps",
            "by its name a number of epochs, .* got steps: map it to epochs",
        ),
        ("max_steps=epochs", "by its name a number of steps"),
        ("warmup_steps=steps", "by its name something else than the length of a run"),
        ("eps=noise_multiplier", "by its name an epsilon"),
        ("noise_variance=noise_multiplier", "by its name a variance"),
        ("label_noise=noise_multiplier", "the noise of something else"),
        ("sigma=target_epsilon", "by its name a noise"),
        ("lr=sampling_rate", "a setting or a result of learning"),
        ("log_noise_multiplier=noise_multiplier", "by its name a function of another quantity"),
        ("inv_sigma=noise_multiplier", "by its name a function of another quantity"),
        ("rate (%)=sampling_rate", "by its name a function of another quantity"),
    ],
)
def test_a_role_that_the_name_of_a_column_contradicts_is_refused(mapping: str, words: str) -> None:
    name = mapping.partition("=")[0]
    with pytest.raises(ValueError, match=words):
        _cost({name: 5}, {"columns": mapping})


@pytest.mark.parametrize("name", ["num_train_epochs", "training/log/epochs", "passes", "E"])
def test_a_role_that_the_name_of_a_column_allows_is_used(
    name: str, epsilon_of_ten_runs: float
) -> None:
    rows = [{"noise_multiplier": 1.1, "batch_size": 100, name: 5}] * 10
    cost = cost_of_trials(rows, "grid", records=10_000, columns={name: "epochs"})
    assert cost.epsilon == epsilon_of_ten_runs


@pytest.mark.parametrize(
    "column", ["per_device_batch", "clients_per_round", "steps_per_epoch", "sampling_percent"]
)
def test_a_part_of_a_batch_or_of_a_run_has_no_mapping_to_type(column: str) -> None:
    rows = [{"noise_multiplier": 1.1, column: 100}] * 10
    with pytest.raises(
        ValueError, match=r"may change a .* give the rate and the steps of whole batches"
    ) as caught:
        cost_of_trials(rows, "grid", records=10_000)
    assert f"{column}=" not in str(caught.value)


def test_a_missing_batch_size_is_not_replaced_by_one() -> None:
    rows = [_RUN, {**_RUN, "batch_size": ""}]
    with pytest.raises(ValueError, match="got none: write the number of records for full batches"):
        cost_of_trials(rows, "grid", records=10_000)


def test_a_standard_deviation_is_read_in_units_of_the_clipping_norm(
    epsilon_of_ten_runs: float,
) -> None:
    rows = [{"noise_std": 1.1, "batch_size": 100, "epochs": 5}] * 10
    with pytest.raises(ValueError, match="only if it is in units of the clipping norm"):
        cost_of_trials(rows, "grid", records=10_000)
    cost = cost_of_trials(rows, "grid", records=10_000, columns="noise_std=noise_multiplier")
    assert cost.epsilon == epsilon_of_ten_runs
    assert "column noise_std was read in units of the clipping norm" in cost.remarks
