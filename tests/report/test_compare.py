"""Comparison of finished audits: tables, panels and invalid folders."""

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from audit import compare as compare_command
from audit import run
from audit.report import __main__ as report_command
from audit.report import comparison as compare
from audit.report.results import PAPER_PROTOCOL
from audit.report.text import rounded_down, rounded_up
from threat_models import check_names

pytestmark = pytest.mark.usefixtures("quick_reports")

SMALL = ["--trials", "30", "--repeats", "2", "--epsilon", "1", "4", "--steps", "2"]
SMALL += ["--train-size", "30", "--validation-size", "20"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, quick_reports: Any) -> Path:
    """Folders of NTNV and NTCV on one set of runs, and of ETCV."""
    root = tmp_path_factory.mktemp("finished")
    for name, *options in (
        ("nt", "--threat", "NTNV+NTCV", "--canary", "input"),
        ("etcv", "--threat", "ETCV", "--canary", "dirac"),
    ):
        assert run.main([*SMALL, *options, "--out", str(root / name)]) == 0
    return root


def command(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, str, str]:
    code = compare_command.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def changed(finished: Path, tmp_path: Path, **settings: Any) -> Path:
    """A copy of the ETCV audit with other settings in its summary."""
    folder = tmp_path / "-".join(["copy", *settings])
    shutil.copytree(finished / "etcv", folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["config"] |= settings
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.slow
def test_the_table_has_the_numbers_of_the_results(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = command(capsys, finished / "etcv", finished / "nt", "--out", tmp_path)
    assert code == 0
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 3 * 2 * 2 * 2  # audits, budgets, claims, proxies
    for row in table.itertuples():
        with open(f"{row.folder}/results.csv", newline="") as file:
            bounds = [
                (bound["side"], float(bound["epsilon"]))
                for bound in csv.DictReader(file)
                if (bound["key"], bound["proxy"]) == (row.key, row.proxy)
                and float(bound["epsilon_base"]) == row.epsilon_base
            ]
        found = [epsilon for side, epsilon in bounds if side == "lower"]
        (pooled,) = (epsilon for side, epsilon in bounds if side == "pooled")
        assert row.key == ("scan:scan" if row.claim == "valid" else PAPER_PROTOCOL)
        assert len(found) == 2
        assert row.epsilon_lower == pytest.approx(pooled, abs=1e-9)
        assert row.mean == pytest.approx(sum(found) / 2, abs=1e-9)
        assert (row.min, row.max) == pytest.approx((min(found), max(found)), abs=1e-9)
        results = pd.read_csv(f"{row.folder}/results.csv").query("side == 'upper'")
        name = "tight" if row.claim == "valid" else "renyi"
        upper = results[(results["name"] == name) & (results["epsilon_base"] == row.epsilon_base)]
        assert row.epsilon_upper == pytest.approx(upper["epsilon"].item(), abs=1e-9)
    of_dirac = table[(table["threat"] == "ETCV") & (table["epsilon_base"] == 4)]
    for row in of_dirac.itertuples():
        upper, lower = rounded_up(row.epsilon_upper, 2), rounded_down(row.epsilon_lower, 2)
        cells = ["4", row.claim, upper, row.proxy, lower]
        assert f"| {' | '.join(cells)} |" in (tmp_path / "table.md").read_text()
        assert " ".join(cells) in [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.slow
def test_shared_runs_stand_for_their_views_and_are_correlated(finished: Path) -> None:
    together = compare.read([finished / "nt"])
    one_by_one = compare.read([finished / "nt" / "ntcv", finished / "nt" / "ntnv"])
    assert together == one_by_one
    assert [audit.row for audit in together] == [
        ("NTNV", "DIGITS", "PATCHES[0]"),
        ("NTCV", "DIGITS", "PATCHES[0]"),
    ]
    note = (
        "Correlated, because they share runs: NTNV DIGITS PATCHES[0] validation-loss, "
        "NTCV DIGITS PATCHES[0] canary-loss"
    )
    assert note in compare.to_text(together).replace("\n", " ")
    assert "Correlated" not in compare.to_text(compare.read([finished / "etcv"]))


def test_an_audit_given_by_several_paths_is_shown_once(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(finished / "etcv")
    monkeypatch.chdir(finished)
    paths = ["etcv", "etcv/", "./etcv", "nt/../etcv", finished / "etcv", tmp_path / "link"]
    assert compare.read(paths) == compare.read(["etcv"])
    assert compare.read([finished / "nt", "nt/ntcv"]) == compare.read([finished / "nt"])


def test_each_audit_has_a_panel(finished: Path) -> None:
    figure = compare.draw(compare.read([finished / "etcv", finished / "nt"]))
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == [
        "NTNV, training set: DIGITS\ncanary: PATCHES[0], validation-loss",
        "NTCV, training set: DIGITS\ncanary: PATCHES[0], canary-loss",
        "ETCV, training set: empty\ncanary: dirac, first-coordinate",
    ]
    for axes, audit in zip(panels, compare.read([finished / "etcv", finished / "nt"]), strict=True):
        marks = next(line for line in axes.lines if "lambda_a" in line.get_label())
        reported = [audit.report.reported(budget).epsilon for budget in range(2)]
        assert list(marks.get_ydata()) == reported
        assert [label.get_text() for label in axes.get_xticklabels()] == [
            "0.916 (1)",
            "3.7 (4)",
        ]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert len(set(names)) == len(names)
    assert any("tight" in name for name in names)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"NTNV": (3, 3)}, [3, 3]),
        ({"NTNV": (3, 3), "NTCV": (3, 3), "ETCV": (3, 1)}, [3, 3, 3, 3, 3, 1]),
        ({"NTNV": (1, 0), "NTCV": (1, 0), "ETCV": (0, 1)}, [3]),
        ({"NTNV": (1, 1), "NTCV": (1, 1), "ETCV": (1, 1)}, [3, 3]),
        ({"ETCV": (3, 1)}, [3, 1]),
        ({"ETCV": (0, 1)}, [1]),
        ({"NTNV": (0, 4), "NTCV": (0, 2)}, [3, 1, 2]),
    ],
)
def test_rows_of_panels_follow_the_paper(
    finished: Path, rows: dict[str, tuple[int, int]], expected: list[int]
) -> None:
    (audit,) = compare.read([finished / "etcv"])
    audits = [
        compare.Audit(
            audit.folder / f"{threat}{canary}{number}",
            audit.runs,
            replace(
                audit.report,
                config=replace(audit.config, threat=threat, canary=canary, score=""),
            ),
        )
        for threat, counts in rows.items()
        for canary, count in zip(("input", "dirac"), counts, strict=True)
        for number in range(count)
    ]
    grid = compare._rows(audits)
    assert [len(row) for row in grid] == expected
    assert sorted(str(audit.folder) for row in grid for audit in row) == sorted(
        str(audit.folder) for audit in audits
    )
    if len(grid) > 1:
        assert all(len({audit.config.canary for audit in row}) == 1 for row in grid)


def row_of_settings(threat: str, canary: str, dataset: str) -> dict[str, str]:
    score = check_names(threat, canary, None)
    return {"threat": threat, "canary": canary, "dataset": dataset, "score": score}


def test_audits_are_in_the_order_of_table_2(finished: Path, tmp_path: Path) -> None:
    rows = [
        *(
            ("NTNV", canary, x)
            for canary in ("input", "dirac")
            for x in ("FASHION", "CIFAR10", "SVHN")
        ),
        *(("ETCV", "input", z) for z in ("MNIST", "SVHN", "CIFAR10")),
        ("ETCV", "dirac", "DIGITS"),
    ]
    folders = [
        changed(finished, tmp_path / "-".join(row), **row_of_settings(*row)) for row in sorted(rows)
    ]
    read = [audit.config for audit in compare.read(folders)]
    assert [(found.threat, found.canary, found.dataset) for found in read] == rows


def test_equal_rows_are_distinguished_by_their_folders(finished: Path, tmp_path: Path) -> None:
    copy = changed(finished, tmp_path, trials=70)
    audits = compare.read([finished / "etcv", copy])
    titles = [axes.get_title() for axes in compare.draw(audits).axes if axes.axison]
    assert [title.splitlines()[-1] for title in titles] == [str(finished / "etcv"), str(copy)]
    assert "30 or 70 trials x 2" in compare.to_text(audits)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("delta", 1e-6),
        ("confidence", 0.9),
        ("repetitions", "fixed:3"),
        ("accounting", "exact"),
        ("sampling_rate", 0.5),
    ],
)
def test_incomparable_audits_are_refused(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    value: float | str,
) -> None:
    copy = changed(finished, tmp_path, **{setting: value})
    out = tmp_path / "out"
    code, text, err = command(capsys, finished / "etcv", copy, "--out", out)
    assert code == 2
    assert text == ""
    assert err.startswith(f"error: {setting} must be the same in audits that share a table, got ")
    assert err.endswith(f"and {value}\n")
    assert not out.exists()


@pytest.fixture(scope="module")
def other_ways(tmp_path_factory: pytest.TempPathFactory, quick_reports: Any) -> Path:
    """Folders of small audits of a grid and of repeating until acceptance."""
    root = tmp_path_factory.mktemp("ways")
    for name, *options in (
        ("grid", "--protocol", "grid:3", "--learning-rates", "0.1", "0.2", "0.4"),
        ("until", "--protocol", "until:0.3", "--score", "worst-order"),
    ):
        options += ["--threat", "ETCV", "--canary", "dirac", "--out", str(root / name)]
        assert run.main([*SMALL, *options]) == 0
    return root


@pytest.mark.slow
def test_each_protocol_has_its_own_table_and_cost(
    finished: Path, other_ways: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = finished / "etcv", other_ways / "grid", other_ways / "until"
    code, text, _ = command(capsys, *folders, "--out", tmp_path)
    assert code == 0
    ways = ["K ~ tnb:0,0.01", "grid:3", "until:0.3"]
    for way in ways:
        assert f"{way}, eps_L with the Dirac canary: threat model, X, z, score" in text
    table = pd.read_csv(tmp_path / "table.csv")
    assert list(dict.fromkeys(table["tuning"])) == ways
    for (tuning, base), rows in table[table["claim"] == "valid"].groupby(
        ["tuning", "epsilon_base"]
    ):
        (epsilon,) = rows["epsilon_upper"].unique()
        assert (rows["epsilon_lower"] <= epsilon).all()
        if tuning != ways[0]:
            report = compare.read([other_ways / tuning.split(":")[0]])[0].report
            (result,) = (one for one in report.results if one.epsilon_base == base)
            known = [one.epsilon for one in result.upper_bounds.values() if one.valid]
            assert epsilon == pytest.approx(min(known), rel=1e-8)  # type: ignore[type-var]
    # The paper has no bound for other protocols.
    paper = table[table["claim"] != "valid"].groupby("tuning")["epsilon_upper"]
    assert paper.count()[ways].astype(bool).tolist() == [True, False, False]
    panels = compare.draw(compare.read(folders)).axes
    assert [panel.get_title().split("\n")[0] for panel in panels] == ways
    assert panels[0].get_ylim()[1] > table["epsilon_upper"].max()
    assert "the smallest valid one at each budget" in text


def test_audits_with_sampled_batches_must_agree_on_the_steps(
    finished: Path, tmp_path: Path
) -> None:
    def steps(folder: str, number: int, rate: float) -> Path:
        return changed(finished, tmp_path / folder, steps=number, sampling_rate=rate)

    assert len(compare.read([steps("a", 7, 1.0), steps("b", 8, 1.0)])) == 2
    with pytest.raises(ValueError, match=r"steps must be the same .*, got 7 and 8"):
        compare.read([steps("c", 7, 0.5), steps("d", 8, 0.5)])


def test_the_folder_of_an_audit_is_not_overwritten(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(finished, tmp_path)
    before = sorted(folder.iterdir())
    assert compare_command.main([str(folder), "--out", str(folder)]) == 2
    assert "out must not be the folder of an audit" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result["lower_bounds"].pop("lambda_a"),
        lambda result: result["lower_bounds"].pop("lambda_b"),
        lambda result: result["lower_bounds"].update(lambda_x=result["lower_bounds"]["lambda_a"]),
        lambda result: result["lower_bounds"].clear(),
    ],
)
@pytest.mark.parametrize("main", [compare_command.main, report_command.main])
def test_a_summary_with_other_proxies_is_one_line(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[..., Any],
    main: Callable[..., Any],
) -> None:
    folder = changed(finished, tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    change(summary["results"][-1])
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main([str(folder), *(["--out", str(tmp_path)] * (main is compare_command.main))]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: folders must hold finished audits")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "score",
    ["=cmd.calc", "<script>alert(1)</script>.x", '=HYPERLINK("http://x.y")', "a|b.c", "$\\frac.c"],
)
def test_untrusted_text_is_escaped(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], score: str
) -> None:
    folder = changed(finished, tmp_path, score=f"{score}\x1b[31m\n")
    summary = json.loads((folder / "summary.json").read_text())
    for result in summary["results"]:
        result["score"] = summary["config"]["score"]
    (folder / "summary.json").write_text(json.dumps(summary))
    code, text, _ = command(capsys, folder, "--out", tmp_path / "out")
    assert code == 0
    assert "\x1b" not in text
    table = (tmp_path / "out" / "table.csv").read_text()
    page = (tmp_path / "out" / "table.md").read_text()
    assert "\x1b" not in table + page
    for row in csv.reader(table.splitlines()):
        assert not any(cell.startswith(("=", "+", "@")) for cell in row)
    assert "<script>" not in page
    head = next(
        line for line in page.splitlines() if line.startswith("| eps\\_B") or "eps_B" in line
    )
    assert len(re.findall(r"(?<!\\)\|", head)) == 6


def test_folder_names_may_be_invalid_utf_8(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(finished / "etcv", folder)
    code, text, err = command(capsys, folder, finished / "etcv", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "caf\\xe9" in text
    assert "caf\\xe9" in (tmp_path / "out" / "table.csv").read_text()
    code, _, err = command(capsys, folder / "absent", "--out", tmp_path / "out")
    assert code == 2


def test_folders_without_a_finished_audit_are_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(finished / "nt", begun)
    (begun / "ntcv" / "summary.json").unlink()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "summary.json").write_text("{")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "summary.json").write_text("[1]")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "summary.json").write_text("{}")
    (tmp_path / "preset.toml").write_text("")
    for folder, named in (
        (tmp_path / "absent", tmp_path / "absent"),
        (begun, begun / "ntcv"),
        (tmp_path / "damaged", tmp_path / "damaged"),
        (tmp_path / "list", tmp_path / "list"),
        (tmp_path / "foreign", tmp_path / "foreign"),
    ):
        code, _, err = command(capsys, folder, tmp_path / "preset.toml", "--out", tmp_path / "out")
        assert code == 2
        assert err.startswith("error: folders must hold ")
        assert repr(str(named)) in err
        assert err.count("\n") == 1
    code, _, err = command(capsys, tmp_path / "preset.toml")
    preset = repr(str(tmp_path / "preset.toml"))
    assert (code, err) == (2, f"error: folders must hold finished audits, got the files {preset}\n")
    code, _, err = command(capsys, finished / "etcv" / "summary.json", finished / "etcv")
    assert code == 2
    assert err.endswith(f"summary.json': name its folder, {str(finished / 'etcv')!r}\n")
    code, _, err = command(capsys, finished / "etcv", "a" * 5000)
    assert code == 2
    assert err.startswith("error: folders must hold finished audits, got one that cannot be read")
    assert err.count("\n") == 1
    code, _, err = command(capsys, finished / "etcv", "--out", tmp_path / "preset.toml")
    assert code == 2
    assert "out must be a writable folder" in err
