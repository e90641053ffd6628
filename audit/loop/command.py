"""The command line of an audit of your own training function: `python -m audit.run --train NAME`.

The audit runs in a separate process. If that process raises an exception, calls os._exit or is
killed because memory ran out, the command prints one line and exits with code 2. It is never
mistaken for a leak, whose exit code is 1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import threat_models
from audit import checks, console
from audit.errors import InvalidInput
from audit.loop.checking import MAX_RUNS, RELATIONS, check
from audit.loop.one_run import check_one_run
from audit.loop.result import CheckResult
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.work import CPU_SECONDS
from audit.processes import end_with_parent
from audit.user_code import call_user_code, format_error, import_by_name
from canaries import DiracCanary, crafted

_EXAMPLES = {
    "python -m audit.run --train mine.train --records mine.DATA": "test of your own loop",
    "python -m audit.run --train mine.train --one-run --canaries 1000": "one training alone",
}
_OF_TRIALS = (
    *("trials", "cpu_seconds", "no_premises", "no_attack", "jobs", "max_runs"),
    *("relation", "repetitions", "candidates", "canary_index", "validation_size"),
)
"""The options of several trainings."""
_NOTES = "exit code: 0 nothing found, 1 a broken premise or a proven leak, 2 not testable"


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.run --train",
        description="Audits your own training function: train(records, candidate, seed, watch).",
        examples=_EXAMPLES,
        notes=_NOTES,
    )
    _add_function(parser.add_argument_group("function and claim").add_argument)
    _add_size(parser.add_argument_group("size of the audit").add_argument)
    _add_threat_model(parser.add_argument_group("threat model").add_argument)
    _add_data_set(parser.add_argument_group("data set, used without --records").add_argument)
    return parser


def _add_function(add: Callable[..., Any]) -> None:
    add("--train", required=True, metavar="NAME", help="dotted name of the function")
    add(
        "--records",
        metavar="NAME",
        help="dotted name of (features, labels), or of a function of it",
    )
    add(
        "--loss",
        metavar="NAME",
        help="dotted name of loss(model, features, labels), summed (default: cross-entropy)",
    )
    add("--claim", type=float, metavar="EPSILON", help="(default: the function's own claim)")
    add("--delta", type=float, default=1e-5, metavar="D", help="(default: 1e-5)")


def _add_size(add: Callable[..., Any]) -> None:
    add(
        "--trials",
        type=int,
        metavar="N",
        help="trials of the attack (default: at most 1,000)",
    )
    add(
        "--cpu-seconds",
        type=float,
        default=CPU_SECONDS,
        metavar="S",
        help=f"CPU time after which there is no verdict (default: {CPU_SECONDS:g})",
    )
    add("--no-premises", action="store_true", help="attack only, without the differential test")
    add("--no-attack", action="store_true", help="differential test only")
    add(
        "--one-run",
        action="store_true",
        help="train once, with many canaries: crafted, or --canary dirac",
    )
    add(
        "--canaries",
        type=int,
        default=1000,
        metavar="N",
        help="canaries of --one-run (default: 1000)",
    )
    add("--confidence", type=float, default=0.95, metavar="X", help="(default: 0.95)")
    add("--jobs", type=int, metavar="N", help="worker processes (default: one per idle core)")
    add("--all", action="store_true", help="also print all causes, fixes and statistics")
    add("--json", action="store_true", help="print the result as JSON")
    add(
        "--max-runs", type=float, default=MAX_RUNS, metavar="N", help="limit on runs (default: 1e6)"
    )
    add("--seed", type=int, default=0, metavar="N", help="(default: 0)")


def _add_threat_model(add: Callable[..., Any]) -> None:
    add(
        "--relation",
        metavar="NAME",
        help=f"{', '.join(RELATIONS)} (default: zero-out for loops by Opacus, else add-remove)",
    )
    add(
        "--threat",
        default="NTCV",
        metavar="NAME",
        help="NTNV (not with --one-run), NTCV (default) or ETCV",
    )
    add(
        "--canary",
        default="",
        metavar="NAME",
        help="dirac, input, or a dotted name (default: crafted from the records)",
    )
    add(
        "--repetitions",
        default="fixed:1",
        metavar="SPEC",
        help="distribution of K, if the best of K runs is released",
    )
    add("--candidates", metavar="NAME", help="dotted name of a list of hyperparameters")


def _add_data_set(add: Callable[..., Any]) -> None:
    add("--dataset", default="DIGITS", metavar="NAME", help="(default: DIGITS)")
    add("--data-root", metavar="FOLDER", help="in torchvision's layout")
    add("--train-size", type=int, default=500, metavar="N", help="records (default: 500)")
    add("--validation-size", type=int, default=500, metavar="N", help="for NTNV (default: 500)")
    add(
        "--canary-index",
        type=int,
        default=0,
        metavar="I",
        help="index of the input canary (default: 0)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):  # also where --train has no name yet
        arguments = ["--help"]
    _check_used(_parser(), arguments)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        # Stopping the audit stops its workers, about which joblib would warn.
        "PYTHONWARNINGS": f"{os.environ.get('PYTHONWARNINGS', '')},ignore:resource_tracker",
    }
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "audit.loop.command",
                str(answer),
                str(os.getpid()),
                *arguments,
            ],
            env=environment,
            check=False,
        ).returncode
        if not answer.exists():
            how = f"exit code {ended}"
            if ended < 0:
                how = f"signal {signal.Signals(-ended).name}"
                if -ended == signal.SIGKILL:
                    how += ", perhaps because memory ran out"
            return console.report_error(f"train must return, but its process ended ({how})")
        content = json.loads(answer.read_text())
    if content["error"]:
        return console.report_error(content["error"])
    print(content["words"])
    return int(content["exit_code"])


def _check_used(parser: console.Parser, arguments: Sequence[str]) -> None:
    """Ends the command with an error line if it would ignore an option."""
    options = parser.parse_args(arguments)
    ignored = _OF_TRIALS if options.one_run else ("canaries",)
    ignored_options = [
        name for name in ignored if getattr(options, name) != parser.get_default(name)
    ]
    if ignored_options:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in ignored_options)
        kind = "without" if not options.one_run else "with"
        parser.error(f"{named} must not be given {kind} --one-run, which would ignore it")
    if options.one_run:
        for name, used in (("threat", ("NTCV", "ETCV")), ("canary", ("dirac", ""))):
            value = getattr(options, name)
            if value.casefold() not in map(str.casefold, used):
                parser.error(
                    f"--{name} must be {used[0]} or {used[1] or 'left out'} with --one-run, got "
                    f"{checks.one_line(value)}"
                )


def _answer(path: str, arguments: Sequence[str]) -> None:
    """Audits, and writes the answer to a file."""
    error, words, exit_code = "", "", console.INVALID
    try:
        options = _parser().parse_args(arguments)
        result = _audit(options)
        words = (
            result.to_json() if options.json else console.wrap_verdict(_verdict(result, options))
        )
        exit_code = result.exit_code
    except KeyboardInterrupt:
        raise
    except BaseException as failed:  # of the user's code or ours, MemoryError too
        is_of_user = isinstance(failed, ValueError | OSError)
        error = " ".join(str(failed).split()) if is_of_user else format_error(failed)
    temporary = Path(f"{path}.part")
    temporary.write_text(json.dumps({"error": error, "words": words, "exit_code": exit_code}))
    temporary.replace(path)


def _verdict(result: CheckResult, options: argparse.Namespace) -> str:
    """The verdict; with --all, the lower bound of every statistic follows it."""
    if not options.all:
        return result.short
    bounds = [f"{bound.epsilon:8.3f}  {name}" for name, bound in result.bounds.items()]
    return "\n".join([str(result), *(["lower bounds by statistic:"] if bounds else []), *bounds])


def _audit(options: argparse.Namespace) -> Any:
    train = import_by_name("train", options.train)
    loss = import_by_name("loss", options.loss) if options.loss else None
    records, validation, canary = _data(options)
    shared = {
        "claim": options.claim,
        "delta": options.delta,
        "confidence": options.confidence,
        "loss": loss,
    }
    if options.one_run:
        dirac = isinstance(canary, DiracCanary)
        return check_one_run(
            train, records, options.canaries, dirac=dirac, seed=options.seed, **shared
        )
    candidates = (None,)
    if options.candidates:
        listed = _called("candidates", options.candidates)
        if not isinstance(listed, Iterable):
            raise InvalidInput(f"candidates must name a list, got {type(listed).__name__}")
        candidates = tuple(listed)
    return check(
        train,
        records,
        canary,
        trials=options.trials,
        relation=options.relation,
        premises=not options.no_premises,
        attack=not options.no_attack,
        cpu_seconds=options.cpu_seconds,
        repetitions=options.repetitions,
        candidates=candidates,
        validation=validation,
        seed=options.seed,
        jobs=options.jobs,
        max_runs=options.max_runs,
        **shared,
    )


def _data(options: argparse.Namespace) -> tuple[TrainingSet, TrainingSet | None, Any]:
    """The records, the validation records of NTNV, and the canary; None crafts one."""
    threat = checks.one_of("threat", options.threat, ("NTNV", "NTCV", "ETCV"))
    name = options.canary
    canary: Any = None
    if "." in name:
        canary = _called("canary", name)
    elif name:
        # Checks the names, and builds an input canary from the data set.
        canary = threat_models.build(
            options.threat,
            name,
            dataset=options.dataset,
            data_root=options.data_root,
            canary_index=options.canary_index,
            train_size=1,
            validation_size=1,
        ).canary
    if options.records:
        records = TrainingSet.of(_called("records", options.records))
    else:
        records = TrainingSet.of(_loaded(options, True, options.train_size))
    validation = None
    if threat == "NTNV":
        validation = TrainingSet.of(_loaded(options, False, options.validation_size))
    elif threat == "ETCV":
        if canary is None:
            canary = crafted(records.features, records.labels)
        records = records.first_records(0)
    return records, validation, canary


def _loaded(options: argparse.Namespace, train: bool, size: int) -> Any:
    return threat_models.datasets.load(options.dataset, train, options.data_root, size)


def _called(parameter: str, name: str) -> Any:
    """The object that a dotted name refers to, or its result if it is a function."""
    called = import_by_name(parameter, name)
    return call_user_code(parameter, called) if callable(called) else called


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    try:
        _answer(sys.argv[1], sys.argv[3:])
    except KeyboardInterrupt:  # Ctrl-C reaches both processes, and the other one reports it
        sys.exit(128 + signal.SIGINT)
