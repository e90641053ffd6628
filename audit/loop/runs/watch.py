"""The object by which a training function shows its optimizer and states its claim."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.accounting import from_opacus
from audit.errors import InvalidInput
from audit.loop.runs.records import TrainingSet
from audit.loop.sources.arrays import ArraySteps, Gradient, record_gradient
from audit.loop.sources.trees import Tree, Values
from audit.opacus_objects import step_counter_of

if TYPE_CHECKING:
    from audit.loop.attack.white_box import WhiteBox, WhiteBoxTrace


_MAX_STEPS = 10**9


class StatedAccountant:
    """Steps of a sampled Gaussian mechanism, as a loop stated them.

    Attributes:
        history: phases (noise multiplier, sampling rate, steps), as in an accountant of Opacus.

    Example:
        >>> accountant = StatedAccountant()
        >>> accountant.add(1.0, 0.25, 100)
        >>> accountant.add(1.0, 0.25, 20)
        >>> accountant.history
        [(1.0, 0.25, 120)]
        >>> 20 < accountant.get_epsilon(1e-5) < 21
        True
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def add(self, noise_multiplier: float, sampling_rate: float, steps: int) -> None:
        """Adds a phase of equal steps.

        Raises:
            InvalidInput: a number is out of its range.
        """
        noise = checks.interval("noise_multiplier", noise_multiplier, 0.0, closed_low=True)
        rate = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_high=True)
        count = checks.integer("steps", steps, 1, _MAX_STEPS)
        if self.history and self.history[-1][:2] == (noise, rate):
            count += self.history.pop()[2]
        self.history.append((noise, rate, count))

    def add_event(self, event: Any, times: int = 1) -> None:
        """Adds the steps of a `DpEvent` of dp-accounting.

        Args:
            event: compositions of Gaussian and of Poisson-sampled Gaussian events.
            times: number of times that it is composed.

        Raises:
            InvalidInput: the event is of another kind.
        """
        kind = type(event).__name__
        if kind == "NoOpDpEvent":
            return
        if kind == "SelfComposedDpEvent":
            self.add_event(event.event, times * checks.integer("count", event.count, 1))
        elif kind == "ComposedDpEvent":
            for _ in range(times):
                for member in event.events:
                    self.add_event(member)
        elif kind == "GaussianDpEvent":
            self.add(event.noise_multiplier, 1.0, times)
        elif kind == "PoissonSampledDpEvent" and type(event.event).__name__ == "GaussianDpEvent":
            self.add(event.event.noise_multiplier, event.sampling_probability, times)
        else:
            raise InvalidInput(
                "event must compose GaussianDpEvent and PoissonSampledDpEvent of it, got "
                f"{checks.kind_of(event)}: state watch.claim(epsilon) instead"
            )

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of all steps; infinite for steps without noise."""
        if not self.history:
            return 0.0
        if any(noise == 0.0 for noise, _, _ in self.history):
            return math.inf
        return float(from_opacus(self).epsilon(delta))


class Watch:
    """An argument of `train`, which calls it with its optimizer before the first step.

    `watch(optimizer)` suffices with Opacus's `PrivacyEngine`. Further arguments, in any order, are
    the model (if the first step precedes any forward pass), and a `PrivacyEngine` or an accountant
    (if the optimizer does not step it). Other optimizers than Opacus's work if they release p.grad.
    Then C counts as 1, and the canary's gradient is scaled to length 1. `watch.claim(epsilon)`
    states the epsilon that the function promises.

    A loop of arrays (numpy, JAX, TensorFlow) has no such optimizer. It calls
    `noisy = watch.step(noisy)` in each step, and states its accounting by `watch.account`.

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
        self._arrays: ArraySteps | None = None
        self._record_gradient: Any = None
        self._started = 0
        self.claimed: float | None = None
        self.failed: Exception | None = None
        self.expected_batch_size: float | None = None

    def __call__(self, *watched: Any) -> None:
        """Watches an optimizer, and a model, a privacy engine or an accountant.

        Raises:
            InvalidInput: an argument is something else, or a second optimizer.
        """
        for argument in watched:
            if hasattr(argument, "param_groups"):
                if self._optimizer is not None and argument is not self._optimizer:
                    raise InvalidInput(
                        "watch must be given one optimizer, got a second: give all parameters "
                        "that learn from the records to one, as parameter groups"
                    )
                self._optimizer = argument
            elif hasattr(argument, "accountant"):
                self._accountant = argument.accountant
            elif hasattr(argument, "history") and hasattr(argument, "get_epsilon"):
                self._accountant = argument
            elif hasattr(argument, "parameters") and callable(argument):
                self._model = argument
            else:
                raise InvalidInput(
                    "watch must be given an optimizer, a model, a PrivacyEngine or an accountant, "
                    f"got {type(argument).__name__}"
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
        self._white_box.record_gradient = self._record_gradient
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
            tensors = [*self._model.named_parameters(), *self._model.named_buffers()]
            state |= {name: value for name, value in tensors if id(value) not in held}
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

    def step(
        self,
        noisy: Any,
        params: Any = None,
        *,
        encoder: Any = None,
        gradient: Gradient | None = None,
    ) -> Any:
        """Declares the noisy value that one step of a loop of arrays releases.

        The differential test records it and, in coupled runs, replaces it by that of another run.
        So the loop must use the returned value. Call it once per step, right after the noise is
        added, with all arrays of the step.

        Args:
            noisy: the noisy sum or mean of clipped gradients: an array of numpy, JAX, TensorFlow or
                torch, or dictionaries, lists and tuples of arrays.
            params: the weights before the step, of any shapes. With them, the test sees whether
                the weights depend on anything but earlier noisy values.
            encoder: [T, T], the encoder matrix C of correlated noise (DP-FTRL, BandMF): the loop
                releases the gradients plus C^-1 z, with independent noise z. C times the stack of
                the T released values is tested as one Gaussian mechanism: account for one step.
            gradient: `gradient(params, features, label)`: the gradient of one record without
                clipping and noise. With it, the test seeks records with long and with opposite
                gradients, and the attack compares each step with the canary's gradient.

        Returns:
            The value to use from here, of the same types: `noisy = watch.step(noisy)`.

        Raises:
            InvalidInput: the value holds something other than arrays of real numbers.

        Example:
            >>> record = TrainingSet(np.zeros((1, 2)), np.zeros(1, int))
            >>> Watch(record, np.array([True])).step({"w": np.ones(2)})
            {'w': array([1., 1.])}
        """
        return self._step(noisy, params, encoder, gradient, can_stop=True)

    def step_of_compiled_code(self, noisy: Any, params: Any, encoder: Any) -> Any:
        """The same for a callback of compiled code, which no exception can end."""
        return self._step(noisy, params, encoder, None, can_stop=False)

    def _step(
        self, noisy: Any, params: Any, encoder: Any, gradient: Gradient | None, can_stop: bool
    ) -> Any:
        if self._arrays is None:
            if self._optimizer is not None:
                raise InvalidInput(
                    "watch must be given the values of one optimizer, got watch.step after "
                    "watch(optimizer)"
                )
            self._arrays = ArraySteps(self, self._force_row)
        self._keep_params(params, gradient, checks.flag("can_stop", can_stop))
        return self._arrays.step(noisy, encoder)

    def _keep_params(self, params: Any, gradient: Gradient | None, can_stop: bool) -> None:
        """Keeps the weights before a step, and the gradient of a record at these weights."""
        if self._recorder is not None:
            self._recorder._keep_params(params, gradient, can_stop)
        if gradient is not None:
            self._record_gradient = record_gradient(gradient, params)
            if self._white_box is not None:
                self._white_box.record_gradient = self._record_gradient

    def _force_row(self, number: int, row: Values) -> Values:
        """The flat values that a step with correlated noise uses."""
        return row if self._recorder is None else self._recorder._force_row(number, row)

    def start(self, params: Any) -> Any:
        """Fixes the initial weights of a loop of arrays.

        An accountant's epsilon holds for every initialization. So all runs of a test may start from
        the same weights, and must where the initial weights depend on the seed.

        Args:
            params: the initial weights: arrays, or dictionaries, lists and tuples of arrays.

        Returns:
            The weights to start from, of the same types: `params = watch.start(params)`.

        Raises:
            InvalidInput: the value holds something other than arrays of real numbers.

        Example:
            >>> Watch(None, np.array([True])).start([0.5])
            [0.5]
        """
        import torch

        number = self._started
        self._started += 1
        tree = Tree.of(params, "params")
        state = {
            f"start {number} {leaf.name}": torch.from_numpy(np.array(leaf.values, np.float64))
            for leaf in tree.leaves
        }
        initial = self._initial_weights(state)
        values = [
            wanted.numpy() if wanted is not None and wanted.shape == value.shape else value.numpy()
            for value, wanted in ((value, initial.get(name)) for name, value in state.items())
        ]
        return tree.with_values(values)

    def _initial_weights(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._recorder is not None:
            self._recorder._initial_weights(state)
        return {} if self._initial is None else self._initial

    def account(
        self,
        event: Any = None,
        *,
        noise_multiplier: float | None = None,
        sampling_rate: float = 1.0,
        steps: int | None = None,
    ) -> None:
        """States the accounting of a loop that has no accountant of Opacus.

        Args:
            event: a `DpEvent` of dp-accounting that composes (Poisson-sampled) Gaussian events; or
                None, with the numbers below.
            noise_multiplier: standard deviation of the noise of a step over C, the largest
                contribution of one record.
            sampling_rate: probability that a record is in a batch; 1 for full batches.
            steps: number of steps. Further calls add further steps.

        Raises:
            InvalidInput: a number is missing or out of its range, or the event is of another kind.

        Example:
            >>> watch = Watch(None, np.array([True]))
            >>> watch.account(noise_multiplier=1.0, sampling_rate=0.1, steps=50)
            >>> watch.accountant.history
            [(1.0, 0.1, 50)]
        """
        if not isinstance(self._accountant, StatedAccountant):
            self._accountant = StatedAccountant()
        if event is not None:
            self._accountant.add_event(event)
        elif noise_multiplier is None or steps is None:
            missing = "noise_multiplier" if noise_multiplier is None else "steps"
            raise InvalidInput(f"{missing} must be given to watch.account, got none")
        else:
            self._accountant.add(noise_multiplier, sampling_rate, steps)
        if self._recorder is not None:
            self._recorder._accountant = self._accountant
        if self._white_box is not None:
            self._white_box.accountant = self._accountant

    def release(
        self, value: Any, *, noise_multiplier: float | None = None, epsilon: float | None = None
    ) -> Any:
        """Declares a further noisy number that the function releases and accounts for.

        The differential test forces it, as it forces released gradients: a noisy quantile that sets
        the next threshold, a noisy mean that standardizes the data. In a function without a
        training loop (a histogram, moments for a regression, a noisy k-means), state the noise of
        each value: then its sensitivity and its noise are tested.

        Args:
            value: a number, an array or a tensor, right after its noise; or containers of them.
            noise_multiplier: of Gaussian noise, its standard deviation over the L2 sensitivity.
            epsilon: of Laplace or geometric noise, the L1 sensitivity over its scale.

        Returns:
            The value to use from here: `value` itself outside of the differential test.

        Raises:
            InvalidInput: both numbers are given, or one is not positive.

        Example:
            >>> Watch(None, np.array([True])).release(0.7)
            0.7
        """
        if noise_multiplier is not None and epsilon is not None:
            raise InvalidInput("epsilon must be left out where noise_multiplier is given")
        for name, number in (("noise_multiplier", noise_multiplier), ("epsilon", epsilon)):
            if number is not None:
                checks.interval(name, number, 0.0)
        if self._recorder is None:
            return value
        return self._recorder.release(value, noise_multiplier=noise_multiplier, epsilon=epsilon)

    def raise_failure(self) -> None:
        """Raises the error of a step within compiled code, from which it could not be raised."""
        if self.failed is not None:
            raise self.failed

    def claim(self, epsilon: float) -> None:
        """States the epsilon that the function promises, at the delta of the audit."""
        self.claimed = checks.interval("claim", epsilon, 0.0, closed_low=True)

    @property
    def accountant(self) -> Any:
        """The function's own accountant, or None."""
        if self._accountant is not None:
            return self._accountant
        return step_counter_of(self._optimizer).accountant

    def close(self) -> None:
        """Removes all hooks."""
        for observer in (self._white_box, self._recorder):
            if observer is not None:
                observer.close()

    @property
    def failure(self) -> str:
        """The reason why the white box could not compute its statistics; empty if it could."""
        return "" if self._white_box is None else self._white_box.failure

    def trace(self) -> "WhiteBoxTrace | None":
        """The white box's trace of the run; None if no step was watched."""
        return None if self._white_box is None else self._white_box.trace()
