"""Commands fit a terminal of 80 columns: help texts, answers and what they list."""

import contextlib
import itertools
from pathlib import Path

import pytest

from audit import console
from audit.__main__ import COMMANDS, main, main_of

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
    "cost runs.csv --chosen grid": "2 trials, chosen: grid",
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
        assert out.count("\n") <= 28


@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_are_wrapped_between_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "  on trust: " + "word " * 30 + "x" * 120
    wrapped = console.wrap(line, "  ").splitlines()
    assert " ".join(wrapped).split() == line.split()
    assert all(len(part) <= width for part in wrapped[:-1])
    assert all(part.startswith("    ") for part in wrapped[1:])
    assert console.wrap("  short") == "  short"
