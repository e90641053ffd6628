"""Koskela, Redberg & Wang 2024: figures 1 to 4 and 6 to 8; `regression` has figure 5."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from audit.accounting import (
    DpSgd,
    GaussianMechanism,
    Mechanism,
    RenyiCurve,
    WorstOf,
    renyi_to_epsilon,
)
from audit.numerics import FloatArray, last_integer
from audit.protocols import NoisyMax
from audit.repetitions import Binomial, Poisson, Repetitions
from audit.upper_bounds import UpperBound, region
from audit.upper_bounds.published import noisy_max, profile, renyi
from studies.papers.distributions import Bound, tnb_with_mean
from studies.papers.result import (
    Comparison,
    Curves,
    Result,
    draw,
    figure,
    legend,
    plot,
    style,
)

Family = tuple[Callable[[float], Repetitions], Bound]

_OURS = "region (ours)"
_RENYI = "RDP bound"
# Opacus computes Renyi divergences at these orders.
_ORDERS = np.concatenate([1.0 + np.arange(1, 100) / 10.0, np.arange(12.0, 64.0)])
_PROFILE = "hockey-stick bound"


def _geometric(mean: float) -> Repetitions:
    return tnb_with_mean(1.0, mean)


def _renyi_only(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """The bound that uses only the base's Renyi divergences at the orders of Opacus."""
    return renyi(RenyiCurve(_ORDERS, base.renyi(_ORDERS)), repetitions, delta)


def _label(delta: float) -> str:
    return rf"$\varepsilon$ at $\delta$ = {delta:g}"


def noisy_max_closed_form(candidates: int, scale: float, delta: float) -> float:
    """Epsilon for Gaussian noise, 2/sigma^2 + (2/sigma) sqrt(2 log(m/delta)) (corollary 3.4)."""
    return 2.0 / scale**2 + 2.0 / scale * math.sqrt(2.0 * math.log(candidates / delta))


def noisy_max_renyi(candidates: int, scale: float, delta: float) -> float:
    """Epsilon for Gaussian noise by Renyi divergences, D_alpha + log(m)/(alpha-1) (theorem 3.1)."""
    base = GaussianMechanism(2.0 / scale)
    return renyi_to_epsilon(
        lambda alpha: base.renyi(alpha) + np.log(candidates) / (alpha - 1.0), delta
    )


def figure_1(
    sigma: float = 4.0, delta: float = 1e-6, largest: float = 1e5, points: int = 41
) -> Result:
    """Report noisy max of m queries of sensitivity 1: epsilon over m."""
    queries = [int(m) for m in np.unique(np.rint(np.geomspace(10.0, largest, points)))]
    curves = Curves("m", "epsilon")
    closed = [noisy_max_closed_form(m, sigma, delta) for m in queries]
    curves.add("corollary 3.4, closed form", queries, closed)
    curves.add(
        f"{_RENYI}, theorem 3.1", queries, [noisy_max_renyi(m, sigma, delta) for m in queries]
    )
    base = GaussianMechanism(1.0 / sigma)
    tight = [noisy_max(base, NoisyMax(m), delta).epsilon for m in queries]
    curves.add(f"{_PROFILE}, theorem 3.2", queries, tight)
    title = rf"Report noisy max, Gaussian noise $\sigma$ = {sigma:g}"
    picture = draw(curves, title, "number of queries m", _label(delta), x_scale="log")
    return Result(curves.table, picture)


def figure_2(
    sigma: float = 4.0, means: Sequence[float] = (30, 300, 3000), points: int = 61
) -> Result:
    """Privacy profiles for a geometric number of runs of a Gaussian mechanism."""
    base = GaussianMechanism(1.0 / sigma)
    deltas = np.geomspace(1e-10, 1e-2, points)
    curves = Curves("epsilon", "delta")
    for name, bound in ((_RENYI, renyi), (_PROFILE, profile)):
        for mean in means:
            epsilons = [bound(base, _geometric(mean), delta).epsilon for delta in deltas]
            curves.add(f"{name}, m = {mean:g}", epsilons, deltas)
    middle = means[len(means) // 2]
    epsilons = [region(base, _geometric(middle), delta).epsilon for delta in deltas]
    curves.add(f"{_OURS}, m = {middle:g}", epsilons, deltas)
    curves.add("one run", [base.epsilon(delta) for delta in deltas], deltas)
    picture = draw(
        curves,
        rf"Geometric K, E[K] = m, Gaussian base $\sigma$ = {sigma:g}",
        r"$\varepsilon$",
        r"$\delta$",
        y_scale="log",
        xlim=(0.0, 4.0),
    )
    return Result(curves.table, picture)


def _by_mean(
    base: Mechanism,
    delta: float,
    means: Sequence[float] | FloatArray,
    families: Mapping[str, Family],
) -> Curves:
    """Epsilon over E[K], one curve for each family of distributions with its bound."""
    curves = Curves("mean", "epsilon")
    for name, (with_mean, bound) in families.items():
        answers = [bound(base, with_mean(mean), delta) for mean in means]
        curves.add(name, means, [answer.epsilon for answer in answers])
    return curves


_GEOMETRIC: dict[str, Family] = {
    f"{_RENYI}, theorem 5.1": (_geometric, renyi),
    f"{_PROFILE}, theorem 5.2": (_geometric, profile),
    _OURS: (_geometric, region),
}


def figure_3(
    sigma: float = 4.0, delta: float = 1e-6, largest: float = 1e5, points: int = 25
) -> Result:
    """Epsilon over the expected geometric number of runs of a Gaussian mechanism."""
    base = GaussianMechanism(1.0 / sigma)
    curves = _by_mean(base, delta, np.geomspace(10.0, largest, points), _GEOMETRIC)
    title = rf"Geometric K, Gaussian base $\sigma$ = {sigma:g}"
    picture = draw(curves, title, "E[K] = m", _label(delta), x_scale="log", ylim=(0.0, None))
    return Result(curves.table, picture)


def figure_4(
    sigma: float = 4.0, mean: float = 10.0, sizes: Sequence[int] = (15, 20, 1000), points: int = 61
) -> Result:
    """Binomial and Poisson K with the same mean: privacy profiles and distribution functions."""
    base = GaussianMechanism(1.0 / sigma)
    deltas = np.geomspace(1e-10, 1e-2, points)
    poisson = Poisson(mean)
    binomials = {f"binomial, n = {n}": Binomial(n, mean / n) for n in sizes}
    narrowest = f"binomial, n = {sizes[0]}"
    curves = Curves("x", "y")
    bounds: list[tuple[str, Repetitions, Bound]] = [
        ("Poisson", poisson, _renyi_only),
        *((name, binomial, profile) for name, binomial in binomials.items()),
        ("Poisson, profile of the base known", poisson, renyi),
        (f"{narrowest}, {_OURS}", binomials[narrowest], region),
    ]
    for name, repetitions, bound in bounds:
        epsilons = [bound(base, repetitions, delta).epsilon for delta in deltas]
        curves.add(name, epsilons, deltas, panel="delta over epsilon")
    counts = np.arange(2.0 * mean + 1.0)
    for name, repetitions in ({"Poisson": poisson} | binomials).items():
        curves.add(name, counts, np.cumsum(repetitions.pmf(counts)), panel="P[K <= k] over k")
    table = curves.table
    with style():
        page = figure(11.5, 4.6)
        left, right = page.subplots(1, 2)
        names = list(dict.fromkeys(table["curve"]))
        for axes, panel in ((left, "delta over epsilon"), (right, "P[K <= k] over k")):
            plot(axes, table[table["panel"] == panel], "x", "y", names=names)
        left.set(xlabel=r"$\varepsilon$", ylabel=r"$\delta$", yscale="log", xlim=(0.0, 3.0))
        right.set(xlabel="k", ylabel=r"P[K $\leq$ k]", xlim=(0.0, 2.0 * mean))
        left.set_title("Poisson by RDP (theorem 5.6),\nbinomial by theorem 5.7", fontsize="medium")
        right.set_title(f"distribution functions, E[K] = {mean:g}", fontsize="medium")
        legend(right, left.get_legend_handles_labels()[0])
    return Result(table, page)


def figure_6(
    noise_multiplier: float = 1.1,
    sampling_rate: float = 256 / 60000,
    epochs: float = 60.0,
    delta: float = 1e-6,
    largest: float = 30.0,
    points: int = 15,
) -> Result:
    """Epsilon over Poisson and geometric E[K], for the DP-SGD of Papernot & Steinke."""
    base = DpSgd(noise_multiplier, round(epochs / sampling_rate), sampling_rate)
    families: dict[str, Family] = {
        f"Poisson, {_RENYI}, theorem 5.6": (Poisson, _renyi_only),
        "Poisson, profile of the base known": (Poisson, renyi),
        f"Poisson, {_PROFILE}, corollary 5.8": (Poisson, profile),
        f"Poisson, {_OURS}": (Poisson, region),
    }
    geometric = {f"geometric, {name}": pair for name, pair in _GEOMETRIC.items()}
    curves = _by_mean(base, delta, np.linspace(2.0, largest, points), families | geometric)
    title = f"DP-SGD, {base.steps} steps, noise {noise_multiplier:g}, rate {sampling_rate:.4g}"
    picture = draw(curves, title, "E[K] = m", _label(delta), ylim=(0.0, None))
    return Result(curves.table, picture)


def figure_7(
    noise_multiplier: float = 21.1,
    sampling_rate: float = 16384 / 50000,
    steps: int = 250,
    delta: float = 1e-5,
    largest: float = 1e4,
    points: int = 17,
) -> Result:
    """Epsilon over geometric E[K] for DP-SGD with large batches, by two theorems."""
    base = DpSgd(noise_multiplier, steps, sampling_rate)
    curves = _by_mean(base, delta, np.geomspace(1.5, largest, points), _GEOMETRIC)
    title = f"DP-SGD, {steps} steps, noise {noise_multiplier:g}, rate {sampling_rate:.4g}"
    picture = draw(curves, title, "E[K] = m", _label(delta), x_scale="log", ylim=(0.0, None))
    table = curves.table
    more = _more_models(table, f"{_RENYI}, theorem 5.1", f"{_PROFILE}, theorem 5.2")
    return Result(table, picture, (Comparison("times as many models as by RDP", 3.0, more),))


def _more_models(table: pd.DataFrame, loose: str, tight: str) -> float:
    """How many times as many models the tight curve allows: a mean over the loose curve."""
    loose_curve, tight_curve = (table[table["curve"] == name] for name in (loose, tight))
    inside = loose_curve[loose_curve["epsilon"] <= tight_curve["epsilon"].max()]
    reached = np.interp(inside["epsilon"], tight_curve["epsilon"], np.log(tight_curve["mean"]))
    return float(np.exp(np.mean(reached - np.log(inside["mean"]))))


def figure_8(
    sampling_rate: float = 0.01,
    noise_multipliers: Sequence[float] = (2.0, 3.0, 4.0),
    steps: Sequence[int] = (4000, 10000, 18000),
    epsilon: float = 1.5,
    delta: float = 1e-6,
    largest: float = 1e3,
    points: int = 9,
) -> Result:
    """Epsilon over E[K] for candidates with different noise, and for each candidate alone.

    Corollary 6.2 uses thresholds that these candidates satisfy. The steps are those that the paper
    prints, compared with the largest number of steps that is (epsilon, delta)-DP.
    """
    candidates = [
        DpSgd(sigma, count, sampling_rate)
        for sigma, count in zip(noise_multipliers, steps, strict=True)
    ]
    means = np.geomspace(10.0, largest, points)
    curves = Curves("mean", "epsilon")
    together = [profile(WorstOf(tuple(candidates)), _geometric(m), delta).epsilon for m in means]
    curves.add("all candidates, corollary 6.2", means, together)
    for candidate in candidates:
        epsilons = [profile(candidate, _geometric(mean), delta).epsilon for mean in means]
        name = rf"$\sigma$ = {candidate.noise_multiplier:g}, T = {candidate.steps}, theorem 5.2"
        curves.add(name, means, epsilons)
    title = f"Geometric K over candidates, rate {sampling_rate:g}"
    picture = draw(curves, title, "E[K] = m", _label(delta), x_scale="log", ylim=(0.0, None))
    compared = tuple(
        Comparison(
            f"most steps at sigma = {candidate.noise_multiplier:g}",
            candidate.steps,
            _max_steps(candidate, epsilon, delta),
        )
        for candidate in candidates
    )
    return Result(curves.table, picture, compared)


def _max_steps(candidate: DpSgd, epsilon: float, delta: float) -> int:
    """The largest (epsilon, delta)-DP number of steps, from half to twice the candidate's."""

    def fits(steps: NDArray[np.int64]) -> bool:
        return float(replace(candidate, steps=int(steps)).delta(epsilon)) <= delta

    return int(last_integer(fits, candidate.steps // 2, 2 * candidate.steps))
