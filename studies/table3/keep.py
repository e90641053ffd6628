"""Keeps the trials of played games: `python -m studies.table3.keep runs/table3-*/`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from audit import console
from studies.papers.kept_trials import keep


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code 0, or 2 after an error message of one line."""
    parser = console.Parser(
        prog="python -m studies.table3.keep",
        description="Joins the trials of audits, finished or not, to one small file per view.",
        examples={"python -m studies.table3.keep runs/table3-*/": "all audits of this study"},
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="results folder of audit.run")
    parser.add_argument(
        "--out",
        default=str(Path(__file__).parent),
        metavar="FOLDER",
        help="folder for the files (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    try:
        for folder in arguments.folders:
            for path in keep(Path(folder), Path(arguments.out)):
                print(path)
    except (ValueError, OSError) as error:
        return console.report_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(console.run(main))
