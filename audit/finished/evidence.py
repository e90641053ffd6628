"""What the material of a finished tuning shows about how its candidates were chosen."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from audit.finished.columns import name_set

GRID, RANDOM, SEQUENTIAL = "grid", "random", "sequential"

COMPLETE, FAILED, PRUNED, RUNNING = "complete", "failed", "pruned", "running"

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

_DIGITS_OF_A_DRAW = 9
"""Significant digits from which a number is taken to be drawn from a continuous distribution."""


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


_RESULT_WORDS = name_set(
    "acc accuracy loss score f1 auc auroc precision recall metric metrics error err val valid "
    "validation test eval perplexity ppl bleu rouge mse mae rmse r2 reward objective value "
    "best rank time runtime duration date start end seconds timestamp created id uuid name "
    "run trial seed index number unnamed summary note notes tags path dir host hostname user "
    "result"
)
"""Words in names of columns that differ between two trainings of one candidate."""


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


_SEARCH_COLUMNS = frozenset(
    {"sampler", "method", "search_alg", "search_algorithm", "searcher", "search", "search_method"}
    | {"sweep_method", "tuner", "oracle", "suggester", "sampler_name", "search_strategy"}
)
"""Columns that name the way of choosing candidates."""

_LOOKING = ("tpe", "bayes", "cma", "gaussian process", "gpsampler", "nevergrad", "hyperband")
_LOOKING_TOO = ("bohb", "asha", "pbt", "population", "evolution", "genetic", "hyperopt", "nsga")
_PRUNED_COLUMNS = frozenset({"pruned", "is_pruned", "was_pruned", "early_stopped", "stopped_early"})
_ANCESTRY_COLUMNS = frozenset({"generation", "parent_id", "parent_trial", "parent_run_id"})
_YES = frozenset({"true", "yes", "1", "1.0", "t", "y"})


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
        elif column in _PRUNED_COLUMNS and any(word.lower() in _YES for word in words):
            reasons.append(f"column {column} marks runs that did not run to their end")
        elif column in _ANCESTRY_COLUMNS and len({*words}) > 1:
            reasons.append(f"column {column} has several values")
    if reasons:
        return Evidence(SEQUENTIAL, tuple(reasons))
    if len(named) == 1:
        way = named.pop()
        return Evidence(way, (f"a column names the way of choosing: {way}",))
    return Evidence()


def _way_named(word: str) -> str | None:
    """The way of choosing candidates that a word names; None for a word without one."""
    plain = word.lower()
    if any(stem in plain for stem in (*_LOOKING, *_LOOKING_TOO)):
        return SEQUENTIAL
    if "random" in plain:
        return RANDOM
    return GRID if "grid" in plain else None
