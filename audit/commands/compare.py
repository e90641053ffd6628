"""The command that compares finished audits: `python -m audit.compare --help`."""

from collections.abc import Sequence

from audit import console
from audit.errors import require_modules


def make_parser() -> console.Parser:
    """The options of the command."""
    parser = console.Parser(
        prog="python -m audit.compare",
        description="Compares finished audits in a figure with a panel for each, and in a table.",
        examples={
            "python -m audit.compare runs/etcv*/ runs/nt-fashion": "compares finished audits",
            "python -m audit.run --preset runs/small-*.toml": "runs audits, then compares them",
        },
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders of audit.run")
    parser.add_argument(
        "--out",
        default="runs/comparison",
        metavar="FOLDER",
        help="folder of the results (default: %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    arguments = make_parser().parse_args(argv)
    require_modules("game", "matplotlib", "pandas", "seaborn")
    # Importing tables and figures takes a second, which --help need not wait for.
    from audit.report import comparison

    try:
        audits = comparison.read(arguments.folders)
        comparison.write(audits, arguments.out)
    except ValueError as error:
        return console.report_error(error)
    print(comparison.to_text(audits))
    written = f"results in {arguments.out}, figure: {arguments.out}/figure.png"
    print(f"\n{console.wrap(written, '  ')}")
    return 0
