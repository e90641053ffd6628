"""Executes notebooks and stores them with their outputs, for code hosts and the site.

`python docs/store_notebooks.py [NAME ...]` executes `notebooks/NAME.ipynb` (all by default). The
picture of the cell with the tag `picture` also becomes the picture below the title. The digest of
the code is stored, so that a test detects outputs of other code. `--check` stores nothing; it
prints the cells whose texts differ, and exits with 1 if there are any.
"""

import argparse
import copy
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
PICTURE = "picture.png"
_MAX_SECONDS = 900  # for one cell
_LOCAL_PATH = re.compile(r"(/tmp|/home|/root|/Users|[A-Z]:\\)[\w\\/.+-]*")


def paths() -> list[Path]:
    """All notebooks."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def digest(notebook: Any) -> str:
    """A digest of the code of all cells."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def texts(cell: Any) -> list[str]:
    """What a cell prints or shows as text; pictures are left out."""
    shown = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.get("outputs", [])
        if "image/png" not in output.get("data", {})
    ]
    return [text for text in shown if text]


def picture_of(notebook: Any) -> str:
    """The picture of the cell with the tag `picture`, in base64."""
    (cell,) = [cell for cell in notebook.cells if "picture" in cell.metadata.get("tags", [])]
    (picture,) = [
        output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    return str(picture)


def executed(path: Path) -> Any:
    """The notebook with new outputs, which contain no local path, warning or time."""
    notebook = copy.deepcopy(nbformat.read(path, as_version=4))
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(
        notebook,
        timeout=_MAX_SECONDS,
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            output.get("metadata", {}).clear()
            for text in texts(cell):
                local = _LOCAL_PATH.search(text)
                if local:
                    raise ValueError(f"outputs must show no local path, got {local[0]}")
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["code_digest"] = digest(notebook)
    opening = notebook.cells[0]
    assert f"(attachment:{PICTURE})" in opening.source, f"{path.name} opens with its picture"
    opening["attachments"] = {PICTURE: {"image/png": picture_of(notebook)}}
    return notebook


def differences(stored: Any, fresh: Any) -> list[str]:
    """The cells of which the stored texts are not those of a fresh computation.

    Processors differ in the last digits of an exponential, and so do long numbers.
    """
    return [
        f"cell {index}: stored {before}, now {now}"
        for index, (before, now) in enumerate(
            zip(map(texts, stored.cells), map(texts, fresh.cells), strict=True)
        )
        if [*map(_rounded, before)] != [*map(_rounded, now)]
    ]


def _rounded(text: str) -> str:
    return re.sub(r"\d+\.\d{10,}", lambda digits: f"{float(digits[0]):.9g}", text)


def main() -> int:
    """Executes the notebooks that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="names without .ipynb; default: all")
    parser.add_argument("--check", action="store_true", help="compare, and store nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    status = 0
    for path in paths():
        if arguments.names and path.stem not in arguments.names:
            continue
        fresh = executed(path)
        if arguments.check:
            changed = differences(nbformat.read(path, as_version=4), fresh)
            print("\n".join([f"{path.stem}: {len(changed)} cells differ", *changed]))
            status = status or bool(changed)
        else:
            nbformat.write(fresh, path)
            print(f"{path.stem}: stored")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
