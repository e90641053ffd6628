"""The command that computes the cost of a finished tuning: `python -m audit.cost --help`."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from audit import accounting, console
from audit.commands.bounds_options import delta_note
from audit.errors import MissingExtra

_EXAMPLES = {
    "python -m audit.cost runs.csv --chosen grid --records 60000": "a fixed list",
    "python -m audit.cost sqlite:///study.db --study mine": "an Optuna study",
    "python -m audit.cost mlruns --columns s=noise_multiplier": "other names",
}

_OPTIONS: dict[str, dict[str, console.Option]] = {
    "how candidates were chosen": {
        "chosen": (
            str,
            "HOW",
            "grid (a list fixed beforehand), random, or sequential (TPE, Bayesian, by hand: any "
            "choice that uses results); default: what the runs show",
        ),
        "repetitions": (
            str,
            "SPEC",
            "random: the distribution from which the number of runs was drawn, such as tnb:0,0.02",
        ),
        "cap": (
            float,
            "E",
            "sequential: the epsilon that all runs together may spend, fixed in advance",
        ),
        "delta": (float, "D", "delta of the whole tuning (default 1e-5)"),
    },
    "what the runs are": {
        "columns": (
            str,
            "MAP",
            "columns with other names, such as sigma=noise_multiplier,bs=batch_size,q=ignore; "
            "id=run if several rows are one run",
        ),
        "records": (int, "N", "number of records, from which batch size and epochs give the rate"),
        "noise-multiplier": (float, "SIGMA", "of all runs, if no column has it"),
        "sampling-rate": (float, "TAU", "of all runs, if no column has it"),
        "batch-size": (int, "B", "of all runs, if no column has it"),
        "steps": (int, "N", "of all runs, if no column has it"),
        "epochs": (float, "E", "of all runs, if no column has it"),
        "base": (
            str,
            "SPEC",
            "the mechanism of every run: gaussian:MU, zcdp:RHO, pure:E, approximate:E,DELTA, ...",
        ),
        "study": (str, "NAME", "the study or experiment, in a storage of several"),
    },
    "output": {"json": (bool, "", "json instead of text")},
    console.RARE: {
        "target-epsilon": (float, "E", "of all runs, if no column has it"),
        "target-delta": (float, "D", "delta of the target epsilons, if no column has it"),
        "accountant": (
            str,
            "NAME",
            "accountant that computed the noise from target epsilons: prv, rdp or gdp",
        ),
        "drop-last": (bool, "", "the loader drops the last batch of an epoch if it is smaller"),
        "batches": (str, "HOW", "poisson (assumed by default) or shuffled"),
        "neighbours": (str, "NAME", "zero-out (default), add-remove or replace-one"),
        "group-size": (int, "K", "records of one person, protected together (default 1)"),
        "prior": (
            str,
            "FILE",
            "random: table of all candidates; column chance if not equally likely",
        ),
        "budgets": (
            str,
            "HOW",
            "sequential: number and budgets of runs were planned (fixed in advance) or adaptive",
        ),
    },
}
"""The options, in groups; see `console.Parser.add_options`."""


def make_parser() -> console.Parser:
    """The options of the command. Those not given are None or False."""
    parser = console.Parser(
        prog="python -m audit.cost",
        description="The privacy cost of a finished tuning. SOURCE is a table (csv, tsv, json, "
        "parquet), a folder of runs (MLflow, W&B, Ray Tune, Hydra, Keras Tuner) or the address of "
        "an Optuna storage.",
        examples=_EXAMPLES,
    )
    parser.add_imports()
    parser.add_argument(
        "source", nargs="+", metavar="SOURCE", help="the runs; several sources are one tuning"
    )
    parser.add_options(_OPTIONS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    arguments = make_parser().parse_args(argv)
    try:
        return _print_cost(arguments)
    except (ValueError, MissingExtra) as error:
        return console.report_error(error)


def _print_cost(arguments: argparse.Namespace) -> int:
    from audit.finished import cost_of_trials  # slow to import

    options: dict[str, Any] = {
        name: value
        for name, value in vars(arguments).items()
        if value is not None and name not in ("source", "json", "repetitions", "imports")
    }
    if arguments.base is not None:
        options["base"] = accounting.parse_mechanism(arguments.base)
    sources = arguments.source
    source = sources[0] if len(sources) == 1 else sources
    cost = cost_of_trials(source, protocol=arguments.repetitions, **options)
    notes = delta_note(cost.delta, arguments.records)
    if arguments.json:
        print(json.dumps(cost.as_dict() | {"notes": notes}, indent=2))
    else:
        wrapped = [console.wrap(f"note: {note}", "  ") for note in notes]
        print("\n".join([*cost.wrapped(console.columns()), *wrapped]))
    return console.OK
