"""The notebooks are kept without outputs, run from top to bottom, and say what they should."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from audit import accounting, repetitions, upper_bounds
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


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare", "what_did_it_cost"]


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


def test_compare_makes_a_run_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUDIT_RUN", raising=False)
    notebook = executed("compare")
    assert pictures(notebook) == 1
    assert complaints(notebook) == []
    assert "scan:scan" in texts(notebook)


def test_compare_reads_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    run(AuditConfig(trials=400, repeats=1, epsilon=(3.0,), out=str(folder)))
    monkeypatch.setenv("AUDIT_RUN", str(folder))
    shown = texts(executed("compare"))
    table = pd.read_csv(folder / "results.csv")
    tight = table.loc[table["key"] == "tight", "epsilon"].item()
    assert "eps_B = 3" in shown
    assert f"{tight:.3f}" in shown


def test_what_did_it_cost_agrees_with_the_accountant() -> None:
    notebook = executed("what_did_it_cost")
    assert pictures(notebook) == 3
    assert complaints(notebook) == []
    shown = texts(notebook)
    base = accounting.DpSgd(1.0, 500, 0.01)
    cost = upper_bounds.tight(base, repetitions.parse("tnb:1,0.05"), 1e-5).epsilon
    assert f"one run costs epsilon = {base.epsilon(1e-5):.3f}" in shown
    assert f"{cost:.3f}\n" in shown
    assert "the tuning 3.0000" in shown
