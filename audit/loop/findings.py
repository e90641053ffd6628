"""Result of the differential test: broken premises, each with its likely cause and a fix."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PREMISES = (
    "contribution",
    "noise",
    "batches",
    "accountant",
    "number of records",
    "released numbers",
)
"""Names of the assumptions behind the epsilon of a training."""

# A watched function is not testable if one of these was not tested.
_ESSENTIAL = {"contribution", "noise", "batches", "accountant", "released numbers"}


@dataclass(frozen=True)
class Finding:
    """One broken premise.

    Attributes:
        premise: one of `PREMISES`.
        message: the observation, with its numbers.
        cause: likely causes.
        fix: a way to correct it.
        numbers: the numbers of the message, for programs.

    Example:
        >>> Finding("noise", "`bias` receives no noise.", "Forgotten.", "Add it.").premise
        'noise'
    """

    premise: str
    message: str
    cause: str
    fix: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.message} Likely cause: {self.cause} Fix: {self.fix}"


@dataclass(frozen=True)
class PremiseReport:
    """The outcome of the differential test.

    Attributes:
        findings: the broken premises.
        tested: the premises that were tested.
        untested: the others, each with the reason.
        notes: further remarks.
        measured: numbers such as the effective noise multiplier.
        watched: whether the function called `watch` with an optimizer.
        runs: number of calls of the training function.
        seconds: duration of the test.
        steps: number of steps of a run that were tested.

    Example:
        >>> PremiseReport((), ("noise",), {}, (), {}, True, 12, 0.5).broken
        False
    """

    findings: tuple[Finding, ...]
    tested: tuple[str, ...]
    untested: Mapping[str, str]
    notes: tuple[str, ...]
    measured: Mapping[str, float]
    watched: bool
    runs: int
    seconds: float
    steps: int = 0

    @property
    def broken(self) -> bool:
        """Whether a premise is broken."""
        return bool(self.findings)

    @property
    def inconclusive(self) -> bool:
        """Whether a premise of a watched function was not tested, and none is broken."""
        return self.watched and not self.broken and not _ESSENTIAL.isdisjoint(self.untested)

    @property
    def depends_on_n(self) -> bool:
        """Whether something released depends on the number of records."""
        return "depends on n" in self.measured

    @property
    def power(self) -> str:
        """The largest noise that the test reports as too small, as text; empty if unknown."""
        detectable = self.measured.get("detectable noise scale")
        if detectable is None or self.broken:
            return ""
        effective, accounted = (
            self.measured[f"{name} noise multiplier"] for name in ("effective", "accounted")
        )
        return (
            f"noise of at most {math.floor(100 * detectable) / 100:g} times the scale that the "
            "largest contribution requires is found with 80 % probability; it has "
            f"{effective / accounted:.3g} times that scale"
        )

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.findings:
            more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            return f"broken premise: {self.findings[0].message.removesuffix('.')}{more}"
        if self.inconclusive:
            return f"not testable: {'; '.join(self._reasons)} (tested: {self._tested_names})"
        return f"no broken premise found (tested: {self._tested_names})"

    @property
    def _tested_names(self) -> str:
        return ", ".join(self.tested) or "none"

    @property
    def _reasons(self) -> list[str]:
        """The premises that were not tested, with a reason for each group of them."""
        return [
            f"{', '.join(name for name in PREMISES if self.untested.get(name) == why)}: {why}"
            for why in dict.fromkeys(self.untested.values())
        ]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain Python objects."""
        return {
            "findings": [{**asdict(each), "numbers": dict(each.numbers)} for each in self.findings],
            "tested": list(self.tested),
            "untested": dict(self.untested),
            "notes": list(self.notes),
            "measured": dict(self.measured),
            "watched": self.watched,
            "runs": self.runs,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    def __str__(self) -> str:
        lines = []
        for number, each in enumerate(self.findings, 1):
            lines.append(f"{number}. {each.message}")
            lines.append(f"   Likely cause: {each.cause}")
            lines.append(f"   Fix: {each.fix}")
        if self.inconclusive:
            lines.append(f"not testable (tested: {self._tested_names})")
        elif not self.findings:
            lines += [self.summary, *([f"power: {self.power}"] if self.power else [])]
        lines += [f"not tested: {each}" for each in self._reasons]
        lines += [f"note: {each}" for each in self.notes]
        return "\n".join(lines)
