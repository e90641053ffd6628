"""Isolation of a run: its own random generators, no output, and no leftovers on its model.

Models may be modules, optimizers, or collections of them: `members_of` finds what is inside.
"""

import contextlib
import hashlib
import logging
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from audit.user_code import output_to, secret_global_seed, seeded_generators

# Seconds that threads may outlive their run before they are muted.
_GRACE_SECONDS = 0.2

# Attributes that Opacus leaves on a model, with gradients of single records or without noise.
_GRADIENT_ATTRIBUTES = {
    "_current_grad_sample",
    "_norm_sample",
    "_per_sample_gradient_norms",
    "activations",
    "grad_sample",
    "norm_sample",
    "per_sample_gradient_norms",
    "summed_grad",
}


def members_of(value: Any) -> Iterator[Any]:
    """Every module, parameter, buffer and tensor inside a value; nothing if torch is not imported.

    Lists, tuples and mappings are searched, and of an optimizer its parameters.
    """
    torch: Any = sys.modules.get("torch")  # if a value is of torch, torch is imported
    if torch is None:
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.modules()
        yield from value.parameters()
        yield from value.buffers()
    elif hasattr(value, "param_groups"):
        yield from (parameter for group in value.param_groups for parameter in group["params"])
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from members_of(item)


def tensors_of(value: Any) -> Iterator[Any]:
    """Every tensor inside a value, as for `members_of`."""
    torch: Any = sys.modules.get("torch")
    return (member for member in members_of(value) if isinstance(member, torch.Tensor))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Seeds the global generators of Python, numpy and torch for one run, and restores them.

    Many scripts seed these generators with a constant, from which anyone can compute the noise.
    Their seed is derived from that of the run: a generator that the run makes from its own seed
    does not repeat the numbers of the initial weights.
    Yields a function that identifies the noise of the run by entries "generator:digest": the seeds
    that the run gave to the generators, and their present states. Two runs that share an entry drew
    the same noise.
    """
    global_seed = secret_global_seed(seed)
    used: set[str] = set()

    def noise() -> tuple[str, ...]:
        sources = used | {
            _mark("random", random.getstate()),
            _mark("numpy.random", _numpy_state()),
        }
        loaded = sys.modules.get("torch")
        if loaded is not None:
            sources |= set(_torch_seeds(loaded, global_seed))
        return tuple(sorted(sources))

    with (
        seeded_generators(global_seed),
        _watched(random, "random", used),
        _watched(np.random, "numpy.random", used),
    ):
        yield noise


@contextlib.contextmanager
def _watched(module: Any, name: str, seeds: set[str]) -> Iterator[None]:
    """Notes the seeds that are given to a module's global generator."""
    seed = module.seed

    def noting(*args: Any, **keywords: Any) -> None:
        if any(argument is not None for argument in (*args, *keywords.values())):
            seeds.add(_mark(name, (args, sorted(keywords.items()))))
        seed(*args, **keywords)

    module.seed = noting
    try:
        yield
    finally:
        module.seed = seed


def _numpy_state() -> list[Any]:
    state = np.random.get_state()  # noqa: NPY002
    values = state.values() if isinstance(state, dict) else state
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]


def _mark(name: str, value: Any) -> str:
    return f"{name}:{hashlib.sha256(repr(value).encode()).hexdigest()[:32]}"


def _torch_seeds(torch: Any, seed: int) -> Iterator[str]:
    """The seeds of torch's generators that are not the run's own."""
    if torch.initial_seed() != seed:
        yield _mark("torch", torch.initial_seed())
    if torch.cuda.is_initialized():
        for index, generator in enumerate(torch.cuda.default_generators):
            if generator.initial_seed() != seed:
                yield _mark("torch.cuda", (index, generator.initial_seed()))


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discards everything that is printed or logged, which would reveal losing runs.

    This covers Python's streams and the descriptors behind them, to which other processes,
    libraries and handlers with an older stream write.
    """
    before = logging.root.manager.disable
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(output_to(nowhere.fileno()))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        stack.callback(logging.disable, before)
        logging.disable(logging.CRITICAL)
        yield


@contextlib.contextmanager
def silent_for_good() -> Iterator[None]:
    """Silences a block of code, and afterwards every thread that it started and that still runs.

    One line from each finished run would reveal the number of runs. Threads have a moment to end;
    those that continue stay muted. Not covered are writes to the descriptors of the process that
    bypass Python's streams, and threads that these threads start later.
    """
    before = set(threading.enumerate())
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        setattr(sys, name, stream and _StreamWithoutMuted(stream))
    new_threads: list[threading.Thread] = []
    try:
        with silence():
            try:
                yield
            finally:
                new_threads = [thread for thread in threading.enumerate() if thread not in before]
                deadline = time.monotonic() + _GRACE_SECONDS
                for thread in new_threads:
                    thread.join(max(deadline - time.monotonic(), 0.0))
                new_threads = [thread for thread in new_threads if thread.is_alive()]
                _mute(new_threads)
    finally:
        if not new_threads:
            for name, stream in streams.items():
                setattr(sys, name, stream)


_muted: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _is_not_muted(*_: Any) -> bool:
    return threading.current_thread() not in _muted


class _StreamWithoutMuted:
    """A stream that drops the output of muted threads."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(text)) if _is_not_muted() else len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _mute(threads: list[threading.Thread]) -> None:
    if not threads:
        return
    _muted.update(threads)
    named = logging.root.manager.loggerDict.values()  # some are placeholders without handlers
    for logger in (logging.root, *(logger for logger in named if hasattr(logger, "handlers"))):
        for handler in logger.handlers:
            handler.addFilter(_is_not_muted)


def without_gradients(model: Any) -> Any:
    """The same model, without the gradients that training left on torch's modules and tensors.

    Opacus leaves the gradient of every record of the last batch on each parameter, not clipped and
    without noise, and `pickle` and `torch.save` would write it with the module. Lists, tuples and
    mappings are searched.
    """
    for member in members_of(model):
        if getattr(member, "is_leaf", False):  # a tensor
            member.grad = None
        for name in _GRADIENT_ATTRIBUTES & vars(member).keys():
            delattr(member, name)
    return model
