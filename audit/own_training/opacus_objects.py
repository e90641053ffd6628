"""Reads the history of an accountant and the clipping thresholds of an optimizer of Opacus."""

from typing import Any

History = tuple[tuple[float, float, int], ...]


def history_of(accountant: Any) -> History | None:
    """The phases (noise multiplier, sampling rate, steps) of an accountant; None without one."""
    history = getattr(accountant, "history", None)
    return None if history is None else tuple((float(s), float(q), int(n)) for s, q, n in history)


def has_full_batches(history: History | None) -> bool:
    """Whether an accountant recorded steps, all of them with every record."""
    return bool(history) and all(rate == 1.0 for _, rate, _ in history or ())


def thresholds_of(optimizer: Any) -> list[float] | float | None:
    """C, or a list of one per tensor for per-layer clipping; None for other optimizers."""
    each = getattr(optimizer, "max_grad_norms", None)
    if each is not None:
        return [float(clip) for clip in each]
    clip = getattr(optimizer, "max_grad_norm", None)
    return None if clip is None else float(clip)
