"""Xiang, Wang & Wang 2024: the bound of table 3, table 4, figure 6, example 1."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import optimize

from audit import checks, console
from audit.accounting import (
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    calibrate_mu,
    gdp_limit_mu,
    mean_inclusion_mu,
)
from audit.lower_bounds import all_estimators
from audit.lower_bounds.scores import Scores
from audit.orders import IncreasingOrder
from audit.repetitions import Repetitions, TruncatedNegativeBinomial, TwoPoint
from audit.upper_bounds import UpperBound, reduced_exact, region
from audit.upper_bounds.published import reduced_renyi, renyi
from studies.papers.distributions import Bound
from studies.papers.result import (
    COLOURS,
    Comparison,
    Curves,
    Result,
    draw,
    figure,
    legend,
    plot,
    style,
    tidy,
)

_DELTA = 1e-5
# Tolerance of log noise, far below the digits that the tables print.
_NOISE_TOLERANCE = 1e-7
_MAX_TRIALS = 10**8  # 16 bytes each
_TABLE_3 = {1.0: 1.86, 2.0: 3.59, 4.0: 6.79}
_EXAMPLE_1 = ((8.66e-3, 2.60e-4, 9.91e-1), (2.66e-3, 1.34e-5, 9.97e-1))
# (s, L) by column; rows (eps_B, tau): eps_U-G, then eps_U-O.
_TABLE_4_DISTRIBUTIONS = ((0.1, 10), (0.01, 10), (0.01, 100), (0.001, 100), (0.001, 1000))
_TABLE_4 = {
    (1.0, 1.0): ((1.13, 1.29, 2.58, 3.34, 5.42), (1.12, 1.28, 2.57, 3.33, 5.40)),
    (1.0, 0.5): ((1.13, 1.30, 2.59, 3.36, 5.43), (1.12, 1.28, 2.57, 3.33, 5.40)),
    (1.0, 0.1): ((1.13, 1.30, 2.59, 3.36, 5.44), (1.08, 1.24, 2.49, 3.23, 5.25)),
    (2.0, 1.0): ((2.23, 2.39, 4.28, 5.56, 8.27), (2.21, 2.38, 4.25, 5.53, 8.23)),
    (2.0, 0.5): ((2.25, 2.41, 4.30, 5.59, 8.31), (2.21, 2.38, 4.25, 5.53, 8.23)),
    (2.0, 0.1): ((2.40, 2.56, 4.48, 5.83, 8.57), (2.19, 2.36, 4.23, 5.50, 8.20)),
    (4.0, 1.0): ((4.51, 4.52, 5.93, 7.85, 10.22), (4.43, 4.44, 5.90, 7.80, 10.20)),
    (4.0, 0.5): ((4.51, 4.52, 5.93, 7.85, 10.22), (4.35, 4.37, 5.88, 7.76, 10.18)),
    (4.0, 0.1): ((4.96, 4.98, 6.15, 8.05, 10.27), (4.15, 4.16, 5.79, 7.63, 10.12)),
}


def calibrated(epsilon: float, sampling_rate: float, steps: int, delta: float) -> DpSgd:
    """DP-SGD with the smallest (epsilon, delta)-DP noise for one run, by Renyi divergences."""

    def log_excess(log_noise: float) -> float:
        base = DpSgd(math.exp(log_noise), steps, sampling_rate)
        return math.log(base.renyi_epsilon(delta) / epsilon)

    largest = math.log(math.sqrt(steps) / calibrate_mu(epsilon, delta)) + 0.1
    smallest = max(largest + math.log(sampling_rate) - 2.0, math.log(0.06))
    noise = math.exp(optimize.brentq(log_excess, smallest, largest, xtol=_NOISE_TOLERANCE))
    return DpSgd(noise, steps, sampling_rate)


def epsilon_g(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """eps_U-G: algorithm 3 with the mu of Gaussian DP's central limit; an approximation."""
    assert isinstance(base, DpSgd)
    mu = gdp_limit_mu(base.noise_multiplier, base.steps, base.sampling_rate)
    return reduced_renyi(GaussianMechanism(mu), repetitions, delta)


def epsilon_o(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """eps_U-O: algorithm 3 with the mu of equation 19; an approximation below sampling rate 1."""
    assert isinstance(base, DpSgd)
    mu = mean_inclusion_mu(base.noise_multiplier, base.steps, base.sampling_rate)
    return reduced_renyi(GaussianMechanism(mu), repetitions, delta)


def table_3(
    epsilons: Sequence[float] = (1.0, 2.0, 4.0), eta: float = 0.0, gamma: float = 0.01
) -> Result:
    """The generic bound eps_U for K ~ TNB(0, 0.01), and our bounds."""
    repetitions = TruncatedNegativeBinomial(eta, gamma)
    bounds: dict[str, Bound] = {
        "generic, theorem 2 of P&S": renyi,
        "region (ours), any score": region,
        "exact, monotone score": reduced_exact,
    }
    curves = Curves("epsilon_base", "epsilon")
    bases = [GaussianMechanism(calibrate_mu(value, _DELTA)) for value in epsilons]
    for name, bound in bounds.items():
        curves.add(name, epsilons, [bound(base, repetitions, _DELTA).epsilon for base in bases])
    table = curves.table
    generic = table.loc[table["curve"] == next(iter(bounds)), "epsilon"]
    compared = tuple(
        Comparison(f"eps_U at eps_B = {value:g}", _TABLE_3[value], epsilon)
        for value, epsilon in zip(epsilons, generic, strict=True)
        if value in _TABLE_3 and (eta, gamma) == (0.0, 0.01)
    )
    if compared:
        curves.add(
            "printed in table 3",
            [one_run for one_run in epsilons if one_run in _TABLE_3],
            [comparison.published for comparison in compared],
        )
    picture = draw(
        curves,
        f"K ~ {repetitions.spec}",
        r"$\varepsilon_B$ of one run",
        rf"$\varepsilon$ of the tuning at $\delta$ = {_DELTA:g}",
        points=["printed in table 3"],
        ylim=(0.0, None),
    )
    return Result(curves.table, picture, compared)


def table_4(
    settings: Sequence[tuple[float, float]] = tuple(_TABLE_4),
    distributions: Sequence[tuple[float, int]] = _TABLE_4_DISTRIBUTIONS,
    steps: int = 500,
) -> Result:
    """eps_U-G and eps_U-O for two-point K, the region bound and the exact reduced game.

    Args:
        settings: pairs (eps_B, sampling rate), rows of the table.
        distributions: pairs (s, L), columns of the table.
        steps: N, the number of steps of one run.
    """
    bounds: dict[str, Bound] = {
        "G": epsilon_g,
        "O": epsilon_o,
        "exact": reduced_exact,
        "region": region,
    }
    curves = Curves("column", "epsilon")
    compared = []
    names = [f"s = {s:g}\nL = {largest}" for s, largest in distributions]
    for epsilon_base, sampling_rate in settings:
        base = calibrated(epsilon_base, sampling_rate, steps, _DELTA)
        at = {"epsilon_base": epsilon_base, "sampling_rate": sampling_rate}
        at["noise_multiplier"] = base.noise_multiplier
        for name, bound in bounds.items():
            values = [bound(base, TwoPoint(*pair), _DELTA).epsilon for pair in distributions]
            curves.add(name, names, values, **at)
            for pair, value in zip(distributions, values, strict=True):
                printed = _printed(name, epsilon_base, sampling_rate, pair, steps)
                if printed is not None and value is not None:
                    where = f"eps_U-{name} at eps_B = {epsilon_base:g}, tau = {sampling_rate:g}"
                    where += f", s = {pair[0]:g}, L = {pair[1]}"
                    compared.append(Comparison(where, printed, value))
    table = curves.table
    page = _draw_table_4(table)
    table["column"] = table["column"].str.replace("\n", ", ")
    return Result(table, page, tuple(compared))


def _printed(
    name: str, epsilon_base: float, sampling_rate: float, pair: Sequence[float], steps: int
) -> float | None:
    """The number that table 4 prints, or None."""
    rows = _TABLE_4.get((epsilon_base, sampling_rate))
    if (
        rows is None
        or name not in "GO"
        or tuple(pair) not in _TABLE_4_DISTRIBUTIONS
        or steps != 500
    ):
        return None
    return rows["GO".index(name)][_TABLE_4_DISTRIBUTIONS.index((pair[0], int(pair[1])))]


_LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    r"$\varepsilon_U$-G": ("G", {"ls": "", "marker": "^", "ms": 9, "mfc": "white", "mew": 1.8}),
    r"$\varepsilon_U$-O": ("O", {"ls": "", "marker": "o", "ms": 6}),
    "exact, monotone score": ("exact", {"ls": "-", "lw": 1.8}),
    "region (ours), any score": ("region", {"ls": "--", "lw": 1.8}),
}


def _draw_table_4(table: pd.DataFrame) -> Figure:
    """A panel for each sampling rate and a colour for each budget."""
    rates, budgets = (list(table[name].unique()) for name in ("sampling_rate", "epsilon_base"))
    colours = dict(zip(budgets, COLOURS, strict=False))
    with style():
        page = figure(4.6 * len(rates) + 2.4, 5.0)
        panels = page.subplots(1, len(rates), sharey=True, squeeze=False)[0]
        for axes, rate in zip(panels, rates, strict=True):
            for budget, colour in colours.items():
                at = table[(table["sampling_rate"] == rate) & (table["epsilon_base"] == budget)]
                for name, look in _LOOKS.values():
                    rows = at[at["curve"] == name]
                    axes.plot(rows["column"], rows["epsilon"], color=colour, **look)
            tidy(axes)
            axes.set_title(rf"$\tau$ = {rate:g}", fontsize="medium")
            axes.tick_params(axis="x", labelsize="x-small")
        label = rf"$\varepsilon$ of the tuning at $\delta$ = {_DELTA:g}"
        panels[0].set(ylabel=label, ylim=(0.0, None))
        handles = [
            Line2D([], [], color="0.3", label=key, **look) for key, (_, look) in _LOOKS.items()
        ]
        handles += [
            Line2D([], [], color=colour, lw=6, label=rf"$\varepsilon_B$ = {budget:g}")
            for budget, colour in colours.items()
        ]
        legend(panels[-1], handles)
    return page


_UPPER = {
    "generic (U-P)": renyi,
    "region (ours)": region,
    "U-G": epsilon_g,
    "U-O": epsilon_o,
    "exact, by likelihood": reduced_exact,
}
_LOWER = {
    "L, valid, monotone score": "lifted-curve:fixed",
    "L, valid for any score": "scan:scan",
    "L, published protocol": "gaussian-curve:max-grid",
}


def figure_6(
    epsilons: Sequence[float] = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0),
    sampling_rates: Sequence[float] = (1.0, 0.5, 0.1),
    distributions: Sequence[tuple[float, float]] = ((0.0, 0.01), (1.0, 0.01)),
    steps: int = 500,
    trials: int = 1_000_000,
    seed: int = 0,
) -> Result:
    """Upper bounds, and an audit of the reduced game at every point.

    Args:
        epsilons: budgets eps_B of one run.
        sampling_rates: rows of the figure.
        distributions: pairs (eta, gamma), columns of the figure.
        steps: N, the number of steps of one run.
        trials: number of trials per point, half of them with the record.
        seed: seed of the trials.
    """
    checks.integer("trials", trials, 2, _MAX_TRIALS)
    curves = Curves("epsilon_base", "epsilon")
    total = len(epsilons) * len(sampling_rates) * len(distributions)
    with console.progress(total, unit="point") as update:
        for row, rate in enumerate(sampling_rates):
            bases = [calibrated(value, rate, steps, _DELTA) for value in epsilons]
            for column, parameters in enumerate(distributions):
                repetitions = TruncatedNegativeBinomial(*parameters)
                epsilons_of: dict[str, list[float | None]] = {
                    name: [] for name in (*_UPPER, *_LOWER)
                }
                for index, base in enumerate(bases):
                    for name, bound in _UPPER.items():
                        epsilons_of[name].append(bound(base, repetitions, _DELTA).epsilon)
                    key = np.random.SeedSequence(seed, spawn_key=(row, column, index))
                    rng = np.random.default_rng(key)
                    for name, value in audit(base, repetitions, trials, rng).items():
                        epsilons_of[name].append(value)
                    update(1)
                for name, values in epsilons_of.items():
                    curves.add(
                        name, epsilons, values, sampling_rate=rate, repetitions=repetitions.spec
                    )
    table = curves.table
    with style():
        page = figure(5.2 * len(distributions) + 2.6, 3.4 * len(sampling_rates) + 0.4)
        grid = page.subplots(len(sampling_rates), len(distributions), sharex=True, squeeze=False)
        specs = list(dict.fromkeys(table["repetitions"]))
        for line, rate in zip(grid, sampling_rates, strict=True):
            for axes, spec in zip(line, specs, strict=True):
                rows = table[(table["sampling_rate"] == rate) & (table["repetitions"] == spec)]
                plot(axes, rows, "epsilon_base", "epsilon", points=list(_LOWER))
                axes.set_title(rf"$\tau$ = {rate:g}, K ~ {spec}", fontsize="medium")
                axes.set_ylim(0.0, None)
            line[0].set_ylabel(rf"$\varepsilon$ at $\delta$ = {_DELTA:g}")
        for axes in grid[-1]:
            axes.set_xlabel(r"$\varepsilon_B$ of one run")
        legend(grid[len(sampling_rates) // 2][-1])
    return Result(table, page)


def audit(
    base: DpSgd, repetitions: Repetitions, trials: int, rng: np.random.Generator
) -> dict[str, float]:
    """The lower bounds of `_LOWER` from an audit of the reduced game.

    A trial is the best of K draws of N(0, 1), or of N(mu, 1) with the record, which is in half of
    the trials. As in the paper, mu is that of equation 19.
    """
    mu = mean_inclusion_mu(base.noise_multiplier, base.steps, base.sampling_rate)
    order, sizes = IncreasingOrder(), (trials // 2, trials - trials // 2)
    without, with_record = (
        order.best(repetitions.sample(rng, size), mean, rng)
        for size, mean in zip(sizes, (0.0, mu), strict=True)
    )
    scores = Scores.of(without, with_record)
    by_key = {estimator.key: estimator for estimator in all_estimators(repetitions, mu)}
    return {
        name: by_key[key].bound(scores, _DELTA, confidence=0.95).epsilon
        for name, key in _LOWER.items()
    }


def example_1(
    epsilon: float = 1.0, b: float = 1e-3, d: float = 100.0, gamma: float = 1e-3
) -> Result:
    """Three outputs with the score C > B > A and a geometric K: the cost is nearly 3 eps."""
    e = math.exp(epsilon)
    base = (
        np.array([1.0 - b * e - d * b, b * e, d * b]),
        np.array([1.0 - b - d * b * e, b, d * b * e]),
    )
    repetitions = TruncatedNegativeBinomial(1.0, gamma)
    tuned = [np.diff(repetitions.phi(np.concatenate([[0.0], np.cumsum(p)]))) for p in base]
    curves = Curves("output", "probability")
    compared = []
    for data, one_run, best, printed in zip(("X", "X'"), base, tuned, _EXAMPLE_1, strict=True):
        curves.add(f"one run on {data}", list("ABC"), one_run)
        curves.add(f"tuned on {data}", list("ABC"), best)
        compared += [
            Comparison(f"P[{output}] tuned on {data}", number, float(value))
            for output, number, value in zip("ABC", printed, best, strict=True)
        ]
    attained = float(np.max(np.abs(np.log(tuned[0] / tuned[1]))))
    bound = renyi(DiscreteMechanism(*base), repetitions, _DELTA)
    approximate = DiscreteMechanism(*(p / p.sum() for p in tuned)).epsilon(_DELTA)
    compared += [
        Comparison("epsilon attained, of 3", 2.96, attained),
        Comparison("epsilon attained at delta = 1e-5", 2.92, approximate),
        Comparison("the bound at delta = 1e-5", 3.11, bound.epsilon),
    ]
    with style():
        page = figure()
        axes = page.subplots()
        groups = list(curves.table.groupby("curve", sort=False))
        for rank, (name, rows) in enumerate(groups):
            # Some bars are nearly equal and would hide each other.
            left = np.arange(3.0) + 0.2 * (rank - (len(groups) - 1) / 2.0)
            axes.bar(left, rows["probability"], 0.18, color=COLOURS[rank], label=name)
        tidy(axes)
        axes.set_xticks(range(3), list("ABC"))
        axes.set(yscale="log", xlabel="output", ylabel="probability")
        axes.set_title(
            rf"$\varepsilon$ = {epsilon:g} in one run, {attained:.3f} after tuning",
            fontsize="medium",
            loc="left",
        )
        legend(axes)
    return Result(curves.table, page, tuple(compared))
