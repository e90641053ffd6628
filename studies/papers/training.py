"""Accuracy at the same total epsilon, by the papers' accounting and by ours.

Each arm is a protocol with a bound on its cost. It uses the smallest noise for which the bound on
the whole tuning is the total epsilon, so a smaller bound means less noise. Candidates differ in
learning rate and clipping norm; the best run is chosen by its accuracy on validation records.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from audit.accounting import DpSgd
from audit.dpsgd import DpSgdSettings, RunBatch, RunOutcomes, make_engine
from audit.numerics import FloatArray
from audit.protocols import Protocol, RandomSearch, Subset
from audit.repetitions import Poisson, Repetitions
from audit.simulation import GameContext, tune
from audit.upper_bounds.registry import find
from studies.papers.distributions import cost_ratio, tnb_with_mean
from studies.papers.result import COLOURS, Result, figure, legend, plot_means, style, tidy
from studies.papers.tunings import DELTA, Arm, mean_and_error
from threat_models import Observation, ThreatModel, UserScore, build


def compare(
    arms: Sequence[Arm],
    epsilons: Sequence[float],
    dataset: str = "MNIST",
    data_root: str = "",
    records: int = 5000,
    validation: int = 1000,
    steps: int = 20,
    tunings: int = 12,
    seed: int = 1,
) -> Result:
    """Accuracy of each arm at the same total epsilon.

    Args:
        arms: protocols with the bounds on their cost.
        epsilons: total epsilons.
        dataset: name of a data set.
        data_root: folder of the data sets; AUDIT_DATA_ROOT if empty.
        records: number of training records.
        validation: number of validation records.
        steps: steps of one run, each on all records.
        tunings: number of tunings per point.
        seed: seed of all random draws.
    """
    data = _data(dataset, data_root, records, validation)
    rows = []
    for epsilon in epsilons:
        for number, arm in enumerate(arms):
            noise = arm.noise_multiplier(epsilon, steps)
            rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
            accuracies = _accuracies(arm.protocol, noise, data, steps, tunings, rng)
            rows.append(
                {
                    "epsilon": epsilon,
                    "arm": arm.name,
                    "ours": arm.ours,
                    "noise multiplier": noise,
                    "epsilon of one run": DpSgd(noise, steps).epsilon(DELTA),
                    **mean_and_error(accuracies, "accuracy"),
                    "cost ratio": _cost_ratio(arm.protocol),
                }
            )
    return _result(rows, "noise multiplier")


# DP-HyPO: a Gaussian process compared with uniform choice.
_HYPO = (
    Arm("GP, theorem 1 of DP-HyPO", "adaptive:0.75,2/tnb:1,0.1", "hypo", False),
    Arm("GP, adaptive bound", "adaptive:0.75,2/tnb:1,0.1", "adaptive-histories", True),
    Arm("uniform, Renyi bound", "tnb:1,0.1", "renyi", False),
    Arm("uniform, region bound", "tnb:1,0.1", "region", True),
)
# Koskela & Kulkarni: tuning on a tenth of the records compared with tuning on all.
_KK = (
    Arm("subset, Koskela & Kulkarni", "subset:0.1/tnb:1,0.1", "koskela-kulkarni", False),
    Arm("subset, subset bound", "subset:0.1/tnb:1,0.1", "subset", True),
    Arm("everything, Renyi bound", "tnb:1,0.1", "renyi", False),
    Arm("everything, region bound", "tnb:1,0.1", "region", True),
)
hypo_training = functools.partial(compare, _HYPO, epsilons=(4.0, 8.0, 15.0))
kk_training = functools.partial(compare, _KK, epsilons=(2.0, 8.0))


_DISTRIBUTIONS: dict[str, Callable[[float], Repetitions]] = {
    "logarithmic": lambda mean: tnb_with_mean(0.0, mean),
    "eta = 0.5": lambda mean: tnb_with_mean(0.5, mean),
    "geometric": lambda mean: tnb_with_mean(1.0, mean),
    "Poisson": Poisson,
}


def ps_figure_7(
    means: Sequence[float] = (3.0, 10.0, 30.0),
    dataset: str = "MNIST",
    data_root: str = "",
    noise_multiplier: float = 6.0,
    records: int = 5000,
    validation: int = 1000,
    steps: int = 20,
    tunings: int = 12,
    seed: int = 1,
) -> Result:
    """Papernot & Steinke, figure 7: accuracy over the total epsilon, by distribution of K.

    The settings are those of `compare`, with E[K] and one noise multiplier for all runs.
    """
    data = _data(dataset, data_root, records, validation)
    base, rows = DpSgd(noise_multiplier, steps), []
    for number, (name, with_mean) in enumerate(_DISTRIBUTIONS.items()):
        for mean in means:
            protocol = RandomSearch(with_mean(mean))
            rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
            accuracies = _accuracies(protocol, noise_multiplier, data, steps, tunings, rng)
            # A tuning without any run guesses one of ten classes.
            accuracies = np.append(accuracies, np.full(tunings - len(accuracies), 0.1))
            for bound, ours in (("renyi", False), ("region", True)):
                total = find(bound).function(base, protocol, DELTA)
                rows.append(
                    {
                        "epsilon": total.epsilon if total.applies else math.nan,
                        "arm": f"{name}, {'region' if ours else 'Renyi'} bound",
                        "ours": ours,
                        "mean": mean,
                        **mean_and_error(accuracies, "accuracy"),
                    }
                )
    return _result(rows, "mean")


def _data(dataset: str, data_root: str, records: int, validation: int) -> ThreatModel:
    """Training records, and the accuracy on validation records as the score; without an attack."""
    root = data_root or None
    threat_model = build("NTNV", "dirac", None, dataset, root, 0, records, validation)
    held_out = threat_model.validation_set
    assert held_out is not None

    def accuracy(observation: Observation) -> FloatArray:
        import torch

        models: Any = observation  # of the batched engine, which has logits
        like, correct = models.theta[0], torch.zeros(len(models.theta[0]))
        for start in range(0, len(held_out), models.records_at_once):
            part = slice(start, start + models.records_at_once)
            x = torch.from_numpy(np.array(held_out.features[part])).to(like)
            y = torch.from_numpy(np.array(held_out.labels[part]))
            correct += (models.logits(x).argmax(-1) == y).sum(1)
        return np.asarray(correct.double().numpy() / len(held_out))

    return replace(threat_model, score=UserScore(accuracy, "accuracy"))


def _cost_ratio(protocol: Protocol) -> float:
    """Gradients of a search on all records, divided by those of this protocol."""
    if not isinstance(protocol, Subset):
        return 1.0
    return cost_ratio(protocol.repetitions.mean, protocol.sampling_rate)


def _accuracies(
    protocol: Protocol,
    noise_multiplier: float,
    data: ThreatModel,
    steps: int,
    tunings: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Accuracies [n] of the released models, for the tunings that released one."""
    rates = tuple(float(rate) for rate in np.geomspace(1e-4, 0.3, 8))
    settings = DpSgdSettings(steps, noise_multiplier, (0.5, 2.0), rates, model="logistic")
    engine = make_engine("batched", data, settings)
    last: list[RunOutcomes] = []

    def run(batch: RunBatch) -> list[RunOutcomes]:
        last[:] = [engine.run(batch)]
        return last

    assert data.training_set is not None
    axes = [np.log(values) for values in np.array(settings.candidates)[:, :2].T]
    features = np.stack([(axis - axis.min()) / np.ptp(axis) for axis in axes], axis=1)
    context = GameContext(
        run,
        features,
        tuned_log_ratio=lambda winners: np.zeros(len(winners.runs)),
        log_ratio_scale=1.0,
        records=len(data.training_set),
    )
    (winners,) = tune(protocol, context, np.zeros(tunings, np.bool_), rng)
    # A tuning on a subset trains its final runs, which it releases, in the last batch.
    scores = last[0].scores if isinstance(protocol, Subset) else winners.score
    return np.asarray(scores[np.isfinite(scores)])


def _result(rows: list[dict[str, Any]], setting: str) -> Result:
    """Table, figure and printed lines of the rows, with one setting in each line."""
    table = pd.DataFrame(rows)
    lines = (
        f"epsilon {row['epsilon']:6.3f}, {row['arm']:26}  {setting} {row[setting]:7.3f}  "
        f"accuracy {row['accuracy']:.3f} +- {row['standard error']:.3f}"
        for row in rows
    )
    return Result(table, _draw(table), lines=tuple(lines))


def _draw(table: pd.DataFrame) -> Figure:
    """Accuracy over the total epsilon; our bounds as solid lines, the papers' as dashed lines."""
    with style():
        page = figure()
        axes = page.subplots()
        for number, (arm, rows) in enumerate(table.groupby("arm", sort=False)):
            dashes = "-" if rows["ours"].iloc[0] else "--"
            look = {"color": COLOURS[number // 2], "ls": dashes, "label": arm}
            plot_means(axes, rows, "epsilon", "accuracy", **look)
        axes.set(xlabel=r"$\varepsilon$ of the tuning", ylabel="accuracy")
        axes.set_title(rf"$\delta$ = {DELTA:g}, two standard errors", fontsize="medium", loc="left")
        tidy(axes)
        legend(axes)
    return page
