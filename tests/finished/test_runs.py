"""The mechanism of a run, from batch sizes, epochs and target epsilons as Opacus reads them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import audit
from audit import cost as command
from audit.accounting import DpSgd, GaussianMechanism, ZeroConcentratedDp
from audit.finished.runs import RunSettings, mechanism_of, noise_of_target


def one(run: dict[str, Any], **settings: Any) -> Any:
    return mechanism_of(run, RunSettings(settings.pop("constants", {}), **settings))


@pytest.mark.parametrize(("records", "size"), [(10_000, 100), (1_050, 100), (999, 64), (5, 5)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_rates_and_steps_are_those_that_opacus_records(
    records: int, size: int, drop_last: bool
) -> None:
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")
    data = torch.utils.data.TensorDataset(torch.zeros(records, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=size, drop_last=drop_last)
    private = opacus.data_loader.DPDataLoader.from_data_loader(loader)
    run = {"noise_multiplier": 1.1, "batch_size": size, "epochs": 3}
    found = one(run, records=records, drop_last=drop_last)
    assert found.sampling_rate == private.sample_rate == 1 / len(loader)
    assert found.steps == 3 * len(private)


@pytest.mark.slow
def test_runs_that_stopped_early_keep_their_own_steps() -> None:
    runs = [{"noise_multiplier": 1.0, "batch_size": 100, "epochs": n} for n in (2.5, 1)]
    cost = audit.cost_of_trials(runs, "grid", records=10_000)
    known = [DpSgd(1.0, steps, 0.01) for steps in (250, 100)]
    assert cost.all_released == audit.cost_of_trials(known, "grid").all_released


@pytest.mark.slow
def test_a_rounded_rate_is_reported() -> None:
    runs = [{"noise_multiplier": 1.0, "batch_size": 100, "epochs": 1}] * 2
    assert not audit.cost_of_trials(runs, "grid", records=10_000).remarks
    [remark] = audit.cost_of_trials(runs, "grid", records=10_050).remarks
    assert "the sampling rate is that of Opacus" in remark
    # One over the number of batches may be below batch size / records, so it must be said.
    assert one(runs[0], records=10_050).sampling_rate == 1 / 101 < 100 / 10_050


@pytest.mark.parametrize(
    ("run", "settings", "words"),
    [
        ({"noise_multiplier": 1, "batch_size": 9}, {}, "records .* must be given with batch_size"),
        ({"noise_multiplier": 1, "epochs": 9}, {}, "sampling_rate, or batch_size and records"),
        ({"noise_multiplier": 1}, {}, "steps or epochs must be given with noise_multiplier"),
        ({"noise_multiplier": 1, "steps": "1.000"}, {}, "it may mean 1 or 1000"),
        ({"noise_multiplier": "1,1", "steps": 5}, {}, "write decimals with a point"),
        ({"noise_multiplier": 1, "steps": "5k"}, {}, "write it without a unit"),
        ({"noise_multiplier": 1, "steps": 5, "sampling_rate": "1%"}, {}, "percentage"),
        ({"noise_multiplier": 1, "batch_size": 9, "steps": 1}, {"records": 8}, "batch_size must"),
        (
            {"noise_multiplier": 1, "batch_size": 10, "steps": 5, "sampling_rate": 0.5},
            {"records": 100},
            "sampling_rate must be that of batch_size 10 of 100 records, about 0.1",
        ),
        (
            {"noise_multiplier": 1, "batch_size": 10, "steps": 10, "epochs": 10},
            {"records": 100},
            "steps must be those of the epochs, 100, got 10",
        ),
        ({"noise_multiplier": 1, "gdp_mu": 1, "steps": 1}, {}, "run must have one of"),
        ({"gdp_mu": 1, "epochs": 1}, {}, "epochs must not be given with gdp_mu"),
        ({"gdp_mu": 1}, {"group_size": 2}, "group_size must not be given for a run with gdp_mu"),
        ({"gdp_mu": 1}, {"neighbours": "zero-out"}, "neighbours must not be given for a run"),
        ({"lr": 1}, {}, "run must have a noise_multiplier"),
        ({"steps": 5}, {"constants": {"steps": 6, "noise_multiplier": 1}}, "steps must be given o"),
        ({"target_epsilon": 1}, {}, "delta of the target epsilon must be given"),
        (
            {"target_epsilon": 1, "delta": 1e-5, "steps": 5, "sampling_rate": 0.1},
            {},
            "accountant must be given with target_epsilon",
        ),
        ({"noise_multiplier": 1, "steps": 5}, {"batches": "shuffled"}, "epochs, or batch_size"),
    ],
)
def test_what_is_not_understood_is_refused(
    run: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        one(run, **settings)
    assert "\n" not in str(refused.value)


def test_curves_and_neighbours() -> None:
    assert one({"gdp_mu": "0.5"}) == GaussianMechanism(0.5)
    assert one({"zcdp_rho": "0.5"}) == ZeroConcentratedDp(0.5)
    run = {"noise_multiplier": 2, "steps": "10"}
    assert one(run) == DpSgd(2.0, 10, 1.0, "zero-out")
    assert one(run, neighbours="add-remove", group_size=3) == DpSgd(2.0, 10, group_size=3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Opacus
@pytest.mark.parametrize("accountant", ["rdp", "prv", "gdp"])
def test_noise_of_a_target_is_at_most_that_of_opacus(accountant: str) -> None:
    utils = pytest.importorskip("opacus.accountants.utils")
    target, delta, rate, steps = 2.0, 1e-5, 0.02, 250
    theirs = utils.get_noise_multiplier(
        target_epsilon=target,
        target_delta=delta,
        sample_rate=rate,
        steps=steps,
        accountant=accountant,
        epsilon_tolerance=1e-4,
    )
    ours = noise_of_target(target, delta, steps, rate, accountant)
    # Opacus rounds the noise up, and its accountants round epsilon up (PRV by up to 0.01).
    assert 0.985 * theirs < ours <= theirs
    if accountant != "gdp":
        run = DpSgd(ours, steps, rate)
        epsilon = run.renyi_epsilon(delta) if accountant == "rdp" else run.epsilon(delta)
        assert target <= epsilon < target + 1e-4


@pytest.mark.slow
def test_a_sweep_over_target_epsilons() -> None:
    runs = [
        {"target_epsilon": epsilon, "delta": 1e-5, "batch_size": 100, "epochs": 5}
        for epsilon in (1.0, 2.0)
    ]
    cost = audit.cost_of_trials(runs, "grid", records=10_000, accountant="prv")
    noises = [noise_of_target(epsilon, 1e-5, 500, 0.01, "prv") for epsilon in (1.0, 2.0)]
    known = [DpSgd(noise, 500, 0.01) for noise in noises]
    assert cost.epsilon == audit.cost_of_trials(known, "grid").epsilon
    # Where noise is logged, too, it is the fact.
    logged = [{**run, "noise_multiplier": 1.1} for run in runs]
    cost = audit.cost_of_trials(logged, "grid", records=10_000)
    assert cost.epsilon == audit.cost_of_trials([DpSgd(1.1, 500, 0.01)] * 2, "grid").epsilon
    assert "target_epsilon (the noise is known)" in cost.columns[1]
    # Without rate and steps, only (epsilon, delta) is known.
    bare = [{"target_epsilon": 1.0, "delta": 1e-9}] * 3
    cost = audit.cost_of_trials(bare, "grid")
    assert cost.premises.runs.startswith("3 runs of the mechanism (epsilon, delta)-DP")
    assert 2.9 < cost.all_released <= 3.0  # type: ignore[operator]


def test_shuffled_batches_cost_a_full_batch_per_epoch() -> None:
    runs = [{"noise_multiplier": 1.1, "batch_size": 100, "epochs": 5}] * 3
    cost = audit.cost_of_trials(runs, "grid", records=10_000, batches="shuffled")
    assert cost.epsilon == audit.cost_of_trials([DpSgd(1.1, 5)] * 3, "grid").epsilon
    told = [{**run, "poisson_sampling": False} for run in runs]
    with pytest.raises(ValueError, match="says that they were not Poisson sampled"):
        audit.cost_of_trials(told, "grid", records=10_000)
    assert audit.cost_of_trials(told, "grid", records=10_000, batches="shuffled") is not None
    with pytest.raises(ValueError, match="neighbours must be zero-out or replace-one"):
        audit.cost_of_trials(
            runs, "grid", records=10_000, batches="shuffled", neighbours="add-remove"
        )


@pytest.mark.slow
def test_an_explicit_base_is_never_overridden() -> None:
    base = DpSgd(1.0, 500, 0.01)
    same = [{"noise_multiplier": 1.0, "lr": 0.1, "batch_size": 64, "seed": 1}] * 2
    cost = audit.cost_of_trials(same, "grid", base=base)
    assert cost.epsilon == audit.cost_of_trials([base] * 2, "grid").epsilon
    assert "noise_multiplier (as the base), batch_size (the base is given)" in cost.columns[0]
    for other in (
        [{"noise_multiplier": 1.0}, {"noise_multiplier": 0.5}],
        [{"noise_multiplier": 0.5}] * 2,
        [{"batch_size": 64}, {"batch_size": 128}],
    ):
        with pytest.raises(ValueError, match="base must be the mechanism of every run, but"):
            audit.cost_of_trials(other, "grid", base=base)
    for name in ("bs", "sigma", "epsilon", "num_steps"):
        varied = [{name: 1.0, "lr": 1}, {name: 2.0, "lr": 1}]
        with pytest.raises(ValueError, match=f"--columns '{name}="):
            audit.cost_of_trials(varied, "grid", base=base)
        cost = audit.cost_of_trials(varied, "grid", base=base, columns={name: "ignore"})
        assert cost.columns == ("not read as a privacy setting: " + f"{name}, lr",)
    with pytest.raises(ValueError, match="steps must not be given with base"):
        audit.cost_of_trials(same, "grid", base=base, steps=3)


@pytest.mark.slow
def test_a_setting_of_all_runs_does_not_hide_a_column_that_varies() -> None:
    runs = [{"noise_multiplier": 1.0, "steps": 100, "bs": size} for size in (64, 128)]
    with pytest.raises(ValueError, match="'bs' may be a batch size"):
        audit.cost_of_trials(runs, "grid", sampling_rate=0.01)
    with pytest.raises(ValueError, match="sampling_rate must not be given for all runs, because"):
        audit.cost_of_trials(runs, "grid", sampling_rate=0.01, columns="bs=batch_size")
    cost = audit.cost_of_trials(runs, "grid", sampling_rate=0.01, columns="bs=ignore")
    assert cost.epsilon == audit.cost_of_trials([DpSgd(1.0, 100, 0.01)] * 2, "grid").epsilon
    # Several small batches make one large one, whatever the column of the batch size says.
    runs = [{"noise_multiplier": 1.0, "steps": 9, "batch_size": 8, "grad_accum": 4}] * 2
    with pytest.raises(ValueError, match="'grad_accum' may change a batch size"):
        audit.cost_of_trials(runs, "grid", records=10_000)


@pytest.mark.parametrize(
    "name",
    ["lr", "learning_rate", "max_grad_norm", "momentum", "mu", "rho", "dropout_rate", "step_size",
     "weight_decay", "warmup_steps", "lr_step", "batch_norm", "width", "seed", "drop_prob"],
)  # fmt: skip
def test_names_of_other_hyperparameters_are_not_about_privacy(name: str) -> None:
    cost = audit.cost_of_trials([{name: 0.1}, {name: 0.2}], "grid", base=DpSgd(1.0, 5))
    assert cost.columns == (f"not read as a privacy setting: {name}",)


def test_repeated_candidates_are_reported_and_contradict_independent_draws() -> None:
    pandas = pytest.importorskip("pandas")
    row = {"params.noise_multiplier": 1.1, "params.steps": 10, "run_id": 1, "experiment_id": 1}
    drawn = [{**row, "params.lr": lr} for lr in (0.12345678901234, 0.5, 0.12345678901234)]
    cost = audit.cost_of_trials(pandas.DataFrame(drawn), "random")
    assert "independent draws of continuous numbers never do" in cost.contradiction
    assert cost.chosen == "sequential"
    listed = audit.cost_of_trials(pandas.DataFrame(drawn), "grid")  # a list may repeat a candidate
    assert (listed.contradiction, listed.remarks) == ("", (
        "1 candidate was trained more than once (2 runs)",))  # fmt: skip
    plain = [{**row, "params.lr": lr} for lr in (0.1, 0.5, 0.1)]  # draws from a short list repeat
    assert not audit.cost_of_trials(pandas.DataFrame(plain), "random").contradiction


def test_the_answer_is_a_sentence_with_all_premises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("noise_multiplier,sampling_rate,steps\n" + "1.1,0.01,500\n" * 10)
    assert command.main([str(path), "--chosen", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == found["best_only"] == pytest.approx(2.858, abs=0.0005)
    statement = found["statement"]
    for words in (
        "is (2.8581, 1e-05)-differentially private for zero-out neighbours",
        "both data sets have the same, public number of records",
        "10 runs of DP-SGD with noise multiplier 1.1, 500 steps, rate 0.01",
        "Poisson sampling (assumed; shuffled batches are not covered)",
        "divisor of each noisy sum may depend on the number of records",
        "the list of runs was fixed beforehand",
        "only the best run is released",
        "scores are made from outputs and public records alone",
    ):
        assert words in statement
    assert statement.count("\n") == 0
    assert command.main([str(path), "--chosen", "grid"]) == 0
    # The command prints the sentence as a list of its premises.
    text = " ".join(capsys.readouterr().out.split())
    for premise in (statement.partition(", if: ")[0], *statement.rstrip(".").split("; ")[1:]):
        assert premise in text
    # A cost of a plan is such a sentence, too.
    printed = str(audit.tuning_cost(DpSgd(1.1, 500, 0.01, "zero-out"), "grid:10", delta=1e-5))
    for words in statement.split("; ")[1:3]:
        assert words in printed


@pytest.mark.slow
def test_the_public_sweep_of_handcrafted_dp() -> None:
    # The grid of scripts/run_cnns_cifar10.py in the public repository ftramer/Handcrafted-DP:
    # 72 candidates with 18 budgets. Noise for epsilon 3 at 30, 60 or 120 epochs, by bisection
    # between 100 and 0.1 until epsilons differ by 0.01; all candidates may train 150 epochs.
    orders = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))

    def epsilon(rate: float, noise: float, steps: int) -> float:
        converted = np.log((orders - 1) / orders) - (math.log(1e-5) + np.log(orders)) / (orders - 1)
        return float(np.min(DpSgd(noise, steps, rate).renyi(orders) + converted))

    def noise(size: int, epochs: int) -> float:
        rate, steps = size / 50_000, 50_000 // size * epochs
        low, high = 100.0, 0.1
        ends = [epsilon(rate, low, steps), epsilon(rate, high, steps)]
        while ends[1] - ends[0] > 0.01:
            middle = (low + high) / 2
            if (spent := epsilon(rate, middle, steps)) <= 3:
                low, ends[0] = middle, spent
            else:
                high, ends[1] = middle, spent
        return low

    sizes = (512, 1024, 2048, 4096, 8192, 16384)
    runs = [
        {
            "noise_multiplier": noise_multiplier,
            "sampling_rate": size / 50_000,
            "steps": 50_000 // size * 150,
            "bs": size,
            "lr": size // 512 * rate,
        }
        for epochs in (30, 60, 120)
        for size in sizes
        for noise_multiplier in [noise(size, epochs)]
        for rate in (0.125, 0.25, 0.5, 1.0)
    ]
    cost = audit.cost_of_trials(runs, "grid")
    assert cost.trials == 72
    assert cost.epsilon == pytest.approx(61.16, abs=0.02)
    assert cost.all_released == pytest.approx(83.40, abs=0.02)  # dp_accounting: 83.12
    assert "shuffled batches are not covered" in cost.statement
    assert "72 runs of DP-SGD with 18 budgets" in cost.statement
