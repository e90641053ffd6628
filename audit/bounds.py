"""The command that computes the cost of a tuning: `python -m audit.bounds --help`.

It prints every bound on the epsilon of a tuning protocol, or finds the noise, the number of runs or
the distribution of K that keep the whole tuning within a budget. It needs only numpy and scipy.
"""

import argparse
import contextlib
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence, Set
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from typing import Any

from audit import accounting, checks, console, protocols, repetitions, upper_bounds
from audit.accounting import ApproximateDp, Composition, DpSgd, GaussianMechanism, Mechanism
from audit.claims import Claim, Kind
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol, RandomSearch
from audit.repetitions import Repetitions
from audit.upper_bounds import Bound, TunedMechanism, UpperBound, inverse
from audit.upper_bounds.comparison import MAX_COMPARED
from audit.upper_bounds.registry import answered

_SOLVES = ("noise", "runs", "distribution")
_MAX_TUNINGS = 10**6
_MANY_TRIALS = 1000


def bound_named(name: str | None, protocol: Protocol) -> Bound | None:
    """The upper bound of that name; None for the default.

    Raises:
        InvalidInput: the protocol has no upper bound of that name.
    """
    usable = {
        entry.name: entry.function
        for entry in upper_bounds.entries(type(protocol))
        if entry.claim.kind is Kind.BOUND
    }
    if name is None:
        return None
    name = checks.one_of("bound", name, usable)
    return None if name == "region" and isinstance(protocol, RandomSearch) else usable[name]


_EXAMPLES = {
    "python -m audit.bounds --noise-multiplier 1 --sampling-rate 0.01 --steps 500": "a random K",
    "python -m audit.bounds --mu 0.25 --protocol grid:20 --compare 20": "a grid",
    "python -m audit.bounds --target-epsilon 3 --sampling-rate 0.01 --steps 500": "solve for noise",
    "python -m audit.bounds --trials runs.csv --chosen grid": "a finished tuning",
}


def make_parser() -> console.Parser:
    """The options of the command. A missing option is None or False; `_checked` adds defaults."""
    parser = console.Parser(
        prog="python -m audit.bounds",
        description="Bounds on the privacy cost of releasing the best of K runs.",
        examples=_EXAMPLES,
    )
    parser.add_options(_OPTIONS)
    return parser


_OPTIONS: dict[str, dict[str, console.Option]] = {
    "one run: DP-SGD, or another mechanism": {
        "noise-multiplier": (float, "SIGMA", "as in Opacus"),
        "sampling-rate": (float, "TAU", "of Poisson sampling (default: 1)"),
        "steps": (int, "N", "iterations of one run"),
        "batch-size": (int, "B", "expected; with --records, for the rate"),
        "records": (int, "N", "of the data set; also checks delta"),
        "epochs": (float, "E", "instead of --steps, rounded up"),
        "mu": (float, "MU", "Gaussian DP, such as full batches"),
        "gaussian-epsilon": (float, "E", "epsilon of a Gaussian mechanism: full batches only"),
        "base": (
            str,
            "SPEC",
            "laplace:SCALE, response:E,OPTIONS, pure:E, approximate:E,DELTA, zcdp:RHO, "
            "renyi:FILE or profile:FILE (csv of two columns)",
        ),
    },
    "how the best run was chosen": {
        "protocol": (
            str,
            "SPEC",
            "search (default), best:M, pareto:M, grid:N[,CHANCE], adaptive:LOW,HIGH, "
            "subset:RATE[,all], until:CHANCE, stopping:CHANCE, schedule:FACTOR,..., "
            "noisy-max:N[,ROUNDS][,monotone], ptr:E,D,FAILURE",
        ),
        "repetitions": (
            str,
            "SPEC",
            "distribution of K: tnb:ETA,GAMMA, geometric:GAMMA, poisson:MU, binomial:N,P, "
            f"two-point:S,L, fixed:K (default {protocols.DEFAULT_REPETITIONS})",
        ),
        "delta": (float, "D", "of the whole (default 1e-5)"),
    },
    "what a budget allows": {
        "target-epsilon": (float, "E", "budget of the whole tuning"),
        "solve": (
            str,
            "WHAT",
            "noise (default; with --steps), runs (the largest number) or distribution (of K, with "
            "the best quantile)",
        ),
    },
    "a finished tuning, instead of --protocol and one run": {
        "trials": (str, "FILE", "csv: noise_multiplier, sampling_rate and steps, or mu, or rho"),
        "optuna": (str, ("STORAGE", "NAME"), "an Optuna study"),
        "chosen": (
            str,
            "HOW",
            "grid, random or sequential (any choice that uses earlier results)",
        ),
        "cap": (
            float,
            "E",
            "sequential: the epsilon that all trials may spend, fixed in advance",
        ),
    },
    "output": {
        "compare": (float, "RUNS", "also compare all protocols at this mean number of runs"),
        "plot": (str, "FILE", "plot epsilon over runs by protocol"),
        "json": (bool, "", "json instead of a table"),
    },
    console.RARE: {
        "neighbours": (
            str,
            "NAME",
            "add-remove (default), zero-out (the number of records is public; default with "
            "--batch-size) or replace-one",
        ),
        "group-size": (int, "K", "records of one person, protected together (default 1)"),
        "epsilon-base": (
            float,
            "E",
            "if only this is known: one run is (E, D)-DP, with --delta-base D",
        ),
        "delta-base": (float, "D", "far below --delta (default: --delta)"),
        "bound": (
            str,
            "NAME",
            "bound to solve with, a row of the table (default: region, or the smallest)",
        ),
        "prior": (
            str,
            "FILE",
            "csv as for --trials, of all candidates; column chance if not equally likely",
        ),
        "budgets": (
            str,
            "HOW",
            "sequential: number and budgets of trials were planned (fixed in advance) or adaptive",
        ),
        "accounting": (
            str,
            "NAME",
            "accounting of eps_B: rdp, as in the papers (default), or exact",
        ),
        "tunings": (int, "N", "number of tunings"),
        "final-run": (bool, "", "a final run is released as well"),
    },
}
"""The options, in groups; see `console.Parser.add_options`."""

_DEFAULTS = {
    "protocol": "search",
    "delta": 1e-5,
    "solve": "noise",
    "sampling_rate": 1.0,
    "neighbours": "add-remove",
    "group_size": 1,
    "accounting": "rdp",
    "tunings": 1,
}
_SAMPLING = frozenset({"sampling_rate", "steps", "batch_size", "records", "epochs"})
_BASES = frozenset({"noise_multiplier", "mu", "gaussian_epsilon", "epsilon_base", "base"})
_PROTECTED = frozenset({"neighbours", "group_size"})
_ONE_RUN = _SAMPLING | _BASES | _PROTECTED | {"delta_base", "accounting"}
_REPORT = frozenset({"protocol", "repetitions", "delta", "compare", "plot", "json", "accounting"})
_DONE = frozenset(
    {"chosen", "prior", "cap", "budgets", "repetitions", "delta", "neighbours", "json"}
)
_SOLVED = _REPORT | {"target_epsilon", "solve", "bound"}
_APPLY = {
    "--trials": _DONE | {"trials", "records", "group_size"},
    "--optuna": _DONE | _ONE_RUN | {"optuna"},
    "--target-epsilon": _SOLVED | _SAMPLING | _PROTECTED,
    "--solve runs": _SOLVED | _ONE_RUN,
    "--solve distribution": (_SOLVED | _ONE_RUN) - {"repetitions"},
    "one run": _REPORT | _ONE_RUN | {"tunings", "final_run"},
}
"""The options that apply to each question; all others are refused."""
_APPLY_TO_BASE = {
    "noise_multiplier": _SAMPLING | _PROTECTED,
    "mu": {"steps", "records"},
    "gaussian_epsilon": {"steps", "records"},
    "epsilon_base": {"delta_base", "records"},
    "base": {"records"},
}
"""The options of one run that apply to each way of describing it."""
_RATE_NEEDS = {
    "add-remove": ", but add-remove neighbours need a rate that does not (or zero-out neighbours)",
    "zero-out": " (public with zero-out neighbours)",
    "replace-one": " (public with replace-one neighbours)",
}
"""What a sampling rate of batch / records requires, by neighbouring relation."""


def _options(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _refuse_rest(given: Set[str], allowed: Set[str], to: str) -> None:
    """Refuses options that would be ignored."""
    rest = given - allowed
    if rest:
        verb = "does not apply" if len(rest) == 1 else "do not apply"
        apply = _options(allowed & _ONE_RUN if to in map(_option, _BASES) else allowed)
        raise InvalidInput(f"{_options(rest)} {verb} to {to}, to which these do: {apply}")


def _option(name: str) -> str:
    return _options((name,))


def _checked(arguments: argparse.Namespace) -> str:
    """Refuses options that would be ignored, and adds defaults; returns a key of `_APPLY`."""
    given = {
        name for name, value in vars(arguments).items() if not (value is None or value is False)
    }
    if {"trials", "optuna"} <= given:
        raise InvalidInput("trials and optuna must not be given together, got both")
    if "solve" in given:
        if arguments.solve == "law":  # its name in version 2
            arguments.solve = "distribution"
        arguments.solve = checks.one_of("solve", arguments.solve, _SOLVES)
    if "neighbours" in given:
        arguments.neighbours = checks.one_of(
            "neighbours", arguments.neighbours, accounting.NEIGHBOURS
        )
    asked = "one run"
    if given & {"trials", "optuna"}:
        asked = "--trials" if "trials" in given else "--optuna"
    elif "target_epsilon" in given:
        solved = arguments.solve in ("runs", "distribution")
        asked = f"--solve {arguments.solve}" if solved else "--target-epsilon"
    elif "solve" in given:
        raise InvalidInput(f"target-epsilon must be given with --solve {arguments.solve}, got none")
    elif "bound" in given:
        raise InvalidInput("target-epsilon must be given with --bound, got none")
    elif given & {"chosen", "prior", "cap", "budgets"}:
        wrong = _options(given & {"chosen", "prior", "cap", "budgets"})
        raise InvalidInput(f"{wrong} must be given with --trials or --optuna, got neither")
    ways = given & _BASES
    if asked == "--target-epsilon" and ways:
        raise InvalidInput(
            f"{_options(ways)} must not be given with --target-epsilon, which solves for the noise "
            "(or add --solve runs or --solve distribution)"
        )
    _refuse_rest(given, _APPLY[asked], asked)
    if asked in ("one run", "--solve runs", "--solve distribution") and len(ways) != 1:
        # Most users know the noise multiplier of their runs, so it comes first.
        raise InvalidInput(
            f"exactly one of --noise-multiplier (with --steps and --sampling-rate), "
            f"{_options(_BASES - {'noise_multiplier'})} or --target-epsilon must be given, got "
            f"{_options(ways) or 'none'}"
        )
    if len(ways) > 1:
        raise InvalidInput(f"at most one of {_options(_BASES)} must be given, got {_options(ways)}")
    if ways:
        (way,) = ways
        general = {"accounting"} | ({"neighbours"} if asked == "--optuna" else set())
        allowed = _APPLY_TO_BASE[way] | general
        _refuse_rest(given & (_ONE_RUN - _BASES), allowed, _option(way))
    elif asked == "--optuna":
        _refuse_rest(given & (_ONE_RUN - _BASES), {"neighbours", "records"}, "--optuna alone")
    if arguments.batch_size is not None and arguments.neighbours is None:
        arguments.neighbours = "zero-out"  # a rate of batch / records depends on n
    for name, value in _DEFAULTS.items():
        if getattr(arguments, name) is None and name != "sampling_rate":
            setattr(arguments, name, value)
    return asked


def _sampling(arguments: argparse.Namespace) -> tuple[float, int, list[str]]:
    """The sampling rate, the number of steps, and a note of how they were computed."""
    notes = []
    rate, steps, records = arguments.sampling_rate, arguments.steps, arguments.records
    size, epochs = arguments.batch_size, arguments.epochs
    exact_rate = Fraction(1)
    if size is not None:
        if rate is not None or records is None:
            raise InvalidInput(
                "batch-size must be given with records and without sampling-rate, got "
                + ("sampling-rate too" if rate is not None else "no records")
            )
        records = checks.integer("records", records, 1)
        exact_rate = Fraction(checks.integer("batch-size", size, 1, records), records)
        rate = float(exact_rate)
        notes.append(
            f"sampling rate {format_rounded(rate, up=True)} = {size} / {records}, which depends on "
            f"the number of records{_RATE_NEEDS[arguments.neighbours]}"
        )
    elif rate is not None:
        rate = checks.interval("sampling_rate", rate, 0.0, 1.0, closed_high=True)
        exact_rate = Fraction(repr(rate))
    if epochs is not None:
        if steps is not None:
            raise InvalidInput("steps and epochs must not be given together, got both")
        epochs = checks.interval("epochs", epochs, 0.0, 1e9)
        steps = math.ceil(Fraction(repr(epochs)) / exact_rate)
        notes.append(f"{steps} steps = {epochs:g} epochs / sampling rate, rounded up")
    if steps is None:
        given = "target-epsilon" if arguments.noise_multiplier is None else "noise-multiplier"
        raise InvalidInput(f"steps (or epochs) must be given with --{given}, got none")
    computed = [f"computed: {'; '.join(notes)}"] if notes else []
    return (1.0 if rate is None else rate), steps, computed


def _delta_note(arguments: argparse.Namespace) -> list[str]:
    """A warning if delta is so large that it allows the release of a record."""
    if arguments.records is None:
        return []
    records = checks.integer("records", arguments.records, 1)
    if arguments.delta <= 1.0 / records:
        return []
    return [
        f"delta = {format_exact(arguments.delta)} exceeds 1 / records = "
        f"{format_rounded(1.0 / records, up=False, digits=3)}: publishing one record at random "
        "would be allowed; choose a smaller --delta"
    ]


def _base_of(
    arguments: argparse.Namespace, protocol: Protocol, bound: Bound | None
) -> tuple[Mechanism, list[str]]:
    """The mechanism of one run, and notes of what was computed."""
    if arguments.target_epsilon is None or arguments.solve != "noise":
        return _one_run(arguments)
    rate, steps, notes = _sampling(arguments)
    noise = upper_bounds.calibrate_noise(
        protocol,
        target_epsilon=arguments.target_epsilon,
        target_delta=arguments.delta,
        steps=steps,
        sampling_rate=rate,
        neighbours=arguments.neighbours,
        bound=bound,
        group_size=arguments.group_size,
    )
    # The bounds are those of the printed number, so that it keeps the budget when typed again.
    noise = float(format_rounded(noise, up=True, digits=7))
    return DpSgd(noise, steps, rate, arguments.neighbours, arguments.group_size), notes


def _one_run(arguments: argparse.Namespace) -> tuple[Mechanism, list[str]]:
    """The mechanism of one run as the options describe it, and notes of what was computed."""
    if arguments.noise_multiplier is not None:
        rate, steps, notes = _sampling(arguments)
        noise, group_size = arguments.noise_multiplier, arguments.group_size
        return DpSgd(noise, steps, rate, arguments.neighbours, group_size), notes
    if arguments.base is not None:
        return accounting.parse_mechanism(arguments.base), []
    if arguments.epsilon_base is not None:
        epsilon = checks.interval("epsilon-base", arguments.epsilon_base, 0.0)
        delta = arguments.delta if arguments.delta_base is None else arguments.delta_base
        delta = checks.interval("delta-base", delta, 0.0, 1.0, closed_low=True)
        return ApproximateDp(epsilon, delta), []
    mu = arguments.mu
    if mu is None:
        epsilon = checks.interval("gaussian-epsilon", arguments.gaussian_epsilon, 0.0)
        mu = accounting.calibrate_mu(epsilon, arguments.delta, arguments.accounting)
    if arguments.steps is not None:
        return DpSgd(
            accounting.full_batch_noise_multiplier(mu, arguments.steps), arguments.steps
        ), []
    return GaussianMechanism(mu), []


def _rounded_distribution(distribution: Repetitions) -> Repetitions:
    """A distribution of K rounded to seven digits, with at most the given mean number of runs."""
    long = re.compile(r"\d+\.\d{7,}(?:e-?\d+)?|\d\.\d{6,}e-?\d+")
    found: list[Repetitions] = []
    for sides in itertools.product((True, False), repeat=len(long.findall(distribution.spec))):
        way = iter(sides)
        spec = long.sub(
            lambda one, way=way: format_rounded(float(one.group()), next(way), 7),  # type: ignore[misc]
            distribution.spec,
        )
        with contextlib.suppress(ValueError):  # rounded out of its range
            found.append(repetitions.parse_repetitions(spec))
    return max(
        (one for one in found if one.mean <= distribution.mean),
        key=lambda one: one.mean,
        default=distribution,
    )


def _total(base: Mechanism, protocol: Protocol, arguments: argparse.Namespace) -> list[UpperBound]:
    """The composed region bound of several tunings, or of a tuning and a final run."""
    times = checks.integer("tunings", arguments.tunings, 1, _MAX_TUNINGS)
    if times == 1 and not arguments.final_run:
        return []
    if not isinstance(protocol, RandomSearch):
        raise InvalidInput(
            f"tunings and final-run must come with protocol search, got {protocol.spec}"
        )
    tuned: Mechanism = TunedMechanism(base, protocol.repetitions)
    parts: tuple[Mechanism, ...] = (tuned,) * times
    if arguments.final_run:
        parts += (base,)
    then = ", then one run of the base" if arguments.final_run else ""
    claim = Claim(
        Kind.BOUND,
        "region bound, composed by privacy loss distributions",
        (RandomSearch,),
        about=(f"tuned {times} time(s){then}",),
        is_upper=True,
    )

    def composed() -> UpperBound:
        return UpperBound("total", Composition(parts).epsilon(arguments.delta), claim)

    return [answered("total", claim, composed)]


def _print_table(
    base: upper_bounds.BaseReport, protocol: Protocol, delta: float, rows: list[UpperBound]
) -> None:
    name = "repetitions" if isinstance(protocol, RandomSearch) else "protocol"
    runs = "" if protocol.mean_runs is None else f" ({protocol.mean_runs:.4g} runs on average)"
    print(f"{name} {protocol.spec}{runs}, delta = {format_exact(delta)}")
    mu = "" if base.mu is None else f"mu = {format_rounded(base.mu, up=True, digits=6)}; "
    print(f"holds for: {protocol.assumption}")
    print(f"base: {mu}{base.description}")
    print()
    width = max(len(row.name) for row in rows)
    print(f"{'bound':{width}}  {'epsilon':>9}  assumptions")
    for row in rows:
        if not row.applies:
            continue
        way = "down" if row.attained else "up"
        rounded = (
            f" (rounded {way} by < {format_rounded(row.error, up=True, digits=1)})"
            if row.error > 0
            else ""
        )
        epsilon = format_rounded(row.epsilon, up=not row.attained)
        print(f"{row.name:{width}}  {epsilon:>9}  {row.claim.words_without_protocol}{rounded}")
        print(f"{'':{width}}  {'':>9}    {row.source}")
    silent = [row for row in rows if not row.applies]
    for row in silent:
        print(f"{row.name:{width}}  {'-':>9}  {row.assumes}")


def _print_comparison(compared: list[upper_bounds.ComparedProtocol], runs: float | None) -> None:
    if not compared:
        return
    print(f"\n{runs:g} runs on average, by protocol:")
    width = max(len(one.title) for one in compared)
    for one in compared:
        epsilon = "-" if one.epsilon is None else format_rounded(one.epsilon, up=True)
        quantile = ""
        if one.expected_quantile is not None:
            quantile = f"  expected quantile of the best {one.expected_quantile:.4f}"
        print(f"{one.title:{width}}  {epsilon:>9}  {one.bound}{quantile}")


def _ends_of_search(base: Mechanism, protocol: Protocol, solved: str | None) -> list[str]:
    """A note if the search stopped at its limit, so that the budget allows more."""
    if solved == "noise" and isinstance(base, DpSgd) and base.sampling_rate < 1.0:
        if base.noise_multiplier <= inverse.MIN_NOISE * (1.0 + 1e-6):
            return [f"the search for less noise stopped at {inverse.MIN_NOISE:g}"]
    elif solved in ("runs", "distribution") and isinstance(protocol, RandomSearch):
        distribution = protocol.repetitions
        if distribution.mean >= inverse.most_runs(distribution) * (1.0 - 1e-5):
            mean = f"{distribution.mean:.4g}"
            return [f"the search for more runs stopped at {mean}: the budget allows more"]
    return []


def _distribution_as_json(protocol: Protocol) -> dict[str, object]:
    """The distribution of K and the expected quantile of the best run, for random search."""
    if not isinstance(protocol, RandomSearch):
        return {}
    distribution = protocol.repetitions
    return {"repetitions": distribution.spec, "expected_quantile": distribution.expected_quantile()}


def _tuning_done(arguments: argparse.Namespace) -> int:
    """Prints the cost of a finished tuning."""
    # Slow to import, and used only here.
    from audit.tuning.cost_of_trials import cost_of_trials, read_prior, read_trials

    delta, neighbours, group_size = arguments.delta, arguments.neighbours, arguments.group_size
    notes = _delta_note(arguments)
    if arguments.trials is not None and arguments.chosen is None:
        raise InvalidInput("chosen must be given with --trials: grid, random or sequential")
    prior = None
    if arguments.prior is not None:
        prior = read_prior(arguments.prior, neighbours, group_size)
    options: dict[str, Any] = {
        "delta": delta,
        "protocol": arguments.repetitions,
        "prior": prior,
        "cap": arguments.cap,
        "budgets": arguments.budgets,
    }
    if arguments.trials is not None:
        trials = read_trials(arguments.trials, neighbours, group_size)
        if not arguments.json and len(different := set(trials)) > _MANY_TRIALS:
            console.note(f"{len(different):,} different trials, whose cost takes up to a minute")
        found = cost_of_trials(trials, arguments.chosen, **options)
    else:
        from audit.integrations.optuna import cost_of_study

        base = None
        if any(getattr(arguments, name) is not None for name in _BASES):
            base, computed = _one_run(arguments)
            notes = computed + notes
        found = cost_of_study(
            *arguments.optuna,
            chosen=arguments.chosen,
            base=base,
            neighbours=neighbours,
            **options,
        )
    if arguments.json:
        print(json.dumps(asdict(found) | {"notes": notes}, indent=2))
    else:
        print("\n".join([*found.lines, *(f"note: {note}" for note in notes)]))
    return console.OK


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 2 after a line about invalid input."""
    arguments = make_parser().parse_args(argv)
    try:
        asked = _checked(arguments)
        arguments.delta = checks.interval("delta", arguments.delta, 0.0, 1.0)
        answer = _tuning_done if asked in ("--trials", "--optuna") else _bounds_of_tuning
        return answer(arguments)
    except ValueError as error:
        return console.report_error(error)


def _bounds_of_tuning(arguments: argparse.Namespace) -> int:
    """Prints the bounds of a protocol and a base, or what a budget allows."""
    delta = arguments.delta
    protocol = protocols.parse_protocol(arguments.protocol, arguments.repetitions)
    checks.one_of("accounting", arguments.accounting, accounting.ACCOUNTINGS)
    if arguments.plot is not None:
        from audit.report.cost import check_writable, draw_cost  # slow to import

        check_writable(arguments.plot)
    bound = bound_named(arguments.bound, protocol)
    base, notes = _base_of(arguments, protocol, bound)
    affordable: list[upper_bounds.AffordableRepetitions] = []
    if arguments.solve != "noise":
        protocol, affordable = _affordable(base, protocol, bound, arguments)
    if arguments.compare is not None:
        checks.interval(
            "compare", arguments.compare, *MAX_COMPARED, closed_low=True, closed_high=True
        )
    solved = arguments.solve if arguments.target_epsilon is not None else None
    notes += [*_delta_note(arguments), *_ends_of_search(base, protocol, solved)]
    report = upper_bounds.report_mechanism(base, delta, arguments.accounting)
    rows = [*report.bounds, *upper_bounds.all_upper_bounds(base, protocol, delta)]
    total = _total(base, protocol, arguments)
    recommended = upper_bounds.smallest(total or rows)
    if recommended is None and arguments.epsilon_base is not None:
        failing = delta if arguments.delta_base is None else arguments.delta_base
        raise InvalidInput(
            "epsilon-base says only that one run is (epsilon, delta-base)-DP, so delta-base "
            f"must be far below delta = {format_exact(delta)}, because each run may fail, got "
            f"{format_exact(failing)}; better give --noise-multiplier, --sampling-rate and "
            "--steps, or --gaussian-epsilon for full batches"
        )
    rows += total
    compared = (
        []
        if arguments.compare is None
        else upper_bounds.compare_protocols(base, arguments.compare, delta)
    )
    if arguments.json:
        answer = {
            "delta": delta,
            "protocol": protocol.spec,
            **_distribution_as_json(protocol),
            "base": asdict(report),
            "bounds": [row.as_dict() for row in rows],
            "cost": None if recommended is None else recommended.as_dict(),
            "compared": [vars(one) | {"protocol": one.protocol.spec} for one in compared],
            "notes": notes,
            "affordable": [vars(one) | {"repetitions": one.repetitions.spec} for one in affordable],
        }
        print(json.dumps(answer, indent=2))
    else:
        _print_table(report, protocol, delta, rows)
        if recommended is not None:
            cost = format_rounded(recommended.epsilon, up=True)
            print(f"\ncost: {cost} by {recommended.name}, whatever the score")
        for note in notes:
            print(f"note: {note}")
        _print_comparison(compared, arguments.compare)
        for one in affordable:
            print(
                f"{one.repetitions.spec:24} expected quantile of the best run "
                f"{one.expected_quantile:.5f}"
            )
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
    """The search that keeps the budget, and all distributions of K if these were asked for."""
    if not isinstance(protocol, RandomSearch):
        raise InvalidInput(
            f"solve {arguments.solve} must come with protocol search, got {protocol}"
        )
    budget: dict[str, Any] = {
        "target_epsilon": arguments.target_epsilon,
        "target_delta": arguments.delta,
        "bound": bound,
    }
    if arguments.solve == "runs":
        most = upper_bounds.calibrate_runs(base, protocol.repetitions, **budget)
        return RandomSearch(_rounded_distribution(most)), []
    found = [
        replace(one, repetitions=_rounded_distribution(one.repetitions))
        for one in upper_bounds.best_repetitions(base, **budget)
    ]
    return RandomSearch(_rounded_distribution(found[0].repetitions)), found


if __name__ == "__main__":
    sys.exit(console.run(main))
