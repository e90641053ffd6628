"""The one reader of numbers from text, for options, files, protocols and settings.

A number is written as in Python: decimal digits, at most one point, and perhaps an exponent. In
a place for whole numbers, a point followed by exactly three digits is ambiguous: `1.000` is one in
English and a thousand in German. Everything else that looks like a number (thousands separators,
units, percentages, underscores, digits of other scripts) is refused with its reason.

The module imports only the standard library, so every package can use it.
"""

import re

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_POINT_AND_THREE_DIGITS = re.compile(r"[+-]?[0-9]+\.[0-9]{3}")
_GROUPS = re.compile(r"[+-]?[0-9]{1,3}(?:[.,'\u2019\s_][0-9]{3})+(?:[.,][0-9]*)?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
_FRACTION = re.compile(r"[+-]?[0-9.]+\s*/\s*[0-9.]+")
_WITH_UNIT = re.compile(r"[+-]?[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?\s*[A-Za-z\u00b5\u03bc]+")


def is_ambiguous(text: str) -> bool:
    """Whether text may be a whole number with a thousands separator: `1.000`.

    Example:
        >>> is_ambiguous("1.000"), is_ambiguous("2000.0"), is_ambiguous("1.000e3")
        (True, False, False)
    """
    return _POINT_AND_THREE_DIGITS.fullmatch(text.strip()) is not None


def read_number(text: str) -> float:
    """The number that text denotes.

    Raises:
        ValueError: the text is not a number; the message states the reason.

    Example:
        >>> read_number("0.125"), read_number("1e-5"), read_number(" 20 ")
        (0.125, 1e-05, 20.0)
    """
    plain = text.strip()
    if not (_NUMBER.fullmatch(plain) or _NOT_FINITE.fullmatch(plain)):
        raise ValueError(why_not_a_number(plain))
    return float(plain)


def read_integer(text: str) -> int:
    """The whole number that text denotes, of any size.

    Raises:
        ValueError: the text is not a whole number, or it is ambiguous; the message states the
            reason.

    Example:
        >>> read_integer("2000"), read_integer("2000.0"), read_integer("1e3")
        (2000, 2000, 1000)
    """
    plain = text.strip()
    if _WHOLE.fullmatch(plain):
        return int(plain)
    if is_ambiguous(plain):
        point = plain.index(".")
        raise ValueError(
            f"it may mean {plain[:point]} or {plain[:point]}{plain[point + 1 :]}: write it without "
            "a point"
        )
    number = read_number(plain)
    if number != number or number in (float("inf"), float("-inf")) or number != int(number):
        raise ValueError("it is not whole")
    return int(number)


def why_not_a_number(text: str) -> str:
    """The reason why text is not a number, in words that follow a colon.

    Example:
        >>> why_not_a_number("1,000")
        'write it without thousands separators, and decimals with a point'
        >>> why_not_a_number("5 %")
        'write a percentage as a fraction'
    """
    plain = text.strip()
    if plain.endswith("%"):
        return "write a percentage as a fraction"
    if _GROUPS.fullmatch(plain):
        return "write it without thousands separators, and decimals with a point"
    if _DECIMAL_COMMA.fullmatch(plain):
        return "write decimals with a point"
    if _FRACTION.fullmatch(plain):
        return "write a fraction as a decimal number"
    if _WITH_UNIT.fullmatch(plain):
        return "write it without a unit"
    return "it is not a number"
