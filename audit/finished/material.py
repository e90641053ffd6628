"""What a reader returns: the runs of a tuning as a tracker recorded them, not yet interpreted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit import checks
from audit.accounting import Mechanism
from audit.errors import InvalidInput
from audit.finished.columns import STATE_COLUMNS, is_missing, typed_name, without_prefix
from audit.finished.evidence import (
    COMPLETE,
    FAILED,
    PRUNED,
    RUNNING,
    Evidence,
    evidence_of_states,
    state_of,
)


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
    rows: Sequence[Mapping[str, Any]],
    places: Iterable[str],
    name: str,
    ignored: frozenset[str] = frozenset(),
) -> tuple[RecordedRun, ...]:
    """Runs from rows of a table; a column `state` or `status` is understood."""
    if not rows:
        raise InvalidInput(f"{name} must have at least one run, got none")
    columns = dict.fromkeys(column for row in rows for column in row)
    states = [
        column
        for column in columns
        if without_prefix(column).strip().lower() in STATE_COLUMNS
        and not {column.strip(), without_prefix(column)} & ignored
    ]
    runs = []
    for row, where in zip(rows, places, strict=True):
        runs.append(
            RecordedRun(
                {column: value for column, value in row.items() if column not in states},
                where,
                _state_of_row({column: row.get(column) for column in states}, where),
            )
        )
    return tuple(runs)


_REPORTED = (COMPLETE, RUNNING, FAILED, PRUNED)
"""States, from the one with the least to report."""


def _state_of_row(words: Mapping[str, Any], where: str) -> str:
    """The state of a run, from the words of its columns with states."""
    states = [COMPLETE]
    for column, word in words.items():
        if is_missing(word):
            continue
        state = state_of(word)
        if state is None:
            raise InvalidInput(
                f"{where}: state must be one that a tracker writes (finished, failed, pruned, ...)"
                f", got {checks.one_line(word)}: write one of these, or add --columns "
                f"'{typed_name(column)}=ignore' (in Python, columns=) "
                "if the column is no state of a run"
            )
        states.append(state)
    # Pruning is evidence about the choice of candidates, and failures are reported.
    return max(states, key=_REPORTED.index)


def flattened(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one mapping with names such as `optimizer/lr`.

    Example:
        >>> flattened({"lr": 0.1, "dp": {"sigma": 1.0}})
        {'lr': 0.1, 'dp/sigma': 1.0}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{before}{name}/")
        else:
            flat[f"{before}{name}"] = value
    return flat
