"""The object by which a training function shows its optimizer and states its claim."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput
from audit.loop.runs.records import TrainingSet

if TYPE_CHECKING:
    from audit.loop.attack.white_box import WhiteBox, WhiteBoxTrace


class Watch:
    """An argument of `train`, which calls it with its optimizer before the first step.

    `watch(optimizer)` suffices with Opacus's `PrivacyEngine`. Further arguments, in any order, are
    the model (if the first step precedes any forward pass), and a `PrivacyEngine` or an accountant
    (if the optimizer does not step it). Other optimizers than Opacus's work if they release p.grad.
    Then C counts as 1, and the canary's gradient is scaled to length 1. `watch.claim(epsilon)`
    states the epsilon that the function promises.

    Args:
        canaries: the records whose gradients are taken, [m, ...]; None for Dirac canaries.
        included: [m] bool, which are in the data; m Dirac canaries take the first m coordinates.
        loss: summed loss of a torch module on records; None takes the cross-entropy.
        seed: seed of the batches that contain Dirac canaries.
        initial: initial weights and buffers of the run, by name; None leaves the function's.
        recorder: another watch that sees the same run, or None.

    Example:
        >>> import numpy as np
        >>> watch = Watch(None, np.array([True]))
        >>> watch.claim(2.1)
        >>> watch.claimed
        2.1
    """

    def __init__(
        self,
        canaries: TrainingSet | None,
        included: NDArray[np.bool_],
        loss: Callable[..., Any] | None = None,
        seed: int = 0,
        initial: Mapping[str, Any] | None = None,
        recorder: "Watch | None" = None,
    ) -> None:
        self._recorder = recorder
        self._initial = initial
        self._restored: set[str] = set()
        self._canaries, self._included = canaries, included
        self._loss, self._seed = loss, seed
        self._optimizer: Any = None
        self._accountant: Any = None
        self._model: Any = None
        self._white_box: WhiteBox | None = None
        self.claimed: float | None = None
        self.expected_batch_size: float | None = None

    def __call__(self, *watched: Any) -> None:
        """Watches an optimizer, and a model, a privacy engine or an accountant.

        Raises:
            InvalidInput: an argument is something else, or a second optimizer.
        """
        for each in watched:
            if hasattr(each, "param_groups"):
                if self._optimizer is not None and each is not self._optimizer:
                    raise InvalidInput(
                        "watch must be given one optimizer, got a second: give all parameters "
                        "that learn from the records to one, as parameter groups"
                    )
                self._optimizer = each
            elif hasattr(each, "accountant"):
                self._accountant = each.accountant
            elif hasattr(each, "history") and hasattr(each, "get_epsilon"):
                self._accountant = each
            elif hasattr(each, "parameters") and callable(each):
                self._model = each
            else:
                raise InvalidInput(
                    "watch must be given an optimizer, a model, a PrivacyEngine or an accountant, "
                    f"got {type(each).__name__}"
                )
        if self._recorder is not None:
            self._recorder(*watched)
        if self._optimizer is not None:
            self._attach()

    def _attach(self) -> None:
        """Attaches the white box to the optimizer, with the known model and accountant."""
        if self._white_box is None:
            from audit.loop.attack.white_box import WhiteBox

            self._white_box = WhiteBox(
                self._optimizer, self._canaries, self._included, self._loss, self._seed
            )
        if self._model is not None:
            self._white_box.model = self._model
        self._white_box.accountant = self.accountant
        if self.expected_batch_size is not None:
            self._optimizer.expected_batch_size = self.expected_batch_size
        self._restore(self._initial)

    def _parameters(self) -> list[Any]:
        groups = self._optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def _new_state(self) -> dict[str, Any]:
        """Every tensor of weights, buffers and optimizer, by name, that was not restored before."""
        parameters = self._parameters()
        state = {f"optimizer {i}": p for i, p in enumerate(parameters)}
        for i, p in enumerate(parameters):
            # Moments that the optimizer already holds, of an earlier training.
            held = self._optimizer.state.get(p, {}) if hasattr(self._optimizer, "state") else {}
            state |= {f"optimizer {i} {k}": v for k, v in held.items() if hasattr(v, "copy_")}
        if self._model is not None:
            held = {id(p) for p in state.values()}
            both = [*self._model.named_parameters(), *self._model.named_buffers()]
            state |= {name: value for name, value in both if id(value) not in held}
        return {name: value for name, value in state.items() if name not in self._restored}

    def _restore(self, initial: Mapping[str, Any] | None) -> None:
        """Sets weights and buffers of the same shape to their initial values."""
        import torch

        state = self._new_state()
        with torch.no_grad():
            for name, value in state.items():
                wanted = None if initial is None else initial.get(name)
                if wanted is not None and wanted.shape == value.shape:
                    value.copy_(wanted)
        self._restored |= set(state)

    def release(self, value: Any) -> Any:
        """Declares a further noisy number that the function releases and accounts for.

        The differential test forces it, as it forces released gradients: a noisy quantile that sets
        the next threshold, a noisy mean that standardizes the data.

        Args:
            value: a number, an array or a tensor, after its noise.

        Returns:
            The value to use from here: `value` itself outside of the differential test.

        Example:
            >>> Watch(None, np.array([True])).release(0.7)
            0.7
        """
        return value if self._recorder is None else self._recorder.release(value)

    def claim(self, epsilon: float) -> None:
        """States the epsilon that the function promises, at the delta of the audit."""
        self.claimed = checks.interval("claim", epsilon, 0.0, closed_low=True)

    @property
    def accountant(self) -> Any:
        """The function's own accountant, or None."""
        if self._accountant is not None:
            return self._accountant
        hook = getattr(self._optimizer, "step_hook", None)
        # Opacus's hook is a closure over the accountant that it steps.
        inside = {} if hook is None else inspect.getclosurevars(hook).nonlocals
        return next((each for each in inside.values() if hasattr(each, "get_epsilon")), None)

    def close(self) -> None:
        """Removes all hooks."""
        for each in (self._white_box, self._recorder):
            if each is not None:
                each.close()

    @property
    def failure(self) -> str:
        """The reason why the white box could not compute its statistics; empty if it could."""
        return "" if self._white_box is None else self._white_box.failure

    def trace(self) -> "WhiteBoxTrace | None":
        """The white box's trace of the run; None if no step was watched."""
        return None if self._white_box is None else self._white_box.trace()
