"""The command `dp-tuning-audit`, also `python -m audit`: runs a subcommand or lists them."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from audit import interrupts

# This module is the script `dp-tuning-audit`, too.
if __name__ == "__main__" or Path(sys.argv[0]).stem == "dp-tuning-audit":
    interrupts.end_at_once()
    # Threads of one process stall each other on a busy machine. Set before numpy is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from audit import checks, console

COMMANDS = {
    "bounds": "upper bounds: the cost of a planned tuning",
    "solve": "the noise, the number of runs or the distribution of K that a budget allows",
    "protocols": "the costs of all protocols with as many runs",
    "cost": "the cost of a finished tuning, from the runs as a tracker recorded them",
    "run": "lower bounds: attack a tuning, or your own training loop",
    "check": "test an unmodified training script that uses Opacus",
    "report": "write a finished audit as one self-contained html page",
    "compare": "compare finished audits in one figure and one table",
    "app": "a calculator of the cost of a tuning, in the browser",
    "reproduce": "compute the papers' tables and figures",
    "verify": "check a certificate: recompute its numbers and conditions",
    "coverage_study": "test the lower bounds at a known epsilon",
}
"""Each command and its purpose."""
_OF_STUDIES = ("reproduce", "coverage_study")  # they run only in a source checkout


# Modules of these names would hide the function `audit.check` and the package `audit.protocols`.
_HOMES = {
    "check": "audit.commands.check_script",
    "protocols": "audit.commands.protocols",
    "solve": "audit.commands.solve",
}


def _module_of(command: str) -> ModuleType:
    """A command's module, or its package's `__main__`."""
    module = importlib.import_module(_HOMES.get(command, f"audit.{command}"))
    return (
        module
        if hasattr(module, "main")
        else importlib.import_module(f"{module.__name__}.__main__")
    )


def main_of(command: str) -> Callable[[Sequence[str]], int]:
    """The `main` function of a command."""
    with interrupts.loading():
        command_main: Callable[[Sequence[str]], int] = _module_of(command).main
    return command_main


class _PrintCompletion(argparse.Action):
    """Prints the script that completes commands and options in a shell, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        import shtab

        shell = checks.one_of("print-completion", given[1], shtab.SUPPORTED_SHELLS)
        program = argparse.ArgumentParser(prog="dp-tuning-audit")
        commands = program.add_subparsers()
        for name, purpose in COMMANDS.items():
            module = _module_of(name)
            # The studies of a source checkout have no options that an installation could list.
            parents = [module.make_parser()] if hasattr(module, "make_parser") else []
            commands.add_parser(name, parents=parents, add_help=not parents, help=purpose)
        print(shtab.complete(program, shell))
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command with its options, or lists all commands; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-"):
        try:
            name = checks.one_of("command", arguments[0].replace("-", "_"), COMMANDS)
        except ValueError as error:
            return console.report_error(error)
        return main_of(name)(arguments[1:])
    width = max(map(len, COMMANDS))
    in_checkout = (Path(__file__).parents[1] / "studies").is_dir()
    listed = [
        console.wrap(f"  {name:{width}}  {summary}", " " * (width + 2))
        for name, summary in COMMANDS.items()
        if in_checkout or name not in _OF_STUDIES
    ]
    started = console.command_as_typed().rstrip(" .")
    parser = console.Parser(
        prog=started,
        description="Audits of differentially private hyperparameter tuning.",
        notes="\n".join(
            [
                "commands, as `dp-tuning-audit NAME` or `python -m audit NAME`:",
                *listed,
                "",
                f"{started} NAME --help shows the options of a command",
            ]
        ),
    )
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        metavar="SHELL",
        help="print a script for shell completion (bash, zsh, fish or tcsh), and exit",
    )
    try:
        parser.parse_args(arguments)
    except ValueError as error:
        return console.report_error(error)
    parser.print_help()
    return 0


def program() -> int:
    """Runs the console script `dp-tuning-audit`."""
    return console.run(main)


if __name__ == "__main__":
    sys.exit(console.run(main))
