"""The controls of the differential test as a table, and a study of false findings.

python -m benchmarks.training_loops                                # the table of broken loops
python -m benchmarks.training_loops --lists arrays mechanisms      # loops of arrays, mechanisms
python -m benchmarks.training_loops --correct 1000 --out FILE      # 1,000 checks of correct loops

Loops of arrays need JAX, optax and jax_privacy, and mechanisms diffprivlib. A list whose packages
are not installed is left out with a note.

Limits count steps, so that the results do not depend on what else the machine does.
With `--out`, every finished check is one line of JSON in FILE. A run that was interrupted continues
with the checks that are not in FILE yet.
"""

import argparse
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest

import audit
from audit.loop.premises.check_premises import FAMILY_ERROR, check_premises
from audit.loop.runs.records import TrainingSet
from benchmarks.training_loops.correct import Control

CONFIDENCE = 0.95
# Lists of controls: a module with the tables LIST and LIST_CORRECT, of which one may be missing.
LISTS = (
    "broken",
    "correct",
    "reported",
    "further",
    "independent",
    "second_tester",
    "unseen",
    "fourth_turn",
    "arrays",
    "mechanisms",
    "from_reports",
    "later_reports",
    "public_threads",
    "fifth_turn",
    "sixth_turn",
    "seventh_turn",
    "eighth_turn",
    "ninth_turn",
    "tenth_turn",
    "post_processed",
)


def earlier_controls() -> dict[str, Control]:
    """The controls of earlier versions, on dense features, at default settings."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "loop"))
    import broken_trainings as earlier

    def with_data(name: str) -> Control:
        return Control(earlier.BROKEN[name].train, lambda: earlier.data(21))

    return {name: with_data(name) for name in earlier.BROKEN}


def controls(lists: Sequence[str], correct: bool) -> dict[str, Control]:
    """The broken or the correct loops of some lists, by name."""
    loops = earlier_controls() if "broken" in lists and not correct else {}
    for name in lists:
        try:
            module = importlib.import_module(f"benchmarks.training_loops.{name}")
        except ModuleNotFoundError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        table = "CORRECT" if name == "correct" else name.upper() + "_CORRECT" * correct
        loops |= getattr(module, table, {}) if correct or name != "correct" else {}
    return loops


def find(control: Control) -> dict[str, Any]:
    """Checks a broken loop at the default settings: whether and how the mistake was found."""
    try:
        result = audit.check(control.train, control.data(), relation=control.relation, jobs=1)
    except ValueError as error:
        return {"found": False, "how": f"error: {error}"}
    found, how = result.exit_code == 1, ""
    if result.premises is not None and result.premises.findings:
        how = f"{result.premises.findings[0].premise}: {result.premises.findings[0].message}"
    elif found:
        how = f"attack: at least {result.epsilon:.3g} where {result.claim:.3g} is claimed"
    return {"found": found, "how": how}


def finding_about(control: Control, seed: int) -> dict[str, Any]:
    """The first finding about a correct loop, or an empty string."""
    records = TrainingSet.of(control.data())
    try:
        report = check_premises(control.train, records, relation=control.relation, seed=seed).report
    except ValueError as error:
        return {"finding": f"error: {error}"}
    return {"finding": str(report.findings[0].message) if report.findings else ""}


def completed(
    identities: Sequence[dict[str, Any]],
    run: Callable[..., dict[str, Any]],
    out: Path | None,
) -> Iterator[dict[str, Any]]:
    """Yields one result per identity, in order; results in the file are not recomputed.

    Args:
        identities: arguments of `run`, which identify each result.
        run: returns the rest of a result.
        out: file with one result in each line; None keeps nothing.
    """
    known: list[dict[str, Any]] = []
    if out is not None and out.exists():
        # A process that was killed while it wrote leaves an incomplete last line.
        lines = [line for line in out.read_text().splitlines() if line.endswith("}")]
        out.write_text("".join(line + "\n" for line in lines))
        known = [json.loads(line) for line in lines]
    began, ran = time.monotonic(), 0
    for number, identity in enumerate(identities, 1):
        row = next((r for r in known if identity.items() <= r.items()), None)
        if row is None:
            start, used = time.monotonic(), time.process_time()
            row = identity | run(**identity)
            row["seconds"] = round(time.monotonic() - start, 1)
            row["cpu seconds"] = round(time.process_time() - used, 1)
            ran += 1
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            left = (time.monotonic() - began) / ran * (len(identities) - number) / 60
            print(
                f"[{number}/{len(identities)}] {', '.join(map(str, identity.values()))}: "
                f"{row['seconds']} s; about {left:.0f} min left",
                file=sys.stderr,
                flush=True,
            )
        yield row


def study_correct(loops: dict[str, Control], checks: int, first: int, out: Path | None) -> int:
    """Checks correct loops with many seeds, prints the findings, and returns their number."""
    names = list(loops)
    wanted = [
        {"name": names[i % len(names)], "seed": first + i // len(names)} for i in range(checks)
    ]
    rows = list(completed(wanted, lambda name, seed: finding_about(loops[name], seed), out))
    wrong = [row for row in rows if row["finding"]]
    for row in wrong:
        print(f"{row['name']}, seed {row['seed']}: {row['finding']}")
    limit = binomtest(len(wrong), len(rows), alternative="less").proportion_ci(CONFIDENCE).high
    print(
        f"{len(wrong)} of {len(rows)} checks of {len(loops)} correct loops have a finding; the "
        f"probability of a false finding is at most {limit:.2g} with {CONFIDENCE:.0%} confidence "
        f"(Clopper-Pearson). A check is designed for at most {FAMILY_ERROR:g}."
    )
    return len(wrong)


def print_table(loops: dict[str, Control], out: Path | None) -> None:
    """Prints the table of broken loops, each found or not by one call at default settings.

    The table names the premise, as the documentation does; the file has the whole message.
    """
    print("| mistake | found by | seconds (CPU) |\n|---|---|---|")
    rows = []
    for row in completed([{"name": n} for n in loops], lambda name: find(loops[name]), out):
        source = loops[row["name"]].source
        label = f"[{row['name']}]({source})" if source else row["name"]
        how = row["how"].split(":")[0] if row["found"] else "**not found**"
        print(f"| {label} | {how} | {row['cpu seconds']} |", flush=True)
        rows.append(row)
    seconds = sorted(row["cpu seconds"] for row in rows) or [0.0]
    print(
        f"\n{sum(row['found'] for row in rows)} of {len(rows)} found; CPU seconds: median "
        f"{seconds[len(seconds) // 2]}, largest {seconds[-1]}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_loops")
    parser.add_argument("--correct", type=int, default=0, metavar="N", help="number of checks")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--lists", nargs="+", choices=LISTS, default=LISTS, metavar="LIST", help="lists of loops"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="loops whose name contains a WORD"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="one line of JSON per check; checks in it are kept"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    def chosen(table: dict[str, Control]) -> dict[str, Control]:
        words = options.only
        return {n: c for n, c in table.items() if not words or any(w in n for w in words)}

    loops = chosen(controls(options.lists, bool(options.correct)))
    if options.correct:
        return int(study_correct(loops, options.correct, options.first_seed, options.out) > 0)
    print_table(loops, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
