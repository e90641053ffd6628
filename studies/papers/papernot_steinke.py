"""Papernot & Steinke 2022: figures 2 to 6 and 8 (1 is in `svm`, 7 in `training`)."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize

from audit.accounting import DiscreteMechanism, Mechanism, ZeroConcentratedDp
from audit.numerics import FloatArray
from audit.repetitions import Fixed, Poisson, Repetitions
from audit.upper_bounds.published import corollary_4_curve, renyi, renyi_curve
from studies.papers.distributions import tnb_with_mean
from studies.papers.result import Curves, Result, draw

_ORDER = r"Renyi order $\lambda$"
_DIVERGENCE = r"bound on $D_\lambda(A(x) \| A(x'))$"
_NAIVE = "naive repetition"
# The example of figure 8 is solved to these precisions, far below what a figure shows.
_CONVERGED, _ROOT_TOLERANCE = 1e-11, 1e-13


def _name(eta: float) -> str:
    kind = {0.0: "logarithmic, ", 1.0: "geometric, "}.get(eta, "")
    return rf"{kind}$\eta$ = {eta:g}"


def _power_of_ten(mean: float) -> str:
    exponent = math.log10(mean)
    return f"$10^{exponent:.0f}$" if exponent == round(exponent) and mean > 100 else f"{mean:g}"


def figure_2(
    rho: float = 0.1,
    means: Sequence[float] = (10, 100, 1e3, 1e4, 1e5, 1e6),
    largest_order: float = 30.0,
    points: int = 200,
) -> Result:
    """Corollary 4 for logarithmic K: Renyi divergence over its order, for several E[K]."""
    base = ZeroConcentratedDp(rho)
    orders = np.linspace(1.05, largest_order, points)
    curves = Curves("order", "divergence")
    curves.add("K = 1, not repeated", orders, base.renyi(orders))
    curves.add("K = 10, naive repetition", orders, 10.0 * base.renyi(orders))
    for mean in means:
        curve = corollary_4_curve(base, tnb_with_mean(0.0, mean))
        curves.add(f"E[K] = {_power_of_ten(mean)}", orders, curve(orders))
    title = f"Logarithmic K, base {rho:g}-zCDP"
    return Result(curves.table, draw(curves, title, _ORDER, _DIVERGENCE, ylim=(0.0, 10.0)))


def figure_3(
    rho: float = 0.1,
    mean: float = 10.0,
    etas: Sequence[float] = (0.0, 1.0, 5.0),
    largest_order: float = 50.0,
    points: int = 200,
) -> Result:
    """Renyi divergence over its order, for several distributions of K with the same mean."""
    base = ZeroConcentratedDp(rho)
    orders = np.linspace(1.05, largest_order, points)
    curves = Curves("order", "divergence")
    curves.add("K = 1, not repeated", orders, base.renyi(orders))
    curves.add(f"K = {mean:g}, naive repetition", orders, mean * base.renyi(orders))
    distributions: dict[str, Repetitions] = {_name(eta): tnb_with_mean(eta, mean) for eta in etas}
    for name, repetitions in (distributions | {"Poisson": Poisson(mean)}).items():
        curves.add(name, orders, renyi_curve(base, repetitions)(orders))
    title = f"E[K] = {mean:g}, base {rho:g}-zCDP"
    return Result(curves.table, draw(curves, title, _ORDER, _DIVERGENCE, ylim=(0.0, 12.0)))


def _epsilons(rho: float, distributions: Sequence[Repetitions], delta: float) -> list[float | None]:
    """Epsilon by theorem 2 for each distribution; by composition if K is fixed."""
    return [
        ZeroConcentratedDp(rho * distribution.k).renyi_epsilon(delta)
        if isinstance(distribution, Fixed)
        else renyi(ZeroConcentratedDp(rho), distribution, delta).epsilon
        for distribution in distributions
    ]


def _fixed_up_to(largest: float) -> list[Repetitions]:
    return [Fixed(int(k)) for k in np.unique(np.geomspace(1.0, largest, 40).astype(int))]


def figure_4(
    rho: float = 0.1,
    delta: float = 1e-6,
    etas: Sequence[float] = (0.0, 1.0, 5.0),
    largest_mean: float = 1e5,
    points: int = 41,
) -> Result:
    """Epsilon over the expected number of repetitions."""
    curves = Curves("mean", "epsilon")
    naive = _fixed_up_to(100.0)
    curves.add(_NAIVE, [distribution.mean for distribution in naive], _epsilons(rho, naive, delta))
    means = np.geomspace(1.05, largest_mean, points)
    for eta in etas:
        distributions = [tnb_with_mean(eta, mean) for mean in means]
        curves.add(_name(eta), means, _epsilons(rho, distributions, delta))
    picture = draw(
        curves,
        f"Base {rho:g}-zCDP",
        "expected number of repetitions E[K]",
        rf"$\varepsilon$ at $\delta$ = {delta:g}",
        x_scale="log",
        ylim=(0.0, 16.0),
    )
    return Result(curves.table, picture)


def _utility(
    rho: float,
    delta: float,
    etas: Sequence[float],
    largest_mean: float,
    points: int,
    utility: Callable[[Repetitions], float],
    label: str,
    naive: bool,
) -> Result:
    """The utility of a tuning over its epsilon, for each eta."""
    curves = Curves("epsilon", "utility")
    families = {_NAIVE: _fixed_up_to(100.0)} if naive else {}
    for eta in etas:
        means = np.geomspace(1.02, largest_mean, points)
        families[_name(eta)] = [tnb_with_mean(eta, mean) for mean in means]
    for name, distributions in families.items():
        epsilons = _epsilons(rho, distributions, delta)
        utilities = [utility(distribution) for distribution in distributions]
        curves.add(
            name, epsilons, utilities, mean=[distribution.mean for distribution in distributions]
        )
    picture = draw(
        curves,
        f"Base {rho:g}-zCDP",
        rf"$\varepsilon$ of the tuning at $\delta$ = {delta:g}",
        label,
        xlim=(2.0, 8.0),
        ylim=(0.0, 1.0),
    )
    return Result(curves.table, picture)


def figure_5(
    rho: float = 0.1,
    delta: float = 1e-6,
    etas: Sequence[float] = (-0.5, 0.0, 0.5, 1.0, 2.0),
    largest_mean: float = 1e6,
    points: int = 61,
) -> Result:
    """Expected quantile of the best candidate over epsilon."""

    def quantile(repetitions: Repetitions) -> float:
        return repetitions.expected_quantile()

    label = "expected quantile of the best"
    return _utility(rho, delta, etas, largest_mean, points, quantile, label, False)


def figure_6(
    rho: float = 0.1,
    delta: float = 1e-6,
    candidates: int = 100,
    etas: Sequence[float] = (-0.5, 0.0, 0.5, 1.0),
    largest_mean: float = 1e6,
    points: int = 61,
) -> Result:
    """Probability of trying the only good candidate of many, over epsilon."""

    def success(repetitions: Repetitions) -> float:
        return repetitions.chance_to_include(candidates)

    label = f"probability of trying the best of {candidates}"
    return _utility(rho, delta, etas, largest_mean, points, success, label, True)


def _three_outputs(a: float, s: float, t: float) -> tuple[FloatArray, FloatArray]:
    """The example of section D.2: three outputs, two of them in S, with losses t and -s."""
    q = a * np.array([math.exp(-s), math.exp(-s), 0.0])
    q_other = a * np.array([math.exp(-s - t), 1.0, 0.0])
    q[2], q_other[2] = 1.0 - q.sum(), 1.0 - q_other.sum()
    return q, q_other


def _divergence(q: FloatArray, q_other: FloatArray, order: float) -> float:
    return float(DiscreteMechanism(q, q_other).pairs[0].renyi(np.array([order]))[0])


def _example(a: float, order: float, divergence: float) -> tuple[FloatArray, FloatArray]:
    """The example whose Renyi divergences in both directions have the given value."""
    s = t = 1.0
    for _ in range(60):  # each divergence depends mostly on its own parameter
        before = s, t
        s = _root(lambda s, t: _divergence(*_three_outputs(a, s, t)[::-1], order), divergence, t)
        t = _root(lambda t, s: _divergence(*_three_outputs(a, s, t), order), divergence, s)
        if abs(s - before[0]) + abs(t - before[1]) < _CONVERGED:
            break
    return _three_outputs(a, s, t)


def _root(function: Callable[[float, float], float], target: float, other: float) -> float:
    """The first argument for which the function equals the target."""
    return float(
        optimize.brentq(lambda v: function(v, other) - target, 0.0, 300.0, xtol=_ROOT_TOLERANCE)
    )


def corollary_16(base: Mechanism, acceptance: float) -> Callable[[FloatArray], FloatArray]:
    """Proposition 15 at p = q = infinity, by order; Q(S) = `acceptance`.

    D_alpha + (alpha-2)/(alpha-1) D'_{alpha-1} + 2 log(1/Q(S))/(alpha-1).
    """

    def curve(alpha: FloatArray) -> FloatArray:
        alpha_minus_1 = alpha - 1.0
        second = np.maximum(alpha - 2.0, 0.0) * base.renyi(np.maximum(alpha_minus_1, 1.0 + 1e-12))
        return base.renyi(alpha) + (second - 2.0 * math.log(acceptance)) / alpha_minus_1

    return curve


def figure_8(
    rho: float = 0.1,
    a: float = 0.25,
    largest_order: float = 25.0,
    points: int = 60,
) -> Result:
    """Conditional sampling: the bound of corollary 16 and an exact example."""
    orders = np.linspace(2.0, largest_order, points)
    exact, bound = [], []
    for order in orders:
        q, q_other = _example(a, order, rho * order)
        conditional = q[:2] / q[:2].sum(), q_other[:2] / q_other[:2].sum()
        exact.append(_divergence(*conditional, order))
        curve = corollary_16(ZeroConcentratedDp(rho), float(q[:2].sum()))
        bound.append(float(curve(np.array([order]))[0]))
    curves = Curves("order", "divergence")
    curves.add("bound, corollary 16", orders, bound)
    curves.add("exact, the example of D.2", orders, exact)
    curves.add(r"not conditional: $D_\lambda(Q\|Q') = D_\lambda(Q'\|Q)$", orders, rho * orders)
    y = r"$D_\lambda(Q_S \| Q'_S)$"
    picture = draw(curves, "Conditional sampling", _ORDER, y, ylim=(0.0, None))
    return Result(curves.table, picture)
