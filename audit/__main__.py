"""The command `dp-tuning-audit`, also `python -m audit`: runs a subcommand or lists them."""

import importlib
import sys
from collections.abc import Callable, Sequence

from audit import checks, console

COMMANDS = {
    "bounds": "upper bounds: the cost of a tuning, or what a budget affords",
    "run": "lower bounds: attack a tuning, or your own training loop",
    "report": "write a finished audit as one self-contained html page",
    "compare": "compare finished audits in one figure and one table",
    "reproduce": "compute the tables and figures of the five papers",
    "verify": "check a certificate: numbers and conditions are recomputed",
    "coverage_study": "test the lower bounds on mechanisms with a known epsilon",
}
"""Each command and its purpose."""


def main_of(command: str) -> Callable[[Sequence[str]], int]:
    """The `main` function of a command's module, or of its package's `__main__`."""
    module = importlib.import_module(f"audit.{command}")
    if not hasattr(module, "main"):
        module = importlib.import_module(f"audit.{command}.__main__")
    found: Callable[[Sequence[str]], int] = module.main
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, or lists all commands.

    Args:
        argv: command-line arguments, without the program's name: a command and its options.

    Returns:
        The exit code of the command; 0 after the list.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-"):
        try:
            name = checks.one_of("command", arguments[0].replace("-", "_"), COMMANDS)
        except ValueError as error:
            return console.report_error(error)
        return main_of(name)(arguments[1:])
    width = max(map(len, COMMANDS))
    listed = [f"  {name:{width}}  {what}" for name, what in COMMANDS.items()]
    parser = console.Parser(
        prog="dp-tuning-audit",
        description="Audits of differentially private hyperparameter tuning.",
        notes="\n".join(
            [
                "commands, as `dp-tuning-audit NAME` or `python -m audit.NAME`:",
                *listed,
                "",
                "dp-tuning-audit NAME --help shows the options of a command",
            ]
        ),
    )
    parser.parse_args(arguments)
    parser.print_help()
    return 0


def program() -> int:
    """Runs the console script `dp-tuning-audit`."""
    return console.run(main)


if __name__ == "__main__":
    sys.exit(console.run(main))
