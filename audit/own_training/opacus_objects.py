"""Reads accountants and optimizers: history, clipping thresholds and released gradients."""

from collections.abc import Callable
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


def adapts_threshold(optimizer: Any) -> bool:
    """Whether the optimizer itself sets C for the next step before it releases its gradient."""
    return hasattr(optimizer, "update_max_grad_norm")


def hooks_of_steps(
    optimizer: Any, read: Callable[[], None], after: Callable[[], None] = lambda: None
) -> list[Any]:
    """Hooks that call `read` as soon as p.grad is the released gradient, and `after` the step.

    torch evaluates a closure within the step, which then releases p.grad. A subclass of an
    optimizer may call the step of its parent, for which torch calls the hooks once more: that is
    no further step.
    """
    depth = 0  # of the calls of step that have not returned

    def before_step(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal depth
        depth += 1
        if depth > 1:
            return None
        # torch passes the arguments of step, of which the first is the optimizer itself.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            read()
            return None

        def read_after_closure() -> Any:
            loss = closure()
            read()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": read_after_closure}
        return (args[0], read_after_closure, *args[2:]), kwargs

    def after_step(*_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            after()

    return [
        optimizer.register_step_pre_hook(before_step),
        optimizer.register_step_post_hook(after_step),
    ]
