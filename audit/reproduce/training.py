"""What tuning buys: accuracy at a total epsilon, by the papers' accounting and by ours.

Every arm is a protocol with a bound. The noise is the least at which that bound keeps the total,
so a smaller bound means less noise for the same promise. Tunings run on batches of runs; candidates
differ in learning rate and threshold, and the best is chosen by accuracy on validation records.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit import protocols
from audit.accounting import DpSgd
from audit.dpsgd import DpSgdSettings, RunBatch, RunOutcomes, make_engine
from audit.protocols import Protocol, RandomSearch, Subset
from audit.repetitions import Poisson, Repetitions
from audit.reproduce.laws import with_mean
from audit.reproduce.result import COLOURS, Result, figure, style, tidy
from audit.tuning.on_run_batches import GameContext, tune
from audit.upper_bounds import calibrate_noise
from audit.upper_bounds.published import cost_ratio
from audit.upper_bounds.registry import find
from threat_models import Observation, ThreatModel, UserScore, build

Array = NDArray[np.float64]

DELTA = 1e-5
"""Of every total."""


@dataclass(frozen=True)
class Arm:
    """A way of tuning with a way of counting what it costs.

    Attributes:
        name: in table and picture.
        protocol: how the best run is chosen, as text.
        bound: that keeps the total.
        ours: whether the bound is ours.
    """

    name: str
    protocol: str
    bound: str
    ours: bool

    @property
    def parsed(self) -> Protocol:
        """The protocol."""
        return protocols.parse_protocol(self.protocol)

    def noise_multiplier(self, epsilon: float, steps: int) -> float:
        """The least noise at which the whole tuning keeps epsilon."""
        bound = find(self.bound, type(self.parsed)).function
        return calibrate_noise(
            self.parsed, target_epsilon=epsilon, target_delta=DELTA, steps=steps, bound=bound
        )


def best_of_each(owner: NDArray[np.int64], *scores: Array) -> NDArray[np.intp]:
    """The best run of every tuning that has one.

    Args:
        owner: whose each run is, [n].
        *scores: [n] each, the larger the better; later ones break ties of those before.
    """
    order = np.lexsort((*scores[::-1], owner))
    # The last of every tuning.
    return order[np.append(np.diff(owner[order]) > 0, True)[: len(order)]]


def hypo_training(
    epsilons: Sequence[float] = (4.0, 8.0, 15.0),
    dataset: str = "MNIST",
    data_root: str = "",
    records: int = 5000,
    validation: int = 1000,
    steps: int = 20,
    tunings: int = 12,
    seed: int = 1,
) -> Result:
    """DP-HyPO's comparison: a Gaussian process against uniform choice at equal total budget.

    Args:
        epsilons: totals.
        dataset: a data set's name.
        data_root: its folder; empty for AUDIT_DATA_ROOT.
        records: training records.
        validation: validation records.
        steps: of one run, each on all records.
        tunings: played for every point.
        seed: of everything random.
    """
    adaptive, law = "adaptive:0.75,2/tnb:1,0.1", "tnb:1,0.1"
    arms = [
        Arm("GP, theorem 1 of DP-HyPO", adaptive, "hypo", False),
        Arm("GP, adaptive bound", adaptive, "adaptive-histories", True),
        Arm("uniform, Renyi bound", law, "renyi", False),
        Arm("uniform, region bound", law, "region", True),
    ]
    data = _data(dataset, data_root, records, validation)
    return _compare(arms, epsilons, data, steps, tunings, seed)


def kk_training(
    epsilons: Sequence[float] = (2.0, 8.0),
    dataset: str = "MNIST",
    data_root: str = "",
    records: int = 5000,
    validation: int = 1000,
    steps: int = 20,
    tunings: int = 12,
    seed: int = 1,
) -> Result:
    """Koskela & Kulkarni's curves: accuracy of tuning on a tenth against tuning on everything.

    Args:
        epsilons: totals.
        dataset: a data set's name.
        data_root: its folder; empty for AUDIT_DATA_ROOT.
        records: training records.
        validation: validation records.
        steps: of one run, each on all records.
        tunings: played for every point.
        seed: of everything random.
    """
    subset, law = "subset:0.1/tnb:1,0.1", "tnb:1,0.1"
    arms = [
        Arm("subset, Koskela & Kulkarni", subset, "koskela-kulkarni", False),
        Arm("subset, subset bound", subset, "subset", True),
        Arm("everything, Renyi bound", law, "renyi", False),
        Arm("everything, region bound", law, "region", True),
    ]
    data = _data(dataset, data_root, records, validation)
    return _compare(arms, epsilons, data, steps, tunings, seed)


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
    """Papernot & Steinke's figure 7: accuracy over the total, by law of K, at one noise.

    Args:
        means: E[K] of every law.
        dataset: a data set's name.
        data_root: its folder; empty for AUDIT_DATA_ROOT.
        noise_multiplier: of every run.
        records: training records.
        validation: validation records.
        steps: of one run, each on all records.
        tunings: played for every point.
        seed: of everything random.
    """
    data = _data(dataset, data_root, records, validation)
    base, rows = DpSgd(noise_multiplier, steps), []
    for number, (name, law_of) in enumerate(_LAWS.items()):
        for mean in means:
            protocol = RandomSearch(law_of(mean))
            rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
            found = _accuracies(protocol, noise_multiplier, data, steps, tunings, rng)
            # A tuning without any run guesses.
            found = np.append(found, np.full(tunings - len(found), 0.1))
            for bound, ours in (("renyi", False), ("region", True)):
                epsilon = find(bound).function(base, protocol, DELTA).epsilon
                rows.append(
                    {
                        "epsilon": math.nan if epsilon is None else epsilon,
                        "arm": f"{name}, {'region' if ours else 'Renyi'} bound",
                        "ours": ours,
                        "mean": mean,
                        "accuracy": found.mean(),
                        "standard error": found.std(ddof=1) / math.sqrt(tunings),
                    }
                )
    table = pd.DataFrame(rows)
    lines = [
        f"E[K] {row['mean']:4g}  {row['arm']:26} epsilon {row['epsilon']:7.3f}  "
        f"accuracy {row['accuracy']:.3f} +- {row['standard error']:.3f}"
        for row in rows
    ]
    return Result(table, _draw(table), lines=tuple(lines))


_LAWS: dict[str, Callable[[float], Repetitions]] = {
    "logarithmic": lambda mean: with_mean(0.0, mean),
    "eta = 0.5": lambda mean: with_mean(0.5, mean),
    "geometric": lambda mean: with_mean(1.0, mean),
    "Poisson": Poisson,
}


def _data(dataset: str, data_root: str, records: int, validation: int) -> ThreatModel:
    """Records and a score, accuracy; nobody attacks here."""
    root = data_root or None
    found = build("NTNV", "dirac", None, dataset, root, 0, records, validation)
    held_out = found.validation_set
    assert held_out is not None

    def accuracy(observation: Observation) -> Array:
        import torch

        seen: Any = observation  # of the batched engine, which has logits
        like, right = seen.theta[0], torch.zeros(len(seen.theta[0]))
        for start in range(0, len(held_out), seen.records_at_once):
            part = slice(start, start + seen.records_at_once)
            x = torch.from_numpy(np.array(held_out.features[part])).to(like)
            y = torch.from_numpy(np.array(held_out.labels[part]))
            right += (seen.logits(x).argmax(-1) == y).sum(1)
        return np.asarray(right.double().numpy() / len(held_out))

    return replace(found, score=UserScore(accuracy, "accuracy"))


def _compare(
    arms: Sequence[Arm],
    epsilons: Sequence[float],
    data: ThreatModel,
    steps: int,
    tunings: int,
    seed: int,
) -> Result:
    rows = []
    for epsilon in epsilons:
        for number, arm in enumerate(arms):
            sigma = arm.noise_multiplier(epsilon, steps)
            rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
            found = _accuracies(arm.parsed, sigma, data, steps, tunings, rng)
            rows.append(
                {
                    "epsilon": epsilon,
                    "arm": arm.name,
                    "ours": arm.ours,
                    "noise multiplier": sigma,
                    "epsilon of one run": DpSgd(sigma, steps).epsilon(DELTA),
                    "accuracy": found.mean(),
                    "standard error": found.std(ddof=1) / math.sqrt(len(found)),
                    "cost ratio": _cost_ratio(arm.parsed),
                }
            )
    table = pd.DataFrame(rows)
    lines = [
        f"epsilon {row['epsilon']:g}, {row['arm']:28} noise {row['noise multiplier']:7.3f}  "
        f"accuracy {row['accuracy']:.3f} +- {row['standard error']:.3f}"
        for row in rows
    ]
    return Result(table, _draw(table), lines=tuple(lines))


def _cost_ratio(protocol: Protocol) -> float:
    """How many times fewer gradients it takes than a search over everything."""
    if not isinstance(protocol, Subset):
        return 1.0
    return cost_ratio(protocol.repetitions.mean, protocol.sampling_rate)


def _accuracies(
    protocol: Protocol,
    sigma: float,
    data: ThreatModel,
    steps: int,
    tunings: int,
    rng: np.random.Generator,
) -> Array:
    """What the released models get right [n], of tunings that released one."""
    rates = tuple(float(rate) for rate in np.geomspace(1e-4, 0.3, 8))
    settings = DpSgdSettings(steps, sigma, (0.5, 2.0), rates, model="logistic")
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
    # Of a tuning on a subset the final runs are the last that were made.
    scores = last[0].scores if isinstance(protocol, Subset) else winners.score
    return np.asarray(scores[np.isfinite(scores)])


def _draw(table: pd.DataFrame) -> Figure:
    """Accuracy over the total epsilon; ours full, the papers' dashed."""
    with style():
        page = figure()
        axes = page.subplots()
        for number, (arm, rows) in enumerate(table.groupby("arm", sort=False)):
            axes.errorbar(
                rows["epsilon"],
                rows["accuracy"],
                2.0 * rows["standard error"],
                color=COLOURS[number // 2],
                ls="-" if rows["ours"].iloc[0] else "--",
                marker="o",
                capsize=3,
                label=arm,
            )
        axes.set(xlabel=r"$\varepsilon$ of the whole", ylabel="accuracy")
        axes.set_title(rf"$\delta$ = {DELTA:g}, two standard errors", fontsize="medium", loc="left")
        tidy(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return page
