"""Tables of runs: headings, missing cells and one-line errors, and what the command prints."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from audit import cost as command
from audit import finished
from audit.accounting import DpSgd, GaussianMechanism, ZeroConcentratedDp


def check_equal(path: Path, runs: list[Any], **options: Any) -> None:
    ours = finished.cost_of_trials(path, "grid", **options)
    assert ours.epsilon == finished.cost_of_trials(runs, "grid").epsilon


@pytest.mark.slow
def test_a_table_is_read_by_its_heading(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("lr, noise_multiplier, steps, sampling_rate\n1, 1.5, 100, 0.01\n1, 2, 50, 1\n")
    check_equal(path, [DpSgd(1.5, 100, 0.01), DpSgd(2.0, 50)])
    path.write_text("gdp_mu\n0.5\n0.25\n", encoding="utf-8-sig")  # as spreadsheets write it
    check_equal(path, [GaussianMechanism(0.5), GaussianMechanism(0.25)])
    path.write_text("noise_multiplier,steps,learning_rate\n2,50,0.1\n")
    check_equal(path, [DpSgd(2.0, 50)])
    path.write_text("zcdp_rho,accuracy\n0.5,0.9\n")
    check_equal(path, [ZeroConcentratedDp(0.5)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr\n0.1\n", "must have noise_multiplier .* got 'lr': give them for all runs"),
        ("Noise Multiplier,steps\n1,2\n", "--columns 'Noise Multiplier=noise_multiplier'"),
        ("mu;rho\n0,2;\n", "--columns 'mu=gdp_mu'"),
        ("sigma,step\n1,2\n", "--columns 'sigma=noise_multiplier'"),
        ("gdp_mu,gdp_mu\n0.1,0.9\n", "must name each column once, got 'gdp_mu' more than once"),
        ("gdp_mu,zcdp_rho\n0.1,0.9\n", "line 2: run must have one of .* got gdp_mu and zcdp_rho"),
        ("gdp_mu,lr\n,1\n", "must have noise_multiplier"),
        ("gdp_mu,lr\n0.1,1\n,1\n", "line 3: run must have a noise_multiplier .* got none of them"),
        ("gdp_mu\n0,1\n", "line 2: row must have one value for each of 1 columns, got 2"),
        ("", "source must be at least one row below a heading"),
        ("gdp_mu\n0.1\n-1\n", r"line 3: mu must be in \[1e-12, 1000\], got -1"),
        ("noise_multiplier\n1\n", "line 2: steps or epochs must be given with noise_multiplier"),
        ("noise_multiplier,step\n1,2\n", "'step' may be a number of steps"),
        ("noise_multiplier,steps,sample_rate\n1,2,.1\n", "'sample_rate=sampling_rate'"),
        ("noise_multiplier,steps,rate\n1,2,.1\n", "'rate=sampling_rate'"),
        ("noise_multiplier,steps,batch\n1,2,64\n", "'batch=batch_size'"),
        ("noise_multiplier,steps,sampling_rate\n1,2,\n1,2,.5\n", "line 2: sampling_rate must be"),
        ("gdp_mu\n", "source must be at least one row below a heading"),
        (None, "source must be a readable file, got .*: No such file"),
        ("gdp_mu\n1_0\n", "line 2: mu must be in .* got '1_0'"),
        ("gdp_mu\n\u0661\n", "line 2: mu must be in .*"),
        ("noise_multiplier,steps\n1,1_0\n", "line 2: steps must be a whole .* got '1_0'"),
        ('gdp_mu\n"0.1\n0.2\n', "source must be a readable csv .*: a quote is not closed in line"),
        ('gdp_mu\n"0.1"2\n', "a comma is missing after a quote in line 2"),
        ("gdp_mu,state\n0.1,exploded\n", "line 2: state must be one that a tracker writes"),
    ],
)
def test_bad_files_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    path = tmp_path / "trials.csv"
    if text is not None:
        path.write_text(text)
    assert command.main([str(path), "--chosen", "random"]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error), error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("sigma", "columns must be NAME=ROLE,NAME=ROLE"),
        (
            "sigma=noise_multiplyer",
            "the role of a column must be one of .* did you mean 'noise_multiplier'",
        ),
        ("a=steps,b=steps", "columns must map one column to steps, got 'a', 'b'"),
        ("absent=steps", "columns must name columns of the runs, got 'absent'; they have"),
        ({"sigma": 3}, "the role of a column must be one of"),
        (3, "columns must be a mapping from columns to roles"),
    ],
)
def test_bad_mappings_are_one_line(tmp_path: Path, columns: Any, words: str) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("sigma,steps,a,b\n1,2,3,4\n")
    with pytest.raises(ValueError, match=words):
        finished.cost_of_trials(path, "grid", columns=columns)


def test_two_columns_of_one_role_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("config/steps,steps,noise_multiplier\n5,6,1\n")
    with pytest.raises(ValueError, match="must have one column steps, got 'config/steps', 'steps'"):
        finished.cost_of_trials(path, "grid")
    check_equal(path, [DpSgd(1.0, 6)], columns={"config/steps": "ignore"})
    path.write_text("config/steps,steps,noise_multiplier\n5,5,1\n")
    check_equal(path, [DpSgd(1.0, 5)])


@pytest.mark.thorough
def test_the_command_prints_the_cost_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("gdp_mu\n" + "0.1\n" * 10)
    assert command.main([str(path), "--chosen", "random", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ten = [GaussianMechanism(0.1)] * 10
    assert found["best_only"] == finished.cost_of_trials(ten, "random").best_only
    assert found["trials"] == 10
    assert command.main([str(path), "--chosen", "TPE", "--records", "9"]) == 0
    out = capsys.readouterr().out
    assert "only the best is released: epsilon = " in out
    assert "10 trials, chosen: sequential" in out
    assert command.main([str(path)]) == 0
    assert "nothing shows how candidates were chosen" in capsys.readouterr().out
    assert command.main([str(path), "--chosen", "gird"]) == 2
    assert "chosen must be one of grid, random, sequential" in capsys.readouterr().err
    both = [str(path), str(path), "--chosen", "grid", "--json"]
    assert command.main(both) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 20


def test_a_delta_above_one_over_records_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("noise_multiplier,batch_size,epochs\n1,10,1\n")
    assert command.main([str(path), "--records", "100", "--delta", "0.02"]) == 0
    assert "note: delta = 0.02 exceeds 1 / records" in capsys.readouterr().out


@pytest.mark.slow
def test_trials_of_groups_cost_as_much_as_groups_of_the_same_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("noise_multiplier,sampling_rate,steps\n2,0.01,100\n2,0.01,100\n")
    runs = DpSgd(2.0, 100, 0.01, group_size=3)
    costs = []
    for size in ("1", "3"):
        assert command.main([str(path), "--chosen", "grid", "--json", "--group-size", size]) == 0
        costs.append(json.loads(capsys.readouterr().out)["best_only"])
    assert costs[1] == finished.cost_of_trials([runs, runs], "grid").best_only > costs[0]
