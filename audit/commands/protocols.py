"""The command `dp-tuning-audit protocols`: the costs of all protocols with as many runs."""

import argparse
import json
from collections.abc import Sequence

from audit import checks, console
from audit.commands import bounds_options
from audit.commands.bounds_answer import comparison_lines
from audit.commands.bounds_options import delta_note, one_run
from audit.numerics import format_exact, format_rounded
from audit.upper_bounds import compare_protocols
from audit.upper_bounds.costs import MAX_COMPARED

_EXAMPLES = {
    "{}protocols 20 --noise-multiplier 55 --steps 2000": "DP-SGD on full batches",
    "{}protocols 20 --mu 0.25": "mu of Gaussian DP",
}


def make_parser() -> console.Parser:
    """The options of the command, a part of those of `bounds`."""
    started = console.words_before_command()
    parser = console.Parser(
        prog=f"{started}protocols",
        description="The cost of each protocol with as many runs on average:\n"
        "protocols RUNS [options].",
        examples={
            example.format(started): explanation for example, explanation in _EXAMPLES.items()
        },
    )
    parser.add_argument("runs", type=float, metavar="RUNS", help="mean number of runs")
    parser.add_options(bounds_options.part("one run: DP-SGD, or another mechanism"))
    parser.add_options({"answer": bounds_options.named(("delta", "json"))})
    parser.add_options(
        {console.RARE: bounds_options.named(("neighbours", "group-size", "accounting"))}
    )
    parser.add_imports()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    options = vars(make_parser().parse_args(argv))
    try:
        runs = checks.interval(
            "runs", options.pop("runs"), *MAX_COMPARED, closed_low=True, closed_high=True
        )
        return _print_comparison(bounds_options.with_others(options), runs)
    except ValueError as error:
        return console.report_error(error)


def _print_comparison(arguments: argparse.Namespace, runs: float) -> int:
    bounds_options.checked_options(arguments)
    delta = checks.interval("delta", arguments.delta, 0.0, 1.0)
    base, notes = one_run(arguments)
    notes += delta_note(delta, arguments.records)
    compared = compare_protocols(base, runs, delta)
    if arguments.json:
        rows = [vars(row) | {"protocol": row.protocol.spec} for row in compared]
        print(json.dumps({"delta": delta, "compared": rows, "notes": notes}, indent=2))
        return console.OK
    alone = format_rounded(base.epsilon(delta), up=True)
    about = f"{runs:g} runs on average, delta = {format_exact(delta)}; one run alone: {alone}"
    print(console.wrap(about, "  "))
    print(console.wrap(base.description, "  "))
    print("\n".join(["", *comparison_lines(compared)]))
    for note in notes:
        print(console.wrap(f"note: {note}", "  "))
    return console.OK
