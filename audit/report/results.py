"""What an audit found, as dataclasses. Everything that is shown of it is rendered from these."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from audit.game.binding import SCHEMA
from audit.upper_bounds import BaseReport
from threat_models.datasets import FOREIGN

PROXIES = ("lambda_a", "lambda_b")
"""The paper's proxies; sampled batches are told by lambda_c too, the likelihood ratio of a run."""
ALL_PROXIES = (*PROXIES, "lambda_c")
PAPER_PROTOCOL = "gaussian-curve:max-grid"
"""The key of the estimator that the paper uses: the f-curve at the best of a grid, uncorrected."""
VALID, UNCORRECTED = "valid", "paper's, uncorrected"
ALL_RUNS = "valid, from all runs"
# They count all runs, where the other estimators count winners; the strongest first.
_ALL_RUNS = ("pooled-gaussian-curve:rank-sum", "pooled:scan")
# Curves of the score's own law: they assume more and get more.
_OWN_CURVES = {
    "lifted-curve:rank-sum": "valid if monotone",
    "worst-order-curve:fixed": "valid for this order",
}


@dataclass(frozen=True)
class Evidence:
    """What one set of games proves.

    Attributes:
        epsilon: the lower bound.
        threshold: behind it, on the scale of the statistic; None where there is no single one.
        direction: "higher" if a statistic above the threshold speaks for the canary, else "lower".
        false_positives: games without the canary on the side that speaks for it.
        false_negatives: games with the canary on the other side.
        trials_without: games without the canary that were counted; runs, where all of them count.
        trials_with: games with the canary that were counted, likewise.
    """

    epsilon: float
    threshold: float | None
    direction: str
    false_positives: int | None
    false_negatives: int | None
    trials_without: int
    trials_with: int

    @property
    def trials(self) -> int:
        """Games that were counted."""
        return self.trials_without + self.trials_with


@dataclass(frozen=True)
class LowerResult:
    """One estimator's lower bounds from one proxy.

    Attributes:
        name: the estimator.
        rule: how its threshold was chosen.
        valid: whether the confidence is true for this game.
        label: one word or two about the kind of claim.
        assumes: what has to be true.
        source: paper and theorem.
        confidence: of each bound on its own.
        pooled: from the games of all repeats together: the number to report.
        repeats: from each repeat alone; their spread is information, their mean claims nothing.
    """

    name: str
    rule: str
    valid: bool
    label: str
    assumes: str
    source: str
    confidence: float
    pooled: Evidence
    repeats: tuple[Evidence, ...]

    @property
    def epsilon(self) -> float:
        """The lower bound from all games."""
        return self.pooled.epsilon

    @property
    def min(self) -> float:
        """The smallest over the repeats."""
        return min(each.epsilon for each in self.repeats)

    @property
    def max(self) -> float:
        """The largest over the repeats."""
        return max(each.epsilon for each in self.repeats)

    @property
    def mean(self) -> float:
        """The mean over the repeats, as papers print it; it claims nothing."""
        return math.fsum(each.epsilon for each in self.repeats) / len(self.repeats)


@dataclass(frozen=True)
class UpperResult:
    """One upper bound on the tuning, or a number beside them.

    Attributes:
        name: the bound's name; "base" and "base-renyi" are one run alone.
        epsilon: the value; None where the bound does not apply.
        valid: whether it is an upper bound for this score and protocol.
        label: one word or two about the kind of claim.
        assumes: what has to be true.
        source: paper and theorem.
        error: how far rounding and discretisation may have moved it.
    """

    name: str
    epsilon: float | None
    valid: bool
    label: str
    assumes: str
    source: str
    error: float


@dataclass(frozen=True)
class Contradiction:
    """A valid lower bound above a valid upper bound (see `audit.report.contradictions`).

    Attributes:
        key: of the lower bound.
        proxy: it is from.
        lower: its value, from all games, with its own confidence.
        upper_bound: name of the smallest valid upper bound.
        upper: its value.
        beyond_chance: whether the lower bound still exceeds the upper bound when the error is
            shared among all lower bounds that the report compares. Only then it is announced.
        compared: number of lower bounds that the report compares.
    """

    key: str
    proxy: str
    lower: float
    upper_bound: str
    upper: float
    beyond_chance: bool
    compared: int = 0


@dataclass(frozen=True)
class BudgetResult:
    """What was found at one budget of one run.

    Attributes:
        epsilon_base: eps_B.
        mu: of the base; None where it is not Gaussian.
        score: how the best run was chosen.
        base: one run alone.
        runs: how many were trained.
        diverged_runs: how many of them diverged; they are never chosen.
        lower_bounds: by proxy, then by key, in the order of the estimators.
        upper_bounds: by name, in the order of rows.
        contradictions: valid lower bounds above valid upper bounds, also those that chance may
            explain.
        ceiling: the largest epsilon that the number to report could have shown in so many games.
        games_needed: the fewest games in which it could show the smallest valid upper bound; None
            where there is none.
    """

    epsilon_base: float
    mu: float | None
    score: str
    base: BaseReport
    runs: int
    diverged_runs: int
    lower_bounds: dict[str, dict[str, LowerResult]]
    upper_bounds: dict[str, UpperResult]
    contradictions: tuple[Contradiction, ...] = ()
    ceiling: float = 0.0
    games_needed: int | None = None

    @property
    def smallest_upper(self) -> UpperResult | None:
        """The smallest valid upper bound; None where there is none."""
        known = [one for one in self.upper_bounds.values() if one.valid]
        return min(known, key=lambda one: one.epsilon or 0.0, default=None)

    @property
    def contradiction(self) -> Contradiction | None:
        """The contradiction to announce: the largest that chance does not explain, if there is one.

        In an audit of a correct mechanism, whichever bounds are compared, the probability of any
        such contradiction in the report is at most 1 - confidence.
        """
        announced = [one for one in self.contradictions if one.beyond_chance]
        return max(announced, key=lambda one: one.lower, default=None)


@dataclass(frozen=True)
class Engine:
    """Who trained: its name, and why it."""

    name: str
    reason: str


@dataclass(frozen=True)
class Rounding:
    """What rounded products do to the clipping threshold: the relative error, and words."""

    product_error: float
    sensitivity: str


@dataclass(frozen=True)
class Records:
    """How many records were really used; 0 where there are none."""

    training: int
    validation: int


@dataclass(frozen=True)
class Recommended:
    """The one number to report, fixed before the game: which proxy, and the bound's key."""

    proxy: str
    key: str


@dataclass(frozen=True)
class Report:
    """All results of an audit.

    Attributes:
        config: the settings that the results depend on (`AuditConfig.identity`).
        records: how many records were really used.
        candidates: Omega, the hyper-parameters of every candidate.
        engine: who trained.
        precision: what rounded products do; None where none are.
        recommended: the one number to report.
        results: of every budget.
        made: by what, when and where: version, date, libraries, hardware. The rest of a report is
            a function of the trials.
        schema: version of this form.
    """

    config: dict[str, Any]
    records: Records
    candidates: tuple[dict[str, float], ...]
    engine: Engine
    precision: Rounding | None
    recommended: Recommended
    results: tuple[BudgetResult, ...]
    made: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def proxies(self) -> tuple[str, ...]:
        """The proxies that lower bounds are from."""
        return tuple(self.results[0].lower_bounds)

    def reported(self, budget: int) -> LowerResult:
        """The recommended lower bound at a budget."""
        return self.results[budget].lower_bounds[self.recommended.proxy][self.recommended.key]

    @property
    def highlights(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """The lower bounds worth showing: key, what kind of claim, and from which proxies.

        The recommended one comes first; then the curve of the score's own law and a bound from all
        runs, where they are valid; last the paper's protocol, for comparison. The choice depends
        on the settings alone.
        """
        lower = self.results[0].lower_bounds["lambda_a"]
        kinds = [(self.recommended.key, VALID, self.proxies)]
        for key, kind in _OWN_CURVES.items():
            if key in lower and lower[key].valid:
                kinds.append((key, kind, ("lambda_a",)))
        of_all_runs = (key for key in _ALL_RUNS if key in lower and lower[key].valid)
        kinds += [(key, ALL_RUNS, ("lambda_a",)) for key in itertools.islice(of_all_runs, 1)]
        return [*kinds, (PAPER_PROTOCOL, UNCORRECTED, PROXIES)]


def way_of_tuning(config: Mapping[str, Any]) -> str:
    """How the best run was chosen: a law of K for random search, else the protocol.

    Args:
        config: the settings of an audit.
    """
    protocol = config.get("protocol", "search")
    if protocol == "search":
        return f"K ~ {config['repetitions']}"
    sampler = f", sampler {config['sampler']}" if protocol.startswith("adaptive") else ""
    return f"{protocol}{sampler}"


def row_of_table(config: Mapping[str, Any]) -> tuple[str, str, str]:
    """The row of table 2: threat model, X and z, for instance NTNV, FASHION, MNIST[0].

    Args:
        config: the settings of an audit of one threat model and canary.
    """
    threat, canary, dataset = config["threat"], config["canary"], config["dataset"]
    empty = threat == "ETCV"
    if canary == "input":
        canary = f"{dataset if empty else FOREIGN[dataset]}[{config['canary_index']}]"
    return threat, "empty" if empty else dataset, canary
