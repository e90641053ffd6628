"""What does this tuning cost? The accountant: `python -m audit.bounds --help`.

Prints every bound on the epsilon of releasing the best of K runs, or solves for the noise at which
the whole tuning keeps a budget. Needs no torch.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scipy import optimize

from audit import accounting, checks, repetitions, upper_bounds
from audit.accounting import GaussianMechanism
from audit.repetitions import Repetitions
from audit.upper_bounds import UpperBound

_SMALLEST_MU, _LARGEST_MU = 1e-4, 100.0


@dataclass(frozen=True)
class BaseReport:
    """One run of the base mechanism, as reported.

    Attributes:
        mu: distance of the two output laws in standard deviations.
        noise_multiplier: sigma, where the number of steps is known.
        steps: full-batch iterations, where known.
        epsilon_rdp: epsilon of one run by Renyi divergences, as the papers count.
        epsilon_exact: epsilon of one run by the Gaussian profile.
        accounting: which of the two is called epsilon_B.
    """

    mu: float
    noise_multiplier: float | None
    steps: int | None
    epsilon_rdp: float
    epsilon_exact: float
    accounting: str

    @property
    def bound(self) -> UpperBound:
        """One run alone, as a first row beside the bounds."""
        epsilon = self.epsilon_rdp if self.accounting == "rdp" else self.epsilon_exact
        how = "Renyi divergences" if self.accounting == "rdp" else "the exact Gaussian profile"
        source = "Xiang, Wang & Wang 2024, theorem 6" if self.accounting == "rdp" else ""
        source = source or "Balle & Wang 2018, theorem 8"
        return UpperBound("base", epsilon, f"a single run, not the tuning; by {how}", source)


def report_base(mu: float, delta: float, method: str, steps: int | None = None) -> BaseReport:
    """Accounts for one run of a Gaussian base.

    Args:
        mu: the base's mu.
        delta: in (0, 1).
        method: `rdp` or `exact`, which epsilon is called epsilon_B.
        steps: full-batch iterations, to name the noise multiplier.
    """
    base = GaussianMechanism(mu)
    return BaseReport(
        mu=mu,
        noise_multiplier=None if steps is None else accounting.noise_multiplier_for(mu, steps),
        steps=steps,
        epsilon_rdp=base.renyi_epsilon(delta),
        epsilon_exact=base.epsilon(delta),
        accounting=checks.one_of("accounting", method, accounting.ACCOUNTINGS),
    )


def solve_mu(target: float, law: Repetitions, delta: float, bound: str = "region") -> float:
    """The largest mu at which the whole tuning is (target, delta)-DP by the chosen bound.

    Args:
        target: epsilon allowed for the tuning, > 0.
        law: the law of K.
        delta: in (0, 1).
        bound: the name of a bound; `worst-order` is refused, for it is not a bound.

    Returns:
        mu, rounded down so that the bound keeps the target.

    Raises:
        ValueError: the bound does not apply to the law, or no mu in (1e-4, 100) meets the target.
    """
    checks.interval("target-epsilon", target, 0.0, 1e4)
    usable = [name for name in upper_bounds.BOUNDS if name != "worst-order"]
    function = upper_bounds.BOUNDS[checks.one_of("bound", bound, usable)]

    def excess(log_mu: float) -> float:
        answer = function(GaussianMechanism(math.exp(log_mu)), law, delta)
        if answer.epsilon is None:
            raise ValueError(f"bound {bound!r} {answer.assumes}, got repetitions {law.spec}")
        return answer.epsilon - target

    low, high = math.log(_SMALLEST_MU), math.log(_LARGEST_MU)
    if excess(low) > 0 or excess(high) < 0:
        raise ValueError(
            f"target-epsilon must be what some mu in ({_SMALLEST_MU:g}, {_LARGEST_MU:g}) gives by "
            f"{bound} at delta={delta:g} with {law.spec}, got {target!r}"
        )
    log_mu = float(optimize.brentq(excess, low, high, xtol=1e-10))
    while excess(log_mu) > 0:
        log_mu -= 1e-9
    return math.exp(log_mu)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m audit.bounds",
        description="Bounds on the privacy cost of releasing the best of K DP-SGD runs.",
    )
    parser.add_argument("--repetitions", default="tnb:0,0.01", metavar="SPEC", help="the law of K")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--mu", type=float, help="mu of the base (Gaussian DP)")
    parser.add_argument("--noise-multiplier", type=float, metavar="SIGMA", help="with --steps")
    parser.add_argument("--steps", type=int, metavar="N", help="full-batch iterations of one run")
    parser.add_argument("--epsilon-base", type=float, metavar="E", help="budget of one run")
    parser.add_argument(
        "--target-epsilon", type=float, metavar="E", help="budget of the whole tuning; with --steps"
    )
    parser.add_argument("--bound", default="region", help="the bound that keeps --target-epsilon")
    parser.add_argument(
        "--accounting",
        default="rdp",
        help="how epsilon_B of one run is counted: rdp (the papers' way) or exact",
    )
    parser.add_argument("--json", action="store_true", help="print json instead of a table")
    return parser


def _mu_of(arguments: argparse.Namespace, law: Repetitions) -> float:
    ways = {
        "--mu": arguments.mu,
        "--noise-multiplier": arguments.noise_multiplier,
        "--epsilon-base": arguments.epsilon_base,
        "--target-epsilon": arguments.target_epsilon,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"exactly one of {', '.join(ways)} must be given, got {', '.join(given) or 'none'}"
        )
    if given[0] in ("--noise-multiplier", "--target-epsilon") and arguments.steps is None:
        raise ValueError(f"steps must be given with {given[0]}, got none")
    if arguments.mu is not None:
        return checks.interval("mu", arguments.mu, 0.0, 1e3, closed_high=True)
    if arguments.noise_multiplier is not None:
        return accounting.DpSgd(arguments.noise_multiplier, arguments.steps).gaussian_mu
    if arguments.epsilon_base is not None:
        return accounting.calibrate_mu(
            arguments.epsilon_base, arguments.delta, arguments.accounting
        )
    return solve_mu(arguments.target_epsilon, law, arguments.delta, arguments.bound)


def _as_json(row: UpperBound) -> dict[str, object]:
    return asdict(row) | ({"reason": row.assumes} if row.epsilon is None else {})


def _print_table(base: BaseReport, law: Repetitions, delta: float, rows: list[UpperBound]) -> None:
    noise = ""
    if base.noise_multiplier is not None:
        noise = f", noise multiplier {base.noise_multiplier:.6g} for {base.steps} full-batch steps"
    print(f"repetitions {law.spec} (E[K] = {law.mean:.4g}), delta = {delta:g}")
    print(f"base: mu = {base.mu:.6g}{noise}")
    print()
    width = max(len(row.name) for row in rows)
    print(f"{'bound':{width}}  {'epsilon':>9}  what it needs to be true")
    for row in rows:
        value = "-" if row.epsilon is None else f"{row.epsilon:.4f}"
        rounded = f" (rounded up by < {row.error:.0e})" if row.error > 0 else ""
        print(f"{row.name:{width}}  {value:>9}  {row.assumes}{rounded}")
        print(f"{'':{width}}  {'':>9}    {row.source}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the accountant.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0, or 2 after one clear line about what was wrong.
    """
    arguments = _parser().parse_args(argv)
    try:
        law = repetitions.parse(arguments.repetitions)
        checks.interval("delta", arguments.delta, 0.0, 1.0)
        checks.one_of("accounting", arguments.accounting, accounting.ACCOUNTINGS)
        mu = _mu_of(arguments, law)
        base = report_base(mu, arguments.delta, arguments.accounting, arguments.steps)
        bounds = upper_bounds.all_bounds(GaussianMechanism(mu), law, arguments.delta)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [base.bound, *bounds]
    if arguments.json:
        answer = {
            "delta": arguments.delta,
            "repetitions": law.spec,
            "base": asdict(base),
            "bounds": [_as_json(row) for row in rows],
        }
        print(json.dumps(answer, indent=2))
    else:
        _print_table(base, law, arguments.delta, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
