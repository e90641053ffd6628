"""Figures of protocols, and their data: `python docs/pictures.py` takes a few minutes.

Writes overview.png and overview.csv (sampled batches, for the first page), which_protocol-*.png and
which_protocol.csv (full batches) next to this file, and prints the table of the page "Which
protocol?".
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit import upper_bounds
from audit.accounting import DpSgd, Mechanism
from audit.protocols import Grid, Protocol, RandomSearch, UntilAccepted
from audit.repetitions import Binomial, Fixed, Poisson, TruncatedNegativeBinomial

BASE = DpSgd(noise_multiplier=70.0, steps=300)
BASE_OF_OVERVIEW = DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
DELTA = 1e-5
RUNS = (2, 5, 10, 20, 50, 100, 200, 500)

# Inches. A phone shows a figure of this width with letters of ten pixels.
_SIZE_OF_OVERVIEW = (6.2, 3.6)
_SIZE_OF_PANELS = (6.2, 8.2)


def _quantile(protocol: Protocol) -> float:
    """Expected quantile of the best candidate, in closed form; all are drawn from one prior."""
    if isinstance(protocol, RandomSearch):
        return protocol.repetitions.expected_quantile()
    if isinstance(protocol, Grid):
        if protocol.inclusion == 1.0:
            return Fixed(protocol.candidates).expected_quantile()
        return Binomial(protocol.candidates, protocol.inclusion).expected_quantile()
    assert isinstance(protocol, UntilAccepted)
    return 1.0 - protocol.acceptance / 2.0  # uniform among the accepted


# Titles, and functions from the expected number of runs to the protocol.
PROTOCOLS: dict[str, Callable[[int], Protocol]] = {
    "grid, every point once": lambda m: Grid(m),
    "grid, every point with probability 1/2": lambda m: Grid(2 * m, 0.5),
    "random, fixed K": lambda m: RandomSearch(Fixed(m)),
    "random, Poisson K": lambda m: RandomSearch(Poisson(float(m))),
    "random, geometric K": lambda m: RandomSearch(TruncatedNegativeBinomial(1.0, 0.5).with_mean(m)),
    "random, logarithmic K": lambda m: RandomSearch(
        TruncatedNegativeBinomial(0.0, 0.5).with_mean(m)
    ),
    "until one is accepted": lambda m: UntilAccepted(1.0 / m),
}


@dataclass(frozen=True)
class Point:
    """One protocol at one number of runs.

    Attributes:
        title: the protocol in words.
        spec: the protocol as text.
        runs: expected number of runs.
        epsilon: cost of the tuning, for any score.
        quantile: expected quantile of the best candidate found.
    """

    title: str
    spec: str
    runs: int
    epsilon: float
    quantile: float


def points(
    base: Mechanism, delta: float, runs: Sequence[int], titles: Sequence[str] | None = None
) -> list[Point]:
    """Cost and expected quantile of the protocols, of all without `titles`, for every number."""
    found = []
    for title in PROTOCOLS if titles is None else titles:
        for mean in runs:
            protocol = PROTOCOLS[title](mean)
            epsilon = upper_bounds.tuning_cost(base, protocol, delta).epsilon
            assert epsilon is not None
            found.append(Point(title, protocol.spec, mean, epsilon, _quantile(protocol)))
    return found


RUNS_OF_OVERVIEW = (2, 5, 10, 20, 50, 100)
# Protocols of the overview: label, title in `PROTOCOLS`, and colour of the palette.
_OVERVIEW = (
    ("a grid or a fixed number", "grid, every point once", 0),
    ("Poisson number", "random, Poisson K", 1),
    ("geometric number", "random, geometric K", 2),
    ("logarithmic number", "random, logarithmic K", 4),
)


def draw_overview(costs: list[Point], one_run: float, folder: Path) -> None:
    """Draws the cost of four protocols with direct labels, for the first page."""
    with sns.axes_style("ticks"), sns.plotting_context("notebook"):
        figure = Figure(figsize=_SIZE_OF_OVERVIEW, layout="constrained")
        axes = figure.subplots()
        colours = sns.color_palette("colorblind")
        offsets = {"logarithmic number": -7, "geometric number": 5, "Poisson number": -8}
        for label, title, colour in _OVERVIEW:
            curve = [point for point in costs if point.title == title]
            axes.plot([p.runs for p in curve], [p.epsilon for p in curve], lw=3, c=colours[colour])
            last = curve[-1]
            axes.annotate(
                label, (last.runs, last.epsilon), (8, offsets.get(label, 6)),
                textcoords="offset points", va="center", color=colours[colour], weight="bold",
            )  # fmt: skip
        runs = sorted({point.runs for point in costs})
        axes.axhline(one_run, color="grey", lw=1.5, ls=(0, (4, 3)))
        axes.annotate(
            "one run", (runs[-1], one_run), (8, -4), textcoords="offset points", va="center",
            color="dimgrey",
        )  # fmt: skip
        axes.set(xscale="log", xlabel="expected number of runs", ylabel="ε of the tuning")
        axes.set(xlim=(runs[0], runs[-1]), ylim=(0, None))
        axes.set_xticks(runs, [str(number) for number in runs])
        axes.xaxis.minorticks_off()
        sns.despine(fig=figure)
        figure.savefig(folder / "overview.png", dpi=200)


def draw(found: list[Point], one_run: float, folder: Path) -> None:
    """Draws cost over runs, quantile over runs, and quantile over cost, one file each.

    Each panel shows one protocol in colour and all others in grey.
    """
    for name, x, y in (
        ("cost", "runs", "epsilon"),
        ("quantile", "runs", "quantile"),
        ("worth", "epsilon", "quantile"),
    ):
        with sns.axes_style("ticks"), sns.plotting_context("notebook"):
            figure = Figure(figsize=_SIZE_OF_PANELS, layout="constrained")
            panels = figure.subplots(4, 2, sharex=True, sharey=True).ravel()
            palette = sns.color_palette("colorblind")
            colours = [palette[index] for index in (0, 1, 2, 3, 4, 5, 9)]
            for axes, title, colour in zip(panels, PROTOCOLS, colours, strict=False):
                for other in PROTOCOLS:
                    if other != title:
                        _draw_line(axes, found, other, x, y, color="0.85", lw=1.2)
                if x == "epsilon":
                    axes.axvline(one_run, color="grey", lw=1.2, ls=(0, (4, 3)))
                if y == "epsilon":
                    axes.axhline(one_run, color="grey", lw=1.2, ls=(0, (4, 3)))
                _draw_line(axes, found, title, x, y, color=colour, lw=3)
                axes.set_title(title.replace(" with", "\nwith"), fontsize="medium")
                _set_axes(axes, x, y)
            for empty in panels[len(PROTOCOLS) :]:
                empty.set_visible(False)
            panels[len(PROTOCOLS) - 2].tick_params(labelbottom=True)
            figure.supxlabel(_LABELS[x])
            figure.supylabel(_LABELS[y])
            sns.despine(fig=figure)
            figure.savefig(folder / f"which_protocol-{name}.png", dpi=150)


_LABELS = {
    "runs": "expected number of runs",
    "epsilon": "ε of the tuning, any score",
    "quantile": "expected quantile of the best candidate",
}


def _draw_line(
    axes: Axes, found: list[Point], title: str, x: str, y: str, *, color: Any, lw: float
) -> None:
    curve = [one for one in found if one.title == title]
    # The axis of quantiles is logarithmic in 1 - quantile.
    heights = [1.0 - p.quantile if y == "quantile" else p.epsilon for p in curve]
    axes.plot([getattr(p, x) for p in curve], heights, color=color, lw=lw)


def _set_axes(axes: Axes, x: str, y: str) -> None:
    ticks = [1, 2, 4, 8] if x == "epsilon" else [2, 10, 50, 500]
    axes.set(xscale="log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.minorticks_off()
    if y == "quantile":
        axes.set(yscale="log", ylim=(0.6, 0.001))
        shares = [0.3, 0.1, 0.03, 0.01, 0.003]
        axes.set_yticks(shares, [f"{1 - share:g}" for share in shares])
        axes.yaxis.minorticks_off()
    else:
        axes.set_ylim(0, 9)


def write_data(found: list[Point], path: Path) -> None:
    """Writes the points of all figures as csv."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["protocol", "specification", "expected_runs", "epsilon", "quantile"])
        for p in found:
            writer.writerow([p.title, p.spec, p.runs, f"{p.epsilon:.4f}", f"{p.quantile:.5f}"])


def table(found: list[Point]) -> str:
    """The costs as a Markdown table, one row per protocol."""
    runs = sorted({one.runs for one in found})
    lines = [
        "| expected runs | " + " | ".join(map(str, runs)) + " |",
        "|---" * (len(runs) + 1) + "|",
    ]
    for title in PROTOCOLS:
        cells = [f"{p.epsilon:.2f} ({p.quantile:.3f})" for p in found if p.title == title]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    everything = points(BASE, DELTA, RUNS)
    here = Path(__file__).parent
    overview = points(
        BASE_OF_OVERVIEW, DELTA, RUNS_OF_OVERVIEW, [title for _, title, _ in _OVERVIEW]
    )
    draw_overview(overview, BASE_OF_OVERVIEW.epsilon(DELTA), here)
    write_data(overview, here / "overview.csv")
    draw(everything, BASE.epsilon(DELTA), here)
    write_data(everything, here / "which_protocol.csv")
    print(table([one for one in everything if one.runs in (2, 10, 50, 500)]))
