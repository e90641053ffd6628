"""The command line of an audit of one's own training: `python -m audit.run --train NAME`."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import threat_models
from audit import checks, console, lower_bounds
from audit.numerics import format_places
from audit.own_training.checking import MAX_RUNS, check
from audit.own_training.one_run import check_one_run
from audit.own_training.records import TrainingSet
from canaries import DiracCanary, crafted
from threat_models.user_code import call_user_code, import_by_name

_EXAMPLES = {
    "python -m audit.run --train mine.train --records mine.DATA": "games against your own loop",
    "python -m audit.run --train mine.train --one-run --canaries 1000": "one training alone",
}
_NOTES = "exit code: 0 no leak found, 1 an attack shows more than is claimed, 2 an error"


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.run --train",
        description="Audits your own training function: train(records, candidate, seed, watch).",
        examples=_EXAMPLES,
        notes=_NOTES,
    )
    add = parser.add_argument_group("what is audited").add_argument
    add("--train", required=True, metavar="NAME", help="dotted name of the function")
    add("--records", metavar="NAME", help="dotted name of (features, labels), or of what gives it")
    add("--claim", type=float, metavar="EPSILON", help="(default: what the function claims)")
    add("--delta", type=float, default=1e-5, metavar="D", help="(default: 1e-5)")
    add = parser.add_argument_group("how much is played").add_argument
    add("--trials", type=int, default=1000, metavar="N", help="games (default: 1000)")
    add("--one-run", action="store_true", help="train once, with many canaries")
    add("--canaries", type=int, default=1000, metavar="N", help="with --one-run (default: 1000)")
    add("--confidence", type=float, default=0.95, metavar="X", help="(default: 0.95)")
    add("--jobs", type=int, default=1, metavar="N", help="worker processes (default: 1)")
    add("--max-runs", type=float, default=MAX_RUNS, metavar="N", help="calls (default: 1e6)")
    add("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    add = parser.add_argument_group("what the adversary may do").add_argument
    add("--threat", default="NTCV", metavar="NAME", help="NTNV, NTCV (default) or ETCV")
    add(
        "--canary",
        default="",
        metavar="NAME",
        help="dirac, input, or a dotted name (default: crafted from the records)",
    )
    add(
        "--repetitions", default="fixed:1", metavar="SPEC", help="law of K, if the best is released"
    )
    add("--candidates", metavar="NAME", help="dotted name of a list of hyper-parameters")
    add = parser.add_argument_group("data sets, where there is no --records").add_argument
    add("--dataset", default="DIGITS", metavar="NAME", help="(default: DIGITS)")
    add("--data-root", metavar="FOLDER", help="in torchvision's layout")
    add("--train-size", type=int, default=500, metavar="N", help="records (default: 500)")
    add("--validation-size", type=int, default=500, metavar="N", help="for NTNV (default: 500)")
    add("--canary-index", type=int, default=0, metavar="I", help="of the input canary (default: 0)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    try:
        result = _audit(options)
    except (ValueError, OSError) as error:
        return console.report_error(error)
    for name, bound in result.bounds.items():
        print(f"{bound.epsilon:8.3f}  {name}")
    print(result)
    return result.exit_code


def _audit(options: argparse.Namespace) -> Any:
    train = import_by_name("train", options.train)
    records, validation, canary = _data(options)
    shared = {"claim": options.claim, "delta": options.delta, "confidence": options.confidence}
    if options.one_run:
        dirac = isinstance(canary, DiracCanary)
        return check_one_run(
            train, records, options.canaries, dirac=dirac, seed=options.seed, **shared
        )
    candidates = (None,)
    if options.candidates:
        given = _called("candidates", options.candidates)
        if not isinstance(given, Iterable):
            raise ValueError(f"candidates must name a list, got {type(given).__name__}")
        candidates = tuple(given)
    ceiling = lower_bounds.max_detectable_epsilon(
        options.trials // 2, options.trials // 2, options.delta, options.confidence
    )
    console.note(
        f"{options.trials:,} games can show at most epsilon = "
        f"{format_places(ceiling, up=True, places=2)}, and more of a Gaussian mechanism"
    )
    return check(
        train,
        records,
        canary,
        games=options.trials,
        repetitions=options.repetitions,
        candidates=candidates,
        validation=validation,
        seed=options.seed,
        jobs=options.jobs,
        max_runs=options.max_runs,
        **shared,
    )


def _data(options: argparse.Namespace) -> tuple[TrainingSet, TrainingSet | None, Any]:
    """The records, those to choose by in NTNV, and the canary; None has one crafted."""
    threat = checks.one_of("threat", options.threat, ("NTNV", "NTCV", "ETCV"))
    name = options.canary
    canary: Any = None
    if "." in name:
        canary = _called("canary", name)
    elif name:
        # Checks the names, and has the canary of the data set where it is a record.
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
        records = TrainingSet(records.features[:0], records.labels[:0])
    return records, validation, canary


def _loaded(options: argparse.Namespace, train: bool, size: int) -> Any:
    return threat_models.datasets.load(options.dataset, train, options.data_root, size)


def _called(parameter: str, name: str) -> Any:
    """What a name stands for: itself, or what it gives where it is a function."""
    given = import_by_name(parameter, name)
    return call_user_code(parameter, given) if callable(given) else given
