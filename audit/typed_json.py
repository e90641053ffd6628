"""Reads dataclasses from parsed json, with one clear message if a value has another type."""

import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from audit import checks
from audit.errors import InvalidInput

Readers = Mapping[Any, Callable[[Any], Any]]
"""Functions from parsed json to values, by type."""

_type_hints = functools.cache(get_type_hints)
_WORDS: dict[Any, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    (int, float): "a number",
}


def read_typed(kind: Any, value: Any, where: str, readers: Readers | None = None) -> Any:
    """A value of a type from parsed json, else InvalidInput; unknown fields are ignored.

    `readers` read the types that are not dataclasses of plain values.
    """
    if readers and kind in readers:
        return readers[kind](value)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (
            alternative for alternative in get_args(kind) if alternative is not types.NoneType
        )
        return read_typed(kind, value, where, readers)
    if kind is Any:
        return value
    expected: Any = origin or kind
    if is_dataclass(kind) or origin is Mapping:
        expected = dict
    else:
        expected = {tuple: list, float: (int, float)}.get(expected, expected)
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(
            f"{where} must be {_WORDS.get(expected, expected)}, got {checks.one_line(value)}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{where} must be finite, got {value}")
    if is_dataclass(kind):
        make: Any = kind
        hints = _type_hints(make)
        arguments = {}
        for field in fields(kind):
            if field.name in value:
                inside = f"{where}: {field.name}"
                arguments[field.name] = read_typed(
                    hints[field.name], value[field.name], inside, readers
                )
            elif field.default is MISSING and field.default_factory is MISSING:
                raise InvalidInput(f"{where} must have {field.name}, got none")
        return make(**arguments)
    if origin is tuple:
        kinds = get_args(kind)
        if kinds[-1] is ...:
            kinds = kinds[:1] * len(value)
        if len(kinds) != len(value):
            raise InvalidInput(f"{where} must have {len(kinds)} values, got {len(value)}")
        pairs = zip(kinds, value, strict=True)
        return tuple(read_typed(item_kind, item, where, readers) for item_kind, item in pairs)
    if expected is dict:
        inner = get_args(kind)[1]
        return {
            name: read_typed(inner, item, f"{where}: {name}", readers)
            for name, item in value.items()
        }
    return float(value) if kind is float else value
