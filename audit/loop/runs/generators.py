"""Random generators that a training function holds itself, found among its local variables.

Two runs are coupled only while all their generators have the same state. The states of the global
generators of Python, numpy and torch are known. A function may also hold generators in variables,
in objects, or in functions that it passes on.
"""

import functools
import hashlib
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_MAX_DEPTH = 3
_MAX_OBJECTS = 2000
_MAX_ITEMS = 64


def digest_of_local_generators(outermost: types.CodeType | None) -> bytes:
    """Digest of the states of all generators among the callers' local variables.

    Args:
        outermost: code of the training function, the last caller whose variables are searched;
            None searches all callers.

    Example:
        >>> drawn = np.random.default_rng(0)
        >>> before = digest_of_local_generators(None)
        >>> before == digest_of_local_generators(None)
        True
        >>> _ = drawn.random()
        >>> before == digest_of_local_generators(None)
        False
    """
    state = hashlib.blake2b(digest_size=16)
    seen: set[int] = set()
    frame = sys._getframe(1)
    while frame is not None:
        for value in _searched(frame):
            for generator in _generators(value, 0, seen):
                state.update(_state_of(generator))
        if frame.f_code is outermost:
            break
        if frame.f_back is None:
            break
        frame = frame.f_back
    return state.digest()


def _searched(frame: types.FrameType) -> list[Any]:
    """Local variables of the user's code; frames of torch and of this package hold none."""
    module = str(frame.f_globals.get("__name__", ""))
    own = module.startswith(("audit.loop.", "torch.", "opacus.")) or module == "contextlib"
    return [] if own else list(frame.f_locals.values())


def _generators(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    kind: Any = type(value)
    if value is None or _is_plain(kind):
        return
    if id(value) in seen or len(seen) > _MAX_OBJECTS:
        return
    seen.add(id(value))
    if _is_generator(value):
        yield value
        return
    if depth < _MAX_DEPTH:
        for held in _held_by(value):
            yield from _generators(held, depth + 1, seen)


def _is_generator(value: Any) -> bool:
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return True
    kind = type(value)
    return kind.__module__.startswith("torch") and kind.__name__ == "Generator"


def _held_by(value: Any) -> list[Any]:
    """What an object of the user's holds: items, attributes, variables of a function."""
    if isinstance(value, dict):
        return list(value.values())[:_MAX_ITEMS]
    if isinstance(value, list | tuple):
        return list(value)[:_MAX_ITEMS]
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return [] if frame is None else list(frame.f_locals.values())
    if isinstance(value, types.ModuleType):
        return []
    return list(getattr(value, "__dict__", {}).values())[:_MAX_ITEMS]


@functools.cache
def _is_plain(kind: Any) -> bool:
    """Whether values of a type cannot hold a generator: numbers, texts, arrays and tensors."""
    return issubclass(kind, bool | int | float | str | bytes | type | np.ndarray) or (
        _is_heavy(kind)
    )


@functools.cache
def _is_heavy(kind: Any) -> bool:
    """Tensors, and torch's modules, which hold parameters and no generators."""
    names = {base.__module__.split(".")[0] + "." + base.__name__ for base in kind.__mro__}
    return bool(names & {"torch.Tensor", "torch.Module", "torch._TensorBase"})


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _state_of(generator: Any) -> bytes:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state).encode()
    if isinstance(generator, np.random.RandomState):
        _, keys, place, *more = generator.get_state()
        return np.asarray(keys).tobytes() + repr((place, more)).encode()
    if isinstance(generator, random.Random):
        return repr(hash(generator.getstate())).encode()
    return bytes(generator.get_state().cpu().numpy().tobytes())
