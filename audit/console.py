"""What all commands share: one line about what was wrong, and the exit code that goes with it."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from audit import __version__

OK, REFUSED, INTERRUPTED = 0, 2, 130


class Parser(argparse.ArgumentParser):
    """A parser of options whose errors are one line, and which says the version.

    Args:
        options: those of `argparse.ArgumentParser`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        version = f"dp-tuning-audit {__version__}"
        self.add_argument("--version", action="version", version=version)

    def error(self, message: str) -> NoReturn:
        """Ends the command, without its usage before the message."""
        refused(f"{message} (see {self.prog} --help)")
        raise SystemExit(REFUSED)


def refused(error: object) -> int:
    """Says in one line what was wrong.

    Returns:
        The exit code.
    """
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return REFUSED


def run(main: Callable[[Sequence[str] | None], int]) -> int:
    """Runs a command as a program, also where its output is closed, full or no longer read.

    Args:
        main: the command; takes the arguments, or None for those of the process.

    Returns:
        The exit code.
    """
    _open_closed_streams()
    try:
        try:
            code = main(None)
        except SystemExit as ended:  # as --help and wrong options do
            code = ended.code if isinstance(ended.code, int) else OK
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the output, `head` say, has seen enough
        _discard_output()
        return OK
    except ModuleNotFoundError as error:  # where only what the library needs is installed
        return refused(f"{error.name} must be installed for this: pip install . brings it")
    except OSError as error:
        _discard_output()
        return refused(f"output must have somewhere to go: {error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    return code


def _open_closed_streams() -> None:
    """Puts /dev/null where a stream was closed, before a file is opened in its place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _discard_output() -> None:
    """Sends what is still to be written nowhere; else Python complains at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
