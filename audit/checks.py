"""Checks of what a user passes in: one clear error names the parameter, the range, the value.

The lowest module: it imports nothing of ours, so that every package may use it.
"""

import difflib
import math
import operator
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_LONGEST = 200  # characters of a value in a message
_LARGEST = int(sys.float_info.max)


def interval(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> float:
    """Returns `value` as a float if it lies in the interval, else raises.

    Args:
        name: the parameter's name, as the user knows it.
        value: what came.
        low: lower end, excluded unless `closed_low`.
        high: upper end, excluded unless `closed_high`.
        closed_low: whether `low` itself is allowed.
        closed_high: whether `high` itself is allowed.

    Raises:
        ValueError: `value` is not a number inside the interval. NaN never is, and true and false
            are no numbers.
    """
    try:
        number = math.nan if _is_bool(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    above = number >= low if closed_low else number > low
    below = number <= high if closed_high else number < high
    if not (above and below):
        opening, closing = "[" if closed_low else "(", "]" if closed_high else ")"
        rounded = one_line(value)
        # Rounded, a value just outside of the interval could look as if it were inside.
        if isinstance(value, float) and rounded != repr(value) and low <= float(rounded) <= high:
            rounded = repr(value)
        raise ValueError(f"{name} must be in {opening}{low:g}, {high:g}{closing}, got {rounded}")
    return number


def integer(name: str, value: float, low: int, high: int | None = None) -> int:
    """Returns `value` as an int if it is a whole number in [low, high], else raises ValueError.

    Without `high` the largest is the last that a float can hold.
    """
    in_words = f">= {low}" if high is None else f"in [{low}, {high}]"
    number = _exactly(value)
    if high is None and number is not None and number > _LARGEST:
        in_words, number = f"{in_words} that a float can hold", None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be a whole number {in_words}, got {one_line(value)}")
    return number


def _is_bool(value: object) -> bool:
    """Whether a value is true or false, also numpy's, without an import of numpy."""
    return type(value).__name__ in ("bool", "bool_")


def _exactly(value: object) -> int | None:
    """The whole number that `value` is, of any size, also as text; None where it is none."""
    if _is_bool(value):
        return None
    try:
        return operator.index(int(value) if isinstance(value, str) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    try:
        number = float(value)  # type: ignore[arg-type]
        return int(number) if number == int(number) else None
    except (TypeError, ValueError, OverflowError):
        return None


def one_of(name: str, value: str, allowed: Iterable[str], *, dotted: bool = False) -> str:
    """Returns the allowed name that `value` is in any case, else raises with the nearest one.

    Use what is returned: `one_of("dataset", "digits", ["DIGITS"])` is "DIGITS".

    Args:
        name: the parameter's name, as the user knows it.
        value: what came.
        allowed: the names there are.
        dotted: whether `package.name` is allowed too, for something of the user's own; it is
            returned as it came.

    Raises:
        ValueError: `value` is none of them.
    """
    names = list(allowed)
    if value in names or (dotted and "." in str(value)):
        return value
    folded = {name.lower(): name for name in names}
    wanted = str(value).lower()
    if isinstance(value, str) and wanted in folded:
        return folded[wanted]
    near = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.4)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
    own = " or a dotted name of your own" if dotted else ""
    raise ValueError(f"{name} must be one of {', '.join(names)}{own}, got {one_line(value)}{hint}")


def one_line(value: object) -> str:
    """A value as it came, in one line that is not too long; a float in at most ten digits."""
    text = " ".join(repr(value).split())
    if isinstance(value, float) and math.isfinite(value) and float(f"{value:.10g}") != value:
        text = f"{value:.6g}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(text: str) -> str:
    r"""A text in which characters that a reader cannot see are escapes.

    Escapes control characters, among them those that move a terminal's cursor, line ends,
    characters of no width, and those that turn the direction of writing.

    Example:
        >>> print(printable("right\x1b[1A"))
        right\x1b[1A
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def quoted(text: str) -> str:
    r"""A text of somebody else's in double quotes, printable; it cannot end its own quotes.

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
    """A text in which addresses have no user, password or token.

    Example:
        >>> without_password("postgresql://me:secret@host/studies")
        'postgresql://***@host/studies'
    """
    for secret, hidden in _PASSWORDS:
        text = secret.sub(hidden, text)
    return text


def read_text(path: str | Path, most: int = 10**8) -> str:
    """The text of a file that ends, as /dev/zero does not.

    Args:
        path: of the file.
        most: characters that it may have.

    Raises:
        ValueError: it has more, or is not UTF-8.
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"file must have at most {most} characters, got more in {str(path)!r}")
    return text


def store_validated(instance: object, **values: object) -> None:
    """Stores checked values in a frozen dataclass, from its `__post_init__`.

    So that what is used is what was checked: 0.5, not the "0.5" that came.
    """
    for name, value in values.items():
        object.__setattr__(instance, name, value)
