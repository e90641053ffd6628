"""The figures of an audit: bounds by the budget of one run, and the scores."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import optimize

from audit.claims import Kind
from audit.files import written_completely
from audit.game.play import Trials
from audit.game.settings import AuditConfig
from audit.numerics import FloatArray, format_rounded
from audit.protocols import Protocol, RandomSearch
from audit.report.results import (
    ALL_RUNS,
    PAPER_PROTOCOL,
    UNCORRECTED,
    VALID,
    BudgetResult,
    Report,
    row_of_table,
    way_of_tuning,
)
from audit.upper_bounds.registry import entries

# Title, colour in the palette and marker of each proxy.
_PROXIES = {
    "lambda_a": (r"$\lambda_a$", 0, "o"),
    "lambda_b": (r"$\lambda_b$", 1, "s"),
    "lambda_c": (r"$\lambda_c$", 5, "v"),
}
_BUDGET = r"$\varepsilon$ of one run (in brackets: $\varepsilon_B$ of the papers)"
_STYLES_OF_ANY_SCORE = (":", "-.", "-")
_COLOURS_OF_ANY_SCORE = (3, 4, 2, 8)
_ONE_RUN = "one run"
# Inches between two labels.
_LINE_OF_TEXT = 0.24
# Width of a histogram whose scores are all equal.
_MIN_WIDTH = 1e-9


@dataclass(frozen=True)
class Level:
    """How an upper bound is drawn: name, title, colour (palette index or name) and line style."""

    name: str
    title: str
    colour: int | str
    style: str


def levels(protocol: type[Protocol] = RandomSearch) -> list[Level]:
    """The upper bounds that figures show, which have a title, in the order of the legend."""
    drawn, of_any_score = [], 0
    for entry in entries(protocol):
        if not entry.title:
            continue
        if entry.claim.kind is Kind.ATTAINED:
            # It is just below the tight bound, so it is drawn as a marker instead of a line.
            drawn.append(Level(entry.name, entry.title, 7, "D"))
        elif entry.claim.any_score:
            at = of_any_score
            colour = _COLOURS_OF_ANY_SCORE[at % len(_COLOURS_OF_ANY_SCORE)]
            style = _STYLES_OF_ANY_SCORE[min(at, len(_STYLES_OF_ANY_SCORE) - 1)]
            drawn.append(Level(entry.name, entry.title, colour, style))
            of_any_score += 1
        else:
            drawn.append(Level(entry.name, entry.title, 9, "--"))
    return [*drawn, Level("base", _ONE_RUN, "black", "-")]


def draw(report: Report, path: Path) -> None:
    """Draws an audit like the paper's figures 1 to 4.

    Each budget eps_B is a group. Filled markers are valid lower bounds from all trials, hollow
    markers are the paper's uncorrected estimates, and lines are upper bounds. A thin bar next to a
    marker shows the smallest, the mean and the largest bound of a single repeat. The labels are
    next to the last group.
    """
    config, results = report.config, report.results
    threat, training_set, canary = row_of_table(config)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=1.15):
        width = max(4.1 + 1.25 * len(results), 6.8)  # the title needs this much
        figure = Figure(figsize=(width, 6.4), layout="constrained")
        axes = figure.subplots()
        labels = _draw_bounds(axes, report)
        axes.set_xlabel(_BUDGET)
        axes.set_ylabel(_epsilon_label(config))
        figure.suptitle(
            f"{threat}, training set {training_set}, canary {canary}, score {config.score}\n"
            f"{way_of_tuning(config)}, {config.trials:,} trials x {config.repeats}",
            fontsize="medium",
        )
        figure.supxlabel(_caption([report], lines=3), fontsize="small", color="0.25")
        _label_directly(axes, labels, 6.4 * 0.66)
        save(figure, path)


def _caption(reports: Sequence[Report], lines: int) -> str:
    """Explanation of the markers, in the given number of lines."""
    confidence = f"{100 * reports[0].config.confidence:g} %"
    sentences = [
        f"Ringed marker: the bound to report, {confidence} confidence. Other filled markers: "
        f"{confidence} each, not jointly.",
        "Hollow markers: not bounds.",
    ]
    if any(report.config.repeats > 1 for report in reports):
        sentences.append("Thin bars: the same from single repeats (smallest, mean, largest).")
    text = " ".join(sentences)
    return "\n".join(textwrap.wrap(text, math.ceil(len(text) / lines) + 8))


def draw_grid(grid: Sequence[Sequence[tuple[str, Report]]], note: str) -> Figure:
    """Draws several audits in one figure: the paper's figures 1 to 4, one panel per audit.

    All panels share the axes, the markers (see `draw`) and one legend. `grid` has rows of panels,
    each with its title and its report, and `note` is the title of the figure.
    """
    wide = max(len(row) for row in grid)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook"):
        size = (4.0 + 2.9 * wide, 1.7 + 2.7 * len(grid))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(grid), wide, sharex=True, sharey=True, squeeze=False)
        legend: dict[str, Any] = {}
        for at, row in enumerate(grid):
            for place, axes in enumerate(panels[at]):
                if place >= len(row):
                    axes.set_axis_off()
                    continue
                title, report = row[place]
                _draw_bounds(axes, report, scale=0.75)
                axes.set_title(title, fontsize="medium")
                lowest = at + 1 == len(grid) or place >= len(grid[at + 1])
                axes.tick_params(labelbottom=lowest)
                handles, names = axes.get_legend_handles_labels()
                legend |= dict(zip(names, handles, strict=True))
        # The shared axis covers the largest value of all panels, not only of the first.
        panels[0, 0].autoscale(axis="y")
        panels[0, 0].set_ylim(bottom=0.0)
        figure.suptitle(note, fontsize="medium")
        caption = _caption([report for row in grid for _, report in row], lines=5 - min(wide, 3))
        figure.supxlabel(f"{_BUDGET}\n{caption}", fontsize="small")
        figure.supylabel(_epsilon_label(grid[0][0][1].config), fontsize="medium")
        figure.legend(
            legend.values(), legend, loc="outside right center", frameon=False, fontsize="small"
        )
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure completely or not at all; the same numbers give the same bytes."""
    with written_completely(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:], metadata={"Software": None})


def _epsilon_label(config: AuditConfig) -> str:
    return rf"$\varepsilon$ of the tuning at $\delta$ = {config.delta:g}"


@dataclass(frozen=True)
class _Label:
    """A label next to the last group, and the point that it describes."""

    words: str
    x: float
    y: float
    colour: Any
    bold: bool = False


def _budget(result: BudgetResult) -> str:
    """The exact epsilon of one run, and the papers' value in brackets."""
    exact = result.upper_bounds.get("base")
    papers = f"{result.epsilon_base:g}"
    if exact is None or exact.epsilon is None:
        return f"({papers})"
    return f"{format_rounded(exact.epsilon, up=True, digits=3)} ({papers})"


def _draw_bounds(axes: Axes, report: Report, scale: float = 1.0) -> list[_Label]:
    """Draws a group of markers and lines for every budget eps_B; labels are for the last group."""
    results = report.results
    colours = sns.color_palette("colorblind", 10).as_hex()
    labels = [
        *_draw_upper(axes, report, colours, scale),
        *_draw_lower(axes, report, colours, scale),
    ]
    axes.set_xticks(range(len(results)), [_budget(result) for result in results])
    axes.set_xlim(-0.6, len(results) - 0.4)
    axes.set_ylim(bottom=0.0)
    axes.grid(False, axis="x")
    return labels


def _draw_upper(axes: Axes, report: Report, colours: list[str], scale: float) -> Iterator[_Label]:
    results = report.results
    for level in levels(type(report.config.parsed_protocol)):
        bounds = [(x, result.upper_bounds.get(level.name)) for x, result in enumerate(results)]
        points = [(x, bound.epsilon) for x, bound in bounds if bound and bound.epsilon is not None]
        if not points:
            continue
        at, values = (list(axis) for axis in zip(*points, strict=True))
        colour = colours[level.colour] if isinstance(level.colour, int) else level.colour
        if level.style == "D":
            ends, ms = [x + 0.42 for x in at], 8 * scale
            axes.plot(ends, values, "D", color=colour, ms=ms, label=level.title, clip_on=False)
        else:
            left, right = [x - 0.42 for x in at], [x + 0.42 for x in at]
            look = {"colors": colour, "linestyles": level.style, "lw": 2.2 * scale}
            axes.hlines(values, left, right, label=level.title, **look)
        yield _Label(level.title, at[-1] + 0.42, values[-1], colour)


def _draw_lower(axes: Axes, report: Report, colours: list[str], scale: float) -> Iterator[_Label]:
    results = report.results
    drawn = [(key, kind, proxy) for key, kind, proxies in report.highlights for proxy in proxies]
    slot = 0.76 / len(drawn)
    for place, (key, kind, proxy) in enumerate(drawn):
        at = [x + slot * (place + 0.35) - 0.38 for x in range(len(results))]
        bounds = [result.lower_bounds[proxy][key] for result in results]
        title, shade, marker = _PROXIES[proxy]
        is_reported = (proxy, key) == (report.recommended.proxy, report.recommended.key)
        if kind == ALL_RUNS:
            marker = "P"
        elif kind not in (VALID, UNCORRECTED):
            marker = "^"
        colour = colours[shade]
        words = rf"$\varepsilon_L$ from {title} ({'to report' if is_reported else kind})"
        axes.plot(
            at,
            [bound.epsilon for bound in bounds],
            marker,
            ms=(9.5 if is_reported else 7.5) * scale,
            mew=2 * scale,
            mec="black" if is_reported else colour,
            mfc="white" if key == PAPER_PROTOCOL else colour,
            clip_on=False,  # Shows a marker at 0 completely.
            zorder=4 if is_reported else 3,
            label=words,
        )
        if len(bounds[0].repeats) > 1:
            # A repeat has fewer trials than all together, so the bar may lie below the marker.
            means = [bound.mean for bound in bounds]
            axes.errorbar(
                [x + 0.45 * slot for x in at],
                means,
                yerr=[
                    [mean - bound.min for mean, bound in zip(means, bounds, strict=True)],
                    [bound.max - mean for mean, bound in zip(means, bounds, strict=True)],
                ],
                fmt="_",
                ms=6 * scale,
                mew=1.6 * scale,
                lw=1.2 * scale,
                capsize=2 * scale,
                color=colour,
                alpha=0.75,
            )
        yield _Label(words, at[-1], bounds[-1].epsilon, colour, is_reported)


def _label_directly(axes: Axes, labels: Sequence[_Label], inches: float) -> None:
    """Writes labels in a column on the right, each with a line to its point; fixes the limits."""
    high, end = axes.get_ylim()[1], axes.get_xlim()[1]
    axes.set_ylim(0.0, high)
    labels = sorted(labels, key=lambda label: label.y)
    places = _spread([label.y for label in labels], _LINE_OF_TEXT / inches * high, high)
    for label, place in zip(labels, places, strict=True):
        axes.annotate(
            label.words,
            xy=(label.x, label.y),
            xytext=(end + 0.06, place),
            textcoords="data",
            va="center",
            fontsize="small",
            fontweight="bold" if label.bold else "normal",
            color="0.1",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": label.colour,
                "lw": 0.8,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
                "shrinkB": 4,
            },
        )


def _spread(values: Sequence[float], gap: float, high: float) -> FloatArray:
    """The positions closest to ascending values that are a gap apart, in [0, high] if possible."""
    steps = gap * np.arange(len(values))
    nearest = optimize.isotonic_regression(np.asarray(values) - steps).x
    return np.clip(nearest, 0.0, max(high - gap * (len(values) - 1), 0.0)) + steps


def draw_scores(report: Report, trials: Mapping[tuple[int, int], Trials], path: Path) -> None:
    """Draws the scores of the released runs with and without the canary (figures 7 to 9).

    Each budget has a panel, with the middle 99.8 % of the scores of all repeats. `trials` has the
    trials of every (budget, repeat).
    """
    config, results = report.config, report.results
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=1.15):
        figure = Figure(figsize=(1.5 + 4.0 * len(results), 4.2), layout="constrained")
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        colours = sns.color_palette("colorblind", 2).as_hex()
        for budget, axes in enumerate(panels):
            repeats = [repeat for (at, _), repeat in trials.items() if at == budget]
            bit = np.concatenate([repeat.bit for repeat in repeats])
            score = np.concatenate([repeat.score for repeat in repeats])
            finite = score[np.isfinite(score)]
            if len(finite) == 0:
                continue
            low, high = np.quantile(finite, [0.001, 0.999])
            edges = np.linspace(low, max(high, low + _MIN_WIDTH), 41)
            for side, title, colour, style in (
                (False, "without the canary", colours[0], "-"),
                (True, "with the canary", colours[1], "--"),
            ):
                inside = score[(bit == side) & np.isfinite(score)]
                share = np.histogram(inside, edges)[0] / max(len(inside), 1)
                axes.stairs(share, edges, color=colour, linestyle=style, lw=2.2, label=title)
            axes.set_title(f"one run: {_budget(results[budget])}")
            axes.set_xlabel(f"score ({config.score})")
            axes.tick_params(axis="x", rotation=30)
        panels[0].set_ylabel("share of the trials")
        handles, titles = panels[0].get_legend_handles_labels()
        figure.legend(handles, titles, loc="outside upper center", ncols=2, frameon=False)
        save(figure, path)
