"""The command `dp-tuning-audit check`: the differential test of an unmodified script."""

import argparse
from collections.abc import Sequence

from audit import console
from audit.errors import MissingExtra, require_modules
from audit.loop.runs.work import CPU_SECONDS
from audit.loop.sources.script import MODES, RECORDS, STEPS, script

_NOTES = "exit code: 0 nothing found, 1 a broken premise, 2 not testable"


def make_parser() -> console.Parser:
    """The parser of the command's options."""
    # A module audit.check would hide the function of this name.
    started = console.words_before_command()
    parser = console.Parser(
        prog=f"{started}check",
        description=(
            "Tests an unmodified training script that uses Opacus: check [options] SCRIPT.py "
            "[its own arguments]."
        ),
        examples={
            f"{started}check train.py --device cpu": "the script's own arguments follow it",
            f"{started}check --steps 12 train.py": "options of the test precede it",
        },
        notes=_NOTES,
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT.py", help="the script")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    add("--mode", default="auto", metavar="NAME", help=f"{', '.join(MODES)} (default: auto)")
    add(
        "--records",
        type=int,
        default=RECORDS,
        metavar="N",
        help=f"records of the script that are used (default: {RECORDS})",
    )
    add(
        "--steps",
        type=int,
        default=STEPS,
        metavar="N",
        help=f"steps of a run (default: {STEPS})",
    )
    add("--delta", type=float, default=1e-5, metavar="D", help="(default: 1e-5)")
    add(
        "--cpu-seconds",
        type=float,
        default=CPU_SECONDS,
        metavar="S",
        help=f"CPU time after which there is no verdict (default: {CPU_SECONDS:g})",
    )
    add("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    add(
        "--allow-writes",
        action="store_true",
        help="run the script even where its files cannot be protected from it",
    )
    add("--all", action="store_true", help="also print the causes and fixes of all findings")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = make_parser().parse_args(argv)
    try:
        # Otherwise, the process of the script ends with a traceback.
        require_modules("game", "joblib", "opacus", "torch")
        result = script(
            options.script,
            options.arguments,
            mode=options.mode,
            records=options.records,
            steps=options.steps,
            delta=options.delta,
            cpu_seconds=options.cpu_seconds,
            seed=options.seed,
            allow_writes=options.allow_writes,
        )
    except (ValueError, MissingExtra) as error:
        return console.report_error(error)
    verdict = str(result) if options.all else result.short
    print(result.to_json() if options.json else console.wrap_verdict(verdict))
    return result.exit_code
