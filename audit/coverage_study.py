"""`python -m audit.coverage_study`: the coverage study in `studies/` of a source checkout."""

import sys
from collections.abc import Sequence
from pathlib import Path

from audit import console


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the study.

    Args:
        argv: command-line arguments; None for those of the process.

    Returns:
        The exit code of the study, or that of an error without a source checkout.
    """
    root = Path(__file__).parents[1]
    if not (root / "studies" / "coverage").is_dir():
        return console.report_error(
            "the coverage study is not part of the installed package: run it from a source checkout"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    from studies.coverage.command import main as run_study

    return run_study(argv)


if __name__ == "__main__":
    sys.exit(console.run(main))
