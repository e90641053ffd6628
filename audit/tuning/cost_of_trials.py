"""The tuning you did: what it cost, told how its candidates were chosen."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit import checks, repetitions
from audit.accounting import (
    Candidates,
    Composition,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    Unreachable,
    WorstOf,
    ZeroConcentratedDp,
)
from audit.numerics import format_exact, format_rounded
from audit.protocols import Grid, Protocol, RandomSearch
from audit.repetitions import Fixed, Repetitions
from audit.upper_bounds import tuning_cost

__all__ = ["WAYS", "TuningCost", "cost_of_trials", "read_prior", "read_trials", "trial_of"]

WAYS = ("grid", "random", "sequential")
"""How candidates may have been chosen; `sequential` stands for all that looks back."""

_ALL = "composition of all"
_ASSUMED = {
    "grid": "the list of trials was fixed beforehand, each was run once and to its end, and none "
    "depended on another's outcome",
    "random": "the number of trials was fixed beforehand, each candidate was drawn anew (with "
    "replacement) from one prior, and every trial ran to its end",
    "law": "K was drawn from its law beforehand and stayed secret, each candidate was drawn anew "
    "(with replacement) from one prior, and every trial ran to its end",
    "sequential": "nothing of how candidates were chosen, but that they were chosen by what "
    "earlier trials released",
}
_OF_THE_PRIOR = {
    True: "what each trial is was drawn with the chances of the prior given",
    False: "none that could have been drawn is less private than the least private of these",
}
_WHY = {
    "grid": "a grid is less than all its trials, for the losers are not shown",
    "random": "a fixed number of draws hides nothing of K; a random K would",
    "law": "the law of K hides how many runs there were",
    "sequential": "later candidates depend on earlier outputs, so that losers speak through the "
    "winner: only the composition of all is proven",
}


@dataclass(frozen=True)
class TuningCost:
    """What a finished tuning cost.

    Attributes:
        trials: how many there were.
        chosen: how candidates were chosen.
        delta: in (0, 1).
        best_only: epsilon if nothing but the best trial is ever released.
        bound: what says so.
        all_released: epsilon of releasing every trial.
        assumed: what was taken to be true for `best_only`.
        why: in one line, why it costs so much.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> found = cost_of_trials([GaussianMechanism(0.1)] * 3, "sequential")
        >>> found.best_only == found.all_released
        True
    """

    trials: int
    chosen: str
    delta: float
    best_only: float
    bound: str
    all_released: float
    assumed: str
    why: str

    @property
    def lines(self) -> list[str]:
        """The same for people."""
        best, every = (
            format_rounded(value, up=True) for value in (self.best_only, self.all_released)
        )
        return [
            f"{self.trials} trials, chosen: {self.chosen}; delta = {format_exact(self.delta)}",
            f"only the best is released: epsilon = {best} (by {self.bound})",
            f"all are released:          epsilon = {every} (composition)",
            f"assumed: {self.assumed}; scores are made from outputs and public records alone",
            f"why: {self.why}",
        ]


def cost_of_trials(
    trials: str | Path | Sequence[Mechanism],
    chosen: str,
    delta: float = 1e-5,
    law: str | Repetitions | None = None,
    prior: Mechanism | None = None,
) -> TuningCost:
    """What a tuning cost that is over.

    Args:
        trials: the base mechanism of every trial, failed and pruned ones too; or a csv file of
            them, as `read_trials` reads it.
        chosen: `grid` (also: enumerated, or drawn without replacement), `random` (drawn with
            replacement), or `sequential` (TPE, CMA-ES, by hand, with pruning: all that looks back).
        delta: in (0, 1).
        law: the law from which the number of random trials was drawn; if not given, their number
            was fixed.
        prior: of random trials that are not all equally private, what one draw is:
            `accounting.Mixture` all that could have been drawn, each with its chance. A draw then
            costs the mean over them; if not given, under a law of K, the worst of those seen.

    Raises:
        ValueError: there is no trial, `chosen` is none of these, or a trial is none of the prior's.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> found = cost_of_trials([GaussianMechanism(0.1)] * 30, "random")
        >>> round(found.best_only, 2), round(found.all_released, 2)
        (1.41, 2.21)
    """
    runs = read_trials(trials) if isinstance(trials, str | Path) else list(trials)
    if not runs:
        raise ValueError("trials must be at least one, got none")
    chosen = checks.one_of("chosen", chosen, WAYS)
    if law is not None and chosen != "random":
        raise ValueError(f"law must be given with chosen random only, got {law!r} with {chosen}")
    if prior is not None:
        _check_prior(prior, runs, chosen)
    everything = all_of(runs).epsilon(delta)
    best, bound, way = everything, _ALL, "law" if law is not None else chosen
    distinct = list(dict.fromkeys(runs))
    # Whatever chance each budget had, no run is less private than the least private.
    worst = distinct[0] if len(distinct) == 1 else WorstOf(tuple(distinct))
    readings: list[tuple[Mechanism, Protocol]] = []
    if chosen == "random":
        draws = Fixed(len(runs)) if law is None else repetitions.parse_repetitions(law)
        readings.append((worst if prior is None else prior, RandomSearch(draws)))
    if chosen == "grid" or (chosen == "random" and law is None and len(distinct) > 1):
        # Draws that look at no data are a list, fixed before: then each candidate costs its own.
        one = worst if len(distinct) == 1 else Candidates(tuple(runs))
        readings.append((one, Grid(len(runs))))
    for base, protocol in readings:
        try:
            found = tuning_cost(base, protocol, delta)
        except Unreachable:
            if law is not None:
                raise
        else:
            # How many trials a law gave is secret: their composition is no bound for the law.
            if found.epsilon is not None and (found.epsilon < best or law is not None):
                best, bound = found.epsilon, f"{found.name}, {protocol.spec}"
    assumed = _ASSUMED[way]
    if law is not None or prior is not None:
        assumed += f"; {_OF_THE_PRIOR[prior is not None]}"
    return TuningCost(len(runs), chosen, delta, best, bound, everything, assumed, _WHY[way])


def _check_prior(prior: Mechanism, runs: Iterable[Mechanism], chosen: str) -> None:
    """Whether trials may have been drawn from a prior.

    Raises:
        ValueError: they can not.
    """
    if chosen != "random":
        raise ValueError(f"prior must be given with chosen random only, got chosen {chosen}")
    if isinstance(prior, Mixture) and prior.idle > 0.0:
        raise ValueError(f"prior must have chances that sum to 1, got {1.0 - prior.idle!r}")
    known = prior.candidates if isinstance(prior, Mixture) else (prior,)
    for run in runs:
        if run not in known:
            raise ValueError(f"prior must hold every trial, got none like {run.description}")


def all_of(runs: Iterable[Mechanism]) -> Mechanism:
    """All runs, one after the other; equal ones are counted, not listed."""
    steps: dict[tuple[float, float, str, int], int] = {}
    rest: list[Mechanism] = []
    for run in runs:
        if isinstance(run, DpSgd):
            kind = run.noise_multiplier, run.sampling_rate, run.neighbours, run.group_size
            steps[kind] = steps.get(kind, 0) + run.steps
        else:
            rest.append(run)
    parts: list[Mechanism] = [
        DpSgd(noise, count, rate, how, size) for (noise, rate, how, size), count in steps.items()
    ]
    parts += rest
    return parts[0] if len(parts) == 1 else Composition(tuple(parts))


def trial_of(values: Mapping[str, Any], neighbours: str = "add-remove") -> Mechanism | None:
    """One trial's mechanism from what is known of it; None if nothing is.

    Args:
        values: `noise_multiplier`, `steps` and, if it is not 1, `sampling_rate`; or `mu`; or `rho`.
            Others are not looked at.
        neighbours: `add-remove`, `zero-out` or `replace-one`.

    Raises:
        ValueError: a value is out of its range, or noise comes without steps.
    """
    known = {name: value for name, value in values.items() if value not in (None, "")}
    if "noise_multiplier" in known:
        if "steps" not in known:
            raise ValueError("steps must be given with noise_multiplier, got none")
        return DpSgd(
            known["noise_multiplier"],
            known["steps"],
            known.get("sampling_rate", 1.0),
            neighbours,
        )
    if "mu" in known:
        return GaussianMechanism(known["mu"])
    if "rho" in known:
        return ZeroConcentratedDp(checks.interval("rho", known["rho"], 0.0))
    return None


def read_trials(path: str | Path, neighbours: str = "add-remove") -> list[Mechanism]:
    """Trials from a csv file with a heading, one row a trial.

    Args:
        path: columns as `trial_of` has them; others are not looked at.
        neighbours: `add-remove`, `zero-out` or `replace-one`.

    Raises:
        ValueError: the file is missing, or a row names no mechanism.
    """
    return [trial for trial, _ in _rows("trials", path, neighbours)]


def read_prior(path: str | Path, neighbours: str = "add-remove") -> Mixture:
    """What trials were drawn from, from a csv file with a heading, one row a possible trial.

    Args:
        path: columns as `trial_of` has them, and `chance`; without it all rows are equally likely.
        neighbours: `add-remove`, `zero-out` or `replace-one`.

    Raises:
        ValueError: the file is missing, a row names no mechanism, or chances do not sum to 1.
    """
    rows = _rows("prior", path, neighbours)
    found: dict[Mechanism, float] = {}
    for one, values in rows:
        given: Any = values.get("chance") or 1.0 / len(rows)
        chance = checks.interval("chance", given, 0.0, 1.0, closed_high=True)
        found[one] = min(found.get(one, 0.0) + chance, 1.0)
    return Mixture(tuple(found), tuple(found.values()))


def _rows(name: str, path: str | Path, neighbours: str) -> list[tuple[Mechanism, dict[str, str]]]:
    """The mechanism of every row of a csv file, and the row."""
    try:
        # Spreadsheets put a mark of byte order in front.
        text = io.StringIO(checks.read_text(path).removeprefix("\ufeff"))
        rows = list(csv.DictReader(text, skipinitialspace=True))
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{name} must be a readable csv file, got {str(path)!r}") from error
    found = []
    for number, row in enumerate(rows, start=2):
        values = {str(key).strip(): one for key, one in row.items()}
        try:
            trial = trial_of(values, neighbours)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        if trial is None:
            raise ValueError(
                f"{name} must have columns noise_multiplier, steps and sampling_rate, or mu, or "
                f"rho, got line {number} of {str(path)!r} without"
            )
        found.append((trial, values))
    if not found:
        raise ValueError(f"{name} must be at least one row below a heading, got none in {path}")
    return found
