"""Every bound attacked: the worst order or event of theory, played against each protocol.

In the reduced game one run is N(0, 1), or N(mu, 1) with the record, and whoever attacks chooses the
score. Beside the cost stands what the attack attains, exactly, and what as many games prove of it:
by the recommended bound, which assumes nothing but independent games, and by the curve of the
attack's own law, where that has one parameter.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import special

from audit import protocols
from audit.accounting import GaussianMechanism
from audit.lower_bounds import (
    AcceptedTailsCurve,
    FixedThreshold,
    WorstOrderCurve,
    lower_bound,
)
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.repetitions import Binomial, Fixed, Repetitions
from audit.report.text import rounded_down, rounded_up
from audit.reproduce.result import COLOURS, Result, figure, style, tidy
from audit.upper_bounds import (
    AcceptedTails,
    UpperBound,
    adaptive_attack,
    attack_order,
    attack_tails,
    cost,
    subset_attack,
    worst_order,
)

Array = NDArray[np.float64]
Curve = AcceptedTailsCurve | WorstOrderCurve

PROTOCOLS = (
    "tnb:0,0.01",
    "tnb:1,0.1",
    "until:0.1",
    "stopping:0.1",
    "grid:10",
    "grid:30,0.5",
    "adaptive:0.75,1.33/tnb:0,0.01",
    "adaptive:0.5,2/tnb:0,0.01",
    "subset:0.1/tnb:1,0.1",
    "subset:0.5/tnb:1,0.1",
)
_ERROR = 0.05
_ALL_TRIALS = 10**12


@dataclass(frozen=True)
class Played:
    """An attack and its games.

    Attributes:
        attained: epsilon of the best attack found, exactly and rounded down.
        without: scores [n] of games without the record.
        with_record: scores [n] of games with it.
        curve: reads the games by the attack's own law; None where that has no single parameter.
    """

    attained: float
    without: Array
    with_record: Array
    curve: Curve | None = None


def attacked(
    mu: float, protocol: Protocol, delta: float, trials: int, rng: np.random.Generator
) -> Played:
    """Plays the attack on a protocol.

    Args:
        mu: of the base.
        protocol: how the best run is chosen.
        delta: in (0, 1).
        trials: games on each side.
        rng: source of everything random.

    Raises:
        ValueError: there is no attack for the protocol.
    """
    means = 0.0, mu
    match protocol:
        case RandomSearch(law):
            return _by_order(mu, law, delta, trials, rng, searched=True)
        case Grid(candidates, inclusion):
            # All candidates alike, each by the same order: a fixed or binomial number of draws.
            law = Fixed(candidates) if inclusion == 1.0 else Binomial(candidates, inclusion)
            return _by_order(mu, law, delta, trials, rng, searched=False)
        case UntilAccepted() | RandomStopping():
            return _by_tails(mu, protocol, delta, trials, rng)
        case Adaptive():
            best = adaptive_attack(mu, protocol, delta)
            seen = adaptive_attack(mu, protocol, delta, trials)
            # The event that the back is released speaks against the record.
            sides = [-seen.play(rng, trials, mean).astype(np.float64) for mean in means]
            attained = max(best.epsilon(delta), seen.epsilon(delta))
            return Played(attained, sides[0], sides[1])
        case Subset():
            attack = subset_attack(mu, protocol, delta)
            sides = [attack.play(rng, trials, mean) for mean in means]
            return Played(attack.epsilon(delta), sides[0], sides[1])
        case _:
            raise ValueError(f"protocols must be ones with an attack, got {protocol.spec}")


def _by_order(
    mu: float,
    law: Repetitions,
    delta: float,
    trials: int,
    rng: np.random.Generator,
    *,
    searched: bool,
) -> Played:
    found = worst_order(GaussianMechanism(mu), law, delta)
    assert found.epsilon is not None
    order, _ = attack_order(mu, law, delta, trials)
    sides = []
    for mean in (0.0, mu):
        runs = law.sample(rng, trials)
        released = np.full(trials, -np.inf)
        released[runs > 0] = order.best(runs[runs > 0], mean, rng)
        sides.append(released)
    curve = _sharpest(
        [
            WorstOrderCurve(law, order.top, rule=FixedThreshold(float(at)))
            for at in np.linspace(min(order.top, mu) - 5.0, order.top, 60)
        ],
        mu,
        trials,
    )
    return Played(found.epsilon, sides[0], sides[1], curve if searched else None)


def _by_tails(
    mu: float,
    protocol: UntilAccepted | RandomStopping,
    delta: float,
    trials: int,
    rng: np.random.Generator,
) -> Played:
    best, _ = attack_tails(mu, protocol, delta, _ALL_TRIALS)
    seen, _ = attack_tails(mu, protocol, delta, trials)
    sides = [_released(seen, mean, trials, rng) for mean in (0.0, mu)]
    inner = np.linspace(seen.low - 1.0, seen.high + 1.0, 41)
    curve = _sharpest(
        [
            AcceptedTailsCurve(seen.low, seen.high, seen.stop, rule=FixedThreshold(float(at)))
            for at in inner
        ],
        mu,
        trials,
    )
    attained = max(best.epsilon(delta), seen.epsilon(delta))
    return Played(attained, sides[0], sides[1], curve)


def _sharpest(curves: Sequence[Curve], mu: float, trials: int) -> Curve:
    """The curve at the threshold that is expected to bound mu best, fixed before any game."""
    return max(curves, key=lambda curve: curve.expected(mu, trials, _ERROR))


def _released(tails: AcceptedTails, mean: float, trials: int, rng: np.random.Generator) -> Array:
    """Draws what is released, minus infinity for nothing, by the tails' own law."""
    below, above = special.ndtr(tails.low - mean), special.ndtr(mean - tails.high)
    total = tails.stop + (1.0 - tails.stop) * (below + above)
    share = rng.random(trials) * total
    in_low, in_high = share < below, (share >= below) & (share < below + above)
    released = np.full(trials, -np.inf)
    released[in_low] = mean + special.ndtri(share[in_low])
    released[in_high] = mean - special.ndtri(share[in_high] - below)
    return released


def attacks(
    mus: Sequence[float] = (0.24721,),
    deltas: Sequence[float] = (1e-5, 1e-2),
    specs: Sequence[str] = PROTOCOLS,
    trials: int = 100_000,
    seed: int = 1,
) -> Result:
    """The table of costs and of what attacks attain and prove.

    Args:
        mus: of the base.
        deltas: in (0, 1).
        specs: the protocols, as text.
        trials: games on each side.
        seed: of all games.
    """
    rows = []
    for number, (delta, mu, spec) in enumerate(
        (delta, mu, spec) for delta in deltas for mu in mus for spec in specs
    ):
        protocol = protocols.parse(spec)
        bound: UpperBound = cost(GaussianMechanism(mu), protocol, delta)
        assert bound.epsilon is not None
        rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
        played = attacked(mu, protocol, delta, trials, rng)
        proved = lower_bound(played.without, played.with_record, delta).epsilon
        by_curve = math.nan
        if played.curve is not None:
            by_curve = played.curve(played.without, played.with_record, delta).epsilon
        rows.append(
            {
                "delta": delta,
                "mu": mu,
                "protocol": spec,
                "bound": bound.name,
                "cost": bound.epsilon,
                "attained": played.attained,
                "proved": proved,
                "proved by curve": by_curve,
            }
        )
    table = pd.DataFrame(rows)
    for name in ("attained", "proved", "proved by curve"):
        table[f"{name} / cost"] = table[name] / table["cost"]
    return Result(table, _draw(table), lines=tuple(_lines(table)))


def _lines(table: pd.DataFrame) -> Iterator[str]:
    """The table as text: for every delta and mu its protocols, with shares of the cost."""
    for (delta, mu), rows in table.groupby(["delta", "mu"], sort=False):
        yield f"mu {mu:g}, delta {delta:g}"
        yield f"{'protocol':32}{'cost':>9}  {'attained':>15}  {'proved':>15}  {'by curve':>15}"
        for row in rows.to_dict("records"):
            cells = [
                "-" if math.isnan(row[name]) else f"{rounded_down(row[name])} {row[share]:6.1%}"
                for name, share in (
                    (name, f"{name} / cost") for name in ("attained", "proved", "proved by curve")
                )
            ]
            joined = "  ".join(f"{cell:>15}" for cell in cells)
            yield f"{row['protocol']:32}{rounded_up(row['cost']):>9}  {joined}"


_KINDS = {
    "attained / cost": ("attained by the attack", "D"),
    "proved by curve / cost": ("proved, by the attack's own curve", "s"),
    "proved / cost": ("proved, for any score", "o"),
}


def _draw(table: pd.DataFrame) -> Figure:
    """Shares of the cost: a panel for every delta and mu, a line for every protocol."""
    panels = list(table.groupby(["delta", "mu"], sort=False))
    specs = list(dict.fromkeys(table["protocol"]))
    with style():
        page = figure(4.2 * min(len(panels), 2) + 3.0, 0.34 * len(specs) * len(panels) / 2 + 2.5)
        grid = page.subplots(-(-len(panels) // 2), min(len(panels), 2), squeeze=False, sharey=True)
        for axes, ((delta, mu), rows) in zip(grid.flat, panels, strict=False):
            for (name, (label, marker)), colour in zip(_KINDS.items(), COLOURS, strict=False):
                places = [specs.index(spec) for spec in rows["protocol"]]
                axes.plot(rows[name], places, marker, color=colour, ms=6, label=label)
            axes.set_yticks(range(len(specs)), specs)
            axes.set(xlim=(0.0, 1.04), ylim=(len(specs) - 0.5, -0.5))
            axes.set_title(rf"$\mu$ = {mu:g}, $\delta$ = {delta:g}", fontsize="medium", loc="left")
            tidy(axes)
        grid[-1][0].set_xlabel("share of the cost")
        handles, labels = grid[0][0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return page
