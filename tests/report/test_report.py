"""The report of an audit: announced contradictions, figures and text."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from scipy import stats

from audit import run
from audit.accounting import GaussianMechanism
from audit.lower_bounds import ClopperPearson, FixedThreshold
from audit.lower_bounds.scores import Scores
from audit.report import pictures, results
from audit.report.assemble import find_contradictions
from audit.report.results import Contradiction, LowerResult, LowerValue, Report, UpperResult
from audit.report.text import WIDTH, to_text

pytestmark = pytest.mark.usefixtures("quick_reports")

FALSE_ALARM = 1e-3
"""Probability that a statistical test of this file fails if nothing is wrong."""
QUICK = ["--trials", "300", "--repeats", "3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, quick_reports: Any) -> Path:
    out = tmp_path_factory.mktemp("audit")
    assert run.main([*QUICK, "--epsilon", "1", "2", "4", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return results.read(folder / "summary.json")


def lower_result(epsilon: float) -> LowerResult:
    value = LowerValue(epsilon, None, "higher", None, None, 100, 100)
    return LowerResult("name", "rule", True, "valid", "", "", 0.95, value, (value,))


def upper_result(epsilon: float) -> dict[str, UpperResult]:
    return {"exact": UpperResult("exact", epsilon, True, "valid", "any score", "", 0.0)}


def exact_bounds(rng: np.random.Generator) -> tuple[float, Callable[..., Any]]:
    """Nine lower bounds of 1.0, each wrong in exactly 1 - confidence of audits."""
    noise = rng.normal(size=9)

    def bounds(confidence: float) -> dict[str, float]:
        values = 1.0 + noise - stats.norm.ppf(confidence)
        return {f"{number}": float(value) for number, value in enumerate(values)}

    return 1.0, bounds


def bounds_of_trials(
    rng: np.random.Generator, mu: float = 1.0, delta: float = 0.2, trials: int = 400
) -> tuple[float, Callable[..., Any]]:
    """Lower bounds at three thresholds near the best one, from trials of a Gaussian mechanism."""
    scores = Scores.of(rng.normal(size=trials), rng.normal(mu, size=trials))

    def bounds(confidence: float) -> dict[str, float]:
        return {
            f"{threshold}": ClopperPearson(rule=FixedThreshold(threshold))
            .bound(scores, delta, confidence)
            .epsilon
            for threshold in (0.9, 1.1, 1.3)
        }

    return GaussianMechanism(mu).epsilon(delta), bounds


def simulated_audit(
    make: Callable[..., Any], rng: np.random.Generator, alpha: float, budgets: int
) -> tuple[bool, bool]:
    """Whether an audit announces a contradiction, and whether a bound exceeds the exact cost."""
    announced = above = 0
    for _ in range(budgets):
        truth, bounds = make(rng)
        lower = {"proxy": {k: lower_result(value) for k, value in bounds(1.0 - alpha).items()}}
        found = list(
            find_contradictions(
                lower,
                upper_result(truth),
                1.0 - alpha,
                budgets,
                lambda proxy, confidence, bounds=bounds: bounds(confidence),
            )
        )
        above += len(found)
        announced += sum(one.beyond_chance for one in found)
    return announced > 0, above > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "audits", "alpha", "budgets"),
    [(exact_bounds, 1500, 0.05, 3), (bounds_of_trials, 50, 0.2, 16)],
)
def test_correct_mechanisms_are_contradicted_at_most_at_the_stated_rate(
    make: Callable[..., Any], audits: int, alpha: float, budgets: int
) -> None:
    rng = np.random.default_rng(5)
    found = [simulated_audit(make, rng, alpha, budgets) for _ in range(audits)]
    announced, above = np.sum(found, axis=0)
    # Without the correction, far more audits would announce a contradiction.
    assert stats.binomtest(int(above), audits, alpha, "greater").pvalue < FALSE_ALARM
    assert stats.binomtest(int(announced), audits, alpha, "greater").pvalue > FALSE_ALARM
    if make is exact_bounds:
        # The level is used up: 27 independent bounds announce one in 4.9 % of audits.
        assert stats.binomtest(int(announced), audits, 0.0488).pvalue > FALSE_ALARM


def test_a_wrong_upper_bound_is_contradicted() -> None:
    lower = {"lambda_a": {"key": lower_result(2.0), "other": lower_result(1.2)}}
    confidences = []

    def recompute(proxy: str, confidence: float) -> dict[str, float]:
        confidences.append(confidence)
        return {"key": 1.5, "other": 0.9}

    found = list(find_contradictions(lower, upper_result(1.0), 0.95, 3, recompute))
    assert [(one.key, one.beyond_chance, one.compared) for one in found] == [
        ("key", True, 6),
        ("other", False, 6),
    ]
    assert confidences == [pytest.approx(1.0 - 0.05 / 6)]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures, collected instead of written."""
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    return figures


@pytest.mark.thorough
def test_every_error_bar_contains_its_mean(
    report: Report, figures: list[Any], tmp_path: Path
) -> None:
    pictures.draw(report, tmp_path / "figure.png")
    (axes,) = figures[0].axes
    bars = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    drawn = [(key, proxy) for key, _, proxies in report.highlights for proxy in proxies]
    assert len(bars) == len(drawn) > 4
    for bar, (key, proxy) in zip(bars, drawn, strict=True):
        marks, _, (segments,) = bar.lines
        bounds = [result.lower_bounds[proxy][key] for result in report.results]
        for x, mean, (low, high), bound in zip(
            *marks.get_data(), segments.get_segments(), bounds, strict=True
        ):
            assert low[0] == high[0] == x
            assert low[1] <= mean <= high[1]
            assert (low[1], mean, high[1]) == pytest.approx((bound.min, bound.mean, bound.max))
    # The bounds from all trials are next to the bars and have no bars themselves.
    on_bars = {x for bar in bars for x in bar.lines[0].get_xdata()}
    pooled = [line for line in axes.lines if "varepsilon_L" in line.get_label()]
    assert len(pooled) == len(drawn)
    for line, (key, proxy) in zip(pooled, drawn, strict=True):
        assert not on_bars & set(line.get_xdata())
        expected = [result.lower_bounds[proxy][key].epsilon for result in report.results]
        assert list(line.get_ydata()) == expected
    caption = " ".join(figures[0].get_supxlabel().split())
    assert "the bound to report, 95 % confidence" in caption
    assert "95 % each, not jointly" in caption


def test_labels_are_next_to_the_last_group_and_do_not_overlap(
    report: Report, figures: list[Any], tmp_path: Path
) -> None:
    pictures.draw(report, tmp_path / "figure.png")
    figure: Figure = figures[0]
    (axes,) = figure.axes
    FigureCanvasAgg(figure).draw()
    boxes = sorted((label.get_window_extent() for label in axes.texts), key=lambda box: box.y0)
    inside = figure.bbox
    assert len(boxes) > 8
    for box in boxes:
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert box.y0 >= inside.y0
        assert box.y1 <= inside.y1
    assert axes.get_legend() is None
    # The extent of a label includes its line, so the positions of the texts are compared.
    places = sorted(label.xyann[1] for label in axes.texts)
    points = axes.transData.transform([(0.0, place) for place in places])[:, 1]
    assert np.diff(points).min() > axes.texts[0].get_fontsize() * figure.dpi / 72.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 5.0], [1.0, 5.0]),
        ([2.0, 2.0], [1.5, 2.5]),
        ([0.0, 0.0, 0.0], [0.0, 1.0, 2.0]),
        ([9.9, 10.0], [9.0, 10.0]),
        ([], []),
    ],
)
def test_labels_are_spread_around_their_values(values: list[float], expected: list[float]) -> None:
    assert list(pictures._spread(values, 1.0, 10.0)) == pytest.approx(expected)


def test_no_word_of_the_figure_of_one_budget_is_cut_off(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    pictures.draw(replace(report, results=report.results[:1]), tmp_path / "figure.png")
    (figure,) = figures
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in (figure._suptitle, figure._supxlabel, axes.xaxis.label, *axes.texts):
        extent = text.get_window_extent()
        assert extent.x0 >= 0, text
        assert extent.x1 <= figure.bbox.width, text


def test_text_starts_with_the_answer_and_fits_the_terminal(report: Report) -> None:
    text = to_text(report)
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].split()[:2] == ["one", "run"]
    assert "\n\nAttacked: random search K ~ tnb:0,0.01, score first-coordinate" in text
    rows = [line.split() for line in lines if len(line.split()) == 6]
    rows = [row for row in rows if row[5] in ("1", "2", "4")]
    assert len(rows) == 3
    for budget, row in enumerate(rows):
        result = report.results[budget]
        bound, upper = report.reported(budget).epsilon, result.smallest_upper.epsilon
        assert 0.0 <= bound - float(row[1]) < 1e-3
        assert 0.0 <= float(row[2]) - upper < 1e-3
        assert 0.0 <= float(row[0]) - result.upper_bounds["base"].epsilon < 1e-3
        assert 0.0 <= float(row[3]) - result.ceiling < 1e-3
        assert int(row[4].replace(",", "")) == result.games_needed
    order = [
        "eps_L holds with 95 % confidence at each eps_B, not jointly: scan:scan from lambda_a",
        "eps_U is the smallest upper bound that is valid for this audit: reduced-exact.",
        "LOWER BOUND TO REPORT (95 % confidence)",
        "OTHER LOWER BOUNDS (95 % confidence each, not jointly: do not pick the largest)",
        "NOT A BOUND: the paper's uncorrected estimate, for comparison",
        "UPPER BOUNDS FOR EVERY SCORE",
        "UPPER BOUNDS ONLY FOR THE SCORE OF THIS AUDIT",
        "FOR COMPARISON: not upper bounds on the tuning",
        "Conditions:",
        "Engine reduced:",
    ]
    unwrapped = " ".join(text.split())
    places = [unwrapped.index(words) for words in order]
    assert places == sorted(places)
    anyone = text[text.index(order[5]) : text.index(order[6])]
    assert " tight " in anyone
    assert "reduced-exact" not in anyone


def test_the_short_text_has_the_answer_and_what_it_requires(report: Report) -> None:
    lines = to_text(report, show_all=False).splitlines()
    everything = to_text(report).splitlines()
    assert max(map(len, lines)) <= WIDTH
    end = lines.index("eps_L requires:")
    assert lines[:end] == everything[:end]  # the answer is the same
    required = lines[end:]
    assert "- independent trials" in required
    assert "- K independent runs, each candidate drawn independently" in required
    assert not any("LOWER BOUND" in line for line in lines)
    assert len(lines) <= 32


def test_every_condition_has_one_footnote(report: Report) -> None:
    text = to_text(report)
    table, notes = text.split("Conditions:\n")
    footnotes = [line for line in notes.split("\n\n")[0].splitlines() if line[:3].strip()]
    explained = [line.split()[0] for line in footnotes]
    assert len(set(explained)) == len(explained)
    tight = next(line for line in table.splitlines() if line.startswith("  tight "))
    marks = tight.split()[-1:]
    assert set(marks) <= set(explained)
    words = {line.split()[0]: line.split(maxsplit=1)[1] for line in footnotes}
    assert words[marks[0]] == "K independent runs, each candidate drawn independently"
    assert "independent runs" not in table


def test_many_budgets_need_several_tables(report: Report) -> None:
    many = replace(report, results=report.results * 5)
    text = to_text(many)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("LOWER BOUND TO REPORT") > 1
    tight = [line.split()[1:-1] for line in text.splitlines() if line.startswith("  tight ")]
    assert sum(map(len, tight)) == 15


def test_a_bound_above_the_upper_bound_by_chance_is_explained(report: Report) -> None:
    # A bound is above the upper bound, but not if all compared bounds share the error.
    above = Contradiction("scan:scan", "lambda_b", 0.02, "tight", 0.01, False, 36)
    first = replace(report.results[0], contradictions=(above,))
    text = " ".join(to_text(replace(report, results=(first,))).split())
    assert "CONTRADICTION" not in text
    assert "At eps_B = 1, scan:scan from lambda_b is above eps_U. For each lower bound," in text
    beyond = replace(first, contradictions=(above, replace(above, beyond_chance=True)))
    text = " ".join(to_text(replace(report, results=(beyond,))).split())
    assert "CONTRADICTION" in text
    assert "is above eps_U. For each" not in text


@pytest.mark.thorough
def test_json_contains_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run.main([*QUICK, "--epsilon", "1", "2", "4", "--out", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stored = json.loads((folder / "summary.json").read_text())
    assert found == stored
