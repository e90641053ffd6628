"""Reads accountants and optimizers: history, clipping thresholds and released gradients."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from audit.accounting import Mechanism, from_opacus

History = tuple[tuple[float, float, int], ...]


def history_of(accountant: Any) -> History | None:
    """The phases (noise multiplier, sampling rate, steps) of an accountant; None without one."""
    history = getattr(accountant, "history", None)
    return None if history is None else tuple((float(s), float(q), int(n)) for s, q, n in history)


def run_of(history: History, neighbours: str = "zero-out") -> Mechanism:
    """The mechanism of a run with this history."""
    return from_opacus(SimpleNamespace(history=history), neighbours)


def has_full_batches(history: History | None) -> bool:
    """Whether an accountant recorded steps, all of them with every record."""
    return bool(history) and all(rate == 1.0 for _, rate, _ in history or ())


def is_of_opacus(optimizer: Any) -> bool:
    """Whether an optimizer is of a class of Opacus, or of a subclass."""
    return any(base.__module__.startswith("opacus.") for base in type(optimizer).__mro__)


def thresholds_of(optimizer: Any) -> list[float] | float | None:
    """C, or a list of one per tensor for per-layer clipping; None for other optimizers."""
    thresholds = getattr(optimizer, "max_grad_norms", None)
    if thresholds is not None:
        return [float(clip) for clip in thresholds]
    clip = getattr(optimizer, "max_grad_norm", None)
    return None if clip is None else float(clip)


def divisor_of(optimizer: Any) -> float:
    """By which an optimizer of Opacus divides the sum of clipped gradients and noise."""
    if getattr(optimizer, "loss_reduction", "sum") != "mean":
        return 1.0
    return float(optimizer.expected_batch_size * optimizer.accumulated_iterations)


def divides_as_opacus(optimizer: Any) -> bool:
    """Whether the optimizer divides by the batch size as Opacus does, and not by its own method."""
    method = getattr(type(optimizer), "scale_grad", None)
    return method is not None and method.__module__.startswith("opacus.")


@cache
def _remembering(calibrate: Callable[..., float]) -> Callable[..., float]:
    """The same function, which computes each answer once."""
    calibrated: dict[str, float] = {}

    def remembering(**arguments: Any) -> float:
        key = repr(sorted(arguments.items()))  # an argument may be a list
        if key not in calibrated:
            calibrated[key] = calibrate(**arguments)
        return calibrated[key]

    return remembering


@contextmanager
def remembered_calibration() -> Iterator[None]:
    """Computes the noise multiplier of `make_private_with_epsilon` once for equal arguments.

    It takes Opacus seconds, and an audit calls the training function many times.
    """
    engine = sys.modules.get("opacus.privacy_engine")
    if engine is None:
        yield
        return
    calibrate = engine.get_noise_multiplier
    engine.get_noise_multiplier = _remembering(calibrate)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        engine.get_noise_multiplier = calibrate  # type: ignore[attr-defined]


class StepThreshold:
    """The threshold C that clipped the gradient of the current step.

    Adaptive clipping sets C for the next step before it releases the gradient of this one. All
    other thresholds are read when they are used, because a schedule may change them between steps.

    Args:
        optimizer: the watched optimizer, of Opacus or of torch.

    Attributes:
        is_adaptive: whether the optimizer itself changes C.

    Example:
        >>> from types import SimpleNamespace
        >>> optimizer = SimpleNamespace(max_grad_norm=1.0)
        >>> threshold = StepThreshold(optimizer)
        >>> optimizer.max_grad_norm = 0.8
        >>> threshold.value
        0.8
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.is_adaptive = hasattr(optimizer, "update_max_grad_norm")
        self.start_step()

    @property
    def value(self) -> list[float] | float | None:
        """C as in `thresholds_of`."""
        return self._at_start if self.is_adaptive else thresholds_of(self._optimizer)

    @property
    def norm(self) -> float | None:
        """C; for per-layer clipping, the norm of all thresholds."""
        value = self.value
        return math.hypot(*value) if isinstance(value, list) else value

    def start_step(self) -> None:
        """Keeps the threshold of the next step, after this step's gradient was read."""
        self._at_start = thresholds_of(self._optimizer)


def hooks_of_steps(
    optimizer: Any, read: Callable[[], None], after: Callable[[], None] = lambda: None
) -> list[Any]:
    """Hooks that call `read` as soon as p.grad is the released gradient, and `after` the step.

    torch evaluates a closure within the step, which then releases p.grad. A subclass of an
    optimizer may call the step of its parent, for which torch calls the hooks once more: that is
    no further step. The call stack shows this, also after a step that raised an error.
    """

    def is_nested() -> bool:
        call = outer = sys._getframe(2)  # torch's wrapper of `step`, which calls the hooks
        while outer.f_back is not None:
            outer = outer.f_back
            if outer.f_code is call.f_code and outer.f_locals.get("self") is optimizer:
                return True
        return False

    def before_step(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_nested():
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
        if not is_nested():
            after()

    return [
        optimizer.register_step_pre_hook(before_step),
        optimizer.register_step_post_hook(after_step),
    ]
