"""What does this tuning cost? The accountant: `python -m audit.bounds --help`.

Prints every bound on the epsilon of releasing the best of K runs; or solves for the noise, for the
number of runs or for the law of K that keep a budget for the whole tuning. Needs no torch.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from audit import accounting, checks, repetitions, upper_bounds
from audit.accounting import Composition, DpSgd, GaussianMechanism, Mechanism
from audit.claims import Claim, Kind
from audit.protocols import RandomSearch
from audit.repetitions import Repetitions
from audit.upper_bounds import Bound, TunedMechanism, UpperBound

_SOLVES = ("noise", "runs", "law")
_ATTAINED = "worst-order"


def bound_named(name: str) -> Bound | None:
    """The bound of that name, to solve with; None stands for the region bound.

    Raises:
        ValueError: there is none, or it is no upper bound.
    """
    usable = [each for each in upper_bounds.BOUNDS if each != _ATTAINED]
    name = checks.one_of("bound", name, usable)
    return None if name == "region" else upper_bounds.BOUNDS[name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m audit.bounds",
        description="Bounds on the privacy cost of releasing the best of K runs.",
    )
    parser.add_argument("--repetitions", default="tnb:0,0.01", metavar="SPEC", help="the law of K")
    parser.add_argument("--delta", type=float, default=1e-5)
    base = parser.add_argument_group("one run, in one of these ways")
    base.add_argument("--mu", type=float, help="mu of a Gaussian base")
    base.add_argument("--noise-multiplier", type=float, metavar="SIGMA", help="with --steps")
    base.add_argument("--epsilon-base", type=float, metavar="E", help="budget of one Gaussian run")
    base.add_argument(
        "--base",
        metavar="SPEC",
        help="laplace:SCALE, response:E,OPTIONS, pure:E, approximate:E,DELTA, zcdp:RHO, "
        "renyi:FILE or profile:FILE (csv of two columns)",
    )
    more = parser.add_argument_group("about one run")
    more.add_argument("--steps", type=int, metavar="N", help="iterations of one run")
    more.add_argument(
        "--sampling-rate", type=float, default=1.0, metavar="TAU", help="1: full batch"
    )
    more.add_argument("--neighbours", default="add-remove", help="add-remove or replace-one")
    more.add_argument(
        "--accounting",
        default="rdp",
        help="how epsilon_B of one run is counted: rdp (the papers' way) or exact",
    )
    total = parser.add_argument_group("the whole")
    total.add_argument("--tunings", type=int, default=1, metavar="N", help="how often it is tuned")
    total.add_argument("--final-run", action="store_true", help="one more run is released at last")
    solve = parser.add_argument_group("what does a budget afford")
    solve.add_argument(
        "--target-epsilon", type=float, metavar="E", help="budget of the whole tuning"
    )
    solve.add_argument(
        "--solve",
        default="noise",
        help="noise (least noise multiplier; with --steps), runs (most expected runs of the law's "
        "family) or law (the law of K with the best expected quantile)",
    )
    solve.add_argument("--bound", default="region", help="the bound that keeps --target-epsilon")
    parser.add_argument("--plot", metavar="FILE", help="draws epsilon against E[K], several laws")
    parser.add_argument("--json", action="store_true", help="print json instead of a table")
    return parser


def _base_of(arguments: argparse.Namespace, law: Repetitions) -> Mechanism:
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
    rate, neighbours = arguments.sampling_rate, arguments.neighbours
    if given[0] == "--target-epsilon":
        bound = bound_named(arguments.bound)
        noise = upper_bounds.solve_noise_multiplier(
            arguments.target_epsilon, law, arguments.delta, arguments.steps, rate, neighbours, bound
        )
        return DpSgd(noise, arguments.steps, rate, neighbours)
    if arguments.noise_multiplier is not None:
        return DpSgd(arguments.noise_multiplier, arguments.steps, rate, neighbours)
    if rate != 1.0 or neighbours != "add-remove":
        raise ValueError(f"sampling-rate and neighbours need --noise-multiplier, got {given[0]}")
    if arguments.base is not None:
        return accounting.parse(arguments.base)
    mu = arguments.mu
    if mu is None:
        mu = accounting.calibrate_mu(arguments.epsilon_base, arguments.delta, arguments.accounting)
    if arguments.steps is not None:
        return DpSgd(accounting.noise_multiplier_for(mu, arguments.steps), arguments.steps)
    return GaussianMechanism(mu)


def _total(base: Mechanism, law: Repetitions, arguments: argparse.Namespace) -> list[UpperBound]:
    """Tuned several times, or followed by a final run: the region bound, composed."""
    times = checks.whole("tunings", arguments.tunings, 1)
    if times == 1 and not arguments.final_run:
        return []
    parts: tuple[Mechanism, ...] = (TunedMechanism(base, law),) * times
    if arguments.final_run:
        parts += (base,)
    then = ", then one run of the base" if arguments.final_run else ""
    return [
        UpperBound(
            "total",
            Composition(parts).epsilon(arguments.delta),
            Claim(
                Kind.BOUND,
                "region bound, composed by privacy loss distributions",
                (RandomSearch,),
                about=(f"tuned {times} time(s){then}",),
                is_upper=True,
            ),
        )
    ]


def _print_table(
    base: upper_bounds.BaseReport, law: Repetitions, delta: float, rows: list[UpperBound]
) -> None:
    print(f"repetitions {law.spec} (E[K] = {law.mean:.4g}), delta = {delta:g}")
    mu = "" if base.mu is None else f"mu = {base.mu:.6g}; "
    print(f"base: {mu}{base.description}")
    print()
    width = max(len(row.name) for row in rows)
    print(f"{'bound':{width}}  {'epsilon':>9}  what it needs to be true")
    for row in rows:
        if row.epsilon is None:
            continue
        way = "down" if row.attained else "up"
        rounded = f" (rounded {way} by < {row.error:.0e})" if row.error > 0 else ""
        print(f"{row.name:{width}}  {row.epsilon:9.4f}  {row.assumes}{rounded}")
        print(f"{'':{width}}  {'':>9}    {row.source}")
    silent = [row for row in rows if row.epsilon is None]
    for row in silent:
        print(f"{row.name:{width}}  {'-':>9}  {row.assumes}")


def plot_cost(
    base: Mechanism, delta: float, path: str, bound: Bound | None = None, points: int = 13
) -> None:
    """Draws epsilon of the tuning against the expected number of runs, for several laws of K.

    Args:
        base: one run.
        delta: in (0, 1).
        path: where the figure goes; its ending names the format.
        bound: the bound drawn; the region bound by default.
        points: numbers of runs from 2 to 1000.
    """
    # Slow to import, and only wanted here.
    import seaborn as sns
    from matplotlib.figure import Figure

    families = {
        "fixed": ("fixed:2", (0, (1, 1))),
        "Poisson": ("poisson:1", "-."),
        "geometric (eta = 1)": ("tnb:1,0.5", "--"),
        "logarithmic (eta = 0)": ("tnb:0,0.5", "-"),
        "eta = -0.5": ("tnb:-0.5,0.5", (0, (5, 1, 1, 1))),
    }
    means = np.geomspace(2.0, 1000.0, points)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=1.1):
        figure = Figure(figsize=(8.5, 5.0), layout="constrained")
        axes = figure.subplots()
        colours = sns.color_palette("colorblind", len(families)).as_hex()
        for (label, (spec, style)), colour in zip(families.items(), colours, strict=True):
            laws = [repetitions.parse(spec).with_mean(mean) for mean in means]
            values = [(bound or upper_bounds.region)(base, law, delta).epsilon for law in laws]
            axes.plot(
                [law.mean for law in laws],
                [np.nan if v is None else v for v in values],
                color=colour,
                linestyle=style,
                lw=2.2,
                label=label,
            )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel("expected number of runs, E[K]")
        axes.set_ylabel(f"epsilon of the tuning at delta = {delta:g}")
        figure.suptitle(base.description.split(";")[0], fontsize="medium")
        axes.legend(title="law of K", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the accountant.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0, or 2 after one clear line about what was wrong.
    """
    arguments = _parser().parse_args(argv)
    affordable: list[upper_bounds.Affordable] = []
    try:
        law = repetitions.parse(arguments.repetitions)
        delta = checks.interval("delta", arguments.delta, 0.0, 1.0)
        checks.one_of("accounting", arguments.accounting, accounting.ACCOUNTINGS)
        solve = arguments.solve = checks.one_of("solve", arguments.solve, _SOLVES)
        bound = bound_named(arguments.bound)
        base = _base_of(arguments, law)
        if solve != "noise":
            if arguments.target_epsilon is None:
                raise ValueError(f"target-epsilon must be given with --solve {solve}, got none")
            if solve == "runs":
                law = upper_bounds.solve_runs(arguments.target_epsilon, base, law, delta, bound)
            else:
                affordable = upper_bounds.best_law(arguments.target_epsilon, base, delta, bound)
                law = affordable[0].law
        report = upper_bounds.report_mechanism(base, delta, arguments.accounting)
        rows = [*report.bounds, *upper_bounds.all_bounds(base, law, delta)]
        rows += _total(base, law, arguments)
        if arguments.plot:
            plot_cost(base, delta, arguments.plot, bound)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        answer = {
            "delta": delta,
            "repetitions": law.spec,
            "expected_quantile": law.expected_quantile(),
            "base": asdict(report),
            "bounds": [row.as_dict() for row in rows],
            "affordable": [
                {"repetitions": one.law.spec, "expected_quantile": one.expected_quantile}
                for one in affordable
            ],
        }
        print(json.dumps(answer, indent=2))
    else:
        _print_table(report, law, delta, rows)
        for one in affordable:
            print(
                f"{one.law.spec:24} expected quantile of the best run {one.expected_quantile:.5f}"
            )
    return 0


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
