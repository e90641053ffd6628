"""What all commands share: one line about what was wrong, and the exit code that goes with it."""

import argparse
import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from audit import __version__, checks

OK, REFUSED, INTERRUPTED = 0, 2, 130


WIDTH = 100
"""Columns of a help text, where the terminal has so many; options then take a line each."""


class Parser(argparse.ArgumentParser):
    """A parser of options whose errors are one line, and whose help fits a screen.

    Args:
        prog: the command.
        description: what it does, in a line.
        examples: commands, and what each is for; they end the help.
        notes: what else must be said there.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Mapping[str, str] | None = None,
        notes: str = "",
    ) -> None:
        width = max(map(len, examples or [""]))
        shown = [f"  {command:{width}}  {what}" for command, what in (examples or {}).items()]
        epilog = "\n".join([*(["examples:"] if shown else []), *shown, *([notes] if notes else [])])
        super().__init__(
            prog=prog,
            usage=f"{prog} [options]",
            description=description,
            epilog=epilog,
            formatter_class=_layout,
            # An abbreviation may turn into another option when a new one is added.
            allow_abbrev=False,
        )
        version = f"dp-tuning-audit {__version__}"
        self.add_argument("--version", action="version", version=version, help="and exit")
        self._rare: argparse._ArgumentGroup | None = None
        self._everything = False

    def add_rare_group(self) -> argparse._ArgumentGroup:
        """Options that few change: only `--help-all` shows them."""
        self.add_argument("--help-all", action=_HelpAll, help="also what is rarely changed")
        self._rare = self.add_argument_group("rarely changed")
        return self._rare

    def format_help(self) -> str:
        """The help, without what is rarely changed unless all is asked for."""
        groups = self._action_groups
        if not self._everything:
            self._action_groups = [group for group in groups if group is not self._rare]
        try:
            return super().format_help()
        finally:
            self._action_groups = groups

    def print_everything(self) -> None:
        """Prints the whole help."""
        self._everything = True
        self.print_help()

    def error(self, message: str) -> NoReturn:
        """Ends the command, without its usage before the message."""
        report_error(f"{message} (see {self.prog} --help)")
        raise SystemExit(REFUSED)


class _HelpAll(argparse.Action):
    """Prints the whole help and ends the command."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser.print_everything()
        parser.exit()


def _layout(prog: str) -> argparse.HelpFormatter:
    columns = min(shutil.get_terminal_size().columns, WIDTH)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=columns)


_LONGEST = 1000  # characters of a message


def report_error(error: object) -> int:
    """Says in one line what was wrong.

    Returns:
        The exit code.

    Raises:
        BrokenPipeError: this came: who read the output has seen enough, which is no error.
    """
    if isinstance(error, BrokenPipeError):
        raise error
    # A mistyped option may contain the address of a database with its password.
    said = checks.printable(checks.without_password(" ".join(str(error).split())))
    if len(said) > _LONGEST:  # what was wrong is at its beginning, what to do about it at its end
        said = f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 2 :]}"
    print(f"error: {said}", file=sys.stderr)
    return REFUSED


# The extra that installs a module; all other modules belong to `game`.
_EXTRAS = {"distributed": "dask", "optuna": "optuna", "ray": "ray"}
_SECONDS_OF_SILENCE = 15.0


def note(words: str) -> None:
    """Says something on the way, where it is no part of an error.

    On a terminal beside the output; else before it, so that stderr holds nothing but what went
    wrong.
    """
    stream = sys.stderr if sys.stderr.isatty() else sys.stdout
    with contextlib.suppress(OSError):  # nobody reads: the work goes on
        print(words, file=stream, flush=True)


@contextlib.contextmanager
def progress(
    total: int, done: int = 0, unit: str = "trial", delay: float = 0.0
) -> Iterator[Callable[[int], object]]:
    """Shows how far something is: a bar that goes when it is done; without a terminal, notes.

    Args:
        total: how much there is to do.
        done: what was done before.
        unit: of what.
        delay: seconds until there is a bar.

    Yields:
        What is told how much more was done.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm  # only where it is seen

        with tqdm(
            total=total, initial=done, unit=unit, smoothing=0.05, delay=delay, leave=False
        ) as bar:
            yield bar.update
        return
    last = time.monotonic()

    def update(more: int) -> None:
        nonlocal done, last
        done += more
        if time.monotonic() - last > _SECONDS_OF_SILENCE:
            note(f"{done:,} of {total:,} {unit}s")
            last = time.monotonic()

    yield update


def run(main: Callable[[Sequence[str] | None], int]) -> int:
    """Runs a command as a program, also where its output is closed, full or no longer read.

    Args:
        main: the command; takes the arguments, or None for those of the process.

    Returns:
        The exit code.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the name of a folder may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            code = main(None)
        except SystemExit as ended:  # as --help and wrong options do
            code = ended.code if isinstance(ended.code, int) else OK
        try:
            sys.stdout.flush()
        except OSError:
            if code == OK:
                raise
            _discard_output()  # one line was said
    except BrokenPipeError:  # who reads the output, `head` say, has seen enough
        _discard_output()
        return OK
    except ModuleNotFoundError as error:  # where only what the library needs is installed
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "game")
        wanted = f'pip install "dp-tuning-audit[{extra}]" installs it'
        return report_error(f"{error.name} must be installed for this command: {wanted}")
    except OSError as error:
        _discard_output()
        return report_error(f"output must have somewhere to go: {error}")
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
