"""Steps of a loop of arrays: `watch.step`, `watch.start`, correlated noise, and `audit.step`.

Traced code (`jax.jit`, `lax.scan`) is compiled once and called many times. It cannot hold the watch
of one run. `step` looks up the watch of the current run when the compiled code runs.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.loop.sources.trees import Tree, Values, is_traced

if TYPE_CHECKING:
    from audit.loop.sources.stand_in import StandInOptimizer


# A list and not a context variable, because compiled code calls back in another thread.
_watches: list[Any] = []
Gradient = Callable[[Any, Any, Any], Any]
"""`gradient(params, features, label)`: one record's gradient, without clipping and noise."""


@contextmanager
def current_watch(watch: Any) -> Iterator[None]:
    """Makes a watch the one that `step` uses."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.pop()


def step(
    noisy: Any,
    params: Any = None,
    *,
    encoder: Any = None,
    gradient: Callable[[Any, Any, Any], Any] | None = None,
) -> Any:
    """Declares the noisy value that one step of a training loop releases.

    The function does the same as `watch.step` of `audit.check`, and may be called anywhere, also in
    code that JAX traces. Outside of a check, it returns its argument. In traced code, it adds an
    ordered callback to the compiled function, which costs about 0.1 ms a step. Compiled code does
    not end early, so a check of it makes complete runs.

    Args:
        noisy: the noisy sum or mean of clipped gradients: an array of numpy, JAX, TensorFlow or
            torch, or dictionaries, lists and tuples of arrays.
        params: the weights before the step. With them, the test sees whether they depend on
            anything but earlier noisy values.
        encoder: [T, T], the encoder matrix C of correlated noise, see `watch.step`.
        gradient: `gradient(params, features, label)`, see `watch.step`; not in traced code.

    Returns:
        The value to use from here: `noisy = audit.step(noisy)`.

    Raises:
        InvalidInput: the value holds something other than arrays of real numbers.

    Example:
        >>> step([1.0, 2.0])
        [1.0, 2.0]
    """
    if is_traced((noisy, params)):
        return _traced_step(noisy, params, encoder)
    if not _watches:
        return noisy
    return _watches[-1].step(noisy, params, encoder=encoder, gradient=gradient)


def _traced_step(noisy: Any, params: Any, encoder: Any) -> Any:
    """Adds a callback to traced code, which finds the watch when the code runs."""
    jax = sys.modules["jax"]
    from jax.experimental import io_callback

    def on_host(value: Any, weights: Any) -> Any:
        value = jax.tree_util.tree_map(_on_host, value)
        if not _watches:
            return value
        watch = _watches[-1]
        try:
            weights = jax.tree_util.tree_map(_on_host, weights)
            return watch.step_of_compiled_code(value, weights, encoder)
        except Exception as error:  # it would leave compiled code with another type and text
            watch.failed = watch.failed or error
            return value

    shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), noisy)
    return io_callback(on_host, shapes, noisy, params, ordered=True)


def _on_host(value: Any) -> Any:
    return np.asarray(value)


class ArraySteps:
    """Feeds the released arrays of a run to a stand-in optimizer.

    Args:
        watch_optimizer: called with the stand-in before the first step.
        force_row: `force_row(number, row)` for a step with correlated noise: records the flat
            values of the step, and returns those that the loop uses.
    """

    def __init__(
        self,
        watch_optimizer: Callable[[Any], None],
        force_row: Callable[[int, Values], Values],
    ) -> None:
        self._watch_optimizer, self._force_row = watch_optimizer, force_row
        self._optimizer: StandInOptimizer | None = None
        self._shapes: Any = None
        self._rows: list[Values] = []

    def step(self, noisy: Any, encoder: Any) -> Any:
        """One step; see `Watch.step`."""
        tree = Tree.of(noisy)
        if encoder is not None:
            return self._encoded_step(tree, noisy, _encoder(encoder))
        values = [leaf.values for leaf in tree.leaves]
        released = self._release(tree, values, [value.shape for value in values])
        return _with_new_values(tree, noisy, released)

    def _encoded_step(self, tree: Tree, noisy: Any, encoder: Values) -> Any:
        """Keeps the values of a step; the last step releases the encoded stack of all of them."""
        number, steps = len(self._rows), len(encoder)
        if number >= steps:
            raise InvalidInput(
                f"encoder must have a row for each step, got {steps} rows and a further step"
            )
        flat = np.concatenate([leaf.values.astype(np.float64).ravel() for leaf in tree.leaves])
        if self._rows and len(flat) != len(self._rows[0]):
            raise InvalidInput(
                f"noisy must have the same shape in each step with an encoder, got {len(flat)} "
                f"numbers after {len(self._rows[0])}"
            )
        self._rows.append(flat)
        forced = self._force_row(number, flat)
        sizes = [leaf.values.size for leaf in tree.leaves]
        if number + 1 == steps:
            # C times the stack of noisy values has independent noise: one Gaussian mechanism.
            encoded = np.split(encoder @ np.stack(self._rows), np.cumsum(sizes)[:-1], axis=1)
            shapes = [(steps, *leaf.values.shape) for leaf in tree.leaves]
            self._release(tree, encoded, shapes)
        flat_leaves = np.split(forced, np.cumsum(sizes)[:-1])
        shaped = [
            flat_leaf.reshape(leaf.values.shape)
            for flat_leaf, leaf in zip(flat_leaves, tree.leaves, strict=True)
        ]
        return _with_new_values(tree, noisy, shaped)

    def _release(
        self, tree: Tree, values: Sequence[Values], shapes: Sequence[tuple[int, ...]]
    ) -> list[Values]:
        from audit.loop.sources.stand_in import StandInOptimizer, types_of

        names, types = [leaf.name for leaf in tree.leaves], types_of(tree)
        if self._optimizer is None:
            self._optimizer = StandInOptimizer(names, shapes, types)
        elif self._shapes != tree.shapes:
            self._optimizer.replace_parameters(names, shapes, types)
        if self._shapes is None:
            self._watch_optimizer(self._optimizer)
        self._shapes = tree.shapes
        return self._optimizer.release(values)


def record_gradient(gradient: Any, params: Any) -> Callable[[Any, Any], list[Values]]:
    """A function of one record that returns its gradient, one array per leaf.

    Args:
        gradient: `gradient(params, features, label)`.
        params: the weights of the step.

    Raises:
        InvalidInput: no weights are given, or `gradient` has other arguments.
    """
    checks.function("gradient", gradient, "params", "features", "label")
    if params is None:
        raise InvalidInput(
            "params must be given with gradient: noisy = watch.step(noisy, params, gradient=...)"
        )

    def of_record(features: Any, label: Any) -> list[Values]:
        tree = Tree.of(gradient(params, features, label), "gradient")
        return [leaf.values.astype(np.float64) for leaf in tree.leaves]

    return of_record


def _with_new_values(tree: Tree, noisy: Any, released: Sequence[Values]) -> Any:
    """The tree itself where the values are its own, else a tree with the new values."""
    pairs = zip(tree.leaves, released, strict=True)
    is_unchanged = all(
        np.array_equal(leaf.values.astype(np.float64), new, equal_nan=True) for leaf, new in pairs
    )
    return noisy if is_unchanged else tree.with_values(released)


def _encoder(encoder: Any) -> Values:
    matrix = np.asarray(encoder, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise InvalidInput(
            "encoder must be a square matrix of finite numbers with a row for each step, got "
            f"shape {matrix.shape}"
        )
    if np.any(np.triu(matrix, 1)):
        raise InvalidInput(
            "encoder must be lower triangular, because a step uses no later noise, got numbers "
            "above the diagonal"
        )
    return matrix
