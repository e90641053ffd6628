"""Attacks on every bound: the worst known order or event, for each protocol.

In the reduced game, one run is N(0, 1), or N(mu, 1) with the record, and the attacker chooses the
score. The table compares the cost with the exact epsilon of the attack, and with the epsilon that
trials of the attack prove: by the recommended lower bound, which assumes only independent trials,
and by the curve of the attack's own family, if that family has one parameter.
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

from audit.accounting import GaussianMechanism
from audit.attacks import (
    AcceptedTails,
    TunedOrder,
    adaptive_attack,
    attack_order,
    attack_tails,
    label_attack,
    subset_attack,
    worst_case_order,
)
from audit.attacks.orders import expected_ratio
from audit.lower_bounds import (
    FixedThreshold,
    WorstOrderCurve,
    lower_bound,
)
from audit.numerics import FloatArray
from audit.orders import Order
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
    parse_protocol,
)
from audit.repetitions import Repetitions
from audit.report.text import rounded_down, rounded_up
from audit.upper_bounds import tuning_cost, worst_order
from studies.accepted_tails import AcceptedTailsCurve
from studies.papers.max_provable_epsilon import max_provable_epsilon
from studies.papers.result import COLOURS, Result, figure, style, tidy

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
# With this many trials, an attack may use the rarest events.
UNLIMITED_TRIALS = 10**12
# Width of the cells of x over which distributions are summed; wider for curves, which sum once per
# mu. A curve's threshold is the end of one cell in 5.
_CELL, _CURVE_CELL, _THRESHOLD_STEP = 0.005, 0.02, 5
# Smaller probabilities are replaced by this one before ratios are taken.
_MIN_PROBABILITY = 1e-100
# Beyond this many standard deviations, a normal tail is zero in floating point.
_TAIL_END = 38.0


@dataclass(frozen=True)
class PlayedAttack:
    """An attack and the scores of its trials.

    Attributes:
        epsilon: epsilon of the best known attack, computed exactly and rounded down.
        out_scores: scores [n] of trials without the record.
        in_scores: scores [n] of trials with it.
        distributions: probabilities of all outcomes without and with the record, for every attack
            that was tried.
        curve: the lower bound of the attack's own family; None if the family has several
            parameters.
        curve_scores: the scores that the curve uses, if they are those of another attack.
    """

    epsilon: float
    out_scores: FloatArray
    in_scores: FloatArray
    distributions: Sequence[tuple[FloatArray, FloatArray]] = ()
    curve: Curve | None = None
    curve_scores: tuple[FloatArray, FloatArray] | None = None

    def max_provable(self, delta: float) -> float:
        """An epsilon that no valid lower bound exceeds in over half of all audits; NaN if unknown.

        It holds for lower bounds that are valid for every score.
        """
        trials = len(self.out_scores)
        return max(
            (max_provable_epsilon(*pair, delta, trials) for pair in self.distributions),
            default=math.nan,
        )

    def proved_by_curve(self, delta: float) -> float:
        """The epsilon that the curve proves; NaN if there is none."""
        if self.curve is None:
            return math.nan
        return self.curve(*(self.curve_scores or (self.out_scores, self.in_scores)), delta).epsilon


@dataclass(frozen=True)
class PlayedOrder:
    """Random search by an order of cells.

    Attributes:
        game: order, distribution of K and cells.
    """

    game: TunedOrder

    @cached_property
    def probabilities(self) -> tuple[FloatArray, FloatArray]:
        """Probabilities of each cell [n], the most preferred first, and of no run; by side."""
        none = self.game.repetitions.probability_of_none
        sides = (np.append(low + high, 2.0 * none) for low, high in self.game.masses)
        p, q = (side / side.sum() for side in sides)
        return p, q

    @cached_property
    def log_ratio(self) -> FloatArray:
        """Log-likelihood ratio of each outcome [n]."""
        p, q = (np.maximum(side, _MIN_PROBABILITY) for side in self.probabilities)
        return np.asarray(np.log(q / p))

    def expected_ratio(self, delta: float, trials: int) -> float:
        """The largest e^epsilon that one event of the likelihood ratio is expected to prove."""
        p, q = (side[np.argsort(self.log_ratio)] for side in self.probabilities)
        expected = [
            expected_ratio(
                np.cumsum(masses), np.cumsum(other_masses), delta, trials, _ERROR / 2.0
            ).max()
            for masses, other_masses in ((p, q), (q[::-1], p[::-1]))
        ]
        return float(max(expected))

    def play(self, mean: float, trials: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draws the outcomes [trials] from the runs of every tuning."""
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
class FoldedOrderCurve(WorstOrderCurve):
    """The lower bound for a folded order. A score is the right end of the released cell.

    Every x increases with mu, so a winner above the threshold stays above it: the ranks of values
    above the fold increase, those of values below it decrease, and no run from below the fold
    overtakes the winner.

    Attributes:
        order: the order; its cells are those of a `PlayedOrder` with the same width.
    """

    order: Order

    def rate_below(self, mu: float) -> float:
        game = TunedOrder(mu, self.repetitions, self.order, _CURVE_CELL)
        (_, (masses, _)), (_, right) = game.masses, game.edges
        return float(masses[right <= self.rule.threshold].sum())

    def exact_epsilon(self, mu: float, delta: float) -> float:
        return TunedOrder(mu, self.repetitions, self.order).epsilon(delta)


def play_attack(
    mu: float, protocol: Protocol, delta: float, trials: int, rng: np.random.Generator
) -> PlayedAttack:
    """Simulates the worst known attack, with this number of trials on each side.

    Raises:
        ValueError: no attack on the protocol is known.
    """
    means = 0.0, mu
    match protocol:
        case RandomSearch(repetitions):
            return _play_order(mu, repetitions, delta, trials, rng, with_curve=True)
        case Grid(runs_distribution=repetitions):
            # All candidates are equal and ranked by one order, as in a search with this K.
            return _play_order(mu, repetitions, delta, trials, rng)
        case UntilAccepted() | RandomStopping():
            return _play_tails(mu, protocol, delta, trials, rng)
        case Adaptive():
            common = adaptive_attack(mu, protocol, delta, trials)
            # A release of the label "back" is evidence against the record.
            sides = [-common.play(rng, trials, mean).astype(np.float64) for mean in means]
            epsilon = max(adaptive_epsilon(mu, protocol, delta), common.epsilon(delta))
            return PlayedAttack(epsilon, sides[0], sides[1])
        case Subset():
            attack = subset_attack(mu, protocol, delta)
            sides = [attack.play(rng, trials, mean) for mean in means]
            return PlayedAttack(attack.epsilon(delta), sides[0], sides[1])
        case _:
            raise ValueError(f"protocols must be ones with an attack, got {protocol.spec}")


def adaptive_epsilon(mu: float, protocol: Adaptive, delta: float) -> float:
    """The epsilon of the best known attack on an adaptive search, with any number of trials."""
    epsilon = adaptive_attack(mu, protocol, delta).epsilon(delta)
    if protocol.low < 1.0 < protocol.high:
        epsilon = max(epsilon, label_attack(mu, protocol, delta).epsilon(delta))
    return epsilon


def _play_order(
    mu: float,
    repetitions: Repetitions,
    delta: float,
    trials: int,
    rng: np.random.Generator,
    with_curve: bool = False,
) -> PlayedAttack:
    cost = worst_order(GaussianMechanism(mu), repetitions, delta).epsilon
    assert cost is not None
    # The worst events for a larger delta are more common, so a limited number of trials may prove
    # more with one of these orders.
    deltas = [delta] + [larger for larger in (1e-4, 1e-3, 1e-2) if larger > delta]
    folded = [worst_case_order(mu, repetitions, tried_delta)[0] for tried_delta in deltas]
    orders: list[Order] = [attack_order(mu, repetitions, delta, trials)[0], *folded]
    tried = [PlayedOrder(TunedOrder(mu, repetitions, order)) for order in orders]
    best = max(tried, key=lambda order: order.expected_ratio(delta, trials))
    sides = [best.log_ratio[best.play(mean, trials, rng)] for mean in (0.0, mu)]
    distributions = [order.probabilities for order in tried]
    if not with_curve:
        return PlayedAttack(cost, sides[0], sides[1], distributions)
    # The curve uses the order that leaks most, whose single events may be rare.
    of_curve = PlayedOrder(TunedOrder(mu, repetitions, folded[0], _CURVE_CELL))
    right = np.append(of_curve.game.edges[1], np.inf)
    thresholds = right[(right < folded[0].fold) & (right > mu - 5.0)][::_THRESHOLD_STEP]
    curves = [
        FoldedOrderCurve(repetitions, folded[0].fold, folded[0], rule=FixedThreshold(float(at)))
        for at in thresholds
    ]
    scores = right[of_curve.play(0.0, trials, rng)], right[of_curve.play(mu, trials, rng)]
    curve = _sharpest(curves, mu, trials)
    return PlayedAttack(cost, sides[0], sides[1], distributions, curve, scores)


def _play_tails(
    mu: float,
    protocol: UntilAccepted | RandomStopping,
    delta: float,
    trials: int,
    rng: np.random.Generator,
) -> PlayedAttack:
    tried = [
        attack_tails(mu, protocol, delta, many)[0]
        for many in (trials, 10 * trials, UNLIMITED_TRIALS)
    ]
    played = tried[0]
    sides = [_released(played, mean, trials, rng) for mean in (0.0, mu)]
    curves = [
        AcceptedTailsCurve(played.low, played.high, played.stop, rule=FixedThreshold(float(at)))
        for at in np.linspace(played.low - 1.0, played.high + 1.0, 41)
    ]
    epsilon = max(tails.epsilon(delta) for tails in tried)
    distributions = [_tail_probabilities(tails, mu) for tails in tried]
    curve = _sharpest(curves, mu, trials)
    return PlayedAttack(epsilon, sides[0], sides[1], distributions, curve)


def _tail_probabilities(tails: AcceptedTails, mu: float) -> tuple[FloatArray, FloatArray]:
    """Probabilities of the cells [n] of x in either tail, and of no release, by side."""
    low = np.arange(tails.low, -_TAIL_END, -_CELL)[::-1]
    high = np.arange(tails.high, _TAIL_END + mu, _CELL)
    sides = []
    for mean in (0.0, mu):
        below = np.diff(special.ndtr(low - mean), prepend=0.0)
        above = np.diff(special.ndtr(mean - high)[::-1], prepend=0.0)
        accepted = np.concatenate([below, above])
        total = tails.stop + (1.0 - tails.stop) * accepted.sum()
        sides.append(np.append(accepted / total, max(1.0 - accepted.sum() / total, 0.0)))
    return sides[0], sides[1]


def _sharpest(curves: Sequence[Curve], mu: float, trials: int) -> Curve:
    """The curve whose threshold is expected to bound mu best; chosen before any trial."""
    return max(curves, key=lambda curve: curve.expected(mu, trials, _ERROR))


def _released(
    tails: AcceptedTails, mean: float, trials: int, rng: np.random.Generator
) -> FloatArray:
    """Draws the released x [trials]; minus infinity if nothing is released."""
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
    protocols: Sequence[str] = PROTOCOLS,
    trials: int = 100_000,
    seed: int = 1,
) -> Result:
    """The costs of protocols, and the epsilon that attacks attain and prove.

    Each attack has this number of trials on each side.
    """
    rows = []
    settings = [(delta, mu, spec) for delta in deltas for mu in mus for spec in protocols]
    for number, (delta, mu, spec) in enumerate(settings):
        protocol = parse_protocol(spec)
        bound = tuning_cost(GaussianMechanism(mu), protocol, delta)
        rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
        played = play_attack(mu, protocol, delta, trials, rng)
        proved = lower_bound(out_scores=played.out_scores, in_scores=played.in_scores, delta=delta)
        row = {
            "delta": delta,
            "mu": mu,
            "protocol": spec,
            "bound": bound.name,
            "cost": bound.epsilon,
            "attained": played.epsilon,
            "ceiling": played.max_provable(delta),
            "proved": proved.epsilon,
            "proved by curve": played.proved_by_curve(delta),
        }
        rows.append(row)
    table = pd.DataFrame(rows)
    for name in _MEASURES:
        table[f"{name} / cost"] = table[name] / table["cost"]
    return Result(table, _draw(table), lines=tuple(_lines(table)))


# Columns with their labels and markers, in the order in which they are drawn.
_MEASURES = {
    "attained": ("attained by the attack", "D"),
    "proved by curve": ("proved, by the attack's own curve", "s"),
    "ceiling": ("ceiling: at most half of all audits prove more", "|"),
    "proved": ("proved, for any score", "o"),
}


def _lines(table: pd.DataFrame) -> Iterator[str]:
    """The table as text, in blocks by delta and mu, with shares of the cost."""
    for (delta, mu), rows in table.groupby(["delta", "mu"], sort=False):
        yield f"mu {mu:g}, delta {delta:g}"
        titles = "  ".join(f"{name:>15}" for name in _MEASURES)
        yield f"{'protocol':32}{'cost':>9}  {titles}"
        for row in rows.to_dict("records"):
            cells = [
                "-"
                if math.isnan(row[name])
                else f"{rounded_down(row[name])} {row[f'{name} / cost']:6.1%}"
                for name in _MEASURES
            ]
            joined = "  ".join(f"{cell:>15}" for cell in cells)
            yield f"{row['protocol']:32}{rounded_up(row['cost']):>9}  {joined}"


def _draw(table: pd.DataFrame) -> Figure:
    """Shares of the cost: a panel for each delta and mu, a line for each protocol."""
    panels = list(table.groupby(["delta", "mu"], sort=False))
    specs = list(dict.fromkeys(table["protocol"]))
    columns = min(len(panels), 2)
    with style():
        page = figure(4.2 * columns + 3.0, 0.34 * len(specs) * len(panels) / 2 + 2.5)
        grid = page.subplots(-(-len(panels) // 2), columns, squeeze=False, sharey=True)
        for axes, ((delta, mu), rows) in zip(grid.flat, panels, strict=False):
            places = [specs.index(spec) for spec in rows["protocol"]]
            for (name, (label, marker)), colour in zip(_MEASURES.items(), COLOURS, strict=False):
                size = {"ms": 8, "mew": 2} if marker == "|" else {"ms": 6}
                axes.plot(rows[f"{name} / cost"], places, marker, color=colour, label=label, **size)
            axes.set_yticks(range(len(specs)), specs)
            axes.set(xlim=(0.0, 1.04), ylim=(len(specs) - 0.5, -0.5))
            axes.set_title(rf"$\mu$ = {mu:g}, $\delta$ = {delta:g}", fontsize="medium", loc="left")
            tidy(axes)
        for axes in grid[-1]:
            axes.set_xlabel("share of the cost")
        handles, labels = grid[0][0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return page
