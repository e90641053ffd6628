"""The command `python -m audit.reproduce NAME`."""

import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audit import checks, console
from audit.game.settings import find_preset
from studies.papers import REPRODUCTIONS
from studies.papers.result import Result


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.reproduce",
        description="Computes tables and figures of the papers and compares the printed numbers.",
        examples={
            "python -m audit.reproduce --list": "all names",
            "python -m audit.reproduce x-table4": "one of them",
            "python -m audit.reproduce all": "all that need no data, minutes",
        },
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a name of --list, or all (that need no data)"
    )
    parser.add_argument("--list", action="store_true", help="print every name and its subject")
    parser.add_argument(
        "--preset", metavar="FILE", help="TOML file with settings that differ from the paper's"
    )
    parser.add_argument(
        "--out",
        default="runs/reproductions",
        metavar="FOLDER",
        help="write results to FOLDER/NAME (default: %(default)s)",
    )
    parser.add_argument(
        "--data-root",
        metavar="FOLDER",
        help="folder of the data sets, to train (default: AUDIT_DATA_ROOT, else downloads)",
    )
    return parser


def _settings(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(checks.read_text(find_preset(path), 10**6))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"preset must be a readable TOML file, got {path!r}: {error}") from error


def _print_list() -> None:
    width = max(len(name) for name in REPRODUCTIONS)
    for name, reproduction in REPRODUCTIONS.items():
        line = f"{name:{width}}  {reproduction.title} ({reproduction.source})"
        print(console.wrap(line, " " * (width + 2)))


def _report(result: Result, folder: Path, seconds: float) -> None:
    if result.comparisons:
        width = max(len(row.quantity) for row in result.comparisons)
        print(f"  {'':{width}}  {'published':>10}  {'ours':>10}  {'difference':>10}")
        for row in result.comparisons:
            print(
                f"  {row.quantity:{width}}  {row.published:>10.5g}  {row.ours:>10.5g}"
                f"  {100.0 * row.difference:>+9.1f}%"
            )
    for line in result.lines:
        print(f"  {line}")
    print(console.wrap(f"  {folder}/table.csv, {folder}/figure.png ({seconds:.1f} s)", "  "))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code 0, or 2 after an error message of one line."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        _print_list()
        return 0
    try:
        if arguments.name is None:
            raise ValueError("name must be given (see --list), got none")
        chosen = checks.one_of("name", arguments.name, (*REPRODUCTIONS, "all"))
        if chosen == "all" and arguments.preset is not None:
            raise ValueError("preset needs the name of one reproduction, got all")
        settings = _settings(arguments.preset)
        without_data = [name for name, entry in REPRODUCTIONS.items() if not entry.reads_data]
        names = without_data if chosen == "all" else [chosen]
        for name in names:
            console.check_writable(Path(arguments.out) / name)
        for name in names:
            reproduction = REPRODUCTIONS[name]
            print(f"{name}: {reproduction.title} ({reproduction.source})", flush=True)
            if settings:
                print("  the settings differ from the paper's, to which printed numbers belong")
                if (times := reproduction.work(settings)) > 1.0:
                    print(f"  expect up to {times:.3g} times the duration of the paper's settings")
            start = time.perf_counter()
            root = {} if arguments.data_root is None else {"data_root": arguments.data_root}
            result = reproduction.run(settings | root if reproduction.reads_data else settings)
            folder = Path(arguments.out) / name
            result.write(folder)
            _report(result, folder, time.perf_counter() - start)
    except (FileNotFoundError, ValueError) as error:
        return console.report_error(error)
    except MemoryError as error:
        return console.report_error(f"settings must need less memory: {error}")
    except OSError as error:
        return console.report_error(f"out must be a writable folder: {error}")
    return 0
