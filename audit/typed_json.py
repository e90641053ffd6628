"""Dataclasses as json: their JSON Schema, and values read from parsed json.

A schema follows from the types, ranges and docstrings of the fields. A range or a pattern is stated
as `Keywords` in `typing.Annotated`. The reader ignores it, because dataclasses check their values
themselves; it has one clear message if a value has another type.
"""

import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

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

Schema = dict[str, Any]


class Keywords:
    """Keywords of JSON Schema that narrow a type, in `typing.Annotated`.

    Example:
        >>> schema_of(Annotated[int, Keywords(minimum=1)])
        {'type': 'integer', 'minimum': 1}
    """

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


OPTIONAL = {"optional": True}
"""Metadata of a field of a dataclass which files of earlier versions lack."""

Text = Annotated[str, Keywords(minLength=1)]
NonNegative = Annotated[float, Keywords(minimum=0)]
Positive = Annotated[float, Keywords(exclusiveMinimum=0)]
Share = Annotated[float, Keywords(minimum=0, maximum=1)]
Chance = Annotated[float, Keywords(exclusiveMinimum=0, exclusiveMaximum=1)]
Sha256 = Annotated[str, Keywords(pattern="^[0-9a-f]{64}$")]

_NULL = {"type": "null"}
_KINDS: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(kind: Any) -> Schema:
    """The JSON Schema of a type.

    Args:
        kind: a plain type, a dataclass, an enumeration, `Literal`, or a union, tuple, sequence or
            mapping of them; `Annotated` adds keywords.

    Returns:
        The schema. All fields of a dataclass are required, but those with the metadata `OPTIONAL`.

    Raises:
        TypeError: the type has no schema.

    Example:
        >>> schema_of(tuple[Text, ...])
        {'type': 'array', 'items': {'type': 'string', 'minLength': 1}}
        >>> schema_of(Positive | None)
        {'type': ['number', 'null'], 'exclusiveMinimum': 0}
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        schema = schema_of(arguments[0])
        for annotation in arguments[1:]:
            schema |= annotation.keywords
        return schema
    if origin in (Union, types.UnionType):
        return _union([schema_of(argument) for argument in arguments])
    if origin is Literal:
        return {"enum": list(arguments)}
    if kind is types.NoneType:
        return dict(_NULL)
    if origin is tuple and arguments[-1] is not ...:
        return _pair(arguments)
    if origin in (tuple, list) or (origin is not None and issubclass(origin, Sequence)):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if is_dataclass(kind):
        return _of_dataclass(kind)
    if kind in _KINDS:
        return {"type": _KINDS[kind]}
    raise TypeError(f"{kind} has no JSON Schema")


def closed_object(properties: Schema, optional: Sequence[str] = ()) -> Schema:
    """The schema of an object with these properties and no others.

    Example:
        >>> closed_object({"delta": {"type": "number"}})["required"]
        ['delta']
    """
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def _of_dataclass(kind: Any) -> Schema:
    hints = get_type_hints(kind, include_extras=True)
    said = attributes_in_words(kind)
    properties = {
        field.name: _described(schema_of(hints[field.name]), said.get(field.name))
        for field in fields(kind)
    }
    optional = [field.name for field in fields(kind) if field.metadata.get("optional")]
    return closed_object(properties, optional)


def attributes_in_words(kind: type) -> dict[str, str]:
    """What the docstring of a class says about its attributes, by name.

    Example:
        >>> class Point:
        ...     '''A point.
        ...
        ...     Attributes:
        ...         x: its place
        ...             from the left.
        ...     '''
        >>> attributes_in_words(Point)
        {'x': 'its place from the left.'}
    """
    text = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[2]
    section = re.split(r"\n\n?(?=\S)", text, maxsplit=1)[0]
    entries = re.split(r"^ {4}(?=\w+: )", section, flags=re.MULTILINE)[1:]
    pairs = (entry.split(": ", 1) for entry in entries)
    return {name: " ".join(words.split()) for name, words in pairs}


def _described(schema: Schema, words: str | None) -> Schema:
    return schema if words is None else {"description": f"{words[:1].upper()}{words[1:]}"} | schema


def _pair(kinds: Sequence[Any]) -> Schema:
    items = [schema_of(kind) for kind in kinds]
    size = {"minItems": len(kinds), "maxItems": len(kinds)}
    if all(item == items[0] for item in items):
        return {"type": "array", "items": items[0], **size}
    return {"type": "array", "prefixItems": items, **size}


def _union(alternatives: list[Schema]) -> Schema:
    """One of several schemas; None is a further type of the only other one."""
    without_null = [schema for schema in alternatives if schema != _NULL]
    if len(without_null) == 1 and len(alternatives) == 2 and "type" in without_null[0]:
        return without_null[0] | {"type": [without_null[0]["type"], "null"]}
    return {"anyOf": alternatives}


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
