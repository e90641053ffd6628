"""What a reader returns: the runs of a tuning as a tracker recorded them, not yet interpreted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit import checks
from audit.accounting import Mechanism
from audit.errors import InvalidInput
from audit.finished.columns import STATE_COLUMNS, is_missing, without_prefix
from audit.finished.evidence import COMPLETE, Evidence, evidence_of_states, state_of


@dataclass(frozen=True)
class RecordedRun:
    """One run.

    Attributes:
        values: the cells by column, as they are written.
        where: the place of the run in its source, for messages.
        state: one of the states in `audit.finished.evidence`.
        mechanism: the mechanism of the run, if it is known already.
    """

    values: Mapping[str, Any]
    where: str
    state: str = COMPLETE
    mechanism: Mechanism | None = None


@dataclass(frozen=True)
class Material:
    """The runs of one source.

    Attributes:
        name: the source, in words for messages.
        runs: the runs, with those that failed.
        evidence: what shows how candidates were chosen, besides the states of the runs.
        bookkeeping: columns that the tracker itself writes.
        parameters: columns with hyperparameters; empty if the source does not separate them.
        objectives: number of scores.
        trainings: number of trainings that one run of the source represents.
        no_bound: why no bound is valid for any choice of candidates; empty if bounds may be.
    """

    name: str
    runs: tuple[RecordedRun, ...]
    evidence: Evidence = field(default_factory=Evidence)
    bookkeeping: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    objectives: int = 1
    trainings: int = 1
    no_bound: str = ""

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The cells of every column; None where a run has no such cell."""
        names = dict.fromkeys(name for run in self.runs for name in run.values)
        return {name: [run.values.get(name) for run in self.runs] for name in names}

    @property
    def state_evidence(self) -> Evidence:
        """What the states of the runs show."""
        return evidence_of_states(run.state for run in self.runs)


def runs_of_rows(
    rows: Sequence[Mapping[str, Any]], places: Iterable[str], name: str
) -> tuple[RecordedRun, ...]:
    """Runs from rows of a table; a column `state` or `status` is understood."""
    if not rows:
        raise InvalidInput(f"{name} must have at least one run, got none")
    columns = dict.fromkeys(column for row in rows for column in row)
    states = [
        column for column in columns if without_prefix(column).strip().lower() in STATE_COLUMNS
    ]
    found = []
    for row, where in zip(rows, places, strict=True):
        found.append(
            RecordedRun(
                {column: value for column, value in row.items() if column not in states},
                where,
                _state_of_row([row.get(column) for column in states], where),
            )
        )
    return tuple(found)


def _state_of_row(words: Sequence[Any], where: str) -> str:
    present = [word for word in words if not is_missing(word)]
    if not present:
        return COMPLETE
    state = state_of(present[0])
    if state is None:
        raise InvalidInput(
            f"{where}: state must be one that a tracker writes (finished, failed, pruned, ...), "
            f"got {checks.one_line(present[0])}"
        )
    return state


def flattened(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one mapping with names such as `optimizer/lr`.

    Example:
        >>> flattened({"lr": 0.1, "dp": {"sigma": 1.0}})
        {'lr': 0.1, 'dp/sigma': 1.0}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{before}{name}/")
        else:
            found[f"{before}{name}"] = value
    return found
