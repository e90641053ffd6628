"""Reads pickles of arrays and plain containers without executing them.

A pickle is a program, which Python's unpickler executes. Even an unpickler that allows only numpy's
arrays can be made to allocate gigabytes by a hundred bytes. This module reads the instructions one
by one (`pickletools`). It interprets the few that plain data needs, with stand-ins for numpy's
classes, and rejects all others.
"""

import math
import pickletools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput

# The largest official file, a batch of CIFAR10, has 40,000 instructions; rewritten files have up to
# 100,000.
_MAX_INSTRUCTIONS = 200_000
_MAX_DIMENSIONS = 4
# Instructions that put a constant, a text of bytes, or their argument on the stack.
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_BYTE_STRINGS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING"})
_LITERALS = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
})  # fmt: skip
_PLAIN_DTYPE = re.compile(r"[<>|=]?[iuf][1248]")


class _Name(NamedTuple):
    """A global name in a pickle; it is never resolved."""

    module: str
    name: str


_RECONSTRUCT = tuple(
    _Name(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
)
_ARRAY, _DTYPE = _Name("numpy", "ndarray"), _Name("numpy", "dtype")
_ENCODE = _Name("_codecs", "encode")  # how Python 3 writes bytes in protocol 2
_KNOWN = (*_RECONSTRUCT, _ARRAY, _DTYPE, _ENCODE)


class _PlainDtype:
    """Stand-in for a dtype."""

    def __init__(self, code: str) -> None:
        if not _PLAIN_DTYPE.fullmatch(code):
            raise InvalidInput(f"refused: the pickle holds an array of {code[:40]!r}")
        self.dtype = np.dtype(code)

    def set_state(self, state: tuple[Any, ...]) -> None:
        if _text(state[1]) == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _PlainArray:
    """Stand-in for an array."""

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def set_state(self, state: tuple[Any, ...]) -> None:
        _, shape, plain, is_fortran, raw = state
        sides = [int(side) for side in shape[:_MAX_DIMENSIONS]]
        size = math.prod(sides) * plain.dtype.itemsize
        if not isinstance(raw, bytes) or len(raw) != size or min(sides, default=0) < 0:
            raise InvalidInput("refused: the bytes of the pickle's array do not match its shape")
        self.array = np.frombuffer(raw, plain.dtype).reshape(
            sides, order="F" if is_fortran else "C"
        )


def load(raw: bytes) -> Any:
    """The plain data in a pickle of protocol 0 to 4; Python 2 strings become bytes.

    Plain data are numbers, text, bytes, and lists, tuples and dictionaries of them. Arrays are
    allowed as values of the outermost dictionary. Anything else raises InvalidInput, and a memo
    entry that was not written LookupError.
    """
    return _Machine(raw).run()


class _Machine:
    """An interpreter for the pickle instructions that plain data needs."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.may_encode = 2 * len(raw)  # remaining bytes; limits repeated encoding of one text

    def run(self) -> Any:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(self.raw)):
            if count == _MAX_INSTRUCTIONS:
                raise InvalidInput(f"refused: the pickle has more than {count} instructions")
            self.step(instruction.name, argument)
        (result,) = self.stack
        if isinstance(result, dict):
            return {
                key: value.array if isinstance(value, _PlainArray) else value
                for key, value in result.items()
            }
        return result

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self.marks.append(len(stack))
            case _ if name in _NEW:
                stack.append(_NEW[name]())
            case _ if name in _BYTE_STRINGS:
                stack.append(argument.encode("latin1"))
            case _ if name in _LITERALS:
                stack.append(argument)
            case "LIST":
                stack.append(self.since_mark())
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
            case "DICT":
                items = self.since_mark()
                stack.append({})
                self.set_items(items)
            case "APPEND":
                value = stack.pop()
                self.target(list).append(value)
            case "APPENDS":
                values = self.since_mark()
                self.target(list).extend(values)
            case "SETITEM":
                items = stack[-2:]
                del stack[-2:]
                self.set_items(items)
            case "SETITEMS":
                self.set_items(self.since_mark())
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "GLOBAL":
                stack.append(_known(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_known(module, attribute))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(self.called(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                if not isinstance(stack[-1], _PlainDtype | _PlainArray):
                    raise InvalidInput(
                        "refused: the pickle sets the state of an unsupported object"
                    )
                stack[-1].set_state(state)
            case _:
                raise InvalidInput(f"refused: the pickle has the instruction {name}")

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def target(self, kind: type) -> Any:
        top = self.stack[-1]
        if type(top) is not kind:
            raise InvalidInput(
                f"refused: the pickle fills {checks.with_article(type(top).__name__)}"
            )
        return top

    def set_items(self, items: list[Any]) -> None:
        target = self.target(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing deeply nested tuples can take exponential time.
            if not isinstance(key, str | bytes):
                raise InvalidInput("refused: the pickle has a key that is not text")
            target[key] = value

    def called(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        if function in _RECONSTRUCT and arguments[0] == _ARRAY:
            return _PlainArray()
        if function == _DTYPE:
            return _PlainDtype(_text(arguments[0]))
        if function == _ENCODE and arguments[1] in ("latin1", b"latin1"):
            self.may_encode -= len(arguments[0])
            if self.may_encode < 0:
                raise InvalidInput("refused: the pickle encodes more bytes than it contains")
            return arguments[0].encode("latin1")
        raise InvalidInput("refused: the pickle calls a function that plain data does not need")


def _known(module: object, name: object) -> _Name:
    for allowed_name in _KNOWN:
        if allowed_name == (module, name):
            return allowed_name
    raise InvalidInput(f"refused: the pickle imports {_short(module)}.{_short(name)}")


def _short(value: object) -> str:
    return value[:40] if isinstance(value, str) else type(value).__name__


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise InvalidInput(
            f"refused: the pickle has {checks.with_article(type(value).__name__)} as a name"
        )
    return value
