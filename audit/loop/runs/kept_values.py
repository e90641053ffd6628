"""Values that a function keeps from one call to the next, such as a cache filled by the first call.

All runs of a check but the first one would use the values of the first, whatever their records are.
So a statistic that the first call computes from its records would never differ between two runs.
"""

import contextlib
import operator
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

# The largest numbers of objects, of their elements, and of levels that are followed.
_MAX_OBJECTS, _MAX_ELEMENTS, _MAX_DEPTH = 10_000, 2_000, 6
_MAX_NUMBERS = 100_000
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True)
class _Kept:
    """One object that can keep values, and how to restore what it held."""

    name: str
    is_as_before: Callable[[], bool]
    restore: Callable[[], None]


class KeptValues:
    """What the objects that a function reaches hold before its first call.

    These are the variables of its module and of further modules of the user, its closure, defaults
    and attributes, and caches of functions.

    Args:
        train: the function.
    """

    def __init__(self, train: Any) -> None:
        self._train = train
        self._seen: dict[int, Any] = {}
        self._kept: list[_Kept] = []
        self._follow(train, getattr(train, "__name__", "train"), 0)

    def now(self) -> "KeptValues":
        """What the objects hold at this moment."""
        return KeptValues(self._train)

    def changed(self) -> list[str]:
        """Names of the objects that hold something else than before."""
        return [kept.name for kept in self._changed()]

    def restore(self) -> None:
        """Makes every object hold what it held before the first call."""
        for kept in self._changed():
            # An object that takes no values, such as a class with a metaclass, stays as it is.
            with contextlib.suppress(Exception):
                kept.restore()

    def _changed(self) -> list[_Kept]:
        changed = []
        for kept in self._kept:
            # Numbers that cannot be compared (tensors of other layouts) count as unchanged.
            with contextlib.suppress(Exception):
                if not kept.is_as_before():
                    changed.append(kept)
        return changed

    def _follow(self, value: Any, name: str, depth: int) -> None:
        if depth > _MAX_DEPTH or id(value) in self._seen or len(self._seen) >= _MAX_OBJECTS:
            return
        self._seen[id(value)] = value
        try:
            ways = list(_parts_of(value, name))
        except Exception:  # an object whose attributes cannot be read keeps what it holds
            return
        for kept, parts in ways:
            if kept is not None:
                self._kept.append(kept)
            for part_name, part in parts:
                self._follow(part, part_name, depth + 1)


_Parts = list[tuple[str, Any]]


def _parts_of(value: Any, name: str) -> Iterator[tuple[_Kept | None, _Parts]]:
    """The ways in which an object keeps values, each with the named objects that it leads to."""
    if callable(getattr(value, "cache_clear", None)) and hasattr(value, "cache_info"):
        yield _cache(value, name), [(name, getattr(value, "__wrapped__", None))]
    elif isinstance(value, partial):
        yield None, [(name, value.func), *((name, argument) for argument in value.args)]
        yield None, list(value.keywords.items())
    elif isinstance(value, MethodType):
        yield None, [(name, value.__func__), (name, value.__self__)]
    elif isinstance(value, FunctionType):
        yield _dictionary(value.__dict__, name), []
        for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # the variable is not assigned yet
                yield _cell(cell, f"{name}.{free}"), [(f"{name}.{free}", cell.cell_contents)]
        yield None, [(name, default) for default in value.__defaults__ or ()]
        yield None, [(name, sys.modules.get(value.__module__))]
    elif isinstance(value, ModuleType):
        if _is_of_user(value.__name__):
            yield _dictionary(vars(value), value.__name__), _variables(vars(value))
    elif isinstance(value, dict):
        elements = islice(value.items(), _MAX_ELEMENTS)
        yield _dictionary(value, name), [(f"{name}[{key!r}]", element) for key, element in elements]
    elif isinstance(value, list | deque):
        yield _sequence(value, name), [(name, element) for element in islice(value, _MAX_ELEMENTS)]
    elif isinstance(value, set):
        yield _set(value, name), []
    elif isinstance(value, np.ndarray) or _is_of_torch(value, "Tensor"):
        kept = _numbers(value, name)
        if kept is not None:
            yield kept, []
    elif isinstance(value, type):
        if _is_of_user(value.__module__):
            held = partial(_held_by_class, value)
            yield _attributes(value, held, name), _variables(held(), f"{name}.")
    elif _is_of_torch(value, "nn.Module") or _holds_values(value):
        # Of a module of torch, the buffers may change in place; parameters are left alone.
        if hasattr(value, "__dict__"):
            yield _dictionary(vars(value), name), _variables(vars(value), f"{name}.")
        slots = [slot for of in type(value).__mro__ for slot in _slots(of)]
        in_slots = partial(_held_in_slots, value, slots)
        yield _attributes(value, in_slots, name), _variables(in_slots(), f"{name}.")
        if _is_of_user(type(value).__module__):
            yield None, [(type(value).__name__, type(value))]


def _holds_values(value: Any) -> bool:
    """Whether an object is a namespace, an estimator of scikit-learn, or of a class of the user."""
    if isinstance(value, SimpleNamespace) or _is_of_user(type(value).__module__):
        return True
    return hasattr(value, "fit") and hasattr(value, "get_params")


def _slots(of_class: type) -> list[str]:
    slots = vars(of_class).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if not name.startswith("__")]


def _held_by_class(value: type) -> dict[str, Any]:
    """The attributes of a class, without those of its bases."""
    return dict(vars(value))


def _held_in_slots(value: Any, slots: Sequence[str]) -> dict[str, Any]:
    """The values of the slots that are filled."""
    return {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}


def _variables(values: Any, prefix: str = "") -> _Parts:
    names = [key for key in list(values) if isinstance(key, str) and not key.startswith("__")]
    return [(prefix + key, values[key]) for key in names]


def _is_of_user(module: str) -> bool:
    """Whether a module is neither installed nor a part of this package."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__":
        return True
    if path is None or module.split(".")[0] == "audit":
        return False
    return not path.startswith(_INSTALLED)


def _is_same(before: dict[Any, Any], now: Any) -> bool:
    return len(before) == len(now) and all(
        key in now and now[key] is value for key, value in before.items()
    )


def _dictionary(values: dict[Any, Any], name: str) -> _Kept:
    before = dict(values)

    def restore() -> None:
        for key in list(values):
            if key not in before:
                del values[key]
        values.update(before)

    return _Kept(name, lambda: _is_same(before, values), restore)


def _attributes(owner: Any, held: Callable[[], dict[str, Any]], name: str) -> _Kept:
    """The attributes of a class, or the slots of an object."""
    before = held()

    def restore() -> None:
        now = held()
        for key in now.keys() - before.keys():
            delattr(owner, key)
        for key, value in before.items():
            if now.get(key) is not value:
                setattr(owner, key, value)

    return _Kept(name, lambda: _is_same(before, held()), restore)


def _sequence(values: list[Any] | deque[Any], name: str) -> _Kept:
    before = list(values)

    def is_as_before() -> bool:
        return len(values) == len(before) and all(map(operator.is_, values, before))

    def restore() -> None:
        values.clear()
        values.extend(before)

    return _Kept(name, is_as_before, restore)


def _set(values: set[Any], name: str) -> _Kept:
    before = set(values)

    def restore() -> None:
        values.clear()
        values.update(before)

    return _Kept(name, lambda: values == before, restore)


def _cell(cell: Any, name: str) -> _Kept:
    before = cell.cell_contents

    def restore() -> None:
        cell.cell_contents = before

    return _Kept(name, lambda: cell.cell_contents is before, restore)


def _cache(function: Any, name: str) -> _Kept:
    before = function.cache_info().currsize
    return _Kept(name, lambda: function.cache_info().currsize == before, function.cache_clear)


def _numbers(values: Any, name: str) -> _Kept | None:
    """An array or tensor whose numbers may change in place."""
    if _is_of_torch(values, "Tensor"):
        torch = sys.modules["torch"]
        if values.layout != torch.strided or values.is_meta or values.is_quantized:
            return None
        if values.numel() > _MAX_NUMBERS or values.requires_grad or not values.is_leaf:
            return None
        tensor = values.detach().clone()
        return _Kept(name, lambda: torch.equal(values, tensor), lambda: _copy(values, tensor))
    if values.size > _MAX_NUMBERS or values.dtype == object or not values.flags.writeable:
        return None
    array = values.copy()

    def restore() -> None:
        values[...] = array

    return _Kept(name, lambda: bool(np.array_equal(values, array)), restore)


def _copy(values: Any, before: Any) -> None:
    with sys.modules["torch"].no_grad():
        values.copy_(before)


def _is_of_torch(value: Any, name: str) -> bool:
    """Whether a value is of a class of torch, which the plain installation does not have."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, operator.attrgetter(name)(torch))
