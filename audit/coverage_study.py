"""`python -m audit.coverage_study`: do the lower bounds hold? Games whose epsilon is known exactly.

Every estimator is played against every mechanism, many times, with few and with many trials. The
table says how often a bound came out above the truth, how large it is, and what it costs in time.
Where jax_privacy is installed, its bounds stand beside ours.
"""

import functools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from audit import checks, console, numerics, protocols
from audit.accounting import GaussianMechanism, calibrate_mu
from audit.claims import Assumption, Claim, Facts, Kind, facts_of_tuning
from audit.lower_bounds import (
    AcceptedTailsCurve,
    ClopperPearson,
    Estimator,
    FixedThreshold,
    LowerBound,
    PooledClopperPearson,
    Scan,
    SequentialPlan,
    all_estimators,
    doubling,
    independent_canaries_bound,
    one_run_bounds,
    order_statistics_bound,
    pooled_bounds,
    selected_bound,
)
from audit.lower_bounds.estimator import Finding, ThresholdEstimator
from audit.lower_bounds.rules import ErrorCounts, best_expected_threshold, best_of_gaussian_rates
from audit.lower_bounds.scores import Scores
from audit.orders import IncreasingOrder, SplitOrder
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.repetitions import Binomial, Fixed, Repetitions, parse_repetitions
from audit.upper_bounds import (
    AcceptedTails,
    AdaptiveAttack,
    SubsetAttack,
    TunedOrder,
    attack_tails,
    reduced_exact,
)
from audit.upper_bounds.worst_order import attack_order

Array = NDArray[np.float64]
Sampler = Callable[[np.random.Generator, int], tuple[Array, Array]]

DELTA = 1e-5
CONFIDENCE = 0.95
# Trials per side, and how many games are played with so many: a quarter of an hour on a quiet core.
STUDY = {50: 200, 200: 200, 1_000: 50}
_MAX_TRIALS = 10_000_000
_MAX_GAMES = 1_000_000
# Pooled runs are E[K] times as many as trials, others' bounds and those of one run of many canaries
# take long; with more trials than these they are left out.
_POOLED_TRIALS = 10_000
_CANARY_TRIALS = 1_000
# The first of the looks at a game comes with this share of its trials; games looked at are few.
_FIRST_LOOK = 4
_LOOKED_AT = ("pure noise", "Gaussian mu=1.5")
# Chance that a study in which every bound covers exactly flags any cell at all.
FALSE_ALARM = 0.01


@dataclass(frozen=True)
class Game:
    """A mechanism with scores, and what is known of it.

    Attributes:
        name: as in the table.
        epsilon: the truth at `delta`, rounded down.
        delta: the delta at which bounds are asked for.
        sample: draws scores of so many trials without and with the record.
        threshold: fixed in advance; None to take it from theory.
        mu: of a Gaussian base.
        repetitions: law of K; None if nothing is tuned.
        known: what else is true of it.
        split_top: where the order splits, for the worst-order score.
        protocol: how the best run was chosen; None for random search.
        own: estimators for this mechanism alone.
    """

    name: str
    epsilon: float
    sample: Sampler
    delta: float = DELTA
    threshold: float | None = None
    mu: float | None = None
    repetitions: Repetitions | None = None
    known: frozenset[Assumption] = frozenset()
    split_top: float | None = None
    protocol: Protocol | None = None
    own: tuple[Estimator, ...] = ()

    @property
    def facts(self) -> Facts:
        """What is true of it; trials are independent, but of equal numbers and without coins."""
        law = Fixed(1) if self.repetitions is None else self.repetitions
        protocol = RandomSearch(law) if self.protocol is None else self.protocol
        return facts_of_tuning(protocol, Assumption.INDEPENDENT_TRIALS, *self.known)


_GAUSSIAN = frozenset({Assumption.GAUSSIAN_BASE, Assumption.GAUSSIAN_STATISTIC})
_INCREASING = _GAUSSIAN | {Assumption.MONOTONE_SCORE, Assumption.RELEASED_SCORE}


def _normal(mu: float) -> Sampler:
    return lambda rng, n: (rng.normal(size=n), rng.normal(mu, size=n))


def _leaky_response(epsilon: float, delta: float) -> Sampler:
    """Randomised response that tells the truth outright with probability delta."""

    def sample(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        honest = math.exp(epsilon) / (1.0 + math.exp(epsilon))
        sides = []
        for truth in (-1.0, 1.0):
            answer = np.where(rng.random(n) < honest, truth, -truth)
            sides.append(np.where(rng.random(n) < delta, 2.0 * truth, answer))
        return sides[0], sides[1]

    return sample


def _laplace(epsilon: float) -> Sampler:
    return lambda rng, n: (rng.laplace(size=n), rng.laplace(epsilon, size=n))


def _played(
    order: IncreasingOrder | SplitOrder,
    law: Repetitions,
    mu: float,
    rng: np.random.Generator,
    trials: int,
) -> tuple[Array, Array]:
    """The winners' statistics, without and with the record."""
    without, with_record = (order.best(law.sample(rng, trials), mean, rng) for mean in (0.0, mu))
    return without, with_record


@functools.cache
def _reduced(name: str, spec: str, epsilon_base: float) -> Game:
    law, mu = parse_repetitions(spec), calibrate_mu(epsilon_base, DELTA)
    truth = reduced_exact(GaussianMechanism(mu), law, DELTA)
    assert truth.epsilon is not None
    return Game(
        name,
        truth.epsilon - truth.error,
        lambda rng, n: _played(IncreasingOrder(), law, mu, rng, n),
        mu=mu,
        repetitions=law,
        known=_INCREASING,
    )


@functools.cache
def _worst_order(name: str, spec: str, epsilon_base: float, trials: int) -> Game:
    law, mu = parse_repetitions(spec), calibrate_mu(epsilon_base, DELTA)
    order, threshold = attack_order(mu, law, DELTA, trials)
    return Game(
        name,
        TunedOrder(mu, law, order).epsilon(DELTA),
        lambda rng, n: _played(order, law, mu, rng, n),
        threshold=threshold,
        repetitions=law,
        known=_GAUSSIAN | {Assumption.SPLIT_SCORE},
        split_top=order.top,
    )


@functools.cache
def _grid(spec: str, mu: float) -> Game:
    """Candidates alike, by an increasing score: the largest of a known number of draws."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, Grid)
    law = Binomial(protocol.candidates, protocol.inclusion)
    return Game(
        spec,
        TunedOrder(mu, law, IncreasingOrder()).epsilon(DELTA),
        lambda rng, n: _played(IncreasingOrder(), law, mu, rng, n),
        known=_GAUSSIAN,
        protocol=protocol,
    )


@functools.cache
def _tails(spec: str, mu: float, trials: int) -> Game:
    """Rerun until one of two tails comes, or stop; nothing is a score below all."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, UntilAccepted | RandomStopping)
    tails, threshold = attack_tails(mu, protocol, DELTA, trials)
    curve = AcceptedTailsCurve(tails.low, tails.high, tails.stop, rule=FixedThreshold(threshold))

    def sample(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        return _released(tails, 0.0, rng, n), _released(tails, mu, rng, n)

    return Game(
        spec,
        tails.epsilon(DELTA),
        sample,
        threshold=threshold,
        known=_GAUSSIAN,
        protocol=protocol,
        own=(curve,),
    )


def _released(tails: AcceptedTails, mean: float, rng: np.random.Generator, trials: int) -> Array:
    """Draws run after run, as the protocol does."""
    released = np.full(trials, -np.inf)
    active = np.arange(trials)
    while active.size:
        x = mean + rng.standard_normal(active.size)
        accepted = (x < tails.low) | (x > tails.high)
        released[active[accepted]] = x[accepted]
        active = active[~accepted & (rng.random(active.size) >= tails.stop)]
    return released


@functools.cache
def _adaptive(spec: str, mu: float) -> Game:
    """A sampler that tells of the record, judged by one event, whose chances are known."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, Adaptive)
    attack = AdaptiveAttack(mu, protocol, (3.0, 1.0), (-2.0, -3.0), (-0.5, 1.0), 0.5)
    without, with_record = attack.chances()
    ratios = [
        (p - DELTA) / q
        for p, q in (
            (without, with_record),
            (with_record, without),
            (1.0 - without, 1.0 - with_record),
            (1.0 - with_record, 1.0 - without),
        )
    ]

    def sample(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        sides = [-attack.play(rng, n, mean).astype(np.float64) for mean in (0.0, mu)]
        return sides[0], sides[1]

    return Game(spec, math.log(max(ratios)), sample, threshold=-0.5, protocol=protocol)


@functools.cache
def _subset(spec: str, mu: float) -> Game:
    """The density ratio of the tuning's winner and the final run together."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, Subset)
    attack = SubsetAttack(mu, protocol, SplitOrder(-math.inf))

    def sample(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        return attack.play(rng, n, 0.0), attack.play(rng, n, mu)

    return Game(spec, attack.epsilon(DELTA), sample, threshold=0.0, protocol=protocol)


class _LargestOfLooks(Estimator):
    """The default at every look at a growing game; the largest counts, as if one had stopped there.

    Attributes:
        planned: whether the number of looks is known in advance.
    """

    name: ClassVar[str] = "scan"

    def __init__(self, planned: bool) -> None:
        self.planned = planned

    @property
    def rule_name(self) -> str:
        return "looks" if self.planned else "looks without a plan"

    @property
    def claim(self) -> Claim:
        return Scan().claim

    def find(self, scores: Scores, delta: float, alpha: float) -> Finding:
        trials = len(scores.without)
        sizes = doubling(trials, max(trials // _FIRST_LOOK, 1))
        found = []
        for number, size in enumerate(sizes, 1):
            look = SequentialPlan(len(sizes) if self.planned else None, number)
            part = Scores(scores.without[:size], scores.with_record[:size])
            found.append(Scan().find(part, delta, look.share * alpha))
        return max(found, key=lambda finding: finding.epsilon)


class _JaxPrivacy(Estimator):
    """Bounds of jax_privacy, every threshold read both ways."""

    name: ClassVar[str] = "jax_privacy"

    def __init__(self, auditing: ModuleType, rule: str) -> None:
        self.auditing, self.rule = auditing, rule

    @property
    def rule_name(self) -> str:
        return self.rule

    @property
    def claim(self) -> Claim:
        return Claim(Kind.BOUND, "jax_privacy", assumptions=(Assumption.INDEPENDENT_TRIALS,))

    def find(self, scores: Scores, delta: float, alpha: float) -> Finding:
        auditor = self.auditing.CanaryScoreAuditor(scores.with_record, scores.without)
        bonferroni = self.rule == "bonferroni"
        strategy = self.auditing.Bonferroni() if bonferroni else self.auditing.Split(seed=0)
        epsilon = auditor.epsilon_clopper_pearson(
            alpha, delta, one_sided=False, threshold_strategy=strategy
        )
        return Finding(
            float(epsilon), None, None, None, len(scores.without), len(scores.with_record)
        )


def _jax_privacy() -> list[Estimator]:
    """What jax_privacy can say, where it is installed."""
    try:
        from jax_privacy import auditing
    except ImportError:
        return []
    return [_JaxPrivacy(auditing, rule) for rule in ("bonferroni", "split")]


@dataclass(frozen=True)
class CanaryGame:
    """One run with many canaries, each of them a Gaussian mechanism.

    Attributes:
        name: as in the table.
        mu: of every canary.
        sample: draws signed scores [m] by coins [m], above 0 for "in".
        disjoint: whether the canaries do not interact.
    """

    name: str
    mu: float
    sample: Callable[[np.random.Generator, NDArray[np.bool_]], Array]
    disjoint: bool

    def bounds(self, scores: Array, coins: NDArray[np.bool_]) -> list[LowerBound]:
        """Every bound from one run."""
        known = {Assumption.FAIR_COINS, Assumption.GAUSSIAN_BASE, Assumption.NOT_TUNED}
        if self.disjoint:
            known |= {Assumption.DISJOINT_CANARIES, Assumption.INDEPENDENT_TRIALS}
        facts = facts_of_tuning(RandomSearch(Fixed(1)), *known)
        found = [
            *one_run_bounds(scores, coins, DELTA, CONFIDENCE, len(scores) // 4, facts),
            independent_canaries_bound(scores, coins, DELTA, CONFIDENCE),
            order_statistics_bound(scores, coins, len(scores) // 4, DELTA, CONFIDENCE),
            replace(
                order_statistics_bound(scores, coins, len(scores), DELTA, CONFIDENCE), rule="all"
            ),
        ]
        return [replace(bound, verdict=bound.claim.validity(facts)) for bound in found]


def canary_games() -> list[CanaryGame]:
    """Canaries that do not interact, and some that share how sure they are."""

    def apart(mu: float) -> Callable[[np.random.Generator, NDArray[np.bool_]], Array]:
        return lambda rng, coins: rng.normal(size=len(coins)) + mu * (coins - 0.5)

    def sharing(mu: float) -> Callable[[np.random.Generator, NDArray[np.bool_]], Array]:
        def sample(rng: np.random.Generator, coins: NDArray[np.bool_]) -> Array:
            size = abs(rng.normal() + mu / 2.0)
            right = rng.random(len(coins)) < special.expit(mu * size)
            return size * np.where(right == coins, 1.0, -1.0)

        return sample

    return [
        *(CanaryGame(f"canaries apart mu={mu:g}", mu, apart(mu), True) for mu in (0.5, 1.5)),
        *(CanaryGame(f"canaries alike mu={mu:g}", mu, sharing(mu), False) for mu in (1.0, 2.0)),
    ]


def play_canaries(
    game: CanaryGame, trials: int, repeats: int, seed: int
) -> list[dict[str, object]]:
    """Plays one run of 2 * trials canaries `repeats` times; one row per bound."""
    rng, played = _generator(game.name, trials, seed), _Played()
    for _ in range(repeats):
        coins = rng.random(2 * trials) < 0.5
        scores = game.sample(rng, coins)
        begin = time.perf_counter()
        found = game.bounds(scores, coins)
        played.add(found, time.perf_counter() - begin)
    truth = GaussianMechanism(game.mu).epsilon(DELTA) * (1.0 - 2e-9)
    return played.rows(game.name, trials, truth)


def games(trials: int) -> list[Game]:
    """The mechanisms of the study; the worst order depends on the number of trials per side."""
    share = math.exp(1.0) / (1.0 + math.exp(1.0))
    return [
        Game("pure noise", 0.0, _normal(0.0), threshold=0.0),
        Game(
            "randomised response",
            math.log((share - DELTA) / (1.0 - share)),
            _leaky_response(1.0, 0.0),
            threshold=0.0,
        ),
        Game("leaky response", 1.0, _leaky_response(1.0, 0.01), delta=0.01, threshold=0.0),
        Game("Laplace", 1.0 + 2.0 * math.log1p(-DELTA), _laplace(1.0), threshold=0.0),
        *(
            Game(
                f"Gaussian mu={mu:g}",
                GaussianMechanism(mu).epsilon(DELTA) * (1.0 - 2e-9),
                _normal(mu),
                mu=mu,
                known=_INCREASING,
            )
            for mu in (0.5, 1.5)
        ),
        _reduced("tuned tnb:0,0.01 base 1", "tnb:0,0.01", 1.0),
        _reduced("tuned tnb:0,0.01 base 4", "tnb:0,0.01", 4.0),
        _reduced("tuned tnb:1,0.01 base 1", "tnb:1,0.01", 1.0),
        _reduced("tuned poisson:20 base 2", "poisson:20", 2.0),
        _worst_order("worst order tnb:0,0.01 base 4", "tnb:0,0.01", 4.0, trials),
        _grid("grid:10", 1.0),
        _grid("grid:20,0.5", 0.5),
        _adaptive("adaptive:0.5,2/tnb:1,0.1", 0.7),
        _subset("subset:0.3/tnb:1,0.1", 1.0),
        _tails("until:0.1", 0.7, trials),
        _tails("stopping:0.1", 0.7, trials),
    ]


class _Played:
    """What the bounds of many games came to."""

    def __init__(self) -> None:
        self.values: defaultdict[str, list[float]] = defaultdict(list)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last: dict[str, LowerBound] = {}

    def add(self, bounds: Sequence[LowerBound], seconds: float) -> None:
        """One game: its bounds, and the time they took together."""
        for bound in bounds:
            self.last[bound.key] = bound
            self.values[bound.key].append(bound.epsilon)
            self.seconds[bound.key] += seconds / len(bounds)

    def rows(self, mechanism: str, trials: int, truth: float) -> list[dict[str, object]]:
        """One row per bound."""
        found = []
        for key, bound in self.last.items():
            values = np.array(self.values[key])
            violations = int(np.sum(values > truth))
            low, high = _interval(violations, len(values))
            found.append(
                {
                    "mechanism": mechanism,
                    "trials": trials,
                    "estimator": bound.name,
                    "rule": bound.rule,
                    "label": bound.label,
                    "claimed": bound.valid,
                    "truth": truth,
                    "games": len(values),
                    "violations": violations,
                    "rate": violations / len(values),
                    "rate_low": low,
                    "rate_high": high,
                    "mean": values.mean(),
                    "spread": values.std(),
                    "milliseconds": 1e3 * self.seconds[key] / len(values),
                }
            )
        return found


def _generator(name: str, trials: int, seed: int) -> np.random.Generator:
    letters = [ord(letter) for letter in name]
    return np.random.default_rng(np.random.SeedSequence([seed, trials, *letters]))


def play(game: Game, trials: int, repeats: int, seed: int) -> list[dict[str, object]]:
    """Plays one mechanism `repeats` times; one row per estimator."""
    rng, played = _generator(game.name, trials, seed), _Played()
    estimators = [
        *all_estimators(game.repetitions, game.mu, game.threshold, game.split_top),
        *(_LargestOfLooks(planned) for planned in (True, False) if game.name in _LOOKED_AT),
        *game.own,
        *(_jax_privacy() if trials <= _POOLED_TRIALS else []),
    ]
    pooled = game.known >= _INCREASING and game.repetitions is not None
    pooled = pooled and trials <= _POOLED_TRIALS
    for _ in range(repeats):
        scores = Scores.of(*game.sample(rng, trials))
        for estimator in estimators:
            begin = time.perf_counter()
            bound = estimator.bound(scores, game.delta, CONFIDENCE, known=game.facts)
            played.add([bound], time.perf_counter() - begin)
        if pooled:
            begin = time.perf_counter()
            found_by_runs = _by_runs(game, rng, trials)
            played.add(found_by_runs, time.perf_counter() - begin)
    return played.rows(game.name, trials, game.epsilon)


def _by_runs(game: Game, rng: np.random.Generator, trials: int) -> list[LowerBound]:
    """Bounds from as many single runs as so many trials have on average."""
    assert game.repetitions is not None
    assert game.mu is not None
    runs = max(round(trials * game.repetitions.mean), 1)
    low, high = rng.normal(size=runs), rng.normal(game.mu, size=runs)
    limits = ClopperPearson()
    threshold = best_expected_threshold(
        game.mu, game.repetitions, trials, trials, limits, game.delta, 1.0 - CONFIDENCE
    )
    return [
        *pooled_bounds(low, high, game.repetitions, game.delta, known=game.facts),
        selected_bound(
            *(low, low, high, high), game.repetitions, threshold, game.delta, known=game.facts
        ),
    ]


def expected_bound(
    mu: float, law: Repetitions, trials: int, estimator: ThresholdEstimator, alpha: float = 0.05
) -> float:
    """The bound at the best threshold when the best of K draws come out as expected."""
    at = best_expected_threshold(mu, law, trials, trials, estimator, DELTA, alpha)
    fp, _, fn, _ = best_of_gaussian_rates(np.array([at]), mu, law)
    counts = ErrorCounts(fp * trials, fn * trials, trials, trials)
    return estimator.epsilon_at(float(estimator.lower_limit(counts, DELTA, alpha)[0]), DELTA)


def runs_for_the_same(epsilon_base: float, law: Repetitions, trials: int) -> tuple[float, int]:
    """The bound that so many trials per side are expected to give, and the runs that give it too.

    Both by Clopper-Pearson limits at the best threshold; runs per side, pooled.
    """
    mu = calibrate_mu(epsilon_base, DELTA)
    target = expected_bound(mu, law, trials, ClopperPearson())

    def missing(runs: float) -> float:
        pooled = expected_bound(mu, Fixed(1), math.ceil(runs), PooledClopperPearson(law))
        return target - pooled

    few, enough = numerics.double_until(lambda runs: missing(runs) <= 0.0, 1.0, 1e12)
    runs = numerics.safe_root(missing, enough, max(few, 1.0), 1.0, relative=0.005)
    return target, math.ceil(runs)


def _interval(count: int, trials: int) -> tuple[float, float]:
    """Clopper-Pearson interval of 95 %."""
    interval = stats.binomtest(count, trials).proportion_ci(0.95)
    return float(interval.low), float(interval.high)


def failures(study: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """The rows that claim to hold and are significantly above alpha, all rows considered."""
    claimed = study.loc[study["claimed"]]
    p_value = stats.binom.sf(claimed["violations"] - 1, claimed["games"], alpha)
    return pd.DataFrame(claimed[p_value < FALSE_ALARM / max(len(claimed), 1)])


def together(study: pd.DataFrame) -> pd.DataFrame:
    """What claims to hold, one row per estimator and size: all its mechanisms, whose games differ.

    Sees an estimator that errs too often by too little, or in too few games, for a single cell.
    """
    claimed = study.loc[study["claimed"]]
    by = ["trials", "estimator", "rule", "claimed"]
    return claimed.groupby(by, as_index=False, sort=False)[["games", "violations"]].sum()


def run(sizes: dict[int, int], seed: int, only: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """The study, one mechanism and number of trials after the other."""
    for trials, repeats in sizes.items():
        for game in games(trials):
            if not only or game.name in only:
                yield pd.DataFrame(play(game, trials, repeats, seed))
        for one_run in canary_games() if trials <= _CANARY_TRIALS else []:
            if not only or one_run.name in only:
                yield pd.DataFrame(play_canaries(one_run, trials, repeats, seed))


def report(study: pd.DataFrame, command: str) -> str:
    """The study as a page."""
    claimed = study[study["claimed"]]
    bad = failures(study)
    flagged = set(zip(bad["mechanism"], bad["trials"], bad["estimator"], bad["rule"], strict=True))
    lines = [
        "# Coverage",
        "",
        "How often does a lower bound of 95 % confidence come out above the true epsilon? Each",
        "mechanism below has an epsilon that is known exactly. The full table, with the number of",
        "games, the spread and the time of every estimator, is `coverage.csv`; made by",
        "",
        f"    {command}",
        "",
        f"{len(claimed)} combinations of estimator, mechanism and number of trials claim to hold;",
        f"{len(bad)} are significantly above 5 % (one-sided binomial test, {FALSE_ALARM:.0%} for",
        "the whole table). The largest violation rate among those that claim to hold, with 200",
        f"games or more, is {claimed[claimed['games'] >= 200]['rate'].max():.1%}.",
        "",
        "Cells: mean lower bound, and the share of games in which it was above the truth.",
        "An estimator whose claim does not apply to the mechanism stands in brackets; so does the",
        "conditional test, which needs coins where the study has equal numbers on both sides.",
        "`scan, looks` is the largest bound of all looks at a growing game, as if it had stopped",
        "there. `pooled` bounds see single runs, as many as the trials have. A game of canaries is",
        "one run with a canary for every trial; those alike share how sure each is, and there the",
        "readings as independent trials are not valid. `jax_privacy` is another project's.",
    ]
    for trials, part in study.groupby("trials"):
        repeats = int(part["games"].max())
        lines += ["", f"## {trials:,} + {trials:,} trials, {repeats} games", ""]
        names = list(dict.fromkeys(part["mechanism"]))
        truths = [f"{part[part['mechanism'] == n]['truth'].iloc[0]:.2f}" for n in names]
        lines.append("| estimator | " + " | ".join(names) + " | ms |")
        lines.append("|---" * (len(names) + 2) + "|")
        lines.append("| **truth** | " + " | ".join(truths) + " | |")
        for (estimator, rule), rows in part.groupby(["estimator", "rule"], sort=False):
            by_name = rows.set_index("mechanism")
            cells = []
            for name in names:
                if name not in by_name.index:
                    cells.append("")
                    continue
                row = by_name.loc[name]
                text = f"{row['mean']:.2f} {row['rate']:.1%}"
                if (name, trials, estimator, rule) in flagged:
                    text = f"**{text}**"
                cells.append(text if row["claimed"] else f"({text})")
            label = str(estimator) if estimator == rule else f"{estimator}, {rule}"
            lines.append(
                f"| {label} | " + " | ".join(cells) + f" | {rows['milliseconds'].mean():.1f} |"
            )
    law, trials = parse_repetitions("tnb:0,0.01"), 1_000
    lines += [
        "",
        "## Pooled runs",
        "",
        f"How many single runs give what the paper's {trials:,} + {trials:,} trials with {law}",
        f"give ({trials * law.mean:,.0f} runs per side), by Clopper-Pearson limits at the best",
        "threshold and expected counts:",
        "",
        "| base epsilon | lower bound | runs per side | share of the trials' runs |",
        "|---|---|---|---|",
    ]
    for epsilon_base in (1.0, 2.0, 4.0):
        target, runs = runs_for_the_same(epsilon_base, law, trials)
        share = runs / (trials * law.mean)
        lines.append(f"| {epsilon_base:g} | {target:.3f} | {runs:,} | {share:.0%} |")
    return "\n".join(lines) + "\n"


def _parser() -> console.Parser:
    parser = console.Parser(
        prog="python -m audit.coverage_study",
        description="Do the lower bounds hold? Plays all where epsilon is known.",
        examples={
            "python -m audit.coverage_study --seed 1": "a quarter of an hour",
            "python -m audit.coverage_study --trials 200 --games 50 --out /tmp": "a quick look",
        },
        notes="writes coverage.csv and coverage.md; exit code 1: a bound does not hold",
    )
    parser.add_argument(
        "--trials",
        type=int,
        nargs="+",
        default=list(STUDY),
        metavar="N",
        help=f"trials per side, one number or several (default: {' '.join(map(str, STUDY))})",
    )
    parser.add_argument(
        "--games",
        type=int,
        metavar="N",
        help=f"games per cell (default: {', '.join(map(str, STUDY.values()))})",
    )
    parser.add_argument("--seed", type=int, default=1, help="a whole number (default: 1)")
    parser.add_argument(
        "--mechanisms", nargs="+", default=[], metavar="NAME", help="some of them (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs"), help="folder of the tables (default: docs)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a bound that claims to hold does not."""
    options = _parser().parse_args(argv)
    try:
        names = [game.name for game in games(1_000)]
        names += [game.name for game in canary_games()]
        chosen = [checks.one_of("mechanisms", name, names) for name in options.mechanisms]
        checks.integer("seed", options.seed, 0)
        for trials in options.trials:
            checks.integer("trials", trials, 2, _MAX_TRIALS)
        if options.games is not None:
            checks.integer("games", options.games, 1, _MAX_GAMES)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        return console.report_error(error)
    sizes = {t: options.games or STUDY.get(t, 100) for t in options.trials}
    parts = []
    for part in run(sizes, options.seed, chosen):
        parts.append(part)
        row = part.iloc[0]
        print(
            f"{row['mechanism']:32} {row['trials']:7d} trials  {row['games']:4d} games  "
            f"default {row['mean']:.3f} of {row['truth']:.3f}, violations {row['rate']:.1%}",
            flush=True,
        )
    study = pd.concat(parts, ignore_index=True)
    command = f"python -m audit.coverage_study --seed {options.seed}"
    if sizes != STUDY:
        command += " --trials " + " ".join(map(str, sizes))
    if options.games is not None:
        command += f" --games {options.games}"
    if chosen:
        command += " --mechanisms " + " ".join(f'"{name}"' for name in chosen)
    try:
        study.to_csv(options.out / "coverage.csv", index=False, float_format="%.6g")
        (options.out / "coverage.md").write_text(report(study, command))
    except OSError as error:
        return console.report_error(error)
    bad, bad_together = failures(study), failures(together(study))
    for found in (bad, bad_together):
        if len(found):
            print(found.to_string())
    print(f"{len(bad)} of {int(study['claimed'].sum())} claims fail; written to {options.out}")
    return 1 if len(bad) or len(bad_together) else 0


if __name__ == "__main__":
    sys.exit(console.run(main))
