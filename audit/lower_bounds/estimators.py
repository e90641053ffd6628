"""The estimators by name: what is computed, and what is claimed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from audit import checks
from audit.lower_bounds import thresholds
from audit.lower_bounds.families import SplitOrderCurve
from audit.lower_bounds.methods import (
    Bayesian,
    BestOfGaussian,
    Conditional,
    Method,
    Raw,
    gaussian,
)
from audit.lower_bounds.pooled import Lifted, LiftedGaussian
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.scan import Scan, scan
from audit.lower_bounds.scores import Scores
from audit.lower_bounds.thresholds import Choice
from audit.repetitions import Fixed, Repetitions

# (scores, method, delta, alpha) -> what the rule settles on; some take curves only.
Chooser = Callable[[Scores, Any, float, float], Choice]

DIRECTIONS = ("higher", "lower", "both")
VALID, UNCORRECTED, BAYESIAN = "valid", "uncorrected", "Bayesian"
NOT_FOR_TUNED = "not valid for tuned outputs"

_INDEPENDENT = "independent trials"
_CLAIMS = {
    "scan": (_INDEPENDENT, "this project; recursion after Noe 1972"),
    "clopper-pearson": (_INDEPENDENT, "Clopper & Pearson 1934; Xiang, Wang & Wang 2024, eq. 4"),
    "conditional": (
        "independent trials, each with its own fair coin",
        "Fisher 1935; the proof for delta > 0 is this project's",
    ),
    "bayesian": ("independent trials, Jeffreys' prior", "Zanella-Beguelin et al. 2023"),
    "gaussian-curve": (
        "independent trials of a Gaussian mechanism that was not tuned, score increasing",
        "Nasr et al. 2023",
    ),
    "pooled": (
        "independent runs, released statistic is the score",
        "this project; limits of Clopper & Pearson 1934",
    ),
    "pooled-gaussian-curve": (
        "independent runs of a Gaussian base, released statistic is an increasing score",
        "this project; the curve is that of Nasr et al. 2023",
    ),
    "worst-order-curve": (
        "independent trials; best of K by a split order of one standardised Gaussian statistic",
        "this project",
    ),
    "lifted-curve": (
        "independent trials; best of K by an increasing score of one Gaussian statistic",
        "this project; the family is that of Xiang, Wang & Wang 2024, algorithm 3",
    ),
}
_RULES = {
    "scan": "all ranks of a grid, paid for by their joint law",
    "fixed": "threshold fixed in advance",
    "split": "threshold from the even trials, judged by the odd ones",
    "multi-split": "median of random splits at half the error, Meinshausen et al. 2009",
    "bonferroni": "thresholds at ranks fixed in advance, each paid for",
    "band": "all thresholds, by a simultaneous band after Berk & Jones 1979",
    "max-grid": "best of a grid on the same trials, not paid for",
}


@dataclass(frozen=True)
class _Setting:
    """What every estimator is told."""

    scores: Scores
    delta: float
    confidence: float
    direction: str

    @property
    def alpha(self) -> float:
        return 1.0 - self.confidence

    def strongest(self, one_way: Callable[[Scores, float], LowerBound]) -> LowerBound:
        """The bound in the direction asked for; looking both ways halves the error of each."""
        ways = [w for w in ("higher", "lower") if self.direction in (w, "both")]
        share = self.alpha / len(ways)
        found = []
        for way in ways:
            if way == "higher":
                bound = one_way(self.scores, share)
            else:
                bound = one_way(self.scores.mirrored, share)
                threshold = None if bound.threshold is None else -bound.threshold
                bound = replace(bound, threshold=threshold, direction="lower")
            found.append(bound)
        return max(found, key=lambda bound: bound.epsilon)


def _bound(
    setting: _Setting, name: str, rule: str, epsilon: float, found: Choice | Scan, *, tuned: bool
) -> LowerBound:
    """One result with its claim."""
    assumes, source = _CLAIMS[name]
    label = VALID
    if name == "bayesian":
        label = BAYESIAN
    elif name == "gaussian-curve" and tuned:
        label = NOT_FOR_TUNED
    elif rule == "max-grid":
        label = UNCORRECTED
    threshold = found.threshold
    return LowerBound(
        name=name,
        rule=rule,
        epsilon=epsilon,
        confidence=setting.confidence,
        valid=label == VALID,
        assumes=f"{assumes}; {_RULES[rule]}",
        label=label,
        source=source,
        threshold=None if threshold is None or math.isnan(threshold) else threshold,
        false_positives=found.false_positives,
        false_negatives=found.false_negatives,
        trials_without=found.trials_without,
        trials_with=found.trials_with,
    )


def _by_scan(setting: _Setting) -> LowerBound:
    def one_way(scores: Scores, alpha: float) -> LowerBound:
        found = scan(scores, setting.delta, alpha)
        return _bound(setting, "scan", "scan", found.epsilon, found, tuned=True)

    return setting.strongest(one_way)


def _by_method(
    setting: _Setting, method: Method, rule: str, choose: Chooser, *, tuned: bool
) -> LowerBound:
    def one_way(scores: Scores, alpha: float) -> LowerBound:
        found = choose(scores, method, setting.delta, alpha)
        epsilon = method.epsilon(found.strength, setting.delta)
        return _bound(setting, method.name, rule, epsilon, found, tuned=tuned)

    return setting.strongest(one_way)


def _setting(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float,
    confidence: float,
    direction: str,
) -> _Setting:
    checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    checks.interval("confidence", confidence, 0.0, 1.0)
    direction = checks.one_of("direction", direction, DIRECTIONS)
    scores = Scores.of(scores_without, scores_with)
    return _Setting(scores, float(delta), float(confidence), direction)


def lower_bound(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    direction: str = "higher",
) -> LowerBound:
    """The recommended lower bound on epsilon: it assumes nothing but independent trials.

    Args:
        scores_without: scores [n0] of the trials without the record.
        scores_with: scores [n1] of the trials with it.
        delta: in [0, 1).
        confidence: in (0, 1).
        direction: "higher" if high scores speak for the record, "lower" if low ones do, "both" to
            look both ways and pay for it. Each is valid whichever is true.

    Returns:
        A bound that exceeds the true epsilon with probability at most 1 - confidence. It is a
        function of the scores alone: no seed, no order of the trials.

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> scores = list(range(100))
        >>> round(lower_bound(scores, [s + 90 for s in scores]).epsilon, 2)
        3.2
    """
    return _by_scan(_setting(scores_without, scores_with, delta, confidence, direction))


def all_bounds(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    repetitions: Repetitions | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    direction: str = "higher",
    split_top: float | None = None,
) -> list[LowerBound]:
    """Every lower bound that can be had from these scores; the recommended one comes first.

    Args:
        scores_without: scores [n0] of the trials without the record.
        scores_with: scores [n1] of the trials with it.
        delta: in [0, 1).
        confidence: in (0, 1).
        repetitions: law of K behind the scores. Without it they are taken as not tuned, and the
            lifted curve is left out.
        mu: expected distance of the means in standard deviations. With it the scores must be
            standardised (N(b mu, 1) in one run), and thresholds are fixed from theory.
        threshold: a threshold fixed in advance, instead of the one from theory.
        direction: as in `lower_bound`.
        split_top: where the order of the outputs splits, for the worst-order score; it adds
            "worst-order-curve", and needs standardised scores, `repetitions` and `threshold`.

    Returns:
        Lower bounds, each with its claim; names may repeat, `key` does not.

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.
    """
    jobs = plan(
        scores_without,
        scores_with,
        delta,
        confidence,
        repetitions=repetitions,
        mu=mu,
        threshold=threshold,
        direction=direction,
        split_top=split_top,
    )
    return [job() for job in jobs.values()]


def plan(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    repetitions: Repetitions | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    direction: str = "higher",
    split_top: float | None = None,
) -> dict[str, Callable[[], LowerBound]]:
    """What `all_bounds` computes, by key, not computed yet; the arguments are the same."""
    setting = _setting(scores_without, scores_with, delta, confidence, direction)
    if mu is not None:
        checks.interval("mu", mu, 0.0, 1e4)
    if threshold is not None:
        checks.interval("threshold", threshold)
    law = Fixed(1) if repetitions is None else repetitions
    tuned = law != Fixed(1)
    in_advance = _in_advance(setting, law, mu, threshold)
    jobs: dict[str, Callable[[], LowerBound]] = {"scan:scan": partial(_by_scan, setting)}
    methods: list[Method] = [Raw(), Conditional(), Bayesian(), gaussian()]
    if split_top is not None:
        # The reduced game's curve does not hold for this score: this one takes its place.
        if repetitions is None or threshold is None or direction != "higher":
            raise ValueError("split_top must come with repetitions, threshold and direction higher")
        methods.append(SplitOrderCurve(law, checks.interval("split_top", split_top), threshold))
    elif tuned:
        methods.append(BestOfGaussian(law))
    for method in methods:
        rules: dict[str, Chooser] = {}
        if in_advance is not None:
            rules["fixed"] = in_advance
        if not isinstance(method, SplitOrderCurve):
            rules["split"] = thresholds.split
        if method.name in ("clopper-pearson", "lifted-curve"):
            rules["multi-split"] = thresholds.multi_split
            rules["bonferroni"] = thresholds.bonferroni
            rules["band"] = thresholds.band
        if isinstance(method, Raw | BestOfGaussian):
            rules["max-grid"] = thresholds.max_grid
        for rule, choose in rules.items():
            job = partial(_by_method, setting, method, rule, choose, tuned=tuned)
            jobs[f"{method.name}:{rule}"] = job
    return jobs


def _in_advance(
    setting: _Setting, law: Repetitions, mu: float | None, threshold: float | None
) -> Chooser | None:
    """The rule with a threshold fixed before the game, if there is one."""

    def given(scores: Scores, method: Method, delta: float, alpha: float) -> Choice:
        assert threshold is not None
        # A mirrored game has its scores negated.
        at = threshold if scores is setting.scores else -threshold
        return thresholds.fixed(scores, at, method, delta, alpha)

    def from_theory(scores: Scores, method: Method, delta: float, alpha: float) -> Choice:
        assert mu is not None
        n0, n1 = len(scores.without), len(scores.with_record)
        at = thresholds.from_theory(mu, law, n0, n1, method, delta, alpha)
        return thresholds.fixed(scores, at, method, delta, alpha)

    if threshold is not None:
        return given
    return None if mu is None else from_theory


def pooled_bounds(
    runs_without: ArrayLike,
    runs_with: ArrayLike,
    repetitions: Repetitions,
    delta: float = 1e-5,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> list[LowerBound]:
    """Lower bounds on the epsilon of the tuning from the scores of single runs, winners or not.

    The score, the larger the better, has to be what is released, or to decide it; otherwise see
    `pooled.selected_rate_limit`.

    Args:
        runs_without: scores [r0] of runs of the base mechanism without the record.
        runs_with: scores [r1] of runs with it.
        repetitions: law of K.
        delta: in [0, 1).
        confidence: in (0, 1).
        threshold: a threshold fixed in advance, if there is one.

    Returns:
        Lower bounds by "pooled" (nothing assumed of the base) and "pooled-gaussian-curve".

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.
    """
    setting = _setting(runs_without, runs_with, delta, confidence, "higher")
    if threshold is not None:
        checks.interval("threshold", threshold)
    in_advance = _in_advance(setting, repetitions, None, threshold)
    bounds = []
    for method in (Lifted(repetitions), LiftedGaussian(repetitions)):
        rules: dict[str, Chooser] = {
            "split": thresholds.split,
            "bonferroni": thresholds.bonferroni,
            "band": thresholds.band,
        }
        if in_advance is not None:
            rules["fixed"] = in_advance
        for rule, choose in rules.items():
            bounds.append(_by_method(setting, method, rule, choose, tuned=True))
    return bounds
