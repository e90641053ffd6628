"""Numbers of the calculator: answers, and curves of the cost over the number of runs.

A curve is first drawn from quick upper bounds and then refined, point by point, with the smallest
upper bounds, which take seconds for some protocols.
"""

import math
from dataclasses import dataclass

from audit import checks
from audit.accounting import DpSgd, RandomAllocation
from audit.commands.bounds_options import rounded_distribution
from audit.numerics import format_exact, memoize
from audit.protocols import Case, Protocol, parse_protocol
from audit.protocols.random_search import RandomRuns
from audit.upper_bounds.costs import cases_with, costs_of, statement_of_tuning

RUNS = (2, 3, 5, 10, 20, 30, 50, 100, 200, 500)
"""Numbers of runs at which the curve of the chosen protocol is refined."""
FIRST_RUNS = (2, 5, 20, 100, 500)
"""Numbers of runs of the first curve, and of the curves of all other protocols."""
START = "grid, every point once"
"""The protocol with which the calculator starts."""
POISSON = "each record with the sampling rate (Poisson)"
FRESH, FIXED = "one random batch in every epoch", "the same random batch in all epochs"
BATCHES = (POISSON, FRESH, FIXED)
"""How the batches of one run are drawn; the last two are random allocation."""
_MAX_REMEMBERED = 4096

Run = DpSgd | RandomAllocation
_costs: dict[tuple[Run, str, float], float] = {}


@dataclass(frozen=True)
class Answer:
    """The result that the page shows."""

    epsilon: float  # cost of the tuning
    one_run: float  # epsilon of one run
    # expected quantile of the best candidate, where candidates come from one prior
    quantile: float | None
    sentence: str  # the statement about the released model
    command: str  # the command line that computes the cost
    python: str  # the Python lines that compute it


@memoize(_MAX_REMEMBERED)
def quick_cost(run: Run, spec: str, delta: float) -> float:
    """An upper bound on the cost within about a tenth of a CPU second."""
    faster = run.coarse if isinstance(run, RandomAllocation) else run
    return costs_of(faster, spec, delta).preview


def cost(run: Run, spec: str, delta: float) -> float:
    """The cost of a tuning: the smallest upper bound. It is remembered."""
    if (run, spec, delta) not in _costs:
        _costs[run, spec, delta] = costs_of(run, spec, delta).smallest.epsilon
    return _costs[run, spec, delta]


def is_known(run: Run, spec: str, delta: float) -> bool:
    """Whether the cost is remembered."""
    return (run, spec, delta) in _costs


def remember(run: Run, spec: str, delta: float, epsilon: float) -> None:
    """Remembers a cost that another process computed."""
    _costs[run, spec, delta] = epsilon


def cases(runs: int) -> dict[str, Case]:
    """The protocols of the calculator by title, with rounded parameters."""
    cases: dict[str, Case] = {}
    for case in cases_with(runs):
        protocol = case.protocol
        if isinstance(protocol, RandomRuns):
            rounded = rounded_distribution(protocol.repetitions)
            prefix, slash, _ = protocol.spec.rpartition("/")
            protocol = parse_protocol(f"{prefix}{slash}{rounded}")
        cases[case.title] = Case(case.title, protocol, case.chosen)
    return cases


def titles_by_choice() -> dict[str, list[str]]:
    """The titles of `cases` by how candidates are chosen."""
    titles: dict[str, list[str]] = {}
    for case in cases(RUNS[0]).values():
        titles.setdefault(case.chosen, []).append(case.title)
    return titles


def protocol_of(title: str, runs: int) -> Protocol:
    """The protocol of a title with an expected number of runs."""
    protocols = cases(runs)
    return protocols[checks.one_of("protocol", title, protocols)].protocol


def counts_of_curve(runs: int, refined: bool) -> list[int]:
    """The numbers of runs of a curve, those near the user's number first."""
    counts = RUNS if refined else {*FIRST_RUNS, runs}
    return sorted(counts, key=lambda count: abs(math.log(count / runs)))


def first_curve(run: Run, title: str, runs: int, delta: float) -> dict[int, float]:
    """Upper bounds on the cost by number of runs, within about a CPU second.

    Args:
        run: one run.
        title: a key of `cases`.
        runs: the number of runs of the user, which is a point of the curve.
        delta: of the whole tuning, in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.
        DeltaUnreachable: no bound reaches delta.
    """
    return {
        count: quick_cost(run, protocol_of(title, count).spec, delta)
        for count in counts_of_curve(runs, refined=False)
    }


def compute(run: Run, title: str, runs: int, delta: float) -> Answer:
    """The cost of a tuning, its quality, its statement and the lines that reproduce it.

    Args:
        run: one run.
        title: a key of `cases`.
        runs: expected number of runs.
        delta: of the whole tuning, in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.
        DeltaUnreachable: no bound reaches delta.
    """
    protocol = protocol_of(title, runs)
    spec = protocol.spec
    epsilon = cost(run, spec, delta)
    options, constructor = _as_options(run), _as_python(run)
    sentence = str(statement_of_tuning(epsilon, delta, run, protocol))
    at = format_exact(delta)
    command = f"dp-tuning-audit bounds {options} --protocol {spec} --delta {at}"
    python = (
        f'import audit\n\nrun = {constructor}\naudit.tuning_cost(run, "{spec}", delta={at}).epsilon'
    )
    return Answer(
        epsilon, run.epsilon(delta), protocol.expected_quantile(), sentence, command, python
    )


def _as_options(run: Run) -> str:
    """The options of `bounds` that describe one run."""
    sigma = format_exact(run.noise_multiplier)
    if isinstance(run, DpSgd):
        return (
            f"--noise-multiplier {sigma} --sampling-rate {format_exact(run.sampling_rate)} "
            f"--steps {run.steps} --neighbours {run.neighbours}"
        )
    name = "fixed-allocation" if run.fixed else "allocation"
    return f"--base {name}:{sigma},{run.batches},{run.epochs}"


def _as_python(run: Run) -> str:
    """The Python expression that makes one run."""
    sigma = format_exact(run.noise_multiplier)
    if isinstance(run, DpSgd):
        return (
            f"audit.DpSgd(noise_multiplier={sigma}, steps={run.steps}, "
            f"sampling_rate={format_exact(run.sampling_rate)}, neighbours={run.neighbours!r})"
        )
    return (
        f"audit.accounting.RandomAllocation(noise_multiplier={sigma}, batches={run.batches}, "
        f"epochs={run.epochs}, fixed={run.fixed})"
    )
