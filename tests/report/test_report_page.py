"""The html page of a finished audit."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from html_page import Page

from audit import html_page, lower_bounds, run
from audit.report import __main__ as command
from audit.report import page as page_of_report
from audit.report import results
from audit.report.results import BudgetResult, Contradiction


@pytest.mark.slow
def test_the_page_is_self_contained_and_begins_with_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "audit")
    options = ["--threat", "ETCV", "--canary", "dirac", "--trials", "60", "--epsilon", "2"]
    assert run.main([*options, "--repeats", "1", "--repetitions", "fixed:2", "--out", out]) == 0
    capsys.readouterr()
    assert command.main([out]) == 0
    text = (tmp_path / "audit" / "report.html").read_text()
    assert capsys.readouterr().out.endswith("report.html\n")
    assert text.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "<td>tight</td>" in text
    assert "<td>lambda_a</td>" in text
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert text.index("<h1>") < text.index("the tuning leaks at least eps_L") < text.index("<img")
    assert text.count('class="claim"') == 1
    answer = text[text.index("<table>") : text.index("</table>")]
    assert "largest eps_L that 60 trials can show" in answer
    one_run, lower, upper_bound, stated, _, papers = map(
        float, re.findall(r'<td class="n">([\d.,]+)</td>', answer)
    )
    report = results.read(tmp_path / "audit" / "summary.json")
    assert one_run == pytest.approx(report.results[0].upper_bounds["base"].epsilon, abs=1e-3)
    assert one_run < 2.0 == papers  # the exact epsilon first, eps_B of the papers last
    assert lower <= report.reported(0).epsilon
    assert upper_bound >= report.results[0].smallest_upper.epsilon
    found = report.results[0].lower_bounds["lambda_a"]["scan:scan"].pooled
    detectable = lower_bounds.max_detectable_epsilon(found.trials_without, found.trials_with)
    assert stated - 1e-3 < detectable == report.results[0].ceiling <= stated
    needed = report.results[0].games_needed
    upper = report.results[0].smallest_upper
    assert lower_bounds.max_detectable_epsilon(needed // 2, needed // 2) >= upper.epsilon
    assert lower_bounds.max_detectable_epsilon(needed // 2 - 1, needed // 2 - 1) < upper.epsilon


def test_pages_have_colours_for_dark_screens_and_light_paper() -> None:
    text = html_page.document("A title", ["<p>words</p>"])
    dark = text.partition("@media screen and (prefers-color-scheme: dark)")[2]
    named = set(re.findall(r"var\((--[a-z-]+)\)", text))
    light_values, dark_values = (
        dict(re.findall(r"(--[a-z-]+): (#[0-9a-f]+)", part.partition("}")[0]))
        for part in (text, dark)
    )
    assert named == set(light_values) == set(dark_values)
    assert all(light_values[name] != dark_values[name] for name in named)


def test_a_contradiction_is_stated_and_escaped() -> None:
    result = BudgetResult(
        1.0, None, "score", None, 1, 0, {}, {},
        tuple(Contradiction("a<b", "lambda_a", lower, "tight", 1.5, lower < 3.0, 40)
              for lower in (1.6, 2.0, 3.0)),
    )  # fmt: skip
    (words,) = page_of_report._contradiction(result)
    assert "a lower bound of 2.000 (a&lt;b from lambda_a) exceeds the upper bound tight" in words
    assert "the 40 lower bounds that this report compares" in words
    chance = replace(result, contradictions=result.contradictions[2:])
    assert not list(page_of_report._contradiction(chance))


def test_a_folder_without_an_audit_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, reason in ((tmp_path, "it has no summary.json"), (tmp_path / "absent", "no such")):
        assert command.main([str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: folders must hold finished audits, got {str(folder)!r}: ")
        assert reason in error
        assert "Errno" not in error
        assert error.count("\n") == 1
