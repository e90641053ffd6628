"""Validation of user input: each error names the parameter, the allowed range and the value.

The module imports only `audit.errors` and `audit.numbers_from_text`, so every package can use it.
"""

import codecs
import difflib
import inspect
import io
import math
import operator
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit import numbers_from_text
from audit.errors import InvalidInput

if TYPE_CHECKING:
    from audit.numerics import FloatArray

MAX_JOBS = 1024
"""The largest number of processes that may be asked for."""
_MAX_CHARACTERS = 200
"""Length of a value in an error message."""
_MAX_INTEGER = int(sys.float_info.max)
_NUMBERS = "biufOUS"
"""Kinds of arrays that may hold numbers: bools, numbers, objects and text."""


def interval(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> float:
    """Returns `value` as a float if it lies in the interval, else raises InvalidInput.

    The ends are excluded unless `closed_low` and `closed_high`. NaN, true and false are never
    accepted.
    """
    try:
        number = _as_float(value)
    except Exception:  # also of a user's own class
        number = math.nan
    above = number >= low if closed_low else number > low
    below = number <= high if closed_high else number < high
    if not (above and below):
        opening, closing = "[" if closed_low else "(", "]" if closed_high else ")"
        rounded = _as_given(value)
        # A value just outside the interval must not look as if it were inside after rounding.
        if isinstance(value, float) and rounded != repr(value) and low <= float(rounded) <= high:
            rounded = repr(value)
        raise InvalidInput(
            f"{name} must be in {opening}{low:g}, {high:g}{closing}, got {rounded}{_hint(value)}"
        )
    return number


def _as_float(value: object) -> float:
    """`value` as a float; NaN if Python would misread it."""
    if isinstance(value, str):
        return numbers_from_text.read_number(value)
    return math.nan if is_misread(value) else float(value)  # type: ignore[arg-type]


def _as_given(value: object) -> str:
    """A value for an error message: text that is a plain number is shown without quotes."""
    if isinstance(value, str) and not numbers_from_text.is_ambiguous(value):
        try:
            numbers_from_text.read_number(value)
        except ValueError:
            return one_line(value)
        return one_line(value)[1:-1].strip()
    return one_line(value)


def _hint(value: object, *, whole: bool = False) -> str:
    """Why text is not a number, or is ambiguous in a place for whole numbers; else empty."""
    if not isinstance(value, str):
        return ""
    read = numbers_from_text.read_integer if whole else numbers_from_text.read_number
    try:
        read(value)
    except ValueError as error:
        reason = str(error)
        return f": {reason}" if reason.startswith(("write", "it may")) else ""
    return ""


def integer(name: str, value: float, low: int, high: int | None = None) -> int:
    """Returns `value` as an int if it is whole and in [low, high], else raises InvalidInput.

    Without `high`, the largest float, 1.8e308, is the limit.
    """
    in_words = f">= {low}" if high is None else f"in [{low}, {high}]"
    number = as_integer(value)
    if high is None and number is not None and number > _MAX_INTEGER:
        in_words, number = f"{in_words} that a float can hold", None
    if number is None or number < low or (high is not None and number > high):
        raise InvalidInput(
            f"{name} must be a whole number {in_words}, got {_as_given(value)}"
            f"{_hint(value, whole=True)}"
        )
    return number


def flag(name: str, value: object) -> bool:
    """Returns `value` as a bool if it is true or false, else raises InvalidInput.

    Text and numbers are refused: the text "no" would count as true.
    """
    if not _is_bool(value):
        raise InvalidInput(f"{name} must be True or False, got {one_line(value)}")
    return bool(value)


def items(name: str, value: object, of: str) -> list[Any]:
    """Returns the items of an iterable, not of text, sets or mappings, else raises InvalidInput.

    A set would drop equal items, such as equal trials.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | Set):
        raise InvalidInput(f"{name} must be a list of {of}, got {one_line(value)}")
    try:
        return list(value)
    except TypeError:  # an array without a dimension
        raise InvalidInput(f"{name} must be a list of {of}, got {one_line(value)}") from None


def detached(values: Any) -> Any:
    """A torch tensor, detached and on the processor; any other value unchanged."""
    return values.detach().cpu() if hasattr(values, "detach") else values


def to_floats(values: Any) -> "FloatArray":
    """Numbers, in nested lists, arrays or tensors, as an array of floats.

    Raises:
        TypeError, ValueError, OverflowError: a value is not a number, or numpy would drop a part.
    """
    import numpy as np  # other checks work without it

    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("numpy would drop the mask")
    try:
        array = np.asarray(detached(values))
    except RuntimeError:  # of torch, for a tensor without numbers
        raise TypeError("a tensor must have numbers") from None
    if array.dtype.kind not in _NUMBERS:
        raise TypeError("numpy would drop imaginary parts or units of time, or unpack fields")
    if array.dtype.kind == "O" and any(item is None for item in array.flat):
        raise TypeError("numpy would read None as NaN")
    if array.dtype.kind in "OUS":  # numpy would read text such as 1_0
        texts = [_as_float(item) for item in array.flat]
        array = np.array(texts, dtype=np.float64).reshape(array.shape)
    return np.asarray(array, dtype=np.float64)


def numbers(name: str, values: Any, low: float | None = None) -> "FloatArray":
    """Returns a number, or nested lists of numbers, as floats, else raises InvalidInput.

    NaN is never accepted. With `low`, all numbers must be in (low, inf).
    """
    try:
        array = to_floats(values)
        if low is None:
            right = bool((array == array).all())  # false for NaN
        else:
            right = bool(((array > low) & (array < math.inf)).all())
    except Exception:  # also of a user's own class
        right = False
    if not right:
        limits = "" if low is None else f" in ({low:g}, inf)"
        raise InvalidInput(f"{name} must be numbers{limits}, got {one_line(values)}")
    return array


def _is_bool(value: object) -> bool:
    """Whether a value is a bool of Python or of numpy, without importing numpy."""
    return type(value).__name__ in ("bool", "bool_")


def is_misread(value: object) -> bool:
    """Whether Python would convert a value to a number by mistake: a bool, or bytes.

    Of complex numbers and times of numpy and torch, Python would drop a part or the unit.
    """
    kind = str(getattr(value, "dtype", ""))
    return (
        _is_bool(value)
        or isinstance(value, bytes | bytearray | memoryview)
        or re.match(r"(torch\.)?(bool|complex|datetime|timedelta)", kind) is not None
    )


def as_integer(value: object) -> int | None:
    """`value` as an integer of any size, also if it is text; None if it is not a whole number."""
    if isinstance(value, str):
        try:
            return numbers_from_text.read_integer(value)
        except ValueError:
            return None
    if is_misread(value):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # also of a user's own class
        pass
    try:
        number = float(value)  # type: ignore[arg-type]
        return int(number) if number == int(number) else None
    except Exception:
        return None


def one_of(name: str, value: str, allowed: Iterable[str], *, dotted: bool = False) -> str:
    """Returns the allowed name that equals `value` up to case, else raises InvalidInput.

    The error suggests the closest name. If `dotted`, `package.name` is also allowed, for the user's
    own code, and returned unchanged.
    """
    names = list(allowed)
    if isinstance(value, str) and (value in names or (dotted and "." in value)):
        return value
    folded = {name.lower(): name for name in names}
    lowered = value.lower() if isinstance(value, str) else ""
    if isinstance(value, str) and lowered in folded:
        return folded[lowered]
    near = difflib.get_close_matches(lowered, folded, n=1, cutoff=0.6)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
    or_dotted = " or a dotted name of your own" if dotted else ""
    raise InvalidInput(
        f"{name} must be one of {', '.join(names)}{or_dotted}, got {one_line(value)}{hint}"
    )


def function(name: str, value: Any, *arguments: str) -> Any:
    """Returns `value` if it can be called with these positional arguments, else raises."""
    if not callable(value):
        raise InvalidInput(f"{name} must be a function, got {one_line(value)}")
    if inspect.iscoroutinefunction(value):
        raise InvalidInput(f"{name} must be a function without async, got {one_line(value)}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # Some functions in C have no signature.
        return value
    try:
        signature.bind(*arguments)
    except TypeError:
        raise InvalidInput(
            f"{name} must be a function of ({', '.join(arguments)}), got one of {signature}"
        ) from None
    return value


def one_line(value: object) -> str:
    """A value as text on one short line; a float has at most ten digits."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a user's own class
        text = kind_of(value)
    if isinstance(value, float) and math.isfinite(value) and float(f"{value:.10g}") != value:
        text = f"{value:.6g}"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def kind_of(value: object) -> str:
    """The kind of a value, for errors that must not show the value itself."""
    return "None" if value is None else with_article(type(value).__name__)


def with_article(name: str) -> str:
    """A name with its indefinite article: an int, a list."""
    return f"{'an' if name[:1].lower() in [*'aeio'] else 'a'} {name}"


def printable(text: str) -> str:
    r"""Text with every character escaped that is invisible, or that moves or turns other text.

    Example:
        >>> print(printable("right\x1b[1A"))
        right\x1b[1A
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def quoted(text: str) -> str:
    r"""Untrusted text in double quotes, printable, with its own quotes escaped.

    Example:
        >>> print(quoted('our "data"'))
        "our \"data\""
    """
    inside = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(inside)}"'


_PASSWORDS = (
    (re.compile(r"(://)\S*@"), r"\1***@"),
    (re.compile(r"(?i)([?&][a-z_]*(?:password|passwd|pwd|secret|token)=)[^&\s'\"]*"), r"\1***"),
)


def without_password(text: str) -> str:
    """Text without the users, passwords and tokens of addresses.

    Example:
        >>> without_password("postgresql://me:secret@host/studies")
        'postgresql://***@host/studies'
    """
    for secret, hidden in _PASSWORDS:
        text = secret.sub(hidden, text)
    return text


_PATIENCE = 10.0
"""Seconds to wait, in all, for the content of a file."""


def read_bytes(path: str | Path, max_bytes: int = 10**8) -> bytes:
    """The content of a file of limited size.

    Args:
        path: the file; it may be endless, such as /dev/zero, or wait for a writer, as pipes do.
        max_bytes: largest number of bytes.

    Raises:
        InvalidInput: the file has more bytes.
        OSError: the file cannot be read; a TimeoutError if its end does not come.
    """
    # A number would be a descriptor, which would be closed.
    with open(os.fspath(path), "rb", buffering=0, opener=_without_waiting) as file:
        content = bytearray()
        patience = _PATIENCE
        while len(content) <= max_bytes:
            patience -= _seconds_until_readable(file.fileno(), patience)
            if patience <= 0.0:
                raise TimeoutError(
                    f"its end did not come within {_PATIENCE:g} seconds of waiting: copy its "
                    "content into an ordinary file"
                )
            chunk = file.read(min(max_bytes + 1 - len(content), 1 << 20))
            if not chunk:
                return bytes(content)
            content += chunk
    raise InvalidInput(f"file must have at most {max_bytes} bytes, got more in {str(path)!r}")


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file, also a pipe that has no writer yet."""
    if not hasattr(os, "O_NONBLOCK"):
        return os.open(path, flags)
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)  # Only opening must not wait.
    return descriptor


def _seconds_until_readable(descriptor: int, limit: float) -> float:
    """Seconds until a file has bytes or ends; at least `limit` if neither happens before."""
    import select  # other checks work without it

    if not hasattr(select, "poll"):  # on Windows
        return 0.0
    start = time.monotonic()
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    return time.monotonic() - start if waiting.poll(1000 * limit) else limit


def is_stored_file(path: str | Path) -> bool:
    """Whether a file is on a disk and not empty; pipes and devices, which may not end, are not.

    Check this before another library opens the file.
    """
    # The size of pipes, of devices and of most files in /proc is 0.
    return Path(path).is_file() and Path(path).stat().st_size > 0


def reason_of(error: BaseException) -> str:
    """Why a file cannot be read or written, in words that do not repeat its path."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    return getattr(error, "strerror", None) or str(error)


def read_text(path: str | Path, max_bytes: int = 10**8) -> str:
    """The content of a text file of limited size, with line ends of any system as newlines.

    A byte order mark, as some editors on Windows write it, is left out.

    Raises:
        InvalidInput: the file has more bytes.
        UnicodeDecodeError: the file is not UTF-8.
        OSError: the file cannot be read.
    """
    content = read_bytes(path, max_bytes).removeprefix(codecs.BOM_UTF8)
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()


def validate(
    instance: object, name: str, check: Callable[..., object], *limits: object, **options: object
) -> None:
    """Replaces a field of a frozen dataclass by its checked value, from its `__post_init__`."""
    store_validated(instance, **{name: check(name, getattr(instance, name), *limits, **options)})


def store_validated(instance: object, **values: object) -> None:
    """Stores validated values in a frozen dataclass, from its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)
