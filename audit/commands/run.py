"""The command that runs an audit: `python -m audit.run --help`.

It plays the distinguishing game against a tuning protocol, computes lower bounds from the trials
and upper bounds from theory, and writes tables and figures of both.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

# Two OpenMP threads of one process stall each other on a busy machine. Set before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from audit import console, interrupts
from audit.errors import MODULES_OF_AUDITS, AuditError, InvalidInput, require_modules
from audit.game.settings import AuditConfig, preset_names, read_preset

if TYPE_CHECKING:
    from audit.report.results import Report

_GROUPS = {
    "the attack": ("threat", "canary", "score", "dataset", "model"),
    "one run": ("epsilon", "delta", "steps", "sampling_rate"),
    "how the best run is chosen": ("protocol", "repetitions"),
    "the candidates": ("learning_rates", "max_grad_norm", "momentum"),
    "size of the audit": ("trials", "repeats", "stop_at", "confidence", "seed"),
    "output and machine": ("out", "jobs", "devices"),
}
_EXAMPLES = {
    "python -m audit.run --epsilon 1 --score worst-order": "the worst possible score",
    "python -m audit.run --canary input --dataset DIGITS": "a real record, real training",
    "python -m audit.run --preset etcv4": "a row of the paper's table 2",
    "python -m audit.run --train package.function": "your own training (add --help)",
}


def make_parser() -> console.Parser:
    """The options of the command."""
    parser = console.Parser(
        prog="python -m audit.run",
        description="Audits the privacy of hyperparameter tuning with DP-SGD.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--preset",
        nargs="+",
        default=[],
        metavar="NAME",
        help="presets, or TOML files of settings; options take precedence",
    )
    parser.add_argument("--list-presets", action="store_true", help="list the installed presets")
    parser.add_argument(
        "--json", action="store_true", help="print everything as json instead of a table"
    )
    parser.add_argument(
        "--all", action="store_true", help="print every bound with its conditions, not the answer"
    )
    settings = {field.name: field for field in fields(AuditConfig)}
    named = [name for names in _GROUPS.values() for name in names]
    for title, names in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add(group, settings[name])
    rare = parser.add_rare_group()
    for name, setting in settings.items():
        if name not in named:
            _add(rare, setting)
    return parser


def _add(group: Any, field: Any) -> None:
    is_tuple = isinstance(field.default, tuple)
    kind = type(field.default[0]) if is_tuple else type(field.default)
    defaults = field.default if is_tuple else (field.default,)
    values = " ".join(f"{value:g}" if kind is float else str(value) for value in defaults)
    default = f" (default: {values})" if values != "" and field.name != "protocol" else ""
    group.add_argument(
        "--" + field.name.replace("_", "-"),
        type=_number_or_text(kind),
        nargs="+" if is_tuple else None,
        default=argparse.SUPPRESS,
        metavar={int: "N", float: "X"}.get(kind, "NAME"),
        # `--repetitions tnb:0,0.1` means `--protocol tnb:0,0.1`.
        help=console.HIDDEN
        if field.name == "repetitions"
        else field.metadata["meaning"].replace("%", "%%") + default,
    )


def _number_or_text(kind: type) -> Callable[[str], Any]:
    """A parser that returns invalid text unchanged, so that the settings report it by name."""

    def read(text: str) -> Any:
        try:
            return console.READERS.get(kind, kind)(text)
        except argparse.ArgumentTypeError:
            return text

    return read


def parse(argv: Sequence[str] | None = None) -> list[AuditConfig]:
    """The audits of a command line: one, or one per preset."""
    options = vars(make_parser().parse_args(argv))
    del options["json"], options["all"], options["list_presets"]
    return _configs(options)


def _configs(options: dict[str, Any]) -> list[AuditConfig]:
    presets = options.pop("preset")
    if len(presets) <= 1:
        values = read_preset(presets[0]) if presets else {}
        return [AuditConfig.from_mapping({**values, **options})]
    configs = []
    for preset in presets:
        below = {"out": str(Path(options["out"], Path(preset).stem))} if "out" in options else {}
        configs.append(AuditConfig.from_mapping({**read_preset(preset), **options, **below}))
    folders = [config.out for config in configs]
    if len(set(folders)) < len(folders):
        raise InvalidInput(
            f"out must be a different folder for every preset, got {', '.join(folders)}"
        )
    from audit.report import comparison

    comparison.check_comparable(configs)
    return configs


def run(config: AuditConfig) -> "list[Report]":
    """Plays an audit, or resumes it, and returns one report per view (threat model and canary).

    The folder `config.out` then holds config.json, the shards of trials, results.csv, summary.json,
    figure.png and scores.png (docs/audit_a_tuning.md). Each of several views has a subfolder. After
    an interruption, the same call resumes from the finished shards and gives the same results.

    Raises:
        InvalidInput: settings that do not fit each other, an unusable folder, or runs that all
            diverged.
    """
    _require_packages(config.place.backend)
    # Importing torch takes seconds, which --help need not wait for.
    with interrupts.loading():
        from audit.game import binding, play, setup, store, workers

    workload, place, evaluation = config.workload, config.place, config.evaluation
    one_audit = setup.set_up(config, 0)
    seconds = play.expected_seconds(workload, one_audit.seconds_of_run)
    set_ups = setup.set_up_all(config, partial(console.with_bar, unit="budget"))
    all_blocks = play.all_blocks(workload, one_audit.engine.name)
    bound_to = binding.binding(config.plug_ins, set_ups)
    folder = store.RunFolder(place.out, config.identity, bound_to, config.view_names)
    is_finished = folder.is_finished(all_blocks)
    if not is_finished:
        workers.check_devices(place)
    with store.locked(folder.path):
        folder.open()
        if not is_finished:
            for line in play.outlook(workload, evaluation, max(config.epsilon), seconds):
                console.note(line)
        play_blocks = partial(workers.play_all, place, partial(play.play, config), folder)
        trials = play.play_audit(all_blocks, play_blocks, evaluation)
        # Importing tables and figures takes another second, so it waits for the trials.
        from audit.report.assemble import write_reports

        return write_reports(config.views, set_ups, folder, trials)


def _require_packages(backend: str) -> None:
    """Raises one error that names all packages of an audit that are not installed."""
    cluster = {"dask": "distributed", "ray": "ray"}.get(backend)
    if cluster is None:
        require_modules("game", *MODULES_OF_AUDITS)
    else:
        require_modules(f"game,{backend}", *MODULES_OF_AUDITS, cluster)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    The exit code is 0; 1 if --train found a leak; 2 after a line about invalid input; or 128 plus
    the number of the signal that stopped the command (130 for Ctrl-C).
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    trains = any(argument.split("=")[0] == "--train" for argument in arguments)
    try:
        with _signals_as_exceptions():
            if trains:
                from audit.loop import command

                return command.main(arguments)
            parser = make_parser()
            parsed = parser.parse_args(arguments)
            if parsed.list_presets:
                parser.refuse_others(parsed, "list_presets")
                names = preset_names()
                width = max(map(len, names), default=0)
                print("\n".join(f"{name:{width}}  {meaning}" for name, meaning in names.items()))
                return console.OK
            return _run_all(vars(parsed))
    except (AuditError, ValueError, OSError, RuntimeError) as error:
        return console.report_error(error)
    except _Stopped as stopped:
        return _stopped(stopped.number, resumes=not trains)
    except KeyboardInterrupt:
        return _stopped(signal.SIGINT, resumes=not trains)


def _run_all(options: dict[str, Any]) -> int:
    del options["list_presets"]
    as_json, show_all = options.pop("json"), options.pop("all")
    configs, reports, code = _configs(options), [], console.OK
    # With --json, only the json goes to stdout.
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        for config in configs:
            new_reports = run(config)
            reports += new_reports
            if not as_json:
                _print(config, new_reports, show_all)
                if len(configs) > 1:
                    print()
        if len(configs) > 1:
            from audit.commands import compare

            folders = [config.out for config in configs]
            out = Path(folders[0]).with_name("comparison")
            code = compare.main([*folders, "--out", str(out)])
    if as_json:
        from audit.report import results

        texts = [results.to_json(report).rstrip() for report in reports]
        print(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
    return code


class _Stopped(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stopped(number: int, *, resumes: bool) -> int:
    again = "; run the same command again to resume" if resumes else ""
    print(f"stopped{again}", file=sys.stderr)
    return 128 + number


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into exceptions, so that workers and files are closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped(number)

    before = {}
    with contextlib.suppress(ValueError):  # Only the main thread can set handlers.
        numbers = [signal.SIGTERM]
        if hasattr(signal, "SIGHUP"):  # Windows has none.
            numbers.append(signal.SIGHUP)
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(config: AuditConfig, reports: "Sequence[Report]", show_all: bool) -> None:
    from audit.report.text import to_text

    for view, report in zip(config.views, reports, strict=True):
        print(to_text(report, show_all))
        print(f"\n{console.wrap(f'results in {view.out}, figure: {view.out}/figure.png', '  ')}")
    if len(reports) > 1:
        shared = f"{config.threat}, canary {config.canary}: shared runs, so results are correlated."
        print(f"\n{console.wrap(shared)}")
