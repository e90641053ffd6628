"""The controls of the differential test as a table, and a study of false accusations.

python -m benchmarks.training_loops                    # the table of broken loops, default settings
python -m benchmarks.training_loops --correct 1000     # so many seeds over all correct loops
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import audit
from audit.own_training.premises import FAMILY_ERROR, check_premises
from audit.own_training.records import TrainingSet
from benchmarks.training_loops.broken import BROKEN
from benchmarks.training_loops.correct import CORRECT, Control


def earlier_controls() -> dict[str, Control]:
    """The controls of the versions before, on dense features, at default settings too."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    import broken_trainings as earlier

    def with_data(name: str) -> Control:
        return Control(earlier.BROKEN[name].train, lambda: earlier.data(21))

    return {name: with_data(name) for name in earlier.BROKEN}


def find(name: str, control: Control) -> dict[str, Any]:
    """One call at the default settings: what was found, and in how many seconds."""
    start, used = time.perf_counter(), time.process_time()
    try:
        result = audit.check(control.train, control.data(), relation=control.relation, jobs=1)
        found, how = result.exit_code == 1, ""
        if result.premises is not None and result.premises.findings:
            how = f"{result.premises.findings[0].premise}: {result.premises.findings[0].message}"
        elif found:
            how = f"attack: at least {result.epsilon:.3g} where {result.claim:.3g} is claimed"
    except ValueError as error:
        found, how = False, f"error: {error}"
    return {
        "name": name,
        "found": found,
        "how": how,
        "seconds": round(time.perf_counter() - start, 1),
        "cpu seconds": round(time.process_time() - used, 1),
        "source": control.source,
    }


def accused(name: str, control: Control, seed: int) -> str:
    """The first finding about a correct loop, or nothing."""
    records = TrainingSet.of(control.data())
    report = check_premises(control.train, records, relation=control.relation, seed=seed).report
    return str(report.findings[0].message) if report.findings else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_loops")
    parser.add_argument("--correct", type=int, default=0, metavar="N", help="seeds in total")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="names that hold it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results as JSON")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))

    def chosen(table: dict[str, Control]) -> list[tuple[str, Control]]:
        words = options.only
        return [i for i in table.items() if not words or any(w in i[0] for w in words)]

    if options.correct:
        loops = chosen(CORRECT)
        for number in range(options.correct):
            name, control = loops[number % len(loops)]
            seed = options.first_seed + number // len(loops)
            keep({"name": name, "seed": seed, "finding": accused(name, control, seed)})
        wrong = [row for row in rows if row["finding"]]
        for row in wrong:
            print(f"{row['name']}, seed {row['seed']}: {row['finding']}")
        print(
            f"{len(wrong)} of {len(rows)} checks of {len(loops)} correct loops accuse "
            f"(family-wise error of a check: {FAMILY_ERROR:g})"
        )
        return int(bool(wrong))
    print("| mistake | found by | seconds (CPU) |\n|---|---|---|")
    for name, control in chosen({**earlier_controls(), **BROKEN}):
        row = find(name, control)
        keep(row)
        label = f"[{name}]({control.source})" if control.source else name
        how = row["how"] if row["found"] else f"**not found** {row['how']}"
        print(f"| {label} | {how} | {row['cpu seconds']} |", flush=True)
    hits = sum(row["found"] for row in rows)
    print(f"\n{hits} of {len(rows)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
