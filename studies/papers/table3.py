"""Xiang, Wang & Wang 2024, table 3 and figures 1 to 4, from the kept trials of played games."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special, stats

from audit import lower_bounds, upper_bounds
from audit.accounting import DpSgd, GaussianMechanism
from audit.lower_bounds import (
    FixedThreshold,
    GaussianCurve,
    LiftedCurve,
    MaximumOverGrid,
    PooledScan,
    RankSum,
    WorstOrderCurve,
)
from audit.numerics import BoolArray, FloatArray
from audit.repetitions import Repetitions
from audit.upper_bounds.published import renyi
from studies.papers.kept_trials import KeptGame, load
from studies.papers.result import COLOURS, Comparison, Result, style, tidy

_ROWS_OF_DATASET = {"FASHION": 1, "CIFAR10": 2, "SVHN": 3}
_ETCV_ROWS_OF_DATASET = {"MNIST": 1, "SVHN": 2, "CIFAR10": 3}
# Table 3 prints the Dirac canary's rows: the mean of three repeats from lambda_a and lambda_b.
_PRINTED = {
    "NTNV 4": {1.0: (0.54, 0.54), 2.0: (0.99, 1.00), 4.0: (1.91, 1.91)},
    "NTNV 5": {1.0: (0.84, 0.77), 2.0: (1.41, 1.37), 4.0: (2.13, 2.13)},
    "NTNV 6": {1.0: (0.88, 0.81), 2.0: (1.35, 1.32), 4.0: (2.13, 2.13)},
    "NTCV 4": {1.0: (0.52, 0.52), 2.0: (0.91, 0.91), 4.0: (1.74, 1.74)},
    "NTCV 5": {1.0: (0.99, 1.03), 2.0: (1.17, 1.19), 4.0: (1.99, 1.98)},
    "NTCV 6": {1.0: (1.06, 1.11), 2.0: (1.17, 1.19), 4.0: (1.99, 1.98)},
    "ETCV 4": {1.0: (1.17, 1.19), 2.0: (2.36, 2.09), 4.0: (4.28, 4.68)},
}
_PRINTED_UPPER = {1.0: 1.86, 2.0: 3.59, 4.0: 6.79}
_WORST_ORDER, _CONVNET, _LARGE = ", worst order", ", ConvNet", ", 5,000 records"
# The score's distribution is learned on every fourth trial, the final weights' weighting on every
# second one, and both are evaluated on the other trials.
_SCORE_LEARNED_ON, _WEIGHTS_LEARNED_ON = 4, 2
# The tables of AUCs: their budget, their statistics and the headings of the columns.
_SEPARATIONS_AT = 4.0
_STEPS_RELEASED = {
    "lambda_a": "lambda_a",
    "lambda_b": "lambda_b",
    "lambda_a and score, learned": "lambda_a and score, learned",
    "known records": "known records",
    "known records and score": "known records and score",
}
_FINAL_WEIGHTS = {
    "lambda_a": "lambda_a",
    "final weights, gradient at start": "gradient at start",
    "final weights, gradient at end": "gradient at end",
    "final weights, learned": "learned",
}


@dataclass(frozen=True)
class Statistic:
    """What an adversary computes from the released winner of each trial.

    Attributes:
        name: name of the statistic.
        values: [T] one number per trial; a larger number is evidence for the canary.
        evaluated: [T] whether a trial is evaluated; nothing was learned on such a trial.
    """

    name: str
    values: FloatArray
    evaluated: BoolArray


def row_of(game: KeptGame) -> str:
    """The row of the paper's table 2 that a game belongs to."""
    config = game.config
    is_dirac = config.canary == "dirac"
    if config.threat == "ETCV":
        row = f"ETCV {4 if is_dirac else _ETCV_ROWS_OF_DATASET[config.dataset]}"
    else:
        row = f"{config.threat} {_ROWS_OF_DATASET[config.dataset] + 3 * is_dirac}"
        # The paper's table has only rows with 1,000 records and an MLP.
        row += _CONVNET if config.model == "convnet" else ""
        row += _LARGE if config.train_size == 5000 else ""
    return row + (_WORST_ORDER if config.score == "worst-order" else "")


def statistics(game: KeptGame) -> Iterator[Statistic]:
    """Every statistic of a game's winners.

    The paper's lambda_a and lambda_b, and the best linear combination of lambda_a and the score.
    If the adversary knows the training records: the log-likelihood ratio of the winner's
    released steps, without and with its score. For an adversary who sees the final weights only:
    their product with the canary's gradient, and the best linear combination with the score.
    """
    columns, config = game.columns, game.config
    everything = np.ones(len(game.bit), dtype=np.bool_)
    sign = -1 if config.threat == "NTNV" else 1
    yield Statistic("lambda_a", columns["lambda_a"], everything)
    yield Statistic("lambda_b", columns["lambda_a"] + sign * columns["score"], everything)
    if config.threat == "ETCV" and config.canary == "dirac":
        return  # the others are increasing functions of lambda_a
    other_half = columns["trial"] % _WEIGHTS_LEARNED_ON != 0
    learned = _discriminant(game, ("lambda_a", "score"), ~other_half)
    yield Statistic("lambda_a and score, learned", learned, other_half)
    yield Statistic("known records", columns["lambda_known"], everything)
    if game.has_runs:
        held_out = columns["trial"] % _SCORE_LEARNED_ON != 0
        yield Statistic("known records and score", _winner_ratio(game, ~held_out), held_out)
    yield Statistic("final weights, gradient at start", columns["lambda_start"], everything)
    if config.canary == "dirac":
        return  # its gradient is the same everywhere
    yield Statistic("final weights, gradient at end", columns["lambda_end"], everything)
    learned = _discriminant(game, ("lambda_start", "lambda_end", "score"), ~other_half)
    yield Statistic("final weights, learned", learned, other_half)


def _winner_ratio(game: KeptGame, learned_on: BoolArray) -> FloatArray:
    """Log-likelihood ratio of each winner's steps and score, [T].

    A winner with score g is released with density phi'(F(g)) q(y), where F is the distribution
    function of one run's score. q(y) is known given the training records. F without and with the
    canary is learned from all runs of some trials: a normal distribution of the scores' normal
    ranks.
    """
    columns, config = game.columns, game.config
    learned_runs = np.repeat(learned_on, columns["runs"])
    with_canary = np.repeat(game.bit, columns["runs"])[learned_runs]
    learned = columns["run_score"][learned_runs]
    order = np.sort(learned)

    def normal_rank(scores: FloatArray) -> FloatArray:
        rank = np.searchsorted(order, scores, "left") + np.searchsorted(order, scores, "right")
        return special.ndtri((rank + 1.0) / (2.0 * (len(order) + 1.0)))

    log_ratio = (columns["lambda_known"] - 0.5) * game.mu**2
    for included, sign in ((True, 1.0), (False, -1.0)):
        ranks = normal_rank(learned[with_canary == included])
        log_cdf = special.log_ndtr(
            (normal_rank(columns["score"]) - ranks.mean()) / ranks.std(ddof=1)
        )
        log_ratio = log_ratio + sign * config.runs_distribution.log_phi_prime_at(log_cdf)
    return np.asarray(log_ratio, dtype=np.float64)


def _discriminant(game: KeptGame, names: tuple[str, ...], learned_on: BoolArray) -> FloatArray:
    """Linear discriminant of some columns and the chosen learning rate of each winner, [T].

    It is fitted by least squares to the coins of some trials.
    """
    columns = game.columns
    features = [columns[name] for name in names]
    chosen = columns["candidate"]
    features += [chosen == candidate for candidate in np.unique(chosen)[1:]]
    table = np.array(features, dtype=np.float64).T
    table = (table - table[learned_on].mean(0)) / (table[learned_on].std(0) + 1e-12)
    table = np.column_stack([np.ones(len(table)), table])
    weights, *_ = np.linalg.lstsq(table[learned_on], game.bit[learned_on].astype(float), rcond=None)
    return np.asarray(table @ weights, dtype=np.float64)


def separation(without: FloatArray, with_canary: FloatArray) -> tuple[float, float]:
    """AUC of a statistic, and its standard error (Hanley & McNeil 1982).

    The AUC is the probability that a trial with the canary has the larger value.
    """
    n0, n1 = len(without), len(with_canary)
    auc = float(stats.mannwhitneyu(with_canary, without).statistic) / (n0 * n1)
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (n1 - 1) * (q1 - auc**2) + (n0 - 1) * (q2 - auc**2)
    return auc, float(np.sqrt(variance / (n0 * n1)))


def equivalent_epsilon(auc: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism whose two output distributions have this AUC.

    It describes how well a statistic separates two sets of trials. It is not a bound.
    """
    mu = math.sqrt(2.0) * float(special.ndtri(auc))
    return GaussianMechanism(mu).epsilon(delta) if mu > 0 else 0.0


def _bounds(
    game: KeptGame, statistic: Statistic, chosen: BoolArray, delta: float
) -> dict[str, float]:
    """Lower bounds of one statistic on some of the trials."""
    config, repetitions = game.config, game.config.runs_distribution
    confidence = config.confidence
    values = statistic.values
    sides = values[chosen & ~game.bit], values[chosen & game.bit]
    bounds = {
        "epsilon_lower": _recommended(game, statistic, chosen),
        "paper_protocol": _paper_protocol(game, statistic, chosen),
    }
    if config.threat == "ETCV" and config.canary == "dirac" and statistic.name == "lambda_a":
        # One run's standardised statistic is exactly N(b mu, 1), so a curve is valid.
        sides = sides[0] * game.mu, sides[1] * game.mu
        if game.threshold is None:
            curve = LiftedCurve(repetitions, rule=RankSum())(*sides, delta, confidence)
        else:
            assert game.split_top is not None
            rule = FixedThreshold(game.threshold)
            curve = WorstOrderCurve(repetitions, game.split_top, rule=rule)(
                *sides, delta, confidence
            )
        bounds["valid_curve"] = curve.epsilon
    return bounds


def _all_runs(game: KeptGame) -> float:
    """Lower bound from lambda_a of all runs, the losing ones included.

    It is valid where the score increases with lambda_a.
    """
    config = game.config
    with_canary = np.repeat(game.bit, game.columns["runs"])
    values = game.columns["run_lambda_a"].astype(np.float64)
    sides = values[~with_canary], values[with_canary]
    return PooledScan(config.runs_distribution)(*sides, config.delta, config.confidence).epsilon


def _paper_protocol(game: KeptGame, statistic: Statistic, chosen: BoolArray) -> float:
    """The paper's eps_L of one statistic on some of the trials; it is not a valid bound."""
    config, values = game.config, statistic.values
    sides = values[chosen & ~game.bit], values[chosen & game.bit]
    return GaussianCurve(rule=MaximumOverGrid())(*sides, config.delta, config.confidence).epsilon


@cache
def _upper(
    noise_multiplier: float, steps: int, repetitions: Repetitions, delta: float
) -> dict[str, float]:
    """The exact costs and the paper's bound at one noise level."""
    base = DpSgd(noise_multiplier, steps)
    of_one = upper_bounds.report_mechanism(base, delta, "exact").bounds
    one_run = next(bound.epsilon for bound in of_one if bound.name == "base")
    bounds = {
        "one_run": one_run,
        "exact_increasing_score": upper_bounds.reduced_exact(base, repetitions, delta).epsilon,
        "tight": upper_bounds.tight(base, repetitions, delta).epsilon,
        "paper_bound": renyi(base, repetitions, delta).epsilon,
    }
    return {name: float(value) for name, value in bounds.items() if value is not None}


def _folder() -> Path:
    folder = Path(__file__).parents[1] / "table3"
    if not any(folder.glob("*.npz")):
        raise FileNotFoundError(
            f"folder must hold the kept trials of the project's checkout, got {str(folder)!r}"
        )
    return folder


def kept_games(folder: str = "") -> list[KeptGame]:
    """All kept games of a folder (by default, `studies/table3`), sorted by row and eps_B."""
    paths = sorted((Path(folder) if folder else _folder()).glob("*.npz"))
    games = [game for path in paths for game in load(path)]
    order = {"NTNV": 0, "NTCV": 1, "ETCV": 2}
    return sorted(games, key=lambda g: (order[g.config.threat], row_of(g), g.epsilon))


def bounds_of(game: KeptGame) -> Iterator[dict[str, Any]]:
    """Rows of the table for one game: one per statistic, all repeats together."""
    config, delta = game.config, game.config.delta
    upper = _upper(game.noise_multiplier, config.steps, config.runs_distribution, delta)
    for statistic in statistics(game):
        chosen = statistic.evaluated
        without = statistic.values[chosen & ~game.bit]
        with_canary = statistic.values[chosen & game.bit]
        auc, error = separation(without, with_canary)
        counts = [int(np.sum(chosen & (game.bit == included))) for included in (False, True)]
        pooled = _bounds(game, statistic, chosen, delta)
        numbers = np.unique(game.repeat)
        if "valid_curve" in pooled and game.threshold is None:
            pooled["all_runs"] = _all_runs(game)
        by_repeat = [pooled["paper_protocol"]]
        if len(numbers) > 1:
            by_repeat = [
                _paper_protocol(game, statistic, chosen & (game.repeat == number))
                for number in numbers
            ]
        yield {
            "row": row_of(game),
            "score": config.score,
            "model": config.model if config.canary != "dirac" or config.threat != "ETCV" else "",
            "train_size": 0 if config.threat == "ETCV" else config.train_size,
            "steps": config.steps,
            "epsilon_base": game.epsilon,
            "statistic": statistic.name,
            "trials_out": counts[0],
            "trials_in": counts[1],
            "planned": game.planned,
            "repeats": len(numbers),
            "confidence": config.confidence,
            **pooled,
            "paper_protocol_mean": float(np.mean(by_repeat)),
            "paper_protocol_min": min(by_repeat),
            "paper_protocol_max": max(by_repeat),
            "shift": float(with_canary.mean() - without.mean()),
            "shift_error": math.hypot(stats.sem(with_canary), stats.sem(without)),
            "auc": auc,
            "auc_error": error,
            "equivalent_epsilon": equivalent_epsilon(auc, delta),
            "equivalent_low": equivalent_epsilon(auc - error, delta),
            "equivalent_high": equivalent_epsilon(auc + error, delta),
            "detectable": lower_bounds.max_detectable_epsilon(
                counts[0], counts[1], delta, config.confidence
            ),
            **upper,
        }


def played(folder: str = "") -> Result:
    """Table 3 and figures 1 to 4 from kept trials, by default those of `studies/table3`."""
    games = kept_games(folder)
    rows = [row for game in games for row in bounds_of(game)]
    table = pd.DataFrame(rows)
    compared = []
    for row in rows:
        printed = _PRINTED.get(row["row"], {}).get(row["epsilon_base"])
        if printed is not None and row["statistic"] in ("lambda_a", "lambda_b"):
            what = f"{row['row']}, eps_B = {row['epsilon_base']:g}, {row['statistic']}"
            number = printed[row["statistic"] == "lambda_b"]
            compared.append(
                Comparison(f"{what}, paper's protocol", number, row["paper_protocol_mean"])
            )
    tables = (
        _overview(rows),
        _exact_costs(rows),
        _known_curves(rows),
        _separations(rows, _STEPS_RELEASED),
        _separations(rows, _FINAL_WEIGHTS),
        _equal_trials(games),
    )
    lines = tuple(line for lines in tables for line in (*lines, ""))
    return Result(table, draw(table), tuple(compared), lines)


def _equal_trials(games: list[KeptGame]) -> Iterator[str]:
    """eps_L of ETCV 4 when it is cut to as many trials as the weaker adversaries have."""
    yield "| eps_B | trials | groups of trials of ETCV 4 | mean eps_L | smallest | largest |"
    yield "|---|---|---|---|---|---|"
    strongest = {game.epsilon: game for game in games if row_of(game) == "ETCV 4"}
    counts = {
        (game.epsilon, len(game.bit)) for game in games if game.config.threat in ("NTNV", "NTCV")
    }
    for budget, count in sorted(counts):
        game = strongest[budget]
        statistic = next(statistics(game))
        starts = range(0, len(game.bit) - count + 1, count)
        place = np.arange(len(game.bit))
        bounds = [
            _recommended(game, statistic, (place >= start) & (place < start + count))
            for start in starts
        ]
        yield (
            f"| {budget:g} | {count:,} | {len(bounds)} | {np.mean(bounds):.2f} "
            f"| {_down(min(bounds))} | {_down(max(bounds))} |"
        )


def _recommended(game: KeptGame, statistic: Statistic, chosen: BoolArray) -> float:
    """The recommended eps_L of one statistic on some of the trials."""
    config, values = game.config, statistic.values
    without, with_canary = values[chosen & ~game.bit], values[chosen & game.bit]
    return lower_bounds.lower_bound(
        out_scores=without,
        in_scores=with_canary,
        delta=config.delta,
        confidence=config.confidence,
    ).epsilon


def _overview(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The bounds of each row, as Markdown; `docs/table3.md` shows one budget of one run."""
    yield "| row | eps_B | trials | eps_L (95 %) | detectable | paper's protocol | printed |"
    yield f"|{'---|' * 7}"
    for (name, budget), rows_of_game in _of_both(rows).items():
        first = rows_of_game[0]
        printed = _PRINTED.get(name, {}).get(budget)
        cells = [
            name,
            f"{budget:g}",
            f"{first['trials_out'] + first['trials_in']:,}",
            ", ".join(_down(row["epsilon_lower"]) for row in rows_of_game),
            _down(first["detectable"]),
            ", ".join(_down(row["paper_protocol_mean"]) for row in rows_of_game),
            "-" if printed is None else f"{printed[0]:.2f}, {printed[1]:.2f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _exact_costs(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The exact costs at each budget of one run, as in `docs/table3.md`."""
    yield "| eps_B | one run | increasing score | any score | printed eps_U |"
    yield f"|{'---|' * 5}"
    for budget, first in sorted({row["epsilon_base"]: row for row in rows}.items()):
        exact = (f"{first[name]:.3f}" for name in ("one_run", "exact_increasing_score", "tight"))
        yield f"| {budget:g} | {' | '.join(exact)} | {_PRINTED_UPPER[budget]:.2f} |"


def _known_curves(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The bounds that use the known distribution of ETCV 4, as in `docs/table3.md`."""
    yield "| row | eps_B | eps_L (95 %) | all runs (95 %) | valid curve (95 %) | exact cost |"
    yield f"|{'---|' * 6}"
    for (name, budget), (first, _) in _of_both(rows).items():
        if "valid_curve" in first:
            all_runs = _down(first["all_runs"]) if "all_runs" in first else "-"
            exact = first["exact_increasing_score" if "all_runs" in first else "tight"]
            lower = f"{_down(first['epsilon_lower'])} | {all_runs} | {_down(first['valid_curve'])}"
            yield f"| {name} | {budget:g} | {lower} | {exact:.3f} |"


def _of_both(rows: list[dict[str, Any]]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """The rows of lambda_a and lambda_b of each game."""
    games: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["statistic"] in ("lambda_a", "lambda_b"):
            games[row["row"], row["epsilon_base"]].append(row)
    return games


def _separations(rows: list[dict[str, Any]], names: dict[str, str]) -> Iterator[str]:
    """AUC and standard error at eps_B = 4 of the statistics in `names`, one line for each game."""
    yield f"| row | {' | '.join(names.values())} |"
    yield f"|{'---|' * (1 + len(names))}"
    cells_of_rows: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row["epsilon_base"] == _SEPARATIONS_AT:
            cells_of_rows[row["row"]][row["statistic"]] = (
                f"{row['auc']:.3f} ({row['auc_error']:.3f})"
            )
    for name, cells in cells_of_rows.items():
        if len(cells) > len(("lambda_a", "lambda_b")):  # In ETCV 4 all statistics are equivalent.
            yield f"| {name} | {' | '.join(cells.get(statistic, '-') for statistic in names)} |"


def _down(value: float) -> str:
    """A lower bound with two decimals, rounded down."""
    return f"{math.floor(100.0 * value) / 100.0:.2f}"


_PANELS = (
    ("NTNV 1", "NTNV 2", "NTNV 3"),
    ("NTNV 4", "NTNV 5", "NTNV 6"),
    ("NTCV 1", "NTCV 2", "NTCV 3"),
    ("NTCV 4", "NTCV 5", "NTCV 6"),
    ("ETCV 1", "ETCV 2", "ETCV 3"),
    ("ETCV 4", f"ETCV 4{_WORST_ORDER}", ""),
)
_PAIRS = {
    "NT": ("FASHION, MNIST[0]", "CIFAR10, SVHN[0]", "SVHN, CIFAR10[0]"),
    "ET": ("empty, MNIST[0]", "empty, SVHN[0]", "empty, CIFAR10[0]", "empty, Dirac"),
}
_BUDGETS = (1.0, 2.0, 4.0)
_MARKS = {
    "lambda_a": ("lambda_a", "o", 0),
    "lambda_b": ("lambda_b", "s", 1),
    "known records and score": ("known records and score", "*", 4),
    "final weights, learned": ("final weights only", "v", 3),
}


def draw(table: pd.DataFrame) -> Figure:
    """Figures 1 to 4 in the paper's layout: one panel per row of its table 2."""
    with style():
        page = Figure(figsize=(11.0, 15.0), layout="constrained")
        panels = page.subplots(len(_PANELS), 3, sharey=True)
        shown: dict[str, Any] = {}
        for rows, line in zip(_PANELS, panels, strict=True):
            for row, axes in zip(rows, line, strict=True):
                if not row:
                    axes.set_axis_off()
                    continue
                _draw_row(axes, row, table)
                handles, names = axes.get_legend_handles_labels()
                shown |= dict(zip(names, handles, strict=True))
        page.supylabel(r"$\varepsilon$ of the tuning at $\delta$ = 1e-05", fontsize="medium")
        page.legend(shown.values(), shown, loc="outside lower center", ncols=3, fontsize="small")
    return page


def _pair(row: str) -> str:
    """X and z of a row of table 2."""
    threat, number = row[:2], int(row.split()[1].rstrip(","))
    if threat == "ET":
        return _PAIRS[threat][number - 1] + (", worst order" if _WORST_ORDER in row else "")
    pair = _PAIRS[threat][(number - 1) % 3]
    return pair if number <= 3 else f"{pair.split(',')[0]}, Dirac"


def _draw_row(axes: Axes, row: str, table: pd.DataFrame) -> None:
    places = np.arange(len(_BUDGETS), dtype=float)
    rows_of_game = table[table["row"] == row]
    by_budget = table.drop_duplicates("epsilon_base").set_index("epsilon_base").reindex(_BUDGETS)
    for name, column, dashes, colour in (
        ("eps_U, any score (tight)", "tight", "-", 5),
        ("exact cost, increasing score", "exact_increasing_score", "--", 2),
        ("exact cost of one run", "one_run", ":", 7),
    ):
        axes.plot(places, by_budget[column], ls=dashes, color=COLOURS[colour], label=name)
    upper = [_PRINTED_UPPER[budget] for budget in _BUDGETS]
    axes.plot(places, upper, ls="-.", color=COLOURS[6], label="eps_U printed in the paper")
    printed = _PRINTED.get(row, {})
    for number, (name, marker) in enumerate((("lambda_a", "x"), ("lambda_b", "+"))):
        if printed:
            values = [printed[budget][number] for budget in _BUDGETS]
            label = f"eps_L printed in the paper, {name}"
            axes.plot(places - 0.28, values, marker, color="black", ms=8, label=label)
    for number, (statistic, (name, marker, colour)) in enumerate(_MARKS.items()):
        of_statistic = rows_of_game[rows_of_game["statistic"] == statistic]
        at = [
            _BUDGETS.index(budget) - 0.12 + 0.12 * number for budget in of_statistic["epsilon_base"]
        ]
        look = {"ls": "", "marker": marker, "color": COLOURS[colour], "ms": 8}
        axes.plot(at, of_statistic["epsilon_lower"], label=f"eps_L (95 %), {name}", **look)
        if statistic in ("lambda_a", "lambda_b"):
            label = f"paper's protocol on our trials, {name}"
            axes.plot(at, of_statistic["paper_protocol_mean"], mfc="none", label=label, **look)
        if statistic == "lambda_a" and of_statistic["valid_curve"].notna().any():
            look |= {"marker": "^", "color": COLOURS[5]}
            axes.plot(at, of_statistic["valid_curve"], label="eps_L (95 %), valid curve", **look)
    if not len(rows_of_game):
        axes.text(0.5, 0.93, "not run", transform=axes.transAxes, ha="center", va="top")
    axes.set_title(f"{row.removesuffix(_WORST_ORDER)}: {_pair(row)}", fontsize="small", loc="left")
    axes.set_xlabel(r"$\varepsilon_B$ of one run", fontsize="small")
    axes.set_xticks(places, [f"{budget:g}" for budget in _BUDGETS])
    axes.set(xlim=(-0.5, len(_BUDGETS) - 0.5), ylim=(0.0, 7.6))
    tidy(axes)
