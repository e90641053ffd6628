"""For users of Opacus: the cost of tuning, from the accountant of the training loop."""

from typing import Any

from audit import repetitions as laws
from audit.accounting.dpsgd import Composition, DpSgd
from audit.accounting.mechanisms import Mechanism


def from_opacus(accountant: Any, neighbours: str = "add-remove") -> Mechanism:
    """The mechanism that an Opacus accountant has recorded: one training run.

    Args:
        accountant: any Opacus accountant; its `history` holds (noise multiplier, sampling rate,
            steps) of every phase. Opacus itself is not imported.
        neighbours: `add-remove`, as Opacus counts, or `replace-one`.

    Raises:
        ValueError: the accountant has recorded no step.
    """
    history = list(getattr(accountant, "history", []))
    if not history:
        raise ValueError(f"accountant must have recorded a step, got {accountant!r}")
    phases = [
        DpSgd(float(noise), int(steps), float(rate), neighbours) for noise, rate, steps in history
    ]
    return phases[0] if len(phases) == 1 else Composition(tuple(phases))


def tuning_epsilon(
    accountant: Any,
    repetitions: "str | laws.Repetitions",
    delta: float,
    neighbours: str = "add-remove",
) -> float:
    """What it cost to train K times and release the best run, by the tightest bound.

    Whatever the score by which the best run was chosen.

    Args:
        accountant: the Opacus accountant of one of the runs, after training.
        repetitions: the law from which K was drawn, as `repetitions.parse` reads it.
        delta: in (0, 1).
        neighbours: `add-remove` or `replace-one`.

    Example:
        >>> class Recorded:
        ...     history = [(1.0, 0.01, 500)]
        >>> round(tuning_epsilon(Recorded(), "tnb:0,0.01", 1e-5), 3)
        2.01
    """
    from audit.upper_bounds import tightest  # bounds stand on accounting, so only here

    law = laws.parse(repetitions)
    epsilon = tightest(from_opacus(accountant, neighbours), law, delta).epsilon
    assert epsilon is not None  # tightest raises where no bound applies
    return epsilon
