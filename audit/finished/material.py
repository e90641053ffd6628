"""What a reader returns: the runs of a tuning as a tracker recorded them, not yet interpreted.

The material comes with the evidence that it contains of how the candidates were chosen.

In a table with several rows for each run, such as one row for every epoch that was logged, each row
would count as a run. Nothing is guessed: a table that looks like a log is refused, and the role
`run` of a column says which rows are one run.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from audit import checks
from audit.accounting import Mechanism
from audit.errors import InvalidInput
from audit.finished.columns import (
    IGNORE,
    LENGTHS,
    ROLES,
    RUN,
    STATE_COLUMNS,
    is_missing,
    name_set,
    number_in,
    typed_name,
    without_prefix,
    words_of,
)

GRID, RANDOM, SEQUENTIAL = "grid", "random", "sequential"
COMPLETE, FAILED, PRUNED, RUNNING = "complete", "failed", "pruned", "running"
_DIGITS_OF_A_DRAW = 9
"""Significant digits from which a number is taken to be drawn from a continuous distribution."""
_RESULT_WORDS = name_set(
    "acc accuracy loss score f1 auc auroc precision recall metric metrics error err val valid "
    "validation test eval perplexity ppl bleu rouge mse mae rmse r2 reward objective value "
    "best rank time runtime duration date start end seconds timestamp created id uuid name "
    "run trial seed index number unnamed summary note notes tags path dir host hostname user "
    "result"
)
"""Words in names of columns that differ between two trainings of one candidate."""
_SEARCH_COLUMNS = frozenset(
    {"sampler", "method", "search_alg", "search_algorithm", "searcher", "search", "search_method"}
    | {"sweep_method", "tuner", "oracle", "suggester", "sampler_name", "search_strategy"}
)
"""Columns that name the way of choosing candidates."""
_LOOKING = ("tpe", "bayes", "cma", "gaussian process", "gpsampler", "nevergrad", "hyperband")
_LOOKING_TOO = ("bohb", "asha", "pbt", "population", "evolution", "genetic", "hyperopt", "nsga")
_STOPPING_COLUMNS = frozenset({"scheduler", "trial_scheduler", "pruner", "stopper"})
_STOPPING = (
    *("asha", "hyperband", "halving", "median", "pbt", "population", "bohb"),
    *("pruner", "racing"),
)
"""What stops runs by the results of others; a scheduler may also be that of a learning rate."""
_PRUNED_COLUMNS = frozenset({"pruned", "is_pruned", "was_pruned", "early_stopped", "stopped_early"})
_ANCESTRY_COLUMNS = frozenset({"generation", "parent_id", "parent_trial", "parent_run_id"})
_NUMBERS = frozenset({"number", "trial", "trial_number", "trial_id", "run", "run_number", "run_id"})
_MAX_NUMBER = 10_000
"""A larger number is an identifier, such as that of a job."""
_YES = frozenset({"true", "yes", "1", "1.0", "t", "y"})
_IDENTIFIERS = name_set(
    "run runid runname runuuid trial trialid trialname trialnumber jobid id uid uuid candidateid"
)
_POSSIBLE_IDENTIFIERS = name_set("job name seed config configid candidate model modelid")
_COUNTERS = name_set(
    "epoch step globalstep iteration iter trainingiteration round timestep currentepoch "
    "epochnumber epochidx epochindex trainstep checkpoint"
)
"""Names of columns, without spaces and in lower case."""
_KNOBS = name_set(
    "lr learningrate momentum weightdecay dropout maxgradnorm clip clippingnorm optimizer "
    "optimiser batchsize bs hidden layers seed sigma"
)


STATES = {
    "complete": COMPLETE,
    "completed": COMPLETE,
    "finished": COMPLETE,
    "succeeded": COMPLETE,
    "success": COMPLETE,
    "terminated": COMPLETE,
    "done": COMPLETE,
    "ok": COMPLETE,
    "fail": FAILED,
    "failed": FAILED,
    "failure": FAILED,
    "crashed": FAILED,
    "error": FAILED,
    "errored": FAILED,
    "killed": FAILED,
    "invalid": FAILED,
    "aborted": FAILED,
    "preempted": FAILED,
    "preempting": FAILED,
    "oom": FAILED,
    "out of memory": FAILED,
    "timeout": FAILED,
    "timed out": FAILED,
    "cuda out of memory": FAILED,
    "pruned": PRUNED,
    "early_stopped": PRUNED,
    "early stopped": PRUNED,
    "stopped": PRUNED,
    "running": RUNNING,
    "scheduled": RUNNING,
    "waiting": RUNNING,
    "pending": RUNNING,
    "paused": RUNNING,
    "idle": RUNNING,
}


"""The states of runs, by the words of trackers in lower case."""


@dataclass(frozen=True)
class Evidence:
    """What the material shows.

    Attributes:
        method: `grid`, `random` or `sequential`; None if nothing shows it.
        reasons: what shows it.
        remarks: what is reported besides, and decides nothing.
    """

    method: str | None = None
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def contradicts(self, chosen: str) -> bool:
        """Whether the material shows that candidates were not chosen as stated.

        A tuning that is said to be sequential costs at least as much as what is shown.
        """
        return self.method is not None and chosen not in (self.method, SEQUENTIAL)


def combined(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several sources that form one tuning.

    One source whose candidates depend on earlier results makes the whole tuning sequential. Sources
    that differ otherwise, or of which some show nothing, show nothing together.
    """
    remarks = tuple(remark for source in parts for remark in source.remarks)
    sequential = [source for source in parts if source.method == SEQUENTIAL]
    if sequential:
        reasons = tuple(reason for source in sequential for reason in source.reasons)
        return Evidence(SEQUENTIAL, reasons, remarks)
    methods = {source.method for source in parts}
    if len(methods) == 1:
        return Evidence(
            methods.pop(), tuple(reason for source in parts for reason in source.reasons), remarks
        )
    return Evidence(None, (), remarks)


def state_of(word: object) -> str | None:
    """The state of a run that a tracker names; None for an unknown word.

    Of several words, such as "killed by OOM", the first one counts, if it states a failure.

    Example:
        >>> state_of("TrialState.COMPLETE"), state_of("Failed: out of memory"), state_of("Ohio")
        ('complete', 'failed', None)
    """
    text = str(word).strip().lower()
    state = STATES.get(text.rpartition(".")[2])
    if state is None:
        leading_word = re.match(r"[a-z]+", text)
        state = STATES.get(leading_word.group()) if leading_word else None
        return state if state == FAILED else None
    return state


def evidence_of_states(states: Iterable[str]) -> Evidence:
    """What the states of runs show: pruning compares a run with others."""
    counts: dict[str, int] = {}
    for state in states:
        counts[state] = counts.get(state, 0) + 1
    remarks = []
    if failed := counts.get(FAILED, 0):
        remarks.append(f"{_runs(failed)} failed, and {_count(failed)} in full")
    if running := counts.get(RUNNING, 0):
        remarks.append(f"{_runs(running)} had not ended, and {_count(running)} in full")
    pruned = counts.get(PRUNED, 0)
    if not pruned:
        return Evidence(None, (), tuple(remarks))
    reason = f"{_runs(pruned)} {'was' if pruned == 1 else 'were'} pruned, by the results of others"
    remarks.append(f"{_runs(pruned)} {'was' if pruned == 1 else 'were'} pruned, and "
                   f"{_count(pruned)} in full")  # fmt: skip
    return Evidence(SEQUENTIAL, (reason,), tuple(remarks))


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _count(count: int) -> str:
    return "it counts" if count == 1 else "they count"


def evidence_of_repetitions(candidates: Sequence[tuple[object, ...]]) -> Evidence:
    """What repeated candidates show.

    Independent draws from a continuous distribution never repeat, so a repeated candidate with such
    a number was not drawn independently.
    """
    seen: dict[tuple[object, ...], int] = {}
    for candidate in candidates:
        seen[candidate] = seen.get(candidate, 0) + 1
    repeated = [candidate for candidate, count in seen.items() if count > 1]
    if not repeated:
        return Evidence()
    times = sum(seen[candidate] for candidate in repeated)
    subject = "candidate was" if len(repeated) == 1 else "candidates were"
    words = f"{len(repeated)} {subject} trained more than once ({times} runs)"
    if any(_is_drawn(value) for candidate in repeated for value in candidate):
        reason = f"{words}, which independent draws of continuous numbers never do"
        return Evidence(None, (reason,), (words,))
    return Evidence(None, (), (words,))


def candidates_of_table(
    columns: Mapping[str, Sequence[object]], words_of: Callable[[str], Sequence[str]]
) -> list[tuple[object, ...]]:
    """The candidate of each row of a plain table, which does not say what its columns are.

    Columns of results and of names are left out. So are columns that do not vary, and noise that
    may have been computed from an epsilon: its many digits are no sign of a draw.

    Args:
        columns: the cells of each column.
        words_of: the words of a column's name.
    """
    words = {column: set(words_of(column)) for column in columns}
    computed = any({"epsilon", "eps"} & name for name in words.values())
    varying = [
        cells
        for column, cells in columns.items()
        if words[column]
        and not words[column] & _RESULT_WORDS
        and not (computed and {"noise", "sigma"} & words[column])
        and len(set(map(str, cells))) > 1
    ]
    return list(zip(*(map(str, cells) for cells in varying), strict=True))


def _is_drawn(value: object) -> bool:
    if isinstance(value, int):
        return False
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return float(f"{number:.{_DIGITS_OF_A_DRAW}g}") != number


def evidence_of_columns(columns: Mapping[str, Sequence[object]]) -> Evidence:
    """What the columns of a plain table show about how its candidates were chosen.

    Args:
        columns: the cells by the plain name of their column, in lower case.
    """
    reasons: list[str] = []
    named: set[str] = set()
    for column, cells in columns.items():
        words = [str(cell).strip() for cell in cells if cell is not None and str(cell).strip()]
        if column in _SEARCH_COLUMNS:
            ways = {word: _way_named(word) for word in dict.fromkeys(words)}
            named |= {way for way in ways.values() if way is not None}
            reasons += [
                f"column {column} has {word[:40]!r}"
                for word, way in ways.items()
                if way == SEQUENTIAL
            ]
        elif column in _STOPPING_COLUMNS:
            reasons += [
                f"column {column} has {word[:40]!r}"
                for word in dict.fromkeys(words)
                if any(stem in word.lower() for stem in _STOPPING) and "nop" not in word.lower()
            ]
        elif column in _PRUNED_COLUMNS and any(word.lower() in _YES for word in words):
            reasons.append(f"column {column} marks runs that did not run to their end")
        elif column in _ANCESTRY_COLUMNS and len({*words}) > 1:
            reasons.append(f"column {column} has several values")
    remarks = tuple(
        remark
        for column, cells in columns.items()
        if column in _NUMBERS and (remark := _left_out(column, cells))
    )
    if reasons:
        return Evidence(SEQUENTIAL, tuple(reasons), remarks)
    if len(named) == 1:
        way = named.pop()
        return Evidence(way, (f"a column names the way of choosing: {way}",), remarks)
    return Evidence(remarks=remarks)


def _left_out(column: str, cells: Sequence[object]) -> str:
    """The remark that a table has fewer rows than its runs are numbered; else empty."""
    numbers = {number for cell in cells if (number := number_in(cell)) is not None}
    if not numbers or len(numbers) < len(cells):
        return ""
    first, last = min(numbers), max(numbers)
    if not first < last <= _MAX_NUMBER or last - first + 1 <= len(cells):
        return ""
    return (
        f"column {column} has numbers from {first:g} to {last:g}, but there are {len(cells)} rows: "
        "the cost is too small if runs were left out"
    )


def _way_named(word: str) -> str | None:
    """The way of choosing candidates that a word names; None for a word without one."""
    plain = word.lower()
    if any(stem in plain for stem in (*_LOOKING, *_LOOKING_TOO)):
        return SEQUENTIAL
    if "random" in plain:
        return RANDOM
    return GRID if "grid" in plain else None


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
        _refuse_runs_in_a_cell(row, where, ignored)
        runs.append(
            RecordedRun(
                {column: value for column, value in row.items() if column not in states},
                where,
                _state_of_row({column: row.get(column) for column in states}, where),
            )
        )
    return tuple(runs)


def _refuse_runs_in_a_cell(row: Mapping[str, Any], where: str, ignored: frozenset[str]) -> None:
    """Refuses a row with a list of objects, each of which may be a run."""
    for column, value in row.items():
        if not isinstance(value, list) or {column.strip(), without_prefix(column)} & ignored:
            continue
        count = sum(isinstance(entry, Mapping) for entry in value)
        if count > 1:
            raise InvalidInput(
                f"{where}: row must be one run, got {count} objects in "
                f"{checks.one_line(typed_name(column))}: write a row for each run, or add "
                f"--columns '{typed_name(column)}=ignore' (in Python, columns=) if they are no runs"
            )


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


def runs_of_log(material: Material, mapping: Mapping[str, str]) -> Material:
    """The runs of a source, where the rows of one run are put together.

    Args:
        material: the rows of the source.
        mapping: roles of columns; the column with the role `run` identifies runs.

    Raises:
        InvalidInput: rows look like a log of one run and no column has the role `run`; or the rows
            of one run state different privacy.
    """
    mapped = {
        column: mapping.get(column.strip()) or mapping.get(without_prefix(column))
        for column in material.columns
    }
    identifiers = [column for column, role in mapped.items() if role == RUN]
    if not identifiers:
        _refuse_log(material, mapped)
        return material
    groups: dict[str, list[RecordedRun]] = {}
    for row in material.runs:
        cell = row.values.get(identifiers[0])
        if is_missing(cell):
            raise InvalidInput(
                f"{row.where}: column {checks.one_line(identifiers[0])} must name the run of every "
                "row, got none"
            )
        groups.setdefault(str(cell).strip(), []).append(row)
    roles = {
        column: role or (without_prefix(column) if without_prefix(column) in ROLES else None)
        for column, role in mapped.items()
    }
    runs = tuple(_one_run(rows, roles) for rows in groups.values())
    remark = (
        f"{len(material.runs)} rows are {len(runs)} runs, by column "
        f"{checks.one_line(identifiers[0])}; the last row of each states its length"
    )
    evidence = replace(material.evidence, remarks=(*material.evidence.remarks, remark))
    return replace(material, runs=runs, evidence=evidence)


def _one_run(rows: Sequence[RecordedRun], roles: Mapping[str, str | None]) -> RecordedRun:
    """One run from its rows: the last row, if all state the same privacy and its length is last."""
    *_, last_row = rows
    values = dict(last_row.values)
    for column, role in roles.items():
        if role not in ROLES:
            continue
        cells = [row.values.get(column) for row in rows]
        present = [cell for cell in cells if not is_missing(cell)]
        if not present:
            continue
        if role in LENGTHS:
            longest = max(present, key=_length)
            from_zero = min(map(_length, present)) == 0.0 < _length(longest) < math.inf
            values[column] = _length(longest) + 1.0 if from_zero else longest
        elif len({str(cell).strip() for cell in present}) > 1:
            raise InvalidInput(
                f"{last_row.where}: rows of one run must state one {role}, got "
                f"{checks.one_line(present[0])} and {checks.one_line(present[-1])} in column "
                f"{checks.one_line(column)}"
            )
        else:
            values[column] = present[-1]
    states = [row.state for row in rows if row.state != COMPLETE]
    return replace(last_row, values=values, state=states[-1] if states else COMPLETE)


def _length(cell: object) -> float:
    """A number for comparisons; text that is no number is largest, so that it is refused later."""
    number = number_in(cell)
    return math.inf if number is None else number


def _refuse_log(material: Material, mapped: Mapping[str, str | None]) -> None:
    """Refuses rows of which several are one run, of which a column counts epochs or steps."""
    names = {
        column: "".join(words_of(without_prefix(column)))
        for column, role in mapped.items()
        if role is None
    }
    identifiers = [column for column, name in names.items() if name in _IDENTIFIERS]
    possible = [column for column, name in names.items() if name in _POSSIBLE_IDENTIFIERS]
    for counter, name in names.items():
        if name not in (*_COUNTERS, *LENGTHS) or counter in material.parameters:
            continue
        numbers = [number_in(row.values.get(counter)) for row in material.runs]
        for identifier in identifiers:
            if _counts_within(_cells(material, identifier), numbers):
                raise InvalidInput(_several_rows(material, identifier, counter))
        if name in LENGTHS:
            continue  # candidates of one seed may differ in their length
        for identifier in possible:
            if _counts_within(_cells(material, identifier), numbers, evenly=True):
                raise InvalidInput(_several_rows(material, identifier, counter))
        all_rows = [""] * len(numbers)
        if _counts_within(all_rows, numbers, evenly=True) and _settings_are_equal(material):
            raise InvalidInput(
                f"{material.name} must have one row for each run, but only "
                f"{checks.one_line(counter)} and results differ between its rows, got "
                f"{len(all_rows)} rows: keep the last row if they are the log of one run, or "
                f"{_each_row(counter)}"
            )


def _cells(material: Material, column: str) -> list[str]:
    return [str(row.values.get(column)).strip() for row in material.runs]


def _several_rows(material: Material, identifier: str, counter: str) -> str:
    """The message about a table with several rows for each run."""
    runs = len(set(_cells(material, identifier)))
    return (
        f"{material.name} must have one row for each run, but {checks.one_line(identifier)} "
        f"repeats while {checks.one_line(counter)} changes, got {len(material.runs)} rows with "
        f"{runs} values: add --columns '{typed_name(identifier)}={RUN}' (in Python, columns=) if "
        f"they are the log of {runs} runs, or {_each_row(counter)}"
    )


def _each_row(counter: str) -> str:
    name = typed_name(counter)
    return (
        f"'{name}={IGNORE}' (or ={'epochs' if 'epoch' in name.lower() else 'steps'}, if it is "
        "the length of the run) if each row is a run"
    )


def _counts_within(
    groups: Sequence[str], numbers: Sequence[float | None], *, evenly: bool = False
) -> bool:
    """Whether some group repeats, and no group has a number twice.

    With `evenly`, the numbers of each group must also be at least three in equal distances.
    """
    by_group: dict[str, list[float]] = {}
    for group, number in zip(groups, numbers, strict=True):
        if number is None:
            return False
        by_group.setdefault(group, []).append(number)
    for members in by_group.values():
        ordered = sorted(members)
        distances = {b - a for a, b in itertools.pairwise(ordered)}
        if 0.0 in distances or (evenly and (len(distances) > 1 or len(ordered) < 3)):
            return False
    return len(by_group) < len(groups)


def _settings_are_equal(material: Material) -> bool:
    """Whether no hyperparameter differs between rows."""
    return all(
        len({str(cell) for cell in cells}) == 1
        for column, cells in material.columns.items()
        if without_prefix(column) in ROLES or "".join(words_of(without_prefix(column))) in _KNOBS
    )
