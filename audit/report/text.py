"""A report as text for the terminal: the answer, then the bounds grouped by their validity."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from audit.numerics import format_exact, format_places
from audit.report.results import (
    ALL_RUNS,
    UNCORRECTED,
    Report,
    UpperResult,
    is_search,
    row_of_table,
    way_of_tuning,
)

WIDTH = 80
"""Largest number of columns of the text."""
_COLUMN = 8
_ANSWER_COLUMN = 13
_ANY_SCORE = "any score"
_NAMES = {"base": "one run", "base-renyi": "one run, by Renyi divergences"}


def to_text(report: Report, show_all: bool = True) -> str:
    """The answer with its conditions, or with the table of all bounds and its footnotes.

    Args:
        report: a finished audit.
        show_all: whether to list every bound; otherwise only what the answer requires.
    """
    blocks = [list(_contradictions(report)), list(_answer(report)), _attacked(report)]
    if show_all:
        notes = _Footnotes()
        blocks += [list(_bounds(report, notes)), notes.lines, list(_chance(report))]
        blocks.append(list(_remarks(report)))
    else:
        blocks += [list(_conditions(report)), list(_chance(report))]
        blocks.append([*_rounding(report), *_diverged(report), *_records(report)])
        blocks.append(["(--all: every bound with its conditions, and how the audit was run)"])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def rounded_down(value: float, places: int = 3) -> str:
    """A lower bound as text, rounded down."""
    return format_places(value, up=False, places=places)


def rounded_up(value: float, places: int = 3) -> str:
    """An upper bound as text, rounded up."""
    return format_places(value, up=True, places=places)


def wrapped(text: str, mark: str = "") -> list[str]:
    """A paragraph in lines that fit, with a hanging mark on its left."""
    label = f"{mark} " if mark else ""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )


def _attacked(report: Report) -> list[str]:
    config = report.config
    threat, training_set, canary = row_of_table(config)
    tuning = way_of_tuning(config)
    protocol = "random search" if is_search(config) else "protocol"
    repeats = f" x {config.repeats} repeats" if config.repeats > 1 else ""
    return wrapped(
        f"Attacked: {protocol} {tuning}, score {config.score}, threat model {threat}, "
        f"training set {training_set}, canary {canary}; delta = {format_exact(config.delta)}, "
        f"{config.trials:,} trials{repeats} at each eps_B."
    )


def _answer(report: Report) -> Iterator[str]:
    """One line per budget: eps_L, eps_U, one run, and the largest detectable epsilon."""
    heads = [
        ("one run", "leaks at", "most"),
        ("the tuning", "leaks at", "least eps_L"),
        ("the tuning", "leaks at", "most eps_U"),
        ("eps_L that", "the trials", "could show"),
        ("trials to", "show eps_U,", "at least"),
        ("eps_B: one", "run by Renyi", "divergences"),
    ]
    rows = [answer_cells(report, budget) for budget in range(len(report.results))]
    for line in zip(*heads, strict=True):
        yield _columns(line, _ANSWER_COLUMN)
    for row in rows:
        yield _columns(row, _ANSWER_COLUMN)
    bound = report.reported(0)
    confidence = f"{100 * bound.confidence:g} % confidence"
    recommended = report.recommended
    scope = " at each eps_B, not jointly" if len(report.results) > 1 else ""
    yield from wrapped(
        f"eps_L holds with {confidence}{scope}: {recommended.key} from {recommended.proxy}, "
        "chosen before the first trial."
    )
    smallest = [result.smallest_upper for result in report.results]
    names = dict.fromkeys(upper.name for upper in smallest if upper is not None)
    if names:
        yield from wrapped(
            f"eps_U is the smallest upper bound that is valid for this audit: {', '.join(names)}."
        )


def answer_cells(report: Report, budget: int) -> list[str]:
    """One run, eps_L, eps_U, what the trials can show, trials to show eps_U, and eps_B."""
    result = report.results[budget]
    needed = result.games_needed
    return [
        format_epsilon(result.upper_bounds.get("base")),
        rounded_down(report.reported(budget).epsilon),
        format_epsilon(result.smallest_upper),
        rounded_up(result.ceiling),
        "-" if needed is None else f"{needed:,}",
        format_exact(result.epsilon_base),
    ]


def _chance(report: Report) -> Iterator[str]:
    """The lower bounds that are above the upper bound, but not beyond chance."""
    confidence = report.config.confidence
    for result in report.results:
        for contradiction in result.contradictions if result.contradiction is None else ():
            yield from wrapped(
                f"At eps_B = {format_exact(result.epsilon_base)}, {contradiction.key} from "
                f"{contradiction.proxy} is above eps_U. For each lower bound, this happens by "
                f"chance in up to {100 * (1 - confidence):.3g} % of audits. It is below eps_U when "
                f"the {contradiction.compared} compared bounds share the error, so this is no sign "
                "of a mistake."
            )


def _conditions(report: Report) -> Iterator[str]:
    """What the reported lower bound and the smallest upper bounds require."""
    lower = _parts(report.reported(budget).assumes for budget in range(len(report.results)))
    smallest = [result.smallest_upper for result in report.results]
    upper = _parts(bound.assumes for bound in smallest if bound is not None)
    for title, conditions in (("eps_L requires:", lower), ("eps_U requires:", upper)):
        if conditions:
            yield title
            for condition in conditions:
                yield from wrapped(condition, "-")


def format_epsilon(bound: UpperResult | None) -> str:
    """The epsilon of an upper bound, rounded to its safe side; a dash if there is none."""
    if bound is None or bound.epsilon is None:
        return "-"
    return (rounded_down if bound.label == "attained" else rounded_up)(bound.epsilon)


def _columns(cells: Sequence[str], width: int) -> str:
    return "".join(f"{cell:>{width}}" for cell in cells).rstrip()


@dataclass
class _Footnotes:
    """The conditions of bounds, with one letter each."""

    conditions: dict[str, str] = field(default_factory=dict)

    def marks(self, conditions: Sequence[str]) -> str:
        """The letters of conditions, sorted; commas separate those of two letters."""
        marks = [
            self.conditions.setdefault(condition, _letters(len(self.conditions)))
            for condition in conditions
        ]
        separator = "," if any(len(mark) > 1 for mark in marks) else ""
        return separator.join(sorted(marks, key=lambda mark: (len(mark), mark)))

    @property
    def lines(self) -> list[str]:
        """The footnotes."""
        notes = [wrapped(words, f"{mark:>3}") for words, mark in self.conditions.items()]
        return ["Conditions:", *(line for lines in notes for line in lines)] if notes else []


def _letters(place: int) -> str:
    """The letters of a footnote: a to z, then aa, ab and so on."""
    prefix, place_of_letter = divmod(place, 26)
    return (chr(96 + prefix) if prefix else "") + chr(97 + place_of_letter)


@dataclass(frozen=True)
class _Row:
    name: str
    cells: Sequence[str]
    conditions: Sequence[str] = ()


def _bounds(report: Report, notes: _Footnotes) -> Iterator[str]:
    """The bounds, grouped by their validity; many budgets need several tables."""
    groups = [(title, rows) for title, rows in _groups(report) if rows]
    names = [row.name for _, rows in groups for row in rows]
    marks = [[notes.marks(row.conditions) for row in rows] for _, rows in groups]
    wide = max(map(len, names)) + 3
    end = max(len(mark) for of_group in marks for mark in of_group) + 3
    fit = max((WIDTH - wide - end) // _COLUMN, 1)
    budgets = [f"eps_B {result.epsilon_base:g}" for result in report.results]
    for start in range(0, len(budgets), fit):
        columns = slice(start, start + fit)
        if start:
            yield ""
        yield " " * wide + _columns(budgets[columns], _COLUMN) + "   conditions"
        for (title, rows), of_group in zip(groups, marks, strict=True):
            yield from wrapped(title)
            for row, mark in zip(rows, of_group, strict=True):
                cells = _columns(row.cells[columns], _COLUMN).ljust(_COLUMN * len(budgets[columns]))
                yield f"  {row.name:{wide - 2}}{cells}   {mark}".rstrip()


def _groups(report: Report) -> Iterator[tuple[str, list[_Row]]]:
    confidence = f"{100 * report.reported(0).confidence:g} %"
    recommended = report.recommended.proxy, report.recommended.key
    lower = [
        (_lower_row(report, proxy, key, kind), kind, (proxy, key) == recommended)
        for key, kind, proxies in report.highlights
        for proxy in proxies
    ]
    reported = [row for row, _, is_reported in lower if is_reported]
    if report.config.repeats > 1:
        of_each = [report.reported(budget) for budget in range(len(report.results))]
        for title, values in (
            ("smallest of a single repeat", [bound.min for bound in of_each]),
            ("largest of a single repeat", [bound.max for bound in of_each]),
        ):
            reported.append(_Row(f"  {title}", [rounded_down(value) for value in values]))
    yield f"LOWER BOUND TO REPORT ({confidence} confidence)", reported
    yield (
        f"OTHER LOWER BOUNDS ({confidence} confidence each, not jointly: do not pick the largest)",
        [row for row, kind, is_reported in lower if kind != UNCORRECTED and not is_reported],
    )
    yield (
        "NOT A BOUND: the paper's uncorrected estimate, for comparison",
        [row for row, kind, _ in lower if kind == UNCORRECTED],
    )
    upper = [_upper_row(report, name) for name in report.results[0].upper_bounds]
    grouped_rows = [(group, row) for group, row in upper if row is not None]
    for group, title in _UPPER_GROUPS.items():
        yield title, [row for at, row in grouped_rows if at == group]


_UPPER_GROUPS = {
    "any score": "UPPER BOUNDS FOR EVERY SCORE",
    "this score": "UPPER BOUNDS ONLY FOR THE SCORE OF THIS AUDIT",
    "not valid": "NOT VALID IN THIS AUDIT",
    "other": "FOR COMPARISON: not upper bounds on the tuning",
}


def _lower_row(report: Report, proxy: str, key: str, kind: str) -> _Row:
    bounds = [result.lower_bounds[proxy][key] for result in report.results]
    conditions = _parts([bounds[0].assumes]) if bounds[0].valid else []
    if kind == ALL_RUNS:
        conditions.append("uses all runs, including the losing runs")
    return _Row(f"{key}, {proxy}", [rounded_down(b.epsilon) for b in bounds], conditions)


def _upper_row(report: Report, name: str) -> tuple[str, _Row | None]:
    bounds = [result.upper_bounds[name] for result in report.results if name in result.upper_bounds]
    finite_bounds = [bound for bound in bounds if bound.epsilon is not None]
    if not finite_bounds:
        return "", None
    cells = [format_epsilon(result.upper_bounds.get(name)) for result in report.results]
    conditions = _parts(bound.assumes for bound in finite_bounds)
    label = finite_bounds[0].label
    if label == "valid":
        group = _ANY_SCORE if _ANY_SCORE in conditions else "this score"
        conditions = [words for words in conditions if words != _ANY_SCORE]
    else:
        group = "not valid" if label.startswith("not valid") else "other"
    title = _NAMES.get(name, name)
    shown = "" if label in ("valid", "one run") or group == "not valid" else f" ({label})"
    return group, _Row(f"{title}{shown}", cells, conditions)


def _parts(texts: Sequence[str] | Iterator[str]) -> list[str]:
    """The distinct conditions in texts that separate them by semicolons."""
    return list(
        dict.fromkeys(condition for text in texts for condition in text.split("; ") if condition)
    )


def _remarks(report: Report) -> Iterator[str]:
    config = report.config
    yield from wrapped(f"Engine {report.engine.name}: {report.engine.reason}.")
    for line in (*_records(report), *_candidates(report.candidates)):
        yield from wrapped(line)
    yield from _rounding(report)
    if config.stop_at:
        counts = [result.lower_bounds["lambda_a"] for result in report.results]
        played = [next(iter(bounds.values())).pooled.trials for bounds in counts]
        yield from wrapped(
            f"Stopped when eps_L = {config.stop_at:g} was shown, or at the last trial: after "
            f"{', '.join(f'{count:,}' for count in played)} of {config.trials:,} trials. All "
            "analyses of the results share the error."
        )
    if "lambda_c" in report.proxies:
        yield from wrapped(
            "lambda_a is from the final run; lambda_c is the likelihood ratio of the tuning's "
            "winner and the final run together, without X."
            if config.parsed_protocol.trains_on_subset
            else "lambda_c is the likelihood ratio of a run with sampled batches, without X."
        )
    yield from _diverged(report)


def _rounding(report: Report) -> Iterator[str]:
    """The sensitivity of a step whose operands are rounded."""
    if report.precision:
        yield from wrapped(report.precision.sensitivity)


def _diverged(report: Report) -> Iterator[str]:
    diverged = sum(result.diverged_runs for result in report.results)
    if diverged:
        runs = sum(result.runs for result in report.results)
        yield from wrapped(
            f"{diverged} of {runs} runs diverged (weights or score not finite) and were not "
            "released."
        )


def _records(report: Report) -> Iterator[str]:
    used, config = report.records, report.config
    if used.training or used.validation:
        sizes = [
            f"{count:,} {name} records" + (f" of {wanted:,} requested" if count < wanted else "")
            for name, count, wanted in (
                ("training", used.training, config.train_size),
                ("validation", used.validation, config.validation_size),
            )
        ]
        yield ", ".join(sizes)


def _candidates(candidates: Sequence[Mapping[str, float]]) -> Iterator[str]:
    if len(candidates) > 1:
        values = {
            name: dict.fromkeys(point[name] for point in candidates) for name in candidates[0]
        }
        axes = [f"{name} {', '.join(f'{v:g}' for v in of)}" for name, of in values.items()]
        yield f"{len(candidates)} candidates: {'; '.join(axes)}"


def _contradictions(report: Report) -> Iterator[str]:
    """A warning for each contradiction that chance does not explain."""
    for result in report.results:
        contradiction = result.contradiction
        if contradiction is not None:
            share = 100 * (1 - report.config.confidence)
            yield from wrapped(
                f"WARNING: CONTRADICTION at eps_B = {format_exact(result.epsilon_base)}: eps_L = "
                f"{rounded_down(contradiction.lower)} ({contradiction.key} from "
                f"{contradiction.proxy}) is above eps_U = {rounded_up(contradiction.upper)} "
                f"({contradiction.upper_bound}). It remains when the {contradiction.compared} "
                "compared lower bounds share the error, which happens by chance in at most "
                f"{share:.3g} % of audits: a claim, or the training, is wrong."
            )
