"""The mechanism that the accountant of a training loop has recorded."""

import math
from collections.abc import Iterable
from typing import Any

from audit import checks
from audit.accounting.combinations import Composition
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import Mechanism


def from_opacus(accountant: Any, neighbours: str = "zero-out", most_phases: int = 40) -> Mechanism:
    """The mechanism that an Opacus accountant has recorded: one training run.

    Args:
        accountant: any Opacus accountant (RDP, GDP or PRV), or the PrivacyEngine that keeps it. Its
            `history` holds (noise multiplier, sampling rate, steps) of every phase; batches are
            taken to be Poisson-sampled, as Opacus samples them unless it is told not to. Opacus
            itself is not imported.
        neighbours: `zero-out`, `add-remove` or `replace-one`. Opacus divides each noisy sum by
            int(n * rate), where its rate is 1/len(loader) and n is the number of records. So its
            epsilon holds where n is public, which is `zero-out`, the default. Pass `add-remove`
            only if the divisor (`optimizer.expected_batch_size`), the sampling rate and the number
            of steps are constants that do not depend on n; the numbers are the same.
        most_phases: where a schedule has more phases of different noise or rate, neighbouring ones
            are accounted for as one, with the least noise and the largest rate among them: what
            comes out is an upper bound, and takes seconds instead of minutes.

    Returns:
        One `DpSgd`, or the `Composition` of one for every noise and rate. In which order they came
        does not matter to the privacy of the whole.

    Raises:
        ValueError: what came is no accountant of one run, or one that has recorded no step.

    Example:
        >>> class Recorded:
        ...     history = [(1.0, 0.01, 500)]
        >>> from_opacus(Recorded()).description
        'DP-SGD, noise multiplier 1, 500 steps, rate 0.01, zero-out neighbours'
    """
    history = getattr(getattr(accountant, "accountant", accountant), "history", None)
    if history is None:
        what = f"a {type(accountant).__name__}"
        if isinstance(accountant, list | tuple):
            what += f" of {len(accountant)}; runs that are tuned share one accounting: pass one"
        raise ValueError(f"accountant must be an Opacus accountant or PrivacyEngine, got {what}")
    if not isinstance(history, Iterable):
        raise ValueError(f"history must be a list of phases, got {checks.one_line(history)}")
    steps_of: dict[tuple[float, float], int] = {}
    for phase in history:
        try:
            noise, rate, steps = map(float, phase)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"history must be of (noise multiplier, sampling rate, steps), "
                f"got {checks.one_line(phase)}"
            ) from error
        noise = checks.interval("noise_multiplier", noise, 0.0)
        rate = checks.interval("sampling_rate", rate, 0.0, 1.0, closed_high=True)
        before = steps_of.get((noise, rate), 0)
        steps_of[noise, rate] = before + checks.integer("steps", steps, 1)
    if not steps_of:
        raise ValueError(f"accountant must have recorded a step, got {checks.one_line(accountant)}")
    phases = runs_of(steps_of, checks.integer("most_phases", most_phases, 1), neighbours)
    return phases[0] if len(phases) == 1 else Composition(tuple(phases))


Phases = dict[tuple[float, float], int]


def runs_of(steps_of: Phases, most: int = 40, neighbours: str = "add-remove") -> list[Mechanism]:
    """DP-SGD of at most so many phases, which together dominate those that came.

    Args:
        steps_of: steps by (noise multiplier, sampling rate).
        most: where there are more phases, neighbouring ones are accounted for as one.
        neighbours: `add-remove`, `zero-out` or `replace-one`.
    """
    phases = joined(steps_of, most)
    return [DpSgd(noise, steps, rate, neighbours) for (noise, rate), steps in phases.items()]


def joined(steps_of: Phases, most: int) -> Phases:
    """At most so many phases: those in one cell of a grid of log noise and log rate are one.

    Less noise hides less, and a record that is sampled more often is hidden less: the step with the
    least noise and the largest rate of a cell dominates all in it.

    Args:
        steps_of: steps by noise and rate.
        most: at most so many remain. Cells grow by half until that is so.
    """
    width, found = 1e-3, steps_of
    while len(found) > most:
        cells: dict[tuple[int, int], tuple[float, float, int]] = {}
        for (noise, rate), steps in steps_of.items():
            cell = _cell(noise, width), _cell(rate, width)
            least, largest, before = cells.get(cell, (noise, rate, 0))
            cells[cell] = min(least, noise), max(largest, rate), before + steps
        found = {}
        for noise, rate, steps in cells.values():
            found[noise, rate] = found.get((noise, rate), 0) + steps
        width *= 1.5
    return found


def _cell(value: float, width: float) -> int:
    return math.floor(math.log(value) / width) if value > 0 else 0
