"""Plain tables: repeated candidates, states, titles, and what else a person may write in them."""

from pathlib import Path
from typing import Any

import pytest

import audit
from audit import cost as command
from audit.accounting import DpSgd
from audit.finished import cost_of_trials

_HEADING = "noise_multiplier,steps,sampling_rate"
_ROW = "11,50,1"


def _cost(folder: Path, text: str, chosen: str = "grid", **options: Any) -> Any:
    path = folder / "runs.csv"
    path.write_text(text)
    return cost_of_trials(path, chosen, **options)


def _table(column: str, cells: list[str], *, second: str = "") -> str:
    rows = [f"{_ROW},{cell},{i}" for i, cell in enumerate(cells)]
    return "\n".join([f"{_HEADING},{column},{second or 'acc'}", *rows]) + "\n"


@pytest.mark.parametrize(
    ("column", "cells", "second", "contradicted"),
    [
        ("lr", ["0.012345678901", "0.012345678901", "0.0345678901234"], "acc", True),
        ("dropout", ["0.30000000000001", "0.2", "0.30000000000001"], "seed", True),
        ("lr", ["0.012345678901", "0.0222345678901", "0.0345678901234"], "acc", False),
        ("lr", ["0.1", "0.1", "0.2"], "acc", False),  # draws from a list repeat
        ("lr", ["0.012345678901"] * 3, "acc", False),  # it does not vary
        ("val_loss", ["0.012345678901", "0.012345678901", "0.5"], "acc", False),
        ("lr", ["0.012345678901", "0.012345678901", "0.5"], "momentum", False),
    ],
)
def test_repeated_candidates_of_a_plain_table_were_not_drawn(
    tmp_path: Path, column: str, cells: list[str], second: str, contradicted: bool
) -> None:
    cost = _cost(tmp_path, _table(column, cells, second=second), "random")
    assert bool(cost.contradiction) == contradicted
    if contradicted:
        assert "trained more than once (2 runs), which independent draws" in cost.contradiction
        composed = DpSgd(11.0, 150, 1.0).epsilon(1e-5)
        assert cost.epsilon == pytest.approx(composed, rel=1e-6)


@pytest.mark.slow
def test_noise_that_was_computed_from_an_epsilon_is_no_draw(tmp_path: Path) -> None:
    noise = ["1.0837402343749998", "1.0837402343749998", "1.2"]
    rows = [f"{cell},50,1,{eps}" for cell, eps in zip(noise, (3, 3, 2), strict=True)]
    cost = _cost(tmp_path, "\n".join([f"{_HEADING},epsilon", *rows]), "random")
    assert cost.contradiction == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"My sweep\n{_HEADING}\n{_ROW}\n", "got the title 'My sweep': remove the lines above"),
        (f"My sweep,,\n{_HEADING}\n{_ROW}\n", "got the title 'My sweep': remove the lines above"),
        (f"# by hand\n{_HEADING}\n{_ROW}\n", "got the comment '# by hand': remove the lines"),
        (f"{_HEADING}\n{_ROW}\n# end\n", "line 3: row must be a run, got the comment '# end'"),
        (f"{_HEADING}\n1.1,500,1/100\n", "write a fraction as a decimal number"),
        (f"{_HEADING}\n{_ROW}\n,500,0.01\n", r"line 3: run must have .* --noise-multiplier 1\.1"),
        (f"{_HEADING}\n{_ROW}\nNaN,500,0.01\n", r"line 3: run must have .*\(an empty cell or nan"),
        ('{"lr": 1}\n{"lr": 2}\n', "got json in .*: rename it to .json, or to .jsonl"),
        (f"{_HEADING},status\n{_ROW},odd\n", "got 'odd': write one of these, or add --columns"),
    ],
)
def test_what_a_person_writes_has_its_own_message(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        _cost(tmp_path, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("suffix", ["xlsx", "XLS", "ods"])
def test_a_spreadsheet_is_to_be_exported(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"runs.{suffix}"
    path.write_bytes(b"PK\x03\x04")
    for source in (path, str(path)):
        with pytest.raises(ValueError, match=r"got the spreadsheet .*: export its sheet as csv"):
            cost_of_trials(source, "grid")


@pytest.mark.parametrize(
    ("state", "remark"),
    [
        ("killed by OOM", "1 run failed, and it counts in full"),
        ("FAILED (exit 137)", "1 run failed, and it counts in full"),
        ("Finished", None),
    ],
)
def test_states_in_words(tmp_path: Path, state: str, remark: str | None) -> None:
    cost = _cost(tmp_path, f"{_HEADING},status\n{_ROW},finished\n{_ROW},{state}\n")
    assert cost.trials == 2
    assert cost.remarks[:1] == (() if remark is None else (remark,))


@pytest.mark.parametrize(
    ("column", "cells", "is_a_part"),
    [
        ("trial", ["3", "17", "40"], True),
        ("number", ["0", "1", "5"], True),
        ("number", ["5", "7", "6"], False),
        ("number", ["0", "0", "5"], False),  # no numbering
        ("trial_id", ["81532", "81530", "94711"], False),  # of jobs
        ("trial", ["a", "b", "c"], False),
        ("lr", ["3", "17", "40"], False),
    ],
)
def test_gaps_in_a_numbering_are_a_remark(
    tmp_path: Path, column: str, cells: list[str], is_a_part: bool
) -> None:
    cost = _cost(tmp_path, _table(column, cells))
    said = any("the cost is too small if runs were left out" in remark for remark in cost.remarks)
    assert said == is_a_part
    assert cost.trials == 3


def test_a_column_state_may_mean_something_else(tmp_path: Path) -> None:
    text = f"{_HEADING},state\n{_ROW},Ohio\n{_ROW},Texas\n"
    cost = _cost(tmp_path, text, columns={"state": "ignore"})
    assert cost.trials == 2
    assert "not read as a privacy setting: state" in cost.columns


def test_a_run_that_was_pruned_and_failed_is_pruned(tmp_path: Path) -> None:
    text = f"{_HEADING},state,status\n{_ROW},failed,pruned\n{_ROW},finished,finished\n"
    assert "1 run was pruned" in _cost(tmp_path, text).contradiction


@pytest.mark.slow
def test_a_target_delta_is_used_and_must_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("target_epsilon,target_delta\n0.5,1e-8\n0.5,1e-8\n")
    known = audit.cost_of_trials([audit.accounting.ApproximateDp(0.5, 1e-8)] * 2, "grid")
    assert cost_of_trials(path, "grid").epsilon == known.epsilon
    argv = [str(path), "--chosen", "grid", "--target-delta"]
    assert command.main([*argv, "1e-8"]) == 0
    assert "used: target_epsilon, target_delta as delta" in capsys.readouterr().out
    assert command.main([*argv, "1e-9"]) == 2
    assert "target_delta must be given once" in capsys.readouterr().err
