"""DP-HyPO (Wang et al. 2023): its budgets. Koskela & Kulkarni 2023: the bound over q."""

import math
from collections.abc import Sequence

import numpy as np

from audit.accounting import DpSgd
from audit.protocols import Adaptive, Subset
from audit.repetitions import Poisson
from audit.reproduce.laws import with_mean
from audit.reproduce.result import Comparison, Curves, Result, draw, figure, plot, style
from audit.upper_bounds.published import cost_ratio, hypo, koskela_kulkarni, lemma_7

_SPENT = "E[K] at which theorem 1 spends the budget"
# (data set, records, epsilon of the tuning, sigma of GP, sigma of Uniform).
_HYPO = (("MNIST", 60000, 15.0, 0.71, 0.64), ("CIFAR-10", 50000, 12.0, 0.65, 0.60))


def hypo_budgets(
    batch: int = 256,
    epochs: int = 10,
    ratio: float = 2.0 / 0.75,
    delta: float = 1e-5,
    largest: float = 1e6,
    points: int = 25,
) -> Result:
    """DP-HyPO's experiments: what its noise costs, over the expected geometric number of runs.

    Args:
        batch: expected records of a batch.
        epochs: of one run.
        ratio: C/c of the adaptive method.
        delta: of the tuning.
        largest: E[K] up to which the curves go.
        points: of each curve.
    """
    curves = Curves("mean", "epsilon")
    compared = []
    means = np.geomspace(1.5, largest, points)
    for data, records, budget, adaptive, uniform in _HYPO:
        for method, sigma, moved in (("GP", adaptive, ratio), ("Uniform", uniform, 1.0)):
            base = DpSgd(sigma, round(epochs * records / batch), batch / records)
            epsilons = [_spent(mean, base, delta, moved) for mean in means]
            curves.add(rf"{method}, $\sigma$ = {sigma:g}", means, epsilons, data=data)
            reached = math.exp(np.interp(budget, epsilons, np.log(means)))
            curves.add(_SPENT, [reached], [_spent(reached, base, delta, moved)], data=data)
            three = 3.0 * (base.renyi_epsilon(delta) + math.log(moved))
            what = f"{data}, {method}: 3 (eps of one run + log C/c)"
            compared.append(Comparison(what, budget, three))
    table = curves.table
    with style():
        page = figure(11.5, 4.6)
        panels = page.subplots(1, len(_HYPO), sharey=True)
        for axes, (data, _, budget, *_) in zip(panels, _HYPO, strict=True):
            rows = table[table["data"] == data]
            plot(axes, rows[rows["curve"] != _SPENT], "mean", "epsilon")
            spent_at = rows[rows["curve"] == _SPENT]
            axes.plot(
                spent_at["mean"], spent_at["epsilon"], "ko", ms=6, label="E[K] that spends it"
            )
            axes.axhline(budget, color="0.3", lw=1.2, ls=(0, (2, 2)), label="published budget")
            axes.set(xscale="log", xlabel="E[K], geometric", ylim=(0.0, None))
            axes.set_title(data, fontsize="medium", loc="left")
            axes.legend(loc="lower right", fontsize="small")
        panels[0].set_ylabel(rf"$\varepsilon$ of the tuning at $\delta$ = {delta:g}")
    return Result(table, page, tuple(compared))


def _spent(mean: float, base: DpSgd, delta: float, ratio: float) -> float:
    """Theorem 1 for a geometric number of runs."""
    protocol = Adaptive(with_mean(1.0, mean), 1.0 / math.sqrt(ratio), math.sqrt(ratio))
    return hypo(base, protocol, delta).epsilon or math.nan


def subset_bound(
    noise_multiplier: float = 2.0,
    sampling_rate: float = 0.01,
    steps: int = 1000,
    means: Sequence[float] = (10.0, 40.0),
    delta: float = 1e-5,
    points: int = 15,
) -> Result:
    """Koskela & Kulkarni: epsilon over q, the share of records that the tuning sees.

    The tuning is accounted for by lemma 7 of Papernot & Steinke; their theorem 6, which the paper
    takes, gives the same to three digits.
    """
    base = DpSgd(noise_multiplier, steps, sampling_rate)
    shares = np.linspace(0.0, 1.0, points) ** 2  # most happens near 0
    curves = Curves("q", "epsilon")
    for mean in means:
        law = Poisson(mean)
        epsilons = [koskela_kulkarni(base, Subset(law, float(q)), delta).epsilon for q in shares]
        curves.add(f"tune on a share q, E[K] = {mean:g}", shares, epsilons)
        everything = lemma_7(base, law, delta).epsilon
        curves.add(f"tune on everything, E[K] = {mean:g}", [0.0, 1.0], [everything] * 2)
    curves.add("one run, no tuning", [0.0, 1.0], [base.renyi_epsilon(delta)] * 2)
    title = f"Poisson K, DP-SGD, {steps} steps, noise {noise_multiplier:g}, rate {sampling_rate:g}"
    y = rf"$\varepsilon$ at $\delta$ = {delta:g}"
    picture = draw(curves, title, "q, share of the records tuned on", y, ylim=(0.0, None))
    compared = tuple(
        Comparison(f"times cheaper at q = 0.1, E[K] = {mean:g}", printed, cost_ratio(mean, 0.1))
        for mean, printed in ((10.0, 5.0), (40.0, 8.0))
    )
    return Result(curves.table, picture, compared)
