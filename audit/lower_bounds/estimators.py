"""All estimators that suit a game, and the functions that ask them."""

from numpy.typing import ArrayLike

from audit import checks
from audit import repetitions as laws
from audit.claims import Facts
from audit.lower_bounds.counting import (
    Bayesian,
    ClopperPearson,
    Conditional,
    GaussianCurve,
    LiftedCurve,
)
from audit.lower_bounds.estimator import DIRECTIONS, Estimator, facts_as_told
from audit.lower_bounds.families import WorstOrderCurve
from audit.lower_bounds.pooled import PooledClopperPearson, PooledGaussianCurve
from audit.lower_bounds.pooled_scan import PooledScan
from audit.lower_bounds.rank_sum import RankSum
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.rules import (
    Band,
    Bonferroni,
    FixedThreshold,
    MaximumOverGrid,
    MultiSplit,
    Split,
    ThresholdFromTheory,
    ThresholdRule,
)
from audit.lower_bounds.scan import Scan
from audit.lower_bounds.scores import Scores
from audit.lower_bounds.sequential_plan import SequentialPlan
from audit.repetitions import Fixed, Repetitions


def lower_bound(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    direction: str = "higher",
    looks: SequentialPlan | int | None = None,
) -> LowerBound:
    """The recommended lower bound on epsilon: it assumes nothing but independent trials.

    Args:
        scores_without: scores [n0] of the trials without the record.
        scores_with: scores [n1] of the trials with it.
        delta: in [0, 1).
        confidence: in (0, 1).
        direction: "higher" if high scores speak for the record, "lower" if low ones do, "both" to
            look both ways and pay for it. Each is valid whichever is true.
        looks: for a game that stops when it has proved enough: how many looks at it are planned, or
            `SequentialPlan(number=j)` for the j-th without a plan. The bound holds whenever the
            game stops.

    Returns:
        A bound that exceeds the true epsilon with probability at most 1 - confidence. It is a
        function of the scores alone: no seed, no order of the trials.

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> scores = list(range(100))
        >>> round(lower_bound(scores, [s + 90 for s in scores]).epsilon, 2)
        3.14
    """
    return Scan()(scores_without, scores_with, delta, confidence, direction, looks=looks)


def all_estimators(
    repetitions: Repetitions | str | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    split_top: float | None = None,
) -> list[Estimator]:
    """Every estimator that suits a game; the recommended one comes first.

    Args:
        repetitions: law of K behind the scores, also as text; None where nothing is tuned.
        mu: expected distance of standardised scores, N(b mu, 1) in one run.
        threshold: a threshold fixed in advance.
        split_top: where the order of the outputs splits, for the worst-order score.

    Raises:
        ValueError: a parameter is out of its range, or `split_top` comes alone.

    Example:
        >>> [one.name for one in all_estimators()][:2]
        ['scan', 'clopper-pearson']
    """
    law = Fixed(1) if repetitions is None else laws.parse_repetitions(repetitions)
    in_advance: list[ThresholdRule] = []
    from_theory = None if mu is None else ThresholdFromTheory(mu, law)
    if threshold is not None:
        in_advance = [FixedThreshold(threshold)]
    elif from_theory is not None:
        in_advance = [from_theory]
    # All but the one that is not paid for; the median and the two joint ones take longer.
    few: list[ThresholdRule] = [*in_advance, Split()]
    many = [*few, MultiSplit(), Bonferroni(), Band(), MaximumOverGrid()]
    found: list[Estimator] = [
        Scan(),
        *(ClopperPearson(rule=rule) for rule in many),
        *(Conditional(rule=rule) for rule in few),
        *(Bayesian(rule=rule) for rule in few),
        *(GaussianCurve(rule=rule) for rule in [*few, MaximumOverGrid()]),
    ]
    if split_top is not None:
        # The reduced game's curve does not hold for this score: this one takes its place.
        if repetitions is None or threshold is None:
            raise ValueError("split_top must come with repetitions, threshold and direction higher")
        found.append(WorstOrderCurve(law, split_top, rule=FixedThreshold(threshold)))
    elif law != Fixed(1):
        found += [LiftedCurve(law, rule=rule) for rule in [*many, RankSum()]]
    else:
        found.append(GaussianCurve(rule=RankSum()))
    return found


def all_lower_bounds(
    scores_without: ArrayLike,
    scores_with: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    repetitions: Repetitions | str | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    direction: str = "higher",
    split_top: float | None = None,
    known: Facts | None = None,
    looks: SequentialPlan | int | None = None,
) -> list[LowerBound]:
    """Every lower bound that can be had from these scores; the recommended one comes first.

    Args:
        scores_without: scores [n0] of the trials without the record.
        scores_with: scores [n1] of the trials with it.
        delta: in [0, 1).
        confidence: in (0, 1).
        repetitions: law of K behind the scores, also as text. Without it they are taken as not
            tuned, and the lifted curve is left out.
        mu: expected distance of the means in standard deviations. With it the scores must be
            standardised (N(b mu, 1) in one run), and thresholds are fixed from theory.
        threshold: a threshold fixed in advance, instead of the one from theory.
        direction: as in `lower_bound`.
        split_top: where the order of the outputs splits, for the worst-order score; it adds
            "worst-order-curve", and needs standardised scores, `repetitions` and `threshold`.
        known: what is true of the game. Without it all that an estimator assumes is taken as true,
            but that the output was not tuned, which `repetitions` tells.
        looks: as in `lower_bound`.

    Returns:
        Lower bounds, each with its claim and what it is worth here; names may repeat, `key` does
        not.

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> rows = all_lower_bounds(scores, scores + 2.0, delta=1e-5)
        >>> [row.key for row in rows if row.valid][:2]
        ['scan:scan', 'clopper-pearson:split']
    """
    law = Fixed(1) if repetitions is None else laws.parse_repetitions(repetitions)
    facts = facts_as_told(law) if known is None else known
    direction = checks.one_of("direction", direction, DIRECTIONS)
    if split_top is not None and direction != "higher":
        raise ValueError("split_top must come with repetitions, threshold and direction higher")
    scores = Scores.of(scores_without, scores_with)
    return [
        estimator.bound(scores, delta, confidence, direction, facts, looks)
        for estimator in all_estimators(repetitions, mu, threshold, split_top)
    ]


def pooled_bounds(
    runs_without: ArrayLike,
    runs_with: ArrayLike,
    repetitions: Repetitions | str,
    delta: float = 1e-5,
    confidence: float = 0.95,
    threshold: float | None = None,
    known: Facts | None = None,
    looks: SequentialPlan | int | None = None,
) -> list[LowerBound]:
    """Lower bounds on the epsilon of the tuning from the scores of single runs, winners or not.

    The score, the larger the better, has to be what is released, or to decide it; otherwise see
    `selected_bound`.

    Args:
        runs_without: scores [r0] of runs of the base mechanism without the record.
        runs_with: scores [r1] of runs with it.
        repetitions: law of K, also as text.
        delta: in [0, 1).
        confidence: in (0, 1).
        threshold: a threshold fixed in advance, if there is one.
        known: as in `all_bounds`.
        looks: as in `lower_bound`.

    Returns:
        Lower bounds by "pooled" (nothing assumed of the base) and "pooled-gaussian-curve".

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> runs = np.random.default_rng(0).normal(size=(2, 1000))
        >>> rows = pooled_bounds(runs[0], runs[1] + 2.0, "fixed:2", 1e-5)
        >>> rows[0].name
        'pooled'
    """
    law = laws.parse_repetitions(repetitions)
    facts = facts_as_told(law) if known is None else known
    rules: list[ThresholdRule] = [Split(), Bonferroni(), Band()]
    if threshold is not None:
        rules.append(FixedThreshold(threshold))
    scores = Scores.of(runs_without, runs_with)
    return [
        estimator.bound(scores, delta, confidence, known=facts, looks=looks)
        for estimator in [
            PooledScan(law),
            *(PooledClopperPearson(law, rule=rule) for rule in rules),
            *(PooledGaussianCurve(law, rule=rule) for rule in [*rules, RankSum()]),
        ]
    ]
