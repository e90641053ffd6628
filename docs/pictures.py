"""The pictures and the table of "Which protocol?": `python docs/pictures.py`, two minutes.

Writes which_protocol.png beside this file and prints the table for the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from audit import upper_bounds
from audit.accounting import DpSgd, Mechanism
from audit.protocols import Grid, Protocol, RandomSearch, UntilAccepted
from audit.repetitions import Binomial, Fixed, Poisson, TruncatedNegativeBinomial

BASE = DpSgd(noise_multiplier=70.0, steps=300)
DELTA = 1e-5
RUNS = (2, 5, 10, 20, 50, 100, 200, 500)


def _quantile(protocol: Protocol) -> float:
    """Expected quantile of the best candidate, all drawn from one prior; in closed form."""
    if isinstance(protocol, RandomSearch):
        return protocol.repetitions.expected_quantile()
    if isinstance(protocol, Grid):
        chance, most = protocol.inclusion, protocol.candidates
        law = Fixed(most) if chance == 1.0 else Binomial(most, chance)
        return law.expected_quantile()
    assert isinstance(protocol, UntilAccepted)
    return 1.0 - protocol.acceptance / 2.0  # uniform among the accepted


# In words, and the protocol with so many expected runs.
PROTOCOLS: dict[str, Callable[[int], Protocol]] = {
    "grid, every point once": lambda m: Grid(m),
    "grid, every point with chance 1/2": lambda m: Grid(2 * m, 0.5),
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
        epsilon: cost of the whole, for any score.
        quantile: expected quantile of the best candidate found.
    """

    title: str
    spec: str
    runs: int
    epsilon: float
    quantile: float


def points(base: Mechanism, delta: float, runs: Sequence[int]) -> list[Point]:
    """Cost and expected quantile of every protocol at every number of runs."""
    found = []
    for title, make in PROTOCOLS.items():
        for mean in runs:
            protocol = make(mean)
            epsilon = upper_bounds.cost(base, protocol, delta).epsilon
            assert epsilon is not None
            found.append(Point(title, protocol.spec, mean, epsilon, _quantile(protocol)))
    return found


def draw(found: list[Point], one_run: float, path: Path) -> None:
    """Cost over runs, quantile over runs, and quantile over cost."""
    colours = dict(zip(PROTOCOLS, sns.color_palette("colorblind", len(PROTOCOLS)), strict=True))
    styles = dict(
        zip(PROTOCOLS, ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-", "-"), strict=True)
    )
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook"):
        figure = Figure(figsize=(13.5, 5.0), layout="constrained")
        panels = figure.subplots(1, 3)
        for title in PROTOCOLS:
            here = [one for one in found if one.title == title]
            runs, costs, quantiles = np.array([(p.runs, p.epsilon, p.quantile) for p in here]).T
            for axes, x, y in zip(
                panels, (runs, runs, costs), (costs, 1 - quantiles, 1 - quantiles), strict=True
            ):
                axes.plot(
                    x, y, color=colours[title], ls=styles[title], lw=2.4, marker="o", ms=4,
                    label=title,
                )  # fmt: skip
        for axes in panels:
            axes.set_xscale("log")
        for axes in panels[1:]:
            axes.set_yscale("log")
            axes.invert_yaxis()
            ticks = [0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
            axes.set_yticks(ticks, [f"{1 - tick:g}" for tick in ticks])
            axes.set_ylabel("expected quantile of the best")
        panels[0].set(xlabel="expected runs", ylabel="ε of the whole, any score", ylim=(0, 10))
        panels[1].set(xlabel="expected runs")
        panels[2].set(xlabel="ε of the whole", xticks=[1, 2, 4, 8], xticklabels=[1, 2, 4, 8])
        panels[2].xaxis.minorticks_off()
        panels[0].axhline(one_run, color="grey", lw=1.2)
        panels[2].axvline(one_run, color="grey", lw=1.2)
        panels[0].annotate(
            "one run", (2, one_run), (0, -12), textcoords="offset points", color=".4"
        )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=110)


def table(found: list[Point]) -> str:
    """The costs as Markdown, a row per protocol."""
    runs = sorted({one.runs for one in found})
    lines = [
        f"| {len(runs)} numbers of expected runs | " + " | ".join(map(str, runs)) + " |",
        "|---" * (len(runs) + 1) + "|",
    ]
    for title in PROTOCOLS:
        cells = [f"{p.epsilon:.2f} ({p.quantile:.3f})" for p in found if p.title == title]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    everything = points(BASE, DELTA, RUNS)
    draw(everything, BASE.epsilon(DELTA), Path(__file__).with_name("which_protocol.png"))
    print(table([one for one in everything if one.runs in (2, 10, 50, 500)]))
