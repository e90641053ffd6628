"""The options of `audit.bounds`, the tasks that each applies to, and the run that they describe."""

import argparse
import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Set
from fractions import Fraction
from typing import Any

from audit import accounting, checks, console, protocols, repetitions, upper_bounds
from audit.accounting import ApproximateDp, DpSgd, GaussianMechanism, Mechanism
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol
from audit.repetitions import Repetitions
from audit.upper_bounds import Bound, inverse

SOLVES = ("noise", "runs", "distribution")
"""What can be solved for."""
_EXAMPLES = {
    "python -m audit.bounds --noise-multiplier 1 --sampling-rate 0.01 --steps 500": "a random K",
    "python -m audit.bounds --mu 0.25 --protocol grid:20 --compare 20": "a grid",
    "python -m audit.bounds --target-epsilon 3 --sampling-rate 0.01 --steps 500": "solve for noise",
    "python -m audit.bounds --mu 0.25 --protocol tpe:20": "an optimiser",
}
_OPTIONS: dict[str, dict[str, console.Option]] = {
    "one run: DP-SGD, or another mechanism": {
        "noise-multiplier": (float, "SIGMA", "noise multiplier as in Opacus"),
        "sampling-rate": (float, "TAU", "rate of Poisson sampling (default: 1)"),
        "steps": (int, "N", "iterations of one run"),
        "batch-size": (int, "B", "expected batch size, with --records, instead of the rate"),
        "records": (int, "N", "number of records of the data set; also checks delta"),
        "epochs": (float, "E", "epochs of one run, instead of --steps (rounded up)"),
        "mu": (float, "MU", "mu of Gaussian DP, such as training on full batches"),
        "gaussian-epsilon": (
            float,
            "E",
            "exact epsilon of one run on full batches; for that of a Renyi accountant, add "
            "--accounting rdp",
        ),
        "base": (
            str,
            "SPEC",
            "laplace:SCALE, response:E,OPTIONS, pure:E, approximate:E,DELTA, zcdp:RHO, "
            "allocation:NOISE,BATCHES,EPOCHS, fixed-allocation:NOISE,BATCHES,EPOCHS, renyi:FILE or "
            "profile:FILE (csv of two columns)",
        ),
    },
    "how the best run was chosen": {
        "protocol": (
            str,
            "SPEC",
            "a distribution of K for random search: tnb:ETA,GAMMA, geometric:GAMMA, poisson:MU, "
            f"binomial:N,P, two-point:S,L, fixed:K (default {protocols.DEFAULT_REPETITIONS}); or "
            "grid:N[,CHANCE], distinct:N (min(K, N) of a list), sequential:N (also tpe:N, "
            "manual:N: candidates chosen by results), best:M, pareto:M, adaptive:LOW,HIGH, "
            "subset:RATE[,all], until:CHANCE, stopping:CHANCE, schedule:FACTOR,..., "
            "noisy-max:N[,ROUNDS][,monotone], ptr:E,D,FAILURE; where K is drawn, its distribution "
            "may follow, as in best:3/tnb:0,0.1",
        ),
        "repetitions": (str, "SPEC", console.HIDDEN),  # the distribution of K by itself
        "delta": (float, "D", "delta of the whole tuning (default 1e-5)"),
    },
    "solve for a budget": {
        "target-epsilon": (float, "E", "budget of the whole tuning"),
        "solve": (
            str,
            "WHAT",
            "noise (default; with --steps), runs (largest mean number) or distribution (of K, with "
            "the best quantile)",
        ),
        "max-runs": (
            float,
            "RUNS",
            "largest mean number of runs of --solve distribution (default 100)",
        ),
    },
    "output": {
        "compare": (float, "RUNS", "also compare all protocols at this mean number of runs"),
        "plot": (str, "FILE", "plot epsilon over runs by protocol"),
        "all": (bool, "", "also list bounds for special scores, sources and rounding"),
        "json": (bool, "", "json instead of a table"),
    },
    console.RARE: {
        "neighbours": (
            str,
            "NAME",
            "of DP-SGD: zero-out (default: the number of records is public), add-remove or "
            "replace-one",
        ),
        "group-size": (int, "K", "records of one person, protected together (default 1)"),
        "epsilon-base": (
            float,
            "E",
            "if only this is known: one run is (E, D)-DP, with --delta-base D",
        ),
        "delta-base": (float, "D", "delta of one run, far below --delta (default: --delta)"),
        "bound": (
            str,
            "NAME",
            "bound to solve with, a row of the table (default: region, or the smallest)",
        ),
        "accounting": (
            str,
            "NAME",
            "accounting of eps_B: rdp, as in the papers (default), or exact (default for "
            "--gaussian-epsilon)",
        ),
        "tunings": (int, "N", "number of tunings, whose costs are composed"),
        "final-run": (bool, "", "add the cost of a final run that is released as well"),
    },
}
"""The options, in groups; see `console.Parser.add_options`."""

_LARGE_DELTA = 0.01
"""A delta above this exceeds 1 / records for all but the smallest data sets."""

_DEFAULTS = {
    "protocol": "search",
    "delta": 1e-5,
    "solve": "noise",
    "max_runs": inverse.DEFAULT_MAX_RUNS,
    "sampling_rate": 1.0,
    "neighbours": "zero-out",
    "group_size": 1,
    "accounting": "rdp",
    "tunings": 1,
}
_SAMPLING = frozenset({"sampling_rate", "steps", "batch_size", "records", "epochs"})
BASES = frozenset({"noise_multiplier", "mu", "gaussian_epsilon", "epsilon_base", "base"})
_PROTECTED = frozenset({"neighbours", "group_size"})
_ONE_RUN = _SAMPLING | BASES | _PROTECTED | {"delta_base", "accounting"}
_REPORT = frozenset(
    {"imports", "protocol", "repetitions", "delta", "compare", "plot", "all", "json", "accounting"}
)
_SOLVED = _REPORT | {"target_epsilon", "solve", "bound"}
_APPLY = {
    "--target-epsilon": _SOLVED | _SAMPLING | _PROTECTED,
    "--solve runs": _SOLVED | _ONE_RUN,
    # The answer is a distribution of K, so that the one of a protocol would be ignored.
    "--solve distribution": (_SOLVED | _ONE_RUN | {"max_runs"}) - {"protocol", "repetitions"},
    "one run": _REPORT | _ONE_RUN | {"tunings", "final_run"},
}
"""The options that apply to each task; all others are refused."""
_APPLY_TO_BASE = {
    "noise_multiplier": _SAMPLING | _PROTECTED,
    "mu": {"steps", "records"},
    "gaussian_epsilon": {"steps", "records"},
    "epsilon_base": {"delta_base", "records"},
    "base": {"records"},
}
"""The options of one run that apply to each way of describing it."""
_RATE_NEEDS = {
    "add-remove": ", but add-remove neighbours need a rate that does not depend on it (or zero-out "
    "neighbours)",
    "zero-out": " (public with zero-out neighbours)",
    "replace-one": " (public with replace-one neighbours)",
}
"""What a sampling rate of batch / records requires, by neighbouring relation."""


def make_parser() -> console.Parser:
    """The options of the command. Those not given are None or False."""
    parser = console.Parser(
        prog="python -m audit.bounds",
        description="Bounds on the privacy cost of releasing the best of K runs.",
        examples=_EXAMPLES,
    )
    parser.add_options(_OPTIONS)
    parser.add_imports()
    return parser


def part(title: str) -> dict[str, dict[str, console.Option]]:
    """One group of options, for a command that needs only a part of them."""
    return {title: _OPTIONS[title]}


def named(names: Iterable[str]) -> dict[str, console.Option]:
    """Some options, by name."""
    options = {name: option for group in _OPTIONS.values() for name, option in group.items()}
    return {name: options[name] for name in names}


def with_others(options: Mapping[str, Any]) -> argparse.Namespace:
    """Some options of the command and all others, which were not given."""
    arguments = make_parser().parse_args([])
    vars(arguments).update(options)
    return arguments


def _options(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _refuse_rest(options: Set[str], allowed: Set[str], to: str) -> None:
    """Raises InvalidInput for options that would be ignored."""
    refused = options - allowed
    if refused:
        verb = "does not apply" if len(refused) == 1 else "do not apply"
        apply = _options(allowed & _ONE_RUN if to in map(_option, BASES) else allowed)
        raise InvalidInput(f"{_options(refused)} {verb} to {to}, to which these do: {apply}")


def _option(name: str) -> str:
    return _options((name,))


def check_solve(target: str, options: Mapping[str, Any]) -> None:
    """Refuses options of the command `solve` that do not fit, in its words."""
    passed = [name for name, value in options.items() if not (value is None or value is False)]
    bases = [name for name in passed if name in BASES]
    if target == "noise":
        if bases:
            raise InvalidInput(
                f"{_option(bases[0])} must not be given with solve noise, which computes the "
                "noise: leave it out, or write solve runs or solve distribution"
            )
        if not {"steps", "epochs"} & set(passed):
            raise InvalidInput("--steps or --epochs must be given with solve noise, got none")
    elif not bases:
        raise InvalidInput(
            f"one run must be given with solve {target}, as --noise-multiplier (with --steps and "
            "--sampling-rate), --mu, --gaussian-epsilon or --base, got none"
        )
    if target != "distribution" and "max_runs" in passed:
        raise InvalidInput(f"--max-runs must be given with solve distribution only, got {target}")


def checked_options(arguments: argparse.Namespace) -> str:
    """Refuses options that would be ignored, adds defaults, and returns the task (`_APPLY`)."""
    passed = {
        name for name, value in vars(arguments).items() if not (value is None or value is False)
    }
    if "solve" in passed:
        if arguments.solve == "law":  # its name in version 2
            arguments.solve = "distribution"
        arguments.solve = checks.one_of("solve", arguments.solve, SOLVES)
    if "neighbours" in passed:
        arguments.neighbours = checks.one_of(
            "neighbours", arguments.neighbours, accounting.NEIGHBOURS
        )
    task = "one run"
    if "target_epsilon" in passed:
        solved = arguments.solve in ("runs", "distribution")
        task = f"--solve {arguments.solve}" if solved else "--target-epsilon"
    elif "solve" in passed:
        raise InvalidInput(f"target-epsilon must be given with --solve {arguments.solve}, got none")
    elif "bound" in passed:
        raise InvalidInput("target-epsilon must be given with --bound, got none")
    ways = passed & BASES
    if task == "--target-epsilon" and ways:
        raise InvalidInput(
            f"{_options(ways)} must not be given with --target-epsilon, which solves for the noise "
            "(or add --solve runs or --solve distribution)"
        )
    _refuse_rest(passed, _APPLY[task], task)
    if task in ("one run", "--solve runs", "--solve distribution") and len(ways) != 1:
        # Most users know the noise multiplier of their runs, so it comes first.
        raise InvalidInput(
            f"exactly one of --noise-multiplier (with --steps and --sampling-rate), "
            f"{_options(BASES - {'noise_multiplier'})} or --target-epsilon must be given, got "
            f"{_options(ways) or 'none'}"
        )
    if len(ways) > 1:
        raise InvalidInput(f"at most one of {_options(BASES)} must be given, got {_options(ways)}")
    if ways:
        (way,) = ways
        allowed = _APPLY_TO_BASE[way] | {"accounting"}
        _refuse_rest(passed & (_ONE_RUN - BASES), allowed, _option(way))
    # Opacus divides by a number that it computes from n, so its numbers hold if n is public.
    if arguments.accounting is None and arguments.gaussian_epsilon is not None:
        arguments.accounting = "exact"  # read as a Renyi epsilon, it would cost less
    for name, value in _DEFAULTS.items():
        if getattr(arguments, name) is None and name != "sampling_rate":
            setattr(arguments, name, value)
    return task


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
        noise_option = (
            "target-epsilon" if arguments.noise_multiplier is None else "noise-multiplier"
        )
        raise InvalidInput(f"steps (or epochs) must be given with --{noise_option}, got none")
    computed = [f"computed: {'; '.join(notes)}"] if notes else []
    return (1.0 if rate is None else rate), steps, computed


def delta_note(delta: float, records: int | None) -> list[str]:
    """A warning if delta is so large that it allows the release of a record."""
    if records is None and delta > _LARGE_DELTA:
        return [
            f"delta = {format_exact(delta)} exceeds 1 / records for more than "
            f"{math.floor(1.0 / delta)} records: publishing one record at random would be allowed; "
            "choose a smaller --delta, or state --records"
        ]
    if records is None or delta <= 1.0 / checks.integer("records", records, 1):
        return []
    return [
        f"delta = {format_exact(delta)} exceeds 1 / records = "
        f"{format_rounded(1.0 / records, up=False, digits=3)}: publishing one record at random "
        "would be allowed; choose a smaller --delta"
    ]


def base_of(
    arguments: argparse.Namespace, protocol: Protocol, bound: Bound | None
) -> tuple[Mechanism, list[str]]:
    """The mechanism of one run, and notes of what was computed."""
    if arguments.target_epsilon is None or arguments.solve != "noise":
        return one_run(arguments)
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
    # The bounds are computed for the rounded noise, so that the printed number keeps the budget.
    noise = float(format_rounded(noise, up=True, digits=7))
    return DpSgd(noise, steps, rate, arguments.neighbours, arguments.group_size), notes


def one_run(arguments: argparse.Namespace) -> tuple[Mechanism, list[str]]:
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


def rounded_distribution(distribution: Repetitions) -> Repetitions:
    """A distribution of K rounded to seven digits, with at most the given mean number of runs."""
    long = re.compile(r"\d+\.\d{7,}(?:e-?\d+)?|\d\.\d{6,}e-?\d+")
    rounded: list[Repetitions] = []
    for sides in itertools.product((True, False), repeat=len(long.findall(distribution.spec))):
        way = iter(sides)
        spec = long.sub(
            lambda match, way=way: format_rounded(float(match.group()), next(way), 7),  # type: ignore[misc]
            distribution.spec,
        )
        with contextlib.suppress(ValueError):  # rounded out of its range
            rounded.append(repetitions.parse_repetitions(spec))
    return max(
        (candidate for candidate in rounded if candidate.mean <= distribution.mean),
        key=lambda affordable: affordable.mean,
        default=distribution,
    )
