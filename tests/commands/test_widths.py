"""Commands fit a terminal of 80 columns: help texts, answers and what they list."""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from audit import console
from audit.__main__ import COMMANDS, main, main_of
from audit.loop.finding_kinds import ALL_STEPS, KINDS, FindingKind
from audit.loop.findings import Finding, PremiseReport
from audit.loop.result import CheckResult
from audit.loop.sources.script import ScriptResult

SWEEP = """lr,noise_multiplier,sampling_rate,steps,accuracy
0.1,1.1,0.01,2000,0.80
0.2,1.1,0.01,2000,0.83
"""
# Commands that take at most a second, with the first words of their answers.
_ANSWERS = {
    "bounds --mu 0.25 --protocol tnb:0,0.1": "epsilon = ",
    "bounds --mu 0.25 --protocol grid:20 --all": "epsilon = ",
    "bounds --mu 0.25 --protocol sequential:20": "epsilon = ",
    "solve noise 3 --protocol tnb:0,0.1 --steps 300": "noise multiplier ",
    "solve runs 2 --mu 0.25 --protocol tnb:1,0.1": "",
    "protocols 2 --mu 0.25": "",
    "cost runs.csv --chosen grid": "only the best is released: epsilon = ",
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


@pytest.mark.parametrize(
    ("name", "option"), [*itertools.product(COMMANDS, ("--help", "--help-all"))]
)
def test_help_fits(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main_of(name)([option])
    out = capsys.readouterr().out
    assert wide(out) == []
    assert option == "--help-all" or out.count("\n") > 5


def test_the_list_of_commands_fits(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert wide(capsys.readouterr().out) == []


@pytest.mark.slow
@pytest.mark.parametrize("words", _ANSWERS)
def test_answers_fit_and_come_first(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(SWEEP)
    name, *options = words.split()
    assert main_of(name)(options) == 0
    out = capsys.readouterr().out
    assert wide(out) == []
    assert out.startswith(_ANSWERS[words])
    if "--all" not in options and name != "protocols":
        statement = out[out.index("The tuning") :].split("\n\n")[0] if "The tuning" in out else ""
        beside = out.replace(statement, "").splitlines()
        assert len([line for line in beside if line]) <= 12


@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_are_wrapped_between_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "  on trust: " + "word " * 30 + "x" * 120
    wrapped = console.wrap(line, "  ").splitlines()
    assert " ".join(wrapped).split() == line.split()
    assert all(len(part) <= width for part in wrapped[:-1])
    assert all(part.startswith("    ") for part in wrapped[1:])
    assert console.wrap("  short") == "  short"


def test_errors_are_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_columns_of_errors", lambda: 80)
    path = "/" + "long" * 30
    assert console.report_error(f"folder must be one that can be written, got {path} {path}") == 2
    first, *following = capsys.readouterr().err.splitlines()
    assert first == "error: folder must be one that can be written, got"
    assert following == [f"  {path}"] * 2


def test_a_program_wraps_its_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "audit.bounds", "--mu", "0.25", "--protocol", "grid:x"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": ""}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) > 1
    assert wide(ended.stderr) == []


def report_of(findings: tuple[Finding, ...]) -> PremiseReport:
    return PremiseReport(findings, ("noise",), {"batches": "few"}, ("a note",), {}, True, 9, 0.1)


def test_a_verdict_lists_the_first_cause_and_all_findings() -> None:
    findings = tuple(
        Finding("noise", f"{name} has no noise. " * 5, "It is forgotten. " * 6, "Add it. " * 12)
        for name in ("weight", "bias")
    )
    report = report_of(findings)
    short = console.wrap_verdict(report.short)
    assert wide(short) == []
    assert short.startswith("broken premise: noise (all messages, causes and fixes: --all)\n1. ")
    assert short.count("Likely cause") == 1
    assert "\n2. bias has no noise." in short
    assert "not tested: batches: few\nnote: a note" in short
    assert short.count("\n") < 12
    complete = console.wrap_verdict(str(report))
    assert complete.count("Likely cause") == 2
    assert "--all" not in complete
    assert " ".join(complete.split()) == " ".join(str(report).split())


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_verdict_with_two_findings_has_a_dozen_lines_beside_its_conditions(
    kind: FindingKind,
) -> None:
    found = Finding(kind.premise, kind.observation, ALL_STEPS, kind.fix)
    result = CheckResult(
        *(2.166, 1e-5, 0.95, 19.15, 7.907), trials=200, premises=report_of((found, found))
    )
    lines = console.wrap_verdict(result.short).splitlines()
    assert lines[0].startswith(f"broken premise: {kind.premise}")
    assert lines[1] == "claims (2.166, 1e-05); an attack proves 7.907 with 99.99 % confidence"
    assert lines[-2:] == ["not tested: batches: few", "note: a note"]
    assert len(lines) - 2 <= 12


def test_a_finding_that_is_shown_completely_has_no_hint() -> None:
    report = report_of((Finding("noise", "It has no noise.", "It is forgotten.", "Add it."),))
    assert report.short == f"broken premise: noise\n{report}"


def test_the_verdict_on_a_script_has_a_dozen_lines_beside_its_conditions() -> None:
    facts = {
        **{"n": 200, "batch_size": 32, "noise_multiplier": 1.0, "target_epsilon": None},
        **{
            **{"overridden": (), "lowest_noise": 1.0, "seeds": (), "failure": None, "loaders": ()},
            **{"files": (), "end": ""},
        },
        **{"unchanged": (), "engines": 1},
    }
    kind = KINDS["fixed batches"]
    report = report_of((Finding(kind.premise, kind.observation, kind.cause, kind.fix),))
    result = ScriptResult("train.py", report, facts, {"n": 24, "batch_size": 6}, "rerun")
    lines = console.wrap_verdict(result.short).splitlines()
    assert lines[0] == "broken premise: batches"
    assert sum(line.startswith("not tested: ") for line in lines) == 7
    assert wide("\n".join(lines)) == []
    assert len(lines) - 9 <= 12  # without what is not tested, what was changed, and the note
    assert "changed for the test: seeds, data set of the loader" in str(result)
