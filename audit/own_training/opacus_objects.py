"""What the objects of Opacus record: the history of an accountant, the clipping thresholds."""

from typing import Any

History = tuple[tuple[float, float, int], ...]


def history_of(accountant: Any) -> History | None:
    """The phases (noise multiplier, sampling rate, steps) of an accountant; None without one."""
    history = getattr(accountant, "history", None)
    return None if history is None else tuple((float(s), float(q), int(n)) for s, q, n in history)


def thresholds_of(optimizer: Any) -> list[float] | float | None:
    """C, one for every tensor where each is clipped on its own; None for other optimizers."""
    each = getattr(optimizer, "max_grad_norms", None)
    if each is not None:
        return [float(clip) for clip in each]
    clip = getattr(optimizer, "max_grad_norm", None)
    return None if clip is None else float(clip)
