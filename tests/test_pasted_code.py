"""The Python blocks of the README and of the main guides run as a reader pastes them."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

# Each block with a test of a training loop takes more than ten CPU seconds. The tabs of the page on
# finished tunings read files of a tracker; `tests/finished/test_documented_trackers.py` runs them.
_PAGES: list[Any] = [
    ROOT / "README.md",
    DOCS / "what_did_my_tuning_cost.md",
    DOCS / "check_your_script.md",
    pytest.param(DOCS / "long_studies.md", marks=pytest.mark.slow),
    pytest.param(DOCS / "tune_privately.md", marks=pytest.mark.slow),
    pytest.param(DOCS / "audit_your_training.md", marks=pytest.mark.slow),
]
_BLOCKS = {
    "README.md": 2,
    "what_did_my_tuning_cost.md": 4,
    "check_your_script.md": 1,
    "long_studies.md": 2,
    "tune_privately.md": 3,
    "audit_your_training.md": 4,
}


def pasted_blocks(page: Path) -> list[str]:
    """The Python blocks of a page that are not in tabs, in order."""
    blocks = re.findall(
        r"^(:::\{tab-item\}[^\n]*\n)?```python\n(.*?)^```", page.read_text(), re.M | re.S
    )
    return [code for tab, code in blocks if not tab]


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore:Full backward hook", "ignore:Secure RNG", "ignore:Optimal order"
)
@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_as_pasted(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = pasted_blocks(page)
    assert len(blocks) == _BLOCKS[page.name]
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"certificate.html", "budget.json", "budget.json.lock"}
    if page.name in {"README.md", "tune_privately.md"}:
        assert names["best"].candidate["learning_rate"] > 0
        # The study's released candidate and its score.
        printed = capsys.readouterr().out
        assert re.search(r"(?m)^\{'learning_rate': [\d.e-]+\} -[\d.e-]+$", printed), printed
        assert "(3, 1e-05)-differentially private" in names["study"].certificate.statement
