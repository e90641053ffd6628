"""The scripts of the gallery run as they are printed, and their answers are those of the page."""

import importlib.util
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
_SLOW = {"noise", "protocols", "skipped_noise", "sweep"}  # two to twelve CPU seconds each
_MAX_LINES = 22  # without imports and empty lines; most have ten


def _drawing() -> Any:
    specification = importlib.util.spec_from_file_location("drawing", DOCS / "draw_gallery.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _card(name: str) -> str:
    """The text of a picture's card on the page."""
    before, _, after = (DOCS / "examples.md").read_text().partition(f"](gallery/{name}.png)\n")
    assert before.rstrip().rpartition("\n")[2].startswith("![")
    return after.partition("````{dropdown}")[0]


def test_the_page_shows_twelve_pictures_with_their_code() -> None:
    page = (DOCS / "examples.md").read_text()
    names = [script.stem for script in SCRIPTS]
    assert len(names) == 12
    assert sorted(re.findall(r"\]\(gallery/(\w+)\.png\)", page)) == names
    assert sorted(re.findall(r"literalinclude\} gallery/(\w+)\.py", page)) == names


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_code_of_a_picture_is_short(script: Path) -> None:
    lines = [line for line in script.read_text().splitlines() if line.strip()]
    lines = [line for line in lines if not re.match("(import|from) ", line)]
    assert len(lines) <= _MAX_LINES
    with tokenize.open(script) as file:
        assert max(map(len, file.read().splitlines())) <= 100


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=pytest.mark.slow if script.stem in _SLOW else ())
        for script in SCRIPTS
    ],
    ids=lambda script: script.stem,
)
def test_the_answer_of_a_picture_is_on_the_page(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = _drawing().draw(script, tmp_path)
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 5000
    assert [path.name for path in tmp_path.iterdir()] == [f"{script.stem}.png"]
    numbers = re.findall(r"\d+\.\d+%?|\d+(?= conditions)", printed)
    numbers += re.findall(r"\d of \d|\d+e-\d+", printed)
    assert numbers
    for number in numbers:
        assert number in _card(script.stem), number
