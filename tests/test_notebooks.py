"""The notebooks are stored with the outputs of their code, and open with a picture."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from audit.game.settings import AuditConfig
from audit.run import run

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


store_notebooks = _module(ROOT / "docs" / "store_notebooks.py")


def executed(name: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where)
    return client.execute()


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def texts(notebook: nbformat.NotebookNode) -> str:
    parts = [
        out.get("text", "") or out.get("data", {}).get("text/plain", "")
        for out in outputs(notebook)
    ]
    return "\n".join(parts)


def pictures(notebook: nbformat.NotebookNode) -> int:
    return sum("image/png" in out.get("data", {}) for out in outputs(notebook))


def complaints(notebook: nbformat.NotebookNode) -> list[str]:
    return [out["text"] for out in outputs(notebook) if out.get("name") == "stderr"]


def test_the_site_shows_all() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert all(f"\nnotebooks/{path.stem}\n" in page for path in NOTEBOOKS)
    readme = (ROOT / "notebooks" / "README.md").read_text()
    assert all(f"({path.name})" in readme for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_with_the_code_that_made_them(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata["code_digest"] == store_notebooks.digest(notebook), (
        "the code is newer than the outputs: python docs/store_notebooks.py"
    )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) >= 1
    assert complaints(notebook) == []
    assert all(output.output_type != "error" for output in outputs(notebook))
    assert not re.search(r"/tmp|/home|/root|/Users|<[^>]* at 0x", texts(notebook))
    assert path.stat().st_size < 500_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_open_with_their_picture(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    title, empty, picture, *_ = notebook.cells[0].source.splitlines()
    assert title.startswith("# ")
    assert empty == ""
    assert re.fullmatch(r"!\[.{20,}\]\(attachment:picture\.png\)", picture)
    attached = notebook.cells[0].attachments["picture.png"]["image/png"]
    assert attached == store_notebooks.picture_of(notebook)


def test_other_code_has_another_digest() -> None:
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    before = store_notebooks.digest(notebook)
    next(cell for cell in notebook.cells if cell.cell_type == "code").source += "\n"
    assert store_notebooks.digest(notebook) != before


@pytest.mark.parametrize("name", ["choose_a_protocol", "what_did_it_cost"])
def test_the_first_stored_numbers_are_those_of_a_computation(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first code cell of the quick notebooks prints the cost of one run."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    exec(cell.source, {})
    assert [capsys.readouterr().out] == store_notebooks.texts(cell)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["audit_a_loop", "choose_a_protocol", "compare", "what_did_it_cost"]
)
def test_stored_texts_are_those_of_a_fresh_execution(name: str) -> None:
    """The fifth notebook draws a secret number of runs, so its numbers differ every time."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    fresh = store_notebooks.executed(path)
    assert store_notebooks.differences(nbformat.read(path, as_version=4), fresh) == []


@pytest.mark.slow
def test_compare_reads_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    run(AuditConfig(trials=400, repeats=1, epsilon=(3.0,), out=str(folder)))
    monkeypatch.setenv("AUDIT_RUN", str(folder))
    notebook = executed("compare")
    shown = texts(notebook)
    assert pictures(notebook) == 1
    assert complaints(notebook) == []
    table = pd.read_csv(folder / "results.csv")
    tight = table.loc[table["key"] == "tight", "epsilon"].item()
    assert "eps_B = 3" in shown
    assert f"{tight:.3f}" in shown
