"""A finished audit as one html page, in the manner of a certificate: printable, nothing fetched."""

import base64
from collections.abc import Iterator
from pathlib import Path

from audit.certificate.page import document, table
from audit.report import summary
from audit.report.results import BudgetResult, Report, row_of_table
from audit.report.text import rounded_down, rounded_up

FIGURES = ("figure.png", "scores.png")
PAGE = "report.html"


def write(folder: str | Path) -> Path:
    """Writes the page of a finished audit into its folder.

    Args:
        folder: as `audit.run` leaves it.

    Returns:
        The path of the page.

    Raises:
        ValueError: no audit is finished there.
    """
    folder = Path(folder)
    report = summary.read(folder / "summary.json")
    path = folder / PAGE
    path.write_text(html(report, folder), encoding="utf-8")
    return path


def html(report: Report, folder: Path) -> str:
    """The page of a report, with the pictures that lie in its folder."""
    threat, training_set, canary = row_of_table(report.config)
    title = f"Audit: {threat}, X = {training_set}, z = {canary}"
    body = [
        f"<h1>{title}</h1>",
        table(
            ["setting", "value"],
            [[name, str(value)] for name, value in report.config.items() if value is not None],
        ),
    ]
    for name in FIGURES:
        if (folder / name).is_file():
            picture = base64.b64encode((folder / name).read_bytes()).decode("ascii")
            body.append(
                f'<figure><img alt="{name}" style="width:100%" '
                f'src="data:image/png;base64,{picture}"></figure>'
            )
    for result in report.results:
        body += _of_budget(result)
    body += [
        "<h2>How it was made</h2>",
        table(["what", "value"], [[name, str(value)] for name, value in report.made.items()]),
    ]
    return document(title, body, "alarm" if _alarmed(report) else "")


def _alarmed(report: Report) -> bool:
    return any(one.beyond_chance for result in report.results for one in result.contradictions)


def _of_budget(result: BudgetResult) -> Iterator[str]:
    yield f"<h2>One run of epsilon {result.epsilon_base:g}, score {result.score}</h2>"
    for one in result.contradictions:
        yield (
            f'<p class="claim">A lower bound of {rounded_down(one.lower)} exceeds '
            f"{one.upper_bound}, {rounded_up(one.upper)}"
            f"{': more than chance does' if one.beyond_chance else ''}.</p>"
        )
    yield table(
        ["upper bound", "epsilon", "worth", "what it needs to be true"],
        [
            [
                bound.name,
                "-" if bound.epsilon is None else rounded_up(bound.epsilon),
                bound.label,
                bound.assumes,
            ]
            for bound in result.upper_bounds.values()
        ],
    )
    yield table(
        ["lower bound", "proxy", "epsilon", "confidence", "games", "worth"],
        [
            [
                key,
                proxy,
                rounded_down(bound.pooled.epsilon),
                f"{bound.confidence:g}",
                f"{bound.pooled.trials_without} + {bound.pooled.trials_with}",
                bound.label,
            ]
            for proxy, bounds in result.lower_bounds.items()
            for key, bound in bounds.items()
        ],
    )
