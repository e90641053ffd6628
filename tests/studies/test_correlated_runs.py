"""Bounds from runs that share initial weights."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from audit.repetitions import parse_repetitions
from studies import correlated_runs
from studies.correlated_runs import (
    COMMITTED,
    GROUPINGS,
    REPEATS,
    Coverage,
    committed,
    coverage,
    runs_of,
    trials_of,
)


def test_shared_shifts_are_shared_by_the_runs_that_the_grouping_says() -> None:
    """With an enormous spread, a run's score is its shift."""
    law = parse_repetitions("fixed:3")
    for grouping, of_side, common in (
        ("alone", 3 * 40, 0),
        ("repeats", REPEATS, REPEATS),
        ("trials", 40, 0),
        ("sides", 1, 0),
    ):
        rng = np.random.default_rng(4)
        sides = runs_of(rng, grouping, 40, 1.0, 1e9, law)
        shifts = [{round(float(x) / 1e4) for x in side} for side in sides]
        assert [len(side) for side in shifts] == [of_side, of_side]
        assert len(shifts[0] & shifts[1]) == common
        first, second = trials_of(np.random.default_rng(5), grouping, 40, 1.0, 0.0)
        assert len(first) == len(second) == 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bounds_hold_if_both_sides_share_the_shifts_and_fail_if_they_do_not() -> None:
    """Of 16 audits, half exceed the true value if sides differ by far: 3 or fewer with 1 % chance.

    If repeats share their shifts, 5 or more do with 0.1 % chance.
    """
    rows = {
        (row.grouping, row.bound): row
        for row in coverage(16, trials=40, spread=6.0, groupings=("repeats", "sides"))
    }
    for (grouping, _), row in rows.items():
        if grouping == "repeats":
            assert row.violations < 5
            assert not row.fails
    assert rows["sides", "gaussian-curve:rank-sum"].violations > 3


def test_a_rate_above_five_percent_fails() -> None:
    assert Coverage("alone", "scan", 100, 14, 1.0, 2.0).fails
    assert not Coverage("alone", "scan", 100, 9, 1.0, 2.0).fails


def test_the_page_shows_the_committed_table() -> None:
    rows = committed()
    assert [row.audits for row in rows] == [2000] * 4 * len(GROUPINGS)
    page = COMMITTED.with_name("coverage_tables.md").read_text()
    for row in rows:
        assert row.row in page
    # Only shifts that the sides do not share break bounds.
    assert {row.grouping for row in rows if row.fails} == {"sides"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("grouping", ["alone", "sides"])
def test_the_committed_table_is_reproduced(grouping: str) -> None:
    """30 audits: true values exactly, rates and means within chance (error: .1 % per number)."""
    stored = {row.bound: row for row in committed() if row.grouping == grouping}
    for row in coverage(30, groupings=(grouping,), seed=2):
        expected = stored[row.bound]
        assert row.truth == pytest.approx(expected.truth, rel=1e-9)
        low, high = stats.binom.interval(0.999, 30, expected.violations / 2000)
        assert low <= row.violations <= high
        # Bounds lie between 0 and about twice the true value.
        assert row.mean == pytest.approx(expected.mean, abs=3.3 * row.truth / 30**0.5 / 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_program_writes_the_rows_that_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    monkeypatch.setattr(
        sys,
        "argv",
        ["correlated_runs", "--audits", "2", "--groupings", "trials", "--out", str(table)],
    )
    correlated_runs.main()
    monkeypatch.setattr(correlated_runs, "COMMITTED", table)
    written = committed()
    assert [row.grouping for row in written] == ["trials"] * 4
    assert "\n".join(row.row for row in written) in capsys.readouterr().out
    assert written == list(coverage(2, groupings=("trials",)))
