"""Finished audits side by side: `python -m audit.compare --help`."""

import sys
from collections.abc import Sequence

from audit import console


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0, or 2 after one clear line about what was wrong.
    """
    parser = console.Parser(
        prog="python -m audit.compare",
        description="Puts finished audits side by side: a picture with a panel each, and a table.",
        examples={
            "python -m audit.compare runs/etcv*/ runs/nt-fashion": "audits that ended already",
            "python -m audit.run --preset runs/small-*.toml": "plays them, then compares them",
        },
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="as audit.run leaves it")
    parser.add_argument(
        "--out",
        default="runs/comparison",
        metavar="FOLDER",
        help="of the results (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    # Tables and pictures take a second to import: not for --help.
    from audit.report import comparison

    try:
        audits = comparison.read(arguments.folders)
        comparison.write(audits, arguments.out)
    except ValueError as error:
        return console.report_error(error)
    print(comparison.to_text(audits))
    print(f"\nresults in {arguments.out}, figure: {arguments.out}/figure.png")
    return 0


if __name__ == "__main__":
    sys.exit(console.run(main))
