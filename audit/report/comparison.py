"""Compares finished audits.

From the folders of `python -m audit.run`, this module draws figures 1 to 4 of Xiang, Wang & Wang
2024, with a panel per row of their table 2, and writes their table 3 of eps_L. Audits of protocols
other than random search have separate tables, with the upper bounds of their protocol.
"""

import html
import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from audit.checks import one_line, printable, reason_of
from audit.errors import InvalidInput
from audit.files import write_text
from audit.game.settings import AuditConfig
from audit.game.store import is_started, read_settings
from audit.numerics import format_exact
from audit.report import pictures, results
from audit.report.results import BudgetResult, Report, UpperResult
from audit.report.text import rounded_down, rounded_up, wrapped
from threat_models import THREATS
from threat_models.datasets import FOREIGN

# eps_B, eps_L and eps_U are comparable between audits that agree on these settings. Audits of
# random search must also agree on the distribution of K.
_COMMON = ("epsilon", "accounting", "delta", "confidence", "sampling_rate")
# The upper bound that is printed with a lower bound: our smallest for any score, or the paper's.
_UPPER = {results.VALID: "tight", results.UNCORRECTED: "renyi"}
_CANARIES = ("input", "dirac")
_RECORDS = ("MNIST", "SVHN", "CIFAR10")  # z in the first three rows of each threat model.
_PANELS_IN_A_ROW = 3
_SUMMARY = "summary.json"
# Characters that begin a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@")


@dataclass(frozen=True)
class Audit:
    """A finished audit."""

    folder: Path  # the folder of its summary
    runs: Path  # the folder of its trials; audits that share it are correlated
    report: Report  # its results

    @property
    def config(self) -> AuditConfig:
        """The settings of the audit."""
        return self.report.config

    @property
    def is_search(self) -> bool:
        """Whether the protocol is random search, as in the paper."""
        return results.is_search(self.config)

    @property
    def tuning(self) -> str:
        """How its best run was chosen."""
        return results.way_of_tuning(self.config)

    @property
    def row(self) -> tuple[str, str, str]:
        """Its row of table 2: threat model, X and z."""
        return results.row_of_table(self.config)

    @property
    def group(self) -> tuple[int, int, str]:
        """Its threat model and kind of canary, in the order of table 2."""
        canary = self.config.canary
        return THREATS.index(self.config.threat), _rank(canary, _CANARIES), canary

    @property
    def column(self) -> int:
        """Its column in the paper's figures."""
        dataset = self.config.dataset
        return _rank(dataset if self.row[1] == "empty" else FOREIGN[dataset], _RECORDS)


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def read(folders: Sequence[str | Path]) -> list[Audit]:
    """Reads finished audits, in the order of table 2, from folders of `audit.run`.

    The folder of shared runs includes all of its views, which may also be given one by one. A
    folder that is given several times, also by other paths, counts once. Files are ignored, because
    a shell pattern such as `runs/ntnv1*` also matches the preset `runs/ntnv1.toml`. Folders without
    a finished audit, and audits that cannot share a table, are refused.
    """
    paths = list(map(Path, folders))
    for path in paths:
        if path.name == _SUMMARY and path.is_file():
            raise InvalidInput(
                f"folders must hold finished audits, got the file {one_line(str(path))}: name its "
                f"folder, {one_line(str(path.parent))}"
            )
    try:
        by_folder: dict[Path, Audit] = {}
        for path in paths:
            for finished in () if path.is_file() else _audits(path):
                by_folder.setdefault(finished.folder.resolve(), finished)
    except OSError as error:  # of a name that is too long
        raise InvalidInput(
            f"folders must hold finished audits, got one that cannot be read: {reason_of(error)}"
        ) from error
    if not by_folder:
        names = ", ".join(one_line(str(path)) for path in paths)
        raise InvalidInput(f"folders must hold finished audits, got the files {names}")
    audits = sorted(by_folder.values(), key=lambda audit: (audit.group, audit.column))
    check_comparable([audit.config for audit in audits])
    return audits


def _audits(path: Path) -> Iterator[Audit]:
    folders = [path]
    if is_started(path) and not (path / _SUMMARY).exists():
        try:
            settings, _ = read_settings(path)
            views = AuditConfig.from_mapping({**settings, "out": str(path)}).views
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"folders must hold finished audits, got {str(path)!r}: {reason_of(error)}"
            ) from error
        folders = [Path(view.out) for view in views]
    for folder in folders:
        report = results.read(folder / _SUMMARY)
        _check_settings(folder, report)
        runs = (at for at in (folder, folder.parent) if is_started(at))
        yield Audit(folder, next(runs, folder), report)


def _check_settings(folder: Path, report: Report) -> None:
    """Raises InvalidInput if a summary does not have the bounds of one view of an audit."""
    missing = [
        f"no upper bound {name}"
        for name in (_UPPER.values() if results.is_search(report.config) else ())
        if not all(name in result.upper_bounds for result in report.results)
    ]
    if len(report.config.pairs) > 1:
        missing.append("settings of several views")
    if missing:
        raise InvalidInput(
            f"folders must hold finished audits, got {str(folder)!r} with {missing[0]}"
        )


def check_comparable(configs: Sequence[AuditConfig]) -> None:
    """Refuses audits whose eps_B, eps_L and eps_U are not comparable, for settings that differ."""
    searches = [config for config in configs if results.is_search(config)]
    sampled = any(config.sampling_rate != 1.0 for config in configs)
    shared = [(name, configs) for name in (*_COMMON, *(["steps"] if sampled else []))]
    for name, group in [*shared, ("repetitions", searches)]:
        values = list(dict.fromkeys(str(config.identity[name]) for config in group))
        if len(values) > 1:
            raise InvalidInput(
                f"{name} must be the same in audits that share a table, got {' and '.join(values)}"
            )


def _upper(audit: Audit, result: BudgetResult, claim: str) -> UpperResult | None:
    """The upper bound that is printed with a lower bound; None if there is none."""
    if audit.is_search:
        return result.upper_bounds[_UPPER[claim]]
    return result.smallest_upper if claim == results.VALID else None


def table_of_bounds(audits: Sequence[Audit]) -> pd.DataFrame:
    """eps_L of every audit, with eps_B and eps_U (the paper's table 3), by budget, claim and proxy.

    Each eps_L has two claims: the bound to report, with eps_U of the tight bound, and the paper's
    uncorrected estimate, which is not a bound, with the paper's eps_U. For protocols other than
    random search, eps_U is the smallest valid upper bound. Each eps_L uses the trials of all
    repeats together; min, mean and max are over single repeats. The paper prints the mean.
    """
    rows = []
    for audit in audits:
        threat, training_set, canary = audit.row
        for result, (key, claim, proxies) in itertools.product(
            audit.report.results, audit.report.highlights
        ):
            if claim not in _UPPER:
                continue
            upper = _upper(audit, result, claim)
            for proxy in proxies:
                lower = result.lower_bounds[proxy][key]
                rows.append(
                    {
                        "folder": _text_of(audit.folder),
                        "tuning": audit.tuning,
                        "threat": threat,
                        "training_set": training_set,
                        "canary": canary,
                        "score": result.score,
                        "epsilon_base": result.epsilon_base,
                        "claim": claim,
                        "key": key,
                        "proxy": proxy,
                        "epsilon_lower": lower.epsilon,
                        "min": lower.min,
                        "mean": lower.mean,
                        "max": lower.max,
                        "upper_bound": "" if upper is None else upper.name,
                        "epsilon_upper": None if upper is None else upper.epsilon,
                    }
                )
    return pd.DataFrame(rows)


def to_text(audits: Sequence[Audit]) -> str:
    """The tables as text, one per protocol and kind of canary, and their notes."""
    blocks = []
    for title, heads, body in _tables(audits):
        height = max(map(len, heads))
        lines = [[""] * (height - len(head)) + list(head) for head in heads]
        rows = [*zip(*lines, strict=True), *body]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines_of_rows = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        blocks.append("\n".join([title, *lines_of_rows]))
    notes = ["\n".join(wrapped(note)) for note in _notes(audits)]
    text = "\n\n".join([*blocks, "\n".join(notes)])
    return "\n".join(map(printable, text.split("\n")))


def to_markdown(audits: Sequence[Audit]) -> str:
    """The tables and notes as Markdown."""
    blocks = []
    for title, heads, body in _tables(audits):
        titles = ["<br>".join(map(_markdown, head)) for head in heads]
        rows = [titles, ["---:"] * len(heads), *([_markdown(cell) for cell in row] for row in body)]
        blocks.append(
            "\n".join([_markdown(title), "", *(f"| {' | '.join(row)} |" for row in rows)])
        )
    notes = [f"- {_markdown(note)}" for note in _notes(audits)]
    return "\n\n".join([*blocks, "\n".join(notes)]) + "\n"


def _text_of(folder: Path) -> str:
    """The name of a folder as text, also if it is not UTF-8."""
    return os.fsencode(folder.as_posix()).decode("utf-8", "backslashreplace")


def _markdown(text: str) -> str:
    """Untrusted text for Markdown and html, without links, tags and columns."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(printable(text), quote=False))


def _inert(table: pd.DataFrame) -> pd.DataFrame:
    """A table in which no untrusted text is a spreadsheet's formula or an html tag."""

    def escaped(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        # Excel also accepts full-width characters.
        is_formula = unicodedata.normalize("NFKC", value).lstrip().startswith(_FORMULA)
        return "'" * is_formula + printable(value).replace("<", "&lt;")

    return table.map(escaped)


def _tables(
    audits: Sequence[Audit],
) -> Iterator[tuple[str, list[Sequence[str]], list[Sequence[str]]]]:
    """Title, column heads (each of several lines) and body of each table."""
    table = table_of_bounds(audits)
    names = _names(audits)
    titles = {"input": "an input canary", "dirac": "the Dirac canary"}
    for group in (group for tuned in _by_tuning(audits) for group in _by_canary(tuned)):
        canary = group[0].config.canary
        folders = [audit.folder for audit in group]
        heads: list[Sequence[str]] = [("eps_B",), ("claim",), ("eps_U",), ("proxy",)]
        heads += [names[folder] for folder in folders]
        body: list[Sequence[str]] = []
        rows_of_tuning = table[table["tuning"] == group[0].tuning]
        for (base, claim, proxy), rows in rows_of_tuning.groupby(
            ["epsilon_base", "claim", "proxy"], sort=False
        ):
            lower = rows.set_index("folder")["epsilon_lower"]
            upper = rows["epsilon_upper"].iloc[0]
            cells = [rounded_down(lower[_text_of(folder)], 2) for folder in folders]
            body.append([f"{base:g}", str(claim), _number(upper), str(proxy), *cells])
        way = "" if len(_by_tuning(audits)) == 1 else f"{group[0].tuning}, "
        title = f"{way}eps_L with {titles.get(canary, canary)}: threat model, X, z, score"
        yield title, heads, body


def _number(epsilon: float | None) -> str:
    return "-" if epsilon is None or pd.isna(epsilon) else rounded_up(epsilon, 2)


def _names(audits: Sequence[Audit]) -> dict[Path, tuple[str, ...]]:
    """Row of table 2 and score of every audit, and its folder if several have the same."""
    rows = {audit.folder: (*audit.row, str(audit.config.score)) for audit in audits}
    counts = Counter((audit.tuning, rows[audit.folder]) for audit in audits)
    return {
        audit.folder: (
            *rows[audit.folder],
            *([_text_of(audit.folder)] if counts[audit.tuning, rows[audit.folder]] > 1 else []),
        )
        for audit in audits
    }


def _notes(audits: Sequence[Audit]) -> Iterator[str]:
    config = audits[0].config
    yield "Cells: eps_L from the trials of all repeats together."
    ways = _by_tuning(audits)
    for leader, *_ in ways:
        report, result = leader.report, leader.report.results[0]
        way = "" if len(ways) == 1 else f"{leader.tuning}: "
        uppers = [_upper(leader, result, claim) for claim in (results.VALID, results.UNCORRECTED)]
        valid, paper = (
            "eps_U: none" if upper is None else f"eps_U: {upper.name}, {upper.assumes}"
            for upper in uppers
        )
        if not leader.is_search:
            valid += f", at eps_B {result.epsilon_base:g}; the smallest valid one at each budget"
        yield (
            f"{way}{results.VALID}: {report.recommended.key}, with {100 * config.confidence:g} "
            f"% confidence, {report.reported(0).assumes}; {valid}"
        )
        yield f"{way}{results.UNCORRECTED}: {results.PAPER_PROTOCOL}, not a bound; {paper}"
    yield ", ".join(
        [f"delta {format_exact(config.delta)}", *_common_tuning(audits), _settings(audits)]
    )
    for audit in audits:
        if any(result.contradiction is not None for result in audit.report.results):
            yield (
                f"WARNING: CONTRADICTION in {_text_of(audit.folder)}: a valid eps_L is above a "
                "valid eps_U"
            )
    names = _names(audits)
    for runs, count in Counter(audit.runs for audit in audits).items():
        if count > 1:
            shared = [" ".join(names[audit.folder]) for audit in audits if audit.runs == runs]
            yield f"Correlated, because they share runs: {', '.join(shared)}"


def _common_tuning(audits: Sequence[Audit]) -> list[str]:
    return [audits[0].tuning] if len(_by_tuning(audits)) == 1 else []


def _settings(audits: Sequence[Audit]) -> str:
    """Size of the audits, with "or" between different values."""
    trained = [audit for audit in audits if audit.row[1] != "empty"]

    def values(name: str) -> str:
        return _joined_by_or(getattr(audit.config, name) for audit in audits)

    used = _joined_by_or(audit.report.records.training for audit in trained)
    records = f", {used} training records" if trained else ""
    played = f"{values('trials')} trials x {values('repeats')}"
    return f"{played}, {values('steps')} steps{records}"


def _joined_by_or(values: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(set(values))))


def draw(audits: Sequence[Audit]) -> Figure:
    """Draws the paper's figures 1 to 4: a panel per audit, in rows by threat model and canary."""
    names, common = _names(audits), _common_tuning(audits)
    grid = []
    for row in _rows(audits):
        ways = ["" if common else audit.tuning for audit in row]
        grid.append(
            [
                ("\n".join(filter(None, [way, _title(*names[audit.folder])])), audit.report)
                for way, audit in zip(ways, row, strict=True)
            ]
        )
    return pictures.draw_grid(grid, ", ".join([*common, _settings(audits)]))


def _rows(audits: Sequence[Audit]) -> list[list[Audit]]:
    """Rows of panels: one per kind of canary, or one per threat model and kind if that is long."""
    width = _PANELS_IN_A_ROW
    if len(audits) <= width:
        return [list(audits)]
    rows = _by_canary(audits)
    if max(map(len, rows)) > width:
        rows = [list(row) for _, row in itertools.groupby(audits, lambda audit: audit.group)]
    return [row[at : at + width] for row in rows for at in range(0, len(row), width)]


def _by_tuning(audits: Sequence[Audit]) -> list[list[Audit]]:
    ways = dict.fromkeys(audit.tuning for audit in audits)
    return [[audit for audit in audits if audit.tuning == way] for way in ways]


def _by_canary(audits: Sequence[Audit]) -> list[list[Audit]]:
    """The audits of each kind of canary, input canaries first."""
    ordered = sorted(audits, key=lambda audit: audit.group[1:])
    return [
        list(of_canary)
        for _, of_canary in itertools.groupby(ordered, lambda audit: audit.group[1:])
    ]


def _title(threat: str, training_set: str, canary: str, score: str, folder: str = "") -> str:
    lines = [f"{threat}, training set: {training_set}", f"canary: {canary}, {score}", folder]
    # In a figure, a dollar sign would begin a formula.
    return "\n".join(printable(line).replace("$", r"\$") for line in lines if line)


def write(audits: Sequence[Audit], out: str | Path) -> None:
    """Writes table.csv (tidy), table.md and figure.png into a folder, created if needed."""
    folder = Path(out)
    if is_started(folder) or (folder / _SUMMARY).exists():
        raise InvalidInput(f"out must not be the folder of an audit, got {one_line(str(out))}")
    write_text(folder / "table.csv", results.to_csv(_inert(table_of_bounds(audits))))
    write_text(folder / "table.md", to_markdown(audits))
    pictures.save(draw(audits), folder / "figure.png")
