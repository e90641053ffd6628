"""The mechanism that the accountant of a training loop has recorded."""

from typing import Any

from audit import checks
from audit.accounting.combinations import Composition
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import Mechanism


def from_opacus(accountant: Any, neighbours: str = "add-remove") -> Mechanism:
    """The mechanism that an Opacus accountant has recorded: one training run.

    Args:
        accountant: any Opacus accountant (RDP, GDP or PRV), or the PrivacyEngine that keeps it. Its
            `history` holds (noise multiplier, sampling rate, steps) of every phase; batches are
            taken to be Poisson-sampled, as Opacus samples them unless it is told not to. Opacus
            itself is not imported.
        neighbours: `add-remove`, as Opacus counts, or `replace-one`.

    Returns:
        One `DpSgd`, or the `Composition` of one for every noise and rate. In which order they came
        does not matter to the privacy of the whole.

    Raises:
        ValueError: what came is no accountant of one run, or one that has recorded no step.

    Example:
        >>> class Recorded:
        ...     history = [(1.0, 0.01, 500)]
        >>> from_opacus(Recorded())
        DpSgd(noise_multiplier=1.0, steps=500, sampling_rate=0.01, neighbours='add-remove')
    """
    history = getattr(getattr(accountant, "accountant", accountant), "history", None)
    if history is None:
        what = f"a {type(accountant).__name__}"
        if isinstance(accountant, list | tuple):
            what += f" of {len(accountant)}; runs that are tuned share one accounting: pass one"
        raise ValueError(f"accountant must be an Opacus accountant or PrivacyEngine, got {what}")
    steps_of: dict[tuple[float, float], int] = {}
    for phase in history:
        try:
            noise, rate, steps = map(float, phase)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"history must be of (noise multiplier, sampling rate, steps), got {phase!r}"
            ) from error
        before = steps_of.get((noise, rate), 0)
        steps_of[noise, rate] = before + checks.whole("steps", steps, 1)
    if not steps_of:
        raise ValueError(f"accountant must have recorded a step, got {accountant!r}")
    phases = [DpSgd(noise, steps, rate, neighbours) for (noise, rate), steps in steps_of.items()]
    return phases[0] if len(phases) == 1 else Composition(tuple(phases))
