"""Result of the differential test: broken premises, each with its likely cause and a fix."""

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from audit.loop.finding_kinds import KINDS, USUAL

PREMISES = (
    "contribution",
    "noise",
    "batches",
    "accountant",
    "number of records",
    "released numbers",
)
"""Names of the assumptions behind the epsilon of a training."""

_ZERO_OUT = (
    "note: neighbours: zero-out (the number of records is public), the default for loops by "
    'Opacus; relation="add-remove" also tests that nothing depends on that number'
)
_COLUMNS = 79
"""Length of the line of a finding whose cause is not shown."""
_COLUMNS_OF_CAUSE = 3 * 72
"""Length of a cause or a fix in a short verdict: three lines of a terminal."""
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
        kind: name of the kind of finding, see `audit.loop.finding_kinds`.

    Example:
        >>> Finding("noise", "`bias` receives no noise.", "Forgotten.", "Add it.").premise
        'noise'
    """

    premise: str
    message: str
    cause: str
    fix: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    kind: str = ""

    @property
    def rank(self) -> int:
        """Place in a report; the findings of a rank keep their order."""
        return KINDS[self.kind].rank if self.kind in KINDS else USUAL

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
        seconds: CPU time of the test.
        steps: number of steps of a run that were tested.
        relation: neighbouring relation.
        assumed_relation: whether the test chose the relation.
        unfinished: the reason why the test has no verdict; empty if it has one.

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
    relation: str = "add-remove"
    assumed_relation: bool = False
    unfinished: str = ""

    @property
    def broken(self) -> bool:
        """Whether a premise is broken."""
        return bool(self.findings)

    @property
    def inconclusive(self) -> bool:
        """Whether a premise of a watched function was not tested, and none is broken."""
        if self.unfinished:
            return True
        return self.watched and not self.broken and not _ESSENTIAL.isdisjoint(self.untested)

    @property
    def depends_on_n(self) -> bool:
        """Whether something released depends on the number of records."""
        return "depends on n" in self.measured

    @property
    def power(self) -> str:
        """The smallest mistakes in noise and batches that the test reports; empty if unknown."""
        if self.broken:
            return ""
        clauses = []
        detectable = self.measured.get("detectable noise scale")
        if detectable is not None:
            effective, accounted = (
                self.measured[f"{name} noise multiplier"] for name in ("effective", "accounted")
            )
            clauses.append(
                f"noise of at most {math.floor(100 * detectable) / 100:g} times the scale that the "
                "largest contribution requires is found with 80 % probability; it has "
                f"{effective / accounted:.3g} times that scale"
            )
        rate = self.measured.get("detectable rate")
        if rate is not None:
            clauses.append(
                f"records that are drawn {math.ceil(100 * rate) / 100:g} times as often as "
                "accounted are found with 80 % probability"
            )
        return "; ".join(clauses)

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.findings:
            more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            return f"broken premise: {self.findings[0].message.removesuffix('.')}{more}"
        if self.unfinished:
            return self.unfinished
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
            "findings": [
                {**asdict(finding), "numbers": dict(finding.numbers)} for finding in self.findings
            ],
            "tested": list(self.tested),
            "untested": dict(self.untested),
            "notes": list(self.notes),
            "measured": dict(self.measured),
            "watched": self.watched,
            "relation": self.relation,
            "unfinished": self.unfinished,
            "runs": self.runs,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    @property
    def headline(self) -> str:
        """The verdict: the broken premises, or that none was found or could be tested."""
        if self.findings:
            premises = list(dict.fromkeys(finding.premise for finding in self.findings))
            return f"broken premise{'s' if len(premises) > 1 else ''}: {', '.join(premises)}"
        if self.unfinished:
            return self.unfinished
        if self.inconclusive:
            return f"not testable (tested: {self._tested_names})"
        return self.summary

    @property
    def short(self) -> str:
        """The verdict, and one line per finding; the first one has its message, cause and fix."""
        return "\n".join([*self.short_verdict, *self.short_findings, *self.remarks])

    @property
    def short_verdict(self) -> list[str]:
        """The verdict, and where the rest of the findings is shown."""
        complete = [line for lines in self._of_findings() for line in lines]
        hint = " (all messages, causes and fixes: --all)" if self.short_findings != complete else ""
        return [f"{self.headline}{hint}"]

    @property
    def short_findings(self) -> list[str]:
        """The first finding with its cause and its fix, and a line for each of the others."""
        if not self.findings:
            return []
        first_finding, *further_findings = self._of_findings()
        lines = [first_finding[0], *(_cut(line, _COLUMNS_OF_CAUSE) for line in first_finding[1:])]
        return lines + [_cut(message, _COLUMNS) for message, _, _ in further_findings]

    def _of_findings(self) -> list[list[str]]:
        """Message, cause and fix of each finding."""
        return [
            [
                f"{number}. {finding.message}",
                f"   Likely cause: {finding.cause}",
                f"   Fix: {finding.fix}",
            ]
            for number, finding in enumerate(self.findings, 1)
        ]

    @property
    def remarks(self) -> list[str]:
        """The power of the test, the parts that were not tested, and the conditions."""
        lines = []
        if self.findings and self.unfinished:
            lines.append(self.unfinished)
        if self.power and not self.unfinished and not self.inconclusive:
            lines.append(f"power: {self.power}")
        if not self.unfinished:
            lines += [f"not tested: {remark}" for remark in self._reasons]
        if self.watched and self.relation == "zero-out" and self.assumed_relation:
            lines.append(_ZERO_OUT)
        return lines + [f"note: {remark}" for remark in self.notes]

    def __str__(self) -> str:
        findings = [line for lines in self._of_findings() for line in lines]
        return "\n".join([*(findings or [self.headline]), *self.remarks])


def _cut(line: str, characters: int) -> str:
    """The line, cut between words; its indentation is kept."""
    indented = len(line) - len(line.lstrip())
    return " " * indented + textwrap.shorten(line, characters, placeholder=" ...")
