"""Every bound attacked: the worst order or event of theory, played against each protocol.

In the reduced game one run is N(0, 1), or N(mu, 1) with the record, and whoever attacks chooses the
score. Beside the cost stands what the attack attains, exactly, and what as many games prove of it:
by the recommended bound, which assumes nothing but independent games, and by the curve of the
attack's own law, where that has one parameter.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import special

from audit import protocols
from audit.accounting import GaussianMechanism
from audit.attacks import (
    AcceptedTails,
    TunedOrder,
    adaptive_attack,
    attack_order,
    attack_tails,
    subset_attack,
    worst_case_order,
)
from audit.attacks.orders import expected_ratio
from audit.lower_bounds import (
    AcceptedTailsCurve,
    FixedThreshold,
    WorstOrderCurve,
    lower_bound,
    max_provable_epsilon,
)
from audit.orders import Order
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
from audit.upper_bounds import UpperBound, tuning_cost, worst_order

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
# Cells of x, where laws are summed over them: fine, and for curves of mu, at every so manieth end.
_CELL, _COARSE, _EVERY = 0.005, 0.02, 5


@dataclass(frozen=True)
class Played:
    """An attack and its games.

    Attributes:
        attained: epsilon of the best attack found, exactly and rounded down.
        without: scores [n] of games without the record.
        with_record: scores [n] of games with it.
        laws: chances of what comes out, without the record and with it, of every attack tried.
        curve: reads games by the attack's own law; None where that has no single parameter.
        of_curve: the games that the curve reads, without the record and with it, where they are of
            another attack.
    """

    attained: float
    without: Array
    with_record: Array
    laws: Sequence[tuple[Array, Array]] = ()
    curve: Curve | None = None
    of_curve: tuple[Array, Array] | None = None

    def ceiling(self, delta: float) -> float:
        """What no estimator for any score proves more often than not; NaN where no law is known."""
        trials = len(self.without)
        return max(
            (max_provable_epsilon(*law, delta, trials) for law in self.laws), default=math.nan
        )

    def by_curve(self, delta: float) -> float:
        """What the curve proves; NaN where there is none."""
        if self.curve is None:
            return math.nan
        games = self.of_curve or (self.without, self.with_record)
        return self.curve(*games, delta).epsilon


@dataclass(frozen=True)
class _Search:
    """Random search by an order that does not look into cells.

    Attributes:
        game: order, law of K and cells.
    """

    game: TunedOrder

    @cached_property
    def chances(self) -> tuple[Array, Array]:
        """Of every cell [n] to be released, from the most preferred on, and of no run; by side."""
        none = self.game.repetitions.probability_of_none
        sides = (np.append(low + high, 2.0 * none) for low, high in self.game.masses)
        p, q = (side / side.sum() for side in sides)
        return p, q

    @cached_property
    def log_ratio(self) -> Array:
        """What every outcome [n] says for the record."""
        p, q = (np.maximum(side, 1e-100) for side in self.chances)
        return np.asarray(np.log(q / p))

    def expected(self, delta: float, trials: int) -> float:
        """The largest e^epsilon that one event of the likelihood ratio is expected to certify."""
        p, q = (side[np.argsort(self.log_ratio)] for side in self.chances)
        certified = [
            expected_ratio(np.cumsum(one), np.cumsum(other), delta, trials, _ERROR / 2.0).max()
            for one, other in ((p, q), (q[::-1], p[::-1]))
        ]
        return float(max(certified))

    def play(self, mean: float, trials: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draws the outcomes [trials]: every run of every tuning, and the best of each."""
        left, _ = self.game.edges
        place = np.argsort(left)
        runs = self.game.repetitions.sample(rng, trials)
        x = mean + rng.standard_normal(int(runs.sum()))
        cells = place[np.searchsorted(left[place], x, side="right") - 1]
        released = np.full(trials, len(left))
        some = runs > 0
        released[some] = np.minimum.reduceat(cells, (np.cumsum(runs) - runs)[some])
        return released


@dataclass(frozen=True)
class _OrderCurve(WorstOrderCurve):
    """The curve of mu of any folded order; the scores are the right ends of released cells.

    With mu every x grows, so a winner above the threshold stays one: what is above the fold scores
    more, what is below less, and what was above the threshold and not beaten from below stays so.

    Attributes:
        order: its cells are those of `_Search` with the same step.
    """

    order: Order

    def rate_below(self, mu: float) -> float:
        search = TunedOrder(mu, self.repetitions, self.order, _COARSE)
        (_, (masses, _)), (_, right) = search.masses, search.edges
        return float(masses[right <= self.rule.threshold].sum())

    def attained(self, mu: float, delta: float) -> float:
        return TunedOrder(mu, self.repetitions, self.order).epsilon(delta)


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
    # What leaks most at a larger delta is more common: one of these shows most in so many games.
    deltas = [delta] + [larger for larger in (1e-4, 1e-3, 1e-2) if larger > delta]
    folded = [worst_case_order(mu, law, one)[0] for one in deltas]
    orders: list[Order] = [attack_order(mu, law, delta, trials)[0], *folded]
    searches = [_Search(TunedOrder(mu, law, order)) for order in orders]
    best = max(searches, key=lambda search: search.expected(delta, trials))
    sides = [best.log_ratio[best.play(mean, trials, rng)] for mean in (0.0, mu)]
    laws = [search.chances for search in searches]
    if not searched:
        return Played(found.epsilon, sides[0], sides[1], laws)
    # The curve's games are of the order that leaks most, whatever single events of it show.
    own = _Search(TunedOrder(mu, law, folded[0], _COARSE))
    right = np.append(own.game.edges[1], np.inf)
    edges = right[(right < folded[0].fold) & (right > mu - 5.0)][::_EVERY]
    curve = _sharpest(
        [
            _OrderCurve(law, folded[0].fold, folded[0], rule=FixedThreshold(float(at)))
            for at in edges
        ],
        mu,
        trials,
    )
    games = right[own.play(0.0, trials, rng)], right[own.play(mu, trials, rng)]
    return Played(found.epsilon, sides[0], sides[1], laws, curve, games)


def _by_tails(
    mu: float,
    protocol: UntilAccepted | RandomStopping,
    delta: float,
    trials: int,
    rng: np.random.Generator,
) -> Played:
    rare = [
        attack_tails(mu, protocol, delta, many)[0] for many in (trials, 10 * trials, _ALL_TRIALS)
    ]
    seen = rare[0]
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
    return Played(
        max(tails.epsilon(delta) for tails in rare),
        sides[0],
        sides[1],
        [_chances(tails, mu) for tails in rare],
        curve,
    )


def _chances(tails: AcceptedTails, mu: float) -> tuple[Array, Array]:
    """Of cells [n] of x in either tail, and of nothing, by side."""
    low = np.arange(tails.low, -38.0, -_CELL)[::-1]
    high = np.arange(tails.high, 38.0 + mu, _CELL)
    sides = []
    for mean in (0.0, mu):
        below = np.diff(special.ndtr(low - mean), prepend=0.0)
        above = np.diff(special.ndtr(mean - high)[::-1], prepend=0.0)
        accepted = np.concatenate([below, above])
        total = tails.stop + (1.0 - tails.stop) * accepted.sum()
        sides.append(np.append(accepted / total, max(1.0 - accepted.sum() / total, 0.0)))
    return sides[0], sides[1]


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
        protocol = protocols.parse_protocol(spec)
        bound: UpperBound = tuning_cost(GaussianMechanism(mu), protocol, delta)
        assert bound.epsilon is not None
        rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
        played = attacked(mu, protocol, delta, trials, rng)
        proved = lower_bound(
            out_scores=played.without, in_scores=played.with_record, delta=delta
        ).epsilon
        rows.append(
            {
                "delta": delta,
                "mu": mu,
                "protocol": spec,
                "bound": bound.name,
                "cost": bound.epsilon,
                "attained": played.attained,
                "ceiling": played.ceiling(delta),
                "proved": proved,
                "proved by curve": played.by_curve(delta),
            }
        )
    table = pd.DataFrame(rows)
    for name in ("attained", "ceiling", "proved", "proved by curve"):
        table[f"{name} / cost"] = table[name] / table["cost"]
    return Result(table, _draw(table), lines=tuple(_lines(table)))


def _lines(table: pd.DataFrame) -> Iterator[str]:
    """The table as text: for every delta and mu its protocols, with shares of the cost."""
    for (delta, mu), rows in table.groupby(["delta", "mu"], sort=False):
        yield f"mu {mu:g}, delta {delta:g}"
        yield (
            f"{'protocol':32}{'cost':>9}  {'attained':>15}  {'ceiling':>15}  "
            f"{'proved':>15}  {'by curve':>15}"
        )
        for row in rows.to_dict("records"):
            cells = [
                "-" if math.isnan(row[name]) else f"{rounded_down(row[name])} {row[share]:6.1%}"
                for name, share in (
                    (name, f"{name} / cost")
                    for name in ("attained", "ceiling", "proved", "proved by curve")
                )
            ]
            joined = "  ".join(f"{cell:>15}" for cell in cells)
            yield f"{row['protocol']:32}{rounded_up(row['cost']):>9}  {joined}"


_KINDS = {
    "attained / cost": ("attained by the attack", "D"),
    "proved by curve / cost": ("proved, by the attack's own curve", "s"),
    "ceiling / cost": ("ceiling: proved by no more than half of all audits", "|"),
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
                axes.plot(
                    rows[name],
                    places,
                    marker,
                    color=colour,
                    ms=8 if marker == "|" else 6,
                    mew=2 if marker == "|" else None,
                    label=label,
                )
            axes.set_yticks(range(len(specs)), specs)
            axes.set(xlim=(0.0, 1.04), ylim=(len(specs) - 0.5, -0.5))
            axes.set_title(rf"$\mu$ = {mu:g}, $\delta$ = {delta:g}", fontsize="medium", loc="left")
            tidy(axes)
        grid[-1][0].set_xlabel("share of the cost")
        handles, labels = grid[0][0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return page
