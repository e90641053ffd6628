"""Mechanisms from the history of an Opacus accountant."""

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from audit import checks
from audit.accounting.combinations import Composition
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import Mechanism
from audit.errors import InvalidInput
from audit.opacus_objects import accountant_of


def from_opacus(
    accountant: Any, neighbours: str = "zero-out", most_phases: int = 40, *, group_size: int = 1
) -> Mechanism:
    """The mechanism of one training run, from the history of an Opacus accountant.

    Args:
        accountant: an Opacus accountant (RDP, GDP or PRV), or the PrivacyEngine that contains it.
            Its `history` holds (noise multiplier, sampling rate, steps) of each phase. Batches are
            assumed to be Poisson-sampled, which is the default of Opacus. Opacus itself is not
            imported.
        neighbours: `zero-out`, `add-remove` or `replace-one`. Opacus divides each noisy sum by
            int(n * rate), where its rate is 1/len(loader) and n is the number of records. So its
            epsilon holds if n is public, which is `zero-out`, the default. Pass `add-remove`
            only if the divisor (`optimizer.expected_batch_size`), the sampling rate and the number
            of steps are constants that do not depend on n; the numbers are the same.
        most_phases: if a schedule has more phases of different noise or rate, similar phases are
            merged, with their smallest noise and largest rate. The result is an upper bound that
            takes seconds instead of minutes.
        group_size: number of records of one person, protected together.

    Returns:
        One `DpSgd`, or a `Composition` with one `DpSgd` for each noise and rate. The order of the
        phases does not affect the cost.

    Warns:
        UserWarning: the history begins again, so it may be that of several runs of one engine. Only
            a history with several phases shows it.

    Raises:
        InvalidInput: the argument is not the accountant of one run, or it has recorded no step.

    Example:
        >>> class Recorded:
        ...     history = [(1.0, 0.01, 500)]
        >>> from_opacus(Recorded()).description
        'DP-SGD, noise multiplier 1, 500 steps, rate 0.01, zero-out neighbours'
    """
    history = getattr(accountant_of(accountant), "history", None)
    if history is None:
        kind = checks.kind_of(accountant)
        if isinstance(accountant, list | tuple):
            kind += f" of {len(accountant)}; all runs of a tuning share one accounting, so pass one"
        raise InvalidInput(f"accountant must be an Opacus accountant or PrivacyEngine, got {kind}")
    if not isinstance(history, Iterable):
        raise InvalidInput(f"history must be a list of phases, got {checks.one_line(history)}")
    steps_of: dict[tuple[float, float], int] = {}
    order: list[tuple[float, float]] = []
    for phase in history:
        try:
            noise, rate, steps = map(float, phase)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(
                f"history must be of (noise multiplier, sampling rate, steps), "
                f"got {checks.one_line(phase)}"
            ) from error
        noise = checks.interval("noise_multiplier", noise, 0.0)
        rate = checks.interval("sampling_rate", rate, 0.0, 1.0, closed_high=True)
        before = steps_of.get((noise, rate), 0)
        steps_of[noise, rate] = before + checks.integer("steps", steps, 1)
        order.append((noise, rate))
    if not steps_of:
        raise InvalidInput(
            f"accountant must have recorded a step, got {checks.one_line(accountant)}"
        )
    _warn_of_several_runs(order)
    phases = runs_of(
        steps_of, checks.integer("most_phases", most_phases, 1), neighbours, group_size
    )
    return phases[0] if len(phases) == 1 else Composition(tuple(phases))


def _warn_of_several_runs(history: Sequence[tuple[float, float]]) -> None:
    """Warns if a history begins again, as that of an engine that trained several models does.

    Opacus adds steps of equal noise and rate to the last phase. So if the first noise and rate
    return after others, the history is that of several runs, or of one run with a cyclic schedule.
    Several runs of one constant noise are one phase, and are not noticed.
    """
    returns = sum(phase == history[0] != before for before, phase in itertools.pairwise(history))
    if returns:
        warnings.warn(
            f"the history begins again {'once' if returns == 1 else f'{returns} times'}: if one "
            f"PrivacyEngine trained {returns + 1} models, this mechanism is all of them together "
            "and not one run; make a new engine for each run",
            stacklevel=3,
        )


Phases = dict[tuple[float, float], int]
"""Steps by noise multiplier and sampling rate."""


def runs_of(
    steps_of: Phases, most: int = 40, neighbours: str = "add-remove", group_size: int = 1
) -> list[Mechanism]:
    """At most `most` runs of DP-SGD that together dominate the given phases."""
    phases = joined(steps_of, most)
    return [
        DpSgd(noise, steps, rate, neighbours, group_size) for (noise, rate), steps in phases.items()
    ]


def joined(steps_of: Phases, most: int) -> Phases:
    """Merges phases in the same cell of a grid of log noise and log rate.

    A step with the smallest noise and the largest rate of a cell dominates all steps in it. Cells
    grow by half until there are at most `most` phases.
    """
    width, merged = 1e-3, steps_of
    while len(merged) > most:
        cells: dict[tuple[int, int], tuple[float, float, int]] = {}
        for (noise, rate), steps in steps_of.items():
            cell = _cell(noise, width), _cell(rate, width)
            smallest_noise, largest_rate, before = cells.get(cell, (noise, rate, 0))
            cells[cell] = min(smallest_noise, noise), max(largest_rate, rate), before + steps
        merged = {}
        for noise, rate, steps in cells.values():
            merged[noise, rate] = merged.get((noise, rate), 0) + steps
        width *= 1.5
    return merged


def _cell(value: float, width: float) -> int:
    return math.floor(math.log(value) / width) if value > 0 else 0
