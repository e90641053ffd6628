"""The commands there are: `python -m audit`."""

import importlib
import sys
from collections.abc import Callable, Sequence

from audit import console

COMMANDS = {
    "bounds": "what does this tuning cost, or what does a budget afford?",
    "run": "play the game against a tuning: lower bounds beside upper bounds",
    "report": "a finished audit as one html page that stands alone",
    "compare": "finished audits side by side, in one picture and one table",
    "reproduce": "tables and figures of the five papers, ours beside the published",
    "verify": "is a certificate correct? numbers and conditions are recomputed",
    "coverage_study": "do the lower bounds hold? games whose epsilon is known exactly",
}
"""What each command answers; `python -m audit.NAME --help` has its options."""


def main_of(command: str) -> Callable[[Sequence[str]], int]:
    """What a command runs: the `main` of its module, or of its package's `__main__`."""
    module = importlib.import_module(f"audit.{command}")
    if not hasattr(module, "main"):
        module = importlib.import_module(f"audit.{command}.__main__")
    found: Callable[[Sequence[str]], int] = module.main
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Lists the commands.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code, 0.
    """
    width = max(map(len, COMMANDS))
    listed = [f"  python -m audit.{name:{width}}  {what}" for name, what in COMMANDS.items()]
    parser = console.Parser(
        prog="python -m audit",
        description="Audits of differentially private hyper-parameter tuning.",
        notes="\n".join(["commands:", *listed, "", "python -m audit.NAME --help: its options"]),
    )
    parser.parse_args(argv)
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(console.run(main))
