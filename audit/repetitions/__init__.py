"""Distributions of K, the number of runs of the base mechanism, and their text form.

Sources: Papernot & Steinke 2022 (definitions 1 and 2: truncated negative binomial, Poisson),
Koskela, Redberg & Wang 2024 (binomial), Xiang, Wang & Wang 2024 (eq. 21: two-point).
"""

from collections.abc import Callable
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.numbers_from_text import read_number
from audit.repetitions.base import (
    GIVEN,
    MAX_RUNS,
    GivenNoFailure,
    PowerLaw,
    ProfileTheorem,
    RenyiTheorem,
    Repetitions,
)
from audit.repetitions.elementary import Binomial, Fixed, Poisson, TwoPoint
from audit.repetitions.truncated import Truncated
from audit.repetitions.truncated_negative_binomial import TruncatedNegativeBinomial

__all__ = [
    "FAMILIES",
    "MAX_RUNS",
    "Binomial",
    "Fixed",
    "GivenNoFailure",
    "Poisson",
    "PowerLaw",
    "ProfileTheorem",
    "RenyiTheorem",
    "Repetitions",
    "Truncated",
    "TruncatedNegativeBinomial",
    "TwoPoint",
    "parse_repetitions",
]

_FAMILIES: dict[str, tuple[int, Callable[..., Repetitions]]] = {
    "tnb": (2, TruncatedNegativeBinomial),
    "geometric": (1, lambda gamma: TruncatedNegativeBinomial(1.0, gamma)),
    "poisson": (1, Poisson),
    "binomial": (2, Binomial),
    "two-point": (2, TwoPoint),
    "fixed": (1, Fixed),
}
"""Number of parameters and constructor of each family."""

FAMILIES = tuple(_FAMILIES)
"""The names of the families in texts."""


def parse_repetitions(spec: "str | Repetitions") -> Repetitions:
    """Parses a distribution of K.

    Args:
        spec: `tnb:ETA,GAMMA`, `geometric:GAMMA`, `poisson:MU`, `binomial:N,P`, `two-point:S,L` or
            `fixed:K`, optionally followed by `@MOST`, which conditions on K <= MOST. Names are not
            case-sensitive. A distribution object is returned unchanged.

    Raises:
        InvalidInput: the family is unknown, the number of parameters is wrong, or a parameter is
            out of its range.

    Example:
        >>> round(parse_repetitions("tnb:0,0.01").mean, 6)
        21.497577
        >>> parse_repetitions("two-point:0.01,100@50").pmf([1, 100]).tolist()
        [1.0, 0.0]
    """
    if isinstance(spec, Repetitions):
        return spec
    if not isinstance(spec, str):
        raise InvalidInput(
            f"repetitions must be a distribution of K, or one as text, got {checks.one_line(spec)}"
        )
    text = spec.strip().lower()
    wording = " ".join(text.split())
    before, condition, failure = text.rpartition(GIVEN)
    if condition and "@" not in failure:
        return GivenNoFailure(parse_repetitions(before), _numbers("given", failure, 1)[0])
    text, at, limit = text.rpartition("@") if "@" in text else (text, "", "")
    if condition:
        return Truncated(
            parse_repetitions(text), checks.integer("most", _numbers("@", limit, 1)[0], 1)
        )
    name, _, parameters = text.partition(":")
    count, make = _FAMILIES[checks.one_of("repetitions", name.strip(), FAMILIES)]
    try:
        repetitions = make(*_numbers(name, parameters, count))
        if not at:
            return repetitions
        return Truncated(repetitions, checks.integer("most", _numbers("@", limit, 1)[0], 1))
    except ValueError as error:
        raise InvalidInput(f"repetitions {wording}: {error}") from error


def _numbers(name: str, text: str, count: int) -> list[Any]:
    """The numbers of a family as text, which its constructor reads as whole numbers or not."""
    tokens = text.split(",") if text else []
    try:
        for token in tokens:
            read_number(token)
    except ValueError:
        tokens = []
    if len(tokens) != count:
        plural = "number" if count == 1 else "numbers separated by a comma"
        raise InvalidInput(f"{name} takes {count} {plural}, got {text!r}")
    return tokens
