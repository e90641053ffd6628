"""Wang et al. 2023: DP-HyPO's budgets. Koskela & Kulkarni 2023: tuning on a subset, over q."""

import math
from collections.abc import Sequence

import numpy as np

from audit.accounting import DpSgd
from audit.protocols import Adaptive, Subset
from audit.repetitions import Poisson
from audit.upper_bounds.published import hypo, koskela_kulkarni, lemma_7
from studies.papers.distributions import cost_ratio, tnb_with_mean
from studies.papers.result import Comparison, Curves, Result, draw, figure, plot, style

_AT_BUDGET = "E[K] at which theorem 1 gives the budget"
# Data set, records, epsilon of the tuning, noise multipliers of GP and of Uniform.
_HYPO = (("MNIST", 60000, 15.0, 0.71, 0.64), ("CIFAR-10", 50000, 12.0, 0.65, 0.60))


def hypo_budgets(
    batch: int = 256,
    epochs: int = 10,
    ratio: float = 2.0 / 0.75,
    delta: float = 1e-5,
    largest: float = 1e6,
    points: int = 25,
) -> Result:
    """DP-HyPO: the cost of its experiments' noise, over the mean of a geometric K.

    Args:
        batch: expected batch size.
        epochs: epochs of one run.
        ratio: C/c of the adaptive method.
        delta: delta of the tuning.
        largest: largest E[K].
        points: points per curve.
    """
    curves = Curves("mean", "epsilon")
    compared = []
    means = np.geomspace(1.5, largest, points)
    for data, records, budget, adaptive, uniform in _HYPO:
        for method, noise, method_ratio in (("GP", adaptive, ratio), ("Uniform", uniform, 1.0)):
            base = DpSgd(noise, round(epochs * records / batch), batch / records)
            epsilons = [_theorem_1(mean, base, delta, method_ratio) for mean in means]
            curves.add(rf"{method}, $\sigma$ = {noise:g}", means, epsilons, data=data)
            reached = math.exp(np.interp(budget, epsilons, np.log(means)))
            cost = _theorem_1(reached, base, delta, method_ratio)
            curves.add(_AT_BUDGET, [reached], [cost], data=data)
            three = 3.0 * (base.renyi_epsilon(delta) + math.log(method_ratio))
            name = f"{data}, {method}: 3 (eps of one run + log C/c)"
            compared.append(Comparison(name, budget, three))
    table = curves.table
    with style():
        page = figure(11.5, 4.6)
        panels = page.subplots(1, len(_HYPO), sharey=True)
        for axes, (data, _, budget, *_) in zip(panels, _HYPO, strict=True):
            rows = table[table["data"] == data]
            plot(axes, rows[rows["curve"] != _AT_BUDGET], "mean", "epsilon")
            at_budget = rows[rows["curve"] == _AT_BUDGET]
            axes.plot(at_budget["mean"], at_budget["epsilon"], "ko", ms=6, label="E[K] at budget")
            axes.axhline(budget, color="0.3", lw=1.2, ls=(0, (2, 2)), label="published budget")
            axes.set(xscale="log", xlabel="E[K], geometric", ylim=(0.0, None))
            axes.set_title(data, fontsize="medium", loc="left")
            axes.legend(loc="lower right", fontsize="small")
        panels[0].set_ylabel(rf"$\varepsilon$ of the tuning at $\delta$ = {delta:g}")
    return Result(table, page, tuple(compared))


def _theorem_1(mean: float, base: DpSgd, delta: float, ratio: float) -> float:
    """Theorem 1 of DP-HyPO for a geometric K."""
    root = math.sqrt(ratio)
    protocol = Adaptive(tnb_with_mean(1.0, mean), 1.0 / root, root)
    bound = hypo(base, protocol, delta)
    return bound.epsilon if bound.applies else math.nan


def subset_bound(
    noise_multiplier: float = 2.0,
    sampling_rate: float = 0.01,
    steps: int = 1000,
    means: Sequence[float] = (10.0, 40.0),
    delta: float = 1e-5,
    points: int = 15,
) -> Result:
    """Koskela & Kulkarni: epsilon over q, the fraction of the records used for tuning.

    The tuning is accounted for by lemma 7 of Papernot & Steinke. Their theorem 6, which the paper
    uses, agrees to three digits.
    """
    base = DpSgd(noise_multiplier, steps, sampling_rate)
    fractions = np.linspace(0.0, 1.0, points) ** 2  # the curve bends near 0
    curves = Curves("q", "epsilon")
    for mean in means:
        epsilons = [
            koskela_kulkarni(base, Subset(Poisson(mean), float(q)), delta).epsilon
            for q in fractions
        ]
        curves.add(f"tune on a fraction q, E[K] = {mean:g}", fractions, epsilons)
        everything = lemma_7(base, Poisson(mean), delta).epsilon
        curves.add(f"tune on all records, E[K] = {mean:g}", [0.0, 1.0], [everything] * 2)
    curves.add("one run, no tuning", [0.0, 1.0], [base.renyi_epsilon(delta)] * 2)
    title = f"Poisson K, DP-SGD, {steps} steps, noise {noise_multiplier:g}, rate {sampling_rate:g}"
    y = rf"$\varepsilon$ at $\delta$ = {delta:g}"
    picture = draw(curves, title, "q, fraction of the records for tuning", y, ylim=(0.0, None))
    compared = tuple(
        Comparison(f"times fewer gradients at q = 0.1, E[K] = {m:g}", printed, cost_ratio(m, 0.1))
        for m, printed in ((10.0, 5.0), (40.0, 8.0))
    )
    return Result(curves.table, picture, compared)
