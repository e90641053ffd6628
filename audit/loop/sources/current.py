"""`audit.step`: the step of a loop of arrays without a watch in its arguments.

Traced code (`jax.jit`, `lax.scan`) is compiled once and called many times. It cannot hold the watch
of one run. `step` looks up the watch of the current run when the compiled code runs.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from audit.loop.sources.trees import is_traced

# A list and not a context variable, because compiled code calls back in another thread.
_watches: list[Any] = []


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
