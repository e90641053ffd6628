"""What a reproduction leaves: a table, a figure, and its numbers beside the published ones."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from audit import checks

_PALETTE = sns.color_palette("colorblind", 10).as_hex()
COLOURS = (*(_PALETTE[i] for i in (0, 1, 2, 4, 3, 7, 9)), "black")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 3)))
_MARKERS = ("^", "s", "o", "D")
_NAME = "curve"
# A picture shows no more points of a curve; each may take seconds.
_MAX_POINTS = 1_000


Values = ArrayLike | Sequence[float | None]


@dataclass(frozen=True)
class Comparison:
    """A published number and ours.

    Attributes:
        what: the quantity.
        published: as printed.
        ours: as computed.
    """

    what: str
    published: float
    ours: float

    @property
    def difference(self) -> float:
        """How far ours is from the published one, relative to it."""
        return self.ours / self.published - 1.0


@dataclass(frozen=True)
class Result:
    """One table or figure, computed.

    Attributes:
        table: everything that was computed, tidy.
        figure: the picture.
        comparisons: the numbers that the paper prints, beside ours.
        lines: what the command prints besides.
    """

    table: pd.DataFrame
    figure: Figure
    comparisons: tuple[Comparison, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def compared(self) -> pd.DataFrame:
        """The comparisons as a table, with the relative difference."""
        rows = [(c.what, c.published, c.ours, c.difference) for c in self.comparisons]
        return pd.DataFrame(rows, columns=["what", "published", "ours", "difference"])

    def write(self, folder: Path) -> None:
        """Writes table.csv, figure.png and, where there is one, comparison.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_csv(self.table, folder / "table.csv")
        if self.comparisons:
            _write_csv(self.compared, folder / "comparison.csv")
        self.figure.savefig(folder / "figure.png", dpi=150, metadata={"Software": None})


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


@dataclass(frozen=True)
class Reproduction:
    """A published table or figure that can be computed.

    Attributes:
        title: what it shows.
        source: paper and number.
        compute: makes it; its keyword arguments are the settings, its defaults the paper's.
    """

    title: str
    source: str
    compute: Callable[..., Result]

    @property
    def reads_data(self) -> bool:
        """Whether it trains on a data set, which must be there."""
        return "dataset" in inspect.signature(self.compute).parameters

    def run(self, settings: Mapping[str, Any] | None = None) -> Result:
        """Computes it, with some settings changed.

        Raises:
            ValueError: a setting that it does not have, or of another kind than its default.
        """
        known = inspect.signature(self.compute).parameters
        chosen = {checks.one_of("setting", n, known): v for n, v in (settings or {}).items()}
        for name, value in chosen.items():
            _check(name, value, known[name].default)
        return self.compute(**chosen)


def _check(name: str, value: object, default: object) -> None:
    """A setting is a number or a list where its default is one; counts are positive."""
    if isinstance(default, int):
        high = _MAX_POINTS if name == "points" else None
        checks.integer(name, value, 0 if name == "seed" else 1, high)  # type: ignore[arg-type]
    elif isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {value!r}")
    elif isinstance(default, float):
        checks.interval(name, value)  # type: ignore[arg-type]
    elif not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{name} must be a list, got {value!r}")


@dataclass
class Curves:
    """Curves as a tidy table: x, y and the curve's name, and whatever tells panels apart.

    Attributes:
        x: name of the column of abscissas.
        y: name of the column of ordinates.
    """

    x: str
    y: str
    _parts: list[pd.DataFrame] = field(default_factory=list)

    def add(self, name: str, x: Values, y: Values, **at: Any) -> None:
        """Adds one curve; a point that is None or infinite is left out of the picture."""
        part = pd.DataFrame({**at, _NAME: name, self.x: x, self.y: np.asarray(y, np.float64)})
        self._parts.append(part)

    @property
    def table(self) -> pd.DataFrame:
        """All curves."""
        return pd.concat(self._parts, ignore_index=True)


def figure(width: float = 8.4, height: float = 4.6) -> Figure:
    """An empty figure in the project's style."""
    return Figure(figsize=(width, height), layout="constrained")


def style() -> Any:
    """The context in which axes are made."""
    return sns.plotting_context("notebook", font_scale=1.1)


def plot(
    axes: Axes,
    table: pd.DataFrame,
    x: str,
    y: str,
    points: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> None:
    """Draws every curve of a table, each with its own colour and dashes.

    Args:
        axes: where to.
        table: of `Curves`.
        x: column of abscissas.
        y: column of ordinates.
        points: curves to draw as points.
        names: all curves that share colours across panels, in order; those of the table if None.
    """
    order = list(dict.fromkeys(table[_NAME])) if names is None else list(names)
    for name, rows in table.groupby(_NAME, sort=False):
        rank = order.index(str(name))
        look: dict[str, Any] = {"color": COLOURS[rank % 8], "label": name}
        if name in points:
            look |= {"ls": "", "marker": _MARKERS[rank % 4], "ms": 7}
        else:
            look |= {"ls": _DASHES[rank % 8], "lw": 2.2}
        finite = rows[np.isfinite(rows[y])]
        axes.plot(finite[x], finite[y], **look)
    tidy(axes)


def tidy(axes: Axes) -> None:
    """A light grid behind, no frame."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """Puts the legend to the right of the axes, where it covers nothing.

    Args:
        axes: where to.
        handles: what to explain; what the axes show if None.
    """
    shown = {} if handles is None else {"handles": handles}
    axes.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, handlelength=2.6, **shown
    )


def draw(
    curves: Curves,
    title: str,
    x: str,
    y: str,
    x_scale: str = "linear",
    y_scale: str = "linear",
    **limits: tuple[float | None, float | None],
) -> Figure:
    """One panel with every curve and the legend beside it.

    Args:
        curves: what to draw.
        title: of the figure.
        x: label of the abscissa.
        y: label of the ordinate.
        x_scale: linear or log.
        y_scale: linear or log.
        **limits: `xlim` and `ylim`.
    """
    with style():
        page = figure()
        axes = page.subplots()
        plot(axes, curves.table, curves.x, curves.y)
        axes.set(xlabel=x, ylabel=y, xscale=x_scale, yscale=y_scale, **limits)
        axes.set_title(title, fontsize="medium", loc="left")
        legend(axes)
    return page
