"""Tables with several rows for each run are refused, or read as runs once they are mapped."""

from typing import Any

import pytest

from audit.finished import cost_of_trials

_RUN = {"noise_multiplier": 1.1, "batch_size": 100}


def _log(counter: str, counts: list[int], **columns: Any) -> list[dict[str, Any]]:
    """The log of ten runs, with a row for each count."""
    return [
        {"run_id": f"r{i}", **_RUN, **columns, counter: count, "loss": 1.0 / (count + 1)}
        for i in range(10)
        for count in counts
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("counter", "counts", "columns"),
    [
        ("epochs", [1, 2, 3, 4, 5], {}),
        ("epochs", [0, 1, 2, 3, 4], {}),
        ("steps", [100, 300, 500], {}),
        ("epoch", [1, 2, 3], {"epochs": 5}),
        ("_step", [100, 200, 300], {"steps": 500}),
        ("global_step", [0, 1], {"steps": "500"}),
    ],
)
def test_a_log_is_refused_and_read_by_its_runs(
    counter: str, counts: list[int], columns: dict[str, Any], epsilon_of_ten_runs: float
) -> None:
    rows = _log(counter, counts, **columns)
    words = f"'run_id' repeats while '{counter}' changes, got {len(rows)} rows with 10 values"
    with pytest.raises(ValueError, match=f"{words}: add --columns 'run_id=run'"):
        cost_of_trials(rows, "grid", records=10_000)
    cost = cost_of_trials(rows, "grid", records=10_000, columns="run_id=run")
    assert (cost.trials, cost.epsilon) == (10, epsilon_of_ten_runs)
    assert f"{len(rows)} rows are 10 runs" in " ".join(cost.remarks)


def test_a_log_of_one_run_without_its_name_is_refused() -> None:
    rows = [{**_RUN, "epochs": 5, "epoch": epoch, "acc": epoch / 7} for epoch in range(1, 6)]
    with pytest.raises(ValueError, match="only 'epoch' and results differ between its rows"):
        cost_of_trials(rows, "grid", records=10_000)


def test_rows_of_one_run_with_different_noise_are_refused() -> None:
    rows = _log("epoch", [1, 2], epochs=5)
    rows[1]["noise_multiplier"] = 1.2
    with pytest.raises(ValueError, match="rows of one run must state one noise_multiplier"):
        cost_of_trials(rows, "grid", records=10_000, columns={"run_id": "run"})
    del rows[0]["run_id"]
    with pytest.raises(ValueError, match="must name the run of every row, got none"):
        cost_of_trials(rows, "grid", records=10_000, columns={"run_id": "run"})


@pytest.mark.parametrize(
    "rows",
    [
        [{**_RUN, "epochs": 5, "seed": i % 5, "lr": 0.1} for i in range(10)],
        [{**_RUN, "epochs": 5, "trial": i, "epoch": 5} for i in range(10)],
        [{**_RUN, "epochs": 5, "run_id": "sweep", "lr": i} for i in range(10)],
    ],
)
def test_a_table_with_one_row_per_run_is_no_log(
    rows: list[dict[str, Any]], epsilon_of_ten_runs: float
) -> None:
    assert cost_of_trials(rows, "grid", records=10_000).epsilon == epsilon_of_ten_runs


def test_lengths_that_differ_between_candidates_of_one_seed_are_no_log() -> None:
    rows = [{**_RUN, "seed": 1, "epochs": epochs} for epochs in (1, 3, 5)]
    assert cost_of_trials(rows, "sequential", records=10_000).trials == 3
