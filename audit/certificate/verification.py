"""Is a certificate right? Every number computed anew from its own fields."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audit import checks
from audit.certificate.certificate import Certificate
from audit.certificate.numbers import compute, rounded_down, rounded_up
from audit.certificate.statement import Ground, hash_of
from audit.numerics import format_exact

__all__ = ["Verdict", "verify"]

# Other versions of numpy and scipy may round otherwise; no claim depends on so little.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Verdict:
    """Whether a certificate is right.

    Attributes:
        right: whether all numbers and the hash are.
        line: the same in one line, with the reason.

    Example:
        >>> Verdict(right=True, line="right").right
        True
    """

    right: bool
    line: str


def verify(path: str | Path) -> Verdict:
    """Computes every number of a certificate anew, and checks its hash.

    What is taken on trust stays so: how the tuning was really done no file can show.

    Args:
        path: of the json.

    Raises:
        ValueError: there is no certificate at `path`.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "mine.json").write_text("{}")
        ...     try:
        ...         verify(Path(folder, "mine.json"))
        ...     except ValueError as error:
        ...         print(type(error).__name__)
        ValueError
    """
    try:
        values = json.loads(checks.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"certificate must be a readable json file, got {str(path)!r}") from error
    try:
        return _verdict(values)
    except RecursionError:
        raise ValueError(
            f"certificate must have the fields of its format, got deeper ones in {str(path)!r}"
        ) from None


def _verdict(values: Any) -> Verdict:
    certificate = Certificate.from_dict(values)
    if values.get("hash") != hash_of(values):
        return Verdict(False, "wrong: the hash is not that of what the file says")
    anew = compute(
        certificate.base, certificate.protocol, certificate.delta, certificate.numbers.bounds
    )
    expected = json.loads(json.dumps(asdict(anew)))
    for name, came, right in _differences(values["numbers"], expected, "numbers"):
        return Verdict(False, f"wrong: {name} is {came!r}, computed anew {right!r}")
    # The sentences and the ceiling follow from the rest.
    again = certificate.as_dict()
    for part in ("statement", "base", "evidence"):
        for name, came, right in _differences(values[part], again[part], part):
            return Verdict(False, f"wrong: {name} is {came!r}, computed anew {right!r}")
    evidence = certificate.evidence
    if evidence is not None and evidence.epsilon_lower > anew.epsilon:
        return Verdict(
            False,
            f"wrong: a game shows epsilon >= {rounded_down(evidence.epsilon_lower, 6)}, "
            "above what is certified",
        )
    if certificate.void:
        return Verdict(True, f"right in every number, but void: {'; '.join(certificate.void)}")
    trusted = sum(one.ground is Ground.ON_TRUST for one in certificate.conditions)
    claim = (
        f"({rounded_up(anew.epsilon)}, {format_exact(certificate.delta)})-DP by {anew.bounds[0]}"
    )
    return Verdict(True, f"right: {claim}, if the {trusted} things taken on trust are so")


def _differences(came: Any, right: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(came, Mapping) and isinstance(right, Mapping):
        for key in sorted({*came, *right}):
            yield from _differences(came.get(key), right.get(key), f"{name}.{key}")
    elif isinstance(came, list) and isinstance(right, list) and len(came) == len(right):
        for index, pair in enumerate(zip(came, right, strict=True)):
            yield from _differences(*pair, f"{name}[{index}]")
    elif isinstance(came, float | int) and isinstance(right, float | int):
        if not math.isclose(came, right, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2):
            yield name, came, right
    elif came != right:
        yield name, came, right
