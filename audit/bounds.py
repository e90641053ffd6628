"""What does this tuning cost? The accountant: `python -m audit.bounds --help`.

Prints every bound on the epsilon of a way of tuning; or solves for the noise, for the number of
runs or for the law of K that keep a budget for the whole. Needs nothing but numpy and scipy.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from audit import accounting, checks, console, protocols, upper_bounds
from audit.accounting import Composition, DpSgd, GaussianMechanism, Mechanism
from audit.claims import Claim, Kind
from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol, RandomSearch
from audit.upper_bounds import Bound, TunedMechanism, UpperBound, inverse
from audit.upper_bounds.comparison import MAX_COMPARED
from audit.upper_bounds.registry import answered

_SOLVES = ("noise", "runs", "law")
_MAX_TUNINGS = 10**6


def bound_named(name: str | None, protocol: Protocol) -> Bound | None:
    """The bound of that name, to solve with; None stands for the default.

    Raises:
        ValueError: there is none for the protocol, or it is no upper bound.
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
    "python -m audit.bounds --epsilon-base 1 --protocol grid:20": "a grid of twenty",
    "python -m audit.bounds --epsilon-base 1 --compare 10": "which protocol is cheapest?",
    "python -m audit.bounds --target-epsilon 3 --steps 500": "the noise that keeps 3 in all",
    "python -m audit.bounds --trials runs.csv --chosen grid": "a tuning that is over",
}


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.bounds",
        description="Bounds on the privacy cost of releasing the best of K runs.",
        examples=_EXAMPLES,
    )
    one = parser.add_argument_group("one run, in one of these ways")
    one.add_argument("--noise-multiplier", type=float, metavar="SIGMA", help="with --steps")
    one.add_argument("--epsilon-base", type=float, metavar="E", help="budget of one Gaussian run")
    one.add_argument("--mu", type=float, metavar="MU", help="mu of a Gaussian base")
    one.add_argument(
        "--base",
        metavar="SPEC",
        help="laplace:SCALE, response:E,OPTIONS, pure:E, approximate:E,DELTA, zcdp:RHO, "
        "renyi:FILE or profile:FILE (csv of two columns)",
    )
    one.add_argument("--steps", type=int, metavar="N", help="iterations of one run")
    one.add_argument(
        "--sampling-rate", type=float, default=1.0, metavar="TAU", help="1, the default: full batch"
    )
    how = parser.add_argument_group("how the best run was chosen")
    how.add_argument(
        "--protocol",
        default="search",
        metavar="SPEC",
        help="search (default), grid:N[,CHANCE], adaptive:LOW,HIGH, subset:RATE[,all], "
        "until:CHANCE, stopping:CHANCE, noisy-max:N[,ROUNDS][,monotone], ptr:E,D,FAILURE",
    )
    how.add_argument(
        "--repetitions",
        metavar="SPEC",
        help="law of K: tnb:ETA,GAMMA, geometric:GAMMA, poisson:MU, binomial:N,P, "
        f"two-point:S,L, fixed:K (default {protocols.DEFAULT_REPETITIONS})",
    )
    how.add_argument(
        "--delta", type=float, default=1e-5, metavar="D", help="of the whole (default 1e-5)"
    )
    solve = parser.add_argument_group("what does a budget afford")
    solve.add_argument(
        "--target-epsilon", type=float, metavar="E", help="budget of the whole tuning"
    )
    solve.add_argument(
        "--solve",
        default="noise",
        metavar="WHAT",
        help="noise (with --steps), runs (the most) or law (the best quantile)",
    )
    solve.add_argument(
        "--bound",
        metavar="NAME",
        help="what keeps it, a row of the table (default: region, or the smallest)",
    )
    done = parser.add_argument_group("the tuning you did, in place of --protocol and one run")
    done.add_argument(
        "--trials",
        metavar="FILE",
        help="csv: noise_multiplier, sampling_rate and steps, or mu, or rho",
    )
    done.add_argument("--optuna", nargs=2, metavar=("STORAGE", "NAME"), help="an Optuna study")
    done.add_argument(
        "--chosen",
        metavar="HOW",
        help="grid, random (with replacement) or sequential (all that looks back)",
    )
    done.add_argument(
        "--prior",
        metavar="FILE",
        help="csv as --trials, of all that could be drawn, with a column chance if not equal",
    )
    shown = parser.add_argument_group("what is printed")
    shown.add_argument(
        "--compare",
        type=float,
        metavar="RUNS",
        help="also: every protocol at so many runs on average",
    )
    shown.add_argument("--plot", metavar="FILE", help="epsilon over runs by protocol, yours marked")
    shown.add_argument("--json", action="store_true", help="json instead of a table")
    rarely = parser.add_rare_group()
    rarely.add_argument(
        "--neighbours",
        default="add-remove",
        metavar="NAME",
        help="add-remove (default), zero-out (the number of records is public) or replace-one",
    )
    rarely.add_argument(
        "--group-size",
        type=int,
        default=1,
        metavar="K",
        help="records of one person, protected together (default 1)",
    )
    rarely.add_argument(
        "--accounting",
        default="rdp",
        metavar="NAME",
        help="how eps_B is counted: rdp, as papers do (default), or exact",
    )
    rarely.add_argument("--tunings", type=int, default=1, metavar="N", help="how often it is tuned")
    rarely.add_argument("--final-run", action="store_true", help="one more run is released at last")
    return parser


def _base_of(arguments: argparse.Namespace, protocol: Protocol) -> Mechanism:
    ways = {
        "--mu": arguments.mu,
        "--noise-multiplier": arguments.noise_multiplier,
        "--epsilon-base": arguments.epsilon_base,
        "--base": arguments.base,
        "--target-epsilon": arguments.target_epsilon if arguments.solve == "noise" else None,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"exactly one of {', '.join(ways)} must be given, got {', '.join(given) or 'none'}"
        )
    if given[0] in ("--noise-multiplier", "--target-epsilon") and arguments.steps is None:
        raise ValueError(f"steps must be given with {given[0]}, got none")
    rate, neighbours, group = arguments.sampling_rate, arguments.neighbours, arguments.group_size
    if given[0] == "--target-epsilon":
        noise = upper_bounds.calibrate_noise(
            arguments.target_epsilon,
            protocol,
            arguments.delta,
            arguments.steps,
            rate,
            neighbours,
            bound_named(arguments.bound, protocol),
            group,
        )
        # As printed, so that who types it again keeps the budget.
        noise = float(format_rounded(noise, up=True, digits=7))
        return DpSgd(noise, arguments.steps, rate, neighbours, group)
    if arguments.noise_multiplier is not None:
        return DpSgd(arguments.noise_multiplier, arguments.steps, rate, neighbours, group)
    if rate != 1.0 or neighbours != "add-remove" or group != 1:
        raise ValueError(
            "sampling-rate, neighbours and group-size need --noise-multiplier or --target-epsilon, "
            f"got {given[0]}"
        )
    if arguments.base is not None:
        return accounting.parse_mechanism(arguments.base)
    mu = arguments.mu
    if mu is None:
        mu = accounting.calibrate_mu(arguments.epsilon_base, arguments.delta, arguments.accounting)
    if arguments.steps is not None:
        return DpSgd(accounting.full_batch_noise_multiplier(mu, arguments.steps), arguments.steps)
    return GaussianMechanism(mu)


def _total(base: Mechanism, protocol: Protocol, arguments: argparse.Namespace) -> list[UpperBound]:
    """Tuned several times, or followed by a final run: the region bound, composed."""
    times = checks.integer("tunings", arguments.tunings, 1, _MAX_TUNINGS)
    if times == 1 and not arguments.final_run:
        return []
    if not isinstance(protocol, RandomSearch):
        raise ValueError(
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
    print(f"{'bound':{width}}  {'epsilon':>9}  what it needs to be true")
    for row in rows:
        if row.epsilon is None:
            continue
        way = "down" if row.attained else "up"
        rounded = (
            f" (rounded {way} by < {format_rounded(row.error, up=True, digits=1)})"
            if row.error > 0
            else ""
        )
        epsilon = format_rounded(row.epsilon, up=not row.attained)
        print(f"{row.name:{width}}  {epsilon:>9}  {row.claim.conditions}{rounded}")
        print(f"{'':{width}}  {'':>9}    {row.source}")
    silent = [row for row in rows if row.epsilon is None]
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
    """What a reader must know where the budget affords all that was searched."""
    if solved == "noise" and isinstance(base, DpSgd) and base.sampling_rate < 1.0:
        if base.noise_multiplier <= inverse.MIN_NOISE * (1.0 + 1e-6):
            return [f"the search for less noise stopped at {inverse.MIN_NOISE:g}"]
    elif solved in ("runs", "law") and isinstance(protocol, RandomSearch):
        law = protocol.repetitions
        if law.mean >= inverse.most_runs(law) * (1.0 - 1e-5):
            return [f"the search for more runs stopped at {law.mean:.4g}: the budget allows more"]
    return []


def _law_as_json(protocol: Protocol) -> dict[str, object]:
    """The law of K and what it finds, where candidates are drawn from a prior."""
    if not isinstance(protocol, RandomSearch):
        return {}
    law = protocol.repetitions
    return {"repetitions": law.spec, "expected_quantile": law.expected_quantile()}


def _tuning_done(arguments: argparse.Namespace) -> int:
    """Prints what a finished tuning cost."""
    # Slow to import, and only wanted here.
    from audit.tuning.cost_of_trials import cost_of_trials, read_prior, read_trials

    law, delta, neighbours = arguments.repetitions, arguments.delta, arguments.neighbours
    if arguments.trials is not None and arguments.optuna is not None:
        raise ValueError("trials and optuna must not be given together, got both")
    prior = None if arguments.prior is None else read_prior(arguments.prior, neighbours)
    if arguments.trials is not None:
        if arguments.chosen is None:
            raise ValueError("chosen must be given with --trials: grid, random or sequential")
        trials = read_trials(arguments.trials, neighbours)
        found = cost_of_trials(trials, arguments.chosen, delta, law, prior)
    else:
        from audit.optuna import cost_of_study
        from audit.tuning.cost_of_trials import trial_of

        base = trial_of(
            {
                "noise_multiplier": arguments.noise_multiplier,
                "steps": arguments.steps,
                "sampling_rate": arguments.sampling_rate,
                "mu": arguments.mu,
            },
            neighbours,
        )
        found = cost_of_study(
            *arguments.optuna,
            chosen=arguments.chosen,
            delta=delta,
            law=law,
            base=base,
            neighbours=neighbours,
            prior=prior,
        )
    print(json.dumps(asdict(found), indent=2) if arguments.json else "\n".join(found.lines))
    return console.OK


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the accountant.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0, or 2 after one clear line about what was wrong.
    """
    arguments = _parser().parse_args(argv)
    affordable: list[upper_bounds.AffordableRepetitions] = []
    try:
        if arguments.trials is not None or arguments.optuna is not None:
            return _tuning_done(arguments)
        protocol = protocols.parse_protocol(arguments.protocol, arguments.repetitions)
        delta = checks.interval("delta", arguments.delta, 0.0, 1.0)
        checks.one_of("accounting", arguments.accounting, accounting.ACCOUNTINGS)
        solve = arguments.solve = checks.one_of("solve", arguments.solve, _SOLVES)
        if arguments.plot is not None:
            from audit.report.cost import check_writable  # slow to import, and only wanted here

            check_writable(arguments.plot)
        bound = bound_named(arguments.bound, protocol)
        base = _base_of(arguments, protocol)
        if solve != "noise":
            if arguments.target_epsilon is None:
                raise ValueError(f"target-epsilon must be given with --solve {solve}, got none")
            if not isinstance(protocol, RandomSearch):
                raise ValueError(f"solve {solve} must come with protocol search, got {protocol}")
            law = protocol.repetitions
            if solve == "runs":
                law = upper_bounds.calibrate_runs(arguments.target_epsilon, base, law, delta, bound)
            else:
                affordable = upper_bounds.best_repetitions(
                    arguments.target_epsilon, base, delta, bound
                )
                law = affordable[0].law
            protocol = RandomSearch(law)
        if arguments.compare is not None:
            checks.interval(
                "compare", arguments.compare, *MAX_COMPARED, closed_low=True, closed_high=True
            )
        solved = solve if arguments.target_epsilon is not None else None
        notes = _ends_of_search(base, protocol, solved)
        report = upper_bounds.report_mechanism(base, delta, arguments.accounting)
        rows = [*report.bounds, *upper_bounds.all_upper_bounds(base, protocol, delta)]
        total = _total(base, protocol, arguments)
        recommended = upper_bounds.smallest(total or rows)
        rows += total
        compared = (
            []
            if arguments.compare is None
            else upper_bounds.compare_protocols(base, arguments.compare, delta)
        )
    except ValueError as error:
        return console.report_error(error)
    if arguments.json:
        answer = {
            "delta": delta,
            "protocol": protocol.spec,
            **_law_as_json(protocol),
            "base": asdict(report),
            "bounds": [row.as_dict() for row in rows],
            "cost": None if recommended is None else recommended.as_dict(),
            "compared": [
                {
                    "title": one.title,
                    "protocol": one.protocol.spec,
                    "epsilon": one.epsilon,
                    "bound": one.bound,
                    "expected_quantile": one.expected_quantile,
                }
                for one in compared
            ],
            "notes": notes,
            "affordable": [
                {"repetitions": one.law.spec, "expected_quantile": one.expected_quantile}
                for one in affordable
            ],
        }
        print(json.dumps(answer, indent=2))
    else:
        _print_table(report, protocol, delta, rows)
        if recommended is not None:
            cost = format_rounded(recommended.epsilon or 0.0, up=True)
            print(f"\ncost: {cost} by {recommended.name}, whatever the score")
        for note in notes:
            print(f"note: {note}")
        _print_comparison(compared, arguments.compare)
        for one in affordable:
            print(
                f"{one.law.spec:24} expected quantile of the best run {one.expected_quantile:.5f}"
            )
    if arguments.plot is not None:
        from audit.report.cost import draw_cost

        try:
            draw_cost(base, protocol, delta, arguments.plot)
        except ValueError as error:
            return console.report_error(error)
    return console.OK


if __name__ == "__main__":
    sys.exit(console.run(main))
