"""Every number that a training run released: returned values, weights, buffers, fitted attributes.

With forced outputs, all of these numbers are functions of the forced values. So two coupled runs on
data sets that differ in one record must agree in every number. A number that differs was released
without being accounted for.
"""

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from audit.loop.runs.generators import state_of_generator
from audit.loop.sources.trees import as_numbers, in_plain_type

_Numbers = Iterator[tuple[str, Any]]
_CONTAINERS = (list, tuple, set, frozenset, Mapping)
# Slots that belong to Python and not to the object's data.
_NOT_HELD = ("__weakref__", "__dict__")
_MAX_DEPTH = 6
# Name of the keys of a dictionary, in their order.
_ORDER = "order of keys"
_MAX_NUMBERS = 200_000_000
# Attributes of torch and Opacus modules that belong to a batch and not to the model.
_BOOKKEEPING = frozenset(
    ("training", "activations", "backprops", "grad_sample_hooks", "hooks_enabled", "max_batch_len")
)


def numbers_of(value: Any) -> Mapping[str, Any]:
    """Every number and text in a released object, by the path that leads to it.

    Args:
        value: a torch module, an estimator, an array, a number, a text, or containers of them.

    Returns:
        Arrays by name; "returned" where the object is a number or an array itself. The keys of a
        dictionary of several entries are an array, too.

    Example:
        >>> numbers = numbers_of({"loss": 0.5, "curve": [1.0, 2.0]})
        >>> numbers["loss"], numbers["curve"], numbers["order of keys"].tolist()
        (array(0.5), array([1., 2.]), ['loss', 'curve'])
    """
    numbers: dict[str, Any] = {}
    for name, number in _walk(value, "", 0, set()):
        numbers[name or "returned"] = number
    return numbers


def keys_of(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """The paths to all entries of nested dictionaries, in the order of their keys.

    Example:
        >>> list(keys_of({"b": 1.0, "a": {"c": 2.0}}))
        ['b', 'a.c']
    """
    if isinstance(value, Mapping) and depth <= _MAX_DEPTH:
        for key, item in value.items():
            yield from keys_of(item, _joined(path, str(key)), depth + 1)
    elif isinstance(value, list | tuple) and depth <= _MAX_DEPTH:
        for i, item in enumerate(value):
            if isinstance(item, Mapping):
                yield from keys_of(item, f"{path}[{i}]", depth + 1)
    elif path:
        yield path


def _walk(value: Any, path: str, depth: int, seen: set[int]) -> _Numbers:
    if value is None or depth > _MAX_DEPTH:
        return
    array = _as_array(value)
    if array is not None:
        yield path, array
        return
    if id(value) in seen:
        return
    seen = seen | {id(value)}
    value = state_of_generator(value)
    if isinstance(value, Mapping):
        if len(value) > 1:
            yield _joined(path, _ORDER), np.array([str(key) for key in value])
        for key, item in value.items():
            yield from _walk(item, _joined(path, str(key)), depth + 1, seen)
    elif isinstance(value, _CONTAINERS):
        for i, item in enumerate(value):
            yield from _walk(item, f"{path}[{i}]", depth + 1, seen)
    elif hasattr(value, "state_dict") and hasattr(value, "named_parameters"):
        for key, item in value.state_dict().items():
            yield from _walk(item, _joined(path, key.removeprefix("_module.")), depth + 1, seen)
        yield from _module_attributes(value, path, depth, seen)
    elif hasattr(value, "state_dict"):  # an optimizer, a scheduler
        yield from _walk(value.state_dict(), path, depth + 1, seen)
    elif (held := held_by_function(value)) is not None:
        yield from _walk(held, path, depth + 1, seen)
    elif hasattr(value, "toarray"):  # scipy's sparse matrices
        yield path, np.asarray(value.toarray())
    elif hasattr(value, "__getstate__") and type(value).__module__.startswith("sklearn."):
        state = value.__getstate__()
        yield from _walk(state, path, depth + 1, seen)
    else:
        slots = [np.atleast_1d(vars(kind).get("__slots__", [])) for kind in type(value).__mro__]
        names = [
            str(key) for slots_of_class in slots for key in slots_of_class if key not in _NOT_HELD
        ]
        held = {key: getattr(value, key) for key in names if hasattr(value, key)}
        for key, item in {**held, **getattr(value, "__dict__", {})}.items():
            if not callable(item) or hasattr(item, "__dict__"):
                yield from _walk(item, _joined(path, key), depth + 1, seen)


def held_by_function(value: Any) -> dict[str, Any] | None:
    """Variables that a returned function closes over, its defaults and bound arguments."""
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": value.args, **value.keywords}
    if isinstance(value, types.MethodType):
        return {"function": value.__func__, "self": value.__self__}
    if not isinstance(value, types.FunctionType):
        return None
    held = {"defaults": value.__defaults__, "keyword defaults": value.__kwdefaults__}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            held[name] = cell.cell_contents
    return held


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key


def _module_attributes(module: Any, path: str, depth: int, seen: set[int]) -> _Numbers:
    """Attributes of a module: numbers, texts, containers, and buffers that are not saved."""
    from torch import nn

    internal = _BOOKKEEPING | vars(nn.Module()).keys()
    for name, submodule in module.named_modules():
        if type(submodule).__module__.startswith("opacus."):
            continue
        held = {key: value for key, value in vars(submodule).items() if key not in internal}
        held |= {key: submodule._buffers[key] for key in submodule._non_persistent_buffers_set}
        prefix = _joined(path, name.removeprefix("_module."))
        for key, value in held.items():
            if _as_array(value) is not None or isinstance(value, _CONTAINERS):
                yield from _walk(value, _joined(prefix, key), depth + 1, seen)


def _as_array(value: Any) -> Any:
    """A number, a text, an array or a tensor as an array; None for anything else."""
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        array = np.asarray(value)
        # Python's whole numbers of more than 64 bits, such as the state of a generator.
        return np.asarray(str(value)) if array.dtype.kind == "O" else array
    if isinstance(value, np.ndarray):
        value = in_plain_type(value)
        return value if value.dtype.kind in "fiubcSU" and value.size <= _MAX_NUMBERS else None
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu().clone()  # the object may be changed later
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        if tensor.is_floating_point():
            tensor = tensor.double()
        return tensor.numpy()
    numbers = as_numbers(value)  # of JAX and TensorFlow
    if numbers is not None:
        numbers = in_plain_type(numbers)
        return numbers if numbers.dtype.kind in "fiubc" and numbers.size <= _MAX_NUMBERS else None
    plain = bool | int | float | np.generic
    if isinstance(value, list | tuple) and value and all(isinstance(v, plain) for v in value):
        return np.asarray(value)
    return None


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, float]:
    """The largest absolute difference of every number in which two runs differ.

    Returns:
        By name; infinity where shapes, types or texts differ, or only one run has the number.
        Values that are not a number in both runs agree, and so do the orders of unequal keys.
    """
    gaps: dict[str, float] = {}
    for name in [*first, *(key for key in second if key not in first)]:
        is_order = name.rpartition(".")[2] == _ORDER
        if name not in first or name not in second:
            if not is_order:
                gaps[name] = np.inf
            continue
        a, b = np.asarray(first[name]), np.asarray(second[name])
        if is_order and not np.array_equal(np.sort(a), np.sort(b)):
            continue
        if a.shape != b.shape or (a.dtype.kind in "SU") != (b.dtype.kind in "SU"):
            gaps[name] = np.inf
        elif a.dtype.kind in "SU":
            if not np.array_equal(a, b):
                gaps[name] = np.inf
        elif not np.array_equal(a, b, equal_nan=True):
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
            finite = gap[np.isfinite(gap)]
            gaps[name] = float(finite.max()) if finite.size and finite.max() > 0 else np.inf
    return gaps
