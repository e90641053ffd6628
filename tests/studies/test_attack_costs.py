"""The program that recomputes docs/attacks.csv."""

import csv
from pathlib import Path

import pytest

from audit.accounting import GaussianMechanism
from audit.protocols import parse_protocol
from audit.upper_bounds import worst_order
from studies.attack_costs import DATA, attained, recompute

ROOT = Path(__file__).parents[2]


def test_rows_are_recomputed_once_and_moved_numbers_are_named(tmp_path: Path) -> None:
    with (ROOT / DATA).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["delta"]) == 0.01]
    correct = next(row for row in rows if row["protocol"] == "until:0.1")
    table, done = tmp_path / "attacks.csv", tmp_path / "done"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(correct), lineterminator="\n")
        writer.writeheader()
        writer.writerow(correct | {"cost": "0.900", "bound": "region"})
    key = "0.24721 0.01 until:0.1"
    assert list(recompute(table, done)) == [
        f"{key}: bound region -> {correct['bound']}",
        f"{key}: cost 0.900 -> {correct['cost']}",
        f"{key}: done",
    ]
    with table.open(newline="") as file:
        assert list(csv.DictReader(file)) == [correct]
    assert not list(recompute(table, done))


def test_attained_values_are_those_of_the_worst_order_and_need_a_known_attack() -> None:
    order = worst_order(GaussianMechanism(0.25), "fixed:3", 1e-3).epsilon
    assert attained(0.25, parse_protocol("grid:3"), 1e-3) == order
    with pytest.raises(ValueError, match="protocol must be one with an attack, got noisy-max:3"):
        attained(0.25, parse_protocol("noisy-max:3"), 1e-3)
