"""The command that writes an audit as one html page: `python -m audit.report FOLDER`."""

import sys
from collections.abc import Sequence

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()

from audit import console
from audit.report import page


def make_parser() -> console.Parser:
    """The options of the command."""
    parser = console.Parser(
        prog="python -m audit.report",
        description="Writes report.html, a self-contained page, into folders of finished audits.",
        examples={
            "python -m audit.report runs/etcv-dirac": "then open runs/etcv-dirac/report.html"
        },
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder of audit.run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    arguments = make_parser().parse_args(argv)
    try:
        for folder in arguments.folders:
            print(page.write(folder))
    except (ValueError, OSError) as error:
        return console.report_error(error)
    return console.OK


if __name__ == "__main__":
    sys.exit(console.run(main))
