"""The command `dp-tuning-audit solve`: what a privacy budget allows."""

from collections.abc import Sequence

from audit import checks, console
from audit.commands import bounds, bounds_options

_EXAMPLES = {
    "{}solve noise 3 --sampling-rate 0.01 --steps 2000": "least noise",
    "{}solve runs 3 --mu 0.25": "most runs",
    "{}solve distribution 3 --mu 0.25": "best distribution of K",
}
_NAMES = ("protocol", "repetitions", "delta", "max-runs", "all", "json")


def make_parser() -> console.Parser:
    """The options of the command, a part of those of `bounds`."""
    started = console.words_before_command()
    parser = console.Parser(
        prog=f"{started}solve",
        description="The noise, the number of runs or the distribution of K that keep a tuning "
        "within a budget:\nsolve WHAT EPSILON [options].",
        examples={
            example.format(started): explanation for example, explanation in _EXAMPLES.items()
        },
    )
    parser.add_argument("what", metavar="WHAT", help=", ".join(bounds_options.SOLVES))
    parser.add_argument(
        "target_epsilon", type=float, metavar="EPSILON", help="budget of the whole tuning"
    )
    parser.add_options(bounds_options.part("one run: DP-SGD, or another mechanism"))
    parser.add_options({"the tuning and its answer": bounds_options.named(_NAMES)})
    parser.add_options(
        {console.RARE: bounds_options.named(("neighbours", "group-size", "bound", "accounting"))}
    )
    parser.add_imports()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    options = vars(make_parser().parse_args(argv))
    try:
        target = checks.one_of("what", options.pop("what"), bounds_options.SOLVES)
        bounds_options.check_solve(target, options)
        options["solve"] = None if target == "noise" else target
        return bounds.print_checked(bounds_options.with_others(options))
    except ValueError as error:
        return console.report_error(error)
