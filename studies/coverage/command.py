"""The command line of the coverage study."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from audit import checks, console
from studies.coverage.analysis import failures, merge_mechanisms
from studies.coverage.canaries import canary_runs
from studies.coverage.mechanisms import mechanisms
from studies.coverage.page import coverage_page, more_audits_page
from studies.coverage.simulation import AUDITS, DEFAULT_AUDITS, simulate_study

_MAX_TRIALS = 10_000_000
_MAX_AUDITS = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the study and writes its tables.

    Returns the exit code 1 if the violation rate of a valid bound is significantly too large.
    """
    options = _parser().parse_args(argv)
    try:
        names = [mechanism.name for mechanism in mechanisms(1_000)]
        names += [run.name for run in canary_runs()]
        chosen = [checks.one_of("mechanisms", name, names) for name in options.mechanisms]
        checks.integer("seed", options.seed, 0)
        if options.more and (len(options.trials) > 1 or not chosen):
            message = "more must come with names in --mechanisms and one number in --trials"
            return console.report_error(message)
        checks.integer("jobs", options.jobs, 1, checks.MAX_JOBS)
        for trials in options.trials:
            checks.integer("trials", trials, 2, _MAX_TRIALS)
        if options.audits is not None:
            checks.integer("audits", options.audits, 1, _MAX_AUDITS)
        console.check_writable(options.out)
    except ValueError as error:
        return console.report_error(error)
    audits = {
        trials: options.audits or AUDITS.get(trials, DEFAULT_AUDITS) for trials in options.trials
    }
    parts = []
    for part in simulate_study(audits, options.seed, chosen, options.jobs):
        parts.append(part)
        row = part.iloc[0]
        print(
            f"{row['mechanism']:32} {row['trials']:7d} trials  {row['audits']:4d} audits  "
            f"{row['estimator']} {row['mean']:.3f} of {row['truth']:.3f}, "
            f"violations {row['rate']:.1%}",
            flush=True,
        )
    study = pd.concat(parts, ignore_index=True)
    command = f"python -m audit.coverage_study --seed {options.seed}"
    if audits != AUDITS:
        command += " --trials " + " ".join(map(str, audits))
    if options.audits is not None:
        command += f" --audits {options.audits}"
    if chosen:
        command += " --mechanisms " + " ".join(f'"{name}"' for name in chosen)
    try:
        if options.more:
            write_more_audits(study, options.out)
        else:
            study.to_csv(options.out / "coverage.csv", index=False, float_format="%.6g")
            (options.out / "coverage.md").write_text(coverage_page(study, command))
    except OSError as error:
        return console.report_error(
            f"out must be a writable folder with free space, got {str(options.out)!r}: {error}"
        )
    failed, failed_together = failures(study), failures(merge_mechanisms(study))
    for rows in (failed, failed_together):
        if len(rows):
            print(rows.to_string())
    claims = int(study["claimed"].sum())
    print(f"{len(failed)} of {claims} valid rows fail; tables written to {options.out}")
    return 1 if len(failed) or len(failed_together) else 0


def write_more_audits(study: pd.DataFrame, folder: Path) -> None:
    """Adds a study to coverage-more.csv and writes its page.

    It replaces earlier rows of the same mechanisms.
    """
    path = folder / "coverage-more.csv"
    if path.exists():
        earlier = pd.read_csv(path)
        study = pd.concat([earlier[~earlier["mechanism"].isin(study["mechanism"])], study])
    study.to_csv(path, index=False, float_format="%.6g")
    (folder / "coverage-more.md").write_text(more_audits_page(pd.read_csv(path)))


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.coverage_study",
        description="Tests the lower bounds on mechanisms with a known epsilon.",
        examples={
            "python -m audit.coverage_study --seed 1": "a quarter of an hour",
            "python -m audit.coverage_study --trials 200 --audits 50 --out /tmp": "a quick look",
        },
        notes="writes coverage.csv and coverage.md; exit code 1: a valid bound fails its test",
    )
    parser.add_argument(
        "--trials",
        type=int,
        nargs="+",
        default=list(AUDITS),
        metavar="N",
        help=f"trials per side, one or more numbers (default: {' '.join(map(str, AUDITS))})",
    )
    parser.add_argument(
        "--audits",
        "--games",
        type=int,
        metavar="N",
        help="repetitions of an audit per mechanism and number of trials "
        f"(default: {', '.join(map(str, AUDITS.values()))})",
    )
    parser.add_argument("--seed", type=int, default=1, help="an integer >= 0 (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument(
        "--mechanisms", nargs="+", default=[], metavar="NAME", help="names (default: all)"
    )
    parser.add_argument(
        "--more",
        action="store_true",
        help="add the rows to coverage-more.csv: a second study of chosen mechanisms",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs"), help="folder of the tables (default: docs)"
    )
    return parser
