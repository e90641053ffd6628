"""Cost of a finished tuning: the smallest valid bound, given how its candidates were chosen."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from audit import checks
from audit.accounting import Candidates, DeltaUnreachable, Mechanism, Mixture, WorstOf
from audit.accounting.combinations import kinds
from audit.accounting.filters import epsilon_of_cap, filter_for, odometer
from audit.claims import Kind
from audit.errors import InvalidInput
from audit.finished.combined_trials import (
    all_of,
    composed_epsilon,
    dominating_prior,
)
from audit.numerics import format_rounded
from audit.protocols import Grid, Protocol, RandomSearch, parse_protocol
from audit.repetitions import Fixed
from audit.upper_bounds import ProtocolLike, UpperBound, costs_of

PLANS = ("planned", "adaptive")
"""Whether the number of trials and their budgets were fixed before the first trial."""

NO_BOUND = "no bound"
"""The kind of a cost for which no bound is valid."""

_ALL = "composition of all trials"
_WORDS = {
    "grid": (
        "the list of runs was fixed beforehand, each was run once, and none was changed or stopped "
        "because of another's result",
        "a grid costs less than releasing all its trials, because losing trials stay secret",
    ),
    "random": (
        "the number of runs was fixed beforehand, each candidate was drawn independently (with "
        "replacement) from one prior, and no run was stopped because of another's result",
        "a fixed number of trials costs more than a random, secret number",
    ),
    "law": (
        "K was drawn from its distribution beforehand and stayed secret, each candidate was "
        "drawn independently (with replacement) from one prior, and no run was stopped because of "
        "another's result",
        "the number of trials is random and secret",
    ),
    "sequential": (
        "the number of trials and the budget of each (noise, rate, steps) were fixed "
        "beforehand; candidates may depend on the outputs of earlier trials in any way",
        "later candidates depend on earlier outputs, so the winner reveals information "
        "about the losing trials: only the composition of all trials is proved",
    ),
    "cap": (
        "the cap and its accounting were fixed before the first trial; each trial was charged "
        "before it ran, and a trial that exceeds the cap would have been refused; everything else "
        "may depend on earlier outputs",
        "a privacy filter keeps its cap, even if every decision depends on earlier outputs",
    ),
    "odometer": (
        "each trial ran with the noise, rate and steps that are stated here",
        "the number of trials or their budgets may depend on earlier outputs, so no "
        "epsilon is proved; if they were fixed beforehand, pass budgets planned; if a cap was "
        "fixed beforehand, pass the cap",
    ),
}
"""The assumptions and the reason of a cost, by how the trials were chosen."""

_OF_THE_PRIOR = {
    True: "each trial was drawn from the given prior",
    False: "no candidate of the prior is less private than the least private of these trials",
}


@dataclass(frozen=True)
class Cost:
    """A cost before its runs are described.

    Attributes:
        best_only: epsilon if only the best run is released; None if none is proved.
        bound: the theorem behind it.
        all_released: epsilon of releasing every run; None if none is proved.
        assumed: how candidates were chosen, in words.
        why: the reason for the cost, in one line.
        kind: `valid`, `odometer reading` or `no bound`.
        odometer: the reading, if there is no epsilon.
    """

    best_only: float | None
    bound: str
    all_released: float | None
    assumed: str
    why: str
    kind: str = Kind.BOUND.value
    odometer: float | None = None


def checked_search(protocol: ProtocolLike, chosen: str, trials: int) -> RandomSearch:
    """The random search from whose distribution of K the number of trials was drawn."""
    if chosen != "random":
        raise InvalidInput(
            "protocol (the distribution of K) must be given with chosen random only, "
            f"got {checks.one_line(protocol)} with chosen {chosen}"
        )
    search = parse_protocol(protocol)
    if not isinstance(search, RandomSearch):
        raise InvalidInput(f"protocol must be a random search, got {search.spec}")
    if not math.isfinite(search.repetitions.log_pmf(trials)):
        raise InvalidInput(
            f"protocol must be a distribution that draws the number of trials, {trials} with "
            f"those that failed, got {search.repetitions.spec}"
        )
    return search


def cost_of_independent(
    runs: list[Mechanism],
    few: Mapping[Mechanism, Mechanism],
    chosen: str,
    delta: float,
    search: RandomSearch | None,
    prior: Mechanism | None,
) -> Cost:
    """Cost of trials that do not depend on earlier results: a grid, or independent draws.

    `few` replaces each run by one that dominates it, and `search` is None if the number of trials
    was fixed.
    """
    everything = composed_epsilon(runs, delta)
    best, name = everything, _ALL
    different = list(dict.fromkeys(few.values()))
    # No run is less private than the least private candidate, whatever their probabilities.
    worst = different[0] if len(different) == 1 else WorstOf(tuple(different))
    alternatives: list[tuple[UpperBound | None, Protocol]] = []
    if chosen == "random":
        protocol = search or RandomSearch(Fixed(len(runs)))
        base = worst if prior is None else dominating_prior(prior)
        try:
            alternatives.append((costs_of(base, protocol, delta).smallest, protocol))
        except DeltaUnreachable:
            if search is not None:
                raise
    if chosen == "grid" or (search is None and len(different) > 1):
        # Draws that do not depend on the data are a list that was fixed beforehand.
        base = worst if len(different) == 1 else Candidates(tuple(few[run] for run in runs))
        grid_of_trials = Grid(len(runs))
        # The composition takes long for many different trials and is computed above.
        costs = costs_of(base, grid_of_trials, delta)
        alternatives.append((costs.smallest_except(("composition",)), grid_of_trials))
    for upper, assumed_protocol in alternatives:
        # If K is secret, the composition of these trials is not a bound: it depends on K.
        if upper is not None and (upper.epsilon < best or search is not None):
            best, name = upper.epsilon, f"{upper.name}, {assumed_protocol.spec}"
    assumed, why = _WORDS[chosen if search is None else "law"]
    if (chosen, name) == ("grid", _ALL):
        why = "no proved bound for the best of these trials is below the cost of releasing all"
    if chosen == "random":
        assumed += f"; {_OF_THE_PRIOR[prior is not None]}"
    return Cost(best, name, everything, assumed, why)


def cost_of_sequential(
    runs: list[Mechanism], delta: float, cap: float | Mechanism | None, budgets: str | None
) -> Cost:
    """Cost of trials that may depend on earlier results: a composition, a cap or a reading."""
    run_kinds = kinds(runs)
    if budgets is not None:
        budgets = checks.one_of("budgets", budgets, PLANS)
        if cap is not None:
            raise InvalidInput(f"budgets must not be given with a cap, got {budgets}")
    if cap is not None:
        epsilon = epsilon_of_cap(cap, delta)
        only_gaussian = all(run.gaussian_mu is not None for run, _ in run_kinds)
        privacy_filter = filter_for(
            cap if isinstance(cap, Mechanism) else epsilon, delta, runs[0], only_gaussian
        )
        spent = run_kinds if isinstance(cap, Mechanism) else [(all_of(runs), 1)]
        share, source = privacy_filter.share(spent), privacy_filter.source
        if not share <= 1.0:
            raise InvalidInput(
                f"cap must hold all trials, got {len(runs)} that spend "
                f"{format_rounded(share, up=True, digits=4)} times the cap; with budgets adaptive, "
                "they have an odometer reading"
            )
        return Cost(epsilon, source, epsilon, *_WORDS["cap"])
    if budgets == "adaptive" or (budgets is None and len(run_kinds) > 1):
        reading = odometer([all_of(runs)], delta)
        source = "odometer (Rogers et al. 2016, Whitehouse et al. 2023)"
        finite_reading = reading if math.isfinite(reading) else None
        words = _WORDS["odometer"]
        return Cost(None, source, None, *words, Kind.ODOMETER.value, finite_reading)
    everything = composed_epsilon(runs, delta)
    return Cost(everything, _ALL, everything, *_WORDS["sequential"])


def check_prior(prior: Mechanism, runs: Iterable[Mechanism], chosen: str) -> None:
    """Refuses a prior that cannot have drawn the runs."""
    if not isinstance(prior, Mechanism):
        raise InvalidInput(f"prior must be a mechanism, got {checks.one_line(prior)}")
    if chosen != "random":
        raise InvalidInput(f"prior must be given with chosen random only, got chosen {chosen}")
    if isinstance(prior, Mixture) and prior.idle > 0.0:
        raise InvalidInput(f"prior must have chances that sum to 1, got {1.0 - prior.idle:g}")
    planned = dict.fromkeys(prior.candidates if isinstance(prior, Mixture) else (prior,))
    for run in runs:
        if run not in planned:
            raise InvalidInput(f"prior must hold every trial, got none like {run.description}")
