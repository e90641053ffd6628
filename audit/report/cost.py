"""The figure of `audit.bounds --plot`: the cost of each protocol by the number of runs."""

import math
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from audit.accounting import DeltaUnreachable, Mechanism
from audit.checks import reason_of
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.upper_bounds import costs_of
from audit.upper_bounds.adaptive import adaptive
from audit.upper_bounds.costs import cases_with

_STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (8, 2)), "-")
# Number of points of each curve, from 2 to 1000 expected runs.
_POINTS = 7
# The slow bound of adaptive tunings has every second point. With more runs it saves less, and a
# smaller saving is invisible.
_VISIBLE = 2e-3


def draw_cost(
    base: Mechanism,
    protocol: Protocol,
    delta: float,
    path: str,
    progress: Callable[[list[int]], Iterable[int]] = iter,
) -> None:
    """Draws the cost of a tuning against the expected number of runs, for each protocol."""
    check_writable(path)
    curves = _curves(base, delta, progress)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=1.05):
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        axes = figure.subplots()
        colours = sns.color_palette("colorblind", len(curves)).as_hex()
        # The most expensive first, so that the legend has the order of the curves' right ends.
        ranked = sorted(curves.items(), key=lambda item: -np.nan_to_num(item[1][-1][1]))
        for (title, values), colour, style in zip(ranked, colours, _STYLES, strict=False):
            axes.plot(
                *np.array(values).T, color=colour, linestyle=style, lw=2.2, marker=".", label=title
            )
        mean_runs = protocol.mean_runs
        if mean_runs is not None:
            axes.plot(
                [mean_runs], [_epsilon(base, protocol, delta, own=True)],
                "*", ms=17, color="black", zorder=5, label=f"yours: {protocol.spec}",
            )  # fmt: skip
        one_run = _or_nan(lambda: base.epsilon(delta))
        if not math.isnan(one_run):
            axes.axhline(one_run, color="grey", lw=1.2, label="one run alone")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel("expected number of runs")
        axes.set_ylabel(rf"$\varepsilon$ of the tuning at $\delta$ = {delta:g}, any score")
        figure.suptitle(base.description.split(";")[0], fontsize="medium")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise InvalidInput(
                f"plot must be a file that can be written, got {path!r}: {reason_of(error)}"
            ) from error


def _curves(
    base: Mechanism, delta: float, progress: Callable[[list[int]], Iterable[int]]
) -> dict[str, list[tuple[float, float]]]:
    """Expected numbers of runs and their cost, by the title of the protocol.

    Random search uses the region bound, which is fast and only slightly above the smallest bound.
    """
    runs = np.unique(np.rint(np.geomspace(2.0, 1000.0, _POINTS))).astype(int).tolist()
    curves: dict[str, list[tuple[float, float]]] = {}
    saves = True
    for mean in progress(runs):
        for case in cases_with(float(mean)):
            protocol = case.protocol
            if protocol.is_adaptive:
                if mean in runs[1::2]:
                    continue
                simple = adaptive(base, protocol, delta).epsilon
                epsilon = _epsilon(base, protocol, delta) if saves else simple
                saves = not epsilon > (1.0 - _VISIBLE) * simple
            else:
                epsilon = _epsilon(base, protocol, delta)
            curves.setdefault(case.title, []).append((float(mean), epsilon))
    return curves


def check_writable(path: str) -> None:
    """Raises InvalidInput early if a figure cannot be written."""
    formats = Figure().canvas.get_supported_filetypes()
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir() or file.suffix[1:].lower() not in formats:
        raise InvalidInput(
            "plot must be a file in an existing folder with one of the extensions "
            f"{', '.join('.' + name for name in formats)}, got {path!r}"
        )
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise InvalidInput(
            f"plot must be a file in a folder that can be written, got {path!r}: {reason_of(error)}"
        ) from error


def _epsilon(base: Mechanism, protocol: Protocol, delta: float, own: bool = False) -> float:
    costs = costs_of(base, protocol, delta)
    return _or_nan(lambda: (costs.smallest if own else costs.quick).epsilon)


def _or_nan(epsilon: Callable[[], float]) -> float:
    try:
        return epsilon()
    except DeltaUnreachable:
        return math.nan
