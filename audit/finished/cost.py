"""Cost of a finished tuning, given how its candidates were chosen."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit import checks
from audit.accounting import Candidates, DeltaUnreachable, Mechanism, Mixture, WorstOf
from audit.accounting.combinations import kinds
from audit.accounting.filters import check_protected, epsilon_of_cap, filter_for, odometer
from audit.claims import Kind
from audit.errors import InvalidInput
from audit.finished.combined_trials import (
    all_of,
    composed_epsilon,
    dominating_few,
    dominating_prior,
)
from audit.finished.trials_file import read_trials
from audit.numerics import format_exact, format_rounded
from audit.protocols import Grid, Protocol, RandomSearch, parse_protocol
from audit.repetitions import Fixed
from audit.upper_bounds import (
    ProtocolLike,
    UpperBound,
    grid_log_concave,
    grid_tight,
    smallest,
    tuning_cost,
)
from audit.upper_bounds.grid import grid

WAYS = ("grid", "random", "sequential")
"""How candidates may have been chosen; `sequential` if they depend on earlier results."""

PLANS = ("planned", "adaptive")
"""Whether the number of trials and their budgets were fixed before the first trial."""

_ALL = "composition of all trials"
# Without the bound by composition, which takes long for many different trials and is computed here.
_OF_GRIDS = grid, grid_tight, grid_log_concave
_WORDS = {
    "grid": (
        "the list of trials was fixed beforehand, each was run once and to its end, and none "
        "depended on another's outcome",
        "a grid costs less than releasing all its trials, because losing trials stay secret",
    ),
    "random": (
        "the number of trials was fixed beforehand, each candidate was drawn independently (with "
        "replacement) from one prior, and every trial ran to its end",
        "a fixed number of trials costs more than a random, secret number",
    ),
    "law": (
        "K was drawn from its distribution beforehand and stayed secret, each candidate was "
        "drawn independently (with replacement) from one prior, and every trial ran to its end",
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
class TuningCost:
    """Cost of a finished tuning.

    Attributes:
        trials: number of trials.
        chosen: how candidates were chosen.
        delta: in (0, 1).
        best_only: epsilon if only the best trial is ever released; None if no epsilon is proved,
            because the number of trials or their budgets depended on outputs.
        bound: the theorem behind `best_only`.
        all_released: epsilon of releasing every trial; None if `best_only` is.
        assumed: the assumptions of `best_only`.
        why: the reason for the cost, in one line.
        kind: `valid`, or `odometer reading`, which is no guarantee: a kind of `claims.Kind`.
        odometer: the privacy loss of all trials that is exceeded with probability at most delta;
            None if `best_only` is known, or if no finite reading is.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> found = cost_of_trials([GaussianMechanism(0.1)] * 3, "sequential")
        >>> found.kind, found.best_only == found.all_released
        ('valid', True)
    """

    trials: int
    chosen: str
    delta: float
    best_only: float | None
    bound: str
    all_released: float | None
    assumed: str
    why: str
    kind: str = Kind.BOUND.value
    odometer: float | None = None

    @property
    def lines(self) -> list[str]:
        """The cost as lines of text."""
        first = f"{self.trials} trials, chosen: {self.chosen}; delta = {format_exact(self.delta)}"
        if self.best_only is None or self.all_released is None:
            reading = "-" if self.odometer is None else format_rounded(self.odometer, up=True)
            numbers = [
                f"odometer reading: {reading} (privacy loss of all trials, exceeded with "
                f"probability at most {format_exact(self.delta)})",
                "not an (epsilon, delta)-DP guarantee: none is proved for this tuning",
            ]
        else:
            every = self.bound if self.bound.startswith("privacy filter") else "composition"
            numbers = [
                f"only the best is released: epsilon = {format_rounded(self.best_only, up=True)} "
                f"(by {self.bound})",
                "all are released:          epsilon = "
                f"{format_rounded(self.all_released, up=True)} ({every})",
            ]
        return [
            first,
            *numbers,
            f"assumed: {self.assumed}; scores are made from outputs and public records alone",
            f"why: {self.why}",
        ]


def cost_of_trials(
    trials: str | Path | Sequence[Mechanism],
    chosen: str,
    delta: float = 1e-5,
    protocol: ProtocolLike | None = None,
    prior: Mechanism | None = None,
    cap: float | Mechanism | None = None,
    budgets: str | None = None,
) -> TuningCost:
    """Cost of a finished tuning, given how its candidates were chosen.

    Args:
        trials: the base mechanism of every trial, including failed and pruned ones; or a csv file
            of them (`read_trials`).
        chosen: `grid` (also: enumerated, or drawn without replacement), `random` (drawn with
            replacement), or `sequential` (TPE, CMA-ES, by hand, with pruning: any choice that
            depends on earlier trials).
        delta: in (0, 1).
        protocol: for random trials, the random search or the distribution of K from which their
            number was drawn. Without it, their number was fixed.
        prior: for random trials that are not all equally private, the mechanism of one draw: an
            `accounting.Mixture` of all possible trials and their probabilities. A draw then costs
            the mean over them. Without it, a random K costs the worst of the given trials.
        cap: for sequential trials, the largest epsilon (or mechanism, see `tuning.Budget`) that all
            trials together were allowed to spend, fixed before the first trial. The number of
            trials and their budgets may then depend on earlier outputs, and the cap is the cost.
        budgets: for sequential trials without a cap: `planned` if their number and the budget of
            each were fixed before the first trial, `adaptive` if they depend on earlier outputs.
            The default is `planned` if all trials have the same budget, otherwise `adaptive`.

    Returns:
        The cost. For adaptive budgets without a cap it is an odometer reading and not an epsilon.

    Raises:
        InvalidInput: there is no trial, an argument is out of its range, a trial is not in the
            prior, or the trials exceed the cap.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> found = cost_of_trials([GaussianMechanism(0.1)] * 30, "random")
        >>> round(found.best_only, 2), round(found.all_released, 2)
        (1.41, 2.21)
        >>> trials = [GaussianMechanism(0.1), GaussianMechanism(0.2)]
        >>> cost_of_trials(trials, "sequential").kind
        'odometer reading'
        >>> cost_of_trials(trials, "sequential", cap=3.0).best_only
        3.0
    """
    runs = _checked_runs(trials)
    chosen = checks.one_of("chosen", chosen, WAYS)
    delta = checks.interval("delta", delta, 0.0, 1.0)
    search = None if protocol is None else _checked_search(protocol, chosen, len(runs))
    for name, value in {"cap": cap, "budgets": budgets}.items():
        if value is not None and chosen != "sequential":
            raise InvalidInput(f"{name} must be given with chosen sequential only, got {chosen}")
    different = dict.fromkeys(runs)
    if prior is not None:
        _check_prior(prior, different, chosen)
    check_protected("trials", different if prior is None else (*different, prior))
    if chosen == "sequential":
        return _cost_of_sequential(runs, delta, cap, budgets)
    return _cost_of_independent(runs, dominating_few(different), chosen, delta, search, prior)


def _checked_runs(trials: str | Path | Sequence[Mechanism]) -> list[Mechanism]:
    if isinstance(trials, str | Path):
        runs = read_trials(trials)
    else:
        runs = checks.items("trials", trials, "mechanisms")
    for one in runs:
        if not isinstance(one, Mechanism):
            raise InvalidInput(f"trials must be mechanisms, got {checks.one_line(one)}")
    if not runs:
        raise InvalidInput("trials must be at least one, got none")
    return runs


def _checked_search(protocol: ProtocolLike, chosen: str, trials: int) -> RandomSearch:
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


def _cost_of_independent(
    runs: list[Mechanism],
    few: Mapping[Mechanism, Mechanism],
    chosen: str,
    delta: float,
    search: RandomSearch | None,
    prior: Mechanism | None,
) -> TuningCost:
    """Cost of trials that do not depend on earlier results: a grid, or independent draws.

    `few` replaces each run by one that dominates it, and `search` is None if the number of trials
    was fixed.
    """
    everything = composed_epsilon(runs, delta)
    best, name = everything, _ALL
    different = list(dict.fromkeys(few.values()))
    # No run is less private than the least private candidate, whatever their probabilities.
    worst = different[0] if len(different) == 1 else WorstOf(tuple(different))
    found: list[tuple[UpperBound | None, Protocol]] = []
    if chosen == "random":
        protocol = search or RandomSearch(Fixed(len(runs)))
        one = worst if prior is None else dominating_prior(prior)
        try:
            found.append((tuning_cost(one, protocol, delta), protocol))
        except DeltaUnreachable:
            if search is not None:
                raise
    if chosen == "grid" or (search is None and len(different) > 1):
        # Draws that do not depend on the data are a list that was fixed beforehand.
        one = worst if len(different) == 1 else Candidates(tuple(few[run] for run in runs))
        grid_of_trials = Grid(len(runs))
        rows = [bound(one, grid_of_trials, delta) for bound in _OF_GRIDS]
        found.append((smallest(rows), grid_of_trials))
    for upper, assumed_protocol in found:
        # If K is secret, the composition of these trials is not a bound: it depends on K.
        if upper is not None and (upper.epsilon < best or search is not None):
            best, name = upper.epsilon, f"{upper.name}, {assumed_protocol.spec}"
    assumed, why = _WORDS[chosen if search is None else "law"]
    if (chosen, name) == ("grid", _ALL):
        why = "no proved bound for the best of these trials is below the cost of releasing all"
    if chosen == "random":
        assumed += f"; {_OF_THE_PRIOR[prior is not None]}"
    return TuningCost(len(runs), chosen, delta, best, name, everything, assumed, why)


def _cost_of_sequential(
    runs: list[Mechanism], delta: float, cap: float | Mechanism | None, budgets: str | None
) -> TuningCost:
    several, first = kinds(runs), (len(runs), "sequential", delta)
    if budgets is not None:
        budgets = checks.one_of("budgets", budgets, PLANS)
        if cap is not None:
            raise InvalidInput(f"budgets must not be given with a cap, got {budgets}")
    if cap is not None:
        epsilon = epsilon_of_cap(cap, delta)
        only_gaussian = all(run.gaussian_mu is not None for run, _ in several)
        kept = filter_for(
            cap if isinstance(cap, Mechanism) else epsilon, delta, runs[0], only_gaussian
        )
        spent = several if isinstance(cap, Mechanism) else [(all_of(runs), 1)]
        share, source = kept.share(spent), kept.source
        if not share <= 1.0:
            raise InvalidInput(
                f"cap must hold all trials, got {len(runs)} that spend "
                f"{format_rounded(share, up=True, digits=4)} times the cap; with budgets adaptive, "
                "they have an odometer reading"
            )
        return TuningCost(*first, epsilon, source, epsilon, *_WORDS["cap"])
    if budgets == "adaptive" or (budgets is None and len(several) > 1):
        reading = odometer([all_of(runs)], delta)
        source = "odometer (Rogers et al. 2016, Whitehouse et al. 2023)"
        known = reading if math.isfinite(reading) else None
        words = _WORDS["odometer"]
        return TuningCost(*first, None, source, None, *words, Kind.ODOMETER.value, known)
    everything = composed_epsilon(runs, delta)
    return TuningCost(*first, everything, _ALL, everything, *_WORDS["sequential"])


def _check_prior(prior: Mechanism, runs: Iterable[Mechanism], chosen: str) -> None:
    if not isinstance(prior, Mechanism):
        raise InvalidInput(f"prior must be a mechanism, got {checks.one_line(prior)}")
    if chosen != "random":
        raise InvalidInput(f"prior must be given with chosen random only, got chosen {chosen}")
    if isinstance(prior, Mixture) and prior.idle > 0.0:
        raise InvalidInput(f"prior must have chances that sum to 1, got {1.0 - prior.idle:g}")
    known = dict.fromkeys(prior.candidates if isinstance(prior, Mixture) else (prior,))
    for run in runs:
        if run not in known:
            raise InvalidInput(f"prior must hold every trial, got none like {run.description}")
