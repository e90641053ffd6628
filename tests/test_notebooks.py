"""The notebooks are kept without outputs; one reads a finished run. `make docs` runs them all."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from audit.game.settings import AuditConfig
from audit.run import run

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


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
    index = (ROOT / "notebooks" / "index.md").read_text()
    assert all(f"\n{path.stem}\n" in index for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_cleared(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    for cell in code:
        assert not cell.outputs
        assert cell.execution_count is None
    assert notebook.cells[0].source.startswith("# ")


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
