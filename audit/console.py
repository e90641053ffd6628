"""Shared behaviour of the commands: options, errors, exit codes and progress."""

import argparse
import contextlib
import importlib.util
import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from audit import checks, interrupts, numbers_from_text, user_code
from audit.errors import MODULES_OF_AUDITS, PACKAGE_NAMES, MissingExtra, missing_extra
from audit.interrupts import INTERRUPTED
from audit.version import __version__


def _columns_of_errors() -> int:
    """The number of columns of error messages: those of the terminal; 80 without one."""
    return shutil.get_terminal_size(fallback=(80, 24)).columns


def _print_error(message: str) -> None:
    """Prints an error; what does not fit on the first line follows on indented lines."""
    width = max(_columns_of_errors(), len("error: ") + 1)
    lines = textwrap.wrap(
        f"error: {message}", width, subsequent_indent="  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    print("\n".join(lines), file=sys.stderr)


if not hasattr(sys.modules["audit"], "__version__"):
    # In an editable installation, Python may take a folder of that name for this package.
    _print_error(
        "the current folder must not contain a folder or file named 'audit', which hides this "
        "package: run the command from another folder, or as dp-tuning-audit"
    )
    raise SystemExit(2)

try:
    int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
except ValueError:  # numpy would raise it when it is imported
    value = checks.one_line(os.environ["SOURCE_DATE_EPOCH"])
    _print_error(f"SOURCE_DATE_EPOCH must be a whole number, got {value}")
    raise SystemExit(2) from None

# joblib and its workers read these variables, and would not name them in an error.
_START_METHODS = ("", "fork", "spawn", "forkserver", "loky", "loky_init_main")
if os.environ.get("JOBLIB_START_METHOD", "").strip() not in _START_METHODS:
    value = checks.one_line(os.environ["JOBLIB_START_METHOD"])
    allowed = ", ".join(_START_METHODS[1:])
    _print_error(f"JOBLIB_START_METHOD must be one of {allowed}, got {value}")
    raise SystemExit(2)
if not os.environ.get("LOKY_MAX_CPU_COUNT", "1").strip().isdecimal():
    value = checks.one_line(os.environ["LOKY_MAX_CPU_COUNT"])
    _print_error(f"LOKY_MAX_CPU_COUNT must be a whole number, got {value}")
    raise SystemExit(2)

OK, INVALID = 0, 2

WIDTH = 100
"""Largest number of columns of a text; with it, most options take one line."""


def columns() -> int:
    """The number of columns for text: those of the terminal, at most `WIDTH`; 80 without one."""
    return min(shutil.get_terminal_size(fallback=(80, 24)).columns, WIDTH)


RARE = "rarely changed"
"""Title of the group of options that only `--help-all` shows."""

MODULES = "python -m audit."
"""How help texts name commands; a parser replaces it where the program was started otherwise."""

HIDDEN = argparse.SUPPRESS
"""The meaning of an option that works but is not listed."""

Option = tuple[type, str | tuple[str, ...], str]
"""Type of an option's value (bool: a flag without one), its placeholders, and its meaning."""


def wrap(line: str, hanging: str = "") -> str:
    """A line for the terminal; what does not fit follows on lines with the same indentation.

    Args:
        line: the text; its indentation stays.
        hanging: further indentation of the following lines.
    """
    indent = line[: len(line) - len(line.lstrip())]
    if len(line) <= columns():
        return line
    return textwrap.fill(
        line.strip(), columns(), initial_indent=indent, subsequent_indent=indent + hanging,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def wrap_verdict(text: str) -> str:
    """A verdict for the terminal; what follows a number or a label is indented."""
    return "\n".join(
        wrap(line, "   " if re.match(r"\d+\. ", line) else "  ") for line in text.split("\n")
    )


def _fit(text: str) -> str:
    """A text for the terminal: lines that are too long are wrapped."""
    return "\n".join(map(wrap, text.split("\n")))


def _examples(examples: Mapping[str, str]) -> list[str]:
    """Commands and their meanings in two columns, or on two lines where the terminal is narrow."""
    width = max(map(len, examples), default=0)
    lines = []
    for command, meaning in examples.items():
        line = f"  {command:{width}}  {meaning}"
        if len(line) > columns():
            line = f"{wrap(f'  {command}', '    ')}\n{wrap(f'      {meaning}')}"
        lines.append(line)
    return lines


def _whole_number(text: str) -> int:
    """Parses a whole number as `audit.checks` does: 1e3 is allowed, and 1_0 is not."""
    try:
        return numbers_from_text.read_integer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, got {checks.one_line(text)}: {error}"
        ) from None


def _number(text: str) -> float:
    try:
        return numbers_from_text.read_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be a number, got {checks.one_line(text)}: {error}"
        ) from None


def _imports(text: str) -> str:
    try:
        return user_code.import_modules(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


READERS: Mapping[type, Callable[[str], Any]] = {int: _whole_number, float: _number}
"""Functions that read options of these types; they raise `argparse.ArgumentTypeError`."""


def command_as_typed() -> str:
    """The words before the name of a command, as in the command line of this program."""
    program = Path(sys.argv[0])
    if program.stem == "dp-tuning-audit":  # `.exe` on Windows
        return "dp-tuning-audit "
    return "python -m audit " if program == Path(__file__).with_name("__main__.py") else MODULES


def words_before_command() -> str:
    """The same before a command that has no module of its name in the package."""
    return command_as_typed().replace("audit.", "audit ")


class Parser(argparse.ArgumentParser):
    """A parser of options with short errors, and a short help that ends with examples."""

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Mapping[str, str] | None = None,
        notes: str = "",
    ) -> None:
        program = command_as_typed()
        prog = prog.replace(MODULES, program)
        examples = {
            example.replace(MODULES, program): explanation
            for example, explanation in (examples or {}).items()
        }
        shown = _examples(examples)
        epilog = "\n".join([*(["examples:"] if shown else []), *shown, *([notes] if notes else [])])
        super().__init__(
            prog=prog,
            usage=f"{prog} [options]",
            description=_fit(description),
            epilog=_fit(epilog),
            formatter_class=_layout,
            # A new option could change the meaning of an abbreviation.
            allow_abbrev=False,
        )
        for kind, read in READERS.items():
            self.register("type", kind, read)
        version = f"dp-tuning-audit {__version__}"
        self.add_argument(
            "--version", action="version", version=version, help="print the version and exit"
        )
        self._rare: argparse._ArgumentGroup | None = None

    def add_imports(self) -> None:
        """Adds the option that imports the user's own modules as soon as it is read."""
        self.add_argument("--imports", type=_imports, metavar="MODULES", help=user_code.IMPORTS)

    def add_rare_group(self) -> argparse._ArgumentGroup:
        """A group of options that only `--help-all` shows."""
        self.add_argument("--help-all", action=_HelpAll, help="show all options and exit")
        self._rare = self.add_argument_group(RARE)
        return self._rare

    def add_options(self, groups: Mapping[str, Mapping[str, Option]]) -> None:
        """Adds options by name, in groups by title."""
        for title, options in groups.items():
            group = self.add_rare_group() if title == RARE else self.add_argument_group(title)
            for name, (kind, metavar, meaning) in options.items():
                if kind is bool:
                    group.add_argument(f"--{name}", action="store_true", help=meaning)
                    continue
                value_count = len(metavar) if isinstance(metavar, tuple) else None
                group.add_argument(
                    f"--{name}", type=kind, nargs=value_count, metavar=metavar, help=meaning
                )

    def refuse_others(self, arguments: argparse.Namespace, name: str) -> None:
        """Ends the command with an error line if other arguments than option `name` were given."""
        other_options = [
            ("--" if action.option_strings else "") + action.dest.replace("_", "-")
            for action in self._actions
            if action.dest != name
            and getattr(arguments, action.dest, action.default) != action.default
        ]
        if other_options:
            self.error(
                f"--{name.replace('_', '-')} must be given alone, got {', '.join(other_options)}"
            )

    def format_help(self) -> str:
        """The help text without the rare options."""
        groups = self._action_groups
        self._action_groups = [group for group in groups if group is not self._rare]
        try:
            return super().format_help()
        finally:
            self._action_groups = groups

    def _print_message(self, message: str, file: Any = None) -> None:
        """Writes a message; argparse itself hides that a help text could not be written."""
        stream = sys.stderr if file is None else file
        if message and stream is not None:
            stream.write(message)
            stream.flush()

    def error(self, message: str) -> NoReturn:
        """Prints one error line and ends the command."""
        message = re.sub(r"^argument (\S+): (?=must )", r"\1 ", message)
        report_error(f"{message} (see {self.prog} --help)")
        raise SystemExit(INVALID)


class _HelpAll(argparse.Action):
    """Prints the help with all options and ends the command."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser._rare = None
        parser.print_help()
        parser.exit()


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=columns())


_MAX_CHARACTERS = 1000
"""Length of an error message."""


def report_error(error: object) -> int:
    """Prints an error, and returns the exit code; a closed output is no error."""
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, OSError) and str(error).startswith("[Errno"):
        # What reads or writes a file of the user names its option; this is what was printed.
        error = f"output must be writable: {error}"
    # A mistyped option can contain the address of a database with its password.
    message = checks.printable(checks.without_password(" ".join(str(error).split())))
    if len(message) > _MAX_CHARACTERS:  # Keeps the problem and, at the end, its solution.
        half = _MAX_CHARACTERS // 2
        message = f"{message[:half]} ... {message[-half:]}"
    with contextlib.suppress(OSError):  # The exit code is right even where no line can be written.
        _print_error(message)
    return INVALID


# The extras that install modules; all other modules belong to the extra `game`.
_EXTRAS = {
    "distributed": "dask",
    "optuna": "optuna",
    "panel": "app",
    "ray": "ray",
    "shtab": "completion",
}
_SECONDS_BETWEEN_NOTES = 15.0


def check_writable(folder: Path) -> None:
    """Raises ValueError, before the computation, if the option out names no writable folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a ValueError for null characters
        raise ValueError(
            f"out must be a writable folder, got {str(folder)!r}: {checks.reason_of(error)}"
        ) from error


def note(words: str) -> None:
    """Prints a remark that is not an error: to stdout unless stderr is a terminal."""
    stream = sys.stderr if sys.stderr.isatty() else sys.stdout
    with contextlib.suppress(OSError):  # The work continues if no one reads the output.
        print(words, file=stream, flush=True)


def duration(seconds: float) -> str:
    """A rough duration in words, from seconds to days."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{max(seconds, 1):.0f} seconds"


@contextlib.contextmanager
def progress(
    total: int, done: int = 0, unit: str = "trial", delay: float = 0.0
) -> Iterator[Callable[[int], object]]:
    """Shows progress: a bar on a terminal, after `delay` seconds, and lines otherwise.

    `done` of the `total` units are already done. Yields a function to call with the number of units
    that were just done.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm  # Imported only if a bar is visible.

        with tqdm(
            total=total, initial=done, unit=unit, smoothing=0.05, delay=delay, leave=False
        ) as bar:
            yield bar.update
        return
    begun = last_note = time.monotonic()
    done_before = done

    def update(more: int) -> None:
        nonlocal done, last_note
        done += more
        now = time.monotonic()
        if now - last_note > _SECONDS_BETWEEN_NOTES:
            left = (now - begun) / (done - done_before) * (total - done)
            note(f"{done:,} of {total:,} {unit}s, about {duration(left)} left")
            last_note = now

    yield update


def with_bar(items: Sequence[int], unit: str) -> Iterator[int]:
    """The items, with a progress bar if they take long."""
    with progress(len(items), unit=unit, delay=3.0) as update:
        for item in items:
            yield item
            update(1)


def run(main: Callable[[Sequence[str] | None], int]) -> int:
    """Runs a command as a program, and handles output that is closed, full or no longer read."""
    _open_closed_streams()
    # Commands write figures to files; a backend for windows or notebooks may not be installed.
    os.environ["MPLBACKEND"] = "agg"
    if isinstance(sys.stdout, io.TextIOWrapper):  # Names of folders may be invalid text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        interrupts.end_by_exception()
        try:
            code = main(None)
        except SystemExit as ended:  # Raised by --help and by invalid options.
            code = ended.code if isinstance(ended.code, int) else OK
        try:
            sys.stdout.flush()
        except OSError:
            if code == OK:
                raise
            _discard_output()  # An error line was already printed.
    except BrokenPipeError:  # The reader of the output, for example `head`, has ended.
        _discard_output()
        return OK
    except ModuleNotFoundError as error:  # An extra is not installed.
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "game")
        return report_error(_missing(str(error.name), extra))
    except MissingExtra as error:
        return report_error(error)
    except ImportError as error:
        return report_error(
            f"packages must be complete and fit into memory, but one cannot be loaded: {error}"
        )
    except MemoryError:
        return report_error("memory must suffice for this command, but it ran out")
    except OSError as error:
        _discard_output()
        return report_error(f"output must be writable: {checks.reason_of(error)}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    return code


def _missing(module: str, extra: str) -> MissingExtra:
    """The error about a module that an import did not find; it names the rest of its extra, too."""
    modules = MODULES_OF_AUDITS if extra == "game" else ()
    absent = {name for name in modules if importlib.util.find_spec(name) is None}
    return missing_extra(sorted(PACKAGE_NAMES.get(name, name) for name in absent | {module}), extra)


def study_command(study: str) -> Callable[[Sequence[str] | None], int]:
    """The command of a folder of `studies/`; it prints an error without a source checkout."""

    def main(argv: Sequence[str] | None = None) -> int:
        root = Path(__file__).parents[1]
        if not (root / "studies" / study).is_dir():
            return report_error(
                f"studies/{study} is not part of the installed package: run this command from a "
                "source checkout"
            )
        if str(root) not in sys.path:
            sys.path.append(str(root))
        code: int = importlib.import_module(f"studies.{study}.command").main(argv)
        return code

    return main


def _open_closed_streams() -> None:
    """Opens /dev/null for each closed stream, before another file takes its descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _discard_output() -> None:
    """Discards unwritten output, about which Python would complain at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
