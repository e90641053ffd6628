"""What tuning buys: arms keep their total, less noise trains better, the command says so."""

import numpy as np
import pytest

from audit import upper_bounds
from audit.accounting import DpSgd
from audit.reproduce import REPRODUCTIONS, training
from audit.reproduce.__main__ import main

SMALL = {"dataset": "DIGITS", "records": 60, "validation": 50, "steps": 4, "tunings": 4}


def test_arms_keep_their_total():
    data = training._data("DIGITS", "", 60, 50)
    arm = training.Arm("uniform", "tnb:1,0.1", "region", True)
    table = training._compare([arm], [6.0], data, 4, 4, 1).table
    base = DpSgd(table["noise multiplier"][0], 4)
    assert upper_bounds.region(base, "tnb:1,0.1", 1e-5).epsilon == pytest.approx(6.0, rel=1e-4)
    assert 0.0 <= table["accuracy"][0] <= 1.0


@pytest.mark.slow
def test_a_smaller_bound_means_less_noise_for_the_same_total():
    result = REPRODUCTIONS["hypo-training"].run(SMALL | {"epsilons": [6.0]})
    table = result.table.set_index("arm")
    assert len(table) == len(result.lines) == 4
    assert table["accuracy"].between(0.0, 1.0).all()
    noise = table["noise multiplier"]
    assert noise["GP, adaptive bound"] < noise["GP, theorem 1 of DP-HyPO"]
    assert noise["uniform, region bound"] < noise["uniform, Renyi bound"]
    for name, spec in (
        ("GP, adaptive bound", "adaptive:0.75,2/tnb:1,0.1"),
        ("uniform, region bound", "tnb:1,0.1"),
    ):
        base = DpSgd(noise[name], 4)
        assert base.epsilon(1e-5) == table["epsilon of one run"][name]
        assert upper_bounds.cost(base, spec, 1e-5).epsilon <= 6.0 * (1 + 1e-6)


def test_more_runs_cost_more_and_the_region_bound_less():
    result = REPRODUCTIONS["ps-fig7"].run(SMALL | {"means": [2.0, 6.0]})
    epsilon = result.table.set_index(["arm", "mean"])["epsilon"]
    assert len(epsilon) == 16
    for law in training._LAWS:
        by_renyi, by_region = (epsilon[f"{law}, {name} bound"] for name in ("Renyi", "region"))
        assert (by_region < by_renyi).all()
        assert by_region[2.0] < by_region[6.0]
    assert result.table["accuracy"].between(0.0, 1.0).all()


def test_the_final_run_of_a_subset_is_what_is_judged():
    data = training._data("DIGITS", "", 60, 50)
    rng = np.random.default_rng(0)
    protocol = training.protocols.parse("subset:0.5/fixed:2")
    found = training._accuracies(protocol, 1e-6, data, 30, 6, rng)
    noisy = training._accuracies(protocol, 1e3, data, 30, 6, np.random.default_rng(0))
    assert len(found) == 6
    assert found.mean() > noisy.mean() + 0.2  # ten classes
    assert training._cost_ratio(training.protocols.parse("subset:0.1/fixed:10")) == 5.0


def test_the_command_takes_a_data_root_and_leaves_data_out_of_all(tmp_path, capsys):
    empty = tmp_path / "nothing"
    empty.mkdir()
    preset = tmp_path / "p.toml"
    assert not REPRODUCTIONS["x-table3"].reads_data
    assert {name for name, one in REPRODUCTIONS.items() if one.reads_data} == {
        "hypo-training",
        "kk-training",
        "ps-fig7",
    }
    preset.write_text('dataset = "DIGIT"')
    assert main(["kk-training", "--preset", str(preset), "--data-root", str(empty)]) == 2
    assert "did you mean 'DIGITS'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="dataset must be text, got 3"):
        REPRODUCTIONS["kk-training"].run({"dataset": 3})
