"""The command that computes the cost of a tuning: `python -m audit.bounds --help`.

It prints every bound on the epsilon of a tuning protocol, or finds the noise, the number of runs or
the distribution of K that keep the whole tuning within a budget. It needs only numpy and scipy.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from audit import accounting, checks, console, protocols, upper_bounds
from audit.accounting import Composition, DpSgd, Mechanism
from audit.claims import Claim, Kind
from audit.commands import cost
from audit.commands.bounds_answer import Answer
from audit.commands.bounds_options import (
    base_of,
    checked_options,
    delta_note,
    make_parser,
    rounded_distribution,
)
from audit.errors import InvalidInput, require_modules
from audit.numerics import format_exact
from audit.protocols import Protocol, RandomSearch
from audit.upper_bounds import Bound, TunedMechanism, UpperBound, inverse
from audit.upper_bounds.costs import MAX_COMPARED, statement_of_tuning
from audit.upper_bounds.registry import answered

_MAX_TUNINGS = 10**6


def _bound_named(name: str | None, protocol: Protocol) -> Bound | None:
    """The upper bound of that name; None for the default."""
    usable = {
        entry.name: entry.function
        for entry in upper_bounds.entries(type(protocol))
        if entry.claim.kind is Kind.BOUND
    }
    return None if name is None else usable[checks.one_of("bound", name, usable)]


def _total(base: Mechanism, protocol: Protocol, arguments: argparse.Namespace) -> list[UpperBound]:
    """The composed region bound of several tunings, or of a tuning and a final run."""
    times = checks.integer("tunings", arguments.tunings, 1, _MAX_TUNINGS)
    if times == 1 and not arguments.final_run:
        return []
    repetitions = protocol.search_repetitions
    if repetitions is None:
        raise InvalidInput(
            f"tunings and final-run must come with protocol search, got {protocol.spec}: add the "
            "epsilons and the deltas of its releases"
        )
    tuned: Mechanism = TunedMechanism(base, repetitions)
    mechanisms: tuple[Mechanism, ...] = (tuned,) * times
    if arguments.final_run:
        mechanisms += (base,)
    then = ", then one run of the base" if arguments.final_run else ""
    claim = Claim(
        Kind.BOUND,
        "region bound, composed by privacy loss distributions",
        (RandomSearch,),
        about=(f"tuned {times} time(s){then}",),
        is_upper=True,
    )

    def composed() -> UpperBound:
        return UpperBound("total", Composition(mechanisms).epsilon(arguments.delta), claim)

    return [answered("total", claim, composed)]


def _ends_of_search(
    base: Mechanism, protocol: Protocol, solved: str | None, max_runs: float
) -> list[str]:
    """A note if the search stopped at its limit although the budget allows more."""
    if solved == "noise" and isinstance(base, DpSgd) and base.sampling_rate < 1.0:
        if base.noise_multiplier <= inverse.MIN_NOISE * (1.0 + 1e-6):
            return [f"the search for less noise stopped at {inverse.MIN_NOISE:g}"]
        return []
    repetitions = protocol.search_repetitions
    if solved is None or repetitions is None:
        return []
    mean = f"{repetitions.mean:.4g}"
    if solved == "distribution" and repetitions.mean >= max_runs * (1.0 - 1e-5):
        return [
            f"the search stopped at {mean} runs on average: the budget allows more (--max-runs)"
        ]
    if solved == "runs" and repetitions.mean >= inverse.most_runs(repetitions) * (1.0 - 1e-5):
        return [f"the search for more runs stopped at {mean}: the budget allows more"]
    return []


def _as_cost_command(argv: Sequence[str]) -> list[str] | None:
    """The arguments of `audit.cost` for a finished tuning, which this command passes on."""
    words = list(argv)
    for option, count in (("--trials", 1), ("--optuna", 2)):
        if option in words:
            place = words.index(option)
            source = words[place + 1 : place + 1 + count]
            further_words = words[:place] + words[place + 1 + count :]
            study = ["--study", source[1]] if len(source) == 2 else []
            return [*source[:1], *study, *further_words]
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    finished = _as_cost_command(sys.argv[1:] if argv is None else argv)
    if finished is not None:
        return cost.main(finished)
    arguments = make_parser().parse_args(argv)
    try:
        return print_checked(arguments)
    except ValueError as error:
        return console.report_error(error)


def print_checked(arguments: argparse.Namespace) -> int:
    """Checks the options and prints the bounds of a tuning, or the solution for a budget."""
    checked_options(arguments)
    arguments.delta = delta = checks.interval("delta", arguments.delta, 0.0, 1.0)
    protocol = protocols.parse_protocol(arguments.protocol, arguments.repetitions)
    checks.one_of("accounting", arguments.accounting, accounting.ACCOUNTINGS)
    if arguments.plot is not None:
        require_modules("game", "matplotlib", "seaborn", "tqdm")
        from audit.report.cost import check_writable, draw_cost  # slow to import

        check_writable(arguments.plot)
    bound = _bound_named(arguments.bound, protocol)
    base, notes = base_of(arguments, protocol, bound)
    affordable: list[upper_bounds.AffordableRepetitions] = []
    if arguments.solve != "noise":
        protocol, affordable = _affordable(base, protocol, bound, arguments)
    if arguments.compare is not None:
        checks.interval(
            "compare", arguments.compare, *MAX_COMPARED, closed_low=True, closed_high=True
        )
    solved = arguments.solve if arguments.target_epsilon is not None else None
    notes += delta_note(delta, arguments.records)
    notes += _ends_of_search(base, protocol, solved, arguments.max_runs)
    report = upper_bounds.report_mechanism(base, delta, arguments.accounting)
    rows = [*report.bounds, *upper_bounds.costs_of(base, protocol, delta).rows]
    total = _total(base, protocol, arguments)
    recommended = upper_bounds.smallest(total or rows)
    if recommended is None and arguments.epsilon_base is not None:
        failing = delta if arguments.delta_base is None else arguments.delta_base
        raise InvalidInput(
            "epsilon-base states only that one run is (epsilon, delta-base)-DP, so delta-base "
            f"must be far below delta = {format_exact(delta)}, because each run may fail, got "
            f"{format_exact(failing)}; better give --noise-multiplier, --sampling-rate and "
            "--steps, or --gaussian-epsilon for full batches"
        )
    rows += total
    compared: list[upper_bounds.ComparedProtocol] = []
    if arguments.compare is not None:
        compared = upper_bounds.compare_protocols(base, arguments.compare, delta)
    statement = None
    if recommended is not None and not total:
        statement = statement_of_tuning(recommended.epsilon, delta, base, protocol)
    solution = ""
    if solved == "noise" and isinstance(base, DpSgd):
        solution = f"noise multiplier = {base.noise_multiplier!r}"
    elif solved is not None and protocol.mean_runs is not None:
        solution = f"distribution of K = {protocol.spec}, {protocol.mean_runs:.4g} runs on average"
    answer = Answer(
        report, protocol, delta, rows, recommended, notes, compared, affordable, solution, statement
    )
    if arguments.json:
        print(json.dumps(answer.as_dict(), indent=2))
    else:
        print("\n".join(answer.lines(console.columns(), arguments.all)))
    if arguments.plot is not None:
        # A plot takes up to a minute; with --json, only the json is printed.
        bar: dict[str, Any] = {}
        if not arguments.json:
            bar["progress"] = partial(console.with_bar, unit="point")
        draw_cost(base, protocol, delta, arguments.plot, **bar)
    return console.OK


def _affordable(
    base: Mechanism, protocol: Protocol, bound: Bound | None, arguments: argparse.Namespace
) -> tuple[Protocol, list[upper_bounds.AffordableRepetitions]]:
    """The random search that keeps the budget, and with `--solve distribution` all that keep it."""
    repetitions = protocol.search_repetitions
    if repetitions is None:
        raise InvalidInput(
            f"solve {arguments.solve} must come with protocol search, got {protocol}"
        )
    budget: dict[str, Any] = {
        "target_epsilon": arguments.target_epsilon,
        "target_delta": arguments.delta,
        "bound": bound,
    }
    if arguments.solve == "runs":
        affordable = upper_bounds.calibrate_runs(base, repetitions, **budget)
        return RandomSearch(rounded_distribution(affordable)), []
    plans = [
        replace(plan, repetitions=rounded_distribution(plan.repetitions))
        for plan in upper_bounds.best_repetitions(base, max_runs=arguments.max_runs, **budget)
    ]
    return RandomSearch(rounded_distribution(plans[0].repetitions)), plans
