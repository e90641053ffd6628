"""The audit, end to end: `python -m audit.run --help`.

Plays the distinguishing game against the tuning protocol, turns the outcomes into lower bounds,
computes the upper bounds beside them, and draws the two together.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

# Two OpenMP threads of one process stall each other on a busy machine; set before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from audit import console
from audit.game.presets import preset_names, read_preset
from audit.game.settings import AuditConfig

if TYPE_CHECKING:
    from audit.report.results import Report


_LONG_SECONDS = 60.0
_GROUPS = {
    "what is attacked": ("threat", "canary", "score", "dataset", "model"),
    "one run": ("epsilon", "delta", "steps", "sampling_rate"),
    "how many, and how": ("repetitions", "protocol"),
    "what is tuned over": ("learning_rates", "max_grad_norm", "momentum"),
    "how much is played": ("trials", "repeats", "stop_at", "confidence", "seed"),
    "where": ("out", "jobs", "devices"),
}
_EXAMPLES = {
    "python -m audit.run --epsilon 1 --score worst-order": "the worst score there is",
    "python -m audit.run --canary input --dataset DIGITS": "a real record, real training",
    "python -m audit.run --preset etcv4": "a row of the paper's table 2",
    "python -m audit.run --train package.function": "your own training: add --help",
}
# More no number of games shows.
_MAX_EPSILON = 500.0


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.run",
        description="Audits the privacy of hyper-parameter tuning with DP-SGD.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--preset",
        nargs="+",
        default=[],
        metavar="NAME",
        help="presets, or TOML files of settings; options take precedence",
    )
    parser.add_argument("--list-presets", action=_ListPresets, help="list the installed presets")
    parser.add_argument(
        "--json", action="store_true", help="print everything as json instead of a table"
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


class _ListPresets(argparse.Action):
    """Prints the installed presets and ends the command."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        names = preset_names()
        width = max(map(len, names), default=0)
        for name, first in names.items():
            print(f"{name:{width}}  {first}")
        parser.exit()


def _add(group: Any, field: Any) -> None:
    """One setting as an option."""
    assert field.default is not MISSING
    several = isinstance(field.default, tuple)
    kind = type(field.default[0]) if several else type(field.default)
    given = field.default if several else (field.default,)
    values = " ".join(f"{value:g}" if kind is float else str(value) for value in given)
    default = f" (default: {values})" if values != "" else ""
    group.add_argument(
        "--" + field.name.replace("_", "-"),
        type=_number_or_text(kind),
        nargs="+" if several else None,
        default=argparse.SUPPRESS,
        metavar={int: "N", float: "X"}.get(kind, "NAME"),
        help=field.metadata["meaning"].replace("%", "%%") + default,
    )


def _number_or_text(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A value of a kind, or the text itself, which the settings then refuse by name."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


def parse(argv: Sequence[str] | None = None) -> list[AuditConfig]:
    """The audits that a command line asks for: one, or one per preset.

    Raises:
        ValueError: an unknown name or a value out of its range, or several audits that share a
            folder or cannot be compared.
    """
    options = vars(_parser().parse_args(argv))
    del options["json"]
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
        raise ValueError(f"out must be another folder for every preset, got {', '.join(folders)}")
    from audit.report import comparison

    comparison.check_comparable([config.identity for config in configs])
    return configs


def run(config: AuditConfig) -> "list[Report]":
    """Plays the audit (or what is missing of it) and writes its results.

    The folder `config.out` then holds config.json, the shards of trials, results.csv, summary.json,
    figure.png and scores.png (docs/results.md). Interrupted at any moment, the same call goes on
    from the finished shards and ends with the same results.

    Args:
        config: the audit.

    Returns:
        The report of every view that the runs serve; several write to folders below.

    Raises:
        ValueError: settings that do not fit each other, a folder that cannot be used, or runs that
            all diverged.
    """
    # Torch takes seconds to import: not for --help.
    from audit.game import audit_loop, binding, play, setup, store, workers

    # To plan and to report needs no GPU; who plays a block makes an engine on it.
    plan = replace(config, devices=("cpu",))
    first = setup.set_up(plan, 0)
    seconds = play.expected_seconds(config, first.engine.name)
    set_ups = [setup.set_up(plan, budget) for budget in _with_bar(range(len(config.epsilon)))]
    blocks = play.blocks(config, first.engine.name)
    bound_to = binding.binding(config, set_ups)
    is_finished = store.finished(config, blocks)
    if not is_finished:
        workers.check_devices(config)
    with store.locked(Path(config.out)):
        folder = store.RunFolder.open(config, bound_to)
        if not is_finished:
            _announce(config, seconds)
        games = audit_loop.play_audit(config, folder, blocks)
        # Tables and pictures take a second, too: not before the first game is played.
        from audit.report import pictures, provenance, summary, tables
        from audit.report.assemble import assemble

        made = provenance.made()
        reports = []
        for view, (of_view, trials) in enumerate(zip(config.views, games, strict=True)):
            report = assemble(of_view, set_ups, trials, view, made, _with_bar)
            # The folder was edited, or its file system has no locks.
            store.check_same(config, bound_to)
            results = Path(of_view.out)
            store.write_text(results / "results.csv", tables.to_csv(tables.to_table(report)))
            store.write_text(results / "summary.json", summary.to_json(report))
            pictures.draw(report, results / "figure.png")
            pictures.draw_scores(report, trials, results / "scores.png")
            reports.append(report)
    return reports


def _announce(config: AuditConfig, seconds: float) -> None:
    """Says what the games can show at best, and how long it may take where that is long."""
    from audit import lower_bounds
    from audit.game import play
    from audit.numerics import format_places

    games = config.trials * config.repeats
    analyses, largest = len(config.analysis_sizes), max(config.epsilon)
    can_show = lower_bounds.max_detectable_epsilon(
        games // 2, games // 2, config.delta, config.confidence, plan=analyses
    )
    most = format_places(can_show, up=True, places=2)
    words = f"{games:,} games a budget can give an eps_L to report of at most {most}"
    if can_show < largest <= _MAX_EPSILON:
        share = (1.0 - config.confidence) / analyses
        needed = lower_bounds.trials_needed(largest, config.delta, 1.0 - share)
        words += f"; eps_B = {largest:g} takes {2 * needed:,} or more"
    console.note(words)
    seconds = seconds / config.workers + play.expected_seconds_of_bounds(config)
    if config.device_kind == "cpu" and seconds > _LONG_SECONDS:
        console.note(
            f"about {config.expected_runs:,.0f} runs and the bounds of {len(config.epsilon)} "
            f"budgets, roughly {seconds / 3600:.2g} hours with jobs {config.workers}"
        )


def _with_bar(budgets: Sequence[int]) -> Iterator[int]:
    """The budgets, with a progress bar where they take long."""
    with console.progress(len(budgets), unit="budget", delay=3.0) as update:
        for budget in budgets:
            yield budget
            update(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0; 1 where --train found a leak; 2 after one clear line about what was wrong;
        128 plus the signal's number where it was stopped by one, 130 for a user's.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if any(argument.split("=")[0] == "--train" for argument in arguments):
        from audit.own_training import command

        return command.main(arguments)
    try:
        with _signals_as_exceptions():
            options = vars(_parser().parse_args(argv))
            as_json = options.pop("json")
            configs = _configs(options)
            # Notes on the way are no part of the json.
            with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
                found = _audited(configs, prints=not as_json)
        if as_json:
            _print_json(found)
    except (ValueError, OSError, RuntimeError) as error:
        return console.report_error(error)
    except _Stopped as stopped:
        return _stopped(stopped.number)
    except KeyboardInterrupt:
        return _stopped(signal.SIGINT)
    if len(configs) == 1:
        return 0
    from audit import compare

    folders = [config.out for config in configs]
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        return compare.main([*folders, "--out", str(Path(folders[0]).with_name("comparison"))])


def _audited(configs: Sequence[AuditConfig], *, prints: bool) -> "list[Report]":
    """Runs the audits in turn, and prints each unless told otherwise."""
    found = []
    for config in configs:
        reports = run(config)
        if prints:
            _print(config, reports)
        if prints and len(configs) > 1:
            print()
        found += reports
    return found


def _print_json(reports: "Sequence[Report]") -> None:
    """Prints summary.json, or a list of them where there are several reports."""
    from audit.report import summary

    texts = [summary.to_json(report).rstrip() for report in reports]
    print(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")


class _Stopped(KeyboardInterrupt):
    """A signal asked this process to end, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stopped(number: int) -> int:
    print("stopped; the same command goes on from the finished blocks", file=sys.stderr)
    return 128 + number


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP close workers and files on the way out, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped(number)

    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(config: AuditConfig, reports: "Sequence[Report]") -> None:
    from audit.report.text import to_text

    for view, report in zip(config.views, reports, strict=True):
        print(to_text(report))
        print(f"\nresults in {view.out}, figure: {view.out}/figure.png")
    if len(reports) > 1:
        print(f"\n{config.threat}, canary {config.canary}, share runs: results are correlated.")


if __name__ == "__main__":
    sys.exit(console.run(main))
