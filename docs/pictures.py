"""Figures and table of the page "Which protocol?": `python docs/pictures.py` takes two minutes.

Writes which_protocol-*.png next to this file and prints the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit import upper_bounds
from audit.accounting import DpSgd, Mechanism
from audit.protocols import Grid, Protocol, RandomSearch, UntilAccepted
from audit.repetitions import Binomial, Fixed, Poisson, TruncatedNegativeBinomial

BASE = DpSgd(noise_multiplier=70.0, steps=300)
DELTA = 1e-5
RUNS = (2, 5, 10, 20, 50, 100, 200, 500)


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


def points(base: Mechanism, delta: float, runs: Sequence[int]) -> list[Point]:
    """Cost and expected quantile of every protocol for every number of runs."""
    found = []
    for title, make in PROTOCOLS.items():
        for mean in runs:
            protocol = make(mean)
            epsilon = upper_bounds.tuning_cost(base, protocol, delta).epsilon
            assert epsilon is not None
            found.append(Point(title, protocol.spec, mean, epsilon, _quantile(protocol)))
    return found


def draw(found: list[Point], one_run: float, folder: Path) -> None:
    """Draws cost over runs, quantile over runs, and quantile over cost, one file each."""
    for name, x, y in (
        ("cost", "runs", "epsilon"),
        ("quantile", "runs", "quantile"),
        ("worth", "epsilon", "quantile"),
    ):
        with sns.axes_style("whitegrid"), sns.plotting_context("notebook"):
            figure = Figure(figsize=(8.6, 4.0), layout="constrained")
            axes = figure.subplots()
            _draw_lines(axes, found, x, y)
            if x == "epsilon":
                axes.axvline(one_run, color="grey", lw=1.2)
            if y == "epsilon":
                axes.axhline(one_run, color="grey", lw=1.2)
                axes.annotate("one run", (2, one_run), (0, -13), textcoords="offset points")
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
            figure.savefig(folder / f"which_protocol-{name}.png", dpi=110)


_LABELS = {
    "runs": "expected runs",
    "epsilon": "ε of the tuning, any score",
    "quantile": "expected quantile of the best",
}


def _draw_lines(axes: Axes, found: list[Point], x: str, y: str) -> None:
    colours = sns.color_palette("colorblind", 7)
    dashes = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-", "-")
    for title, colour, style in zip(PROTOCOLS, colours, dashes, strict=False):
        curve = [one for one in found if one.title == title]
        # The axis of quantiles is logarithmic in 1 - quantile.
        heights = [1.0 - getattr(p, y) if y == "quantile" else getattr(p, y) for p in curve]
        line = {"color": colour, "ls": style, "lw": 2.4, "marker": "o", "ms": 4}
        axes.plot([getattr(p, x) for p in curve], heights, label=title, **line)
    axes.set(xscale="log", xlabel=_LABELS[x], ylabel=_LABELS[y])
    if x == "epsilon":
        axes.set_xticks([1, 2, 4, 8], [1, 2, 4, 8])
        axes.xaxis.minorticks_off()
    if y == "quantile":
        axes.set_yscale("log")
        axes.invert_yaxis()
        ticks = [0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
        axes.set_yticks(ticks, [f"{1 - tick:g}" for tick in ticks])
    else:
        axes.set_ylim(0, 10)


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
    draw(everything, BASE.epsilon(DELTA), Path(__file__).parent)
    print(table([one for one in everything if one.runs in (2, 10, 50, 500)]))
