"""Costs and attained values of docs/attacks.csv: `python -m studies.attack_costs`.

`python -m audit.reproduce attacks` also plays 100,000 trials on each side of every attack. This
program computes only the bound, the cost and the epsilon that the attack attains, in eight minutes
of processor time, and leaves the other columns as they are. It writes each row as soon as it is
computed, prints each number that moved, and skips the rows in `--done`, so it can be interrupted.
"""

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit.accounting import GaussianMechanism
from audit.attacks import attack_tails, subset_attack
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
    parse_protocol,
)
from audit.report.text import rounded_down, rounded_up
from audit.upper_bounds import tuning_cost, worst_order
from studies.papers.attacks import UNLIMITED_TRIALS, adaptive_epsilon

DATA = Path("docs/attacks.csv")
_COMPUTED = ("bound", "cost", "attained")


def attained(mu: float, protocol: Protocol, delta: float) -> float:
    """The epsilon of the best known attack on the reduced game.

    Args:
        mu: what the record adds to the output N(0, 1) of a run.
        protocol: a protocol with a known attack.
        delta: in (0, 1).

    Example:
        >>> round(attained(0.25, parse_protocol("until:0.1"), 1e-2), 1)
        0.9
    """
    match protocol:
        case RandomSearch(repetitions) | Grid(runs_distribution=repetitions):
            epsilon = worst_order(GaussianMechanism(mu), repetitions, delta).epsilon
            assert epsilon is not None  # a Gaussian base has orders
            return epsilon
        case UntilAccepted() | RandomStopping():
            return attack_tails(mu, protocol, delta, UNLIMITED_TRIALS)[0].epsilon(delta)
        case Adaptive():
            return adaptive_epsilon(mu, protocol, delta)
        case Subset():
            return subset_attack(mu, protocol, delta).epsilon(delta)
        case _:
            raise ValueError(f"protocol must be one with an attack, got {protocol.spec}")


def updated(row: dict[str, str]) -> dict[str, str]:
    """The row of the table with the bound, cost and attained value of today's code."""
    mu, delta, protocol = float(row["mu"]), float(row["delta"]), parse_protocol(row["protocol"])
    bound = tuning_cost(GaussianMechanism(mu), protocol, delta)
    epsilon = attained(mu, protocol, delta)
    return row | {
        "bound": bound.name,
        "cost": rounded_up(bound.epsilon),
        "attained": rounded_down(epsilon),
    }


def recompute(path: Path, done: Path) -> Iterator[str]:
    """Recomputes the rows of a file in place, and yields a line for each number that moved.

    Args:
        path: the table.
        done: a file with the (mu, delta, protocol) of the rows that are done.
    """
    rows, names = _read(path)
    finished = set(done.read_text().splitlines()) if done.exists() else set()
    for number, row in enumerate(rows):
        key = f"{row['mu']} {row['delta']} {row['protocol']}"
        if key in finished:
            continue
        rows[number] = updated(row)
        for name in _COMPUTED:
            if rows[number][name] != row[name]:
                yield f"{key}: {name} {row[name]} -> {rows[number][name]}"
        _write(path, rows, names)
        with done.open("a") as file:
            file.write(f"{key}\n")
        yield f"{key}: done"


def _read(path: Path) -> tuple[list[dict[str, str]], Sequence[str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    return rows, reader.fieldnames or ()


def _write(path: Path, rows: Sequence[dict[str, str]], names: Sequence[str]) -> None:
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Recomputes the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=DATA, help="the table (default: %(default)s)")
    parser.add_argument(
        "--done",
        type=Path,
        default=Path("attack_costs.done"),
        help="the file that remembers finished rows (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    for line in recompute(options.data, options.done):
        print(line, flush=True)


if __name__ == "__main__":
    main()
