"""Papernot & Steinke 2022, figure 1: a hyperparameter chosen without privacy reveals outliers.

A support vector machine is trained by stochastic gradients on 40 points of the plane; its only
hyperparameter alpha weighs the hinge loss. Eight outliers change which alpha gives the best model.
The right panel audits this claim. It shows the lower bound on epsilon that the chosen alpha proves
for the outliers, without privacy and for private runs with a private choice of the best.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from audit.lower_bounds import Scan
from audit.numerics import FloatArray
from audit.repetitions import parse_repetitions
from studies.papers.result import COLOURS, Result, figure, legend, plot_means, style, tidy
from studies.papers.tunings import DELTA, Arm, mean_and_error, play_random_searches

# The centres of scikit-learn's make_blobs(random_state=6), whose signs are missing in our copy of
# the paper, and the place of the outliers in the positive class.
_NEGATIVE, _POSITIVE, _OUTLIER = (7.86, -3.36), (6.42, -9.17), (7.9, -8.0)
_POINTS, _OUTLIERS = 40, 8
_ALPHAS = 2.0 ** np.arange(-1.0, 6.5, 0.5)
_LEARNING_RATE = 1e-3
# Clipping norm of a record's gradient (x, 1) in private runs; few are longer.
_MAX_GRAD_NORM = 12.0
_PROTOCOL = "tnb:1,0.1"


def figure_1(
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    epochs: int = 20,
    datasets: int = 400,
    tunings: int = 2000,
    seed: int = 1,
) -> Result:
    """Accuracy over alpha with and without outliers, and the epsilon that the chosen alpha proves.

    Args:
        epsilons: total epsilons of private tunings, for all outliers together.
        epochs: epochs of one run.
        datasets: number of data sets over which the curves are averaged.
        tunings: number of tunings with and without the outliers, all on one data set.
        seed: seed of all random draws.
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for outliers in (0, _OUTLIERS):
        places, labels = _data(datasets, outliers, rng)
        models = _descend(places, labels, _ALPHAS, epochs, rng)
        accuracies = _accuracy(models, places, labels)
        rows += [
            {
                "what": "curve",
                "outliers": outliers,
                "alpha": alpha,
                **mean_and_error(values, "accuracy"),
            }
            for alpha, values in zip(_ALPHAS, accuracies.T, strict=True)
        ]
    places, labels = _data(1, _OUTLIERS, rng)
    sides = [(places[:, : _POINTS + more], labels[:, : _POINTS + more]) for more in (0, _OUTLIERS)]
    not_private = [_open_tuning(*side, epochs, tunings, rng) for side in sides]
    rows.append(_game("without privacy", math.inf, math.inf, not_private))
    arms = (
        Arm("Renyi bound", _PROTOCOL, "renyi", False),
        Arm("region bound", _PROTOCOL, "region", True),
    )
    for epsilon in epsilons:
        for arm in arms:
            # All outliers are present or none, and eight times the signal needs eight times the
            # noise.
            noise = _OUTLIERS * arm.noise_multiplier(epsilon, epochs)
            played = [_private_tuning(*side, noise, epochs, tunings, rng) for side in sides]
            rows.append(_game(arm.name, epsilon, noise, played))
    table = pd.DataFrame(rows)
    games = table[table["what"] == "game"]
    lines = [
        f"{row['arm']:16} epsilon {row['epsilon']:4g}  noise {row['noise multiplier']:7.1f}  "
        f"accuracy {row['accuracy']:.3f}  eps_L of alpha {row['eps_L of alpha']:.2f}  "
        f"of the model {row['eps_L of the model']:.2f}"
        for row in games.to_dict("records")
    ]
    return Result(table, _draw(table), lines=tuple(lines))


def _data(many: int, outliers: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Data sets: records [many, n, 3], the last coordinate being 1, and labels [many, n]."""
    half = _POINTS // 2
    centres = np.repeat([_NEGATIVE, _POSITIVE], half, axis=0)
    points = rng.standard_normal((many, _POINTS, 2)) + centres
    far = np.broadcast_to(_OUTLIER, (many, outliers, 2))
    places = np.concatenate([points, far], axis=1)
    labels = np.repeat([-1.0, 1.0, -1.0], [half, half, outliers])
    ones = np.ones((*places.shape[:2], 1))
    return np.concatenate([places, ones], axis=2), np.broadcast_to(labels, places.shape[:2])


def _descend(
    places: FloatArray,
    labels: FloatArray,
    alphas: FloatArray,
    epochs: int,
    rng: np.random.Generator,
) -> FloatArray:
    """The paper's training: models [many, alphas, 3], one record per step, shuffled each epoch."""
    many, records = labels.shape
    models, rows = np.zeros((many, len(alphas), 3)), np.arange(many)
    for _ in range(epochs):
        order = rng.random((many, records)).argsort(axis=1)
        for record in order.T:
            x, y = places[rows, record][:, None, :], labels[rows, record][:, None]
            slack = (y * (models * x).sum(-1) < 1.0) * alphas * y
            models[..., :2] -= _LEARNING_RATE * 2.0 * models[..., :2]
            models += _LEARNING_RATE * slack[..., None] * x
    return models


def _accuracy(models: FloatArray, places: FloatArray, labels: FloatArray) -> FloatArray:
    """Training accuracy [many, m] of models [many, m, 3]."""
    margins = np.einsum("amk,ank->amn", models, places)
    return np.asarray((np.sign(margins) == labels[:, None, :]).mean(-1))


def _outlier_score(models: FloatArray) -> FloatArray:
    """How strongly models [n, 3] classify the outliers' place as negative, [n]."""
    return np.asarray(-models @ (*_OUTLIER, 1.0))


def _open_tuning(
    places: FloatArray, labels: FloatArray, epochs: int, tunings: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alpha [tunings], outlier score and accuracy of the best model of each tuning.

    A tuning trains once with each alpha. The smallest alpha wins ties.
    """
    shape = tunings, labels.shape[1]
    places, labels = np.broadcast_to(places, (*shape, 3)), np.broadcast_to(labels, shape)
    models = _descend(places, labels, _ALPHAS, epochs, rng)
    accuracy = _accuracy(models, places, labels)
    best, rows = accuracy.argmax(1), np.arange(tunings)
    return _ALPHAS[best], _outlier_score(models[rows, best]), accuracy[rows, best]


def _private_tuning(
    places: FloatArray,
    labels: FloatArray,
    noise_multiplier: float,
    steps: int,
    tunings: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The results of `_open_tuning` for random searches over alpha, if they made a run.

    Each run is full-batch DP-SGD with one step per epoch.
    """
    x, y = places[0], labels[0]
    x_clipped = x * np.minimum(1.0, _MAX_GRAD_NORM / np.linalg.norm(x, axis=1))[:, None]

    def train(alphas: FloatArray) -> tuple[FloatArray, FloatArray]:
        models = np.zeros((len(alphas), 3))
        for _ in range(steps):
            slack = (y * (models @ x.T) < 1.0) * y
            noise = noise_multiplier * _MAX_GRAD_NORM * rng.standard_normal(models.shape)
            # The number of points is public, and the penalty is weighed by it: the number of
            # records would reveal the outliers.
            models[:, :2] *= 1.0 - _LEARNING_RATE * 2.0 * _POINTS
            models += _LEARNING_RATE * alphas[:, None] * (slack @ x_clipped + noise)
        return models, _accuracy(models[None], places, labels)[0]

    repetitions = parse_repetitions(_PROTOCOL)
    alphas, models, accuracy = play_random_searches(repetitions, _ALPHAS, train, tunings, rng)
    return alphas, _outlier_score(models), accuracy


def _game(
    arm: str,
    epsilon: float,
    noise: float,
    sides: Sequence[tuple[FloatArray, FloatArray, FloatArray]],
) -> dict[str, object]:
    """A row of the table: the epsilon that alpha alone, and the model, prove for the outliers."""
    (alpha, model, _), (alpha_with, model_with, accuracy) = sides
    return {
        "what": "game",
        "arm": arm,
        "epsilon": epsilon,
        "noise multiplier": noise if math.isfinite(noise) else 0.0,
        **mean_and_error(accuracy, "accuracy"),
        "eps_L of alpha": Scan()(alpha, alpha_with, DELTA).epsilon,
        "eps_L of the model": Scan()(model, model_with, DELTA).epsilon,
    }


def _draw(table: pd.DataFrame) -> Figure:
    """Accuracy over alpha, and the proved epsilon over the total epsilon."""
    curves, games = table[table["what"] == "curve"], table[table["what"] == "game"]
    private = games[np.isfinite(games["epsilon"])]
    not_private = games[~np.isfinite(games["epsilon"])].iloc[0]
    with style():
        page = figure(11.0, 4.6)
        left, right = page.subplots(1, 2)
        for number, (outliers, rows) in enumerate(curves.groupby("outliers")):
            label = "with outliers" if outliers else "without outliers"
            plot_means(left, rows, "alpha", "accuracy", color=COLOURS[number], label=label)
        left.set(xlabel=r"$\alpha$", ylabel="training accuracy", xscale="log")
        left.set_title("not private, two standard errors", fontsize="medium", loc="left")
        left.legend(frameon=False)
        totals = np.geomspace(private["epsilon"].min(), private["epsilon"].max(), 50)
        right.plot(totals, totals, color="black", label="upper bound")
        for number, name in enumerate(("alpha", "the model")):
            column, colour = f"eps_L of {name}", COLOURS[number]
            right.axhline(not_private[column], color=colour, ls=":", label=f"{name}, not private")
            for arm, rows in private.groupby("arm", sort=False):
                dashes = "--" if arm == "Renyi bound" else "-"
                look = {"color": colour, "ls": dashes, "marker": "o", "label": f"{name}, {arm}"}
                right.plot(rows["epsilon"], rows[column], **look)
        top = 1.2 * max(not_private["eps_L of alpha"], not_private["eps_L of the model"], 1.0)
        right.set(xlabel=r"$\varepsilon$ of the tuning, for all outliers", xscale="log")
        right.set_ylim(-0.1, top)
        title = r"$\varepsilon_L$ for the presence of the outliers"
        right.set_title(title, fontsize="medium", loc="left")
        legend(right)
        for axes in (left, right):
            tidy(axes)
    return page
