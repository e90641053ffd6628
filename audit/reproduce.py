"""The command `python -m audit.reproduce`: runs `studies.papers`, which only a checkout has."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from audit import console

_ROOT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0, or 2 after one line that says what was wrong.
    """
    if not (_ROOT / "studies" / "papers").is_dir():
        return console.report_error(
            ValueError(
                "audit.reproduce must run in a checkout of the repository, which has the folder "
                f"studies/papers; the package is installed in {str(_ROOT)!r}"
            )
        )
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    command = importlib.import_module("studies.papers.command")
    code: int = command.main(argv)
    return code


if __name__ == "__main__":
    sys.exit(console.run(main))
