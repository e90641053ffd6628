"""The result of a reproduction: a table, a figure, and the published numbers next to ours."""

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
# A point of a curve may take seconds. Other numbers (trials, tunings, epochs) take time and memory
# in proportion, so they are limited to a multiple of the paper's.
_MAX_POINTS = 1_000
_MAX_MULTIPLE = 100
_MAX_WORK = 100_000  # times the paper's, of all settings together
# Names of settings in version 2 of the project.
_FORMER_SETTINGS = {"games": "trials", "laws": "distributions", "specs": "protocols"}


Values = ArrayLike | Sequence[float | None]


@dataclass(frozen=True)
class Comparison:
    """A published number and ours.

    Attributes:
        quantity: name of the number.
        published: the number that the paper prints.
        ours: the computed number.
    """

    quantity: str
    published: float
    ours: float

    @property
    def difference(self) -> float:
        """The relative difference of ours from the published number."""
        return self.ours / self.published - 1.0


@dataclass(frozen=True)
class Result:
    """A computed table or figure.

    Attributes:
        table: all computed numbers, one row per point.
        figure: the figure.
        comparisons: the numbers that the paper prints, with ours.
        lines: further lines that the command prints.
    """

    table: pd.DataFrame
    figure: Figure
    comparisons: tuple[Comparison, ...] = ()
    lines: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Writes table.csv, figure.png and, if the paper prints numbers, comparison.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_csv(self.table, folder / "table.csv")
        if self.comparisons:
            rows = [(c.quantity, c.published, c.ours, c.difference) for c in self.comparisons]
            columns = ["what", "published", "ours", "difference"]
            _write_csv(pd.DataFrame(rows, columns=columns), folder / "comparison.csv")
        self.figure.savefig(folder / "figure.png", dpi=150, metadata={"Software": None})


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


@dataclass(frozen=True)
class Reproduction:
    """A published table or figure that can be computed.

    Attributes:
        title: its subject.
        source: paper and number.
        compute: computes it; the keyword arguments are the settings, by default the paper's.
    """

    title: str
    source: str
    compute: Callable[..., Result]

    @property
    def reads_data(self) -> bool:
        """Whether it trains on a data set, which must be available."""
        return "dataset" in inspect.signature(self.compute).parameters

    def work(self, settings: Mapping[str, Any]) -> float:
        """The amount of work, relative to the paper's settings, if it grows with every count."""
        parameters = inspect.signature(self.compute).parameters
        times = 1.0
        for name, value in settings.items():
            name = _FORMER_SETTINGS.get(name, name)
            default = parameters[name].default if name in parameters and name != "seed" else None
            if isinstance(default, int) and isinstance(value, int):
                times *= value / default
            elif isinstance(default, tuple) and isinstance(value, list | tuple):
                times *= len(value) / len(default)
        return times

    def run(self, settings: Mapping[str, Any] | None = None) -> Result:
        """Computes the table or figure.

        Args:
            settings: the settings that differ from the paper's.

        Raises:
            ValueError: a setting is unknown, or of another kind than its default.
        """
        parameters = inspect.signature(self.compute).parameters
        chosen = {}
        for name, value in (settings or {}).items():
            current = name if name in parameters else _FORMER_SETTINGS.get(name, name)
            chosen[checks.one_of("setting", current, parameters)] = value
        chosen = {
            name: _check(name, value, parameters[name].default) for name, value in chosen.items()
        }
        if (times := self.work(chosen)) > _MAX_WORK:
            raise ValueError(
                f"settings must need at most {_MAX_WORK:,} times the work of the paper's, got "
                f"{times:.3g} times"
            )
        return self.compute(**chosen)


def _check(name: str, value: Any, default: object) -> Any:
    """The setting, if it is a number, a text or a list, like its default."""
    if isinstance(default, int):
        high = {"points": _MAX_POINTS, "seed": None}.get(name, _MAX_MULTIPLE * default)
        return checks.integer(name, value, 0 if name == "seed" else 1, high)
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {checks.one_line(value)}")
    elif isinstance(default, float):
        return checks.interval(name, value)
    elif not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{name} must be a list, got {checks.one_line(value)}")
    return value


@dataclass
class Curves:
    """A table of curves: x, y, the curve's name and, if there are several panels, their columns.

    Attributes:
        x: name of the column of abscissas.
        y: name of the column of ordinates.
    """

    x: str
    y: str
    _parts: list[pd.DataFrame] = field(default_factory=list)

    def add(self, name: str, x: Values, y: Values, **columns: Any) -> None:
        """Adds a curve. Points whose y is None or infinite are not drawn."""
        part = pd.DataFrame({**columns, "curve": name, self.x: x, self.y: np.asarray(y, float)})
        self._parts.append(part)

    @property
    def table(self) -> pd.DataFrame:
        """All curves."""
        return pd.concat(self._parts, ignore_index=True)


def figure(width: float = 8.4, height: float = 4.6) -> Figure:
    """An empty figure in the project's style."""
    return Figure(figsize=(width, height), layout="constrained")


def style() -> Any:
    """Context manager with the project's style, for the creation of axes."""
    return sns.plotting_context("notebook", font_scale=1.1)


def plot(
    axes: Axes,
    table: pd.DataFrame,
    x: str,
    y: str,
    points: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> None:
    """Draws every curve of a `Curves` table in its own colour and dashes.

    The curves in `points` are drawn as points. `names` lists the curves in the order of their
    colours, if several panels share them.
    """
    order = list(dict.fromkeys(table["curve"])) if names is None else list(names)
    for name, rows in table.groupby("curve", sort=False):
        rank = order.index(str(name))
        look: dict[str, Any] = {"color": COLOURS[rank % 8], "label": name}
        if name in points:
            look |= {"ls": "", "marker": _MARKERS[rank % 4], "ms": 7}
        else:
            look |= {"ls": _DASHES[rank % 8], "lw": 2.2}
        finite = rows[np.isfinite(rows[y])]
        axes.plot(finite[x], finite[y], **look)
    tidy(axes)


def plot_means(axes: Axes, rows: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Draws means with bars of two standard errors, from the column "standard error"."""
    axes.errorbar(rows[x], rows[y], 2.0 * rows["standard error"], marker="o", capsize=3, **look)


def tidy(axes: Axes) -> None:
    """Draws a light grid behind the curves, and no frame."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """Puts the legend to the right of the axes; by default, it explains the artists of the axes."""
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
    points: Sequence[str] = (),
    **limits: tuple[float | None, float | None],
) -> Figure:
    """Draws all curves in one panel, with a legend; the curves in `points` are drawn as points."""
    with style():
        page = figure()
        axes = page.subplots()
        plot(axes, curves.table, curves.x, curves.y, points)
        axes.set(xlabel=x, ylabel=y, xscale=x_scale, yscale=y_scale, **limits)
        axes.set_title(title, fontsize="medium", loc="left")
        legend(axes)
    return page
