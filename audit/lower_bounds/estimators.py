"""The estimators by name: what is computed, and what is claimed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from audit import checks
from audit.lower_bounds import thresholds
from audit.lower_bounds.curves import BestOfGaussian, Curve, Raw, gaussian
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.scan import scan
from audit.lower_bounds.scores import Scores
from audit.lower_bounds.thresholds import Choice
from audit.repetitions import Fixed, Repetitions

DIRECTIONS = ("higher", "lower", "both")
VALID, UNCORRECTED = "valid", "uncorrected"
NOT_FOR_TUNED = "not valid for tuned outputs"

_NOTHING = "independent trials"
_CLAIMS = {
    "clopper-pearson": (
        _NOTHING,
        "Clopper & Pearson 1934; Xiang, Wang & Wang 2024, eq. 4",
    ),
    "gaussian-curve": (
        "independent trials of a Gaussian mechanism that was not tuned, score increasing",
        "Nasr et al. 2023",
    ),
    "lifted-curve": (
        "independent trials; best of K by an increasing score of one Gaussian statistic",
        "this project; the curve of Xiang, Wang & Wang 2024, algorithm 3",
    ),
}
_RULES = {
    "fixed": "threshold fixed in advance",
    "split": "threshold from the even trials, limits from the odd ones",
    "bonferroni": "thresholds at ranks fixed in advance, each paid for",
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


def _scan(setting: _Setting) -> LowerBound:
    def one_way(scores: Scores, alpha: float) -> LowerBound:
        found = scan(scores, setting.delta, alpha)
        return LowerBound(
            name="scan",
            rule="all ranks",
            epsilon=found.epsilon,
            confidence=setting.confidence,
            valid=True,
            assumes=_NOTHING,
            label=VALID,
            source="this project; recursion after Noe 1972",
            threshold=found.threshold,
            false_positives=found.false_positives,
            false_negatives=found.false_negatives,
            trials_without=len(scores.without),
            trials_with=len(scores.with_record),
        )

    return setting.strongest(one_way)


def _by_curve(
    setting: _Setting,
    curve: Curve,
    rule: str,
    choose: Callable[[Scores, float], Choice],
    tuned: bool,
) -> LowerBound:
    assumes, source = _CLAIMS[curve.name]
    label = UNCORRECTED if rule == "max-grid" else VALID
    if tuned and curve.name == "gaussian-curve":
        label = NOT_FOR_TUNED

    def one_way(scores: Scores, alpha: float) -> LowerBound:
        choice = choose(scores, alpha)
        return LowerBound(
            name=curve.name,
            rule=rule,
            epsilon=curve.epsilon(choice.strength, setting.delta),
            confidence=setting.confidence,
            valid=label == VALID,
            assumes=f"{assumes}; {_RULES[rule]}",
            label=label,
            source=source,
            threshold=choice.threshold,
            false_positives=choice.false_positives,
            false_negatives=choice.false_negatives,
            trials_without=choice.trials_without,
            trials_with=choice.trials_with,
        )

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
    checks.one_of("direction", direction, DIRECTIONS)
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
        3.08
    """
    return _scan(_setting(scores_without, scores_with, delta, confidence, direction))


def all_bounds(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    repetitions: Repetitions | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    direction: str = "higher",
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

    Returns:
        Lower bounds, each with its claim; names may repeat, `key` does not.

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.
    """
    setting = _setting(scores_without, scores_with, delta, confidence, direction)
    if mu is not None:
        checks.interval("mu", mu, 0.0, 1e4)
    if threshold is not None:
        checks.interval("threshold", threshold)
    law = Fixed(1) if repetitions is None else repetitions
    curves: list[Curve] = [Raw(), gaussian()]
    if repetitions is not None:
        curves.append(BestOfGaussian(repetitions))
    bounds = [_scan(setting)]
    for curve in curves:
        rules = _rules(setting, curve, law, mu, threshold)
        for rule, choose in rules.items():
            bounds.append(_by_curve(setting, curve, rule, choose, tuned=law != Fixed(1)))
    return bounds


def _rules(
    setting: _Setting, curve: Curve, law: Repetitions, mu: float | None, threshold: float | None
) -> dict[str, Callable[[Scores, float], Choice]]:
    delta = setting.delta

    def in_advance(scores: Scores, alpha: float) -> Choice:
        n0, n1 = len(scores.without), len(scores.with_record)
        if threshold is not None:
            # A mirrored game has its scores negated.
            at = threshold if scores is setting.scores else -threshold
        else:
            assert mu is not None
            at = thresholds.from_theory(mu, law, n0, n1, curve, delta, alpha)
        return thresholds.fixed(scores, at, curve, delta, alpha)

    rules: dict[str, Callable[[Scores, float], Choice]] = {}
    if mu is not None or threshold is not None:
        rules["fixed"] = in_advance
    rules["split"] = lambda s, alpha: thresholds.split(s, curve, delta, alpha)
    rules["bonferroni"] = lambda s, alpha: thresholds.bonferroni(s, curve, delta, alpha)
    rules["max-grid"] = lambda s, alpha: thresholds.max_grid(s, curve, delta, alpha)
    return rules
