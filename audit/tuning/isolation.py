"""A run on its own: with its own randomness, in silence, and handing out only what it means to."""

import contextlib
import io
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["seeded", "silence", "without_gradients"]

# What Opacus leaves on parameters and modules, of single records or before noise.
_LEFT = {
    "_current_grad_sample",
    "_norm_sample",
    "_per_sample_gradient_norms",
    "activations",
    "grad_sample",
    "norm_sample",
    "per_sample_gradient_norms",
    "summed_grad",
}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[Callable[[], int | None]]:
    """The global generators of Python, numpy and torch start from a run's seed while it lasts.

    A script that seeds them at its top, as many do, would give noise that everyone knows. What they
    were before they are again afterwards: nothing drawn later tells of a run. (torch, if it is
    loaded; of its generators the one on the processor is put back.)

    Args:
        seed: in [0, 2^63).

    Yields:
        What torch was seeded with since, if with something else.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    on_processor = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed >> 32, seed & 0xFFFFFFFF])  # noqa: NPY002
    if torch is not None:
        _seed(torch, seed)
    try:
        yield (
            lambda: None if torch is None or torch.initial_seed() == seed else torch.initial_seed()
        )
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(on_processor)


def _seed(torch: Any, seed: int) -> None:
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # that would write down three tracebacks, for devices that are not there
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing is printed or logged: what a run says would tell of the runs that lose.

    Neither what goes through Python's streams, nor what other processes, libraries, and handlers
    that hold an older stream write to the descriptors behind them.
    """
    before = logging.root.manager.disable
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        _flush()
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # there may be none
                stack.callback(_put_back, os.dup(descriptor), descriptor)
                os.dup2(nowhere.fileno(), descriptor)
        stack.callback(_flush)  # what is still held back goes nowhere, too
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        stack.callback(logging.disable, before)
        logging.disable(logging.CRITICAL)
        yield


def _put_back(saved: int, descriptor: int) -> None:
    os.dup2(saved, descriptor)
    os.close(saved)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
            stream.flush()  # type: ignore[union-attr]


def without_gradients(model: Any) -> Any:
    """The same model; torch's modules and tensors in it, without what training left on them.

    Opacus leaves the gradient of every record of the last batch beside each parameter, not clipped
    and without noise, and `pickle` and `torch.save` write it out with the module.

    Args:
        model: what a run returned; lists, tuples and mappings are looked into.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        for part in _parts(model, torch):
            if isinstance(part, torch.Tensor) and part.is_leaf:
                part.grad = None
            for name in _LEFT & vars(part).keys():
                delattr(part, name)
    return model


def _parts(model: Any, torch: Any) -> Iterator[Any]:
    """The tensors and modules in a model."""
    if isinstance(model, torch.Tensor):
        yield model
    elif isinstance(model, torch.nn.Module):
        yield from model.modules()
        yield from model.parameters()
        yield from model.buffers()
    elif isinstance(model, torch.optim.Optimizer):
        yield from (one for group in model.param_groups for one in group["params"])
    elif isinstance(model, Mapping | list | tuple):
        for one in model.values() if isinstance(model, Mapping) else model:
            yield from _parts(one, torch)
