"""Cost of a finished tuning, given how its candidates were chosen."""

import csv
import difflib
import io
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from audit.accounting.recorded import joined
from audit.claims import Kind
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.protocols import Grid, Protocol, RandomSearch, parse_protocol
from audit.repetitions import Fixed
from audit.tuning.budget import Budget, check_protected, filter_for, odometer
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
    if isinstance(trials, str | Path):
        runs = read_trials(trials)
    else:
        runs = checks.items("trials", trials, "mechanisms")
    for one in runs:
        if not isinstance(one, Mechanism):
            raise InvalidInput(f"trials must be mechanisms, got {checks.one_line(one)}")
    if not runs:
        raise InvalidInput("trials must be at least one, got none")
    chosen = checks.one_of("chosen", chosen, WAYS)
    delta = checks.interval("delta", delta, 0.0, 1.0)
    if protocol is not None and chosen != "random":
        raise InvalidInput(
            "protocol (the distribution of K) must be given with chosen random only, "
            f"got {checks.one_line(protocol)} with chosen {chosen}"
        )
    search = RandomSearch(Fixed(len(runs))) if protocol is None else parse_protocol(protocol)
    if not isinstance(search, RandomSearch):
        raise InvalidInput(f"protocol must be a random search, got {search.spec}")
    if not math.isfinite(search.repetitions.log_pmf(len(runs))):
        raise InvalidInput(
            f"protocol must be a distribution that draws the number of trials, {len(runs)} with "
            f"those that failed, got {search.repetitions.spec}"
        )
    different = dict.fromkeys(runs)
    for name, value in {"cap": cap, "budgets": budgets}.items():
        if value is not None and chosen != "sequential":
            raise InvalidInput(f"{name} must be given with chosen sequential only, got {chosen}")
    if prior is not None:
        _check_prior(prior, different, chosen)
        check_protected("trials", [*different, prior])
        prior = _fewer_drawn(prior)
    else:
        check_protected("trials", different)
    if chosen == "sequential":
        return _cost_of_sequential(runs, delta, cap, budgets)
    everything = _composed(runs, delta)
    best, name, way = everything, _ALL, "law" if protocol is not None else chosen
    alike = _alike(different)
    distinct = list(dict.fromkeys(alike.values()))
    # No run is less private than the least private candidate, whatever their probabilities.
    worst = distinct[0] if len(distinct) == 1 else WorstOf(tuple(distinct))
    readings: list[tuple[UpperBound | None, Protocol]] = []
    if chosen == "random":
        try:
            one = worst if prior is None else prior
            readings.append((tuning_cost(one, search, delta), search))
        except DeltaUnreachable:
            if protocol is not None:
                raise
    if chosen == "grid" or (chosen == "random" and protocol is None and len(distinct) > 1):
        # Draws that do not depend on the data are a list that was fixed beforehand.
        one = worst if len(distinct) == 1 else Candidates(tuple(alike[run] for run in runs))
        rows = [bound(one, Grid(len(runs)), delta) for bound in _OF_GRIDS]
        readings.append((smallest(rows), Grid(len(runs))))
    for found, assumed_protocol in readings:
        # If K is secret, the composition of these trials is not a bound: it depends on K.
        if found is not None and (found.epsilon < best or protocol is not None):
            best, name = found.epsilon, f"{found.name}, {assumed_protocol.spec}"
    assumed, why = _WORDS[way]
    if (way, name) == ("grid", _ALL):
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
        epsilon = Budget(cap, delta).epsilon
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
    everything = _composed(runs, delta)
    return TuningCost(*first, everything, _ALL, everything, *_WORDS["sequential"])


def _composed(runs: Sequence[Mechanism], delta: float) -> float:
    """Epsilon of all runs, by Renyi divergences if it or the losses are too large for a grid."""
    together = all_of(runs)
    if isinstance(together, Composition):
        found = together.renyi_epsilon(delta)
        if _MEANINGLESS < found < math.inf:
            return found
    try:
        return together.epsilon(delta)
    except Unresolved:
        found = together.renyi_epsilon(delta)
        if not math.isfinite(found):
            raise
        return found


_MEANINGLESS = 200.0
"""Above this epsilon, different trials are not composed on a grid: it would take minutes."""
_MAX_KINDS = 12
"""Different trials in one bound; each sampled one takes half a second and 25 MB."""


def _alike(runs: Iterable[Mechanism]) -> dict[Mechanism, Mechanism]:
    """Replaces each run by one that dominates it, so that few different runs remain.

    Runs are grouped by the logarithms of their parameters, in cells that grow until few remain. The
    run with the least noise, most steps and largest rate of a cell dominates all its runs.
    """
    left, merges = list(dict.fromkeys(runs)), []
    width = 1e-3
    while len(left) > _MAX_KINDS and width < 1e3:
        cells: dict[Hashable, list[Mechanism]] = {}
        for run in left:
            kind, numbers = _parameters(run)
            cell = kind, tuple([math.floor(math.log(one) / width) for one in numbers])
            cells.setdefault(cell, []).append(run)
        merges.append(
            {run: one for runs in cells.values() for one in [_dominating(runs)] for run in runs}
        )
        left = list(dict.fromkeys(merges[-1].values()))
        width *= 1.5
    found = {run: run for run in left}
    for merged in reversed(merges):
        found = {run: found[one] for run, one in merged.items()}
    return found


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
    first = runs[0]
    kind, _ = _parameters(first)
    largest = tuple(map(max, zip(*(_parameters(run)[1] for run in runs), strict=True)))
    if len(runs) == 1 or not largest:
        return first
    if kind == "mu":
        return GaussianMechanism(*largest)
    if kind == "rho":
        return ZeroConcentratedDp(*largest)
    assert isinstance(first, DpSgd)
    noise = min(run.noise_multiplier for run in runs if isinstance(run, DpSgd))
    return replace(first, noise_multiplier=noise, steps=largest[1], sampling_rate=largest[2])


def _fewer_drawn(prior: Mechanism) -> Mechanism:
    """A prior of few different mechanisms that dominates the given one."""
    if not isinstance(prior, Mixture):
        return prior
    alike = _alike(dict.fromkeys(prior.candidates))
    chances: dict[Mechanism, float] = {}
    for one, chance in zip(prior.candidates, prior.chances, strict=True):
        chances[alike[one]] = chances.get(alike[one], 0.0) + chance
    if len(chances) == len(prior.candidates):
        return prior
    return Mixture(tuple(chances), tuple(min(chance, 1.0) for chance in chances.values()))


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


_MAX_STEPS = 10**8  # that one `DpSgd` may have
_MAX_PHASES = 100
"""Kinds of sampled steps that are composed exactly; each takes about 10 ms."""


def all_of(runs: Iterable[Mechanism]) -> Mechanism:
    """The composition of runs; equal runs are counted, and many similar ones are merged."""
    steps: dict[tuple[str, int], dict[tuple[float, float], int]] = {}
    mus: dict[float, int] = {}
    rest: list[Mechanism] = []
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
            rest += [run] * times
    parts: list[Mechanism] = []
    for protected, phases in steps.items():
        for (noise, rate), count in joined(phases, _MAX_PHASES).items():
            several, left = divmod(count, _MAX_STEPS)
            lengths = [_MAX_STEPS] * several + ([left] if left else [])
            parts += [DpSgd(noise, length, rate, *protected) for length in lengths]
    if mus:
        # Losses of Gaussian runs add up to that of one.
        parts.append(GaussianMechanism(math.sqrt(math.fsum(n * mu * mu for mu, n in mus.items()))))
    if rho > 0.0:
        parts.append(ZeroConcentratedDp(rho))
    parts += rest
    return parts[0] if len(parts) == 1 else Composition(tuple(parts))


_KNOWN = ("noise_multiplier", "sampling_rate", "steps", "mu", "rho")


def trial_of(
    values: Mapping[str, Any], neighbours: str = "add-remove", group_size: int = 1
) -> Mechanism | None:
    """The mechanism of one trial, from the columns of `_KNOWN`; None if they describe none."""
    known = {name: value for name, value in values.items() if value not in (None, "")}
    if "noise_multiplier" in known:
        if "steps" not in known:
            raise InvalidInput("steps must be given with noise_multiplier, got none")
        return DpSgd(
            known["noise_multiplier"],
            known["steps"],
            known.get("sampling_rate", 1.0),
            neighbours,
            group_size,
        )
    for name, given, plain in (
        ("group_size", group_size, 1),
        ("neighbours", neighbours, "add-remove"),
    ):
        if given != plain and ("mu" in known or "rho" in known):
            raise InvalidInput(
                f"{name} must be {plain} for a trial with mu or rho, which hold for its own "
                f"group and neighbours, got {checks.one_line(given)}"
            )
    if "mu" in known:
        return GaussianMechanism(known["mu"])
    if "rho" in known:
        return ZeroConcentratedDp(checks.interval("rho", known["rho"], 0.0))
    return None


def read_trials(
    path: str | Path, neighbours: str = "add-remove", group_size: int = 1
) -> list[Mechanism]:
    """Trials from a csv file: a heading with columns of `_KNOWN`, then one row per trial."""
    return [trial for trial, _ in _rows("trials", path, neighbours, group_size)]


def read_prior(path: str | Path, neighbours: str = "add-remove", group_size: int = 1) -> Mixture:
    """The prior from a csv file with columns of `_KNOWN`, and `chance` if not equally likely."""
    rows = _rows("prior", path, neighbours, group_size)
    found: dict[Mechanism, float] = {}
    for one, given in rows:
        chance = checks.interval("chance", given or 1.0 / len(rows), 0.0, 1.0, closed_high=True)
        found[one] = min(found.get(one, 0.0) + chance, 1.0)
    return Mixture(tuple(found), tuple(found.values()))


def _rows(
    name: str, path: str | Path, neighbours: str, group_size: int
) -> list[tuple[Mechanism, Any]]:
    """The mechanism and the chance of every row of a csv file. Equal rows are read once."""
    given = f"{name} must be a readable csv file, got {checks.one_line(str(path))}"
    try:
        # Spreadsheets write a byte order mark first.
        text = io.StringIO(checks.read_text(path).removeprefix("\ufeff"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{given}: {checks.reason_of(error)}") from error
    rows = csv.DictReader(text, restval="", skipinitialspace=True, strict=True)
    read: dict[str, tuple[Mechanism, Any]] = {}
    found = []
    try:
        rows.fieldnames = [column.strip() for column in rows.fieldnames or ()]
        _check_heading(name, rows.fieldnames, path)
        for row in rows:
            if (key := repr(row)) not in read:
                where = f"{name}, line {rows.line_num}"
                read[key] = _trial_of_row(where, row, neighbours, group_size), row.get("chance")
            found.append(read[key])
    except csv.Error as error:
        reason = _REASONS.get(str(error), str(error))
        raise InvalidInput(f"{given}: {reason} in line {rows.reader.line_num}") from error
    if not found:
        raise InvalidInput(f"{name} must be at least one row below a heading, got none in {path}")
    return found


_REASONS = {
    "unexpected end of data": "a quote is not closed",
    "',' expected after '\"'": "a comma is missing after a quote",
}
"""Plain reasons for an invalid csv file, by the messages of Python's csv reader."""


def _check_heading(name: str, heading: list[str], path: str | Path) -> None:
    """Checks that a heading names the columns that identify a mechanism, each once."""
    if not heading:
        raise InvalidInput(f"{name} must be at least one row below a heading, got none in {path}")
    for column, times in Counter(heading).items():
        if times > 1 and column in (*_KNOWN, "chance"):
            raise InvalidInput(
                f"{name} must name column {column} once, got it {times} times in {path}"
            )
    identifies = {"noise_multiplier", "mu", "rho"} & set(heading)
    missing = [one for one in (_KNOWN[:3] if identifies else _KNOWN) if one not in heading]
    # A missing sampling rate means full batches; learning_rate is no misspelling of it.
    near = [
        f"{column!r} may be {alike[0]!r}"
        for column in heading
        if (
            alike := difflib.get_close_matches(
                _folded(column), missing, n=1, cutoff=0.85 if identifies else 0.6
            )
        )
    ]
    if not identifies or (near and "noise_multiplier" in heading):
        hint = f"; {', '.join(near)}" if near else ""
        raise InvalidInput(
            f"{name} must have columns noise_multiplier, steps and sampling_rate, or mu, or rho, "
            f"got {', '.join(map(repr, heading))} in {str(path)!r}{hint}"
        )


_OTHER_NAMES = {
    "sigma": "noise_multiplier",
    "noise": "noise_multiplier",
    "sample_rate": "sampling_rate",
    "rate": "sampling_rate",
    "batch": "sampling_rate",
    "batch_size": "sampling_rate",
    "q": "sampling_rate",
    "iterations": "steps",
}


def _folded(column: str) -> str:
    """The known name of a column, if it is written differently or has another common name."""
    plain = "_".join(column.lower().replace("-", " ").split())
    return _OTHER_NAMES.get(plain, plain)


def _trial_of_row(where: str, row: dict[str, str], neighbours: str, group_size: int) -> Mechanism:
    more = row.get(None, ())  # type: ignore[call-overload]
    if more:
        raise InvalidInput(
            f"{where}: row must have one value for each of {len(row) - 1} columns, got "
            f"{len(row) - 1 + len(more)}: write decimals with a point, not a comma"
        )
    identifying = [one for one in ("noise_multiplier", "mu", "rho") if row.get(one, "") != ""]
    if len(identifying) != 1:
        raise InvalidInput(
            f"{where}: row must have one of noise_multiplier, mu and rho, got "
            f"{' and '.join(identifying) or 'none of them'}"
        )
    try:
        trial = trial_of(row, neighbours, group_size)
    except ValueError as error:
        raise InvalidInput(f"{where}: {error}") from None
    assert trial is not None  # the row has one of the three
    return trial
