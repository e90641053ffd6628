"""Reads optimizers while they train: clipping thresholds and released gradients."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from audit.accounting import Mechanism, from_opacus
from audit.opacus_objects import History, thresholds_of


def run_of(history: History, neighbours: str = "zero-out") -> Mechanism:
    """The mechanism of a run with this history."""
    return from_opacus(SimpleNamespace(history=history), neighbours)


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
