"""Cost of a finished tuning: the smallest valid bound, given how its candidates were chosen.

Many trials are composed, or replaced by the few mechanisms that dominate them.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from audit import checks
from audit.accounting import (
    Candidates,
    Composition,
    DeltaUnreachable,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    Unresolved,
    WorstOf,
    ZeroConcentratedDp,
)
from audit.accounting.combinations import kinds
from audit.accounting.filters import epsilon_of_cap, filter_for, odometer
from audit.accounting.formats import joined
from audit.claims import Kind
from audit.errors import InvalidInput
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

_MAX_STEPS = 10**8  # that one `DpSgd` may have
_MAX_PHASES = 100
"""Kinds of sampled steps that are composed exactly; each takes about 10 ms."""
_MEANINGLESS = 200.0
"""Above this epsilon, different trials are not composed on a grid: it would take minutes."""
MAX_KINDS = 12
"""Different trials in one bound; each sampled one takes half a second and 25 MB."""


def composed_epsilon(runs: Sequence[Mechanism], delta: float) -> float:
    """Epsilon of all runs, by Renyi divergences if it or the losses are too large for a grid."""
    together = all_of(runs)
    if isinstance(together, Composition):
        epsilon = together.renyi_epsilon(delta)
        if _MEANINGLESS < epsilon < math.inf:
            return epsilon
    try:
        return together.epsilon(delta)
    except Unresolved:
        epsilon = together.renyi_epsilon(delta)
        if not math.isfinite(epsilon):
            raise
        return epsilon


def all_of(runs: Iterable[Mechanism]) -> Mechanism:
    """The composition of runs; equal runs are counted, and many similar ones are merged."""
    steps: dict[tuple[str, int], dict[tuple[float, float], int]] = {}
    mus: dict[float, int] = {}
    of_other_kinds: list[Mechanism] = []
    rho = 0.0
    several_runs = kinds(list(runs))
    full_batches = sum(run.gaussian_mu is not None for run, _ in several_runs)
    for run, times in several_runs:
        if isinstance(run, DpSgd) and (run.gaussian_mu is None or full_batches <= _MAX_PHASES):
            phases = steps.setdefault((run.neighbours, run.group_size), {})
            kind = run.noise_multiplier, run.sampling_rate
            phases[kind] = phases.get(kind, 0) + times * run.steps
        elif run.gaussian_mu is not None:
            mus[run.gaussian_mu] = mus.get(run.gaussian_mu, 0) + times
        elif isinstance(run, ZeroConcentratedDp):
            rho += times * run.rho
        else:
            of_other_kinds += [run] * times
    mechanisms: list[Mechanism] = []
    for protected, phases in steps.items():
        for (noise, rate), count in joined(phases, _MAX_PHASES).items():
            full_phases, remaining_steps = divmod(count, _MAX_STEPS)
            lengths = [_MAX_STEPS] * full_phases + ([remaining_steps] if remaining_steps else [])
            mechanisms += [DpSgd(noise, length, rate, *protected) for length in lengths]
    if mus:
        # Losses of Gaussian runs add up to that of one.
        mechanisms.append(
            GaussianMechanism(math.sqrt(math.fsum(n * mu * mu for mu, n in mus.items())))
        )
    if rho > 0.0:
        mechanisms.append(ZeroConcentratedDp(rho))
    mechanisms += of_other_kinds
    return mechanisms[0] if len(mechanisms) == 1 else Composition(tuple(mechanisms))


def dominating_few(runs: Iterable[Mechanism]) -> dict[Mechanism, Mechanism]:
    """Replaces each run by one that dominates it, so that few different runs remain.

    Runs are grouped by the logarithms of their parameters, in cells that grow until few remain. The
    run with the least noise, most steps and largest rate of a cell dominates all its runs.
    """
    candidates, merges = list(dict.fromkeys(runs)), []
    width = 1e-3
    while len(candidates) > MAX_KINDS and width < 1e3:
        cells: dict[Hashable, list[Mechanism]] = {}
        for run in candidates:
            kind, numbers = _parameters(run)
            cell = kind, tuple([math.floor(math.log(number) / width) for number in numbers])
            cells.setdefault(cell, []).append(run)
        merges.append(
            {
                run: dominating
                for runs in cells.values()
                for dominating in [_dominating(runs)]
                for run in runs
            }
        )
        candidates = list(dict.fromkeys(merges[-1].values()))
        width *= 1.5
    dominated_by = {run: run for run in candidates}
    for merged in reversed(merges):
        dominated_by = {run: dominated_by[merged_run] for run, merged_run in merged.items()}
    return dominated_by


def _parameters(run: Mechanism) -> tuple[Hashable, tuple[float, ...]]:
    """The kind of a run, and the numbers in which runs of a kind differ; all grow with its cost."""
    if run.gaussian_mu is not None:
        return "mu", (run.gaussian_mu,)
    if isinstance(run, DpSgd):
        kind = run.neighbours, run.group_size
        return kind, (1.0 / run.noise_multiplier, run.steps, run.sampling_rate)
    if isinstance(run, ZeroConcentratedDp):
        return "rho", (run.rho,)
    return run, ()  # no other run is known to dominate it


def _dominating(runs: list[Mechanism]) -> Mechanism:
    """A run of one kind that dominates runs of this kind."""
    representative = runs[0]
    kind, _ = _parameters(representative)
    largest = tuple(map(max, zip(*(_parameters(run)[1] for run in runs), strict=True)))
    if len(runs) == 1 or not largest:
        return representative
    if kind == "mu":
        return GaussianMechanism(*largest)
    if kind == "rho":
        return ZeroConcentratedDp(*largest)
    assert isinstance(representative, DpSgd)
    noise = min(run.noise_multiplier for run in runs if isinstance(run, DpSgd))
    return replace(
        representative, noise_multiplier=noise, steps=largest[1], sampling_rate=largest[2]
    )


def dominating_prior(prior: Mechanism) -> Mechanism:
    """A prior of few different mechanisms that dominates the given one."""
    if not isinstance(prior, Mixture):
        return prior
    alike = dominating_few(dict.fromkeys(prior.candidates))
    chances: dict[Mechanism, float] = {}
    for mechanism, chance in zip(prior.candidates, prior.chances, strict=True):
        chances[alike[mechanism]] = chances.get(alike[mechanism], 0.0) + chance
    if len(chances) == len(prior.candidates):
        return prior
    return Mixture(tuple(chances), tuple(min(chance, 1.0) for chance in chances.values()))


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
