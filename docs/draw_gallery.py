"""Draws the pictures of the gallery: `python docs/draw_gallery.py [NAME ...]`, by default all.

Each script `docs/gallery/NAME.py` draws one picture with `matplotlib.pyplot` and prints its answer.
This module runs it and writes `docs/gallery/NAME.png`. Some scripts take ten CPU seconds.
"""

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import matplotlib

FOLDER = Path(__file__).parent / "gallery"
_STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.figsize": (4.0, 2.6),  # inches
    "font.size": 10,
    "lines.linewidth": 2.5,
    "savefig.dpi": 120,
}


def scripts() -> list[Path]:
    """The scripts of the gallery."""
    return sorted(FOLDER.glob("*.py"))


def draw(script: Path, folder: Path) -> str:
    """Runs a script, writes its picture into a folder, and returns what it printed."""
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from seaborn import color_palette

    colours = {"axes.prop_cycle": matplotlib.cycler(color=color_palette("colorblind"))}
    names: dict[str, Any] = {"__name__": "__main__"}
    with (
        pyplot.rc_context(_STYLE | colours),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        pyplot.figure()
        exec(compile(script.read_text(), script.name, "exec"), names)
        pyplot.savefig(folder / f"{script.stem}.png", metadata={"Software": None})
        pyplot.close()
    return printed.getvalue()


def main() -> None:
    """Draws the pictures that the command line names, and prints their answers."""
    for script in scripts():
        if script.stem in (sys.argv[1:] or script.stem):
            print(f"{script.stem}: {draw(script, FOLDER)}", end="")


if __name__ == "__main__":
    main()
