"""The pictures of an audit: bounds over the budget of one run, and what the scores tell."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.game import Trials
from audit.report import PAPER_PROTOCOL, UNCORRECTED, VALID, row_of_table, shown

# How a proxy is called, its colour in the palette and its mark.
_PROXIES = {
    "lambda_a": (r"$\lambda_a$", 0, "o"),
    "lambda_b": (r"$\lambda_b$", 1, "s"),
    "lambda_c": (r"$\lambda_c$", 5, "v"),
}
_BUDGET = r"budget of one run, $\varepsilon_B$"
_LEVELS = {
    "renyi": (r"$\varepsilon_U$ Renyi (any score)", ":"),
    "profile": (r"$\varepsilon_U$ profile (any score)", "-."),
    "tight": (r"$\varepsilon_U$ tight (any score)", "-"),
    "worst-order": ("worst order (attained)", "D"),
    "reduced-exact": (r"$\varepsilon_U$ reduced (monotone score)", "--"),
    "base": ("one run", "-"),
}


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Draws an audit in the manner of the paper's figures 1 to 4.

    Every budget eps_B is a group: eps_L by proxy with the range over the repeats, the valid bound
    filled and the paper's uncorrected one hollow, under the levels of the upper bounds.

    Args:
        summary: the summary of a report.
        path: the PNG to write.
    """
    config, results = summary["config"], summary["results"]
    threat, training_set, canary = row_of_table(config)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=1.15):
        figure = Figure(figsize=(5.4 + 1.7 * len(results), 6.0), layout="constrained")
        axes = figure.subplots()
        _draw_bounds(axes, summary)
        axes.set_xlabel(_BUDGET)
        axes.set_ylabel(_of_the_tuning(config))
        figure.suptitle(
            f"{threat}, X = {training_set}, z = {canary}, score {config['score']}\n"
            f"K ~ {config['repetitions']}, {config['trials']} trials x {config['repeats']}",
            fontsize="medium",
        )
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        save(figure, path)


def draw_grid(grid: Sequence[Sequence[tuple[str, Mapping[str, Any]]]], note: str) -> Figure:
    """Draws several audits in one picture: the paper's figures 1 to 4, one panel per audit.

    All panels share their axes, their marks (see `draw`) and one legend.

    Args:
        grid: rows of panels, each the panel's title and the summary of its report.
        note: what all panels have in common; the title of the picture.
    """
    wide = max(len(row) for row in grid)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook"):
        size = (4.0 + 2.9 * wide, 1.3 + 2.7 * len(grid))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(grid), wide, sharex=True, sharey=True, squeeze=False)
        legend: dict[str, Any] = {}
        for at, row in enumerate(grid):
            for place, axes in enumerate(panels[at]):
                if place >= len(row):
                    axes.set_axis_off()
                    continue
                title, summary = row[place]
                _draw_bounds(axes, summary, scale=0.75)
                axes.set_title(title, fontsize="medium")
                lowest = at + 1 == len(grid) or place >= len(grid[at + 1])
                axes.tick_params(labelbottom=lowest)
                handles, names = axes.get_legend_handles_labels()
                legend |= dict(zip(names, handles, strict=True))
        figure.suptitle(note, fontsize="medium")
        figure.supxlabel(_BUDGET, fontsize="medium")
        figure.supylabel(_of_the_tuning(grid[0][0][1]["config"]), fontsize="medium")
        figure.legend(
            legend.values(), legend, loc="outside right center", frameon=False, fontsize="small"
        )
    return figure


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Writes a picture, the same bytes for the same numbers."""
    figure.savefig(path, dpi=dpi, metadata={"Software": None})


def _of_the_tuning(config: Mapping[str, Any]) -> str:
    return rf"$\varepsilon$ of the tuning at $\delta$ = {config['delta']:g}"


def _draw_bounds(axes: Axes, summary: Mapping[str, Any], scale: float = 1.0) -> None:
    """The bounds of one audit: a group of marks under its levels for every budget eps_B."""
    results = summary["results"]
    colours = sns.color_palette("colorblind", 10).as_hex()
    _draw_upper(axes, results, colours, scale)
    _draw_lower(axes, summary, colours, scale)
    axes.set_xticks(range(len(results)), [f"{result['epsilon_base']:g}" for result in results])
    axes.set_xlim(-0.6, len(results) - 0.4)
    axes.set_ylim(bottom=0.0)
    axes.grid(False, axis="x")


def _draw_upper(
    axes: Axes, results: list[dict[str, Any]], colours: list[str], scale: float
) -> None:
    # Highest first, so that the legend reads in the order of the levels.
    picked = (colours[3], colours[4], colours[2], colours[7], colours[9], "black")
    for (name, (title, style)), colour in zip(_LEVELS.items(), picked, strict=True):
        levels = [
            (x, result["upper_bounds"][name]["epsilon"])
            for x, result in enumerate(results)
            if result["upper_bounds"].get(name, {}).get("epsilon") is not None
        ]
        if not levels:
            continue
        at, values = (list(axis) for axis in zip(*levels, strict=True))
        if style == "D":
            # It lies just under the tight bound: a mark at the end of the line, not a line on it.
            ends = [x + 0.42 for x in at]
            ms = 8 * scale
            axes.plot(ends, values, style, color=colour, ms=ms, label=title, clip_on=False)
        else:
            left, right = [x - 0.42 for x in at], [x + 0.42 for x in at]
            lw = 2.2 * scale
            axes.hlines(values, left, right, colors=colour, linestyles=style, lw=lw, label=title)


def _draw_lower(axes: Axes, summary: Mapping[str, Any], colours: list[str], scale: float) -> None:
    results = summary["results"]
    drawn = [(key, kind, proxy) for key, kind, proxies in shown(summary) for proxy in proxies]
    for place, (key, kind, proxy) in enumerate(drawn):
        offset = 0.72 * ((place + 0.5) / len(drawn) - 0.5)
        bounds = [result["lower_bounds"][proxy][key] for result in results]
        means = [bound["mean"] for bound in bounds]
        below = [bound["mean"] - bound["min"] for bound in bounds]
        above = [bound["max"] - bound["mean"] for bound in bounds]
        title, shade, marker = _PROXIES[proxy]
        colour = colours[shade]
        if kind not in (VALID, UNCORRECTED):
            marker = "^"
        axes.errorbar(
            [x + offset for x in range(len(results))],
            means,
            yerr=[below, above],
            fmt=marker,
            ms=9 * scale,
            mew=2 * scale,
            capsize=5 * scale,
            color=colour,
            mfc="white" if key == PAPER_PROTOCOL else colour,
            clip_on=False,  # a mark at 0 is whole
            label=rf"$\varepsilon_L$ from {title} ({kind})",
        )


def draw_scores(
    summary: Mapping[str, Any], games: Mapping[tuple[int, int], Trials], path: Path
) -> None:
    """Draws the scores of the released runs with and without the canary (figures 7 to 9).

    One panel per budget, all repeats together. The middle 99.8 % of the scores is shown.

    Args:
        summary: the summary of a report.
        games: the trials of every (budget, repeat).
        path: the PNG to write.
    """
    config, results = summary["config"], summary["results"]
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=1.15):
        figure = Figure(figsize=(1.5 + 4.0 * len(results), 4.2), layout="constrained")
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        colours = sns.color_palette("colorblind", 2).as_hex()
        for budget, axes in enumerate(panels):
            trials = [game for (at, _), game in games.items() if at == budget]
            bit = np.concatenate([game.bit for game in trials])
            score = np.concatenate([game.score for game in trials])
            shown_scores = score[np.isfinite(score)]
            if len(shown_scores) == 0:
                continue
            low, high = np.quantile(shown_scores, [0.001, 0.999])
            edges = np.linspace(low, max(high, low + 1e-9), 41)
            for side, title, colour, style in (
                (False, "without the canary", colours[0], "-"),
                (True, "with the canary", colours[1], "--"),
            ):
                inside = score[(bit == side) & np.isfinite(score)]
                share = np.histogram(inside, edges)[0] / max(len(inside), 1)
                axes.stairs(share, edges, color=colour, linestyle=style, lw=2.2, label=title)
            axes.set_title(rf"$\varepsilon_B$ = {results[budget]['epsilon_base']:g}")
            axes.set_xlabel(f"score ({config['score']})")
            axes.tick_params(axis="x", rotation=30)
        panels[0].set_ylabel("share of the trials")
        handles, titles = panels[0].get_legend_handles_labels()
        figure.legend(handles, titles, loc="outside upper center", ncols=2, frameon=False)
        save(figure, path)
