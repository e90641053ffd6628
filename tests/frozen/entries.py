"""Entries of the frozen files: how they are computed, compared, read and written."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.errors import AuditError

Value = Any
"""Numbers, texts, truth values and None, or lists and dictionaries of values."""

_ABSOLUTE = 1e-12


@dataclass(frozen=True)
class Entry:
    """One frozen value.

    Attributes:
        compute: returns the value; an error of this package counts as the value `refused`.
        is_quick: whether the default tests compute it.
        relative: relative tolerance of its numbers.
        absolute: absolute tolerance of its numbers.
    """

    compute: Callable[[], Value]
    is_quick: bool = False
    relative: float = 1e-9
    absolute: float = _ABSOLUTE

    def value(self) -> Value:
        """The value of today's code, as json represents it."""
        try:
            return plain(self.compute())
        except AuditError as error:
            return {"refused": type(error).__name__}

    def differences(self, name: str, frozen: Value, value: Value) -> list[str]:
        """One line for each part of a value that is not the frozen one."""
        return list(_differences(name, frozen, value, self.relative, self.absolute))


def plain(value: Value) -> Value:
    """A value as json represents it; infinite numbers become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _differences(
    name: str, frozen: Value, value: Value, relative: float, absolute: float
) -> Iterator[str]:
    # A new bound or a new field may be added without freezing again.
    if isinstance(frozen, dict) and isinstance(value, dict) and frozen.keys() <= value.keys():
        for key in frozen:
            yield from _differences(f"{name} | {key}", frozen[key], value[key], relative, absolute)
    elif isinstance(frozen, list) and isinstance(value, list) and len(frozen) == len(value):
        for place, (before, after) in enumerate(zip(frozen, value, strict=True)):
            yield from _differences(f"{name} | {place}", before, after, relative, absolute)
    elif not _equal(frozen, value, relative, absolute):
        yield f"{name}: frozen {json.dumps(frozen)}, computed {json.dumps(value)}"


def _equal(frozen: Value, value: Value, relative: float, absolute: float) -> bool:
    if _is_number(frozen) and _is_number(value):
        return math.isclose(frozen, value, rel_tol=relative, abs_tol=absolute)
    return type(frozen) is type(value) and frozen == value


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def path_of(family: str) -> Path:
    """The file that stores a family."""
    return Path(__file__).with_name(f"{family}.json")


def read(family: str) -> dict[str, Value]:
    """The frozen values of a family; none if it was never stored."""
    path = path_of(family)
    values: dict[str, Value] = json.loads(path.read_text()) if path.exists() else {}
    return values


def write(family: str, values: Mapping[str, Value]) -> None:
    """Stores the frozen values of a family, one per line, so that changes are easy to read."""
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    path_of(family).write_text("{\n" + ",\n".join(lines) + "\n}\n")
