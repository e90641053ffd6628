"""`python -m audit.reproduce`: the papers' figures in `studies/` of a source checkout."""

import sys
from collections.abc import Sequence
from pathlib import Path

from audit import console


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments; None for those of the process.

    Returns:
        The exit code of the command, or that of an error without a source checkout.
    """
    root = Path(__file__).parents[1]
    if not (root / "studies" / "papers").is_dir():
        return console.report_error(
            "the papers' figures are not part of the installed package: run audit.reproduce from a "
            "source checkout"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    from studies.papers.command import main as run_command

    return run_command(argv)


if __name__ == "__main__":
    sys.exit(console.run(main))
