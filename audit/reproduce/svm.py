"""Papernot & Steinke 2022, figure 1: a hyperparameter chosen without privacy betrays outliers.

A support vector machine on 40 points of the plane, trained by stochastic gradients; its one
hyperparameter alpha weighs the hinge loss. Eight outliers move the alpha that trains best. Beside
their curves stands what they warn of, played as a game: what the chosen alpha proves about the
outliers, and what it proves where runs are private and their best is chosen privately.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit import protocols
from audit.lower_bounds import Scan
from audit.reproduce.result import COLOURS, Result, figure, style, tidy
from audit.reproduce.training import DELTA, Arm, best_of_each

Array = NDArray[np.float64]

# The centres that scikit-learn's make_blobs(random_state=6) draws, and so the signs that the text
# has lost; a place among the positive class for outliers of the negative one.
_NEGATIVE, _POSITIVE, _OUTLIER = (7.86, -3.36), (6.42, -9.17), (7.9, -8.0)
_POINTS, _OUTLIERS = 40, 8
_ALPHAS = 2.0 ** np.arange(-1.0, 6.5, 0.5)
_RATE = 1e-3
# Of a record's gradient (x, 1) in private runs: few are longer.
_CLIP = 12.0
_LAW = "tnb:1,0.1"


def figure_1(
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    epochs: int = 20,
    datasets: int = 400,
    tunings: int = 2000,
    seed: int = 1,
) -> Result:
    """Accuracy over alpha with and without outliers, and what the chosen alpha gives away.

    Args:
        epsilons: totals of private tunings, for all outliers together.
        epochs: of one run.
        datasets: that the curves are means over.
        tunings: on each side of the game, all on one data set.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for outliers in (0, _OUTLIERS):
        places, labels = _data(datasets, outliers, rng)
        models = _descend(places, labels, _ALPHAS, epochs, rng)
        found = _accuracy(models, places, labels)
        rows += [
            {
                "what": "curve",
                "outliers": outliers,
                "alpha": alpha,
                "accuracy": mean,
                "standard error": spread / math.sqrt(datasets),
            }
            for alpha, mean, spread in zip(
                _ALPHAS, found.mean(0), found.std(0, ddof=1), strict=True
            )
        ]
    places, labels = _data(1, _OUTLIERS, rng)
    sides = [(places[:, : _POINTS + more], labels[:, : _POINTS + more]) for more in (0, _OUTLIERS)]
    openly = [_open_tuning(*side, epochs, tunings, rng) for side in sides]
    rows.append(_game("without privacy", math.inf, math.inf, openly))
    arms = Arm("Renyi bound", _LAW, "renyi", False), Arm("region bound", _LAW, "region", True)
    for epsilon in epsilons:
        for arm in arms:
            # Outliers come together: a group of eight is as far apart as one record at an eighth
            # of the noise.
            sigma = _OUTLIERS * arm.noise_multiplier(epsilon, epochs)
            played = [_private_tuning(*side, sigma, epochs, tunings, rng) for side in sides]
            rows.append(_game(arm.name, epsilon, sigma, played))
    table = pd.DataFrame(rows)
    games = table[table["what"] == "game"]
    lines = [
        f"{row['arm']:16} epsilon {row['epsilon']:4g}  noise {row['noise multiplier']:7.1f}  "
        f"accuracy {row['accuracy']:.3f}  eps_L of alpha {row['eps_L of alpha']:.2f}  "
        f"of the model {row['eps_L of the model']:.2f}"
        for row in games.to_dict("records")
    ]
    return Result(table, _draw(table), lines=tuple(lines))


def _data(many: int, outliers: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Data sets: records [many, n, 3] with a last coordinate of 1, and labels [many, n]."""
    half = _POINTS // 2
    centres = np.repeat([_NEGATIVE, _POSITIVE], half, axis=0)
    points = rng.standard_normal((many, _POINTS, 2)) + centres
    far = np.broadcast_to(_OUTLIER, (many, outliers, 2))
    places = np.concatenate([points, far], axis=1)
    labels = np.repeat([-1.0, 1.0, -1.0], [half, half, outliers])
    ones = np.ones((*places.shape[:2], 1))
    return np.concatenate([places, ones], axis=2), np.broadcast_to(labels, places.shape[:2])


def _descend(
    places: Array, labels: Array, alphas: Array, epochs: int, rng: np.random.Generator
) -> Array:
    """Their training: models [many, alphas, 3], one record a step, in a fresh order each epoch."""
    many, records = labels.shape
    models, rows = np.zeros((many, len(alphas), 3)), np.arange(many)
    for _ in range(epochs):
        order = rng.random((many, records)).argsort(axis=1)
        for record in order.T:
            x, y = places[rows, record][:, None, :], labels[rows, record][:, None]
            slack = (y * (models * x).sum(-1) < 1.0) * alphas * y
            models[..., :2] -= _RATE * 2.0 * models[..., :2]
            models += _RATE * slack[..., None] * x
    return models


def _accuracy(models: Array, places: Array, labels: Array) -> Array:
    """What models [many, m, 3] get right [many, m] of their training records."""
    margins = np.einsum("amk,ank->amn", models, places)
    return np.asarray((np.sign(margins) == labels[:, None, :]).mean(-1))


def _open_tuning(
    places: Array, labels: Array, epochs: int, tunings: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Every alpha once, the most accurate taken, of equals the smallest.

    Returns:
        alpha [tunings], how far the model sees the outliers' place as negative, and accuracy.
    """
    shape = tunings, labels.shape[1]
    places, labels = np.broadcast_to(places, (*shape, 3)), np.broadcast_to(labels, shape)
    models = _descend(places, labels, _ALPHAS, epochs, rng)
    accuracy = _accuracy(models, places, labels)
    best, rows = accuracy.argmax(1), np.arange(tunings)
    return _ALPHAS[best], -models[rows, best] @ (*_OUTLIER, 1.0), accuracy[rows, best]


def _private_tuning(
    places: Array, labels: Array, sigma: float, steps: int, tunings: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Random search over alphas, each run full-batch DP-SGD of one step an epoch.

    Returns:
        As `_open_tuning`, of tunings that made a run.
    """
    protocol = protocols.parse_protocol(_LAW)
    assert isinstance(protocol, protocols.RandomSearch)
    runs = protocol.repetitions.sample(rng, tunings)
    owner = np.repeat(np.arange(tunings), runs)
    alphas = rng.choice(_ALPHAS, len(owner))
    x, y = places[0], labels[0]
    x_clipped = x * np.minimum(1.0, _CLIP / np.linalg.norm(x, axis=1))[:, None]
    models = np.zeros((len(owner), 3))
    for _ in range(steps):
        slack = (y * (models @ x.T) < 1.0) * y
        noise = sigma * _CLIP * rng.standard_normal(models.shape)
        # The penalty is weighed by the public 40, not by how many records there are.
        models[:, :2] *= 1.0 - _RATE * 2.0 * _POINTS
        models += _RATE * alphas[:, None] * (slack @ x_clipped + noise)
    accuracy = _accuracy(models[None], places, labels)[0]
    best = best_of_each(owner, accuracy, rng.random(len(owner)))
    return alphas[best], -models[best] @ (*_OUTLIER, 1.0), accuracy[best]


def _game(
    arm: str, epsilon: float, sigma: float, sides: Sequence[tuple[Array, Array, Array]]
) -> dict[str, object]:
    """A row: what the games prove of the group of outliers, from alpha alone and the model."""
    (alpha, model, _), (alpha_with, model_with, accuracy) = sides
    return {
        "what": "game",
        "arm": arm,
        "epsilon": epsilon,
        "noise multiplier": sigma if math.isfinite(sigma) else 0.0,
        "accuracy": accuracy.mean(),
        "standard error": accuracy.std(ddof=1) / math.sqrt(len(accuracy)),
        "eps_L of alpha": Scan()(alpha, alpha_with, DELTA).epsilon,
        "eps_L of the model": Scan()(model, model_with, DELTA).epsilon,
    }


def _draw(table: pd.DataFrame) -> Figure:
    """Accuracy over alpha; beside it what alpha and model prove, over what was promised."""
    curves, games = table[table["what"] == "curve"], table[table["what"] == "game"]
    private = games[np.isfinite(games["epsilon"])]
    openly = games[~np.isfinite(games["epsilon"])].iloc[0]
    with style():
        page = figure(11.0, 4.6)
        left, right = page.subplots(1, 2)
        for number, (outliers, rows) in enumerate(curves.groupby("outliers")):
            left.errorbar(
                rows["alpha"],
                rows["accuracy"],
                2.0 * rows["standard error"],
                color=COLOURS[number],
                marker="o",
                capsize=3,
                label="with outliers" if outliers else "without outliers",
            )
        left.set(xlabel=r"$\alpha$", ylabel="training accuracy", xscale="log")
        left.set_title("not private, two standard errors", fontsize="medium", loc="left")
        left.legend(frameon=False)
        promised = np.geomspace(private["epsilon"].min(), private["epsilon"].max(), 50)
        right.plot(promised, promised, color="black", label="promised")
        for number, of in enumerate(("eps_L of alpha", "eps_L of the model")):
            name = of.removeprefix("eps_L of ")
            right.axhline(openly[of], color=COLOURS[number], ls=":", label=f"{name}, not private")
            for arm, rows in private.groupby("arm", sort=False):
                right.plot(
                    rows["epsilon"],
                    rows[of],
                    color=COLOURS[number],
                    ls="--" if arm == "Renyi bound" else "-",
                    marker="o",
                    label=f"{name}, {arm}",
                )
        top = 1.2 * max(openly["eps_L of alpha"], openly["eps_L of the model"], 1.0)
        right.set(xlabel=r"$\varepsilon$ of the tuning, for all outliers", xscale="log")
        right.set_ylim(-0.1, top)
        right.set_title(
            r"$\varepsilon_L$: that the outliers were there", fontsize="medium", loc="left"
        )
        right.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        for axes in (left, right):
            tidy(axes)
    return page
