"""The html page of a finished audit: self-contained and printable, like a certificate."""

import base64
from collections.abc import Iterator
from pathlib import Path

from audit import checks
from audit.errors import InvalidInput
from audit.files import write_text
from audit.html_page import document, escape, figure, pairs, table, words_of
from audit.numerics import format_exact
from audit.report import results
from audit.report.results import BudgetResult, Report, row_of_table
from audit.report.text import answer_cells, format_epsilon, rounded_down, rounded_up

_FIGURES = {
    "figure.png": "Upper bounds from theory, and lower bounds from the trials.",
    "scores.png": "Scores of the released runs, without and with the canary.",
}
PAGE = "report.html"


def write(folder: str | Path) -> Path:
    """Writes the page of a finished audit into its folder, and returns its path."""
    folder = Path(folder)
    report = results.read(folder / "summary.json")
    path = folder / PAGE
    try:
        write_text(path, html(report, folder))
    except InvalidInput as error:
        cause = f": {checks.reason_of(error.__cause__)}" if error.__cause__ is not None else ""
        raise InvalidInput(
            f"folder must be one that can be written, got {checks.one_line(str(folder))}{cause}"
        ) from error
    return path


def html(report: Report, folder: Path) -> str:
    """The page of a report, with the figures in its folder."""
    threat, training_set, canary = row_of_table(report.config)
    title = f"Audit: {threat}, training set {training_set}, canary {canary}"
    body = [f"<h1>{escape(title)}</h1>"]
    body += _answer(report)
    for result in report.results:
        body += _contradiction(result)
    for name, words in _FIGURES.items():
        if (folder / name).is_file():
            png = base64.b64encode((folder / name).read_bytes()).decode("ascii")
            picture = f'<img alt="{escape(words)}" src="data:image/png;base64,{png}">'
            body.append(figure(picture, words))
    for result in report.results:
        body += _of_budget(result)
    settings = [(name, words_of(value)) for name, value in report.config.identity.items()]
    body += [
        "<h2>Settings</h2>",
        pairs([(name, words) for name, words in settings if words]),
        f"<p>Engine {escape(report.engine.name)}: {escape(report.engine.reason)}.</p>",
        "<h2>Provenance</h2>",
        pairs([(name, words_of(value)) for name, value in report.made.items()]),
    ]
    alarm = any(result.contradiction is not None for result in report.results)
    return document(title, body, "alarm" if alarm else "")


def _answer(report: Report) -> Iterator[str]:
    """One table: for every budget, one run, both bounds, and what the trials could show."""
    bound = report.reported(0)
    jointly = ", not jointly" if len(report.results) > 1 else ""
    yield (
        f'<p class="claim">With {100 * bound.confidence:g} % confidence{jointly}, the tuning leaks '
        f"at least eps_L at delta = {format_exact(report.config.delta)}. It leaks at most eps_U, "
        "the smallest upper bound that is valid for this audit.</p>"
    )
    rows = []
    for budget, result in enumerate(report.results):
        *bounds, ceiling, needed, papers = answer_cells(report, budget)
        upper = result.smallest_upper
        rows.append([*bounds, "-" if upper is None else upper.name, ceiling, needed, papers])
    heads = [
        "one run leaks at most", "eps_L", "eps_U", "bound of eps_U",
        f"largest eps_L that {bound.pooled.trials:,} trials can show", "trials to show eps_U",
        "eps_B of the papers (one run, by Renyi divergences)",
    ]  # fmt: skip
    yield table(heads, rows, numbers=(0, 1, 2, 4, 5, 6))


def _contradiction(result: BudgetResult) -> Iterator[str]:
    contradiction = result.contradiction
    if contradiction is not None:
        yield (
            '<p class="claim doubt">Contradiction: a lower bound of '
            f"{rounded_down(contradiction.lower)} ({escape(contradiction.key)} from "
            f"{escape(contradiction.proxy)}) exceeds the upper bound "
            f"{escape(contradiction.upper_bound)}, {rounded_up(contradiction.upper)}. Chance does "
            f"not explain it: the {contradiction.compared} lower bounds that this report compares "
            "were taken into account.</p>"
        )


def _of_budget(result: BudgetResult) -> Iterator[str]:
    one_run = format_epsilon(result.upper_bounds.get("base"))
    setting = (
        f"if one run leaks {one_run} (eps_B = {format_exact(result.epsilon_base)}), score "
        f"{escape(result.score)}"
    )
    yield f"<h2>Upper bounds {setting}</h2>"
    yield table(
        ["upper bound", "epsilon", "validity", "assumptions"],
        [
            [
                bound.name,
                (rounded_down if bound.label == "attained" else rounded_up)(bound.epsilon),
                bound.label,
                bound.assumes,
            ]
            for bound in result.upper_bounds.values()
            if bound.epsilon is not None
        ],
        numbers=(1,),
    )
    yield f"<h2>Lower bounds {setting}</h2>"
    yield (
        "<p>The bound to report was chosen before the first trial, so it has the stated "
        "confidence. Each other bound has this confidence on its own, not jointly: the largest "
        "of several is not a bound with this confidence.</p>"
    )
    yield table(
        ["lower bound", "proxy", "epsilon", "confidence", "trials", "validity"],
        [
            [
                key,
                proxy,
                rounded_down(bound.pooled.epsilon),
                format_exact(bound.confidence),
                f"{bound.pooled.trials_without} + {bound.pooled.trials_with}",
                bound.label,
            ]
            for proxy, bounds in result.lower_bounds.items()
            for key, bound in bounds.items()
        ],
        numbers=(2, 3, 4),
    )
